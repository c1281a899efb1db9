"""Equalities of training: accumulated batches, data workers, a stopped run."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainingArguments

import snugbert
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPreTraining
from snugbert.trainers.pretraining.documents import read_documents, tokenize_corpus
from snugbert.trainers.pretraining.sentence_pairs import SentencePairDataset
from snugbert.trainers.pretraining.trainer import PretrainingArguments, PretrainingTrainer

BATCH = 32


@pytest.fixture(scope="module")
def pretraining_parts(data_dir):
    """A tokenizer and a corpus of real text; a dataset of `steps` batches of 32."""
    tokenizer = snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))
    corpus = tokenize_corpus(read_documents([data_dir / "wikitext2/valid.docs.txt.gz"]), tokenizer, "en", False)

    def dataset(steps):
        ids = tokenizer.cls_token_id, tokenizer.sep_token_id
        return SentencePairDataset(corpus, *ids, max_seq_length=24, num_examples=steps * BATCH)

    return tokenizer, dataset


def trainer(parts, folder, steps, dropout=0.1, **arguments) -> PretrainingTrainer:
    tokenizer, dataset = parts
    torch.manual_seed(0)
    config = snugbert.SnugBertConfig.from_size(
        "tiny", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    defaults = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return PretrainingTrainer(
        model=snugbert.SnugBertForPreTraining(config),
        args=PretrainingArguments(**defaults | arguments),
        train_dataset=dataset(steps),
        data_collator=SnugBertDataCollatorForPreTraining(tokenizer),
        processing_class=tokenizer,
    )


def losses(log_history: list[dict]) -> list[dict[str, float]]:
    names = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "grad_norm", "learning_rate")
    return [{name: line[name] for name in names} for line in log_history if "loss" in line]


def test_a_batch_of_32_is_4_accumulated_batches_of_8(pretraining_parts, tmp_path):
    """Both losses, accuracies and the gradient norm; without dropout, whose masks depend on the batch's shape."""
    runs = []
    for size in (32, 8):
        run = trainer(
            pretraining_parts,
            tmp_path / str(size),
            steps=3,
            dropout=0.0,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=32 // size,
            save_strategy="no",
        )
        run.train()
        runs.append(run)
    for whole, accumulated in zip(*(losses(run.state.log_history) for run in runs), strict=True):
        assert accumulated == pytest.approx(whole, rel=2e-5)
    for ours, theirs in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_a_stopped_and_resumed_run_is_the_straight_run_bit_for_bit(pretraining_parts, tmp_path):
    """Weights and log, with dropout, stopped in mid-epoch; data workers change nothing."""
    straight = trainer(pretraining_parts, tmp_path / "straight", steps=6, save_steps=3)
    straight.train()
    shutil.copytree(tmp_path / "straight/checkpoint-3", tmp_path / "resumed/checkpoint-3")
    resumed = trainer(pretraining_parts, tmp_path / "resumed", steps=6, save_steps=3, dataloader_num_workers=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "resumed/checkpoint-3"))
    assert losses(resumed.state.log_history) == losses(straight.state.log_history)
    expected = load_file(tmp_path / "straight/checkpoint-6/model.safetensors")
    for name, tensor in load_file(tmp_path / "resumed/checkpoint-6/model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_every_head_is_exact_under_plain_trainer(tmp_path):
    """A stock script with gradient accumulation: the loss that is logged is the mean over the whole batch."""
    config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=50, hidden_dropout_prob=0.0, num_labels=3)
    config.attention_probs_dropout_prob = 0.0
    torch.manual_seed(0)
    rows = [{"input_ids": torch.randint(5, 50, (9,)), "labels": torch.tensor(index % 3)} for index in range(32)]
    model = snugbert.SnugBertForSequenceClassification(config)
    logged = []
    for size in (32, 8):
        model_copy = snugbert.SnugBertForSequenceClassification(config)
        model_copy.load_state_dict(model.state_dict())
        arguments = TrainingArguments(
            str(tmp_path / str(size)),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=32 // size,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        run = Trainer(model_copy, arguments, train_dataset=rows)
        run.train()
        logged.append({name: run.state.log_history[0][name] for name in ("loss", "grad_norm")})
    assert logged[1] == pytest.approx(logged[0], rel=1e-5)


def test_one_process_is_two_processes(data_dir, tmp_path):
    """The command under torch's launcher with gloo: log and weights, and that there really were two."""
    folder = tmp_path / "tok"
    folder.mkdir()
    shutil.copy(data_dir / "vocab/bert-base-uncased-vocab.txt", folder / "vocab.txt")
    arguments = {
        "tokenizer_name": folder,
        "config_name": "tiny",
        "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
        "train_file": data_dir / "sample_text/sample_text.txt",
        "validation_file": data_dir / "sample_text/sample_text.txt",
        "lines_are_sentences": "true",
        "max_seq_length": 32,
        "max_steps": 3,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "per_device_eval_batch_size": 3,
        "save_strategy": "no",
        "use_cpu": "true",
    }
    states = []
    for processes in (1, 2):
        output_dir = tmp_path / str(processes)
        more = {"per_device_train_batch_size": 8 // processes, "output_dir": output_dir}
        flags = [text for name, value in (arguments | more).items() for text in (f"--{name}", str(value))]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        process = subprocess.run(
            [sys.executable, *launcher, "-m", "snugbert", "pretrain", *flags], capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        assert process.stderr.count("3 steps of 8 pairs") == 1
        assert process.stdout.count("without context") == 1
        history = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
        evaluation = json.loads((output_dir / "eval_results.json").read_text())
        states.append((losses(history), evaluation, load_file(output_dir / "model.safetensors")))
    (log, evaluation, weights), (log_of_two, evaluation_of_two, weights_of_two) = states
    assert len(log) == 3
    for line, line_of_two in zip(log, log_of_two, strict=True):
        assert line_of_two == pytest.approx(line, rel=2e-5)
        assert line_of_two["loss"] == pytest.approx(line_of_two["mlm_loss"] + line_of_two["nsp_loss"], rel=1e-5)
    for name in ("eval_mlm_loss", "eval_mlm_accuracy", "eval_nsp_loss", "eval_nsp_accuracy"):
        assert evaluation_of_two[name] == pytest.approx(evaluation[name], rel=1e-4)
    for name, tensor in weights.items():
        torch.testing.assert_close(weights_of_two[name], tensor, atol=2e-5, rtol=0)
