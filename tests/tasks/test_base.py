"""How a task is found by the head of its models."""

import pytest

from snugbert.tasks import find_task, list_tasks
from snugbert.tasks.tagging import Tagging


def test_every_task_is_found_by_its_head():
    assert len(list_tasks()) == 4
    for head in list_tasks():
        task = find_task(head)
        assert task.head == head and task.default_columns and task.predicted_columns
    with pytest.raises(KeyError):
        find_task("ForMaskedLM")


def test_a_head_has_one_task(monkeypatch):
    """Otherwise one of two tasks would read all models with this head."""
    toy = type("Toy", (Tagging,), {"__module__": Tagging.__module__})
    monkeypatch.setattr("snugbert.tasks.base.Task.__subclasses__", lambda: [Tagging, toy])
    with pytest.raises(TypeError, match="Tagging and Toy have the same head, ForTokenClassification"):
        list_tasks.__wrapped__()
