"""One process and two under DDP train the same model and resume each other's checkpoints."""

import json
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file
from synthetic import RandomExamples, make_teacher, make_trainer
from transformers import TrainerCallback

pytestmark = pytest.mark.slow

STEPS = 6
METRICS = ("grad_norm", "learning_rate", "loss", "mlm_loss", "mlm_accuracy")
PAIRS = ("nsp_loss", "nsp_accuracy")
ELECTRA = ("disc_loss", "disc_accuracy", "replaced")
DISTILLATION = ("soft_loss", "cos_loss")  # not in evaluations


class FindViews(TrainerCallback):
    """Notes after clipping whether the gradients are views of DDP's buffers."""

    def __init__(self):
        self.found = set()

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradients = [parameter.grad for parameter in model.parameters()]
        self.found |= {gradient._is_view() for gradient in gradients if gradient is not None}


def train(runs: list[dict]) -> None:
    """Trains several runs. A run has a `folder`, a checkpoint to `resume` from, and arguments for `make_trainer`."""
    for run in runs:
        folder, resume = Path(run.pop("folder")), run.pop("resume", None)
        if distilled := run.pop("distilled", False):
            run["teacher"] = make_teacher()
        names = METRICS + (ELECTRA if run.get("electra") else PAIRS)
        trainer = make_trainer(folder, max_steps=STEPS, save_steps=3, per_device_eval_batch_size=2, **run)
        trainer.eval_dataset = RandomExamples(7)  # an odd number
        views = FindViews()
        trainer.add_callback(views)
        trainer.train(resume_from_checkpoint=resume)
        metrics = trainer.evaluate()
        trainer.save_model()
        report = {
            "processes": trainer.args.world_size,
            "views": sorted(views.found),
            "log": [
                {name: line[name] for name in names + (DISTILLATION if distilled else ()) if name in line}
                for line in trainer.state.log_history
                if "loss" in line
            ],
            "evaluation": {name: metrics[f"eval_{name}"] for name in names[2:]},
        }
        if trainer.is_world_process_zero():
            (folder / "report.json").write_text(json.dumps(report))


def assert_same_run(folder: Path, expected: Path, processes: int = 2, bf16: bool = False) -> None:
    """Log, weights, optimizer and evaluation agree within float32's rounding.

    In bfloat16, only the first step does. The gradient norm is added up in another order, which changes the last bits
    of the new weights. So some of them are rounded to another bfloat16, and a few predictions change.
    """
    ours, theirs = (json.loads((path / "report.json").read_text()) for path in (folder, expected))
    assert ours["processes"] == processes and ours["views"] == [processes > 1]
    assert len(ours["log"]) == len(theirs["log"]) == STEPS
    assert [line.keys() for line in ours["log"]] == [line.keys() for line in theirs["log"]]
    assert ours["log"][0] == pytest.approx(theirs["log"][0], rel=2e-6)
    tolerance = 5e-4 if bf16 else 2e-5
    for line, expected_line in zip(
        [*ours["log"], ours["evaluation"]], [*theirs["log"], theirs["evaluation"]], strict=True
    ):
        for name in line:
            if not (bf16 and name.endswith("accuracy")):
                assert line[name] == pytest.approx(expected_line[name], rel=tolerance), name
    for file in (*expected.glob("model.safetensors"), *expected.glob("generator/model.safetensors")):
        weights, expected_weights = load_file(folder / file.relative_to(expected)), load_file(file)
        assert weights.keys() == expected_weights.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(tensor, expected_weights[name], atol=tolerance, rtol=0, msg=name)
    states = [
        torch.load(path / f"checkpoint-{STEPS}/optimizer.pt", weights_only=True)["state"]
        for path in (folder, expected)
    ]
    assert states[0].keys() == states[1].keys()
    for name, state in states[0].items():
        for key, value in state.items():
            torch.testing.assert_close(value, states[1][name][key], atol=tolerance, rtol=0, msg=f"{name}: {key}")


def test_processes_agree_and_resume_each_others_checkpoints(tmp_path):
    """With gradient accumulation, and a list as the dataset of one run. The world size is as requested.

    Muon trains a student. Its first steps have no pairs.
    """
    ddp = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    bf16 = {"bf16": True, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    electra, distilled = {"electra": True}, {"distilled": True, "optim": "muon", "steps_without_pairs": 4}
    train(
        [
            {"folder": tmp_path / "one"},
            # The same batches: bfloat16 rounds the gradient of each.
            {"folder": tmp_path / "one-bf16"} | bf16 | {"gradient_accumulation_steps": 4},
            {"folder": tmp_path / "one-electra"} | electra,
            {"folder": tmp_path / "one-distilled"} | distilled,
        ]
    )
    runs = [
        {"folder": tmp_path / "ddp", "as_list": True} | ddp,
        {"folder": tmp_path / "one-ddp", "resume": tmp_path / "one/checkpoint-3"} | ddp,
        {"folder": tmp_path / "ddp-bf16"} | bf16,
        {"folder": tmp_path / "ddp-electra"} | ddp | electra,
        {"folder": tmp_path / "ddp-distilled"} | ddp | distilled,
    ]
    process = forked.run(train, runs, processes=2)
    assert process.returncode == 0, process.stderr
    train(
        [
            {"folder": tmp_path / "ddp-one", "resume": tmp_path / "ddp/checkpoint-3"},
            {"folder": tmp_path / "electra-one", "resume": tmp_path / "ddp-electra/checkpoint-3"} | electra,
            {"folder": tmp_path / "distilled-one", "resume": tmp_path / "ddp-distilled/checkpoint-3"} | distilled,
        ]
    )

    for name in ("ddp", "one-ddp"):
        assert_same_run(tmp_path / name, tmp_path / "one")
    assert_same_run(tmp_path / "ddp-one", tmp_path / "one", processes=1)
    for kind in ("electra", "distilled"):
        assert_same_run(tmp_path / f"ddp-{kind}", tmp_path / f"one-{kind}")
        assert_same_run(tmp_path / f"{kind}-one", tmp_path / f"one-{kind}", processes=1)
    # With more than 256 labels, whose number bfloat16 itself would round.
    assert_same_run(tmp_path / "ddp-bf16", tmp_path / "one-bf16", bf16=True)
    files = {path.name for path in (tmp_path / "one").iterdir()}
    assert {path.name for path in (tmp_path / "ddp").iterdir()} == files
