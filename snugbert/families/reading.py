"""Reads checkpoints of SnugBERT, the BERT family and TensorFlow as SnugBERT weights and a configuration.

SnugBERT uses BERT's parameter names. The tables below rename the weights of old BERT files, DistilBERT and Google's
TensorFlow release. `families_snugbert.py` has the tables of RoBERTa, ELECTRA and DeBERTa. Nothing is guessed: missing
weights, unknown weights and wrong shapes are errors.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig, PreTrainedModel

import snugbert
from snugbert.configuration_snugbert import SnugBertConfig, compute_head_size
from snugbert.errors import InputError, join_lines, shorten
from snugbert.families.loading import SENTENCEPIECE_FILES, check_repository
from snugbert.families.weight_files import (
    NOT_NEEDED,
    find_prefix,
    find_tensorflow_prefix,
    read_tensorflow,
    read_weights,
)
from snugbert.families_snugbert import CLASSIFIER_NAMES, FAMILY_NAMES, FAMILY_TYPES
from snugbert.files import read_json

# Head -> its parts in addition to the encoder.
PARTS: dict[str, set[str]] = {
    "Model": set(),
    "ForPreTraining": {"cls.predictions", "cls.seq_relationship"},
    "ForReplacedTokenDetection": {"discriminator_predictions"},
    "ForMaskedLM": {"cls.predictions"},
    "ForNextSentencePrediction": {"cls.seq_relationship"},
    "ForSequenceClassification": {"classifier"},
    "ForTokenClassification": {"classifier"},
    "ForQuestionAnswering": {"qa_outputs"},
    "ForMultipleChoice": {"classifier"},
}
# Kind of checkpoint -> the beginning of its class names in transformers. Stock BERT runs weights from TensorFlow.
STOCK_NAMES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "electra": "Electra",
    "deberta-v2": "DebertaV2",
    "tensorflow": "Bert",
}


class DebertaV2ForMaskedLM(transformers.DebertaV2ForMaskedLM):
    """transformers' class, fixed for 5.17 to 5.19, which tie a weight that Microsoft's files do not contain."""

    def post_init(self) -> None:
        """Ties no weights in Microsoft's head, which reads the word embeddings itself."""
        if not self.config.legacy:
            self._tied_weights_keys = {}
        super().post_init()


# Kind of checkpoint -> head -> model class.
CLASSES: dict[str, dict[str, type[PreTrainedModel]]] = {
    "snugbert": {head: getattr(snugbert, f"SnugBert{head}") for head in PARTS},
    **{
        kind: {
            head: getattr(transformers, f"{name}{head}") for head in PARTS if hasattr(transformers, f"{name}{head}")
        }
        for kind, name in STOCK_NAMES.items()
    },
}
CLASSES["deberta-v2"]["ForMaskedLM"] = DebertaV2ForMaskedLM
# ELECTRA's pretraining model is the discriminator.
CLASSES["electra"]["ForReplacedTokenDetection"] = CLASSES["electra"].pop("ForPreTraining")
# Name of a model class -> its head.
HEADS_BY_CLASS = {model_class.__name__: head for classes in CLASSES.values() for head, model_class in classes.items()}
MODEL_TYPES = ("snugbert", "bert", "distilbert", *FAMILY_TYPES)

# Pattern -> replacement. All are applied to every name, in order.
BERT_NAMES = (
    (r"^(embeddings|embeddings_project|encoder|pooler)\.", r"bert.\1."),  # files of the bare encoder
    (r"\.gamma$", ".weight"),  # files from 2018 and 2019
    (r"\.beta$", ".bias"),
)
DISTILBERT_NAMES = (
    (r"^(distilbert\.)?(embeddings|transformer)\.", r"bert.\2."),
    (r"^bert\.transformer\.layer\.", "bert.encoder.layer."),
    (r"\.attention\.q_lin\.", ".attention.self.query."),
    (r"\.attention\.k_lin\.", ".attention.self.key."),
    (r"\.attention\.v_lin\.", ".attention.self.value."),
    (r"\.attention\.out_lin\.", ".attention.output.dense."),
    (r"\.sa_layer_norm\.", ".attention.output.LayerNorm."),
    (r"\.ffn\.lin1\.", ".intermediate.dense."),
    (r"\.ffn\.lin2\.", ".output.dense."),
    (r"\.output_layer_norm\.", ".output.LayerNorm."),
    (r"^pre_classifier\.", "bert.pooler.dense."),
    (r"^vocab_transform\.", "cls.predictions.transform.dense."),
    (r"^vocab_layer_norm\.", "cls.predictions.transform.LayerNorm."),
    (r"^vocab_projector\.", "cls.predictions.decoder."),
)
TENSORFLOW_NAMES = (
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"^cls/seq_relationship/output_weights$", "cls/seq_relationship/weight"),
    (r"^cls/seq_relationship/output_bias$", "cls/seq_relationship/bias"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/(kernel|gamma)$", "/weight"),  # read_tensorflow transposes kernels
    (r"/beta$", "/bias"),
    (r"/", "."),
)
NAMES_BY_KIND = {"distilbert": DISTILBERT_NAMES, "tensorflow": TENSORFLOW_NAMES}

POOLER = "bert.pooler."
WITHOUT_POOLER = ("distilbert", "electra", "deberta-v2")  # model types whose encoder never has a pooler
UNUSED = "unused_"  # prefix that `families_snugbert` gives to weights that no head uses
WORDS = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
PROJECTION = "cls.predictions.decoder.weight"
BIAS, DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"

DISTILBERT_FIELDS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# DistilBERT's settings that change no outputs. `sinusoidal_pos_embds` only sets initial values. BERT's question
# answering head has no dropout.
DISTILBERT_ONLY = ("model_type", "sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_")


@dataclass
class Checkpoint:
    """A checkpoint with SnugBERT's parameter names."""

    folder: Path
    kind: str  # a key of `CLASSES`: the model type, or "tensorflow"
    values: dict[str, Any]  # content of the configuration file. `legacy` is set from the weights' names
    config: SnugBertConfig
    head: str  # for example "ForMaskedLM"; "Model" for the bare encoder
    # All weights of `SnugBert{head}`, in the file's dtype. Names of encoder weights start with `bert.` even for the
    # bare encoder.
    weights: dict[str, torch.Tensor]
    notes: list[str] = field(default_factory=list)
    prefix: str = ""  # prefix of all weight names in the file, which the names in `weights` do not include

    @property
    def has_pooler(self) -> bool:
        """Whether the weights include a pooler, which may be the dense layer of a classifier."""
        return any(name.startswith(POOLER) for name in self.weights)

    def options(self, kind: str) -> dict[str, Any]:
        """Returns keyword arguments of the model class of a kind, in addition to the configuration."""
        is_optional = self.head == "Model" and kind not in WITHOUT_POOLER
        return {"add_pooling_layer": False} if is_optional and not self.has_pooler else {}


def fetch_checkpoint(name: str, **hub: Any) -> Path:
    """Returns the folder of a checkpoint, or the prefix of its TensorFlow files. Downloads it if it is on the Hub."""
    if Path(name).exists() or Path(f"{name}.index").exists():
        return Path(name)
    check_repository(name, **hub)
    # The folders of sentence-transformers' modules, such as 1_Pooling, begin with a digit.
    download = functools.partial(snapshot_download, name, ignore_patterns="[!0-9]*/*", **hub)
    files = ["*.json", "*.txt", *SENTENCEPIECE_FILES, "model*.safetensors", "README.md", "[0-9]*_[A-Z]*/*"]
    folder = Path(download(allow_patterns=files))
    if not any(folder.glob("model*.safetensors")):
        download(allow_patterns="pytorch_model*.bin")
    return folder


def read_checkpoint(path: Path, encoder_only: bool = False) -> Checkpoint:
    """Reads a checkpoint. `encoder_only`: whether to read only the encoder, even if config.json declares a head."""
    prefix, shared = find_tensorflow_prefix(path), ""
    file = path / "config.json" if prefix is None else prefix.parent / "bert_config.json"
    values = read_json(file)
    if prefix is not None:
        kind, tensors = "tensorflow", read_tensorflow(prefix)
    else:
        # Google's release has no model type in its configuration.
        kind = values.get("model_type") or ("bert" if "num_attention_heads" in values else "unknown")
        if kind not in MODEL_TYPES:
            raise InputError(
                f"{file}: unsupported model type {kind!r}. Supported: {', '.join(MODEL_TYPES)}, and the TensorFlow "
                "release of BERT."
            )
        tensors = read_weights(path)
        shared = find_prefix(tensors)
        tensors = {name.removeprefix(shared): tensor for name, tensor in tensors.items()}
        if any(name.startswith("lm_predictions.") for name in tensors):
            values["legacy"] = False  # only the names of the weights show which masked token head a DeBERTa has
    origin = _rename(kind, tensors)
    weights = {name: tensors[original] for name, original in origin.items()}
    declared = "Model" if encoder_only else _read_declared_head(kind, values, file)
    head = "Model" if encoder_only else _find_head(kind, declared, weights, file)
    if encoder_only:
        weights = {name: tensor for name, tensor in weights.items() if name.startswith("bert.")}
    config = _convert_config(kind, values, head, file)
    checkpoint = Checkpoint(file.parent, kind, values, config, head, weights, prefix=shared)
    if shared:
        checkpoint.notes.append(f"The prefix {shared} was dropped from the weight names.")
    if declared not in (None, head):
        checkpoint.notes.append(f"config.json declares {declared}, but the weights belong to {head}.")
    _add_implied_weights(checkpoint)
    _check_weights(checkpoint, origin)
    return checkpoint


def build_model(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype,
    options: dict[str, Any],
) -> PreTrainedModel:
    """Builds a model of a class in `CLASSES`.

    Names of encoder weights start with the prefix of the class even for the bare encoder, as in [`Checkpoint`].
    """
    if any(model_class is classes["Model"] for classes in CLASSES.values()):
        prefix = f"{model_class.base_model_prefix}."
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return model_class.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, **options)


# --- names, heads and configurations ----------------------------------------------------------------------------


def _rename(kind: str, names: Iterable[str]) -> dict[str, str]:
    """Returns a dictionary that maps SnugBERT's name of each weight to its name in the file."""
    is_dense_classifier = any(name.startswith("classifier.out_proj.") for name in names)
    family_names = CLASSIFIER_NAMES | FAMILY_NAMES if is_dense_classifier else FAMILY_NAMES
    patterns = NAMES_BY_KIND.get(kind, (*family_names.items(), *BERT_NAMES))
    origin = {}
    for name in names:
        if not re.search(NOT_NEEDED, name):
            new = name
            for pattern, replacement in patterns:
                new = re.sub(pattern, replacement, new)
            origin[new] = name
    return origin


def _read_declared_head(kind: str, values: dict[str, Any], file: Path) -> str | None:
    """Reads the head from the configuration's `architectures`. None if this entry is missing, as in Google's release.

    The class may be of another family, because some files of CamemBERT name RoBERTa's classes.
    """
    architectures = values.get("architectures")
    if not architectures:
        return None
    name = str(architectures[0]) if isinstance(architectures, list) else str(architectures)
    head = HEADS_BY_CLASS.get(name)
    if head in CLASSES[kind]:
        return head
    known = ", ".join(model_class.__name__ for model_class in CLASSES[kind].values())
    raise InputError(f"{file}: unsupported architecture {name}. Supported: {known}.")


def _find_head(kind: str, declared: str | None, weights: dict[str, torch.Tensor], file: Path) -> str:
    """Returns the declared head, unless the weights belong to a head with more parts."""
    parts = {part for part in set().union(*PARTS.values()) for name in weights if name.startswith(f"{part}.")}
    if declared is not None and not PARTS[declared] < parts:
        return declared
    # Google's BERT on the Hub declares BertForMaskedLM, but also contains the next-sentence head.
    heads = [head for head in CLASSES[kind] if PARTS[head] == parts]
    if len(heads) == 1:
        return heads[0]
    if declared is None:
        classes = " or ".join(CLASSES[kind][head].__name__ for head in heads) or "no supported architecture"
        raise InputError(f'{file}: no "architectures". The weights match {classes}. Add the right class.')
    return declared


def _convert_config(kind: str, values: dict[str, Any], head: str, file: Path) -> SnugBertConfig:
    values = {name: value for name, value in values.items() if name != "auto_map"}  # its code is not copied
    try:
        if kind == "distilbert":
            fields = transformers.DistilBertConfig.from_dict(values).to_dict()
            fields |= {ours: fields.pop(theirs) for theirs, ours in DISTILBERT_FIELDS.items()}
            if head in ("ForSequenceClassification", "ForMultipleChoice"):
                # DistilBERT calls the pooler pre_classifier.
                fields |= {"pooler_act": "relu", "classifier_dropout": fields["seq_classif_dropout"]}
            values = {name: fields[name] for name in fields.keys() - DISTILBERT_ONLY}
        config = SnugBertConfig.from_dict(values)
        compute_head_size(config)  # checks that a model can be built
        return config
    except (AttributeError, LookupError, ValueError, StrictDataclassError) as error:
        raise InputError(f"{file}: unsupported configuration. {join_lines(error)}") from error


def _add_implied_weights(checkpoint: Checkpoint) -> None:
    """Adds weights that files omit: tied weights, and the segment embeddings of DistilBERT."""
    config, weights = checkpoint.config, checkpoint.weights
    words = weights.get(WORDS)
    if checkpoint.kind == "distilbert" and words is not None:
        # DistilBERT has no segments. With zeros, segments have no effect.
        weights[SEGMENTS] = torch.zeros(config.type_vocab_size, words.shape[-1], dtype=words.dtype)
    if "cls.predictions" in PARTS[checkpoint.head]:
        if words is not None and config.tie_word_embeddings:
            # As in transformers, embeddings stored twice with different values are not tied.
            config.tie_word_embeddings = torch.equal(weights.setdefault(PROJECTION, words), words)
        # Stock BERT adds the decoder's bias, and ignores `BIAS` if embeddings are untied. `BIAS` is a copy, because
        # tensors that share memory are saved only once.
        bias = weights.get(DECODER_BIAS, weights.get(BIAS))
        if bias is not None:
            weights[DECODER_BIAS], weights[BIAS] = bias, bias.clone()


def _check_weights(checkpoint: Checkpoint, origin: dict[str, str]) -> None:
    """Drops an unused pooler. Refuses missing weights, unknown weights and wrong shapes."""
    model_class, folder = CLASSES["snugbert"][checkpoint.head], checkpoint.folder
    with torch.device("meta"):
        model = model_class(checkpoint.config, **checkpoint.options("snugbert"))
    prefix = "bert." if checkpoint.head == "Model" else ""
    expected = {f"{prefix}{name}": tensor.shape for name, tensor in model.state_dict().items()}
    weights = checkpoint.weights
    # transformers before version 4 saved a pooler with every head.
    has_pooler = any(name.startswith(POOLER) for name in expected)
    unused = [name for name in weights if name.startswith(UNUSED if has_pooler else (UNUSED, POOLER))]
    for name in unused:
        del weights[name]
    if any("pooler" in name for name in unused):
        checkpoint.notes.append(f"The pooler was dropped. {checkpoint.head} does not use it.")
    missing = sorted(expected.keys() - weights.keys())
    unknown = sorted(origin[name] for name in weights.keys() - expected.keys())
    wrong = [
        f"{origin.get(name, name)} {list(weights[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in weights and weights[name].shape != shape
    ]
    problems = {"Missing": missing, "Unknown": unknown, "Wrong shape": wrong}
    found = " ".join(f"{problem}: {shorten(names)}." for problem, names in problems.items() if names)
    if found:
        advice = (
            "Get the complete checkpoint." if missing else "docs/reference/families.md lists the supported models."
        )
        raise InputError(f"{folder}: the weights do not fit {checkpoint.head}. {found} {advice}")
