"""How a task is found by the head of its models."""

import pytest

from snugbert.tasks import find_task, list_tasks


def test_every_task_is_found_by_its_head():
    assert len(list_tasks()) == 4
    for head in list_tasks():
        task = find_task(head)
        assert task.head == head and task.default_columns and task.predicted_columns
    with pytest.raises(KeyError):
        find_task("ForMaskedLM")
