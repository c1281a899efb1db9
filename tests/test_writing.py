"""Errors while files are written."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from snugbert.errors import InputError
from snugbert.writing import writing

NO_SPACE = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, NO_SPACE), f"{NO_SPACE}. The disk is probably full. Free some space and try again."),
        (OSError(errno.EROFS, "Read-only"), "Read-only. Fix this and try again."),
        (Exception("No space (os error 28)"), "No space (os error 28). The disk is probably full."),  # of tokenizers
        (SafetensorError("I/O error"), "I/O error. The disk is probably full."),
    ],
)
def test_the_error_names_the_folder_and_the_reason(error, reason):
    with pytest.raises(InputError) as caught, writing(Path("out"), "try again"):
        raise error
    assert str(caught.value).startswith("out could not be written: ") and reason in str(caught.value)


def test_torch_reports_a_full_disk():
    with pytest.raises(InputError, match=r"^out could not be written: .*The disk is probably full"):
        with writing(Path("out"), "try again"):
            torch.save({"x": torch.ones(10**6)}, "/dev/full")


@pytest.mark.parametrize("error", [Exception("other"), RuntimeError("other"), InputError("other"), KeyError("other")])
def test_other_errors_pass(error):
    with pytest.raises(type(error), match="other"), writing(Path("out"), "try again"):
        raise error
