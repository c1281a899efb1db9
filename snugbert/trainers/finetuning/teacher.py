"""The logits of a teacher, computed once and cached by content.

The cache is the folder `snugbert/teachers` in `HF_HOME` or `--cache_dir`. Each file contains the logits for `PART`
examples, without padding. Its name is a digest of the teacher's weights and configuration, the examples and the
precision. So a changed teacher or example gets a new file. After a kill, only the missing files are computed.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import nn

from snugbert.data.corpus.preparation import cache_folder
from snugbert.files import hash_json, replacing
from snugbert.tasks.outputs import PADDING, Logits
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.run_facts import digest_features
from snugbert.trainers.run.processes import wait_for_all

logger = logging.getLogger(__name__)

TEACHERS = "teachers"  # folder in the cache

PART = 16384  # examples in a file: some minutes of work on a CPU


def compute_items(trainer: FineTuningTrainer, features: Dataset, teacher: str, cache_dir: str | None) -> np.ndarray:
    """Returns the teacher's logits of all items of the training examples, see [`SoftTargets`]. *Shape:* (items, C)

    Args:
        trainer, teacher, cache_dir: see [`compute_logits`].
        features: the examples, with labels.
    """

    def select(logits: Logits, part: Dataset) -> tuple[np.ndarray, ...]:
        return (trainer.output.select_items(logits, part).astype(np.float32),)

    (parts,) = zip(*_compute_parts(trainer, features, teacher, cache_dir, "items", select), strict=True)
    return np.concatenate(parts)


def compute_logits(trainer: FineTuningTrainer, features: Dataset, teacher: str, cache_dir: str | None) -> Logits:
    """Returns the logits of the trainer's model for all features. Reads cached logits from the cache.

    Every process must call this. The first process reads and writes the cache, because machines may not share a disk.

    Args:
        trainer: a trainer with the teacher.
        features: the examples. Labels do not matter.
        teacher: the digest of the teacher.
        cache_dir: the folder of the cache. Default: `HF_HOME`.

    Returns:
        The logits, in the form of [`FineTuningTrainer.predict`].
    """

    def keep(logits: Logits, part: Dataset) -> tuple[np.ndarray, ...]:
        return logits if isinstance(logits, tuple) else (logits,)

    parts = _compute_parts(trainer, features, teacher, cache_dir, "logits", keep)
    joined = tuple(_concatenate(arrays) for arrays in zip(*parts, strict=True))
    return joined if len(joined) > 1 else joined[0]


def _compute_parts(
    trainer: FineTuningTrainer,
    features: Dataset,
    teacher: str,
    cache_dir: str | None,
    form: str,
    convert: Callable[[Logits, Dataset], tuple[np.ndarray, ...]],
) -> list[tuple[np.ndarray, ...]]:
    """Returns the converted logits of each part, computed or from the cache."""
    labels = [name for name in features.column_names if name in trainer.output.label_columns]
    # Labels matter only if they mark the items.
    keyed = [] if form == "items" and trainer.output.labels_mark_items else labels
    folder = cache_folder(cache_dir) / TEACHERS
    computed, results = 0, []
    for start in range(0, len(features), PART):
        part = features.select(range(start, min(start + PART, len(features))))
        key = [teacher, form, digest_features(part.remove_columns(keyed)), trainer.accelerator.mixed_precision]
        file = folder / f"{hash_json(key)}.safetensors"
        (known,) = broadcast_object_list([_read(file) if trainer.is_world_process_zero() else None])
        if known is None:
            known = convert(trainer.predict(part.remove_columns(labels)).predictions, part)
            computed += len(part)
            if trainer.is_world_process_zero():
                _write(file, known)
        results.append(known)
    wait_for_all()
    cached = len(features) - computed
    logger.info("teacher: logits of %d examples, %d from the cache (%s)", len(features), cached, folder)
    return results


def _read(file: Path) -> tuple[np.ndarray, ...] | None:
    """Reads the arrays of a file. None if the file is not in the cache, or is damaged."""
    try:
        arrays = load_file(file)
    except (OSError, SafetensorError):
        return None
    return tuple(arrays[name] for name in sorted(arrays))


def _write(file: Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes a whole file or nothing. If the disk is full, the logits are not cached."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, file.with_name(f"_{os.getpid()}_{file.name}")) as unfinished:
            save_file({str(index): np.ascontiguousarray(array) for index, array in enumerate(arrays)}, unfinished)
    except (OSError, SafetensorError) as error:
        logger.warning("the teacher's logits are not cached: %s", error)


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Joins predictions that may be padded to different lengths."""
    if arrays[0].ndim > 1:
        columns = max(array.shape[1] for array in arrays)
        arrays = [_pad(array, columns) for array in arrays]
    return np.concatenate(arrays)


def _pad(array: np.ndarray, columns: int) -> np.ndarray:
    width = [(0, 0), (0, columns - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, width, constant_values=PADDING)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Returns the number of parameters and their bytes."""
    parameters = list(model.parameters())
    return sum(parameter.numel() for parameter in parameters), sum(parameter.nbytes for parameter in parameters)
