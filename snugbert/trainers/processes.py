"""Several processes that wait for each other or fail together."""

from collections.abc import Callable
from typing import TypeVar

from accelerate.utils import gather_object

from snugbert.errors import InputError

T = TypeVar("T")


def wait_for_all() -> None:
    """Waits until every process is here.

    accelerate's `wait_for_everyone` asks torch for a GPU per process, even if the processes run on the CPU. That fails
    on a machine with fewer GPUs than processes.
    """
    gather_object([None])


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
