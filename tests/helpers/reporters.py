"""Reads what TensorBoard, Weights & Biases (offline) and Trackio (on this machine) received."""

import json
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))  # do not import TensorFlow, which takes seconds

Points = dict[str, list[tuple[int, float]]]  # metric -> steps and values


def read_tensorboard(folder: Path) -> tuple[Points, dict[str, tuple[int, int, int]]]:
    """Returns the metrics, and for each image its step, width and height."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    metrics = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    images = {name: events.Images(name)[-1] for name in events.Tags()["images"]}
    return metrics, {name: (image.step, image.width, image.height) for name, image in images.items()}


def _read_records(file: Path) -> Iterator[bytes]:
    """Yields the records of a `.wandb` file: LevelDB's log format after a header of 7 bytes."""
    content, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the end of a block is padding
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or its last part
            yield record
            record = b""


def read_wandb(folder: Path) -> tuple[str, str, Points, dict[str, tuple[int, int, int]]]:
    """Returns id and name of an offline run, its metrics and its images, see [`read_tensorboard`]."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    records: list[Record] = []
    for _ in range(300):  # a busy service of W&B writes the last records after `finish` has returned
        with suppress(DecodeError):  # a record that is not complete yet
            records = [Record.FromString(content) for content in _read_records(file)]
        if records and records[-1].WhichOneof("record_type") in ("exit", "footer"):
            break
        time.sleep(0.1)
    run_id = name = ""
    metrics: Points = {}
    images = {}
    for record in records:
        if record.WhichOneof("record_type") == "run":
            run_id, name = record.run.run_id, record.run.display_name
        items = {(i.key, *i.nested_key): json.loads(i.value_json) for i in record.history.item}
        step = items.get(("", "train/global_step"), items.get(("train/global_step",), 0))
        for (*_, key, part), value in ((("", *keys), value) for keys, value in items.items()):
            if part == "path":
                width, height, size = (items["", key, name] for name in ("width", "height", "size"))
                assert (folder / "files" / value).stat().st_size == size
                images[key] = step, width, height
            else:
                metrics.setdefault(part, []).append((step, value))
    return run_id, name, metrics, images


def read_trackio(project: str) -> dict[str, tuple[Points, dict[str, tuple[int, int, int]]]]:
    """Returns metrics and images of each run, see [`read_tensorboard`]."""
    from PIL import Image
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.utils import MEDIA_DIR

    runs = {}
    for run in SQLiteStorage.get_runs(project):
        metrics: Points = {}
        images = {}
        for line in SQLiteStorage.get_logs(project, run):
            step = line.get("train/global_step", 0)
            for key, value in line.items():
                if isinstance(value, dict):
                    images[key] = step, *Image.open(MEDIA_DIR / value["file_path"]).size
                else:
                    metrics.setdefault(key, []).append((step, value))
        runs[run] = metrics, images
    return runs
