"""The processes of a run wait for each other, notice a lost process, and share an error."""

import os
import platform
import signal
import sys
from datetime import timedelta

import forked
import pytest
import torch.distributed as dist
from accelerate import PartialState

from snugbert.errors import InputError
from snugbert.trainers.run.processes import (
    explain_lost_process,
    raise_together,
    wait_for_all,
)

LIMIT = 1.0  # seconds


def lose_a_process(lost: int, is_frozen: bool) -> None:
    PartialState(cpu=True, backend="gloo", timeout=timedelta(seconds=LIMIT))
    wait_for_all()
    if dist.get_rank() == lost:
        os.kill(os.getpid(), signal.SIGSTOP) if is_frozen else os._exit(0)
    with pytest.raises(RuntimeError) as error:
        wait_for_all()
    print(explain_lost_process(error.value))
    sys.exit(3)  # ends the frozen process, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "is_frozen", "message"),
    [
        (1, True, "process 0 on {host} lost another process (Rank 1 failed to pass monitoredBarrier in 1000 ms"),
        (0, False, "process 1 on {host} lost another process ("),
    ],
)
def test_a_lost_process_is_noticed(lost, is_frozen, message):
    process = forked.run(lose_a_process, lost, is_frozen, processes=2)
    assert message.format(host=platform.node()) in process.stdout, process.stdout + process.stderr


def fail_on_one_machine() -> None:
    PartialState(cpu=True, backend="gloo")
    rank = dist.get_rank()
    platform.node = lambda: f"node-{rank}"
    match = ("^node-1: " if rank == 0 else "^") + "--train_file: there is no file.$"
    with pytest.raises(InputError, match=match), raise_together():
        if rank == 1:
            raise InputError("--train_file: there is no file.")


def test_an_error_names_its_machine():
    process = forked.run(fail_on_one_machine, processes=2)
    assert process.returncode == 0, process.stderr
