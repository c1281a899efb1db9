"""Checkpoints that could not be written."""

import resource

import pytest
from synthetic import make_trainer

from snugbert.errors import InputError
from snugbert.trainers.run.checkpoints import UNFINISHED_CHECKPOINT, find_newest_checkpoint


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
