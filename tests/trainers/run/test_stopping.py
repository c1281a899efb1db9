"""Stopping a run by a signal, and because its loss is not finite."""

import json
import math
import os
import signal
from contextlib import nullcontext
from pathlib import Path

import forked
import pytest
import torch
from emulated_graphs import emulated_graphs
from finetuning_examples import HEADS, arguments, make_tokenizer, new_trainer, prepare_counting
from parity import CONFIG
from safetensors.torch import load_file

import snugbert
from snugbert.errors import RunStopped
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.single_run import fine_tune
from snugbert.trainers.finetuning.sweep import run_sweep
from snugbert.trainers.run import stopping
from snugbert.trainers.run.stopping import DivergedError

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 6  # two epochs of three steps

NOT_FINITE = r"^The loss or the gradient norm is not finite in step 3 \(in this process: .*\)"


def raise_in_step(monkeypatch, step: int, *numbers: signal.Signals) -> None:
    """Makes the next training raise signals in the middle of a step, once."""
    training_step, waiting = FineTuningTrainer.training_step, [numbers]

    def interrupted(self, *args, **kwargs):
        if waiting and self.state.global_step == step - 1:
            for number in waiting.pop():
                signal.raise_signal(number)
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", interrupted)


def report_late(monkeypatch) -> None:
    """Reads the reports of steps as on a GPU."""
    monkeypatch.setattr(stopping, "has_own_kernels", lambda values: False)


def train(folder: Path, **settings) -> None:
    """Fine-tunes with dropout for six steps, once or in a sweep over seeds."""
    task = prepare_counting(make_tokenizer(), 12)
    config = snugbert.SnugBertConfig(**CONFIG | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    task.make_model = lambda: snugbert.SnugBertForSequenceClassification(config)
    defaults = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "logging_steps": 1, "eval_strategy": "epoch"}
    run_or_sweep = run_sweep if "seeds" in settings else fine_tune
    run_or_sweep(task, arguments(folder, **defaults | settings))


def log_of(folder: Path) -> list[tuple]:
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [(line["step"], line.get("loss"), line.get("eval_accuracy")) for line in history]


def assert_same_weights(folder: Path, expected: Path) -> None:
    weights, expected_weights = (load_file(each / "model.safetensors") for each in (folder, expected))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected_weights.items())


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight")
    train(folder, save_strategy="no")
    return folder


# Within an epoch, before its end, at its end, and at the end of the run. On a GPU, a run stops one step later unless
# something is due.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("received", "step", "strategy", "late"),
    [
        (2, 2, "no", False),
        (3, 3, "best", False),
        (5, 5, "epoch", False),
        (STEPS, STEPS, "no", False),
        (1, 2, "epoch", True),
        (2, 3, "epoch", True),
        (3, 3, "epoch", True),
        (STEPS, STEPS, "epoch", True),
    ],
)
def test_a_stopped_run_continues_bit_for_bit(received, step, strategy, late, straight, tmp_path, monkeypatch, caplog):
    """Also in another folder, and with data workers. The evaluation changes the random state of dropout after it."""
    # A checkpoint with only the model could not be resumed.
    settings = {"save_strategy": strategy, "metric_for_best_model": "accuracy", "save_only_model": step == 3}
    if late:
        report_late(monkeypatch)
        settings = {"save_strategy": strategy, "logging_steps": 100}
    number = signal.SIGTERM if step % 2 else signal.SIGINT
    raise_in_step(monkeypatch, received, number)
    with pytest.raises(RunStopped) as stop:
        train(tmp_path, **settings)
    assert stop.value.number == number
    assert caplog.messages[-2:] == [
        f"{number.name}: stopped after step {step} of {STEPS}. Wrote {tmp_path / f'checkpoint-{step}'}.",
        "To continue, run the same command again with --resume_from_checkpoint true.",
    ]
    assert not {"model.safetensors", "results.json", "README.md"} & {file.name for file in tmp_path.iterdir()}
    folder, resume = (tmp_path, "true") if step != 2 else (tmp_path / "moved", str(tmp_path / f"checkpoint-{step}"))
    train(folder, **settings, resume_from_checkpoint=resume, dataloader_num_workers=step % 2 if late else 0)
    assert_same_weights(folder, straight)
    logs = log_of(folder), log_of(straight)
    if late:  # only the evaluations
        logs = tuple([line for line in log if line[2] is not None] for log in logs)
    assert logs[0] == logs[1]


def test_early_stopping_keeps_its_count(tmp_path, monkeypatch):
    """The score never improves, so training ends after three epochs."""
    settings = {"early_stopping_patience": 2, "num_train_epochs": 6, "learning_rate": 0.0}
    raise_in_step(monkeypatch, 8, signal.SIGTERM)
    with pytest.raises(RunStopped):
        train(tmp_path, **settings)
    train(tmp_path, **settings, resume_from_checkpoint="true")
    assert json.loads((tmp_path / "trainer_state.json").read_text())["global_step"] == 9
    assert [step for step, _, score in log_of(tmp_path) if score is not None] == [3, 6, 9]


# Every two steps, and once per epoch at the end of a run within an epoch.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (4, {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}),
        (5, {"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": 5}),
    ],
)
def test_the_best_model_may_be_found_in_the_stop(step, settings, tmp_path, monkeypatch):
    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1}
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(straight, **settings)
    raise_in_step(monkeypatch, step, signal.SIGTERM)
    with pytest.raises(RunStopped):
        train(stopped, **settings)
    train(stopped, **settings, resume_from_checkpoint="true")
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in (straight, stopped)]
    for name in ("global_step", "best_global_step", "best_metric", "best_model_checkpoint"):
        assert states[0][name] == states[1][name] is not None, name
    assert log_of(straight) == log_of(stopped)
    assert (straight / "model.safetensors").read_bytes() == (stopped / "model.safetensors").read_bytes()


def stop_in_the_second_process(folder: Path, graphs: bool) -> None:
    """A straight run, and two that stop at an evaluation and continue. The second stops as on a GPU."""
    settings = {"per_device_train_batch_size": 2, "save_strategy": "no", "logging_steps": 3}
    if graphs:
        settings |= {"cuda_graphs": True, "pad_to_multiple_of": 64}
    with emulated_graphs() if graphs else nullcontext():
        train(folder / "straight", **settings)
    for name, received in (("at once", 3), ("late", 2)):
        with emulated_graphs() if graphs else nullcontext(), pytest.MonkeyPatch.context() as patch:
            if name == "late":
                report_late(patch)
            if os.environ["RANK"] == "1":
                raise_in_step(patch, received, signal.SIGTERM)
            with pytest.raises(RunStopped):
                train(folder / name, **settings)
            train(folder / name, **settings, resume_from_checkpoint="true")


# Not with the lowest versions: accelerate 1.10 cannot load an optimizer in several processes on CPUs.
@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True], ids=["DDP", "graphs"])
def test_two_processes_stop_after_the_same_step(graphs, tmp_path):
    process = forked.run(stop_in_the_second_process, tmp_path, graphs, processes=2)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("stopped after step 3 of 6") == 4  # two processes, twice
    straight = tmp_path / "straight"
    for stopped in (tmp_path / "at once", tmp_path / "late"):
        assert log_of(straight) == log_of(stopped)
        assert (straight / "model.safetensors").read_bytes() == (stopped / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_stopped_sweep_continues_within_a_run(straight, tmp_path, monkeypatch, caplog):
    raise_in_step(monkeypatch, 4, signal.SIGTERM)
    with pytest.raises(RunStopped):
        train(tmp_path, seeds=2)
    assert caplog.messages[-1] == "To continue, run the same command again."
    (folder,) = (tmp_path / "runs").iterdir()
    assert [file.name for file in folder.iterdir() if file.is_dir()] == ["checkpoint-4"]
    train(tmp_path, seeds=2)
    assert log_of(folder) == log_of(straight)
    assert not list(tmp_path.rglob("checkpoint-*"))


def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    raise_in_step(monkeypatch, 2, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
    assert not list(tmp_path.glob("checkpoint-*"))


# --- a loss that is not finite ----------------------------------------------------------------------------------


class Spoiled(FineTuningTrainer):
    """Makes the loss or the gradient of the first process infinite in step 3."""

    what = "loss"

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if self.state.global_step < 2 or not self.is_world_process_zero():
            return loss
        # The square root has an infinite gradient at zero.
        return loss + (math.inf if self.what == "loss" else (loss - loss).sqrt())


def spoiled_trainer(folder: Path, what: str, **settings) -> Spoiled:
    trainer = new_trainer(HEADS[0], make_tokenizer(), folder, **{"max_steps": 4, "save_steps": 2} | settings)
    trainer.__class__, trainer.what = Spoiled, what
    return trainer


@pytest.mark.parametrize(("what", "clipping"), [("loss", 1.0), ("norm", 1.0), ("norm", 0.0), ("norm", math.inf)])
def test_a_run_that_diverges_stops_before_the_optimizer_step(what, clipping, tmp_path):
    for resume in (None, True):
        trainer = spoiled_trainer(tmp_path, what, save_strategy="steps", max_grad_norm=clipping)
        with pytest.raises(DivergedError, match=rf"{NOT_FINITE}\. The last checkpoint is checkpoint-2\. Try"):
            trainer.train(resume_from_checkpoint=resume)
        (tmp_path / "checkpoint-9").mkdir(exist_ok=True)  # a damaged checkpoint
        assert {folder.name for folder in tmp_path.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-9"}
    saved = load_file(tmp_path / "checkpoint-2/model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in trainer.model.state_dict().items())


# Nothing is due after step 3; a log line, an evaluation, a checkpoint or the end.
@pytest.mark.parametrize(
    ("what", "due"),
    [
        ("norm", {}),
        ("loss", {"logging_steps": 3}),
        ("norm", {"eval_steps": 3}),
        ("loss", {"save_steps": 3}),
        ("norm", {"max_steps": 3}),
    ],
)
def test_on_a_gpu_a_run_that_diverges_saves_no_weights(what, due, tmp_path, monkeypatch):
    """It notices one step later, but before it logs, evaluates, saves or ends."""
    report_late(monkeypatch)
    settings = {"save_strategy": "steps", "logging_steps": 100, "max_steps": 9} | due
    trainer = spoiled_trainer(tmp_path, what, **settings)
    trainer.eval_dataset, trainer.args.eval_strategy = trainer.train_dataset, "steps" if "eval_steps" in due else "no"
    evaluate, evaluated = trainer.evaluate, []
    trainer.evaluate = lambda *args, **kwargs: evaluated.append(trainer.state.global_step) or evaluate(*args, **kwargs)
    last = "" if "save_steps" in due else "The last checkpoint is checkpoint-2. "
    with pytest.raises(DivergedError, match=rf"{NOT_FINITE}\. {last}Try"):
        trainer.train()
    assert (trainer.state.global_step, trainer.state.log_history, evaluated) == (3, [], [])
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == (["checkpoint-2"] if last else [])


def test_fp16_skips_steps_with_infinite_gradients(tmp_path):
    trainer = spoiled_trainer(tmp_path, "norm")
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
    trainer.train()
    assert trainer.state.global_step == 4
    trainer = spoiled_trainer(tmp_path, "loss")
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(DivergedError, match=NOT_FINITE):
        trainer.train()


def sweeps_that_diverge_once(folder: Path) -> None:
    """The second sweep as on a GPU."""
    training_step = FineTuningTrainer.training_step

    def spoiled(self, *args, **kwargs):
        diverges = self.args.seed == 42 and self.state.global_step == 2 and self.is_world_process_zero()
        return training_step(self, *args, **kwargs) + (math.inf if diverges else 0.0)

    FineTuningTrainer.training_step = spoiled
    for name in ("at once", "late"):
        if name == "late":
            stopping.has_own_kernels = lambda values: False
        train(folder / name, seeds=2, max_steps=4, per_device_train_batch_size=2, logging_steps=100)


@pytest.mark.slow
def test_all_processes_stop_if_one_diverges(tmp_path):
    """They stop after the same step, so that a sweep continues with its next run."""
    process = forked.run(sweeps_that_diverge_once, tmp_path, processes=2)
    assert process.returncode == 0, process.stderr
    for name in ("at once", "late"):
        results = json.loads((tmp_path / name / "results.json").read_text())
        assert results["settings"]["seed"] == 43
        (failure,) = results["sweep"]["failures"]
        assert "seed-42: The loss or the gradient norm is not finite in step 3 (in this process: inf" in failure
