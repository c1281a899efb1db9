"""Errors in one of several processes."""

from collections.abc import Callable
from typing import TypeVar

from accelerate.utils import gather_object

from snugbert.errors import InputError

T = TypeVar("T")


def raise_together(function: Callable[[], T]) -> T:
    """Calls `function` in every process. If one raises an InputError, all do. Otherwise, the others would wait for it.

    Raises:
        InputError: the error of this process, or of the first process that has one.
    """
    error: InputError | None = None
    try:
        result = function()
    except InputError as raised:
        error = raised
    messages = [message for message in gather_object([None if error is None else str(error)]) if message is not None]
    if messages:
        raise error or InputError(messages[0])
    return result
