"""A run on two machines that share no disk goes on after faults, and ends like an undisturbed run.

`python tests/helpers/cluster_faults.py --seed 2` breaks the machines at other random moments.
"""

import random
import re
import signal
import time
from pathlib import Path

import pytest
from cluster_faults import break_machines, read_job
from forked import ForkedProcess
from machines import Cluster, Machine, start_cluster
from torture import make_arguments, make_material, pretrain

pytestmark = pytest.mark.slow

STEPS = 24


class Job:
    """A run with a process on each machine. The machines change their ranks at each start."""

    def __init__(self, cluster: Cluster, material: Path):
        arguments = make_arguments(material, Path(), STEPS)
        self.arguments = [*arguments, "--per_device_train_batch_size", "4", "--logging_steps", "1"]
        self.machines = cluster.machines
        self.moments = random.Random(1)

    def start(self, silence: int = 60) -> None:
        """Starts a process on each machine. Each waits for `silence` seconds for the other."""
        self.machines = self.machines[::-1]
        first, *_ = self.machines
        self.processes: list[ForkedProcess] = []
        for rank, machine in enumerate(self.machines):
            variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 29500}
            texts = {name: str(value) for name, value in variables.items()}
            arguments = [*self.arguments, "--ddp_timeout", str(silence)]
            self.processes.append(machine.fork(pretrain, arguments, None, MASTER_ADDR=first.name, **texts))

    def wait_for_moment(self) -> None:
        """Waits for a random moment after the first checkpoint of this start."""
        step, deadline = self.moments.randint(8, 14), time.monotonic() + 60
        while not re.search(rf"^step +{step}/", self.processes[0].stderr, re.MULTILINE):
            assert time.monotonic() < deadline, self.processes[0].stderr
            time.sleep(0.01)
        time.sleep(self.moments.uniform(0, 0.1))

    def wait(self, *ranks: int) -> tuple[int, ...]:
        return tuple(self.processes[rank].wait() for rank in ranks)

    def finish(self) -> tuple[bytes, bytes]:
        """Starts again, without a fault. Returns the files of the last checkpoint that do not depend on times."""
        self.start()
        assert self.wait(0, 1) == (0, 0), self.processes[0].stderr + self.processes[1].stderr
        return read_end(self.machines[0])


def read_end(machine: Machine) -> tuple[bytes, bytes]:
    checkpoint = machine.disk / f"run/checkpoint-{STEPS}"
    return tuple((checkpoint / name).read_bytes() for name in ("model.safetensors", "rng_state_1.pth"))


def assert_one_sentence(errors: str) -> None:
    """The process ended because it lost the other one."""
    assert "Traceback" not in errors, errors
    assert re.search(r"^snugbert pretrain: error: process \d on \S+ lost another process", errors, re.M), errors


@pytest.fixture
def job(tmp_path_factory) -> Job:
    folder = tmp_path_factory.mktemp("machines")
    make_material(folder, documents=10)
    with start_cluster(folder / "cluster") as cluster:
        yield Job(cluster, folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[bytes, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    make_material(folder, documents=10)
    with start_cluster(folder / "cluster") as cluster:
        return Job(cluster, folder).finish()


def test_a_killed_worker(job, undisturbed):
    """The other one notices it at once. Each rank has moved to the other machine at the next start."""
    job.start()
    job.wait_for_moment()
    killed = job.moments.randrange(2)
    job.machines[killed].send(signal.SIGKILL)
    begin = time.monotonic()
    assert job.wait(1 - killed) == (1,), job.processes[1 - killed].stderr
    assert time.monotonic() - begin < 10
    assert_one_sentence(job.processes[1 - killed].stderr)
    assert job.finish() == undisturbed


def test_a_lost_machine_is_replaced_by_an_empty_one(job, undisturbed):
    """The other one hears nothing until the limit. The empty machine then has the first rank."""
    job.start(silence=5)
    job.wait_for_moment()
    lost = job.machines[1]
    lost.lose(empties_disk=True)
    assert job.wait(0) == (1,), job.processes[0].stderr
    assert_one_sentence(job.processes[0].stderr)
    lost.boot()
    assert job.finish() == undisturbed
    assert "resuming from checkpoint-" in job.processes[0].stderr


def test_sigterm_to_one_machine(job, undisturbed):
    """Both stop after the same step, and a checkpoint has been written."""
    job.start()
    job.wait_for_moment()
    job.machines[job.moments.randrange(2)].send(signal.SIGTERM)
    assert job.wait(0, 1) == (143, 143)
    assert "SIGTERM: stopped after step" in job.processes[0].stderr
    assert job.finish() == undisturbed


def test_the_job_of_the_example_fits_these_machines():
    """Parts of its command are replaced."""
    assert read_job().startswith("exec torchrun --nnodes")


@pytest.mark.long
def test_thirty_faults(tmp_path):
    """Of all kinds, at random moments, with torchrun. Prints what followed each."""
    break_machines(tmp_path, number=30, seed=1)
