"""What a large text costs: preparation, opening, tables of windows, reading from a bucket, and the speed of many GPUs.

    python benchmarks/scale.py --tokenizer_name tok --train_file 'books/*.txt.gz' --gigabytes 1 10 --output_dir scale
    python benchmarks/scale.py

The text of each size is made of the documents of `--train_file`, as often as needed, in a new random order each time.
One letter in 250 is replaced by a random one, so that new words keep coming, as in real text: about 2 % of the words
are new. So few lines are equal, and the tokenizer's cache of words helps no more than with real text.

Each size is measured in these steps. CPU seconds are user and system time of a process and its children.

- `snugbert prepare` in a new process: CPU and wall seconds, peak memory (buckets.py), files and bytes.
- Verifying: a pass over one part that counts its blocks and hashes them. `snugbert prepare --check` does it.
- Opening: CPU seconds of `open_corpus`, the least of three times.
- The table of the first window: CPU seconds of the processes that cut pairs, and of the process that labels them.
- Opening and reading one epoch from an S3 server on the loopback, window by window: requests, and bytes sent.
- A run of a very small model with the default window, from the folder and from the bucket: wall seconds until the
  first step, and peak memory.

A line is fitted through the sizes. 1 and 10 TB are extrapolated along this line, by a factor of 100 and more. A corpus
has at most 256 parts, so costs that grow with the number of parts stop growing there. Up to 17 GB of text, a part has
four blocks, and the last one is short. With more text, parts have many blocks, so all blocks are counted as full.

The second table says how long a window lasts on many GPUs, and how long its table takes. The last tables are from
`gpu_scaling.py`. Without `--gigabytes`, only these are printed.

Results of finished sizes are kept in the output folder, and text and corpora are removed. The same command continues,
or prints the tables of finished sizes again. Ten gigabytes need 20 GB of disk.
"""

import argparse
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import gpu_scaling
import numpy as np
from buckets import URL, Peaks, serve, time_start
from side_by_side import describe_machine, positive
from steps import check_settings, format_table

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.corpus import Corpus, open_corpus
from snugbert.data.corpus.corpus_blocks import CachedBlocks
from snugbert.data.corpus.part_files import index_name, make_index
from snugbert.data.corpus.preparation import BLOCK_TOKENS
from snugbert.data.corpus.text_parts import MOST_PARTS
from snugbert.data.documents import find_files, read_documents
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.files import write_atomically
from snugbert.storage.urls import CONNECTIONS
from snugbert.trainers.pretraining.block_windows import WINDOW_BLOCKS, Window, Windows
from snugbert.trainers.pretraining.examples import PretrainingDataset

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
from fault_proxy import proxy_faults

LETTERS_PER_CHANGE = 250
EXTRAPOLATED = (1e12, 1e13)  # bytes of text
BLOCK_ENTRY = 72  # bytes of a block in an index
# Assumptions of the second table: cores of a machine with 8 GPUs, and bytes per second of a connection to S3.
CORES, CONNECTION = 96, 90e6
Measures = dict[str, float]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", nargs="+", type=float, default=[], help="sizes of the text, at least two")
    parser.add_argument("--tokenizer_name", help="tokenizer folder")
    parser.add_argument("--train_file", nargs="+", help="documents, as for `snugbert pretrain`")
    parser.add_argument("--batch_size", type=positive, default=512, help="of the runs that only start")
    parser.add_argument("--output_dir", type=Path, default=Path("scale"))
    args = parser.parse_args(argv)
    if args.gigabytes and not (args.tokenizer_name and args.train_file and len(set(args.gigabytes)) > 1):
        parser.error("--gigabytes needs two sizes, --tokenizer_name and --train_file.")
    return args


# --- text -------------------------------------------------------------------------------------------------------


def write_text(patterns: list[str], gigabytes: float, folder: Path) -> int:
    """Writes the text of a size, a file for each time that all documents are used. Returns its bytes."""
    documents = ["\n".join(document).encode() for document in read_documents(find_files(patterns))]
    number = max(1, round(gigabytes * 1e9 / sum(map(len, documents))))
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for copy in range(number):
        text = b"\n\n".join(documents[index] for index in rng.permutation(len(documents)))
        (folder / f"{copy:05d}.txt").write_bytes(change_letters(text, rng))
    return sum(file.stat().st_size for file in folder.iterdir())


def change_letters(text: bytes, rng: np.random.Generator) -> bytes:
    """Replaces some of the letters a to z by random ones."""
    letters = np.frombuffer(text, np.uint8).copy()
    places = rng.integers(len(letters), size=len(letters) // LETTERS_PER_CHANGE)
    places = places[(letters[places] >= ord("a")) & (letters[places] <= ord("z"))]
    letters[places] = rng.integers(ord("a"), ord("z") + 1, size=len(places))
    return letters.tobytes()


# --- measurements -----------------------------------------------------------------------------------------------


def cpu_seconds(who: int) -> float:
    """Returns the CPU time of this process, or of its children that have ended."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def measure_preparation(text: Path, corpus: Path, args: argparse.Namespace) -> Measures:
    """Measures `snugbert prepare`.

    Raises:
        SystemExit: it failed.
    """
    files = sorted(map(str, text.iterdir()))
    command = ["prepare", "--tokenizer_name", args.tokenizer_name, "--output_dir", str(corpus), "--train_file", *files]
    before, begin = cpu_seconds(resource.RUSAGE_CHILDREN), time.monotonic()
    log = args.output_dir / "prepare.txt"
    command = [sys.executable, "-m", "snugbert", *command]
    with log.open("w") as stream, subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT) as process:
        peaks = Peaks(process, corpus)
        peaks.start()
        try:
            process.wait()
        finally:
            process.terminate()  # if this benchmark is stopped
            peaks.join()
    if process.returncode:
        raise SystemExit(f"error: `snugbert prepare` failed. See {log}.")
    return {
        "prepare_cpu": cpu_seconds(resource.RUSAGE_CHILDREN) - before,
        "prepare_wall": time.monotonic() - begin,
        "prepare_memory": peaks.private,
    }


def measure_corpus(folder: Path, tokenizer: Any) -> tuple[Corpus, Measures]:
    """Opens a corpus, verifies a part, and measures both."""
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        corpus = open_corpus(folder, tokenizer)
        seconds.append(time.process_time() - begin)
    parts = sorted(folder.glob("*.arrow"))
    begin = time.process_time()
    tokens = make_index(parts[0]).counts.tokens.sum()
    verified = (time.process_time() - begin) / int(tokens)
    return corpus, {
        "tokens": corpus.num_tokens,
        "blocks": len(corpus.blocks),
        "parts": len(parts),
        "files": len(list(folder.glob("[!.]*"))),
        "corpus": sum(file.stat().st_size for file in parts),
        "index": sum((folder / index_name(file.name)).stat().st_size for file in parts),
        "open_cpu": min(seconds),
        "verify_token": verified,
    }


def measure_table(corpus: Corpus, tokenizer: Any, folder: Path) -> Measures:
    """Measures the table of the first window, for sentence pairs of 128 tokens. Seconds are per token."""
    before = [cpu_seconds(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    dataset = PretrainingDataset(corpus, tokenizer, epochs_dir=folder)
    after = [cpu_seconds(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    window = Window(0, 0)
    tokens = int(corpus.counts.tokens[dataset.windows.list_blocks(window)].sum())
    table = dataset.open_table(window)
    serial, parallel = ((now - then) / tokens for now, then in zip(after, before, strict=True))
    return {"table_serial": serial, "table_parallel": parallel, "table_token": table.nbytes / tokens}


def measure_reads(store: Path, tokenizer: Any, args: argparse.Namespace) -> Measures:
    """Opens the corpus in the bucket, reads one epoch, and starts a run from the folder and from the bucket."""
    import s3fs  # optional

    measures: Measures = {}
    with serve(store) as bucket, proxy_faults(bucket.environment["AWS_ENDPOINT_URL_S3"]) as proxy:

        @contextmanager
        def counting(name: str) -> Iterator[None]:
            requests, sent, begin = len(proxy.requests), bucket.count_sent(), time.monotonic()
            yield
            measures[f"{name}_requests"] = len(proxy.requests) - requests
            measures[f"{name}_bytes"] = bucket.count_sent() - sent
            measures[f"{name}_seconds"] = time.monotonic() - begin

        cache = args.output_dir / "cache"
        with patch.dict(os.environ, bucket.environment | {"AWS_ENDPOINT_URL_S3": proxy.address}):
            s3fs.S3FileSystem.clear_instance_cache()  # of the server before
            with counting("open"):
                corpus = open_corpus(URL, tokenizer, cache)
            blocks = corpus.blocks
            assert isinstance(blocks, CachedBlocks)
            windows = Windows(corpus.counts.tokens, WINDOW_BLOCKS, seed=0)
            with counting("read"):
                for number in range(windows.per_epoch):
                    blocks.keep([])
                    blocks.ensure(windows.list_blocks(Window(0, number)))
        remove(cache)
        checkout = Path(__file__).parents[1]
        for name, corpus_name in (("folder", str((store / "bucket/corpus").resolve())), ("bucket", URL)):
            flags = {"corpus": corpus_name}
            seconds, memory = time_start(f"start-{name}", checkout, flags, [], args, bucket.environment)
            measures |= {f"start_{name}": seconds, f"start_{name}_memory": memory}
    return measures


def remove(*folders: Path) -> None:
    """Removes folders that may not exist."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def measure_size(gigabytes: float, args: argparse.Namespace) -> Measures:
    """Measures everything for one size of text, or reads the result of a finished one."""
    file = args.output_dir / f"{gigabytes:g}.json"
    if file.exists():
        return json.loads(file.read_text())
    text, store = args.output_dir / "text", args.output_dir / "store"
    folder, tables = store / "bucket/corpus", args.output_dir / "tables"
    remove(text, store, tables, args.output_dir / "cache")  # of a killed benchmark
    begin = time.monotonic()
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    try:
        measures: Measures = {"text": write_text(args.train_file, gigabytes, text)}
        folder.parent.mkdir(parents=True)
        measures |= measure_preparation(text, folder, args)
        remove(text)
        corpus, found = measure_corpus(folder, tokenizer)
        measures |= found | measure_table(corpus, tokenizer, tables) | measure_reads(store, tokenizer, args)
    finally:
        remove(text, store, tables, args.output_dir / "cache")
    write_atomically(file, json.dumps(measures))
    print(f"{gigabytes:g} GB: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return measures


# --- report -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of the table of costs."""

    title: str
    name: str  # of the measure
    unit: float
    against: str | None = "text"  # what it grows with: text, parts or blocks. None: it is not extrapolated


ROWS = (
    Row("text, GB", "text", 1e9, None),
    Row("tokens, million", "tokens", 1e6),
    Row("preparing, core hours", "prepare_cpu", 3600),
    Row("preparing, seconds on this machine", "prepare_wall", 1, None),
    Row("preparing, peak memory, MB", "prepare_memory", 1e6, None),
    Row("corpus, GB", "corpus", 1e9),
    Row("parts", "parts", 1, None),
    Row("files", "files", 1, None),
    Row("blocks", "blocks", 1, "blocks"),
    Row("indices, MB", "index", 1e6, "parts"),
    Row("verifying, CPU ns per token", "verify_token", 1e-9, None),
    Row("opening from the disk, CPU s", "open_cpu", 1, "parts"),
    Row("opening from the bucket, requests", "open_requests", 1, "parts"),
    Row("opening from the bucket, MB", "open_bytes", 1e6, "parts"),
    Row("an epoch from the bucket, requests", "read_requests", 1, "blocks"),
    Row("an epoch from the bucket, GB", "read_bytes", 1e9),
    Row("table of a window, in parallel, CPU ns per token", "table_parallel", 1e-9, None),
    Row("table of a window, in one process, CPU ns per token", "table_serial", 1e-9, None),
    Row("first step from the disk, s", "start_folder", 1, None),
    Row("first step from the bucket, s", "start_bucket", 1, None),
    Row("first step from the disk, memory, MB", "start_folder_memory", 1e6, None),
    Row("first step from the bucket, memory, MB", "start_bucket_memory", 1e6, None),
)


def fit_line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Returns the fixed part and the slope of a line. Two sizes may have the same number of parts."""
    if len(set(x)) == 1:
        return float(np.mean(y)), 0.0
    slope, fixed = np.polyfit(x, y, 1)
    return float(fixed), float(slope)


def extrapolate(row: Row, sizes: list[Measures], text: float) -> float:
    """Returns the value of a row for so many bytes of text.

    Indices grow with the parts and with the blocks. A quarter of the measured blocks are short, with fewer requests.
    In a large corpus, nearly all are full. So the mean number of requests is rounded.
    """
    if row.against == "text":
        fixed, slope = fit_line([each["text"] for each in sizes], [each[row.name] for each in sizes])
        return fixed + slope * text
    blocks = sizes[-1]["tokens"] / sizes[-1]["text"] * text / BLOCK_TOKENS
    if row.against == "blocks":
        return blocks * round(sizes[-1][row.name] / sizes[-1]["blocks"])
    per_block = BLOCK_ENTRY if row.name in ("index", "open_bytes") else 0
    values = [each[row.name] - per_block * each["blocks"] for each in sizes]
    fixed, slope = fit_line([each["parts"] for each in sizes], values)
    return fixed + slope * MOST_PARTS + per_block * blocks


def format_costs(sizes: list[Measures]) -> str:
    """Makes the table of costs."""
    rows = [["", *(f"{each['text'] / 1e9:.2g} GB" for each in sizes), "fixed part", "per GB of text"]]
    rows[0] += [f"{text / 1e12:g} TB, extrapolated" for text in EXTRAPOLATED]
    for row in ROWS:
        values = [each[row.name] / row.unit for each in sizes]
        cells = [row.title, *map(format_number, values)]
        if row.against == "text":
            fixed, slope = fit_line([each["text"] / 1e9 for each in sizes], values)
            cells += [format_number(fixed), format_number(slope)]
        else:
            cells += ["", ""]
        far = [extrapolate(row, sizes, text) / row.unit for text in EXTRAPOLATED] if row.against else []
        rows.append([*cells, *(map(format_number, far) if far else ("", ""))])
    return format_table(rows)


def format_number(value: float) -> str:
    """Formats a number with three significant digits, and large ones in full."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"


def format_windows(sizes: list[Measures]) -> str:
    """Makes the table of what a window of full blocks costs while many GPUs train BERT base at full speed."""
    last = sizes[-1]
    work = gpu_scaling.make_work("base", gpu_scaling.SEQUENCES)
    token_bytes, tokens = last["corpus"] / last["tokens"], WINDOW_BLOCKS * BLOCK_TOKENS
    table = tokens * (last["table_serial"] + last["table_parallel"] / CORES)
    rows = [["GPUs", "million tokens/s", "a window lasts, s", "its table takes, s", "of it in one process, s"]]
    rows[0] += ["training waits, %", "a machine reads, MB/s", "all machines read, GB/s"]
    for gpus in gpu_scaling.GPUS:
        rate = gpus * gpu_scaling.SEQUENCES * gpu_scaling.TOKENS / work.seconds
        lasts, machine = tokens / rate, rate * token_bytes
        cells = [f"{gpus:,}", *map(format_number, (rate / 1e6, lasts, table, tokens * last["table_serial"]))]
        waits, machines = 100 * table / (table + lasts), -(-gpus // gpu_scaling.CLUSTERS[0].gpus)
        rows.append([*cells, *map(format_number, (waits, machine / 1e6, machine * machines / 1e9))])
    limit = CONNECTIONS * CONNECTION
    return (
        f"{format_table(rows)}\n\nA window of {WINDOW_BLOCKS} full blocks, {CORES} cores of this kind in a machine, "
        f"and no wait for messages. With {CONNECTIONS} connections of {CONNECTION / 1e6:.0f} MB/s, a machine reads at "
        f"most {limit / 1e6:.0f} MB/s, enough for {limit / token_bytes / 1e6:.0f} million tokens/s."
    )


def main(argv: list[str]) -> None:
    """Measures what is missing, and prints the tables."""
    args = parse_arguments(argv)
    print(", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items()))
    print(f"\n    python benchmarks/scale.py {shlex.join(argv)}\n", flush=True)
    try:
        if args.gigabytes:
            names = ("tokenizer_name", "train_file", "batch_size")
            check_settings(args.output_dir, {name: getattr(args, name) for name in names})
            sizes = [measure_size(gigabytes, args) for gigabytes in sorted(set(args.gigabytes))]
            print(f"## Text\n\n{format_costs(sizes)}\n\n## Windows on many GPUs\n\n{format_windows(sizes)}\n")
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    print(f"## DDP and FSDP2\n\n{gpu_scaling.report()}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the text is removed
    main(sys.argv[1:])
