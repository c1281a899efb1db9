"""Checkpoints that are complete or absent."""

import errno
import os
import resource
import shutil
from contextlib import nullcontext
from pathlib import Path

import forked
import pytest
import torch
from damage import damage
from safetensors.torch import load_file
from synthetic import make_trainer
from transformers import TrainerState

from snugbert.errors import InputError
from snugbert.trainers.run.checkpoints import UNFINISHED_CHECKPOINT, find_newest_checkpoint


def test_a_damaged_best_checkpoint_is_an_error(tmp_path):
    """Otherwise its weights would be the final model. They need no optimizer. The folder may have moved."""
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    options = {"max_steps": 1, "save_steps": 1, "save_only_model": True} | best
    make_trainer(tmp_path / "before", **options).train()
    shutil.move(tmp_path / "before", tmp_path / "now")
    trainer = make_trainer(tmp_path / "now", **options)
    trainer.state = TrainerState(best_global_step=1)
    trainer.checkpoints.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer._load_best_model()
    damage(tmp_path / "now/checkpoint-1/model.safetensors", "six bytes")
    with pytest.raises(InputError, match=r"now/checkpoint-1/model\.safetensors is damaged"):
        trainer._load_best_model()


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


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_a_full_disk_is_a_short_error(tmp_path, file):
    """The operating system refuses to let the file grow to its size. The earlier checkpoint stays."""
    make_trainer(tmp_path, max_steps=1, save_steps=1).train()
    size = (tmp_path / "checkpoint-1" / file).stat().st_size  # the optimizer's is the larger
    trainer = make_trainer(tmp_path, max_steps=2, save_steps=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, limits[1]))
    try:
        with pytest.raises(
            InputError, match=rf"{tmp_path}/.*checkpoint-2 could not be written: .+\. The disk is probably full"
        ) as error:
            trainer.train(resume_from_checkpoint=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert find_newest_checkpoint(tmp_path) == tmp_path / "checkpoint-1"
    assert not (tmp_path / "checkpoint-2").exists() and not (tmp_path / UNFINISHED_CHECKPOINT).exists()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_sync_folders(number, tmp_path, monkeypatch):
    """As some network and FUSE file systems. All files are still synced. Other errors stop the run."""
    fsync, synced = os.fsync, set()

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/dev/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr("os.fsync", only_files)
    trainer = make_trainer(tmp_path, max_steps=1, save_steps=1)
    with nullcontext() if number == errno.EINVAL else pytest.raises(InputError, match="could not be written"):
        trainer.train()
    assert (tmp_path / "checkpoint-1").exists() == (number == errno.EINVAL)
    if number == errno.EINVAL:
        files = {path.stat().st_ino for path in (tmp_path / "checkpoint-1").rglob("*") if path.is_file()}
        assert files and files <= synced
