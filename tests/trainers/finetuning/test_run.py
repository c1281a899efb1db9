"""What the fine-tuning commands share: exact losses, layers that learn or do not, the order of evaluation, sweeps.

Run as a script, this file trains in each of several processes; see `train_and_predict`.
"""

import itertools
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import PartialState
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).parents[2]))  # for a script; pytest has it already
from parity import CONFIG, NUM_LABELS, assert_same_gradients
from safetensors.torch import load_file
from sklearn.utils.class_weight import compute_class_weight
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, TrainerCallback

import snugbert
from snugbert import SnugBertTokenizer
from snugbert.errors import InputError
from snugbert.trainers.finetuning import sweep
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.run import (
    EvaluationSet,
    FineTuningTask,
    class_weights,
    collect_data_settings,
    fine_tune,
)
from snugbert.trainers.finetuning.trainer import DivergedError, FineTuningTrainer
from snugbert.trainers.glue.arguments import GlueDataArguments

HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
LABELS = ["few", "some", "many"]
WEIGHTS = torch.tensor([0.5, 1.0, 3.0])


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def tokenizer() -> SnugBertTokenizer:
    return make_tokenizer()


def make_tokenizer() -> SnugBertTokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return SnugBertTokenizer(vocab={piece: i for i, piece in enumerate(pieces + [f"w{i}" for i in range(200)])})


def examples(head: str, number: int, seed: int = 0) -> Dataset:
    """Sequences of 3 to 30 tokens; the label of a sequence tells how many of its tokens are high."""
    generator = random.Random(seed)
    rows = []
    for _ in range(number):
        ids = [2, *generator.choices(range(5, 205), k=generator.randint(2, 29))]
        row = {"input_ids": ids, "token_type_ids": [0] * len(ids), "attention_mask": [1] * len(ids)}
        if head == "ForSequenceClassification":
            row["label"] = min(2, sum(i >= 105 for i in ids) // 5)
        elif head == "ForTokenClassification":
            row["labels"] = [-100, *(i % NUM_LABELS if i % 5 else -100 for i in ids[1:])]
        else:
            row["start_positions"] = generator.randrange(len(ids))
            row["end_positions"] = generator.randrange(row["start_positions"], len(ids))
        rows.append(row)
    return Dataset.from_list(rows)


def new_model(head: str, **overrides) -> torch.nn.Module:
    torch.manual_seed(0)
    return getattr(snugbert, f"SnugBert{head}")(snugbert.SnugBertConfig(**CONFIG | overrides))


def new_trainer(head: str, tokenizer, folder, data=None, weights=None, model=None, **settings) -> FineTuningTrainer:
    defaults = {"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "save_strategy": "no"}
    collator = DataCollatorForTokenClassification if head == "ForTokenClassification" else DataCollatorWithPadding
    return FineTuningTrainer(
        model=new_model(head) if model is None else model,
        args=FineTuningArguments(output_dir=str(folder), **defaults | settings),
        padding_collator=collator(tokenizer),
        of_tokens=head != "ForSequenceClassification",
        class_weights=weights,
        train_dataset=examples(head, 45) if data is None else data,
    )


def gradients_of_a_step(trainer: FineTuningTrainer) -> torch.nn.Module:
    """The model with the gradients of its first step."""
    trainer.args.max_steps, trainer.args.max_grad_norm = 1, 0
    gradients = {}

    class Keeper(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
            gradients.update({p: p.grad.clone() for p in model.parameters() if p.grad is not None})

    trainer.add_callback(Keeper())
    trainer.train()
    for parameter in trainer.model.parameters():
        parameter.grad = gradients.get(parameter)
    return trainer.model


# --- loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("head", "weights"), [*((head, None) for head in HEADS), *((h, WEIGHTS) for h in HEADS[:2])])
def test_one_batch_is_accumulated_batches_is_padded_batches(head, weights, tokenizer, tmp_path):
    """45 examples: accumulated batches of 8 end with one of 5, which a mean of means would weigh too much."""
    models = [
        gradients_of_a_step(new_trainer(head, tokenizer, tmp_path, weights=weights, **settings))
        for settings in (
            {"per_device_train_batch_size": 45},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6, "pad_to_max_length": True},
        )
    ]
    assert any(parameter.grad.any() for parameter in models[0].parameters() if parameter.grad is not None)
    for other in models[1:]:
        assert_same_gradients(other, models[0])


def test_class_weights_are_those_of_torch_and_of_scikit_learn(tokenizer, tmp_path):
    data = examples("ForSequenceClassification", 45)
    labels = np.array(data["label"])
    task = SimpleNamespace(name="own", labels=LABELS, multi_label=False, train_features=data)
    balanced = class_weights("balanced", task)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(balanced, expected, rtol=1e-6)
    of_tokens = examples("ForTokenClassification", 45)
    tags = np.concatenate(list(of_tokens["labels"]))
    expected_of_tokens = compute_class_weight("balanced", classes=np.arange(3), y=tags[tags >= 0])
    task = SimpleNamespace(name="own", labels=LABELS, multi_label=False, train_features=of_tokens)
    np.testing.assert_allclose(class_weights("balanced", task), expected_of_tokens, rtol=1e-6)

    trainer = new_trainer(
        "ForSequenceClassification", tokenizer, tmp_path, data, balanced, per_device_train_batch_size=45, max_steps=1
    )
    loss = trainer.train().training_loss
    model = new_model("ForSequenceClassification").eval()
    logits = torch.stack([model(torch.tensor([ids])).logits[0] for ids in data["input_ids"]])
    # Balanced weights have mean 1 over the labels, so torch's division by their sum is the same.
    assert loss == pytest.approx(
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels), balanced).item(), abs=1e-5
    )


def test_named_class_weights():
    task = SimpleNamespace(name="own", labels=["a=b", "few"], multi_label=False, train_features=examples(HEADS[0], 3))
    assert class_weights("a=b=2.5", task).tolist() == [2.5, 1.0]
    for text in ("few", "few=0", "few=x", "none=2", "few=inf"):
        with pytest.raises(InputError, match="must be LABEL=NUMBER above 0, the label one of a=b, few"):
            class_weights(text, task)
    with pytest.raises(InputError, match="has no classes"):
        class_weights("balanced", SimpleNamespace(name="STS-B", labels=None, train_features=None))


def test_a_loss_that_is_no_number_ends_the_run(tokenizer, tmp_path):
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path, per_device_train_batch_size=15, num_train_epochs=2)

    class Spoiler(TrainerCallback):
        def on_step_begin(self, args, state, control, model, **kwargs):
            if state.global_step == 3:
                torch.nn.init.constant_(model.classifier.weight, float("nan"))

    trainer.add_callback(Spoiler())
    with pytest.raises(InputError, match=r"the loss is nan in step 4; try a lower --learning_rate"):
        trainer.train()


# --- layers -----------------------------------------------------------------------------------------------------


def test_a_layer_learns_at_its_own_rate(tokenizer, tmp_path):
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path, layerwise_lr_decay=0.5, learning_rate=1.0, weight_decay=0.01)
    optimizer = trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert optimizer.param_groups[0]["lr"] == 1.0  # the one that is logged
    for name, parameter in trainer.model.named_parameters():
        layer = name.split(".")[3] if "encoder.layer" in name else None
        expected = 0.0625 if "embeddings" in name else {None: 1.0, "0": 0.125, "1": 0.25, "2": 0.5}[layer]
        assert rates.pop(id(parameter)) == expected, name
        assert decays[id(parameter)] == (0 if "bias" in name or "LayerNorm" in name else 0.01), name
    assert not rates


@pytest.mark.parametrize(
    ("frozen_parts", "until", "settings"),
    [
        (("embeddings", "layer.0.", "layer.1."), None, {"freeze_layers": 2}),
        (("embeddings", "layer.0.", "layer.1."), 4, {"freeze_layers": 2, "unfreeze_after_steps": 4}),
        (("embeddings",), None, {"freeze_embeddings": True}),
    ],
)
def test_frozen_layers_learn_nothing_until_they_may(frozen_parts, until, settings, tokenizer, tmp_path):
    seen = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            seen.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})

    settings = {**settings, "learning_rate": 1e-2, "warmup_steps": 0, "max_steps": 6}
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path, per_device_train_batch_size=15, **settings)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.add_callback(Watch())
    trainer.train()
    for name in before:
        frozen = any(part in name for part in frozen_parts)
        changed = [not torch.equal(now[name], then[name]) for then, now in zip([before, *seen], seen, strict=False)]
        if "key.bias" not in name:  # has no gradient
            assert changed == [not frozen or (until is not None and step >= until) for step in range(6)], name


def test_what_cannot_be_frozen(tokenizer, tmp_path):
    with pytest.raises(InputError, match="--freeze_layers 4: the model has 3 layers"):
        new_trainer(HEADS[0], tokenizer, tmp_path, freeze_layers=4)
    with pytest.raises(InputError, match="nothing is frozen"):
        FineTuningArguments(output_dir=str(tmp_path), unfreeze_after_steps=3)


# --- evaluation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_predictions_are_those_of_single_examples_in_their_order(head, padded, tokenizer, tmp_path):
    data = examples(head, 21)
    trainer = new_trainer(head, tokenizer, tmp_path, per_device_eval_batch_size=4, pad_to_max_length=padded)
    unlabelled = data.select_columns(["input_ids", "token_type_ids", "attention_mask"])
    predictions = trainer.predict(unlabelled).predictions
    model = trainer.model.eval()
    parts = predictions if isinstance(predictions, tuple) else (predictions,)
    for row, ids in enumerate(data["input_ids"]):
        with torch.no_grad():
            output = model(torch.tensor([ids]))
        expected = list(output.values())
        assert len(expected) == len(parts)
        for part, values in zip(parts, expected, strict=True):
            found = part[row][: len(ids)] if head != "ForSequenceClassification" else part[row]
            np.testing.assert_allclose(found, values[0], atol=1e-5)


def test_a_batch_has_no_padding_and_evaluation_begins_with_the_long_ones(tokenizer, tmp_path):
    data = examples(HEADS[0], 45)
    lengths = [len(ids) for ids in data["input_ids"]]
    trainer = new_trainer(
        HEADS[0], tokenizer, tmp_path, data, per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=6
    )
    seen: dict[bool, list[list[int]]] = {True: [], False: []}

    def note(model, args, inputs):
        assert inputs["input_ids"].shape == (1, inputs["cu_seq_lens_q"][-1])
        seen[model.training].append(inputs["cu_seq_lens_q"].diff().tolist())

    trainer.model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train()
    trainer.predict(data)
    assert sorted(itertools.chain.from_iterable(seen[True])) == sorted(lengths)  # an epoch
    assert list(itertools.chain.from_iterable(seen[False])) == sorted(lengths, reverse=True)


def test_scores_that_are_no_numbers_are_no_result(tokenizer, tmp_path):
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path, max_steps=1)
    spoiled = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    spoiled["classifier.weight"][:] = float("nan")

    class Spoiler(TrainerCallback):  # as a step that is too long does
        def on_step_end(self, args, state, control, model, **kwargs):
            model.load_state_dict(spoiled)

    trainer.add_callback(Spoiler())
    trainer.train()
    with pytest.raises(DivergedError, match=r"test: scores .* no numbers after step 1; try a lower --learning_rate"):
        trainer.predict(examples(HEADS[0], 5))
    model = new_model(HEADS[0])
    model.load_state_dict(spoiled)
    with pytest.raises(DivergedError, match="test: scores of the model are no numbers; are its weights whole"):
        new_trainer(HEADS[0], tokenizer, tmp_path, model=model).predict(examples(HEADS[0], 5))


@pytest.mark.parametrize("head", HEADS)
def test_bf16_is_for_speed_alone(head, tokenizer, tmp_path):
    """Products are rounded to 16 bits (8 of them for the digits); weights, and so the steps of AdamW, have 32."""
    gradients, dtypes = [], []
    for bf16 in (False, True):
        trainer = new_trainer(head, tokenizer, tmp_path, per_device_train_batch_size=45, bf16=bf16)
        layer = trainer.model.base_model.encoder.layer[0].output.dense
        layer.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
        parameters = list(gradients_of_a_step(trainer).parameters())
        assert {parameter.dtype for parameter in parameters} == {torch.float32}
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
    assert dtypes == [torch.float32, torch.bfloat16]
    exact, fast = gradients
    assert 0 < (fast - exact).norm() < 2**-6 * exact.norm()


# --- processes --------------------------------------------------------------------------------------------------


def train_and_predict(folder: Path, batch_size: int) -> None:
    """Some steps with every head, its first layers frozen at first; 21 predictions, an odd number."""
    for head in HEADS:
        weights = None if head == "ForQuestionAnswering" else WEIGHTS
        # Adam would make something of gradients that are rounding only.
        settings = {
            "optim": "sgd",
            "learning_rate": 0.1,
            "max_steps": 4,
            "freeze_layers": 1,
            "unfreeze_after_steps": 2,
        }
        trainer = new_trainer(
            head,
            make_tokenizer(),
            folder / head,
            examples(head, 48),  # a last batch that is not full would be filled up by accelerate
            weights,
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=4,
            **settings,
        )
        trainer.train()
        trainer.save_model()
        predictions = trainer.predict(examples(head, 21, seed=1)).predictions
        if trainer.is_world_process_zero():
            parts = predictions if isinstance(predictions, tuple) else (predictions,)
            np.savez(folder / head / "predictions.npz", *parts, processes=trainer.args.world_size)


def test_one_process_is_two_processes(tmp_path):
    train_and_predict(tmp_path / "one", batch_size=12)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", __file__]
    process = subprocess.run([*command, str(tmp_path / "two"), "6"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for head in HEADS:
        one, two = (load_file(tmp_path / name / head / "model.safetensors") for name in ("one", "two"))
        for name in one:
            torch.testing.assert_close(two[name], one[name], atol=2e-5, rtol=0, msg=f"{head}: {name}")
        one, two = (np.load(tmp_path / name / head / "predictions.npz") for name in ("one", "two"))
        assert (one["processes"], two["processes"]) == (1, 2)
        for part in set(one.files) - {"processes"}:
            np.testing.assert_allclose(two[part], one[part], atol=1e-3)


# --- runs and sweeps --------------------------------------------------------------------------------------------


def make_task(tokenizer, number: int = 60) -> FineTuningTask:
    """Whether a sequence has few, some or many high tokens."""
    train_features, eval_features = examples(HEADS[0], number), examples(HEADS[0], 30, seed=1)
    references = np.array(eval_features["label"])

    def judge(predictions, folder):
        if folder is not None:
            np.savetxt(folder / "predictions.txt", predictions.argmax(-1), fmt="%d")
        return {"accuracy": float((predictions.argmax(-1) == references).mean())}

    return FineTuningTask(
        name="counting",
        make_model=lambda: snugbert.SnugBertForSequenceClassification(snugbert.SnugBertConfig(**CONFIG)),
        tokenizer=tokenizer,
        train_features=train_features,
        evaluation_sets=[EvaluationSet("eval", eval_features, judge, 30, ("always 'few'", {"accuracy": 0.25}))],
        main_metric="accuracy",
        metrics=("accuracy",),
        pipeline_tag="text-classification",
        padding_collator=DataCollatorWithPadding(tokenizer),
        labels=LABELS,
    )


def arguments(folder, **settings) -> FineTuningArguments:
    defaults = {"use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "learning_rate": 1e-3}
    return FineTuningArguments(output_dir=str(folder), **defaults | settings)


@pytest.fixture
def model_args(tmp_path, tokenizer) -> FineTunedModelArguments:
    return FineTunedModelArguments(config_name="tiny", tokenizer_name=".")


def test_a_run_leaves_everything(tokenizer, model_args, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    pushed = []
    monkeypatch.setattr(FineTuningTrainer, "init_hf_repo", lambda self, token=None: None)
    monkeypatch.setattr(FineTuningTrainer, "push_to_hub", lambda self: pushed.extend(folder.iterdir()))
    settings = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "no", "push_to_hub": True}
    figures = fine_tune(make_task(tokenizer), model_args, arguments(folder, **settings))
    assert [file.name for file in pushed].count("README.md") == 1  # once, and with the card
    results = json.loads((folder / "results.json").read_text())
    assert results["figures"] == figures and results["baselines"]["eval"]["accuracy"] == 0.25
    assert results["settings"]["learning_rate"] == 1e-3 and results["training"]["train_samples"] == 60
    accuracy = json.loads((folder / "eval_results.json").read_text())["eval_accuracy"]
    assert accuracy == figures["eval"]["accuracy"]
    predicted = np.loadtxt(folder / "predictions.txt")
    assert (predicted == np.array(examples(HEADS[0], 30, seed=1)["label"])).mean() == accuracy
    assert f"eval: accuracy {accuracy:.4f} on 30 examples; always 'few': accuracy 0.2500" in capsys.readouterr().out
    assert {"README.md", "results.md", "learning_curve.png", "model.safetensors"} <= {f.name for f in folder.iterdir()}

    # Scoring with the model leaves the report of its training.
    before = (folder / "results.json").read_bytes()
    task = make_task(tokenizer)
    task.train_features = None
    fine_tune(task, model_args, arguments(folder, do_eval=True))
    assert (folder / "results.json").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"eval_strategy": "steps"}, (500, 500)),
        ({"eval_strategy": "steps", "logging_steps": 100, "early_stopping_patience": 1}, (100, 100)),
        ({"eval_strategy": "steps", "eval_steps": 30, "early_stopping_patience": 1}, (30, 30)),
    ],
)
def test_steps_of_evaluation_and_of_checkpoints(settings, expected, tmp_path):
    args = arguments(tmp_path, **settings)
    assert (args.eval_steps, args.save_steps) == expected


def test_early_stopping_keeps_the_best_model(tokenizer, model_args, tmp_path):
    task, accuracies = make_task(tokenizer), iter([0.5, 0.7, 0.6, 0.65, 0.9])
    judge = task.evaluation_sets[0].judge
    task.evaluation_sets[0].judge = lambda predictions, folder: (
        {"accuracy": next(accuracies)} if folder is None else judge(predictions, folder)
    )
    fine_tune(task, model_args, arguments(tmp_path / "run", num_train_epochs=9, early_stopping_patience=2))
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["epoch"] == 4 and state["best_metric"] == 0.7
    best, kept = (load_file(f / "model.safetensors") for f in (tmp_path / "run/checkpoint-4", tmp_path / "run"))
    assert all(torch.equal(best[name], kept[name]) for name in best)

    # What is better by less than the threshold is not better.
    accuracies = iter([0.5, 0.55, 0.6, 0.65, 0.9])
    settings = {"num_train_epochs": 9, "early_stopping_patience": 2, "early_stopping_threshold": 0.2}
    fine_tune(task, model_args, arguments(tmp_path / "threshold", **settings))
    assert json.loads((tmp_path / "threshold" / "trainer_state.json").read_text())["epoch"] == 3


def test_unknown_metric(tokenizer, model_args, tmp_path):
    with pytest.raises(InputError, match="there is no metric 'acuracy'; those of counting are accuracy"):
        fine_tune(make_task(tokenizer), model_args, arguments(tmp_path, metric_for_best_model="acuracy"))


class Interrupted(Exception):
    pass


def test_the_papers_grid(tmp_path):
    settings = sweep.list_settings(arguments(tmp_path, sweep="paper"))
    rates = (5e-5, 4e-5, 3e-5, 2e-5)
    assert settings == [(size, rate, epochs) for size in (16, 32) for rate in rates for epochs in (2, 3, 4)]


def test_a_sweep_that_was_interrupted_is_the_straight_one(tokenizer, model_args, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "BATCH_SIZES", (16, 32))
    monkeypatch.setattr(sweep, "LEARNING_RATES", (1e-3, 1e-4))
    monkeypatch.setattr(sweep, "EPOCHS", (1.0,))
    settings = {"sweep": "paper", "seeds": 2}
    calls = []

    def counted(task, model_args, args):
        calls.append(args.output_dir)
        return fine_tune(task, model_args, args)

    training_step = FineTuningTrainer.training_step

    def interrupted(self, *args):
        if len(calls) == 3 and self.state.global_step == 1:
            raise KeyboardInterrupt
        return training_step(self, *args)

    monkeypatch.setattr(sweep, "fine_tune", counted)
    monkeypatch.setattr(FineTuningTrainer, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(make_task(tokenizer), model_args, arguments(tmp_path / "a", **settings))
    sweep.run(make_task(tokenizer), model_args, arguments(tmp_path / "a", **settings))
    assert len(calls) == 3 + 6  # two were done, one was begun
    monkeypatch.setattr(sweep, "fine_tune", fine_tune)
    sweep.run(make_task(tokenizer), model_args, arguments(tmp_path / "b", **settings))
    a, b = (json.loads((tmp_path / name / "results.json").read_text()) for name in "ab")
    assert a["sweep"] == b["sweep"] and a["figures"] == b["figures"]
    assert len(a["sweep"]["settings"]) == 4 and all(len(row["scores"]) == 2 for row in a["sweep"]["settings"])
    for row in a["sweep"]["settings"]:
        assert row["mean"] == pytest.approx(np.mean(row["scores"]))
        assert row["std"] == pytest.approx(np.std(row["scores"], ddof=1))
    scores = [score for row in a["sweep"]["settings"] for score in row["scores"]]
    assert a["figures"]["eval"]["accuracy"] == max(scores)
    assert a["sweep"]["best_setting"]["mean"] == max(row["mean"] for row in a["sweep"]["settings"])

    # Only the best weights are left, and they are those that made the predictions.
    assert [file.parent.name for file in (tmp_path / "a").rglob("*.safetensors")] == ["a"]
    model = snugbert.SnugBertForSequenceClassification.from_pretrained(tmp_path / "a")
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path / "again", model=model)
    predictions = trainer.predict(examples(HEADS[0], 30, seed=1)).predictions.argmax(-1)
    np.testing.assert_array_equal(predictions, np.loadtxt(tmp_path / "a" / "predictions.txt"))

    # With other settings or other data it does not go on.
    calls.clear()
    monkeypatch.setattr(sweep, "fine_tune", counted)
    with pytest.raises(InputError, match=r"was begun with other --weight_decay; choose another folder"):
        sweep.run(make_task(tokenizer), model_args, arguments(tmp_path / "a", **settings, weight_decay=0.1))
    with pytest.raises(InputError, match=r"was begun with other train examples;"):
        sweep.run(make_task(tokenizer, 61), model_args, arguments(tmp_path / "a", **settings))
    assert not calls


def test_a_sweep_that_goes_on_keeps_the_best_weights(tokenizer, model_args, tmp_path, monkeypatch):
    output_dir = tmp_path / "run"
    scores = {42: 0.5, 43: 0.9, 44: 0.6, 46: 0.7}  # of each seed; 45 diverges
    failures: list[type[Exception]] = [Interrupted, DivergedError]

    def run_of_a_seed(task, model_args, args):
        if args.seed == 45:
            raise failures.pop(0)("the loss is nan")
        task.evaluation_sets[0].judge = lambda predictions, folder: {"accuracy": scores[args.seed]}
        return fine_tune(task, model_args, args)

    def sweep_over(seeds: int) -> None:
        sweep.run(make_task(tokenizer), model_args, arguments(output_dir, seeds=seeds, max_steps=1))

    monkeypatch.setattr(sweep, "fine_tune", run_of_a_seed)
    with pytest.raises(Interrupted):
        sweep_over(4)
    (kept,) = output_dir.rglob("*.safetensors")
    assert kept.parent.name.endswith("seed-43")
    best = kept.read_bytes()
    for seeds in (4, 5):  # a seed more is just run
        sweep_over(seeds)
        assert [file.read_bytes() for file in output_dir.rglob("*.safetensors")] == [best]
        results = json.loads((output_dir / "results.json").read_text())
        assert results["figures"]["eval"]["accuracy"] == 0.9 and results["settings"]["seed"] == 43
        assert [failure.partition("seed-")[2] for failure in results["sweep"]["failures"]] == ["45: the loss is nan"]
    with pytest.raises(InputError, match="was begun with 5; give as many, or choose another folder"):
        sweep_over(2)


def test_seeds_alone_run_the_settings_given(tokenizer, model_args, tmp_path, capsys, monkeypatch):
    pushed = {}

    class Hub:
        def __init__(self, token):
            assert token is None  # of `hf auth login`

        def create_repo(self, name, **kwargs):
            return SimpleNamespace(repo_id=f"me/{name}")

        def upload_folder(self, *, repo_id, folder_path, **kwargs):
            pushed[repo_id] = {file.name for file in Path(folder_path).iterdir()}

    monkeypatch.setattr(sweep, "HfApi", Hub)
    given = arguments(tmp_path / "run", seeds=3, num_train_epochs=1, per_device_train_batch_size=20, push_to_hub=True)
    sweep.run(make_task(tokenizer), model_args, given)
    assert {"README.md", "model.safetensors", "config.json", "results.json"} <= pushed["me/run"]
    runs = sorted(folder.name for folder in (tmp_path / "run" / "runs").iterdir())
    assert runs == [f"batch-20_rate-0.001_epochs-1_seed-{seed}" for seed in (42, 43, 44)]
    assert "eval_accuracy" in capsys.readouterr().out
    # A single run is not mistaken for a sweep.
    shutil.rmtree(tmp_path / "run" / "runs")
    (tmp_path / "run" / "plan.json").unlink()
    with pytest.raises(InputError, match="already holds a run; choose another folder"):
        sweep.run(make_task(tokenizer), model_args, given)


def test_no_path_of_this_machine_is_in_the_results(tokenizer, tmp_path):
    checkpoint = tmp_path / "secret" / "pretrained"
    checkpoint.mkdir(parents=True)
    model_args = FineTunedModelArguments(model_name_or_path=str(checkpoint))
    task = make_task(tokenizer)
    task.settings = collect_data_settings(GlueDataArguments(dataset_name=str(tmp_path / "secret")))
    folder = tmp_path / "run"
    given = {"seeds": 2, "max_steps": 1, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}
    sweep.run(task, model_args, arguments(folder, **given, save_strategy="steps", save_steps=1))
    files = [file for file in folder.rglob("*") if file.suffix in (".json", ".md", ".jsonl")]
    assert {"plan.json", "results.json", "README.md", "trainer_state.json"} <= {file.name for file in files}
    assert [file.name for file in files if str(tmp_path) in file.read_text(encoding="utf-8")] == []
    assert json.loads((folder / "results.json").read_text())["model"] == "pretrained"
    other = FineTunedModelArguments(model_name_or_path=str(tmp_path / "secret"))
    with pytest.raises(InputError, match="was begun with other --model_name_or_path"):
        sweep.run(task, other, arguments(folder, **given, save_strategy="steps", save_steps=1))


def test_replacing_a_sweep_removes_only_what_sweeps_write(tokenizer, model_args, tmp_path):
    settings = {"sweep": "fixed", "max_steps": 1}
    sweep.run(make_task(tokenizer), model_args, arguments(tmp_path, **settings))
    (run,) = (tmp_path / "runs").iterdir()
    for name in ("my_adapter.safetensors", "checkpoint-notes.txt"):
        (run / name).write_text("mine")
    (run / "checkpoint-notes").mkdir()
    sweep.run(make_task(tokenizer), model_args, arguments(tmp_path, **settings, seeds=2))  # goes on
    assert {"my_adapter.safetensors", "checkpoint-notes.txt", "checkpoint-notes"} <= {f.name for f in run.iterdir()}
    assert not list(run.glob("model*.safetensors"))

    theirs = tmp_path / "runs" / "batch-32_rate-3e-05_epochs-2_seed-1" / "results.json"
    mine = ("checkpoint-notes/a", "my_results.json", "eval_my_learning_curve.png", "cola/checkpoint-notes/a", "cola/a")
    mine += ("runs/mine/results.json", "runs/mine/model.safetensors", "runs/mine/checkpoint-1/a", "runs/batch-mine/a")
    for file in (*(tmp_path / name for name in mine), theirs):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    args = arguments(tmp_path, **settings, overwrite_output_dir=True)
    sweep.run(make_task(tokenizer), model_args, args)
    sweep.claim({}, args, [tmp_path, tmp_path / "cola"])  # as a suite does
    assert all((tmp_path / name).read_text() == "mine" for name in mine) and not theirs.exists()
    assert not (tmp_path / "results.json").exists() and not list((tmp_path / "runs").glob("batch-*_seed-*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sweep": "grid"}, "there is no sweep 'grid'; there are paper, fixed"),
        ({"seeds": 0}, "--seeds 0 must be at least 1"),
        ({"layerwise_lr_decay": 1.5}, "--layerwise_lr_decay 1.5 must be at least 0 and at most 1"),
        ({"early_stopping_patience": 0}, "--early_stopping_patience 0 must be at least 1"),
    ],
)
def test_arguments_out_of_range(settings, message, tmp_path):
    with pytest.raises(InputError, match=message):
        arguments(tmp_path, **settings)


def test_a_sweep_that_was_refused_may_be_corrected(tokenizer, model_args, tmp_path):
    with pytest.raises(InputError, match=r"--freeze_layers 99: the model has \d+ layers?"):
        sweep.run(make_task(tokenizer), model_args, arguments(tmp_path / "run", sweep="fixed", freeze_layers=99))
    sweep.run(make_task(tokenizer), model_args, arguments(tmp_path / "run", sweep="fixed", max_steps=1))
    assert (tmp_path / "run" / "results.json").exists()


def test_tables_of_a_sweep_tell_f1_alone_of_types():
    setting = sweep.Setting(32, 3e-5, 3.0)
    of_types = {"LOC_precision": 1.0, "LOC_recall": 0.25, "LOC_f1": 0.4, "LOC_number": 9}
    figures = {name: {"mean": value, "std": 0.125} for name, value in {"f1": 0.5, **of_types}.items()}
    row = {**setting._asdict(), "seeds": 2, "scores": [0.5, 0.5], "mean": 0.5, "std": 0.0}
    summary = {"chosen_by": "eval_f1", "settings": [row], "best_setting": row, "failures": []}
    tables = sweep._tables({**summary, "figures": {"eval": figures}}, sweep.Run(setting, Path("best"), {}))
    lines = [line for line in tables.splitlines() if line.startswith("| validation")]
    assert lines == ["| validation | f1 | 0.5000 ± 0.1250 |", "| validation | LOC f1 | 0.4000 ± 0.1250 |"]


def test_what_a_sweep_needs(tokenizer, model_args, tmp_path):
    task = make_task(tokenizer)
    with pytest.raises(InputError, match="batches of 16 cannot be divided among 1 processes"):
        sweep.run(task, model_args, arguments(tmp_path, sweep="paper", gradient_accumulation_steps=3))
    task.evaluation_sets = []
    with pytest.raises(InputError, match="no validation examples to choose by"):
        sweep.run(task, model_args, arguments(tmp_path, seeds=2))


if __name__ == "__main__":
    train_and_predict(Path(sys.argv[1]), int(sys.argv[2]))
    PartialState().destroy_process_group()
