"""Checkpoints as others write them -> weights under SnugBERT's names, a configuration, and the head they are for.

SnugBERT's names are BERT's, so of BERT there is nothing to rename but what old files call differently. DistilBERT and
Google's TensorFlow release each have a table of names below. Nothing is guessed: a weight that is missing, of another
shape or not known is refused by name.

    checkpoint = read_checkpoint(Path("distilbert-base-uncased"))
    checkpoint.head, checkpoint.config.num_hidden_layers, checkpoint.weights["bert.pooler.dense.weight"]
"""

import functools
import os
import pickle
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.trainer_pt_utils import safe_globals

import snugbert
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.json_files import read_json

# Head -> the parts it has beside the encoder.
PARTS: dict[str, set[str]] = {
    "Model": set(),
    "ForPreTraining": {"cls.predictions", "cls.seq_relationship"},
    "ForMaskedLM": {"cls.predictions"},
    "ForNextSentencePrediction": {"cls.seq_relationship"},
    "ForSequenceClassification": {"classifier"},
    "ForTokenClassification": {"classifier"},
    "ForQuestionAnswering": {"qa_outputs"},
    "ForMultipleChoice": {"classifier"},
}
# Kind of checkpoint -> head -> the class that runs it. What TensorFlow wrote is run by stock BERT.
CLASSES: dict[str, dict[str, type[PreTrainedModel]]] = {
    "snugbert": {head: getattr(snugbert, f"SnugBert{head}") for head in PARTS},
    "bert": {head: getattr(transformers, f"Bert{head}") for head in PARTS},
    "distilbert": {
        head: getattr(transformers, f"DistilBert{head}")
        for head in PARTS
        if head not in ("ForPreTraining", "ForNextSentencePrediction")
    },
    "tensorflow": {head: getattr(transformers, f"Bert{head}") for head in PARTS},
}
MODEL_TYPES = ("snugbert", "bert", "distilbert")

# Pattern -> what it becomes, one after the other, on every name.
BERT_NAMES = (
    (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),  # a file of the encoder alone
    (r"\.gamma$", ".weight"),  # files of 2018 and 2019
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
    (r"/(kernel|gamma)$", "/weight"),  # a kernel is stored as (inputs, outputs): read_tensorflow turns it
    (r"/beta$", "/bias"),
    (r"/", "."),
)
NAMES = {
    "snugbert": BERT_NAMES,
    "bert": BERT_NAMES,
    "distilbert": DISTILBERT_NAMES,
    "tensorflow": TENSORFLOW_NAMES,
}
# What no model needs: BERT files of 2019 to 2022 hold a buffer of positions, TensorFlow's what the optimizer (AdamW of
# the original release) goes on with.
NOT_NEEDED = r"(^|\.)position_ids$|/adam_[mv]$|^global_step$"

POOLER = "bert.pooler."
WORDS = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
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
# Its positions began as sinusoids, but are weights like any others; BERT's question answering head has no dropout.
DISTILBERT_ONLY = ("model_type", "sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_")

LISTED = 8  # names in a message


@dataclass
class Checkpoint:
    """A checkpoint, under SnugBERT's names.

    Attributes:
        folder: where it is, and its tokenizer.
        kind: `"snugbert"`, `"bert"`, `"distilbert"` or `"tensorflow"`.
        values: its configuration as the file has it.
        config: its configuration as SnugBERT's.
        head: such as `"ForMaskedLM"`; `"Model"` for the encoder alone.
        weights: all that `SnugBert{head}` has, in the file's dtype; the encoder's names begin with `bert.` even where
            it is alone.
        notes: what the user should know, a sentence each.
    """

    folder: Path
    kind: str
    values: dict[str, Any]
    config: SnugBertConfig
    head: str
    weights: dict[str, torch.Tensor]
    notes: list[str] = field(default_factory=list)

    @property
    def options(self) -> dict[str, Any]:
        """What SnugBERT's and BERT's class of the head has to know beside the configuration."""
        without_pooler = self.head == "Model" and not any(name.startswith(POOLER) for name in self.weights)
        return {"add_pooling_layer": False} if without_pooler else {}


def fetch_checkpoint(name: str, **hub: Any) -> Path:
    """The checkpoint that `name` names: a folder, a prefix of TensorFlow's files, or a model on the Hub, downloaded.

    Args:
        name: folder, prefix, or Hub name.
        hub: `revision`, `token` and `cache_dir`, as `snapshot_download` takes them.

    Raises:
        InputError: there is no such folder, or nothing that can be had from the Hub.
    """
    if Path(name).exists() or Path(f"{name}.index").exists():
        return Path(name)
    # A name on the Hub is "name" or "owner/name"; what can only be a folder is not looked for there.
    if name[0] in "/.~" or name.count("/") > 1:
        raise InputError(f"there is no folder {name}.")
    download = functools.partial(snapshot_download, name, ignore_patterns="*/*", **hub)
    try:
        folder = Path(download(allow_patterns=["*.json", "*.txt", "model*.safetensors"]))
        if not any(folder.glob("model*.safetensors")):
            download(allow_patterns="pytorch_model*.bin")
    except (OSError, ValueError) as error:
        raise InputError(f"there is no folder {name}, and from the Hub: {' '.join(str(error).split())}") from error
    return folder


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder, or under the prefix of TensorFlow's files (`folder/bert_model.ckpt`).

    Raises:
        InputError: files that are missing, cut short or hold other things than tensors; a configuration of another
            architecture; weights that are missing, have other shapes than the configuration says, or are not known.
    """
    prefix = _tensorflow_prefix(path)
    file = path / "config.json" if prefix is None else prefix.parent / "bert_config.json"
    values = read_json(file)
    if prefix is not None:
        kind, tensors = "tensorflow", read_tensorflow(prefix)
    else:
        # The configuration of Google's own release names no model type.
        kind = values.get("model_type") or ("bert" if "num_attention_heads" in values else "unknown")
        if kind not in MODEL_TYPES:
            raise InputError(
                f"{file} is of a model of type {kind!r}; what is accepted is {', '.join(MODEL_TYPES)}, and the "
                "TensorFlow release of BERT."
            )
        tensors = read_weights(path)
    weights, origin = _renamed(tensors, NAMES[kind], path)
    promised = _promised_head(kind, values, file)
    head = _head(kind, promised, weights, file)
    checkpoint = Checkpoint(file.parent, kind, values, _config(kind, values, head, file), head, weights)
    if promised not in (None, head):
        checkpoint.notes.append(f"config.json says {promised}, but the file holds the weights of {head}.")
    _complete(checkpoint)
    _check_weights(checkpoint, origin)
    return checkpoint


def build_model(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype,
    options: dict[str, Any],
) -> PreTrainedModel:
    """The model with weights of [`Checkpoint`]'s names, in `dtype`; `options` are those of the checkpoint."""
    if model_class is CLASSES["snugbert"]["Model"] or model_class is CLASSES["bert"]["Model"]:
        weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    return model_class.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, **options)


# --- files ------------------------------------------------------------------------------------------------------


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder's `model.safetensors` or `pytorch_model.bin`, whole or in shards, on the CPU.

    Safetensors are mapped into memory: nothing is read before it is used. A `.bin` is opened with `weights_only`: one
    that holds more than tensors, and so could run code, is refused.

    Raises:
        InputError: no weights, a shard that is missing, a file that is cut short or holds other things than tensors.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).exists():
            return _read_tensors(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            return _read_shards(folder, index)
        stem, _, suffix = name.partition(".")
        for shard in sorted(folder.glob(f"{stem}-*-of-*.{suffix}")):
            raise InputError(f"{folder} has {shard.name}, but not {index.name}, which says what is in which shard.")
    raise InputError(f"there are no weights in {folder}: neither model.safetensors nor pytorch_model.bin.")


def _read_shards(folder: Path, index: Path) -> dict[str, torch.Tensor]:
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict):
        raise InputError(f"{index} has no weight_map, which says what is in which shard.")
    shards = sorted(set(shard_of.values()))
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        raise InputError(f"{folder} is not whole: of its {len(shards)} shards there is no {listed(missing)}.")
    tensors = {name: tensor for shard in shards for name, tensor in _read_tensors(folder / shard).items()}
    lost = sorted(shard_of.keys() - tensors.keys())
    if lost:
        raise InputError(f"{folder} is not whole: {index.name} promises {listed(lost)}, which no shard holds.")
    return tensors


def _read_tensors(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as error:
            raise InputError(f"{file} is cut short, or is no safetensors file ({error}).") from error
    tensors = read_torch_file(file)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise InputError(f"{file} must contain a dictionary of tensors.")
    return tensors


def read_torch_file(file: Path) -> Any:
    """Loads a file that `torch.save` wrote, onto the CPU. Runs no code from it.

    Raises:
        InputError: the file is missing or damaged, or holds objects that could run code.
    """
    try:
        with safe_globals():  # random states are NumPy arrays
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{file} is damaged, or contains objects that could run code. It was not opened.") from error
    except FileNotFoundError as error:
        raise InputError(f"{file} is missing.") from error
    except Exception as error:  # a damaged archive or pickle can raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{file} is damaged or was not written by torch.save ({reason}).") from error


def is_uncased(vocabulary: Path) -> bool:
    """Whether all pieces of a `vocab.txt` are lower-case, as those of a model of lower-cased text are."""
    pieces = vocabulary.read_text(encoding="utf-8", errors="replace").split("\n")
    return all(piece == piece.lower() for piece in pieces if not piece.startswith("["))


def _tensorflow_prefix(path: Path) -> Path | None:
    """The prefix of the TensorFlow files at `path`, a folder or the prefix itself; None if there are none."""
    if Path(f"{path}.index").exists():
        return path
    found = sorted(path.glob("*.ckpt*.index"))
    if not found or (path / "config.json").exists():
        return None
    if len(found) > 1:
        raise InputError(f"{path} holds {len(found)} checkpoints; name one, such as {found[-1].with_suffix('')}.")
    return found[0].with_suffix("")


def read_tensorflow(prefix: Path) -> dict[str, torch.Tensor]:
    """The variables of a TensorFlow checkpoint, by their names there; kernels as torch has them, (outputs, inputs).

    Raises:
        InputError: TensorFlow is not installed, or the files are not whole.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # otherwise it tells of the processor's features and the like
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"{prefix} is a checkpoint of TensorFlow, which reads it; `pip install snugbert[tensorflow]` brings it."
        ) from error
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        # What the optimizer keeps is twice the model: it is not even read.
        names = [name for name in reader.get_variable_to_shape_map() if not re.search(NOT_NEEDED, name)]
        tensors = {name: torch.from_numpy(reader.get_tensor(name)) for name in names}
    except (tf.errors.OpError, IndexError, ValueError) as error:  # what its reader raises for a short file
        raise InputError(f"the checkpoint {prefix} is not whole: {' '.join(str(error).split())}") from error
    return {name: tensor.T.contiguous() if name.endswith("/kernel") else tensor for name, tensor in tensors.items()}


# --- names, heads and configurations ----------------------------------------------------------------------------


def _renamed(
    tensors: dict[str, torch.Tensor], names: Iterable[tuple[str, str]], path: Path
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors by SnugBERT's names, and by these what each was called."""
    origin: dict[str, str] = {}
    for name in tensors:
        if re.search(NOT_NEEDED, name):
            continue
        new = name
        for pattern, replacement in names:
            new = re.sub(pattern, replacement, new)
        if new in origin:
            raise InputError(f"{path} holds the same weight twice, as {origin[new]} and as {name}.")
        origin[new] = name
    return {new: tensors[name] for new, name in origin.items()}, origin


def _promised_head(kind: str, values: dict[str, Any], file: Path) -> str | None:
    """The head that the configuration names; None if it names none, as those of Google's own release."""
    architectures = values.get("architectures")
    if not architectures:
        return None
    for head, model_class in CLASSES[kind].items():
        if model_class.__name__ == architectures[0]:
            return head
    known = ", ".join(model_class.__name__ for model_class in CLASSES[kind].values())
    raise InputError(f"{file} is of a {architectures[0]}; what is accepted is {known}.")


def _head(kind: str, promised: str | None, weights: dict[str, torch.Tensor], file: Path) -> str:
    """The promised head, unless the weights are clearly those of one that has more parts."""
    parts = {part for part in set().union(*PARTS.values()) for name in weights if name.startswith(f"{part}.")}
    if promised is not None and not PARTS[promised] < parts:
        return promised
    # Google's BERT on the Hub says BertForMaskedLM, and holds the next-sentence head, too.
    heads = [head for head in CLASSES[kind] if PARTS[head] == parts]
    if len(heads) == 1:
        return heads[0]
    if promised is None:
        classes = " or ".join(CLASSES[kind][head].__name__ for head in heads) or "no head that is known"
        raise InputError(f'{file} names no "architectures", and the weights could be of {classes}; add the right one.')
    return promised


def _config(kind: str, values: dict[str, Any], head: str, file: Path) -> SnugBertConfig:
    values = {name: value for name, value in values.items() if name != "auto_map"}  # names code that does not go along
    try:
        if kind != "distilbert":
            return SnugBertConfig.from_dict(values)
        fields = transformers.DistilBertConfig.from_dict(values).to_dict()
        fields |= {ours: fields.pop(theirs) for theirs, ours in DISTILBERT_FIELDS.items()}
        if head in ("ForSequenceClassification", "ForMultipleChoice"):
            # Its name for the pooler is pre_classifier.
            fields |= {"pooler_act": "relu", "classifier_dropout": fields["seq_classif_dropout"]}
        return SnugBertConfig.from_dict({name: fields[name] for name in fields.keys() - DISTILBERT_ONLY})
    except (ValueError, StrictDataclassError) as error:
        raise InputError(f"{file} cannot be used: {' '.join(str(error).split())}") from error


def _complete(checkpoint: Checkpoint) -> None:
    """Adds the weights that a file leaves out because they are those of another name, or zeros."""
    config, weights = checkpoint.config, checkpoint.weights
    words = weights.get(WORDS)
    if checkpoint.kind == "distilbert" and words is not None:
        # DistilBERT has no segments. Zeros make it indifferent to them.
        weights[SEGMENTS] = torch.zeros(config.type_vocab_size, words.shape[-1], dtype=words.dtype)
    if "cls.predictions" in PARTS[checkpoint.head]:
        if words is not None and config.tie_word_embeddings:
            # As in transformers, what a file holds twice, and not equal, is not tied, whatever its configuration says.
            config.tie_word_embeddings = torch.equal(weights.setdefault(PROJECTION, words), words)
        # The decoder's bias is the one that stock BERT adds. Where embeddings are not tied, the other one is idle, and
        # what shares memory is not saved twice: hence a copy.
        bias = weights.get(DECODER_BIAS, weights.get(BIAS))
        if bias is not None:
            weights[DECODER_BIAS], weights[BIAS] = bias, bias.clone()


def _check_weights(checkpoint: Checkpoint, origin: dict[str, str]) -> None:
    """Leaves out a pooler that the head does not have, and refuses what is missing, not known, or of another shape."""
    model_class, folder = CLASSES["snugbert"][checkpoint.head], checkpoint.folder
    with torch.device("meta"):
        model = model_class(checkpoint.config, **checkpoint.options)
    prefix = "bert." if checkpoint.head == "Model" else ""
    expected = {f"{prefix}{name}": tensor.shape for name, tensor in model.state_dict().items()}
    weights = checkpoint.weights
    # Files that transformers wrote before version 4 have a pooler with every head.
    if not any(name.startswith(POOLER) for name in expected):
        idle = [name for name in weights if name.startswith(POOLER)]
        for name in idle:
            del weights[name]
        if idle:
            checkpoint.notes.append(f"The pooler, which {checkpoint.head} does not use, was left out.")
    if missing := sorted(expected.keys() - weights.keys()):
        raise InputError(f"{folder} lacks weights of {checkpoint.head}, which would be random: {listed(missing)}.")
    if unknown := sorted(origin[name] for name in weights.keys() - expected.keys()):
        raise InputError(f"{folder} holds weights that {checkpoint.head} does not have: {listed(unknown)}.")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise InputError(
                f"{folder}: {origin.get(name, name)} has the shape {list(weights[name].shape)}, but by the "
                f"configuration it must be {list(shape)}."
            )


def listed(names: list[str]) -> str:
    """The first of them, for a message, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
