"""A process that works for long is waited for, and a lost one is noticed."""

import os
import platform
import signal
import sys
import time
from datetime import timedelta

import forked
import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.distributed.distributed_c10d import _get_default_store

from snugbert.cli.device_arguments import DeviceArguments
from snugbert.errors import InputError
from snugbert.trainers.run.lost_processes import explain_lost_process, wait_for_all
from snugbert.trainers.run.processes import raise_together

LIMIT = 2.0  # seconds


def lose_a_process(lost: int, is_frozen: bool, is_patient: bool) -> None:
    """In the first case, a process is late before it is lost."""
    PartialState(cpu=True, backend="gloo", timeout=timedelta(seconds=LIMIT))
    rank = dist.get_rank()
    raise_together(lambda: time.sleep(1.5 * LIMIT * (rank == lost == 1 and is_patient)))
    if rank == lost:
        os.kill(os.getpid(), signal.SIGSTOP) if is_frozen else os._exit(0)
    with pytest.raises(RuntimeError) as error:
        wait_for_all() if is_patient else dist.all_reduce(torch.zeros(1))
    print(explain_lost_process(error.value))
    sys.exit(3)  # ends the frozen process, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "is_frozen", "is_patient", "message"),
    [
        (1, True, True, "process 1 has not responded for 2 seconds (--ddp_timeout). Start all"),
        (0, True, True, "the machine of the first process has not answered for 2 seconds (--ddp_timeout). Start all"),
        (1, True, False, "process 0 on {host} lost another process (Timed out waiting 2000ms"),
        (1, False, False, "by peer"),
        (0, False, True, "process 1 on {host} lost another process ("),
    ],
)
def test_a_late_process_is_waited_for_and_a_lost_one_is_noticed(lost, is_frozen, is_patient, message):
    """The first process also has the store."""
    start = time.monotonic()
    process = forked.run(lose_a_process, lost, is_frozen, is_patient, processes=2)
    assert message.format(host=platform.node()) in process.stdout, process.stderr
    assert time.monotonic() - start < 30


def fail_on_one_machine() -> None:
    PartialState(cpu=True, backend="gloo")
    rank = dist.get_rank()
    platform.node = lambda: f"node-{rank}"

    def fail() -> None:
        if rank == 1:
            raise InputError("--train_file: there is no file.")

    with pytest.raises(InputError, match=("^node-1: " if rank == 0 else "^") + "--train_file: there is no file.$"):
        raise_together(fail)


def test_an_error_names_its_machine():
    process = forked.run(fail_on_one_machine, processes=2)
    assert process.returncode == 0, process.stderr


def start_without_a_gpu(folder: str) -> None:
    torch.accelerator.is_available = lambda: False
    args = DeviceArguments(folder, ddp_timeout=7)
    assert args.world_size == 2 and _get_default_store().timeout.total_seconds() == 7


def test_processes_without_a_gpu_train_together(tmp_path):
    process = forked.run(start_without_a_gpu, str(tmp_path), processes=2)
    assert process.returncode == 0, process.stderr


def test_other_errors_are_not_explained(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert explain_lost_process(RuntimeError("shape [2, 3] is invalid")) is None
