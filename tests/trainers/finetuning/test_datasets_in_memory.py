"""Trainers and predictors with datasets in memory do the same as the commands."""

import inspect
import json
from dataclasses import fields

import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict
from finetuning_examples import arguments
from glue_examples import TOKENIZER, sentences
from glue_examples import arguments as command_line
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainingArguments

import snugbert
from snugbert import (
    DistillationTrainer,
    FineTuningArguments,
    FineTuningTrainer,
    Predictor,
    Tagging,
    TextClassification,
)
from snugbert.errors import InputError
from snugbert.tasks.task_arguments import NerDataArguments
from snugbert_cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SETTINGS = {"learning_rate": 5e-3, "num_train_epochs": 2, "per_device_train_batch_size": 16}


@pytest.fixture(scope="module")
def train() -> Dataset:
    return Dataset.from_list(sentences(160, seed=1))


@pytest.fixture(scope="module")
def dev() -> Dataset:
    return Dataset.from_list(sentences(60, seed=2))


@pytest.fixture(scope="module")
def trained(train, dev, tmp_path_factory) -> FineTuningTrainer:
    args = arguments(tmp_path_factory.mktemp("run") / "sentences", **SETTINGS)
    trainer = FineTuningTrainer("tiny", args, TextClassification(), train, dev, TOKENIZER)
    trainer.train()
    trainer.save_model()
    return trainer


def test_a_trainer_equals_the_command(trained, dev, workshop, tmp_path):
    """Weights and scores are the same, and so are the intervals."""
    run = command_line(workshop, tmp_path / "run", config_overrides=None, num_train_epochs=2)
    assert main(["glue", *run]) == 0
    ours, theirs = (load_file(f"{folder}/model.safetensors") for folder in (trained.args.output_dir, tmp_path / "run"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    results = json.loads((tmp_path / "run/results.json").read_text())
    metrics = trained.evaluate()
    assert metrics["eval_accuracy"] == results["metrics"]["eval"]["accuracy"] > 0.9
    assert list(trained.intervals["eval_accuracy"]) == results["intervals"]["eval"]["accuracy"]

    predictor = Predictor(trained.args.output_dir, device="cpu")
    assert predictor.evaluate(dev) == results["metrics"]["eval"]
    assert list(predictor.intervals["accuracy"]) == results["intervals"]["eval"]["accuracy"]
    rows = [json.loads(line) for line in (tmp_path / "run/eval_predictions.jsonl").read_text().splitlines()]
    answers = predictor(dev)
    assert [answer["predicted_label"] for answer in answers] == [row["predicted_label"] for row in rows]
    with pytest.raises(InputError, match=r"^row 2: no text in column 'sentence'\. Fix"):
        predictor([{"sentence": "good"}, {"sentence": None}])


class SpoilLastStep(TrainerCallback):
    """Makes the model wrong after the last step."""

    def on_step_end(self, args, state, control, model, **kwargs):
        if state.global_step == state.max_steps:
            with torch.no_grad():
                model.classifier.weight.neg_(), model.classifier.bias.neg_()


class StopAtTen(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 10


def test_the_card_has_the_score_of_the_saved_model(train, dev, tmp_path):
    """Of the best model, on the examples that selected it, even if another process evaluated it."""
    selection = {"load_best_model_at_end": True, "save_strategy": "epoch", "early_stopping_patience": 3}
    args = arguments(tmp_path, **SETTINGS | selection, metric_for_best_model="macro_f1")
    sets = {"dev": dev, "few": dev.select(range(7))}

    def make(callback: TrainerCallback) -> FineTuningTrainer:
        return FineTuningTrainer("tiny", args, TextClassification(), train, sets, TOKENIZER, [callback])

    make(StopAtTen()).train()
    with pytest.raises(InputError, match="already contains a run"):
        make(StopAtTen()).train()
    trainer = make(SpoilLastStep())
    trainer.train(resume_from_checkpoint=True)
    first, last = (line["eval_dev_accuracy"] for line in trainer.state.log_history if "eval_dev_loss" in line)
    assert first > last and trainer.model_step == 10
    scores = [line["eval_dev_macro_f1"] for line in trainer.state.log_history if "eval_dev_loss" in line]
    assert trainer.state.best_metric == max(scores) and trainer.args.greater_is_better
    trainer.evaluate(dev.select(range(11)))
    trainer.save_model()
    assert f"| accuracy | {100 * first:.2f} |" in (tmp_path / "README.md").read_text()
    assert trainer.evaluate(dev)["eval_accuracy"] == first


def test_the_card_has_the_score_of_the_last_model_if_the_best_has_no_checkpoint(train, dev, tmp_path):
    """Trainer loads a best model only if it has a checkpoint."""
    steps = {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 20}
    args = arguments(tmp_path, **SETTINGS | steps | {"load_best_model_at_end": True})
    trainer = FineTuningTrainer("tiny", args, TextClassification(), train, dev, TOKENIZER, [SpoilLastStep()])
    trainer.train()
    scores = {line["step"]: line["eval_accuracy"] for line in trainer.state.log_history if "eval_accuracy" in line}
    assert trainer.state.best_global_step < 20 and trainer.model_step == 20
    trainer.save_model()
    assert f"| accuracy | {100 * scores[20]:.2f} |" in (tmp_path / "README.md").read_text()
    assert max(scores.values()) > scores[20] == trainer.evaluate()["eval_accuracy"]


def test_copies_are_reported_and_a_metric_of_a_label_selects(train, dev, tmp_path, caplog):
    mixed = Dataset.from_list([*train, *dev.select([0, 0, 1, 2, 3])])
    seen = {row["sentence"] for row in mixed}
    number = sum(row["sentence"] in seen for row in dev)
    copies = f"Validation examples that are copies of training examples: {number} of 60."
    args = arguments(tmp_path, max_steps=1, metric_for_best_model="eval_gloomy_recall")
    trainer = FineTuningTrainer("tiny", args, TextClassification(), mixed, dev, TOKENIZER)
    trainer.train()
    trainer.save_model()
    trainer.predict(dev.select(range(3)))
    test = "Test examples that are copies of validation examples: 3 of 3."
    assert all(f"{sentence} Scores on copies are too high" in caplog.text for sentence in (copies, test))
    card = (tmp_path / "README.md").read_text()
    assert f"\n{copies}\n" in card and "gloomy recall" in card


def write_file(data):
    name = f"{len(data)}.csv"
    data.to_csv(name)
    return name


FORMS = {
    "torch": lambda data: data.with_format("torch"),
    "arrow": lambda data: data.with_format("arrow"),
    "generator": iter,
    "frame": lambda data: data.to_pandas().rename(index=lambda row: row + 9),
    "streamed": lambda data: data.to_iterable_dataset().with_format("torch"),
    "path": write_file,
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_all_kinds_are_trained_on_and_scored(form, train, dev, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, classes = FORMS[form], ClassLabel(names=["gloomy", "cheerful"])
    train = train.cast_column("label", classes) if form in ("torch", "streamed") else train  # ids
    args = arguments(tmp_path, **SETTINGS)
    data = {"train_dataset": make(train), "eval_dataset": {"a": make(dev)}}
    trainer = FineTuningTrainer("tiny", args, processing_class=TOKENIZER, **data)
    expected = FineTuningTrainer("tiny", args, TextClassification(), train, {"a": dev}, TOKENIZER)
    assert trainer.train_dataset[:] == expected.train_dataset[:]
    assert trainer.eval_dataset["a"][:] == expected.eval_dataset["a"][:]
    part = dev.select(range(20))
    assert trained.evaluate(make(part))["eval_accuracy"] == trained.evaluate(part)["eval_accuracy"]
    assert (trained.predict(make(part)).predictions == trained.predict(part).predictions).all()


def test_metrics_of_the_user_are_added(dev, trained, tmp_path):
    def compute_metrics(prediction):
        predictions, labels = prediction
        assert labels.shape == predictions.shape[:-1]
        scored = labels != -100
        return {"own": (predictions.argmax(-1) == labels)[scored].mean()}

    options = {"processing_class": TOKENIZER, "compute_metrics": compute_metrics}
    trainer = FineTuningTrainer(trained.model, arguments(tmp_path), TextClassification(), None, dev, **options)
    metrics = trainer.evaluate()
    assert metrics["eval_own"] == metrics["eval_accuracy"] > 0.9
    assert "test_own" not in trainer.predict(dev.remove_columns("label")).metrics
    rows = [{"tokens": ["good", "film", "a"][: 1 + i % 3], "tags": ["B-X", "O", "O"][: 1 + i % 3]} for i in range(9)]
    tagger = FineTuningTrainer("tiny", arguments(tmp_path), Tagging(), rows, rows, **options)
    metrics = tagger.evaluate()
    assert metrics["eval_own"] == metrics["eval_accuracy"]


def test_a_model_in_memory_is_trained_in_place(train, dev, tmp_path):
    config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=len(TOKENIZER))
    model = snugbert.SnugBertForSequenceClassification(config)
    before = model.classifier.weight.clone()
    task, args = TextClassification(), arguments(tmp_path, max_steps=3, eval_strategy="no", save_strategy="no")
    data = {"train_dataset": train, "eval_dataset": {"a": dev, "b": dev}}
    trainer = FineTuningTrainer(model=model, args=args, task=task, processing_class=TOKENIZER, **data)
    assert trainer.model is model and args is not trainer.args
    trainer.train()
    assert not torch.equal(model.classifier.weight, before)
    assert model.config.id2label == {0: "cheerful", 1: "gloomy"}
    metrics = trainer.evaluate()
    assert metrics["eval_a_accuracy"] == metrics["eval_b_accuracy"]
    answer = Predictor(model, TOKENIZER)("a good film")
    assert set(answer["probabilities"]) == {"cheerful", "gloomy"}

    three = snugbert.SnugBertConfig.from_size("tiny", vocab_size=len(TOKENIZER), num_labels=3)
    for changes, message in (
        ({"model": snugbert.SnugBertModel(config)}, "expected a SnugBertForSequenceClassification, .*SnugBertModel"),
        ({"model": snugbert.SnugBertForSequenceClassification(three)}, "the model has 3 labels, but the data have 2"),
        ({"processing_class": None}, "processing_class is missing"),
        ({"train_dataset": DatasetDict(train=train)}, r"not a DatasetDict\. Pass one of its splits"),
        ({"train_dataset": None, "eval_dataset": None}, "no data"),
        ({"args": arguments(tmp_path, seeds=2)}, "--sweep, --seeds, --folds"),
        ({"args": TrainingArguments(str(tmp_path))}, "args: expected FineTuningArguments, not TrainingArguments"),
    ):
        given = {"model": model, "args": args, "task": task, "processing_class": TOKENIZER} | data | changes
        with pytest.raises(InputError, match=message):
            FineTuningTrainer(**given)


def test_a_student_learns_from_a_teacher(trained, train, dev, tmp_path):
    unlabeled = Dataset.from_list(sentences(40, seed=7)).remove_columns("label")
    args = arguments(tmp_path, num_train_epochs=1, save_strategy="no")
    data = {"train_dataset": train, "eval_dataset": dev, "unlabeled_dataset": unlabeled.to_pandas()}
    trainer = DistillationTrainer("tiny", args, TextClassification(), teacher=trained.args.output_dir, **data)
    assert len(trainer.train_dataset) == 200
    data |= {"teacher": trained.model, "processing_class": trained.processing_class}
    in_memory = DistillationTrainer("tiny", args, TextClassification(), **data)
    assert (trainer.targets.logits == in_memory.targets.logits).all()
    trainer.train()
    trainer.save_model()
    assert "It was distilled from sentences." in (tmp_path / "README.md").read_text()
    assert trainer.evaluate()["eval_accuracy"] >= 0.5
    with pytest.raises(InputError, match=r"^teacher is missing"):
        DistillationTrainer("tiny", args, TextClassification(), train)


def test_arguments_are_listed():
    """As completion in notebooks and `help` list them."""
    assert "learning_rate" in inspect.signature(FineTuningArguments).parameters
    assert list(inspect.signature(Tagging).parameters) == [each.name for each in fields(NerDataArguments)]
