"""Trains on two machines, breaks them again and again, and compares the run with an undisturbed one.

    python tests/helpers/cluster_faults.py --faults 30 --seed 1

The machines are namespaces of this computer, see machines.py. Each runs the same loop around torchrun. The first half
of the faults hits a run whose output is on the disk of each machine, the second half one whose output is in a bucket.
The script prints a row for each fault, and stops at the first one after which the run does not go on.
"""

import argparse
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from bucket import serve_folder, use_address
from machines import HOST, Machine, Output, start_cluster
from torture import make_material

ROOT = Path(__file__).parents[2]
PATIENCE = 600  # seconds until a run that makes no step hangs
BATCHES = 2  # in a step, over all machines
# On SIGTERM, the loop stops torchrun, which sends SIGTERM to its workers, and ends.
LOOP = """
trap 'stopped=1; kill -TERM $pid' TERM
while [ -z "$stopped" ]; do
    "$PYTHON" -m torch.distributed.run --nnodes="$NODES" --nproc-per-node=1 --rdzv-id=run --rdzv-backend=c10d \
        --rdzv-endpoint="$HEAD:29400" --max-restarts=3 -m snugbert pretrain "$@" \
        --gradient_accumulation_steps $((2 / NODES)) & pid=$!
    wait $pid && exit 0
    wait $pid && exit 0
    sleep 1
done
"""


# --- a run --------------------------------------------------------------------------------------------------------


class Run:
    """A run of `snugbert pretrain` on all machines.

    Attributes:
        machines: that take part.
        faults: the rows of the table.
    """

    def __init__(self, machines: list[Machine], arguments: list[str]):
        self.all, self.machines, self.arguments = machines, list(machines), arguments
        self.outputs: list[tuple[Machine, Output]] = []
        self.current: dict[str, Output] = {}

    def start(self, *machines: Machine) -> None:
        """Starts the loop on these machines, or on all that take part."""
        for machine in machines or self.machines:
            output = machine.start(
                ["bash", "-c", LOOP, "loop", *self.arguments],
                PYTHON=sys.executable,
                PYTHONPATH=str(ROOT),
                NODES=str(len(self.machines)),
                HEAD=self.machines[0].name,
            )
            self.outputs.append((machine, output))
            self.current[machine.name] = output

    def stop(self, *machines: Machine) -> None:
        """Sends SIGTERM to the loops, and waits until they end."""
        for machine in machines:
            self.current[machine.name].process.send_signal(signal.SIGTERM)
        for machine in machines:
            self.current[machine.name].process.wait(PATIENCE)

    @property
    def first(self) -> Machine:
        """The machine of the first process."""
        for machine in self.machines:
            for pid in machine.list_processes("RANK"):
                with suppress(OSError):
                    if b"\0RANK=0\0" in Path(f"/proc/{pid}/environ").read_bytes():
                        return machine
        return self.machines[0]

    @property
    def others(self) -> list[Machine]:
        first = self.first
        return [machine for machine in self.machines if machine is not first]

    def list_steps(self) -> list[tuple[float, int]]:
        """Lists the logged steps, with their time."""
        lines = sorted(line for _, output in self.outputs for line in list(output.lines))
        found = ((when, re.match(r"step +([\d,]+)/", line)) for when, line in lines)
        return [(when, int(match[1].replace(",", ""))) for when, match in found if match]

    def list_messages(self, since: float = 0) -> list[str]:
        """Lists the errors of SnugBERT, and the last line of its tracebacks."""
        messages = []
        for machine, output in self.outputs:
            lines = [line for when, line in list(output.lines) if when >= since]
            text = "\n".join(lines)
            messages += [f"{machine.name}: {message}" for message in re.findall(r"^snugbert.*error: (.*)", text, re.M)]
            for trace in re.findall(r"^\[?(?:rank\d+\]: ?)?Traceback.*?^(?:\[rank\d+\]: ?)?(\w\S+: .*?)$", text, re.M | re.S):
                messages.append(f"{machine.name}: TRACEBACK {trace}")
        return messages

    @property
    def is_done(self) -> bool:
        return any(output.process.poll() == 0 for output in self.current.values())

    def wait_for_step(self, step: int, what: str) -> None:
        """Waits until the run has logged a step after `step`, or has ended.

        Raises:
            AssertionError: it hangs.
        """
        deadline = time.monotonic() + PATIENCE
        while not self.is_done and max((number for _, number in self.list_steps()), default=0) <= step:
            assert time.monotonic() < deadline, f"{what}: no step after {step}\n{self.describe()}"
            time.sleep(0.1)

    def describe(self) -> str:
        """The end of the output of each machine."""
        return "\n".join(
            f"--- {machine.name}\n" + "\n".join(output.text.splitlines()[-60:]) for machine, output in self.outputs
        )


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
        "save_steps": 20,
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
    time.sleep(rng.uniform(2, 8))
    kill_worker(run, rng)


def _replace(run: Run, machine: Machine, rng: random.Random, empties_disk: bool) -> None:
    machine.lose(empties_disk)
    time.sleep(rng.uniform(1, 5))
    machine.boot()
    run.start(machine)


def replace_machine(run: Run, rng: random.Random) -> None:
    """a machine lost, replaced by an empty one"""
    _replace(run, run.others[0], rng, True)


def reboot_first(run: Run, rng: random.Random) -> None:
    """rank 0's machine lost, back with its disk"""
    _replace(run, run.first, rng, False)


def replace_first(run: Run, rng: random.Random) -> None:
    """rank 0's machine lost, replaced by an empty one"""
    _replace(run, run.first, rng, True)


def continue_alone(run: Run, rng: random.Random) -> None:
    """a machine lost, on with one machine, later two"""
    lost = rng.choice(run.others)
    lost.lose()
    time.sleep(1)
    run.machines.remove(lost)
    (left,) = run.machines
    run.stop(left)
    step = run.list_steps()[-1][1]
    run.start()
    run.wait_for_step(step + 20, "one machine")
    run.stop(left)
    lost.boot()
    run.machines = list(run.all)
    run.start()


def slow_down(run: Run, rng: random.Random) -> None:
    """a machine at a quarter of its speed for 10 s"""
    rng.choice(run.machines).slow_down(10)


def _disconnect(run: Run, rng: random.Random, seconds: float) -> None:
    machine = rng.choice(run.machines)
    machine.cut_off()
    time.sleep(seconds)
    machine.reconnect()


def disconnect_briefly(run: Run, rng: random.Random) -> None:
    """network down for 5 s"""
    _disconnect(run, rng, 5)


def disconnect(run: Run, rng: random.Random) -> None:
    """network down for 60 s"""
    _disconnect(run, rng, 60)


def fill_disk(run: Run, rng: random.Random) -> None:
    """rank 0's disk full for 20 s"""
    machine = run.first
    machine.fill_disk()
    time.sleep(20)
    machine.free_disk()


def forget_others(run: Run, rng: random.Random) -> None:
    """all stopped, checkpoints on one machine only"""
    kept = run.first
    run.stop(*run.machines)
    for machine in run.machines:
        machine.lose(empties_disk=machine is not kept)
        machine.boot()
    run.start()


def forget_all(run: Run, rng: random.Random) -> None:
    """all stopped, checkpoints in the bucket only"""
    run.stop(*run.machines)
    for machine in run.machines:
        machine.lose(empties_disk=True)
        machine.boot()
    run.start()


def terminate_one(run: Run, rng: random.Random) -> None:
    """SIGTERM to one machine"""
    machine = rng.choice(run.machines)
    run.stop(machine)
    time.sleep(3)
    run.start(machine)


Fault = Callable[[Run, random.Random], None]
ANYWHERE: list[Fault] = [kill_worker, replace_machine, continue_alone, disconnect, terminate_one, fill_disk]
ON_DISKS: list[Fault] = [*ANYWHERE, reboot_first, slow_down, disconnect_briefly, forget_others, kill_worker_twice]
IN_BUCKET: list[Fault] = [*ANYWHERE, replace_first, forget_all]


# --- the table ----------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What happened, see [`HEAD`]."""

    fault: str
    step: int
    to_any: float
    to_new: float
    lost: int
    first_step: int
    messages: list[str] = field(default_factory=list)


def inflict(run: Run, fault: Fault, rng: random.Random) -> Row:
    """Waits until training goes on, inflicts a fault at a random moment, and waits until training goes on again."""
    steps = run.list_steps()
    run.wait_for_step(steps[-1][1] if steps else 0, "before the fault")
    time.sleep(rng.uniform(0.5, 5))
    begin, before = time.monotonic(), run.list_steps()[-1][1]
    print(f"    step {before}: {fault.__doc__}", flush=True)
    fault(run, rng)
    # A process that has not noticed the fault may log a step more.
    reached = max(step for _, step in run.list_steps())
    run.wait_for_step(reached + 10, str(fault.__doc__))
    steps = [(when, step) for when, step in run.list_steps() if when > begin - 1]
    gap = max(range(1, len(steps)), key=lambda index: steps[index][0] - steps[index - 1][0])
    last = max(step for _, step in steps[:gap])
    again, first_step = steps[gap]
    new = next(when for when, step in steps[gap:] if step > last)
    lost = last + 1 - first_step
    return Row(str(fault.__doc__), before, again - begin, new - begin, lost, first_step, run.list_messages(begin))


HEAD = """| fault | at step | seconds to the next step | to a new step | steps lost | loss of that step | undisturbed |
| --- | --- | --- | --- | --- | --- | --- |"""


def read_losses(output_dir: Path) -> dict[int, float]:
    log = json.loads((output_dir / "trainer_state.json").read_text())["log_history"]
    return {line["step"]: line["loss"] for line in log if "loss" in line}


def find_output(run: Run) -> Path:
    return next(machine.disk / "run" for machine in run.all if (machine.disk / "run/trainer_state.json").exists())
