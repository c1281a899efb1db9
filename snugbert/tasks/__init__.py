"""Tasks: how rows become features, how logits become answers, and how answers are scored."""

import functools
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugbert.tasks.base import Task


@functools.cache
def list_tasks() -> "dict[str, type[Task[Any, Any, Any]]]":
    """Returns the tasks by the heads of their models, such as "ForTokenClassification".

    A task is a direct subclass of `Task` in a module of this package.
    """
    from snugbert.tasks.base import Task  # not above, so that `--help` does not import datasets

    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return {task.head: task for task in Task.__subclasses__() if task.__module__.startswith(f"{__name__}.")}
