"""A run that is killed again and again, and whose checkpoints are damaged, ends like an unkilled run.

Every start uses the same command. Nothing is repaired in between.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import forked
import matplotlib.figure
import pytest
import torch
from damage import damage
from synthetic import without_times

from snugbert.data.corpus import preparation
from snugbert.storage import inputs
from snugbert.trainers.pretraining.pretrain import pretrain as _imports_what_a_run_needs  # noqa: F401
from snugbert.trainers.run.checkpoints import list_checkpoints
from snugbert.vocabulary.learning import make_tokenizer
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.slow


class Kill(NamedTuple):
    """Before which operation a process and its data workers end, and by which signal."""

    operation: str = ""  # pattern of a file operation, see [`describe`]
    nth: int = 1  # which of the operations that match
    signal: int = signal.SIGKILL


KILLS = [
    Kill(r"os.rename .*/part-.*\.index$"),  # the text is tokenized, but has no index
    Kill(r"os.rename .*\.examples$"),
    Kill(r"open .*checkpoint-4/tokenizer_config.json$"),
    Kill(r"os.rename .*/run/checkpoint-4$"),
    Kill(r"os.rename .*/run/checkpoint-8$", signal=signal.SIGTERM),
    Kill(r"os.rename .*_unfinished_checkpoint/checkpoint-4$"),
    Kill(r"open .*/metrics.jsonl$", nth=2, signal=signal.SIGINT),
    Kill(r"open .*/run/config.json$"),
]


def pretrain(arguments: Sequence[str], kill: Kill | None, home: Path | None = None) -> int:
    """Runs `snugbert pretrain`. Small blocks, so that a short text has many of them. Plots are not rendered.

    If the output is in a bucket, `home` is the folder for the machine's local copy.
    """
    inputs.HF_HOME = home
    preparation.BLOCK_TOKENS = preparation.BATCH_CHARACTERS = 4000
    matplotlib.figure.Figure.savefig = lambda figure, file, **options: Path(file).touch()
    torch.set_num_threads(1)
    pid, matches = os.getpid(), 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal matches
        operation = describe(event, arguments)
        if operation is None or not re.search(kill.operation, operation):
            return
        matches += 1
        if matches == kill.nth:
            os.killpg(pid, kill.signal)

    if kill is not None:
        sys.addaudithook(hook)
    return snugbert_command(["pretrain", *arguments])


def describe(event: str, arguments: tuple) -> str | None:
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


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    """Text files, validation text, and a BPE tokenizer of their letters."""
    folder, rng = tmp_path_factory.mktemp("material"), random.Random(0)
    topics = [[f"w{topic}{letter}" for letter in "abcdefgh"] for topic in range(3)]

    def document() -> str:
        topic = rng.choice(topics)
        sentences = [" ".join(rng.choices(topic, k=rng.randint(4, 8))) + " ." for _ in range(6)]
        return "\n".join((" ".join(sentences[:3]), " ".join(sentences[3:])))

    for name in ("a", "b", "c", "validation"):
        (folder / f"{name}.txt").write_text("\n\n".join(document() for _ in range(10)))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "w", *(f"##{letter}" for letter in "012abcdefgh")]
    make_tokenizer("bpe", tokens).save_pretrained(folder / "tokenizer")
    return folder


def make_arguments(material: Path, folder: Path) -> list[str]:
    """The arguments of a run. It prepares its text in its own cache."""
    flags = f"--tokenizer_name {material}/tokenizer --config_name tiny --validation_file {material}/validation.txt "
    flags += f"--cache_dir {folder}/cache --output_dir {folder}/run --resume_from_checkpoint true --use_cpu true "
    flags += "--max_seq_length 40 --bigram_init true --optim muon --phases 24:50%,40:50% --masking spans "
    flags += "--mlm_probability 0.3:0.15 --per_device_train_batch_size 8 --learning_rate 1e-3 --max_steps 12 "
    flags += "--logging_steps 2 --save_steps 4 --eval_strategy steps --eval_steps 6 --disable_tqdm true "
    flags += "--preprocessing_num_workers 1 --train_file"
    return [*flags.split(), *(str(material / f"{name}.txt") for name in "abc")]


def start(arguments: Sequence[str], kill: Kill | None, home: Path | None = None) -> str:
    """Starts the run, waits until it ends, and checks its exit status. Returns its messages."""
    process = forked.start(pretrain, arguments, kill, home)
    expected = {0} if kill is None else {-kill.signal, 128 + kill.signal}
    assert process.wait() in expected, f"{kill}\n{process.stdout}{process.stderr}"
    return process.stderr


def assert_same_end(folder: Path, expected: Path) -> None:
    """Prepared text, weights, the last checkpoint, log and metrics are identical, except for times and speeds."""
    # After a SIGTERM, other checkpoints may be kept. A killed process leaves the lock file of a part.
    kept = re.compile(r"run/checkpoint-\d+(/|$)|cache/.*/\.part-\S+\.lock$")
    files = [{str(path.relative_to(root)) for path in root.rglob("*")} for root in (folder, expected)]
    assert not [path for path in files[0] ^ files[1] if not kept.match(path)]
    last = list_checkpoints(expected / "run")[-1].name
    assert list_checkpoints(folder / "run")[-1].name == last
    binary = [f"run/{last}/scheduler.pt", f"run/{last}/model.safetensors", "run/model.safetensors"]
    binary += [f"run/{last}/{path.name}" for path in (expected / "run" / last).glob("rng_state*.pth")]
    binary += [str(path.relative_to(expected)) for path in (expected / "cache").rglob("*.arrow")]
    for name in binary:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    # The bytes of this file differ after a resume: loading turns tuples into lists.
    optimizers = [root / "run" / last / "optimizer.pt" for root in (folder, expected)]
    states = [torch.load(file, weights_only=True)["state"] for file in optimizers]
    torch.testing.assert_close(*states, atol=0, rtol=0)
    assert read_log(folder / "run") == read_log(expected / "run")


def read_log(run: Path) -> list[dict]:
    """metrics.jsonl, and the states of the run and of its last checkpoint, without times and speeds."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for state in (run / "trainer_state.json", list_checkpoints(run)[-1] / "trainer_state.json"):
        lines += json.loads(state.read_text())["log_history"]
    for name in ("eval_results.json", "train_results.json"):
        lines.append(json.loads((run / name).read_text()))
    return without_times(lines)


@pytest.fixture(scope="module")
def straight(material, tmp_path_factory) -> Path:
    """The folder of an unkilled run."""
    folder = tmp_path_factory.mktemp("straight")
    start(make_arguments(material, folder), None)
    return folder


def test_a_run_that_is_killed_at_every_stage_ends_like_an_unkilled_run(material, straight, tmp_path):
    """Text, table, first checkpoint, renaming and removing checkpoints, a step, the final model; one data worker.

    The corpus stores the words of BPE. Spans are masked, and the share of masked tokens falls.
    """
    arguments = make_arguments(material, tmp_path)
    for kill in KILLS:
        start([*arguments, "--dataloader_num_workers", "1"], kill)
    damage(tmp_path / "run/checkpoint-12/optimizer.pt", "six bytes")
    messages = start(arguments, None)
    assert "checkpoint-12" in messages and "optimizer.pt" in messages
    assert_same_end(tmp_path, straight)


@pytest.mark.long
def test_kills_at_fifty_operations(material, straight, tmp_path):
    """Each run is killed once, at one of the first 150 operations that change files."""
    for nth in range(1, 151, 3):
        arguments = make_arguments(material, tmp_path / str(nth))
        start(arguments, Kill(nth=nth))
        start(arguments, None)
        assert_same_end(tmp_path / str(nth), straight)


def pretrain_on_two_machines(arguments: Sequence[str], kills: dict[int, Kill]) -> int:
    """Runs one of two processes. Each is the only one of its machine. `kills` has the ranks that end early."""
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return pretrain(arguments, kills.get(int(os.environ["RANK"])))


@pytest.mark.long
def test_thirty_faults_of_two_machines(material, tmp_path):
    """One of the machines stops at an operation that changes files. The second machine has few of them."""

    def run(name: str, kills: dict[int, Kill]) -> int:
        arguments = [*make_arguments(material, tmp_path / name), "--per_device_train_batch_size", "4"]
        return forked.run(pretrain_on_two_machines, arguments, kills, processes=2).returncode

    assert run("straight", {}) == 0
    rng = random.Random(1)
    for number in range(30):
        rank = int(number % 5 == 0)
        kill = Kill(nth=rng.randint(1, 5 if rank else 120), signal=rng.choice((signal.SIGKILL, signal.SIGTERM)))
        status = run(str(number), {rank: kill})
        assert status != 0 or kill.signal == signal.SIGTERM, kill  # after the last step, SIGTERM stops nothing
        assert run(str(number), {}) == 0, kill
        assert_same_end(tmp_path / str(number), tmp_path / "straight")


@pytest.mark.long
def test_twelve_kills_of_a_run_in_a_bucket(material, straight, bucket, tmp_path):
    """Each run continues on an empty machine. The lock of the killed run is removed, as its message says."""
    for number in range(12):
        folder = tmp_path / str(number)
        arguments = [*make_arguments(material, folder), "--output_dir", f"{bucket.url}/{number}/run"]
        start(arguments, Kill(nth=16 * number + 8), folder / "first")
        (bucket.folder / str(number) / "run/_lock").unlink(missing_ok=True)
        start(arguments, None, folder / "second")
        run = bucket.folder / str(number) / "run"
        assert (run / "model.safetensors").read_bytes() == (straight / "run/model.safetensors").read_bytes()
        assert read_log(run) == read_log(straight / "run")


RUNS_AND_EXITS = """
import os, sys, snugbert_cli
from snugbert.trainers.pretraining.pretrain import pretrain  # imports what a run needs
for number in range({runs}):
    os.environ |= {{"MASTER_PORT": str({port} + number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}}
    for rank in range(2):
        if os.fork() == 0:
            os.environ |= {{"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}}
            sys.exit(snugbert_cli.main(["pretrain", *{arguments}]))
    statuses = [os.wait()[1] for rank in range(2)]
    if any(statuses):
        sys.exit(f"run {{number}}: {{statuses}}")
"""


@pytest.mark.long
def test_two_hundred_exits_on_a_busy_computer(material, tmp_path):
    """Runs of two processes end as Python ends, beside processes that take all cores. Some used to abort."""
    arguments = [*make_arguments(material, tmp_path), "--max_steps", "2", "--overwrite_output_dir", "true"]
    arguments += ["--resume_from_checkpoint", "false", "--eval_strategy", "no"]
    code = RUNS_AND_EXITS.format(runs=200, port=20000, arguments=arguments)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        for each in busy:
            each.kill()
    assert process.returncode == 0, process.stderr[-4000:]
