"""Short errors for files that cannot be written, for example on a full disk."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

import torch
from safetensors import SafetensorError

from snugbert.errors import InputError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(folder: Path, then: str) -> Iterator[None]:
    """Turns an error while files are written into an [`InputError`].

    Args:
        folder: the folder or file, for the message.
        then: what to do after fixing the cause, for the message.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        # Other OSErrors have other causes, such as a tokenizer whose source file is missing.
        is_full = not isinstance(error, OSError) or error.errno in NO_SPACE
        if not isinstance(error, OSError | SafetensorError) and not _is_failed_write(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "The disk is probably full. Free some space" if is_full else "Fix this"
        raise InputError(f"{folder} could not be written: {reason}. {remedy} and {then}.") from error


def _is_failed_write(error: Exception) -> bool:
    """Whether a library reports a failed write with an exception of a general type."""
    if type(error) is Exception:  # the tokenizers library
        return "(os error " in str(error)
    # torch gives no reason.
    return (
        isinstance(error, RuntimeError)
        and extract_tb(error.__traceback__)[-1].filename == torch.serialization.__file__
    )
