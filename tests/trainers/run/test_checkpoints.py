"""Checkpoints that are complete or absent."""

import errno
import os
from contextlib import nullcontext
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file
from synthetic import make_trainer

from snugbert.errors import InputError


def train_with_the_best_model(folder: Path) -> None:
    """One of two machines without a shared disk, as with a bucket. Only the first has the checkpoints."""
    os.environ["LOCAL_RANK"] = "0"
    machine = folder / f"machine-{os.environ['RANK']}"
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "loss", "greater_is_better": False, "learning_rate": 1e-2}  # best: the first
    trainer = make_trainer(machine, max_steps=2, **options)
    trainer.train()
    best = load_file(folder / "machine-0/checkpoint-1/model.safetensors")
    weights = trainer.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in best.items())


@pytest.mark.slow
def test_machines_without_a_shared_disk_load_the_best_model(tmp_path):
    """The first process reads it for all."""
    process = forked.run(train_with_the_best_model, tmp_path, processes=2)
    assert process.returncode == 0, process.stderr
    assert not list((tmp_path / "machine-1").glob("checkpoint-*"))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_sync_folders(number, tmp_path, monkeypatch):
    """As some network and FUSE file systems. Other errors stop the run."""
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/dev/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", only_files)
    trainer = make_trainer(tmp_path, max_steps=1, save_steps=1)
    with nullcontext() if number == errno.EINVAL else pytest.raises(InputError, match="could not be written"):
        trainer.train()
    assert (tmp_path / "checkpoint-1").exists() == (number == errno.EINVAL)
