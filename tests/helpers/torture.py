"""Kills a pretraining run again and again, damages its checkpoints, and compares its end with an unkilled run.

Every start uses the same command. Nothing is repaired in between.
"""

import itertools
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import matplotlib.figure
import torch
from damage import damage

import snugbert
from snugbert.data.corpus import preparation
from snugbert.trainers.pretraining.pretrain import pretrain as _imports_what_a_run_needs  # noqa: F401
from snugbert.trainers.run.checkpoints import list_checkpoints
from snugbert.vocabulary.learning import make_tokenizer
from snugbert_cli import main as snugbert_command

SAVE_STEPS = 4
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Kill:
    """When and how a process ends."""

    operation: str = ""  # pattern of a file operation, see [`_describe`]. Empty: the start of the process
    nth: int = 1  # which of the operations that match
    delay: float = 0  # seconds between the operation and the signal. 0: right before the operation
    signal: int = signal.SIGKILL
    group: bool = True  # whether data workers and other child processes receive the signal, too


# --- a run that kills itself ------------------------------------------------------------------------------------


def pretrain(arguments: Sequence[str], kill: Kill | None) -> int:
    """Runs `snugbert pretrain`. Small blocks, so that a short text has many of them. Plots are not rendered."""
    preparation.BLOCK_TOKENS = preparation.BATCH_CHARACTERS = 4000
    matplotlib.figure.Figure.savefig = lambda figure, file, **options: Path(file).touch()
    torch.set_num_threads(1)
    if kill is not None:
        _arm(kill)
    return snugbert_command(["pretrain", *arguments])


def _arm(kill: Kill) -> None:
    """Makes this process send itself the signal at the given moment."""
    pid, matches, last = os.getpid(), 0, "start"

    def send() -> None:
        print(f"{signal.Signals(kill.signal).name} after {last}", flush=True)
        os.killpg(pid, kill.signal) if kill.group else os.kill(pid, kill.signal)

    def send_later() -> None:
        timer = threading.Timer(kill.delay, send)
        timer.daemon = True
        timer.start()

    def hook(event: str, arguments: tuple) -> None:
        nonlocal matches, last
        operation = _describe(event, arguments)
        if operation is None:
            return
        last = operation
        matches += bool(kill.operation and re.search(kill.operation, operation))
        if matches == kill.nth:
            matches += 1
            send_later() if kill.delay else send()

    sys.addaudithook(hook)
    if not kill.operation:
        send_later()


def _describe(event: str, arguments: tuple) -> str | None:
    """An operation that changes files, such as "open FILE" or "os.rename NEW_FILE". None: it changes no file."""
    if event == "open":
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR) if mode is None else set(mode) & set("wax+")
        return f"open {path}" if writes else None
    if event == "os.rename":
        return f"{event} {arguments[1]}"
    if event in ("os.mkdir", "os.remove", "shutil.rmtree") and os.path.isabs(arguments[0]):
        return f"{event} {arguments[0]}"  # not the files that rmtree removes, whose paths are relative
    return None


# --- text, arguments, starts ------------------------------------------------------------------------------------


def make_material(folder: Path, documents: int, letters: bool = False) -> None:
    """Writes three text files, validation text, and a tokenizer of their 24 words, or of their letters."""
    rng = random.Random(0)
    topics = [[f"w{topic}{letter}" for letter in "abcdefgh"] for topic in range(3)]

    def sentence(topic: list[str]) -> str:
        return " ".join(rng.choices(topic, k=rng.randint(4, 8))) + " ."

    def document() -> str:
        topic = rng.choice(topics)
        return "\n".join(" ".join(sentence(topic) for _ in range(3)) for _ in range(2))

    for name, number in {"a": documents, "b": documents, "c": documents, "validation": 10}.items():
        (folder / f"{name}.txt").write_text("\n\n".join(document() for _ in range(number)))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(word for topic in topics for word in topic)]
    tokenizer: Any = snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)})
    if letters:
        tokenizer = make_tokenizer("bpe", [*words[:6], "w", *(f"##{letter}" for letter in "012abcdefgh")])
    tokenizer.save_pretrained(folder / "tokenizer")


def make_arguments(material: Path, folder: Path, steps: int) -> list[str]:
    """The arguments of a run. It prepares its text in its own cache."""
    arguments = {
        "tokenizer_name": material / "tokenizer",
        "config_name": "tiny",
        "cache_dir": folder / "cache",
        "validation_file": material / "validation.txt",
        "max_seq_length": 40,
        "bigram_init": "true",
        "optim": "muon",
        "phases": "24:50%,40:50%",
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "max_steps": steps,
        "logging_steps": 2,
        "save_steps": SAVE_STEPS,
        "eval_strategy": "steps",
        "eval_steps": 10,
        "use_cpu": "true",
        "disable_tqdm": "true",
        "preprocessing_num_workers": 1,
        "output_dir": folder / "run",
        "resume_from_checkpoint": "true",
    }
    flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
    return [*flags, "--train_file", *(str(material / f"{name}.txt") for name in "abc")]


def start(arguments: Sequence[str], kill: Kill | None) -> tuple[str | None, str]:
    """Starts the run, waits until it ends, and checks its exit status.

    Returns the operation that the signal followed, and the messages. None: the run ended before the kill.
    """
    process = forked.start(pretrain, arguments, kill)
    status = process.wait()
    sent = kill and re.search(r"^SIG\w+ after (.*)", process.stdout, re.MULTILINE)
    messages, lost, _ = process.stderr.partition("Exception ignored in")
    if lost and status == 0:
        return None, messages  # Python loses a KeyboardInterrupt that arrives during os.fork
    expected = {-kill.signal, 128 + kill.signal} if kill and sent else {0}
    assert status in expected, f"{kill}: exit status {status}\n{process.stdout}{process.stderr}"
    return sent[1] if sent else None, messages


# --- comparison -------------------------------------------------------------------------------------------------


def assert_same_end(folder: Path, expected: Path) -> None:
    """Prepared text, weights, the last checkpoint, log and metrics are identical, except for times and speeds."""
    for name in ("cache", "run"):
        ours, theirs = (
            {str(path.relative_to(root)) for path in (root / name).rglob("*")} for root in (folder, expected)
        )
        kept = re.compile(r"checkpoint-\d+(/|$)")  # after a SIGTERM, others than in the unkilled run may be kept
        difference = {path for path in ours ^ theirs if not kept.search(path)}
        assert not difference, sorted(difference)
    last = list_checkpoints(expected / "run")[-1].name
    binary = [f"run/{last}/{name}" for name in ("scheduler.pt", "rng_state.pth", "model.safetensors")]
    binary += ["run/model.safetensors"]
    binary += [str(path.relative_to(expected)) for path in (expected / "cache").rglob("*.arrow")]
    for name in binary:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    # The bytes of this file differ after a resume: loading turns tuples into lists.
    files = [root / "run" / last / "optimizer.pt" for root in (folder, expected)]
    states = [torch.load(file, weights_only=True)["state"] for file in files]
    torch.testing.assert_close(*states, atol=0, rtol=0)
    for root in (folder, expected):
        assert list_checkpoints(root / "run")[-1].name == last
    assert _read_log(folder / "run") == _read_log(expected / "run")


def _read_log(run: Path) -> list[dict]:
    """metrics.jsonl, and the states of the run and of its last checkpoint, without times and speeds."""
    times = re.compile("runtime|per_second|preparation_time")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for state in (run / "trainer_state.json", list_checkpoints(run)[-1] / "trainer_state.json"):
        lines += json.loads(state.read_text())["log_history"]
    for name in ("eval_results.json", "train_results.json"):
        lines.append(json.loads((run / name).read_text()))
    return [{name: value for name, value in line.items() if not times.search(name)} for line in lines]


# --- random kills -----------------------------------------------------------------------------------------------

DAMAGED = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "model.safetensors", "manifest.json")


def torture(folder: Path, number: int, seed: int, steps: int = 160) -> None:
    """Kills runs at random moments, and damages checkpoints in between, until `number` kills happened.

    Compares the end of each run with an unkilled run.
    """
    rng, kills = random.Random(seed), 0
    make_material(folder, documents=40)
    begin = time.monotonic()
    start(make_arguments(folder, folder / "straight", steps), None)
    seconds = time.monotonic() - begin
    for run in itertools.count(1):
        reached: str | None = ""
        damaged: set[tuple[str, int]] = set()
        arguments = make_arguments(folder, folder / f"run-{run}", steps)
        while reached is not None:
            checkpoints = list_checkpoints(folder / f"run-{run}/run")
            whole = [path for path in checkpoints if (path.name, _age(path)) not in damaged]
            broken = None
            if whole and rng.random() < 0.5:
                broken = whole.pop() / rng.choice(DAMAGED)
                damage(broken, rng.choice(("missing", "empty", "half", "six bytes")))
                damaged.add((broken.parent.name, _age(broken.parent)))
            kill = Kill(delay=rng.uniform(0, seconds / 2), signal=rng.choice(SIGNALS), group=rng.random() < 0.5)
            command = [*arguments, "--dataloader_num_workers", rng.choice("02")]
            reached, messages = start(command, kill if kills < number else None)
            _check_messages(messages, broken, whole, checkpoints)
            end = "ended" if reached is None else f"{signal.Signals(kill.signal).name} after {reached}"
            print(f"run {run}: {end}. Damaged: {broken}", flush=True)
            kills += reached is not None
        assert_same_end(folder / f"run-{run}", folder / "straight")
        if kills == number:
            return


def _age(checkpoint: Path) -> int:
    """Changes when a checkpoint is written again."""
    return checkpoint.stat().st_mtime_ns


def _check_messages(messages: str, damaged: Path | None, whole: list[Path], checkpoints: list[Path]) -> None:
    """If the run reaches a step, a warning names the damaged file, and it resumes from the newest whole checkpoint."""
    # A thread of Python in a data worker may begin to report that its process ends.
    assert "Traceback" not in messages or "resource_sharer.py" in messages, messages
    first = re.search(r"^step +([\d,]+)/", messages, re.MULTILINE)
    # A run that was killed at once has not read the checkpoints.
    assert first is None or damaged is None or str(damaged) in messages, f"no warning names {damaged}:\n{messages}"
    if first and whole:
        step = int(whole[-1].name.rpartition("-")[2])
        assert int(first[1].replace(",", "")) > step, f"resumed before step {step}:\n{messages}"
    elif first and checkpoints:
        assert "starts at step 0" in messages, messages
