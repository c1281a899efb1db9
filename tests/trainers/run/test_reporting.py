"""What arrives in TensorBoard, Weights & Biases and Trackio."""

import json
import shutil
import sys
from types import ModuleType

import pytest
import torch
from pretraining_command import run
from safetensors.torch import load_file
from synthetic import without_times

from snugbert_cli import main as snugbert_command

sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))  # do not import TensorFlow, which takes seconds

pytestmark = pytest.mark.slow

REPORTERS = ("tensorboard", "wandb", "trackio")


def read_tensorboard(folder) -> dict:
    """Returns the steps and values of each metric."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.fixture
def received(tmp_path, monkeypatch):
    """What W&B and Trackio receive: for each library and run, the steps and values of each metric."""
    # Here, because importing them takes a second. `make test` installs the reporters, but not `make test-lowest`.
    wandb, trackio = pytest.importorskip("wandb"), pytest.importorskip("trackio")
    runs = {}

    def record(library, real, key):
        def log(self, *values, **options):
            metrics = runs.setdefault((library, getattr(self, key), self.name), {})
            logged = values[0] if values else options["metrics"]
            for name, value in logged.items():
                metrics.setdefault(name, []).append((logged.get("train/global_step", 0), value))
            real(self, *values, **options)

        return log

    settings = {"WANDB_DIR": str(tmp_path), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(wandb.Run, "log", record("wandb", wandb.Run.log, "id"))
    monkeypatch.setattr(trackio.Run, "log", record("trackio", trackio.Run.log, "name"))
    yield runs
    wandb.teardown()  # W&B reads the settings once


def read_log(folder) -> list[dict]:
    return without_times(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))


def test_reports_of_a_resumed_run_equal_its_log(small_run, tmp_path, received):
    """Losses, accuracies, gain and speed arrive, in one run, and reporting does not change the run."""
    small_run = small_run | {"save_steps": 4, "eval_strategy": "steps", "eval_steps": 4, "logging_first_step": "true"}
    assert run(small_run, output_dir=tmp_path / "silent") == 0
    command = ["pretrain", "--report_to", *REPORTERS, "--project", "resumed"]
    folder = tmp_path / "lr=1e-3, reported?"
    command += [str(text) for name, x in (small_run | {"output_dir": folder}).items() for text in (f"--{name}", x)]
    assert snugbert_command(command) == 0
    shutil.rmtree(folder / "checkpoint-8")
    assert snugbert_command([*command, "--resume_from_checkpoint", "true"]) == 0
    import wandb

    wandb.finish()

    assert read_log(folder) == read_log(tmp_path / "silent")
    weights, expected = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "silent"))
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)

    (events,) = (folder / "runs").iterdir()
    name = events.name
    assert name.startswith("lr=1e-3, reported?-")
    assert received.keys() == {("wandb", name.replace(",", "-").replace("?", "-"), name), ("trackio", name, name)}
    log = read_log(folder)
    metrics = ["mlm_loss", "mlm_accuracy", "mlm_gain", "nsp_loss", "nsp_accuracy"]
    training = {f"train/{metric}": {x["step"]: x[metric] for x in log if metric in x} for metric in metrics}
    evaluation = {
        f"eval/{metric}": {x["step"]: x[f"eval_{metric}"] for x in log if f"eval_{metric}" in x} for metric in metrics
    }
    assert all(list(curve) == [1, 2, 4, 6, 8] for curve in training.values())
    for metrics in (read_tensorboard(events), *received.values()):
        for metric, curve in (training | evaluation).items():
            assert dict(metrics[metric]) == pytest.approx(curve, rel=1e-6), metric
        assert all(value > 0 for _, value in metrics["train/tokens_per_second"])
