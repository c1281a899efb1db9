"""Trains on two machines, breaks them again and again, and compares the run with an undisturbed one.

    python tests/helpers/cluster_faults.py --faults 30 --seed 1

The machines are namespaces of this computer, see machines.py. They run the job of examples/pretrain_kubernetes.yaml.
The first half of the faults hits a run whose output is on the disks of the machines, the second half one whose output
is in a bucket. The script prints a row for each fault. It stops at the first one after which the run does not go on,
goes on too late, or takes too many steps again.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import yaml
from bucket import serve_folder, use_address
from machines import HOST, Machine, Output, start_cluster
from torture import make_material

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples/pretrain_kubernetes.yaml"
PATIENCE = 600  # seconds until a run that makes no step hangs
SAVE_STEPS = 20
MOST_LOST = 2 * SAVE_STEPS  # a fault may hit while a checkpoint is written
MOST_TRIES = 5  # while the disk is full for 20 seconds
MOST_STEPS = 40  # between two faults, see [`inflict`]
TOLERANCE = 1e-3  # of a loss, after gradients were added up in another order
GRACE = 90  # seconds from SIGTERM to SIGKILL, as in the job


def read_job() -> tuple[str, dict[str, str]]:
    """Returns the command of a pod, with a process on each machine and other arguments, and the pod's variables."""
    (jobs,) = yaml.safe_load(JOB.read_text())["spec"]["replicatedJobs"]
    pod = jobs["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["bash", "-c"] and pod["terminationGracePeriodSeconds"] == GRACE
    (command,) = container["args"]
    command = command.replace("--nproc-per-node 8", "--nproc-per-node 1")
    command = re.sub(r"(?<=--master-addr )\S+", '"$MASTER"', command)
    command = re.sub(r"(?<=pretrain )--config .*(?=--gradient_acc)", '"$@" ', command)
    assert all(part in command for part in ("--nproc-per-node 1", '"$MASTER"', '"$@"')), command
    return command, {variable["name"]: variable["value"] for variable in container["env"]}


# --- a run --------------------------------------------------------------------------------------------------------


class Run:
    """A run of `snugbert pretrain` on machines, which starts again as a JobSet of Kubernetes does.

    If a pod fails, the others get SIGTERM, and later SIGKILL. When all have ended, all start again, in another order.

    Args:
        machines: of the cluster.
        arguments: of the command.
        rng: chooses the order of the ranks.

    Attributes:
        machines: that take part, in the order of their ranks. They are on whenever pods may start.
    """

    def __init__(self, machines: list[Machine], arguments: list[str], rng: random.Random):
        self.all, self.machines, self.arguments, self._rng = machines, list(machines), arguments, rng
        self._outputs: list[tuple[Machine, Output]] = []
        self._pods: dict[str, Output] = {}
        self._stopping_since = 0.0
        self._command, self._variables = read_job()

    def start(self) -> None:
        """Starts a pod on each of the machines that take part."""
        self._rng.shuffle(self.machines)
        self._pods, self._stopping_since = {}, 0
        variables = self._variables | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MACHINES": str(len(self.machines)),
            "MASTER": self.machines[0].name,
        }
        for rank, machine in enumerate(self.machines):
            command = ["bash", "-c", self._command, "pod", *self.arguments]
            output = machine.start(command, **variables, JOB_COMPLETION_INDEX=str(rank))
            self._outputs.append((machine, output))
            self._pods[machine.name] = output

    def supervise(self) -> None:
        """Does what the controller of the JobSet does. Called often."""
        statuses = [pod.process.poll() for pod in self._pods.values()]
        if all(status is not None for status in statuses) and any(statuses):
            self.start()
        elif any(statuses) and not self._stopping_since:
            self._stopping_since = time.monotonic()
            self.send(signal.SIGTERM)
        elif self._stopping_since and time.monotonic() > self._stopping_since + GRACE:
            self.send(signal.SIGKILL)

    def send(self, number: int, *machines: Machine) -> None:
        """Sends a signal to torchrun, or SIGKILL to all processes, on these machines, or on all."""
        for machine in machines or self.machines:
            if number == signal.SIGKILL:
                machine.send(number)
            else:
                self._pods[machine.name].process.send_signal(number)

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.supervise()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stops all pods, as deleting the JobSet does."""
        self.send(signal.SIGTERM)
        end = time.monotonic() + GRACE
        while any(pod.process.poll() is None for pod in self._pods.values()):
            if time.monotonic() > end:
                self.send(signal.SIGKILL)
            time.sleep(0.05)

    @property
    def is_done(self) -> bool:
        return all(pod.process.poll() == 0 for pod in self._pods.values())

    def wait_for_step(self, step: int, what: str) -> None:
        """Waits until the run has logged a step after `step`, or has ended.

        Raises:
            AssertionError: it hangs.
        """
        deadline = time.monotonic() + PATIENCE
        while not self.is_done and self.last_step <= step:
            assert time.monotonic() < deadline, f"{what}: no step after {step}\n{self.describe()}"
            self.sleep(0.1)

    def wait_for_end(self) -> None:
        while not self.is_done:
            self.wait_for_step(self.last_step, "the end")

    # --- what the pods printed ----------------------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        """The highest step that was logged."""
        return max((step for _, step in self.list_steps()), default=0)

    def list_steps(self) -> list[tuple[float, int]]:
        """Lists the logged steps, with their time."""
        found = ((when, re.match(r"step +([\d,]+)/", line)) for when, _, line in self.list_lines())
        return [(when, int(match[1].replace(",", ""))) for when, match in found if match]

    def list_lines(self) -> list[tuple[float, str, str]]:
        """Lists all lines with their time and machine."""
        return sorted((when, machine.name, line) for machine, out in self._outputs for when, line in list(out.lines))

    def list_messages(self, since: float) -> list[str]:
        """Lists the errors of SnugBERT. Of a traceback, the last line."""
        messages = []
        for machine in self.all:
            lines = [line for when, name, line in self.list_lines() if when > since and name == machine.name]
            text = "".join(re.sub(r"^\[rank\d+\]: ?", "", line) + "\n" for line in lines)
            messages += [f"{machine.name}: {found}" for found in re.findall(r"^snugbert.*?error: (.*)", text, re.M)]
            # Not the traceback of torchrun, which lists the exit statuses.
            for trace in re.findall(r"^Traceback .*\n(?: .*\n)*\S.*", text, re.M):
                if "snugbert_cli" in trace:
                    messages.append(f"{machine.name}: traceback, {trace.splitlines()[-1]}")
        return messages

    def describe(self) -> str:
        """Returns the last lines of all machines."""
        return "\n".join(f"{name} {line}" for _, name, line in self.list_lines()[-150:])


def make_arguments(material: Path, output_dir: str, steps: int) -> list[str]:
    arguments = {
        "tokenizer_name": material / "tokenizer",
        "config_name": "tiny",
        # Without dropout, a run on one machine gives the same loss as a run on two.
        "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
        "max_seq_length": 40,
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-4,
        "max_steps": steps,
        "logging_steps": 1,
        "save_steps": SAVE_STEPS,
        "use_cpu": "true",
        "disable_tqdm": "true",
        "preprocessing_num_workers": 1,
        "cache_dir": "cache",
        "output_dir": output_dir,
        "resume_from_checkpoint": "true",
    }
    flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
    return [*flags, "--train_file", *(str(material / f"{name}.txt") for name in "abc")]


# --- faults -------------------------------------------------------------------------------------------------------


def kill_worker(run: Run, rng: random.Random) -> None:
    """a worker killed"""
    rng.choice(run.machines).send(signal.SIGKILL, "RANK")


def kill_worker_twice(run: Run, rng: random.Random) -> None:
    """a worker killed, and again at start-up"""
    kill_worker(run, rng)
    run.sleep(rng.uniform(2, 8))
    kill_worker(run, rng)


def _replace(machine: Machine, rng: random.Random, empties_disk: bool) -> None:
    machine.lose(empties_disk)
    time.sleep(rng.uniform(1, 5))
    machine.boot()


def replace_machine(run: Run, rng: random.Random) -> None:
    """a machine lost, replaced by an empty one"""
    _replace(run.machines[1], rng, True)


def reboot_first(run: Run, rng: random.Random) -> None:
    """rank 0's machine lost, back with its disk"""
    _replace(run.machines[0], rng, False)


def replace_first(run: Run, rng: random.Random) -> None:
    """rank 0's machine lost, replaced by an empty one"""
    _replace(run.machines[0], rng, True)


def continue_alone(run: Run, rng: random.Random) -> None:
    """a machine lost, on with one machine, later two"""
    lost, left = run.machines[1], run.machines[0]
    lost.lose()
    run.machines = [left]
    run.stop()
    run.start()
    run.wait_for_step(run.last_step + 20, "one machine")
    run.stop()
    lost.boot()
    run.machines = list(run.all)
    run.start()


def slow_down(run: Run, rng: random.Random) -> None:
    """a machine at a quarter of its speed for 10 s"""
    rng.choice(run.machines).slow_down(10)


def _disconnect(run: Run, rng: random.Random, seconds: float) -> None:
    machine = rng.choice(run.machines)
    machine.cut_off()
    run.sleep(seconds)
    machine.reconnect()


def disconnect_briefly(run: Run, rng: random.Random) -> None:
    """network down for 5 s"""
    _disconnect(run, rng, 5)


def disconnect(run: Run, rng: random.Random) -> None:
    """network down for 60 s"""
    _disconnect(run, rng, 60)


def _disturb(run: Run, rng: random.Random, **frames: float) -> None:
    with rng.choice(run.machines).disturb(**frames):
        run.sleep(10)


def delay_frames(run: Run, rng: random.Random) -> None:
    """each frame 50 ms late for 10 s"""
    _disturb(run, rng, delay=0.05)


def lose_frames(run: Run, rng: random.Random) -> None:
    """5 % of the frames lost for 10 s"""
    _disturb(run, rng, loss=0.05)


def fill_disk(run: Run, rng: random.Random) -> None:
    """rank 0's disk full for 20 s"""
    machine = run.machines[0]
    machine.fill_disk()
    run.sleep(20)
    machine.free_disk()


def forget_others(run: Run, rng: random.Random) -> None:
    """all stopped, checkpoints on one machine only"""
    run.stop()
    run.machines[1].empty_disk()
    run.start()


def forget_all(run: Run, rng: random.Random) -> None:
    """all stopped, checkpoints in the bucket only"""
    run.stop()
    for machine in run.machines:
        machine.empty_disk()
    run.start()


def terminate_one(run: Run, rng: random.Random) -> None:
    """SIGTERM to one machine"""
    run.send(signal.SIGTERM, rng.choice(run.machines))


Fault = Callable[[Run, random.Random], None]
ANYWHERE: list[Fault] = [kill_worker, replace_machine, disconnect, terminate_one, fill_disk, continue_alone]
BAD_LINK: list[Fault] = [disconnect_briefly, delay_frames, lose_frames]
ON_DISKS: list[Fault] = [*ANYWHERE, *BAD_LINK, reboot_first, slow_down, forget_others, kill_worker_twice]
IN_BUCKET: list[Fault] = [*ANYWHERE, *BAD_LINK, replace_first, forget_all]


# The most seconds without a new step, several times what a start takes on a quiet computer. A killed worker may also
# leave its lock in the bucket, for which the next one waits for 90.
LIMITS: dict[Fault, int] = {
    kill_worker: 210,
    kill_worker_twice: 210,
    terminate_one: 120,
    slow_down: 120,
    disconnect_briefly: 120,
    delay_frames: 120,
    lose_frames: 120,
    forget_others: 120,
    forget_all: 120,
}
# After the other faults, torchrun also waits for 60 before it kills a worker that hangs.
LONGEST = 300


def plan_faults(kinds: list[Fault], number: int, rng: random.Random) -> list[Fault]:
    """Chooses each kind equally often, in random order.

    Faults that change the number of processes come last, because they change the order in which gradients are added.
    Before them, every loss must be equal bit for bit.
    """
    faults = list(islice(cycle(rng.sample(kinds, len(kinds))), number))
    rng.shuffle(faults)
    return sorted(faults, key=lambda fault: fault is continue_alone)


# --- the table ----------------------------------------------------------------------------------------------------

HEAD = """| fault | after step | seconds without a new step | steps lost | loss of the new step | undisturbed |
| --- | --- | --- | --- | --- | --- |"""


class Row(NamedTuple):
    """What followed a fault.

    Attributes:
        fault: its name.
        step: the last step before.
        pause: the longest time in seconds without a step that had not been taken before.
        lost: how many steps were taken again.
        new_step: the step after the pause.
    """

    fault: str
    step: int
    pause: float
    lost: int
    new_step: int

    def format(self, losses: dict[int, float], expected: dict[int, float]) -> str:
        """Returns a line of the table."""
        values = [self.fault, self.step, f"{self.pause:.1f}", self.lost]
        values += [f"{each[self.new_step]:.6f}" for each in (losses, expected)]
        return f"| {' | '.join(map(str, values))} |"


def describe_fault(name: str, begin: float, steps: list[tuple[float, int]]) -> Row:
    """Computes a row from all steps with their times, and the time of the fault."""
    before, highest, since = 0, 0, 0.0
    pause, new_step, lost = 0.0, 0, 0
    for when, step in steps:
        if step <= highest:
            lost += when > begin
            continue
        if when <= begin:
            before = step
        elif when - since > pause:
            pause, new_step = when - since, step
        highest, since = step, when
    return Row(name, before, pause, lost, new_step)


def inflict(run: Run, fault: Fault, rng: random.Random) -> Row:
    """Inflicts a fault at a random moment, and waits until training goes on.

    Raises:
        AssertionError: it does not go on within the limit of the fault, too many steps are lost, or a process of
            SnugBERT ended with a traceback.
    """
    name = str(fault.__doc__)
    run.wait_for_step(run.last_step + rng.randint(1, MOST_STEPS), "before the fault")
    run.sleep(rng.uniform(0, 0.2))
    assert not run.is_done, "the run ended before all faults"
    begin = time.monotonic()
    fault(run, rng)
    # A process that has not noticed the fault may log a step more.
    run.wait_for_step(run.last_step + 10, name)
    row = describe_fault(name, begin, run.list_steps())
    messages = run.list_messages(begin)
    print(f"step {row.step}, {row.pause:5.1f} s, {row.lost} steps lost: {name}", flush=True)
    for message in messages:
        print(f"    {message}", flush=True)
    assert not any("traceback" in message for message in messages), run.describe()
    most_lost = MOST_LOST * (MOST_TRIES if fault is fill_disk else 1)
    assert row.pause <= LIMITS.get(fault, LONGEST) and row.lost <= most_lost, run.describe()
    return row


# --- thirty faults ------------------------------------------------------------------------------------------------


def read_losses(output_dir: Path) -> dict[int, float]:
    """Returns the loss of each step of a finished run."""
    log = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
    return {line["step"]: line["loss"] for line in log if "loss" in line}


def train(folder: Path, faults: list[Fault], steps: int, rng: random.Random, bucket: bool) -> tuple[list[Row], dict]:
    """Trains on new machines while the faults happen. Returns what followed them, and the loss of each step."""
    with ExitStack() as stack:
        cluster = stack.enter_context(start_cluster(folder / "cluster"))
        (folder / "served/bucket").mkdir(parents=True)
        if bucket:
            address = stack.enter_context(serve_folder(folder / "served", True, HOST, cluster.namespaces.enter))
            stack.enter_context(use_address(address))
        run = Run(cluster.machines, make_arguments(folder.parent, "s3://bucket/run" if bucket else "run", steps), rng)
        run.start()
        rows = [inflict(run, fault, rng) for fault in faults]
        run.wait_for_end()
        return rows, read_losses(folder / "served/bucket/run" if bucket else run.machines[0].disk / "run")


def assert_same_losses(losses: dict[int, float], expected: dict[int, float], alone: int) -> float:
    """Compares a run with the undisturbed run. Returns the largest difference.

    Args:
        losses, expected: of each step.
        alone: the first step after which a step may have been taken by one machine. Until then, losses are identical.
    """
    assert losses.keys() == expected.keys()
    differences = {step: abs(losses[step] - expected[step]) for step in losses}
    assert not [step for step, difference in differences.items() if step <= alone and difference]
    assert max(differences.values()) < TOLERANCE
    return max(differences.values())


def break_machines(folder: Path, number: int, seed: int) -> None:
    """Inflicts the faults, compares the ends of the runs with an undisturbed run, and prints the table.

    Raises:
        AssertionError: a run did not go on, or a loss differs.
    """
    rng = random.Random(seed)
    make_material(folder, documents=1000)
    numbers = {"on the disks": number - number // 2, "in a bucket": number // 2}
    steps = 2 * MOST_STEPS * max(numbers.values())
    _, expected = train(folder / "undisturbed", [], steps, rng, False)
    print(f"undisturbed: {steps} steps, the last loss is {expected[steps]:.6f}", flush=True)
    for place, count in numbers.items():
        bucket = place == "in a bucket"
        faults = plan_faults(IN_BUCKET if bucket else ON_DISKS, count, rng)
        rows, losses = train(folder / place.replace(" ", "-"), faults, steps, rng, bucket)
        alone = min((row.step for row in rows if row.fault == continue_alone.__doc__), default=steps)
        largest = assert_same_losses(losses, expected, alone - SAVE_STEPS)
        print(f"\nThe output is {place}.\n\n{HEAD}")
        for row in rows:
            print(row.format(losses, expected))
        print(f"| the end | {steps} |  |  |  | {losses[steps]:.6f} | {expected[steps]:.6f} |")
        print(f"\nLosses are identical until step {alone - SAVE_STEPS}. Later ones differ by at most {largest:.1e}.\n")


def main() -> None:
    """Parses the arguments and runs [`break_machines`] in a temporary folder, which stays if it fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="machines-"))
    print(f"{arguments.faults} faults, seed {arguments.seed}, in {folder}")
    break_machines(folder, arguments.faults, arguments.seed)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
