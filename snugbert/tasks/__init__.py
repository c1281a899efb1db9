"""What is asked: rows to features, logits to answers, and their scores."""

import functools
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugbert.tasks.base import Task


@functools.cache
def list_tasks() -> "dict[str, type[Task[Any, Any, Any]]]":
    """Returns the tasks by the heads of their models, such as "ForTokenClassification".

    A task is a direct subclass of `Task` in a module of this room.

    Raises:
        TypeError: two tasks have the same head, so that a model does not show which one it was trained for.
    """
    from snugbert.tasks.base import Task  # only here: `--help` imports arguments from this room, and no dataset

    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    tasks: dict[str, type[Task[Any, Any, Any]]] = {}
    for task in Task.__subclasses__():
        if task.__module__.startswith(f"{__name__}."):
            other = tasks.setdefault(task.head, task)
            if other is not task:
                raise TypeError(f"{other.__name__} and {task.__name__} have the same head, {task.head}.")
    return tasks


def find_task(head: str) -> "type[Task[Any, Any, Any]]":
    """Returns the task of models with a head. KeyError if no task has this head."""
    return list_tasks()[head]
