"""Expresses a SnugBERT model as a stock model of transformers: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA
or DeBERTa-v3. Extends learned position embeddings, so that a checkpoint accepts longer texts.

The result gives the same outputs. A model that the family cannot express is refused. Notes list differences that
affect only training.
"""

import re
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedConfig

from snugbert.configuration_snugbert import compute_embedding_size
from snugbert.errors import InputError, format_count
from snugbert.families.loading import GENERATOR_FOLDER
from snugbert.families.reading import BIAS, CLASSES, WITHOUT_POOLER, Checkpoint
from snugbert.families_snugbert import (
    DEBERTA_SETTINGS,
    DENSE_CLASSIFIER_NAMES,
    ELECTRA_NAMES,
    FAMILY_TYPES,
    ROBERTA_NAMES,
    ROBERTA_TYPES,
)
from snugbert.modeling_snugbert import SnugBertSinusoidalPositions

BERT_HEADS = ("bert", "deberta-v2")  # no dropout before the pooler; layers and token head share an activation
# The masked token head is written with BERT's names, as in transformers. Released files use different names, which can
# also be read.
DEBERTA_STOCK_NAMES = {"pooler.": "bert.pooler.", "deberta.": "bert."}
POSITIONS = "bert.embeddings.position_embeddings.weight"
# Rows at each end that are left out, because they often belong to [CLS] and [SEP]. In MiniLM, rows 0, 510 and 511 have
# 5, 1.8 and 2 times the norm of other rows.
EDGE = 8
# Dimensions of the rotation. In MiniLM, 10 dimensions contain 94 % of the variance of the rows. 16, 32 and 64 predict
# held-out rows equally well. `--bigram_init` uses 32.
DIMENSIONS = 32
# Fields of a SnugBERT configuration that other families do not have, or whose values differ.
NOT_IN_STOCK = (
    "model_type",
    "architectures",
    "embedding_size",
    "position_embedding_type",
    "position_buckets",
    "pooler_act",
    "prediction_act",
    "classification_head",
)


def keep_encoder(checkpoint: Checkpoint) -> Checkpoint:
    """Returns a checkpoint with only the encoder, for families without the checkpoint's head."""
    weights = {name: tensor for name, tensor in checkpoint.weights.items() if name.startswith("bert.")}
    note = f"The head {checkpoint.head} was dropped. The result is the encoder alone."
    return replace(checkpoint, head="Model", weights=weights, notes=[*checkpoint.notes, note])


def express(checkpoint: Checkpoint, to: str, dtype: torch.dtype) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
    """Returns the configuration and the weights of a stock model in `dtype`. Adds to the notes of the checkpoint."""
    config, head = checkpoint.config, checkpoint.head
    if obstacle := _find_obstacle(checkpoint, to):
        others = _find_families(checkpoint)
        remedy = f"Use `snugbert convert --to {others[0]}`." if others else "No stock model supports this checkpoint."
        raise InputError(f"{checkpoint.folder}: {obstacle} {remedy}")
    weights, rows = _convert_positions(checkpoint, to, dtype)
    fields = {name: value for name, value in config.to_dict().items() if name not in NOT_IN_STOCK}
    fields["max_position_embeddings"] = rows
    if to == "electra":
        fields["embedding_size"] = compute_embedding_size(config)
        weights.pop(BIAS, None)  # the decoder has the same bias
    elif to == "deberta-v2":
        fields |= _deberta_fields(checkpoint)
        del fields["classifier_dropout"]
    if head == "ForMultipleChoice" and to == "electra":
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        fields |= {
            "summary_activation": config.pooler_act,
            "summary_last_dropout": dropout,
            "classifier_dropout": None,
        }
    elif head == "ForMultipleChoice" and to in ROBERTA_TYPES and config.classifier_dropout is not None:
        checkpoint.notes.append(f"{CLASSES[to][head].__name__} ignores `classifier_dropout`. This changes training.")
    elif head == "ForSequenceClassification" and (config.classification_head == "dense") == (to in BERT_HEADS):
        less_or_more = "no dropout" if to in BERT_HEADS else "dropout"
        checkpoint.notes.append(
            f"{CLASSES[to][head].__name__} has {less_or_more} before its first dense layer. This changes training."
        )
    names = _stock_names(to, head)
    weights = {_rename(name, names): tensor for name, tensor in weights.items()}
    if to == "deberta-v2":
        projection = re.compile(r"\.attention\.self\.(query|key|value)\.")
        weights = {projection.sub(r".attention.self.\1_proj.", name): tensor for name, tensor in weights.items()}
    return CLASSES[to][head].config_class.from_dict(fields), weights  # type: ignore[union-attr]


def _deberta_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    config, head = checkpoint.config, checkpoint.head
    fields = {name: released for name, (released, _) in DEBERTA_SETTINGS.items()}
    fields |= {"position_buckets": config.position_buckets}
    if checkpoint.has_pooler:
        fields["pooler_hidden_act"] = config.pooler_act
    if config.classifier_dropout is not None:
        fields["cls_dropout"] = config.classifier_dropout
        if head == "ForTokenClassification":
            checkpoint.notes.append("DebertaV2ForTokenClassification ignores `cls_dropout`. This changes training.")
    return fields


def choose_family(checkpoint: Checkpoint) -> str:
    """Returns the first family that can express the model. BERT is tried first."""
    families = _find_families(checkpoint)
    if not families:
        is_relative = checkpoint.config.position_embedding_type == "relative"
        obstacle = _find_obstacle(checkpoint, "deberta-v2" if is_relative else "bert")
        raise InputError(f"{checkpoint.folder}: {obstacle} No stock model supports this checkpoint.")
    return families[0]


def _find_families(checkpoint: Checkpoint) -> list[str]:
    return [kind for kind in ("bert", *FAMILY_TYPES) if _find_obstacle(checkpoint, kind) is None]


def _find_obstacle(checkpoint: Checkpoint, to: str) -> str | None:
    """Returns a sentence on why the family cannot express the model; None if it can."""
    config, head = checkpoint.config, checkpoint.head
    if head not in CLASSES[to]:
        return f"{to} has no {head}."
    stock = CLASSES[to][head].__name__
    is_relative = config.position_embedding_type == "relative"
    if is_relative and to != "deberta-v2":
        return f"the model has relative positions, but {stock} has none."
    if to == "deberta-v2" and not is_relative:
        return f"the model has no relative positions, but {stock} needs them."
    size = compute_embedding_size(config)
    if to != "electra" and size != config.hidden_size:
        return f"the embeddings have size {size} and the layers {config.hidden_size}. {stock} needs equal sizes."
    if to in WITHOUT_POOLER and head == "Model" and checkpoint.has_pooler:
        return (
            f"{stock} has no pooler. Load SnugBertModel with `add_pooling_layer=False`, save it, and convert that "
            "folder."
        )
    any_act = to == "deberta-v2" or (to == "electra" and head == "ForMultipleChoice")
    pooler_act = "gelu" if to == "electra" else "tanh"
    if checkpoint.has_pooler and not any_act and config.pooler_act != pooler_act:
        return f"the pooler of this {head} uses {config.pooler_act}, but {stock} uses {pooler_act}."
    prediction_act = config.prediction_act or config.hidden_act
    stock_act = config.hidden_act if to in BERT_HEADS else "gelu"
    if BIAS in checkpoint.weights and prediction_act != stock_act:
        return f"the masked token head uses {prediction_act}, but {stock} uses {stock_act}."
    if to in ROBERTA_TYPES and config.pad_token_id is None:
        return f"positions of {stock} start after the padding id. Add `pad_token_id` to config.json."
    return None


def _convert_positions(checkpoint: Checkpoint, to: str, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], int]:
    """Returns the weights with the family's table of positions, and the number of its rows."""
    config, weights = checkpoint.config, dict(checkpoint.weights)
    if config.position_embedding_type == "relative":  # the table of relative positions belongs to the encoder
        return weights, config.max_position_embeddings
    if config.position_embedding_type == "sinusoidal":
        if dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"{checkpoint.folder}: {to} stores sinusoidal positions as weights, and {dtype} would round them. Add "
                "--dtype float32."
            )
        weights[POSITIONS] = SnugBertSinusoidalPositions(config)(torch.arange(config.max_position_embeddings))
        checkpoint.notes.append("Sinusoidal positions became weights. Training would change them.")
    table = weights[POSITIONS]
    if (config.position_embedding_type == "after_padding") == (to in ROBERTA_TYPES):
        return weights, len(table)
    assert config.pad_token_id is not None  # checked
    padding_rows = config.pad_token_id + 1
    rows = format_count(padding_rows, "row")
    if to in ROBERTA_TYPES:
        table = torch.cat([table.new_zeros(padding_rows, table.shape[1]), table])
        checkpoint.notes.append(f"Added {rows} for padding to the positions. Left padding no longer changes outputs.")
    else:
        table = table[padding_rows:].clone()
        checkpoint.notes.append(f"Removed {rows} for padding from the positions. Left padding now changes outputs.")
    return weights | {POSITIONS: table}, len(table)


def _stock_names(to: str, head: str) -> dict[str, str]:
    """Returns the table of names of a family and head: beginning of a name in transformers -> in SnugBERT."""
    if to == "bert":
        return {}
    if to == "deberta-v2":
        return DEBERTA_STOCK_NAMES
    names = ELECTRA_NAMES if to == "electra" else ROBERTA_NAMES
    return DENSE_CLASSIFIER_NAMES | names if head == "ForSequenceClassification" else names


def _rename(name: str, names: dict[str, str]) -> str:
    for theirs, ours in names.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


# --- more positions -------------------------------------------------------------------------------------------------
#
# In a trained BERT, one rotation approximately maps the row of each position to the next row. New rows continue this
# rotation, so that the distance between two tokens has the same effect everywhere. Unlike in tiled tables (Beltagy et
# al., 2020, "Longformer"), no position is a copy of another position. benchmarks/results has the comparison.


def extend_positions(checkpoint: Checkpoint, positions: int) -> None:
    """Sets a checkpoint's `max_position_embeddings` to `positions`, in place. Existing rows do not change."""
    config, folder = checkpoint.config, checkpoint.folder
    before = config.max_position_embeddings
    is_relative = config.position_embedding_type == "relative"
    if is_relative or positions < before:
        limit = "relative positions, which have no limit" if is_relative else f"{before} positions"
        raise InputError(
            f"--max_position_embeddings {positions}: {folder} already has {limit}. For shorter inputs, set "
            "--max_seq_length in training, or `model_max_length` in tokenizer_config.json."
        )
    if positions == before:
        return
    config.max_position_embeddings = positions
    if config.position_embedding_type == "sinusoidal":
        checkpoint.notes.append(f"Positions are computed, so the limit is now {positions} tokens.")
        return
    table = checkpoint.weights[POSITIONS]
    rows = table[len(table) - before :]  # without RoBERTa's rows for padding, which come first
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
    singular values. Rotated rows neither grow nor shrink. *Shape:* (positions, E) -> (`count`, E)
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
