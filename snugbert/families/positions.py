"""Extends learned position embeddings, so that a checkpoint reads longer texts.

In a trained BERT, one rotation approximately maps the row of each position to the next row. New rows continue this
rotation, so that the distance of two tokens has the same effect everywhere. Unlike in tiled tables (Beltagy et al.,
2020, "Longformer"), no position is a copy of another position. benchmarks/longer_positions.py compares the methods.
"""

import torch

from snugbert.errors import InputError
from snugbert.families.loading import GENERATOR_FOLDER
from snugbert.families.reading import Checkpoint

POSITIONS = "bert.embeddings.position_embeddings.weight"
# Rows at each end that are left out, because [CLS] and [SEP] are there. In MiniLM, rows 0, 510 and 511 have 5, 1.8 and
# 2 times the norm of other rows.
EDGE = 8
# Dimensions of the rotation. In MiniLM, 10 dimensions contain 94 % of the variance of the rows. 16, 32 and 64 predict
# held-out rows equally well. `--bigram_init` uses 32.
DIMENSIONS = 32


def extend_positions(checkpoint: Checkpoint, positions: int) -> None:
    """Extends a checkpoint to more positions, in place. Existing rows stay as they are.

    Args:
        checkpoint: the checkpoint. A note is added to it.
        positions: the new `max_position_embeddings`, without RoBERTa's rows for padding.
    """
    config, folder = checkpoint.config, checkpoint.folder
    before = config.max_position_embeddings
    if config.position_embedding_type == "relative":
        raise InputError(
            f"--max_position_embeddings: {folder} has relative positions, which have no limit. Remove the flag. The "
            "tokenizer's limit is `model_max_length` in tokenizer_config.json."
        )
    if positions < before:
        raise InputError(
            f"--max_position_embeddings {positions}: {folder} already has {before} positions. Use a larger number. "
            "For shorter inputs, set --max_seq_length in training."
        )
    if positions == before:
        return
    config.max_position_embeddings = positions
    if config.position_embedding_type == "sinusoidal":
        checkpoint.notes.append(f"Positions are computed, so the limit is now {positions} tokens.")
        return
    table = checkpoint.weights[POSITIONS]
    if not table.isfinite().all():
        raise InputError(
            f"{folder}: some position embeddings are NaN or infinite. The file is damaged. Get a new copy."
        )
    rows = table[len(table) - before :]  # RoBERTa's rows for padding come before them
    checkpoint.weights[POSITIONS] = torch.cat([table, continue_rows(rows, positions - before)])
    checkpoint.notes.append(
        f"Positions {before} to {positions - 1} are new. Outputs for up to {before} tokens stay the same. Continue "
        f"pretraining with --max_seq_length {positions} before you use longer texts."
    )
    if (folder / GENERATOR_FOLDER).is_dir():
        checkpoint.notes.append(
            f"ELECTRA's generator is not converted. Convert {folder / GENERATOR_FOLDER} in the same way, into the "
            f"folder {GENERATOR_FOLDER} of the new model."
        )


def continue_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Continues a table of position embeddings by the rotation that best maps each row to the next.

    The rotation is the solution of the orthogonal Procrustes problem (Schönemann, 1966) in the subspace of the largest
    singular values. Rotated rows neither grow nor shrink.

    Args:
        rows: the learned rows. *Shape:* (positions, E)
        count: number of rows to add.

    Returns:
        The new rows, in the dtype of the old rows. *Shape:* (`count`, E)
    """
    edge = min(EDGE, len(rows) // 4)
    learned = rows[edge : len(rows) - edge].double()
    basis = torch.linalg.svd(learned, full_matrices=False).Vh[: max(1, min(DIMENSIONS, len(learned) // 2))]
    states = learned @ basis.T
    left, _, right = torch.linalg.svd(states[:-1].T @ states[1:])
    rotation = left @ right
    state, added = states[-1], []
    for _ in range(edge + count):
        state = state @ rotation
        added.append(state)
    return (torch.stack(added)[edge:] @ basis).to(rows.dtype)
