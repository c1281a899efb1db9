"""Streams a file through a model: reads windows of rows, predicts them, and appends the results in order.

The output is complete when `output_file` exists. Until then, the rows are in a file with `.partial` appended to the
name, and a second file counts them. Run the same command again to continue.
"""

import gc
import json
import logging
import os
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import IO, Any

import torch
from transformers.utils import logging as transformers_logging

from snugbert.continuation import check_continuation, make_record
from snugbert.data.text_lines import ReadingLog
from snugbert.errors import InputError, format_count
from snugbert.families.reading import fetch_checkpoint
from snugbert.files import explaining_failed_writes, lock_file, read_json, write_atomically
from snugbert.prediction.formats import Format, make_format
from snugbert.prediction.make_predictor import make_predictor
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.prediction.predictor import choose_device
from snugbert.progress import Progress
from snugbert.shared_cores import share_cores
from snugbert.storage.uploads import is_stored, publish_file
from snugbert.tasks.labeled_texts import ROWS_TO_INSPECT
from snugbert.trainers.run.log import set_up_logging

logger = logging.getLogger(__name__)

# A window has at most this many rows and, for long texts, about this many characters. Texts of similar length share
# batches within a window. After a kill, the last window is predicted again.
WINDOW_ROWS, WINDOW_CHARACTERS = 4096, 2**20
MOST_REPORTED = 20  # bad rows

PARTIAL = ".partial"
START_AGAIN = "Add --overwrite_output_file to start again."

Row = tuple[dict[str, Any], Any]  # the values of a row, and the example that the predictor reads from them
MODEL_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin", "*.onnx", "*.xml", "*.data")
# Arguments that change the output.
SETTINGS = (
    "text_column_names",
    "max_seq_length",
    "doc_stride",
    "version_2_with_negative",
    "prompt_name",
    "abstain_below",
    "on_bad_text",
    "shard",
    "max_batch_tokens",
    "bf16",
)


def predict_file(args: PredictionArguments) -> None:
    """Predicts every row of a file. This is `snugbert predict`."""
    set_up_logging()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # the bar for reading weights
    share_cores()
    _check_output(args)  # before the model is loaded
    folder = fetch_checkpoint(str(args.model_name_or_path), **args.hub)
    data = make_format(args)
    rows = [values for _, values in islice(data.read(ReadingLog(args.on_bad_text)), ROWS_TO_INSPECT)]
    if "LOCAL_RANK" in os.environ and choose_device(args.use_cpu).type != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    predictor = make_predictor(folder, args, rows)
    gc.freeze()  # so that the garbage collector skips the modules and the model
    write_predictions(args, data, predictor, folder)


def _check_output(args: PredictionArguments) -> None:
    output = _name_output(args)
    if (output.exists() or is_stored(output)) and not args.overwrite_output_file:
        raise InputError(f"--output_file: {output} exists. Choose another file, or add --overwrite_output_file.")


def write_predictions(args: PredictionArguments, data: Format, predictor: Any, folder: Path) -> None:
    """Predicts the rows of the input with the model in a folder, and prints rows per second."""
    output, source = _name_output(args), Path(str(args.input_file))
    # Reading all rows first finds bad rows before hours of work. The number of rows decides where shards begin.
    logger.info("reading %s", source)
    numbers = count(1)

    def report(description: str) -> None:
        if next(numbers) <= MOST_REPORTED:
            logger.warning("bad row: %s", description)

    log = ReadingLog(args.on_bad_text, report)
    total = empty = 0
    for _, example in _read(data, predictor, log):
        total += 1
        empty += isinstance(example, list) and not any(str(text).strip() for text in example)
    if empty:
        logger.warning("%s: empty text in %s. These rows are predicted, too.", source, format_count(empty, "row"))
    if summary := log.summarize():
        logger.warning(summary)
    if not total:
        raise InputError(f"--input_file: {source} has no rows{' that can be read' if summary else ''}.")
    shard = (total * (args.shard_number - 1) // args.num_shards, total * args.shard_number // args.num_shards)
    start = time.monotonic()
    # The lock keeps other processes from writing the partial output.
    with lock_file(_partial(output, ".lock"), seconds=0), _partial(output).open("ab") as stream:
        _check_output(args)  # again, because another process may have finished the output
        record = _continue_partial(output, stream, _list_settings(args, folder, source), args.overwrite_output_file)
        rows = islice(_read(data, predictor, ReadingLog(args.on_bad_text)), shard[0] + record["rows"], shard[1])
        done = _predict(args, data, stream, predictor, _split_into_windows(rows), record, shard)
        publish_file(_partial(output), output)
        _partial(output, ".json").unlink(missing_ok=True)
    seconds = time.monotonic() - start
    if truncation := predictor.describe_truncation():
        logger.info(truncation)
    print(f"{output}: {format_count(shard[1] - shard[0], 'row')}, {done / max(seconds, 1e-9):,.0f} rows/s")


def _name_output(args: PredictionArguments) -> Path:
    output = Path(str(args.output_file))
    if args.num_shards == 1:
        return output
    # Named as in prepared corpora. `cat` in the order of the names keeps the order of the rows.
    part = f"{args.shard_number - 1:05}-of-{args.num_shards:05}"
    return output.with_name(f"{output.stem}-{part}{output.suffix}")


def _partial(output: Path, suffix: str = "") -> Path:
    return output.with_name(f"{output.name}{PARTIAL}{suffix}")


def _list_settings(args: PredictionArguments, folder: Path, source: Path) -> dict[str, Any]:
    """Returns everything that the output depends on. Files are identified by size and time."""
    files = [file for pattern in MODEL_FILES for file in sorted(folder.rglob(pattern)) if PARTIAL not in file.name]
    return {
        **{f"--{name}": getattr(args, name) for name in SETTINGS},
        "device": str(choose_device(args.use_cpu)),
        "--input_file": _list_versions([source]),
        "--model_name_or_path": _list_versions(files),
    }


def _list_versions(files: list[Path]) -> dict[str, list[int]]:
    return {str(file.resolve()): [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def _read(data: Format, predictor: Any, log: ReadingLog) -> Iterator[Row]:
    """Yields the rows that can be read."""
    for place, values in data.read(log):
        try:
            example = predictor.read(values)
        except InputError as error:
            log.leave_out(data.source, place, str(error))
        else:
            yield values, example


def _predict(
    args: PredictionArguments,
    data: Format,
    stream: IO[bytes],
    predictor: Any,
    windows: Iterator[list[Row]],
    record: dict[str, Any],
    shard: tuple[int, int],
) -> int:
    """Predicts the rows of a shard that are not in the partial output `stream`, and returns their number."""
    output = _name_output(args)
    first, end = shard
    before = record["rows"]
    if before:
        logger.info("continuing after %s in %s", format_count(before, "row"), _partial(output))
    with Progress("predicting", end - first, "rows", before) as progress:
        for window in windows:
            predictions = predictor.answer([example for _, example in window])
            results = [values | prediction for (values, _), prediction in zip(window, predictions, strict=True)]
            # Only the first shard has a header, so that the shards can be joined.
            head = data.write_head(results[0]) if first + record["rows"] == 0 else ""
            encoded = "".join([head, *map(data.write, results)]).encode()
            with explaining_failed_writes(output, "run the same command again"):
                stream.write(encoded)
                stream.flush()
                os.fsync(stream.fileno())
                record["rows"] += len(window)
                record["bytes"] += len(encoded)
                write_atomically(_partial(output, ".json"), json.dumps(record))
            progress.move_to(record["rows"])
    if record["rows"] != end - first:
        raise InputError(f"--input_file: {args.input_file} changed while it was read. Run the same command again.")
    return record["rows"] - before


def _continue_partial(output: Path, stream: IO[bytes], settings: dict[str, Any], overwrite: bool) -> dict[str, Any]:
    """Cuts the partial output `stream` after its last complete window. Returns its record.

    The record counts the `rows` and `bytes` of complete windows. A number of lines would not suffice: a cell can have
    line breaks, and a sentence has a line per word. With `overwrite`, output that cannot be continued is removed.
    """
    record = make_record("prediction", settings) | {"rows": 0, "bytes": 0}
    file = _partial(output, ".json")
    if file.exists():
        try:
            stored = read_json(file)
            check_continuation(stored, "prediction", settings, f"--output_file: {file}", START_AGAIN)
            if stored["bytes"] > os.fstat(stream.fileno()).st_size:
                raise InputError(f"--output_file: {_partial(output)} is damaged. {START_AGAIN}")
            record = stored
        except InputError:
            if not overwrite:
                raise
    stream.truncate(record["bytes"])
    return record


def _split_into_windows(rows: Iterator[Row]) -> Iterator[list[Row]]:
    window: list[Row] = []
    characters = 0
    for row in rows:
        window.append(row)
        characters += sum(len(str(value)) for value in row[0].values())
        if len(window) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
