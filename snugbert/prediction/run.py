"""Streams a file through a model: reads windows of rows, predicts them, and appends the results in order.

The output is complete when `output_file` exists. Until then, it is in `output_file` with `.partial` appended, and a
second file records how much of it is done. The same command continues there.
"""

import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from snugbert.checkpoints import fetch_checkpoint
from snugbert.errors import InputError, format_count
from snugbert.prediction.arguments import PredictionArguments
from snugbert.prediction.predictors import Predictor, make_predictor
from snugbert.trainers.finetuning.results import write_atomically
from snugbert.trainers.log_lines import format_duration
from snugbert.trainers.rows import read_rows
from snugbert.trainers.text_lines import ReadingLog
from snugbert.writing import writing

logger = logging.getLogger(__name__)

# A window has at most this many rows and, for long texts, about this many characters. Texts of similar length share
# batches within a window, and after a kill a window is predicted again.
WINDOW_ROWS, WINDOW_CHARACTERS = 4096, 2**23
ROWS_TO_INSPECT = 100  # to find the columns of text
MOST_REPORTED = 20  # bad rows
PAUSE = 60  # seconds between progress lines in a log file

Row = tuple[dict[str, Any], Any]  # the values of a row, and what the predictor reads from them


class _BadRows(ReadingLog):
    """Reports the first bad rows as they are found."""

    def leave_out(self, source: Path | str, place: str, problem: str) -> None:
        super().leave_out(source, place, problem)
        if self.left_out <= MOST_REPORTED:
            logger.warning("left out %s, %s: %s", source, place, problem)


def predict_file(args: PredictionArguments) -> None:
    """Runs `snugbert predict`.

    Raises:
        InputError: the model or a row cannot be used, the output exists or belongs to other settings, or it cannot be
            written.
    """
    _check_output(args)  # before the model is loaded
    folder = fetch_checkpoint(
        str(args.model_name_or_path), revision=args.model_revision, token=args.token, cache_dir=args.cache_dir
    )
    rows = read_rows(Path(str(args.input_file)), log=ReadingLog("skip"))
    predictor = make_predictor(folder, args, [values for _, values in islice(rows, ROWS_TO_INSPECT)])
    write_predictions(args, predictor, folder)


def _check_output(args: PredictionArguments) -> Path:
    output = _name_output(args)
    if output.exists() and not args.overwrite_output_file:
        raise InputError(f"--output_file: {output} exists. Choose another file, or add --overwrite_output_file.")
    return output


def write_predictions(args: PredictionArguments, predictor: Predictor, folder: Path) -> None:
    """Predicts the rows of the input, and prints how many per second.

    Args:
        args: the arguments of the command.
        predictor: the model.
        folder: its folder.

    Raises:
        InputError: see [`predict_file`].
    """
    output, source = _check_output(args), Path(str(args.input_file))
    # Counting takes little time. It finds bad rows before hours of work, and makes shards equal.
    log = _BadRows(args.on_bad_text)
    total = sum(1 for _ in _read(source, predictor, log))
    if summary := log.summarize():
        logger.warning(summary)
    first, end = (total * part // args.num_shards for part in (args.shard_number - 1, args.shard_number))
    start = time.monotonic()
    with writing(output, "run the same command again"):
        done = _predict(args, output, predictor, (first, end), _describe_run(args, folder, source))
    seconds = time.monotonic() - start
    print(f"{output}: {format_count(end - first, 'row')}, {done / max(seconds, 1e-9):,.0f} rows/s")


def _name_output(args: PredictionArguments) -> Path:
    output = Path(str(args.output_file))
    if args.num_shards == 1:
        return output
    # As in prepared corpora. `cat` in the order of the names gives the rows in the order of the input.
    part = f"{args.shard_number - 1:05}-of-{args.num_shards:05}"
    return output.with_name(f"{output.stem}-{part}{output.suffix}")


def _describe_run(args: PredictionArguments, folder: Path, source: Path) -> dict[str, Any]:
    """Returns what the output depends on. Partial output is continued only if it is equal."""
    files = [source, *(file for file in sorted(folder.iterdir()) if file.is_file())]
    return {
        "settings": {
            name: getattr(args, name)
            for name in (
                "text_column_names",
                "max_seq_length",
                "doc_stride",
                "version_2_with_negative",
                "prompt_name",
                "on_bad_text",
                "shard",
                "max_batch_tokens",
                "bf16",
            )
        },
        "files": {str(file.resolve()): [file.stat().st_size, file.stat().st_mtime_ns] for file in files},
    }


def _read(source: Path, predictor: Predictor, log: ReadingLog) -> Iterator[Row]:
    """Yields the rows that can be read."""
    for row, values in read_rows(source, log=log):
        try:
            example = predictor.read(values)
        except InputError as error:
            log.leave_out(source, f"row {row}", str(error))
        else:
            yield values, example


def _predict(
    args: PredictionArguments,
    output: Path,
    predictor: Predictor,
    shard: tuple[int, int],
    description: dict[str, Any],
) -> int:
    """Predicts the rows of a shard that are not in the partial output, and returns their number.

    Args:
        args: the arguments.
        output: the file to write.
        predictor: the model.
        shard: the first row of the shard and its end, exclusive.
        description: see [`_describe_run`].
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    partial, state_file = (output.with_name(f"{output.name}.partial{suffix}") for suffix in ("", ".json"))
    with partial.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"--output_file: another process is writing {partial}. Wait until it ends.") from error
        state = _read_state(state_file, description, args.overwrite_output_file)
        if stream.seek(0, os.SEEK_END) < state["bytes"]:  # the file was removed, but not its state
            state |= {"rows": 0, "bytes": 0}
        stream.truncate(state["bytes"])
        first, end = shard
        before = state["rows"]
        if before:
            logger.info("continuing after %s in %s", format_count(before, "row"), partial)
        rows = islice(_read(Path(str(args.input_file)), predictor, ReadingLog(args.on_bad_text)), first + before, end)
        progress = _Progress(end - first, before)
        for window in _split_into_windows(rows):
            predictions = predictor.predict([example for _, example in window])
            lines = (
                json.dumps({**values, **prediction}, ensure_ascii=False) + "\n"
                for (values, _), prediction in zip(window, predictions, strict=True)
            )
            # JSON can contain half of a character pair ("\ud83d"), which UTF-8 cannot.
            stream.write("".join(lines).encode("utf-8", "backslashreplace"))
            stream.flush()
            os.fsync(stream.fileno())
            state["rows"] += len(window)
            state["bytes"] = stream.tell()
            write_atomically(state_file, json.dumps(state))
            progress.update(len(window))
        progress.close()
        partial.replace(output)
        state_file.unlink(missing_ok=True)
    return state["rows"] - before


def _read_state(file: Path, description: dict[str, Any], overwrite: bool) -> dict[str, Any]:
    """Returns the state of the partial output: `rows` and `bytes` that are done, and the description of the run."""
    nothing = {"rows": 0, "bytes": 0, **description}
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return nothing
    except ValueError as error:
        raise InputError(f"{file} is damaged ({error}). Remove it to start again.") from error
    if {name: state.get(name) for name in description} == json.loads(json.dumps(description)):
        return state
    if overwrite:
        return nothing
    settings = state.get("settings", {})
    changed = [f"--{name}" for name, value in description["settings"].items() if settings.get(name) != value]
    what = ", ".join(changed) or "the model or the input"
    raise InputError(f"{file} is from a run with a different {what}. Add --overwrite_output_file to start again.")


def _split_into_windows(rows: Iterator[Row]) -> Iterator[list[Row]]:
    window: list[Row] = []
    characters = 0
    for row in rows:
        window.append(row)
        characters += sum(len(value) for value in row[0].values() if isinstance(value, str | list))
        if len(window) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


class _Progress:
    """A progress bar on a terminal, or a line from time to time in a log file."""

    def __init__(self, total: int, done: int):
        self._bar = tqdm(desc="predicting", total=total, initial=done, unit=" rows", disable=None)
        self._total, self._before, self._done = total, done, done
        self._start = self._last = time.monotonic()

    def update(self, rows: int) -> None:
        self._bar.update(rows)
        self._done += rows
        now = time.monotonic()
        if self._bar.disable and now - self._last >= PAUSE:
            self._last = now
            left = (now - self._start) * (self._total - self._done) / (self._done - self._before)
            print(f"predicting: {self._done:,} of {self._total:,} rows, {format_duration(left)} left", file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
