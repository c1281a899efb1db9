"""Digests of examples, which detect changes."""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from snugbert.trainers.finetuning.task import FineTuningTask


def digest_examples(task: FineTuningTask) -> dict[str, str]:
    """Returns a digest of the features of each set."""
    sets = {"train": task.train_features, **{s.name: s.features for s in task.evaluation_sets}}
    return {f"{name} examples": digest_features(features) for name, features in sets.items() if features is not None}


def digest_features(dataset: Dataset) -> str:
    """Returns a digest of the numeric columns."""
    table = dataset.with_format("arrow")[:]
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        column = table[name].combine_chunks()
        while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            digest.update(pc.list_value_length(column).to_numpy(zero_copy_only=False).tobytes())
            column = pc.list_flatten(column)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            digest.update(name.encode() + column.to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()[:16]
