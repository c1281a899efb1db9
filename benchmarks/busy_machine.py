r"""Speed of the commands on a machine that is not idle: alone, beside a busy process, beside a second run.

    make demo
    python benchmarks/busy_machine.py --demo_dir demo-output

Each run is a `snugbert` command on the text of `make demo`: pretraining, fine-tuning a classifier from random weights,
and `snugbert predict`. `tiny` and `mini` pretrain with Muon, `base` with AdamW.

Side "shared" is the command as it is (snugbert/shared_cores.py). Side "spinning" sets GOMP_SPINCOUNT to libgomp's
default, 300,000, so libgomp's threads spin as usual. All runs of a row start at once. Runs that are not measured are
paused, so sides and conditions take turns on the same machine. Tokens are counted in the encoder, over whole steps.
Each cell is the median (minimum to maximum) over the rounds.
"""

import argparse
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from reporting import describe_run, format_header, format_line, format_median
from side_by_side import describe_machine, positive

SIDES = {"shared": {}, "spinning": {"GOMP_SPINCOUNT": "300000"}}
WORKS = ("pretraining", "fine-tuning", "predict")
# Seconds of a measurement and of the pause before it. The pause is longer than the watcher needs to notice a change.
WINDOW = {"tiny": 3.0, "mini": 3.0, "base": 4.0}
PAUSE = 2.5
LONGEST_STEP = 60.0  # seconds
LONG_TEXT = 400  # characters; more than 64 tokens
BATCH = {"tiny": 32, "mini": 32, "base": 2}
COPIES = 4000  # of the texts to predict; `tiny` predicts for two minutes
BUSY = [sys.executable, "-c", "while True: pass"]
RECORD = struct.Struct("dq")  # seconds, tokens
COLUMNS = (
    "model",
    "work",
    "side",
    "alone, tokens/s",
    "beside a busy process",
    "beside a second run",
    "alone / spinning",
)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo_dir", type=Path, required=True, help="output folder of `make demo`")
    parser.add_argument("--sizes", nargs="+", choices=WINDOW, default=list(WINDOW))
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--window", type=float, help="seconds of a measurement. Default: 3, for base 4")
    return parser.parse_args(argv)


def make_command(work: str, size: str, demo: Path, folder: Path) -> list[str]:
    """Returns the arguments of a `snugbert` command that runs until it is killed, and writes to `folder`."""
    model = f"--tokenizer_name {demo}/tokenizer --config_name {size}".split()
    endless = "--use_cpu true --bf16 false --max_steps 1000000 --save_strategy no --logging_steps 1000000"
    shape = f"--per_device_train_batch_size {BATCH[size]} --max_seq_length 64 --output_dir {folder}"
    training = [*endless.split(), *shape.split()]
    if work == "pretraining":
        optimizer = "" if size == "base" else "--optim muon --learning_rate 4e-3"
        return ["pretrain", *model, "--train_file", f"{demo}/text/train.txt", *optimizer.split(), *training]
    if work == "fine-tuning":
        return ["glue", *model, "--train_file", f"{demo}/task/train.csv", "--do_eval=false", *training]
    flags = f"--input_file {demo}/rows.csv --max_seq_length 64 --use_cpu true --output_file {folder}.jsonl"
    return ["predict", "--model_name_or_path", f"{demo}/{size}-classifier", *flags.split()]


def write_inputs(demo: Path, folder: Path, sizes: Sequence[str]) -> None:
    """Copies what the commands need to `folder`, with a classifier of each size and a long file to predict."""
    from transformers import AutoTokenizer

    from snugbert import SnugBertConfig, SnugBertForSequenceClassification

    for name in ("text", "task", "tokenizer"):
        shutil.copytree(demo / name, folder / name)
    header, *rows = (demo / "task/train.csv").read_text(encoding="utf-8").splitlines()
    # `predict` sorts texts by length. All of these are cut at 64 tokens, so that its speed is the same at all times.
    rows = [row for row in rows if len(row) > LONG_TEXT]
    (folder / "rows.csv").write_text("\n".join([header, *rows * COPIES]) + "\n", encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    for size in sizes:
        config = SnugBertConfig.from_size(size, vocab_size=len(tokenizer))
        SnugBertForSequenceClassification(config).save_pretrained(folder / f"{size}-classifier")
        tokenizer.save_pretrained(folder / f"{size}-classifier")


def count_tokens(log: Path, command: list[str]) -> int:
    """Runs a `snugbert` command. Appends the time and the tokens of each pass through the encoder to `log`."""
    import snugbert_cli
    from snugbert.modeling_snugbert import SnugBertEncoder

    forward = SnugBertEncoder.forward
    with log.open("ab", buffering=0) as stream:

        def counted(self, hidden_states, *args, **kwargs):  # type: ignore[no-untyped-def]
            stream.write(RECORD.pack(time.monotonic(), hidden_states.shape[:-1].numel()))
            return forward(self, hidden_states, *args, **kwargs)

        SnugBertEncoder.forward = counted  # type: ignore[method-assign]
        try:
            return snugbert_cli.main(command)
        finally:
            SnugBertEncoder.forward = forward  # type: ignore[method-assign]


class Run:
    """A process that can be paused. It is killed at the end of the `with` block.

    Args:
        command: what to run.
        environment: more environment variables.
        log: the file that `count_tokens` writes.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path):
        self.log, self._output = log, log.with_suffix(".txt").open("w+")
        self._process = subprocess.Popen(
            command, env=os.environ | environment, stdout=self._output, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def wait_for_steps(self, number: int) -> None:
        """Waits for the first steps, then pauses the process.

        Raises:
            SystemExit: it ended.
        """
        while not self.log.exists() or self.log.stat().st_size < number * RECORD.size:
            self._check_running()
            time.sleep(0.1)
        self.pause()

    def _check_running(self) -> None:
        if self._process.poll() is not None:
            self._output.seek(0)
            raise SystemExit(f"error: the command ended.\n{self._output.read()}")

    def pause(self) -> None:
        """Stops the process until the next `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the process."""
        self._process.send_signal(signal.SIGCONT)

    def _read_since(self, start: float) -> list[tuple[float, int]]:
        return [record for record in RECORD.iter_unpack(self.log.read_bytes()) if record[0] >= start]

    def measure(self, seconds: float) -> float:
        """Returns the tokens per second over the whole steps of the next `seconds`.

        Raises:
            SystemExit: the process ended, or a step takes too long.
        """
        start = time.monotonic()
        time.sleep(seconds)
        while len(records := self._read_since(start)) < 2:  # a step is longer
            self._check_running()
            if time.monotonic() > start + LONGEST_STEP:
                raise SystemExit(f"error: no whole step in {LONGEST_STEP} s.")
            time.sleep(0.1)
        return sum(tokens for _, tokens in records[:-1]) / (records[-1][0] - records[0][0])


def measure_row(
    start: Callable[[str, int], Run], busy: Run, rounds: int, window: float, pause: float = PAUSE
) -> dict[str, dict[str, list[float]]]:
    """Measures both sides alone and beside a busy process, and the side "shared" beside a second run.

    Returns:
        For each side and condition, the tokens per second of each round.
    """
    rates: dict[str, dict[str, list[float]]] = {side: {"alone": [], "busy": [], "second": []} for side in SIDES}
    with start("shared", 0) as shared, start("shared", 1) as second, start("spinning", 0) as spinning:
        for run in (shared, second, spinning):
            run.wait_for_steps(3)
        turns = [("alone", shared), ("alone", spinning), ("busy", shared), ("busy", spinning), ("second", shared)]
        others: dict[str, list[Run]] = {"alone": [], "busy": [busy], "second": [second]}
        for condition, run in turns * rounds:
            for each in (run, *others[condition]):
                each.resume()
            time.sleep(pause)
            rates["shared" if run is shared else "spinning"][condition].append(run.measure(window))
            for each in (run, *others[condition]):
                each.pause()
    return rates


def format_rows(size: str, work: str, rates: dict[str, dict[str, list[float]]]) -> str:
    """Formats the table's rows of a model and a work. Ratios are taken in the same round."""
    lines = []
    for side, conditions in rates.items():
        alone = conditions["alone"]
        pairs = ((conditions["busy"], alone), (conditions["second"], alone), (alone, rates["spinning"]["alone"]))
        ratios = [[value / base for value, base in zip(*pair, strict=False)] for pair in pairs]
        cells = [size, work, side, format_median(alone, 0), *(format_median(each) if each else "" for each in ratios)]
        lines.append(format_line(cells))
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Prints the table."""
    args = parse_arguments(argv)
    print(describe_run(__file__, argv, describe_machine("cpu")))
    print(format_header(COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_inputs(args.demo_dir, folder, args.sizes)
        for size in args.sizes:
            for work in args.works:

                def start(side: str, number: int, size: str = size, work: str = work) -> Run:
                    log = folder / f"{size}-{work}-{side}-{number}.log"
                    command = make_command(work, size, folder, log.with_suffix(""))
                    return Run([sys.executable, __file__, "--count", str(log), *command], SIDES[side], log)

                with Run(BUSY, {}, folder / "busy.log") as busy:
                    busy.pause()
                    rates = measure_row(start, busy, args.rounds, args.window or WINDOW[size])
                print(format_rows(size, work, rates), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        sys.exit(count_tokens(Path(sys.argv[2]), sys.argv[3:]))
    main(sys.argv[1:])
