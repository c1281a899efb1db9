"""Names and configurations of BERT's relatives: RoBERTa, XLM-RoBERTa, CamemBERT and ELECTRA.

These models have BERT's layers. Their weights have other names, and their configurations leave out what their code
fixes. The tables below translate both. The facts come from transformers' `modeling_roberta.py` and
`modeling_electra.py`.
"""

from .versions_snugbert import WORKING_VERSIONS  # noqa: F401 (imported first, to report unsupported versions)

# isort: split
from typing import Any

# XLM-RoBERTa and CamemBERT are RoBERTa with other tokenizers.
ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
FAMILY_TYPES = (*ROBERTA_TYPES, "electra")

# Beginning of a name in transformers -> in SnugBERT. The encoder's prefix goes last, because it begins other names.
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
# Additional names of sequence classifiers, which go first. The dense layer of the head takes the place of the pooler.
DENSE_CLASSIFIER_NAMES = {
    "roberta.pooler.": "unused_pooler.",
    "classifier.dense.": "bert.pooler.dense.",
    "classifier.out_proj.": "classifier.",
}


def _make_patterns(names: dict[str, str]) -> dict[str, str]:
    return {"^" + theirs.replace(".", r"\."): ours for theirs, ours in names.items()}


# For `from_pretrained`, which applies all of them to every checkpoint: no pattern matches a name of BERT, or a name of
# two families.
FAMILY_NAMES = _make_patterns(ROBERTA_NAMES | ELECTRA_NAMES)
CLASSIFIER_NAMES = _make_patterns(DENSE_CLASSIFIER_NAMES)


def convert_family_config(values: dict[str, Any]) -> dict[str, Any]:
    """Converts the contents of a `config.json` of RoBERTa, XLM-RoBERTa, CamemBERT or ELECTRA to SnugBERT's fields.

    Other configurations are returned as they are.

    Raises:
        ValueError: SnugBERT has no equal model.
    """
    model_type = values.get("model_type")
    if model_type not in FAMILY_TYPES:
        return values
    if values.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"`position_embedding_type` {values['position_embedding_type']!r} is not supported: SnugBERT has no "
            "relative positions."
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
        raise ValueError("`pad_token_id` is missing. RoBERTa's positions start after it.")
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
            '`summary_type` and `summary_use_proj` are not supported, except "first" and true: SnugBERT\'s multiple '
            "choice head reads the first token."
        )
    return {
        # Defaults of ElectraConfig (the small model) that differ from BERT's.
        "embedding_size": fields.get("embedding_size", 128),
        "hidden_size": fields.get("hidden_size", 256),
        "num_attention_heads": fields.get("num_attention_heads", 4),
        "intermediate_size": fields.get("intermediate_size", 1024),
        "pooler_act": (summary["activation"] or "linear") if is_choice else "gelu",
        "classifier_dropout": summary["last_dropout"] if is_choice else fields.get("classifier_dropout"),
    }
