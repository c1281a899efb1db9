"""While other processes use the cores, threads sleep instead of spinning."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from snugbert.shared_cores import USER_CHOICES, measure_others, stop_spinning

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp on Linux")
BUSY = "while True: pass"
# Prints the processor time of 50 operations with a pause after each: at each load of the machine. Threads that spin
# in the pauses use the processor, and threads that sleep do not, however busy the machine is.
PAUSES = """
import os, time, torch
from snugbert.shared_cores import follow_loads

def pause(load):
    values, start = torch.zeros(2**17), time.process_time()
    for _ in range(50):
        values.add_(1)
        time.sleep(0.004)
    assert values.sum() == 50 * 2**17
    print(time.process_time() - start)
    return load

assert torch.get_num_threads() == 2
cores = len(os.sched_getaffinity(0))
follow_loads((pause(cores - 2 + load) for load in (1.0, 0.3, 0.1, 0.0)), cores)
pause(0)
"""


# Prints the exit status of processes that end while threads start and stop.
EXITS = """
import os, psutil, sys, time, torch
from itertools import cycle
from snugbert import shared_cores

loads = cycle((9.0, 0.0))
shared_cores.measure_others = lambda *_: next(loads)
for status in (0, 2, 3, 4):
    if os.fork() == 0:
        torch.set_num_threads(2)
        shared_cores.share_cores()
        time.sleep(0.2)
        sys.exit(status)
print(*sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(4)))
"""


def test_python_ends_after_the_threads():
    """A daemon thread in torch's C++ code would abort the process."""
    environment = {name: value for name, value in os.environ.items() if name not in USER_CHOICES}
    output = subprocess.run([sys.executable, "-c", EXITS], env=environment, capture_output=True, text=True)
    assert output.stdout == "0 2 3 4\n", output.stderr


@pytest.mark.slow
def test_threads_end_if_no_more_can_start(monkeypatch):
    """Otherwise Python would wait for them forever."""
    start, threads, number = threading.Thread.start, threading.active_count(), torch.get_num_threads()

    def start_one(thread):
        if threading.active_count() > threads:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="can't start"):
            stop_spinning(3)
    finally:
        torch.set_num_threads(number)
    while threading.active_count() > threads:
        time.sleep(0.01)


def test_threads_sleep_while_other_processes_use_the_cores():
    environment = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        environment.pop(variable, None)
    output = subprocess.run(
        [sys.executable, "-c", PAUSES], env=environment, check=True, capture_output=True, text=True
    )
    # Each pause follows the load before it.
    quiet, busy, less_busy, quiet_again, still_quiet = map(float, output.stdout.split())
    assert max(busy, less_busy) < 0.2 * min(quiet, quiet_again, still_quiet)


def test_the_load_of_others_includes_children_and_excludes_the_process():
    cores, stopped = os.sched_getaffinity(0), threading.Event()

    def work():
        while not stopped.is_set():
            pass

    with subprocess.Popen([sys.executable, "-c", BUSY]) as child:
        time.sleep(0.3)  # Python starts
        threading.Thread(target=work).start()
        own, used = time.process_time(), _seconds(child.pid)
        others = measure_others(cores, 0.6)
        own, used = (time.process_time() - own) / 0.6, (_seconds(child.pid) - used) / 0.6
        stopped.set()
        child.kill()
    # Other tests may use the rest of the cores.
    assert used - 0.25 < others < len(cores) - own + 0.25
    assert own > 0.3


def _seconds(process: int) -> float:
    with open(f"/proc/{process}/stat") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
