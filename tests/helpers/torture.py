"""Kills a pretraining run again and again, damages its checkpoints, and compares its end with an unkilled run.

Every start uses the same command. Nothing is repaired in between.
"""

import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
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


# --- damage -----------------------------------------------------------------------------------------------------


DAMAGES = [
    *((name, how) for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth") for how in ("empty", "half")),
    ("rng_state.pth", "missing"),
    ("trainer_state.json", "{}"),
    ("model.safetensors", "missing"),
    ("model.safetensors", "half"),
    ("manifest.json", "missing"),
    ("manifest.json", "half"),
    *((name, "six bytes") for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")),
]


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
    optimizers = [_read_optimizer(root / "run" / last / "optimizer.pt") for root in (folder, expected)]
    assert optimizers[0] == optimizers[1]
    for root in (folder, expected):
        assert list_checkpoints(root / "run")[-1].name == last
    assert _read_log(folder / "run") == _read_log(expected / "run")


def _read_optimizer(file: Path) -> dict:
    """The state, with bytes for tensors. Its bytes differ after a resume: loading turns tuples into lists."""

    def comparable(value):
        if isinstance(value, dict):
            return {name: comparable(item) for name, item in value.items()}
        if isinstance(value, torch.Tensor):
            return value.dtype, value.shape, value.numpy().tobytes()
        return [comparable(item) for item in value] if isinstance(value, list | tuple) else value

    return comparable(torch.load(file, weights_only=True))


def _read_log(run: Path) -> list[dict]:
    """metrics.jsonl, and the states of the run and of its last checkpoint, without times and speeds."""
    times = re.compile("runtime|per_second|preparation_time")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for state in (run / "trainer_state.json", list_checkpoints(run)[-1] / "trainer_state.json"):
        lines += json.loads(state.read_text())["log_history"]
    for name in ("eval_results.json", "train_results.json"):
        lines.append(json.loads((run / name).read_text()))
    return [{name: value for name, value in line.items() if not times.search(name)} for line in lines]


# --- fifty kills ------------------------------------------------------------------------------------------------

# Operations that begin each phase, the highest `nth`, and the longest delay in seconds. Ordered as in a run.
BEFORE_TRAINING = {
    "start-up": ("", 1, 0.05),
    "preparing text": (r"open .*\.arrow$", 1, 0.05),
    "finishing text": (r"os.rename .*\.index$", 1, 0.002),
    "making the first table": (r"open .*/epochs/.*(?<!\.lock)$", 1, 0.1),
    "first checkpoint": (r"(open|os.mkdir|os.remove) .*checkpoint", 25, 0.05),
    "renaming the first checkpoint": (r"os.rename .*/run/checkpoint-\d+$", 1, 0.001),
}
DURING_TRAINING = {
    "training": (r"open .*/metrics.jsonl$", 3, 0.1),
    "making a table": (r"open .*/epochs/.*-[1-9]\d*\..*(?<!\.lock)$", 1, 0.1),
    "writing a checkpoint": (r"(open|os.mkdir|os.remove) .*checkpoint", 60, 0.05),
    "renaming a checkpoint": (r"os.rename .*/run/checkpoint-\d+$", 2, 0.001),
    "removing a checkpoint": (r"os.rename .*_unfinished_checkpoint/checkpoint-\d+$", 2, 0.003),
}
AT_THE_END = {"final model, metrics and card": (r"open .*/run/[^/]+\.(json|py|md|png)$", 12, 0.1)}
PHASES = BEFORE_TRAINING | DURING_TRAINING | AT_THE_END


def plan_kills(number: int, rng: random.Random) -> list[tuple[str, Kill]]:
    """Chooses kills of all phases: a third before training, half during training, the others at the end."""
    names = []
    for phases, share in ((BEFORE_TRAINING, 0.34), (DURING_TRAINING, 0.5), (AT_THE_END, 0.16)):
        chosen = sorted(islice(cycle(phases), round(number * share)), key=list(phases).index)
        if phases is DURING_TRAINING:
            rng.shuffle(chosen)
        names += chosen
    kills = []
    for name in names:
        operation, nth, longest = PHASES[name]
        delay = rng.choice((0, rng.uniform(0, longest))) if operation else rng.uniform(0, longest)
        signal_sent = rng.choices(SIGNALS, (4, 1, 1))[0]
        kills.append((name, Kill(operation, rng.randint(1, nth), delay, signal_sent, rng.random() < 0.5)))
    return kills


def torture(folder: Path, number: int, seed: int, steps: int = 160) -> None:
    """Kills runs until `number` kills happened, and compares the end of each run with an unkilled run."""
    rng = random.Random(seed)
    make_material(folder, documents=40)
    start(make_arguments(folder, folder / "straight", steps), None)
    kills, damages = plan_kills(number, rng), cycle(rng.sample(DAMAGES, len(DAMAGES)))
    runs = 0
    while kills:
        runs += 1
        assert runs <= 10, f"cannot reach {kills[0]}"
        run_folder = folder / f"killed-{runs}"
        start_until_the_end(make_arguments(folder, run_folder, steps), run_folder / "run", kills, damages, rng)
        assert_same_end(run_folder, folder / "straight")


def start_until_the_end(
    arguments: Sequence[str],
    output_dir: Path,
    kills: list[tuple[str, Kill]],
    damages: Iterator[tuple[str, str]],
    rng: random.Random,
) -> None:
    """Starts a run until it ends. Removes the kills that happened from `kills`, and damages checkpoints in between."""
    damaged: set[tuple[str, int]] = set()
    reached: str | None = ""
    while reached is not None:
        phase, kill = kills[0] if kills else ("the end", None)
        checkpoints = list_checkpoints(output_dir)
        whole = [path for path in checkpoints if (path.name, _age(path)) not in damaged]
        broken = None
        if whole and kill and phase not in BEFORE_TRAINING:
            name, how = next(damages)
            broken = whole.pop() / name
            damage(broken, how)
            damaged.add((broken.parent.name, _age(broken.parent)))
        reached, messages = start([*arguments, "--dataloader_num_workers", rng.choice("02")], kill)
        _check_messages(messages, broken, whole, checkpoints)
        print(f"{phase}: {kill}, after {reached}. Damaged: {broken}", flush=True)
        if reached is not None:
            kills.pop(0)


def _age(checkpoint: Path) -> int:
    """Changes when a checkpoint is written again."""
    return checkpoint.stat().st_mtime_ns


def _check_messages(messages: str, damaged: Path | None, whole: list[Path], checkpoints: list[Path]) -> None:
    """A warning names the damaged file. The run resumes from the newest complete checkpoint, or reports an error."""
    assert "Traceback" not in messages, messages
    assert damaged is None or str(damaged) in messages, f"no warning names {damaged}:\n{messages}"
    first = re.search(r"^step +([\d,]+)/", messages, re.MULTILINE)
    if first and whole:
        step = int(whole[-1].name.rpartition("-")[2])
        assert int(first[1].replace(",", "")) > step, f"resumed before step {step}:\n{messages}"
    elif first and checkpoints:
        assert "starts at step 0" in messages, messages
