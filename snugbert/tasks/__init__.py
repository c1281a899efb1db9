"""What is asked: rows to features, logits to answers, and their scores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugbert.tasks.base import Task

# Head of a model -> the module and the class of its task. A module is imported when its task is needed.
TASKS = {
    "ForSequenceClassification": ("classification", "TextClassification"),
    "ForTokenClassification": ("tagging", "Tagging"),
    "ForQuestionAnswering": ("question_answering", "QuestionAnswering"),
    "ForMultipleChoice": ("multiple_choice", "MultipleChoice"),
}


def find_task(head: str) -> "type[Task[Any, Any, Any]]":
    """Returns the task of models with a head, such as "ForTokenClassification". KeyError: there is none."""
    module, name = TASKS[head]
    return getattr(import_module(f"snugbert.tasks.{module}"), name)
