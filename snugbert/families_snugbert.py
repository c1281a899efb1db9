"""Names and configurations of the BERT family: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA and DeBERTa-v3.

These models have BERT's layers. DeBERTa-v3 adds relative positions. The weights have different names, and some
values are in transformers' code, not in configurations. The tables below translate names and values. The facts come
from transformers' `modeling_roberta.py`, `modeling_electra.py` and `modeling_deberta_v2.py`.
"""

from .versions_snugbert import WORKING_VERSIONS  # noqa: F401 (imported first, to report unsupported versions)

# isort: split
from typing import Any

# XLM-RoBERTa and CamemBERT are RoBERTa with other tokenizers.
ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
FAMILY_TYPES = (*ROBERTA_TYPES, "electra", "deberta-v2")

# Beginning of a weight's name in transformers -> in SnugBERT. The encoder's prefix comes last, after longer ones.
ROBERTA_NAMES = {
    "lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.decoder.": "cls.predictions.decoder.",
    "lm_head.bias": "cls.predictions.bias",
    "roberta.": "bert.",
}
ELECTRA_NAMES = {
    "generator_predictions.dense.": "cls.predictions.transform.dense.",
    "generator_predictions.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "generator_lm_head.": "cls.predictions.decoder.",
    "sequence_summary.summary.": "bert.pooler.dense.",
    "electra.": "bert.",
}
# Microsoft's files also contain the head of another objective and a table of positions that the model does not use.
# `pooler.` needs no entry: transformers adds the prefix, as in every file without prefixes.
DEBERTA_NAMES = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
    "mask_predictions.": "unused_predictions.",
    "deberta.embeddings.position_embeddings.": "unused_positions.",
    "deberta.": "bert.",
}
# Prefixes of DataParallel, of torch.compile, and of modules with a model inside. They can be nested.
WRAPPER_NAMES = {r"^(module\.|model\.|_orig_mod\.)+": ""}
# Additional names of sequence classifiers, matched first. The dense layer of the head takes the place of the pooler.
DENSE_CLASSIFIER_NAMES = {
    "roberta.pooler.": "unused_pooler.",
    "classifier.dense.": "bert.pooler.dense.",
    "classifier.out_proj.": "classifier.",
}


def _make_patterns(names: dict[str, str]) -> dict[str, str]:
    return {"^" + theirs.replace(".", r"\."): ours for theirs, ours in names.items()}


# `from_pretrained` applies all patterns to every checkpoint. So no pattern may match a name of BERT, or names of two
# families.
FAMILY_NAMES = _make_patterns(ROBERTA_NAMES | ELECTRA_NAMES | DEBERTA_NAMES) | {
    rf"\.attention\.self\.{name}_proj\.": f".attention.self.{name}." for name in ("query", "key", "value")
}
CLASSIFIER_NAMES = _make_patterns(DENSE_CLASSIFIER_NAMES)


def convert_family_config(values: dict[str, Any]) -> dict[str, Any]:
    """Converts the contents of a `config.json` of one of `FAMILY_TYPES` to SnugBERT's fields.

    Other configurations are returned as they are. Raises a ValueError if SnugBERT cannot express the model.
    """
    model_type = values.get("model_type")
    if model_type not in FAMILY_TYPES:
        return values
    if model_type == "deberta-v2":
        return _deberta_fields(values)
    if values.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"`position_embedding_type` {values['position_embedding_type']!r} is not supported. The only supported "
            "relative positions are DeBERTa-v3's."
        )
    fields = {name: value for name, value in values.items() if name != "model_type"}
    is_choice = str((values.get("architectures") or [""])[0]).endswith("ForMultipleChoice")
    fields |= {"classification_head": "dense", "prediction_act": "gelu"}
    if model_type == "electra":
        return fields | _electra_fields(fields, is_choice)
    return fields | _roberta_fields(fields, is_choice)


def _roberta_fields(fields: dict[str, Any], is_choice: bool) -> dict[str, Any]:
    pad_token_id = fields.get("pad_token_id", 1)
    if pad_token_id is None:
        raise ValueError("`pad_token_id` is missing. RoBERTa's positions start after this id.")
    return {
        # Defaults of RobertaConfig that differ from BERT's.
        "pad_token_id": pad_token_id,
        "bos_token_id": fields.get("bos_token_id", 0),
        "eos_token_id": fields.get("eos_token_id", 2),
        "vocab_size": fields.get("vocab_size", 50265),
        "position_embedding_type": "after_padding",
        "max_position_embeddings": fields.get("max_position_embeddings", 512) - pad_token_id - 1,
        "pooler_act": "tanh",
        # The head for multiple choice always uses `hidden_dropout_prob`.
        "classifier_dropout": None if is_choice else fields.get("classifier_dropout"),
    }


def _electra_fields(fields: dict[str, Any], is_choice: bool) -> dict[str, Any]:
    summary = {
        name: fields.pop(f"summary_{name}", default)
        for name, default in (("type", "first"), ("use_proj", True), ("activation", "gelu"), ("last_dropout", 0.1))
    }
    if is_choice and (summary["type"] != "first" or not summary["use_proj"]):
        raise ValueError(
            '`summary_type` must be "first" and `summary_use_proj` true. The multiple choice head reads the first '
            "token."
        )
    # AutoModelForPreTraining maps to two classes.
    names = {"ElectraForPreTraining": "SnugBertForReplacedTokenDetection"}
    return {
        "architectures": [names.get(name, name) for name in fields.get("architectures") or []],
        # Defaults of ElectraConfig (the small model) that differ from BERT's.
        "embedding_size": fields.get("embedding_size", 128),
        "hidden_size": fields.get("hidden_size", 256),
        "num_attention_heads": fields.get("num_attention_heads", 4),
        "intermediate_size": fields.get("intermediate_size", 1024),
        "pooler_act": summary["activation"] if is_choice else "gelu",
        "classifier_dropout": summary["last_dropout"] if is_choice else fields.get("classifier_dropout"),
    }


# Field -> the value in all released checkpoints of DeBERTa-v3, and DebertaV2Config's default. Other values would need
# other layers.
DEBERTA_SETTINGS: dict[str, tuple[Any, Any]] = {
    "relative_attention": (True, False),
    "position_biased_input": (False, True),
    "pos_att_type": (["c2p", "p2c"], []),
    "share_att_key": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
    "conv_kernel_size": (0, 0),
    "pooler_dropout": (0, 0),
}
# DebertaV2Config's defaults that differ from BERT's.
DEBERTA_DEFAULTS = {
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}


def _deberta_fields(values: dict[str, Any]) -> dict[str, Any]:
    fields = DEBERTA_DEFAULTS | {name: value for name, value in values.items() if name != "model_type"}
    for name, (released, default) in DEBERTA_SETTINGS.items():
        value = fields.pop(name, default)
        if name == "pos_att_type":
            value = sorted(value.replace(" ", "").lower().split("|") if isinstance(value, str) else value or [])
        if value != released:
            raise ValueError(
                f"`{name}` {value!r} is not supported. Expected {released!r}, as in all DeBERTa-v3 checkpoints."
            )
    hidden_size = fields["hidden_size"]
    sizes = {
        "embedding_size": hidden_size,
        "pooler_hidden_size": hidden_size,
        "attention_head_size": hidden_size // (fields["num_attention_heads"] or 1),
        "max_relative_positions": fields.get("max_position_embeddings", 512),
    }
    for name, size in sizes.items():
        value = fields.pop(name, None)
        if value not in (None, 0, -1, size):
            raise ValueError(f"`{name}` {value} is not supported. Expected {size}, to match the other sizes.")
    if not isinstance(fields.get("position_buckets"), int) or fields["position_buckets"] < 2:
        raise ValueError(
            "`position_buckets` must be at least 2. Relative positions without buckets are not supported."
        )
    fields.pop("legacy", None)  # the form of the masked token head. The names of the weights show it
    cls_dropout = fields.pop("cls_dropout", None)
    is_token_classifier = str((values.get("architectures") or [""])[0]).endswith("ForTokenClassification")
    return fields | {
        "position_embedding_type": "relative",
        "pooler_act": fields.pop("pooler_hidden_act", "gelu"),
        # The token classifier always uses `hidden_dropout_prob`.
        "classifier_dropout": None if is_token_classifier else cls_dropout,
    }
