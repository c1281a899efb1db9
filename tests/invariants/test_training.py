"""Runs that must be equal: accumulated batches, data workers, processes, phases, killed and resumed runs."""

import copy
import gzip
import json
import os
import signal
from itertools import islice, pairwise, repeat
from pathlib import Path

import forked
import pytest
import torch
from finetuning_examples import KeepGradients, make_tokenizer
from safetensors.torch import load_file
from synthetic import ARGUMENTS, RandomExamples, make_pair, note_batches, tiny_model, without_times
from transformers import BertConfig, BertForPreTraining, DataCollatorForTokenClassification, TrainerCallback

import snugbert
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.trainers.pretraining.batches import plan_phases
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, parse_phases
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.run.checkpoints import find_newest_checkpoint

pytestmark = pytest.mark.slow

STEPS = 12
PHASES = "24:67%,48:33%"  # 8 steps of 18 sequences and 4 of 9, which two processes cannot share evenly
WITHOUT_PAIRS = "24:67%:mlm,48:33%"
EVAL_EXAMPLES = 7  # an odd number, too
MODELS = {
    "nsp": snugbert.SnugBertForPreTraining,
    "mlm": snugbert.SnugBertForMaskedLM,
    "electra": make_pair,
    "distilled": snugbert.SnugBertForPreTraining,
}


@pytest.fixture(scope="module")
def material(data_dir, tmp_path_factory):
    """A folder with a corpus of real text, and a tokenizer of only 3,000 tokens to save time."""
    folder = tmp_path_factory.mktemp("material")
    vocabulary = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text().splitlines(keepends=True)
    (folder / "vocab.txt").write_text("".join(vocabulary[:3000]))
    with gzip.open(data_dir / "wikitext2/valid.docs.txt.gz", "rt") as text:
        (folder / "text.txt").write_text("".join(islice(text, 400)))
    prepare_corpus(folder / "text.txt", tokenizer_of(folder), folder / "corpus", preprocessing_num_workers=1)
    return folder


def tokenizer_of(material: Path) -> snugbert.SnugBertTokenizer:
    return snugbert.SnugBertTokenizer(vocab=str(material / "vocab.txt"))


def make_trainer(
    material, folder, phases=PHASES, objective="nsp", dropout=0.1, kill=None, **arguments
) -> PretrainingTrainer:
    """A trainer with a tiny model. It records the sequences of each step in `seen`. For `kill` see [`Killer`]."""
    tokenizer = tokenizer_of(material)
    corpus = open_corpus(material / "corpus", tokenizer)

    def dataset(length, examples, seed):
        return PretrainingDataset(corpus, tokenizer, length, examples, seed=seed, epochs_dir=material / "epochs")

    defaults = {"max_steps": STEPS, "per_device_train_batch_size": 18, "logging_steps": 5, "save_steps": 3}
    defaults |= {"save_total_limit": 0, "eval_steps": 3, "eval_strategy": "steps", "per_device_eval_batch_size": 2}
    args = PretrainingArguments(str(folder), **ARGUMENTS | defaults | arguments)
    examples = {"electra": "mlm", "distilled": "nsp"}.get(objective, objective)
    lengths, shares, of_phases = zip(*parse_phases(phases, examples), strict=True)
    eval_dataset = torch.utils.data.Subset(dataset(lengths[-1], examples, seed=0), range(EVAL_EXAMPLES))
    torch.manual_seed(0)
    config = snugbert.SnugBertConfig.from_size(
        "tiny", vocab_size=len(tokenizer), hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    teacher = snugbert.SnugBertForMaskedLM(config) if objective == "distilled" else None
    trainer = PretrainingTrainer(
        model=MODELS[objective](config),
        teacher=teacher,
        args=args,
        phases=plan_phases(list(map(dataset, lengths, of_phases, repeat(1))), shares, args),
        eval_dataset=eval_dataset,
        data_collator=SnugBertDataCollatorForPretraining(tokenizer, replacement_keys=objective == "electra"),
        processing_class=tokenizer,
        callbacks=[] if kill is None else [Killer(*kill)],
    )
    note_batches(trainer, lambda batches: [ids for batch in batches for ids in sequences_of(batch)])
    return trainer


def sequences_of(batch) -> list[list[int]]:
    starts = batch["cu_seq_lens_q"].tolist()
    return [batch["input_ids"][0, start:end].tolist() for start, end in pairwise(starts)]


class Killer(TrainerCallback):
    """Sends a signal at the beginning of a step, from the process `rank` to itself or to its whole group."""

    def __init__(self, step: int, name: str, group: bool = False, rank: int = 0):
        self.step, self.signal, self.group, self.rank = step, signal.Signals[name], group, rank

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1 and args.process_index == self.rank:
            os.killpg(os.getpgid(0), self.signal) if self.group else os.kill(os.getpid(), self.signal)


def train(runs: list[dict]) -> None:
    """Trains with `make_trainer`'s arguments, one run after another. Writes the sequences to `seen-<rank>.json`."""
    for run in runs:
        resume = run.pop("resume", None)
        trainer = make_trainer(Path(run.pop("material")), **run)
        trainer.train(resume_from_checkpoint=resume)
        if not trainer.interrupted:
            trainer.save_model()
        file = f"seen-{trainer.args.process_index}{'-resumed' if resume else ''}.json"
        (Path(run["folder"]) / file).write_text(json.dumps(trainer.seen))


def metrics_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_weights(model, expected, **tolerance):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(scope="module")
def straight(material, tmp_path_factory):
    """An uninterrupted run of two phases, with dropout."""
    trainer = make_trainer(material, tmp_path_factory.mktemp("straight"))
    trainer.train()
    return trainer


@pytest.mark.parametrize("objective", MODELS)
def test_a_batch_of_32_is_4_accumulated_batches_of_8(material, tmp_path, objective):
    """Losses, accuracies, gradient norm and weights. Without dropout: its masks depend on the batch shape."""
    runs = []
    options = {"max_steps": 2, "eval_steps": 2, "logging_steps": 1, "save_strategy": "no", "dropout": 0.0}
    for size in (32, 8):
        batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 32 // size}
        batches |= {"per_device_eval_batch_size": size // 8}
        run = make_trainer(material, tmp_path / str(size), "24:100%", objective, **options, **batches)
        run.train()
        runs.append(run)
    assert runs[1].seen == runs[0].seen and len(runs[0].seen[0]) == 32
    logs = [without_times(run.state.log_history) for run in runs]
    assert len(logs[0]) == 4
    for whole, accumulated in zip(*logs, strict=True):
        assert accumulated == pytest.approx(whole, rel=2e-5)
        assert all(("nsp" in name) <= (objective in ("nsp", "distilled")) for name in whole)
        assert ("soft_loss" in whole) == ("cos_loss" in whole) == ("grad_norm" in whole and objective == "distilled")
    assert_same_weights(runs[1].model, runs[0].model, atol=2e-5, rtol=0)


def test_the_log_reports_the_sequences_of_each_step(straight):
    """Tokens, padding, epochs and learning rate of each line agree with the sequences."""
    lines = [line for line in straight.state.log_history if "loss" in line]
    tokens = [sum(map(len, sequences)) for sequences in straight.seen]
    assert [line["tokens"] for line in lines] == [sum(tokens[:5]), sum(tokens[:10])]
    # Steps 6 to 8 have 18 sequences of at most 24 tokens. Steps 9 and 10 have 9 of at most 48.
    assert [len(sequences) for sequences in straight.seen] == [18] * 8 + [9] * 4
    assert max(len(ids) for sequences in straight.seen[:8] for ids in sequences) == 24
    assert max(len(ids) for sequences in straight.seen[8:] for ids in sequences) == 48
    short, long = (len(phase.dataset) for phase in straight.phases)
    assert lines[1]["epoch"] == pytest.approx(8 * 18 / short + 2 * 9 / long, rel=1e-12)
    # One step of warmup (1 % of 12, rounded up), then linear decay to zero over both phases.
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3 * (12 - step) / 11 for step in (4, 9)])
    for line in lines:
        assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"], rel=1e-12)
        assert line["tokens_per_second"] > 0 and "mfu" not in line  # on a CPU
    assert metrics_of(Path(straight.args.output_dir)) == straight.state.log_history


@pytest.mark.parametrize("objective", ["nsp", "electra", "distilled"])
def test_a_killed_and_resumed_run_is_bit_identical_to_an_uninterrupted_one(material, straight, tmp_path, objective):
    """SIGTERM to all processes and data workers, then SIGKILL. Compares weights, examples and log.

    With a teacher, the first phase has no pairs, and the same batches as a run without pairs.
    """
    options = {"objective": objective, "phases": WITHOUT_PAIRS if objective == "distilled" else PHASES}
    if objective != "nsp":
        straight = make_trainer(material, tmp_path / "straight", **options)
        straight.train()
    if objective == "distilled":
        without_pairs = make_trainer(material, tmp_path, objective="mlm").get_train_dataloader()
        assert list(map(sequences_of, islice(without_pairs, 8))) == straight.seen[:8]
    # In the first phase before and at a checkpoint, at the end of a phase, and in the second phase.
    stopped, killed = {"nsp": (5, 8), "electra": (3, 4), "distilled": (7, 11)}[objective]
    run = {"material": material, "folder": tmp_path, "dataloader_num_workers": 2} | options
    run |= {"metric_for_best_model": "loss", "save_total_limit": 1}  # must not remove the last checkpoint
    runs = [
        run | {"kill": [stopped, "SIGTERM", True]},
        run | {"kill": [killed, "SIGKILL"], "resume": tmp_path / f"checkpoint-{stopped}"},
    ]
    process = forked.run(train, runs)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert (
        f"SIGTERM: stopped after step {stopped} of {STEPS}. Wrote {tmp_path / f'checkpoint-{stopped}'}."
        in process.stderr
    )
    assert not (tmp_path / "model.safetensors").exists()
    assert json.loads((tmp_path / "seen-0.json").read_text())[:stopped] == straight.seen[:stopped]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"loss": 3.14')  # an unfinished line

    checkpoint = find_newest_checkpoint(tmp_path)
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    assert stopped <= step < killed
    resumed = make_trainer(material, tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.seen == straight.seen[step:]
    assert without_times(metrics_of(tmp_path)) == without_times(straight.state.log_history)
    assert without_times(resumed.state.log_history) == without_times(straight.state.log_history)
    assert_same_weights(resumed.model, straight.model, atol=0, rtol=0)


def test_one_process_equals_two_and_resumes_their_checkpoint(material, tmp_path):
    """SIGTERM to one of two processes stops both after the same step. Resumes in two, and in one with accumulation."""
    run = {"material": material, "dropout": 0.0, "per_device_train_batch_size": 9, "save_strategy": "no"}
    stop, two = tmp_path / "stopped", tmp_path / "two"
    runs = [
        run | {"folder": two},
        run | {"folder": stop, "kill": [4, "SIGTERM", False, 1]},
        run | {"folder": stop, "resume": stop / "checkpoint-4"},
    ]
    process = forked.run(train, runs, processes=2)
    assert process.returncode == 0, process.stderr

    one = make_trainer(material, tmp_path / "one", dropout=0.0, save_strategy="no")
    one.train()
    resumed = make_trainer(**run | {"folder": tmp_path / "resumed", "gradient_accumulation_steps": 2})
    resumed.train(resume_from_checkpoint=str(stop / "checkpoint-4"))

    seen = [json.loads((two / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    assert [first + second for first, second in zip(*seen, strict=True)] == one.seen
    assert [len(sequences) for sequences in seen[0]] == [9] * 8 + [4] * 4
    assert resumed.seen == one.seen[4:]
    log = without_times(one.state.log_history)
    for other in (metrics_of(two), metrics_of(stop), resumed.state.log_history):
        for line, expected in zip(without_times(other), log, strict=True):
            assert line == pytest.approx(expected, rel=1e-4)
    assert without_times(metrics_of(stop)) == without_times(metrics_of(two))
    weights, expected = load_file(stop / "model.safetensors"), load_file(two / "model.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.items())
    two_processes = snugbert.SnugBertForPreTraining.from_pretrained(two)
    for model in (two_processes, resumed.model):
        assert_same_weights(model, one.model, atol=5e-5, rtol=0)


@pytest.mark.parametrize("collate", ["packed", "padded"])
def test_a_plain_list_of_features_is_exact(tmp_path, collate):
    """One batch of 32 = 8 accumulated batches of 4 = stock BERT on the whole batch, with ragged labels and pairs.

    Labels at padding are ignored.
    """
    features = []
    for index in range(32):
        columns = RandomExamples(32)[index]
        columns["token_type_ids"] = torch.arange(len(columns["input_ids"])) // 4 % 2
        pair = columns.pop("next_sentence_label")
        features.append({name: value.tolist() for name, value in columns.items()})
        features[-1]["next_sentence_label"] = pair if index % 7 else -100  # some sequences are not pairs
    pad = DataCollatorForTokenClassification(make_tokenizer())

    def pad_with_labels(rows):
        batch = pad(rows)
        return batch | {"labels": batch["labels"].masked_fill(batch["attention_mask"] == 0, 7)}

    model = tiny_model()
    stock = BertForPreTraining(BertConfig(**{**model.config.to_dict(), "model_type": "bert"}))
    stock.load_state_dict(model.state_dict())
    reference = stock(**pad(features))
    reference.loss.backward()

    for size in (32, 4):
        keeper = KeepGradients()
        # No clipping, and a learning rate of 0.
        batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 32 // size}
        args = ARGUMENTS | {"max_steps": 1, "max_grad_norm": 0, "learning_rate": 0, "save_strategy": "no"} | batches
        trainer = snugbert.PretrainingTrainer(
            model=copy.deepcopy(model),
            args=snugbert.PretrainingArguments(str(tmp_path / str(size)), per_device_eval_batch_size=5, **args),
            train_dataset=features,
            eval_dataset=features,
            data_collator=snugbert.SnugBertDataCollatorWithPacking() if collate == "packed" else pad_with_labels,
            callbacks=[keeper],
        )
        trainer.train()
        line = trainer.state.log_history[0]
        assert line["loss"] == pytest.approx(reference.loss.item(), rel=1e-5)
        assert line["tokens"] == sum(len(feature["input_ids"]) for feature in features)
        for name, parameter in stock.named_parameters():
            torch.testing.assert_close(keeper.gradients[name], parameter.grad, atol=1e-6, rtol=1e-4, msg=name)
        metrics = trainer.evaluate()
        assert metrics["eval_loss"] == pytest.approx(reference.loss.item(), rel=1e-5)
        for name in ("mlm_accuracy", "nsp_accuracy", "mlm_loss", "nsp_loss"):
            assert metrics[f"eval_{name}"] == pytest.approx(line[name], rel=1e-5)
