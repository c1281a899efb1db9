"""One process and several train the same model and resume each other's checkpoints, under DDP and with CUDA graphs."""

import json
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import forked
import pytest
import torch
from emulated_graphs import emulated_graphs
from safetensors.torch import load_file
from synthetic import RandomExamples, make_teacher, make_trainer, without_times

from snugbert.gpu import cuda_graphs

pytestmark = pytest.mark.slow

STEPS = 4


def train(runs: list[dict]) -> None:
    """Trains several runs. A run has a `folder`, a checkpoint to `resume` from, and arguments for `make_trainer`.

    - `distilled`: there is a teacher.
    - `frozen`: the first layer is not trained.
    - `graphs`: CUDA graphs are emulated, and there is no DDP. If it is "unequal", the second process runs eagerly.
    """
    for run in runs:
        folder, resume = Path(run.pop("folder")), run.pop("resume", None)
        if run.pop("distilled", False):
            run["teacher"] = make_teacher()
        frozen, graphs = run.pop("frozen", False), run.pop("graphs", None)
        if graphs:
            run |= {"cuda_graphs": True, "pad_to_multiple_of": 256}
        trainer = make_trainer(folder, max_steps=STEPS, save_steps=2, per_device_eval_batch_size=2, **run)
        trainer.eval_dataset = RandomExamples(7)  # an odd number
        if frozen:
            trainer.model.bert.encoder.layer[0].requires_grad_(False)
        rank = trainer.args.process_index
        if graphs and rank:  # as a head with random weights of its own
            torch.nn.init.ones_(trainer.model.bert.pooler.dense.weight)
        is_eager = graphs == "unequal" and rank == 1
        with emulated_graphs(gpu_seconds=2.0 if is_eager else 1.0) if graphs else nullcontext():
            with patch.object(cuda_graphs.logger, "info") as log_line:
                trainer.train(resume_from_checkpoint=resume)
        if graphs:
            recorded = sum(call.args[0].startswith("CUDA graph %d: recorded") for call in log_line.mock_calls)
            assert trainer.model_wrapped is trainer.model and (recorded == 0) == is_eager
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


def test_processes_with_graphs_agree_without_ddp(tmp_path):
    """With accumulation, Muon, a frozen layer, steps without pairs, and one process that runs eagerly.

    The processes start with different weights. They resume a checkpoint of one process, and one resumes theirs.
    """
    small = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    two = small | {"graphs": "unequal"}
    frozen = {"frozen": True, "optim": "muon", "steps_without_pairs": 2}
    three = {"per_device_train_batch_size": 12, "optim": "muon"}
    one = {"one": {}, "one-frozen": frozen, "one-three": three}
    train([{"folder": tmp_path / name} | run for name, run in one.items()])
    runs = [
        {"folder": tmp_path / "two"} | two,
        {"folder": tmp_path / "one-two", "resume": tmp_path / "one/checkpoint-2"} | two,
        {"folder": tmp_path / "two-frozen", "graphs": "equal"} | small | frozen,
    ]
    process = forked.run(train, runs, processes=2)
    assert process.returncode == 0, process.stderr
    run = {"folder": tmp_path / "three", "optim": "muon", **two}
    process = forked.run(train, [run], processes=3)
    assert process.returncode == 0, process.stderr
    train([{"folder": tmp_path / "two-one", "resume": tmp_path / "two/checkpoint-2"}])
    assert_same_run(tmp_path / "two", tmp_path / "one")
    assert_same_run(tmp_path / "one-two", tmp_path / "one")
    assert_same_run(tmp_path / "two-one", tmp_path / "one", processes=1)
    assert_same_run(tmp_path / "two-frozen", tmp_path / "one-frozen")
    assert_same_run(tmp_path / "three", tmp_path / "one-three", processes=3)
