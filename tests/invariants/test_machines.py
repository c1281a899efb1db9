"""A run on two machines that share no disk goes on after faults, and ends like an undisturbed run.

`python tests/helpers/cluster_faults.py --seed 2` breaks the machines at other random moments.
"""

import random
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from cluster_faults import break_machines, describe_fault, read_job
from forked import ForkedProcess
from machines import Cluster, Machine, start_cluster
from torture import SAVE_STEPS, make_arguments, make_material, pretrain

pytestmark = pytest.mark.slow

STEPS = 24
SILENCE = 10  # seconds until a machine is lost; a busy computer takes some to start
LOST = r"^snugbert pretrain: error: process \d (on \S+ lost another process|has not responded for)"


class Job:
    """A run with a process on each machine. The machines change their ranks at each start."""

    def __init__(self, cluster: Cluster, material: Path, seed: str = ""):
        arguments = make_arguments(material, Path(), STEPS)
        self.arguments = [*arguments, "--per_device_train_batch_size", "4", "--logging_steps", "1"]
        self.machines = cluster.machines
        self.moments = random.Random(seed)

    def start(self, silence: int = SILENCE) -> None:
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

    def assert_notices(self, rank: int) -> None:
        """Waits for a process, which says in one sentence that it lost the other one.

        It notices a closed connection at once. If it waits because the other one works alone, it notices the silence.
        """
        begin = time.monotonic()
        (status,), errors = self.wait(rank), self.processes[rank].stderr
        assert status == 1 and time.monotonic() - begin < SILENCE + 10, errors
        assert "Traceback" not in errors and re.search(LOST, errors, re.MULTILINE), errors

    def finish(self) -> tuple[bytes, bytes]:
        """Starts, without a fault. Returns the files of the last checkpoint that do not depend on times."""
        self.start(silence=60)
        assert self.wait(0, 1) == (0, 0), self.processes[0].stderr + self.processes[1].stderr
        return read_end(self.machines[0])

    def resume(self) -> tuple[bytes, bytes]:
        """As [`finish`]. Fails if the run does not resume from one of the last two checkpoints before the fault."""
        end, log = self.finish(), self.processes[0].stderr
        patterns = r"^resuming from checkpoint-(\d+)$", r"^step +(\d+)/"
        resumed, first = (int(re.search(pattern, log, re.MULTILINE)[1]) for pattern in patterns)
        assert first == resumed + 1 and resumed > max(0, self.step - 2 * SAVE_STEPS), log
        return end


def read_end(machine: Machine) -> tuple[bytes, bytes]:
    checkpoint = machine.disk / f"run/checkpoint-{STEPS}"
    return tuple((checkpoint / name).read_bytes() for name in ("model.safetensors", "rng_state_1.pth"))


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


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_worker(job, undisturbed, rank):
    """Each rank has moved to the other machine at the next start."""
    job.start()
    job.wait_for_moment()
    job.machines[rank].send(signal.SIGKILL)
    job.assert_notices(1 - rank)
    assert job.resume() == undisturbed


def test_a_lost_machine_is_replaced_by_an_empty_one(job, undisturbed):
    """The other one hears nothing until the limit. The empty machine then has the first rank."""
    job.start()
    job.wait_for_moment()
    lost = job.machines[1]
    lost.lose(empties_disk=True)
    job.assert_notices(0)
    lost.boot()
    assert job.resume() == undisturbed


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_sigterm_to_one_machine(job, undisturbed, rank):
    """Both stop after the same step, and a checkpoint has been written."""
    job.start()
    job.wait_for_moment()
    job.machines[rank].send(signal.SIGTERM)
    assert job.wait(0, 1) == (143, 143)
    stopped = re.search(r"SIGTERM: stopped after step (\d+)", job.processes[0].stderr)[1]
    assert job.resume() == undisturbed
    assert f"resuming from checkpoint-{stopped}\n" in job.processes[0].stderr


def test_a_link_that_delays_and_loses_frames(job, undisturbed):
    """No process fails."""
    job.start()
    job.wait_for_moment()
    with job.machines[1].disturb(delay=0.002, loss=0.01):
        assert job.wait(0, 1) == (0, 0), job.processes[0].stderr + job.processes[1].stderr
    assert read_end(job.machines[0]) == undisturbed


def test_the_proxy_delays_frames(tmp_path):
    """A refused connection takes two of them, one in each direction."""
    with start_cluster(tmp_path / "cluster") as cluster:
        machine = cluster.machines[0]
        assert min(time_refusal(machine) for _ in range(3)) < 0.1
        with machine.disturb(delay=0.05):
            assert 0.1 <= min(time_refusal(machine) for _ in range(3)) < 0.5


def time_refusal(machine: Machine) -> float:
    """Returns the seconds until the other machine refuses a connection."""
    process = machine.fork(connect)
    assert process.wait() == 0, process.stderr
    return float(process.stdout)


def connect() -> None:
    begin = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("node1", 9), timeout=10)
    print(time.monotonic() - begin)


@pytest.mark.parametrize(
    ("steps", "row"),
    [
        pytest.param([(1, 1), (4, 1), (9, 2), (11, 3)], (2, 0, 3), id="no restart"),
        pytest.param([(9, 2), (15, 1), (16, 2), (18, 3), (19, 4)], (9, 2, 3), id="a restart"),
        pytest.param([(9, 2), (12, 3), (20, 3), (26, 4), (30, 4), (31, 5)], (14, 2, 4), id="two restarts"),
    ],
)
def test_the_row_of_a_fault(steps, row):
    """Steps have a time and a number. The fault happens at time 10, the last step before it is 2."""
    found = describe_fault("a fault", 10, steps)
    assert (found.pause, found.lost, found.new_step) == row and found.step == 2


def test_the_job_of_the_example_fits_these_machines():
    """Parts of its command are replaced."""
    command, variables = read_job()
    assert command.startswith("exec torchrun --nnodes") and "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in variables


@pytest.mark.long
def test_thirty_faults(tmp_path):
    """Of all kinds, at random moments, with torchrun. Prints what followed each. Takes half an hour.

    Run it with `pytest tests/invariants/test_machines.py -m long -s`.
    """
    break_machines(tmp_path, number=30, seed=1)
