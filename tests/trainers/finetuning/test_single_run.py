"""One fine-tuning run: its files and summary, early stopping, class weights, scores below the baseline."""

import dataclasses
import functools
import json
import math
import shutil

import numpy as np
import pytest
import torch
from fake_hub import intercept_pushes
from finetuning_examples import HEADS, arguments, counting_set, examples, make_tokenizer, prepare_counting
from huggingface_hub import HfApi
from parity import CONFIG
from safetensors.torch import load_file

import snugbert
from snugbert.data.sources import DataSource
from snugbert.errors import InputError
from snugbert.tasks.base import Baseline, Features
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.losses import class_weights
from snugbert.trainers.finetuning.single_run import (
    ADVICE,
    ADVICE_WITHOUT_TRAINING,
    describe_shortfalls,
    fine_tune,
    make_trainer,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_a_run_writes_everything(tokenizer, tmp_path):
    folder = tmp_path / "run"
    settings = {"num_train_epochs": 2, "save_strategy": "no", "push_to_hub": True}
    task = prepare_counting(tokenizer)
    task.evaluation_sets[0].baseline = Baseline("always right", {"accuracy": 1.0})
    with intercept_pushes() as pushed:
        fine_tune(task, arguments(folder, **settings))
    (files,) = pushed.values()  # once, and with the card
    assert "predictions.txt" not in files and {"README.md", "results.json"} <= files.keys()
    results = json.loads((folder / "results.json").read_text())
    assert results["baselines"]["eval"]["accuracy"] == 1.0 and len(results["shortfalls"]) == 2
    assert "is not better than the baseline, 100.00 (always right). Try" in (folder / "results.md").read_text()
    assert results["settings"]["learning_rate"] == 1e-3 and results["training"]["train_samples"] == 60
    accuracy = json.loads((folder / "eval_results.json").read_text())["eval_accuracy"]
    predicted = np.loadtxt(folder / "predictions.txt")
    assert (predicted == np.array(examples(HEADS[0], 30, seed=1)["label"])).mean() == accuracy
    assert accuracy == results["metrics"]["eval"]["accuracy"] and (folder / "learning_curve.png").exists()

    # A run that only scores keeps the results of the training.
    before, task = (folder / "results.json").read_bytes(), prepare_counting(tokenizer)
    task.train_features = None
    fine_tune(task, arguments(folder, do_eval=True))
    assert (folder / "results.json").read_bytes() == before
    # Without a training, it is not a finished run.
    fine_tune(task, arguments(tmp_path / "scored", do_eval=True))
    with pytest.raises(InputError, match="contains a run, but no complete checkpoint"):
        fine_tune(prepare_counting(tokenizer), arguments(tmp_path / "scored", resume_from_checkpoint="true"))


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"num_train_epochs": 3}, [2, 4, 6]),
        ({"max_steps": 3}, [2, 3]),  # the last epoch is incomplete
        ({"max_steps": 84}, [*range(5, 84, 5), 84]),  # 42 epochs: about 20 times
        ({"num_train_epochs": 3, "eval_strategy": "no"}, [6]),
        ({"num_train_epochs": 2, "load_best_model_at_end": True}, [2, 4]),
    ],
)
def test_validation_examples_are_scored_only_once(settings, steps, tokenizer, tmp_path, monkeypatch):
    """After each epoch. The last evaluation also gives the final score. Test examples are predicted at the end."""
    task, evaluated = prepare_counting(tokenizer, 8), []
    task.evaluation_sets.append(counting_set(task.task, "test", 7, labeled=False))
    task.data["predict"] = [DataSource("test.csv", "test", 7)]
    loop = FineTuningTrainer.evaluation_loop

    def count(trainer, loader, *args, **kwargs):
        evaluated.append((trainer.state.global_step, len(loader.dataset)))
        return loop(trainer, loader, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "evaluation_loop", count)
    results = fine_tune(task, arguments(tmp_path, per_device_train_batch_size=4, **settings))
    assert evaluated[-1] == (steps[-1], 7)
    *validations, _ = evaluated
    best = json.loads((tmp_path / "trainer_state.json").read_text())["best_global_step"]
    # The best model may not be the last one.
    again = [steps[-1]] if "load_best_model_at_end" in settings and best != steps[-1] else []
    assert [step for step, _ in validations] == [*steps, *again]
    assert set(results["intervals"]) == {"eval", "predict"}
    assert np.loadtxt(tmp_path / "predictions.txt").shape == (7,)  # of the test examples, which are written last


def test_evaluation_does_not_change_the_training(tokenizer, tmp_path):
    weights = []
    for strategy in ({}, {"eval_strategy": "no"}):
        folder = tmp_path / str(len(strategy))
        task = prepare_counting(tokenizer)
        config = snugbert.SnugBertConfig(**CONFIG | {"hidden_dropout_prob": 0.1})  # draws from the random state
        task.make_model = functools.partial(snugbert.SnugBertForSequenceClassification, config)
        fine_tune(task, arguments(folder, num_train_epochs=2, **strategy))
        weights.append(load_file(folder / "model.safetensors"))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_only_training_starts_from_random_layers(tokenizer, tmp_path):
    def weights(task, number: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return dict(make_trainer(task, arguments(tmp_path, reinit_layers=number)).model.named_parameters())

    trains, scores = prepare_counting(tokenizer), prepare_counting(tokenizer)
    scores.train_features = None
    before, trained, scored = weights(trains, 0), weights(trains, 2), weights(scores, 2)
    changed = {".".join(name.split(".")[:4]) for name in before if not torch.equal(before[name], trained[name])}
    assert changed == {"bert.encoder.layer.1", "bert.encoder.layer.2", "bert.pooler.dense.weight"}
    assert all(torch.equal(before[name], scored[name]) for name in before)


def test_checkpoints_only_serve_to_resume(tokenizer, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "snugbert")
    folder, task = tmp_path / "run", prepare_counting(tokenizer)

    def run(**settings):
        return fine_tune(task, arguments(folder, num_train_epochs=1, **settings))

    # A run that is stopped after its results are written, but before it ends, keeps them.
    def stopped(checkpoints):
        raise KeyboardInterrupt

    with monkeypatch.context() as kill:
        kill.setattr("snugbert.trainers.finetuning.single_run.remove_checkpoints", stopped)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert (folder / "results.json").exists() and (folder / "checkpoint-2").exists()
    named = shutil.copytree(folder / "checkpoint-2", tmp_path / "named/checkpoint-2")
    (folder / "checkpoint-9").mkdir()  # of a later step
    (folder / "checkpoint-notes").mkdir()
    straight = load_file(folder / "model.safetensors")
    results = run(resume_from_checkpoint="true")
    assert {path.name for path in folder.glob("*checkpoint*")} == {"checkpoint-9", "checkpoint-notes"}
    (folder / "checkpoint-9").rmdir()
    # A checkpoint that the user names stays.
    fine_tune(task, arguments(named.parent, num_train_epochs=1, resume_from_checkpoint=str(named)))
    assert named.exists()

    # The same command again changes nothing, but repeats the upload, which may have failed.
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    uploads = []
    monkeypatch.setattr(FineTuningTrainer, "train", None)
    monkeypatch.setattr(FineTuningTrainer, "init_hf_repo", lambda self, token=None: None)
    monkeypatch.setattr(HfApi, "upload_folder", lambda self, **upload: uploads.append(upload["folder_path"]))
    assert run(resume_from_checkpoint="true") == json.loads(json.dumps(results)) and not uploads
    run(resume_from_checkpoint="true", push_to_hub=True)
    assert uploads == [str(folder)]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert f"{folder} contains this run, which is finished." in caplog.text
    finished = load_file(folder / "model.safetensors")
    assert all(torch.equal(straight[name], finished[name]) for name in straight)

    # What a checkpoint compares, and what determines the results.
    other = prepare_counting(tokenizer)
    other.evaluation_sets[0].features = Features(examples(HEADS[0], 30, seed=2))
    for changed, settings, message in (
        (task, {"max_grad_norm": 2}, "--max_grad_norm"),
        (task, {"num_train_epochs": 2}, "--num_train_epochs"),
        (prepare_counting(tokenizer, 59), {}, "the training data"),
        (other, {}, "the validation data"),
    ):
        settings = {"num_train_epochs": 1, "resume_from_checkpoint": "true", **settings}
        with pytest.raises(InputError, match=message):
            fine_tune(changed, arguments(folder, **settings))
    with pytest.raises(InputError, match="already contains a run"):
        run()


def test_named_class_weights():
    task = prepare_counting(make_tokenizer(), 3)
    task.task.labels = ["a=b", "few"]
    assert class_weights("a=b=2.5", task).tolist() == [2.5, 1.0]
    args = FineTuningArguments(output_dir="out", class_weights={"few": np.float32(3)})
    assert class_weights(args.class_weights, task).tolist() == [1.0, 3.0]
    for text in ("few", "few=0", "few=x", "none=2", "few=inf", {"few": 0.0}, [1.0, 2.0]):
        with pytest.raises(InputError, match=r"with a positive weight, not .*\. Labels: a=b, few\."):
            class_weights(text, task)
    unlabeled = dataclasses.replace(task, train_features=None)
    task.task.labels, task.task.problem = None, "regression"
    for each in (unlabeled, task):
        with pytest.raises(InputError, match="needs training examples with exactly one class each"):
            class_weights("balanced", each)


def test_early_stopping_keeps_the_best_model(tokenizer, tmp_path):
    settings = {"num_train_epochs": 9, "early_stopping_patience": 2, "save_total_limit": 3}
    task, accuracies = prepare_counting(tokenizer), iter([0.5, 0.7, 0.6, 0.65, 0.9])
    task.evaluation_sets[0].score = lambda predictions: {"accuracy": next(accuracies)}
    fine_tune(task, arguments(tmp_path / "run", **settings))
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["epoch"] == 4 and state["best_metric"] == 0.7
    best, kept = (load_file(f / "model.safetensors") for f in (tmp_path / "run/checkpoint-4", tmp_path / "run"))
    assert all(torch.equal(best[name], kept[name]) for name in best)

    # An improvement below the threshold does not count.
    accuracies = iter([0.5, 0.55, 0.6, 0.65, 0.9])
    fine_tune(task, arguments(tmp_path / "threshold", **settings, early_stopping_threshold=0.2))
    assert json.loads((tmp_path / "threshold" / "trainer_state.json").read_text())["epoch"] == 3


def test_a_run_resumes_with_its_settings_and_may_get_more_epochs(tokenizer, tmp_path):
    folder, resume = tmp_path / "run", {"resume_from_checkpoint": "true"}
    settings = {"load_best_model_at_end": True, "save_strategy": "epoch", "num_train_epochs": 2}
    task = prepare_counting(tokenizer)
    fine_tune(task, arguments(folder, **settings))
    for changes, message in (
        ({"learning_rate": 5e-4}, "--learning_rate"),
        ({"class_weights": "few=2", "data_seed": 1}, "--class_weights(.|\n)*--data_seed"),
        ({"reinit_layers": 1}, "--reinit_layers"),
        ({"metric_for_best_model": "loss"}, "--metric_for_best_model"),
        ({"per_device_train_batch_size": 16}, "batch"),
        ({"num_train_epochs": 1}, r"^--num_train_epochs: .* has taken 4 steps, more than the 2 steps of this"),
    ):
        with pytest.raises(InputError, match=message):
            fine_tune(task, arguments(folder, **settings | resume | changes))
    other = FineTunedModelArguments(model_name_or_path="other")
    with pytest.raises(InputError, match="--model_name_or_path"):
        fine_tune(dataclasses.replace(task, model_args=other), arguments(folder, **settings | resume))

    same_batch = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    fine_tune(task, arguments(folder, load_best_model_at_end=True, num_train_epochs=3, **resume, **same_batch))
    change = "after step 4: 6 steps instead of 4"
    assert json.loads((folder / "results.json").read_text())["settings"]["changed_on_resume"] == change
    # The first command asked for checkpoints, so they stay.
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}


@pytest.mark.parametrize(
    ("metric", "score", "baseline", "told"),
    [
        ("accuracy", 0.25, 0.25, "Validation: accuracy 25.00 is not better than the baseline, 25.00 (always 'few')."),
        ("accuracy", 0.25001, 0.25, None),
        ("mse", 2.0, 2.5, None),
        ("mse", 3.0, 2.5, "Validation: mse 3.0000 is not better than the baseline, 2.5000 (always 'few')."),
        ("pearson", -0.1, math.nan, "Validation: pearson -10.00 is not better than the baseline, 0.00 ("),
        ("pearson", math.nan, math.nan, "Validation: pearson is undefined, because all predictions or"),
    ],
)  # fmt: skip
def test_shortfalls(metric, score, baseline, told):
    task = prepare_counting(make_tokenizer(), 3)
    task.task.main_metric = metric
    task.evaluation_sets[0].baseline = Baseline("always 'few'", {metric: baseline})
    task.evaluation_sets.append(counting_set(task.task, "test", labeled=False))
    metrics = {"eval": {metric: score}, "predict": {}}
    sentences = describe_shortfalls(task, metrics)
    if told is None:
        assert sentences == []
    else:
        assert sentences[0].startswith(told) and sentences[1:] == [ADVICE]
    task.train_features = None
    without_training = [sentence.replace(ADVICE, ADVICE_WITHOUT_TRAINING) for sentence in sentences]
    assert describe_shortfalls(task, metrics) == without_training


def test_a_validation_set_and_never_a_test_set_selects_the_best_model():
    prepared = prepare_counting(make_tokenizer(), 3)
    (validation_set,) = prepared.evaluation_sets
    test_set = counting_set(prepared.task, "test")
    prepared.evaluation_sets = [test_set, validation_set]
    assert prepared.validation_set is validation_set
    prepared.evaluation_sets = [test_set]
    assert prepared.validation_set is None
