"""While other processes use the cores, threads sleep instead of spinning."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from snugbert import shared_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp on Linux")
# Prints the processor time of 50 operations with a pause after each: at each load of the machine. Threads that spin
# in the pauses use the processor, and threads that sleep do not, however busy the machine is. Then prints the exit
# status of processes that end while threads start and stop.
PROGRAM = """
import os, sys, time, torch
from itertools import cycle
sys.path.append(sys.argv[1])  # the module alone, because the package needs seconds
import shared_cores

def pause(load):
    values, start = torch.zeros(2**17), time.process_time()
    for _ in range(50):
        values.add_(1)
        time.sleep(0.004)
    assert values.sum() == 50 * 2**17
    print(time.process_time() - start)
    return load

cores = len(os.sched_getaffinity(0))
loads = cycle((9.0, 0.0))
shared_cores.measure_others = lambda *_: next(loads)
sys.stdout.reconfigure(line_buffering=True)
for status in (0, 3):  # before this process has threads
    if os.fork() == 0:
        torch.set_num_threads(2)
        shared_cores.share_cores()
        time.sleep(0.1)
        sys.exit(status)
print(*sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))
torch.set_num_threads(2)
shared_cores.follow_loads((pause(cores - 2 + load) for load in (1.0, 0.3, 0.1, 0.0)), cores)
pause(0)
"""


def test_the_load_of_other_processes(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [50.0, 90.0, 75.0])
    own = []

    def work(seconds: float) -> None:
        start, used = time.perf_counter(), time.process_time()
        while time.perf_counter() < start + seconds:
            pass
        own.append((time.process_time() - used) / (time.perf_counter() - start))

    assert shared_cores.measure_others({0, 2}, 0.2, work) == pytest.approx(1.25 - own[0], abs=0.05)


@pytest.mark.slow
def test_threads_sleep_while_other_processes_use_the_cores_and_end_before_python():
    """A daemon thread in torch's C++ code would abort the process at its end."""
    chosen = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", *shared_cores.USER_CHOICES}
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    command = [sys.executable, "-c", PROGRAM, os.path.dirname(shared_cores.__file__)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    statuses, *pauses = process.stdout.splitlines()
    assert statuses == "0 3" and process.returncode == 0, process.stderr
    # Each pause follows the load before it.
    quiet, busy, less_busy, quiet_again, still_quiet = map(float, pauses)
    assert max(busy, less_busy) < 0.2 * min(quiet, quiet_again, still_quiet)
