"""One process and two under DDP train the same model and resume each other's checkpoints."""

import json
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file
from synthetic import RandomExamples, make_teacher, make_trainer, without_times

pytestmark = pytest.mark.slow

STEPS = 4


def train(runs: list[dict]) -> None:
    """Trains several runs. A run has a `folder`, a checkpoint to `resume` from, and arguments for `make_trainer`."""
    for run in runs:
        folder, resume = Path(run.pop("folder")), run.pop("resume", None)
        if run.pop("distilled", False):
            run["teacher"] = make_teacher()
        trainer = make_trainer(folder, max_steps=STEPS, save_steps=2, per_device_eval_batch_size=2, **run)
        trainer.eval_dataset = RandomExamples(7)  # an odd number
        trainer.train(resume_from_checkpoint=resume)
        log = [line for line in trainer.state.log_history if "loss" in line]
        log.append(trainer.evaluate())
        trainer.save_model()
        if trainer.is_world_process_zero():
            report = {"processes": trainer.args.world_size, "log": without_times(log)}
            (folder / "report.json").write_text(json.dumps(report))


def assert_same_run(folder: Path, expected: Path, processes: int = 2, bf16: bool = False) -> None:
    """Log, weights, optimizer and evaluation agree within float32's rounding.

    In bfloat16, only the first step does. Later, some weights are rounded to another bfloat16, and a few predictions
    change.
    """
    ours, theirs = (json.loads((path / "report.json").read_text()) for path in (folder, expected))
    assert ours["processes"] == processes and len(ours["log"]) == len(theirs["log"]) == STEPS + 1
    assert ours["log"][0] == pytest.approx(theirs["log"][0], rel=2e-6)
    tolerance = 5e-4 if bf16 else 2e-5
    for line, expected_line in zip(ours["log"], theirs["log"], strict=True):
        assert line.keys() == expected_line.keys()
        for name in line:
            if not (bf16 and name.endswith("accuracy")):
                assert line[name] == pytest.approx(expected_line[name], rel=tolerance), name
    for file in (*expected.glob("model.safetensors"), *expected.glob("generator/model.safetensors")):
        weights = load_file(folder / file.relative_to(expected)), load_file(file)
        torch.testing.assert_close(*weights, atol=tolerance, rtol=0)
    files = [path / f"checkpoint-{STEPS}/optimizer.pt" for path in (folder, expected)]
    states = [torch.load(file, weights_only=True)["state"] for file in files]
    torch.testing.assert_close(*states, atol=tolerance, rtol=0)


def test_processes_agree_and_resume_each_others_checkpoints(tmp_path):
    """With gradient accumulation, and a list as the dataset of one run. The world size is as requested.

    Muon trains a student. Its first steps have no pairs.
    """
    ddp = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    bf16 = {"bf16": True, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    electra, distilled = {"electra": True}, {"distilled": True, "optim": "muon", "steps_without_pairs": 3}
    # The same batches in bfloat16, which rounds the gradient of each.
    one = {"one": {}, "one-bf16": bf16 | {"gradient_accumulation_steps": 4}}
    one |= {"one-electra": electra, "one-distilled": distilled}
    train([{"folder": tmp_path / name} | run for name, run in one.items()])
    runs = [
        {"folder": tmp_path / "ddp", "as_list": True} | ddp,
        {"folder": tmp_path / "one-ddp", "resume": tmp_path / "one/checkpoint-2"} | ddp,
        {"folder": tmp_path / "ddp-bf16"} | bf16,
        {"folder": tmp_path / "ddp-electra"} | ddp | electra,
        {"folder": tmp_path / "ddp-distilled"} | ddp | distilled,
    ]
    process = forked.run(train, runs, processes=2)
    assert process.returncode == 0, process.stderr
    resumed = {"ddp": {}, "ddp-electra": electra, "ddp-distilled": distilled}
    train(
        [
            {"folder": tmp_path / f"{name}-one", "resume": tmp_path / name / "checkpoint-2"} | run
            for name, run in resumed.items()
        ]
    )
    for name in ("ddp", "one-ddp"):
        assert_same_run(tmp_path / name, tmp_path / "one")
    assert_same_run(tmp_path / "ddp-one", tmp_path / "one", processes=1)
    for kind in ("electra", "distilled"):
        assert_same_run(tmp_path / f"ddp-{kind}", tmp_path / f"one-{kind}")
        assert_same_run(tmp_path / f"ddp-{kind}-one", tmp_path / f"one-{kind}", processes=1)
    # With more than 256 labels, whose number bfloat16 itself would round.
    assert_same_run(tmp_path / "ddp-bf16", tmp_path / "one-bf16", bf16=True)
    files = {path.name for path in (tmp_path / "one").iterdir()}
    assert {path.name for path in (tmp_path / "ddp").iterdir()} == files
