"""The processes of a run wait for each other, notice a lost process, and share an error."""

import os
import platform
import signal
import sys
from datetime import timedelta

import forked
import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.distributed.distributed_c10d import _get_default_store

from snugbert.cli.device_arguments import DeviceArguments
from snugbert.errors import InputError
from snugbert.trainers.run.processes import explain_lost_process, raise_together, wait_for_all

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


def start_without_a_gpu(folder: str) -> None:
    torch.accelerator.is_available = lambda: False
    args = DeviceArguments(folder, ddp_timeout=7)
    assert args.world_size == 2 and _get_default_store().timeout.total_seconds() == 7
    wait_for_all()


def test_processes_without_a_gpu_train_together(tmp_path):
    process = forked.run(start_without_a_gpu, str(tmp_path), processes=2)
    assert process.returncode == 0, process.stderr


def test_other_errors_are_not_explained(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert explain_lost_process(RuntimeError("shape [2, 3] is invalid")) is None
