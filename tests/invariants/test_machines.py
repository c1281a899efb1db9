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
from torture import SAVE_STEPS, make_arguments, make_material, pretrain

pytestmark = pytest.mark.slow

STEPS = 24


class Job:
    """A run with a process on each machine. The machines change their ranks at each start."""

    def __init__(self, cluster: Cluster, material: Path, seed: str = ""):
        arguments = make_arguments(material, Path(), STEPS)
        self.arguments = [*arguments, "--per_device_train_batch_size", "4", "--logging_steps", "1"]
        self.machines = cluster.machines
        self.moments = random.Random(seed)

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
        self.step, deadline = self.moments.randint(8, 14), time.monotonic() + 60
        while not re.search(rf"^step +{self.step}/", self.processes[0].stderr, re.MULTILINE):
            assert time.monotonic() < deadline, self.processes[0].stderr
            time.sleep(0.01)
        time.sleep(self.moments.uniform(0, 0.1))

    def wait(self, *ranks: int) -> tuple[int, ...]:
        return tuple(self.processes[rank].wait() for rank in ranks)

    def finish(self) -> tuple[bytes, bytes]:
        """Starts, without a fault. Returns the files of the last checkpoint that do not depend on times."""
        self.start()
        assert self.wait(0, 1) == (0, 0), self.processes[0].stderr + self.processes[1].stderr
        return read_end(self.machines[0])

    def resume(self) -> tuple[bytes, bytes]:
        """As [`finish`]. Fails if the run does not resume from one of the last two checkpoints before the fault."""
        end, log = self.finish(), self.processes[0].stderr
        resumed, first = (int(re.search(line, log, re.M)[1]) for line in (r"from checkpoint-(\d+)", r"^step +(\d+)/"))
        assert first == resumed + 1 and resumed > max(0, self.step - 2 * SAVE_STEPS), log
        return end


def read_end(machine: Machine) -> tuple[bytes, bytes]:
    checkpoint = machine.disk / f"run/checkpoint-{STEPS}"
    return tuple((checkpoint / name).read_bytes() for name in ("model.safetensors", "rng_state_1.pth"))


def assert_one_sentence(errors: str) -> None:
    """The process ended because it lost the other one."""
    assert "Traceback" not in errors, errors
    assert re.search(r"^snugbert pretrain: error: process \d on \S+ lost another process", errors, re.M), errors


@pytest.fixture
def job(tmp_path_factory, request) -> Job:
    """Its moments differ in each test."""
    folder = tmp_path_factory.mktemp("machines")
    make_material(folder, documents=10)
    with start_cluster(folder / "cluster") as cluster:
        yield Job(cluster, folder, request.node.name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[bytes, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    make_material(folder, documents=10)
    with start_cluster(folder / "cluster") as cluster:
        return Job(cluster, folder).finish()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker(job, undisturbed, rank):
    """The other one notices it at once. Each rank has moved to the other machine at the next start."""
    job.start()
    job.wait_for_moment()
    job.machines[rank].send(signal.SIGKILL)
    begin = time.monotonic()
    assert job.wait(1 - rank) == (1,), job.processes[1 - rank].stderr
    assert time.monotonic() - begin < 10
    assert_one_sentence(job.processes[1 - rank].stderr)
    assert job.resume() == undisturbed


def test_a_lost_machine_is_replaced_by_an_empty_one(job, undisturbed):
    """The other one hears nothing until the limit. The empty machine then has the first rank."""
    job.start(silence=10)  # a busy computer takes seconds to start
    job.wait_for_moment()
    lost = job.machines[1]
    lost.lose(empties_disk=True)
    assert job.wait(0) == (1,), job.processes[0].stderr
    assert_one_sentence(job.processes[0].stderr)
    lost.boot()
    assert job.resume() == undisturbed


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_one_machine(job, undisturbed, rank):
    """Both stop after the same step, and a checkpoint has been written."""
    job.start()
    job.wait_for_moment()
    job.machines[rank].send(signal.SIGTERM)
    assert job.wait(0, 1) == (143, 143)
    stopped = re.search(r"SIGTERM: stopped after step (\d+)", job.processes[0].stderr)[1]
    assert job.resume() == undisturbed
    assert f"resuming from checkpoint-{stopped} " in job.processes[0].stderr


def test_the_job_of_the_example_fits_these_machines():
    """Parts of its command are replaced."""
    assert read_job().startswith("exec torchrun --nnodes")


@pytest.mark.long
def test_thirty_faults(tmp_path):
    """Of all kinds, at random moments, with torchrun. Prints what followed each. Takes half an hour.

    Run it with `pytest tests/invariants/test_machines.py -m long -s`.
    """
    break_machines(tmp_path, number=30, seed=1)
