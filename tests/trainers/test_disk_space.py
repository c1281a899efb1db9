"""Free space for checkpoints."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.trainers.disk_space import check_disk_space

WEIGHTS = 4 * 10**7  # bytes
CHECKPOINT = 3 * WEIGHTS  # with AdamW's moments


def check(folder, monkeypatch, free, **settings):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**12, free=free))
    args = TrainingArguments(str(folder / "new/run"), use_cpu=True, **{"save_total_limit": 3, **settings})
    check_disk_space(args, [torch.nn.Parameter(torch.zeros(10**7))])


@pytest.mark.parametrize(
    ("settings", "least", "total"),
    [
        ({}, CHECKPOINT, 4 * CHECKPOINT + WEIGHTS),
        ({"save_total_limit": 1}, CHECKPOINT, 2 * CHECKPOINT + WEIGHTS),
        ({"save_total_limit": -1}, CHECKPOINT, 2 * CHECKPOINT + WEIGHTS),
        ({"save_only_model": True}, WEIGHTS, 5 * WEIGHTS),
        ({"optim": "adafactor"}, WEIGHTS, 5 * WEIGHTS),
        ({"save_strategy": "no"}, WEIGHTS, WEIGHTS),
    ],
)
def test_little_space_is_a_warning_and_less_than_a_checkpoint_an_error(
    settings, least, total, tmp_path, monkeypatch, caplog
):
    check(tmp_path, monkeypatch, total, **settings)
    assert not caplog.text
    if total > least:
        check(tmp_path, monkeypatch, total - 1, **settings)
        assert f"The run needs up to {total / 1e9:.2f} GB" in caplog.text
    check(tmp_path, monkeypatch, least, **settings)
    with pytest.raises(InputError, match=rf"{tmp_path} has 0\.\d\d GB free, but .* takes {least / 1e9:.2f} GB"):
        check(tmp_path, monkeypatch, least - 1, **settings)


def test_files_that_the_run_replaces_count_as_free(tmp_path, monkeypatch):
    checkpoint = tmp_path / "new/run/checkpoint-1"
    checkpoint.mkdir(parents=True)
    with (checkpoint / "optimizer.pt").open("wb") as file:
        file.truncate(CHECKPOINT)  # takes no space
    check(tmp_path, monkeypatch, 0)
