"""The model card that `push_to_hub` writes, and the text that it shares with the cards of `snugbert`'s commands.

Without a card, transformers pushes an empty template. This module replaces it with a card on what the model does,
where its weights come from and how to load it. If a command wrote a card with metrics, that card is pushed instead, as
long as the weights are unchanged.
"""

import filecmp
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from .card_heads_snugbert import CLASSIFIES, HEADS, Head, classifier, how_to_load
from .configuration_snugbert import get_windows

# Text that marks generated cards: ours, transformers' `push_to_hub` template, and Trainer's, which contains metrics.
OWN_CARD = "<!-- Written by `snugbert`, which may replace this file. Remove this line to keep your changes. -->"
TEMPLATE = "This is the model card of a 🤗 transformers model that has been pushed on the Hub."
TRAINERS_CARD = "<!-- This model card has been generated automatically according to the information"
TAGS = ["snugbert", "bert"]
IMAGE = re.compile(r"!\[[^]]*]\([^)]*\)\n*")
LISTED_LABELS = 50
BIAS_WARNING = "The model may reproduce errors and biases in its training data."


def escape(text: str) -> str:
    """Escapes Markdown and HTML and joins lines, so that the text is displayed literally."""
    text = re.sub(r"([\\`*{}\[\]<>#|!~$&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)  # inside a word, Markdown reads it as a letter


def code_span(text: str) -> str:
    """Formats text as inline code on one line, in more backticks than it contains."""
    text = " ".join(text.split()) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[0], text[-1]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def compose(header: ModelCardData, sections: list[str]) -> ModelCard:
    """Returns a card from its metadata for the Hub and its Markdown, the title first. It starts with `OWN_CARD`."""
    return ModelCard("\n\n".join([f"---\n{header.to_yaml()}\n---", OWN_CARD, *sections]) + "\n")


def inherit_header(base: ModelCardData, **fields: Any) -> ModelCardData:
    """Returns metadata with the language and the license of another card."""
    names = ("language", "license", "license_name", "license_link")
    return ModelCardData(**{name: getattr(base, name) for name in names}, **fields)


def find_base_model(name: str | None) -> tuple[str | None, str]:
    """Returns the Hub id, if there is one, and the name of the checkpoint that training started from.

    `name` is a folder or a name on the Hub. None: random weights. Cards are published, so of a folder only the last
    part of the path is shown.
    """
    if name is None:
        return None, "random weights"
    if not Path(name).exists():
        with suppress(HFValidationError):
            validate_repo_id(name)
            return name, name
    return None, Path(name).resolve().name


# --- the card of push_to_hub ------------------------------------------------------------------------------------


def write_model_card(model: PreTrainedModel, folder: Path, repo_id: str, token: str | bool | None = None) -> None:
    """Replaces transformers' template with a card about the model, just before it is pushed.

    If the model was loaded from a folder or repository with a card by `snugbert`, and the weights are unchanged, that
    card is pushed, without its plots. Cards by users are not replaced, and neither are Trainer's, which contain
    metrics.

    Args:
        folder: the files to upload: the weights, and as `README.md` the repository's card or transformers' template,
            with the tags that the caller passed.
        repo_id: the repository on the Hub.
    """
    file = folder / "README.md"
    present: Any = ModelCard.load(file)
    head = _find_head(model)
    weights = sorted(folder.glob("model*.safetensors"))  # empty if only an adapter is pushed
    if head is None or not weights or not any(mark in present.text for mark in (OWN_CARD, TEMPLATE)):
        return
    source = model.config.name_or_path or ""
    if source and Path(source).resolve() == folder.resolve():  # its files were just overwritten
        source = ""
    card: Any = _find_card(source, token)
    unchanged = all(_is_copy(weight, source) for weight in weights)
    if card is not None and unchanged and OWN_CARD in card.text:
        _rename(card, repo_id)
        card.text = IMAGE.sub("", card.text)
    else:
        card = _new_card(model, head, repo_id, source, card, unchanged)
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *(present.data.tags or [])]))
    card.save(file)


def _find_head(model: PreTrainedModel) -> Head | None:
    """Returns the head of the model's class or of the class it extends. None: a head that the user wrote."""
    names = [model_class.__name__.removeprefix("SnugBert") for model_class in type(model).__mro__]
    head = next((HEADS[name] for name in names if name in HEADS), None)
    if head is None or head.task != "text-classification":
        return head
    thresholds = len(getattr(model.config, "thresholds", None) or ())
    return classifier(model.config.num_labels == 1, thresholds=thresholds, windows=get_windows(model.config))


def _find_file(source: str, name: str, **options: Any) -> str | None:
    """Returns the path of a file in the folder or repository `source`. None: it is missing or cannot be loaded."""
    errors = ("gated_repo", "missing_entries", "connection_errors")
    try:
        return cached_file(source, name, **{f"_raise_exceptions_for_{error}": False for error in errors}, **options)
    except OSError:
        return None


def _find_card(source: str, token: str | bool | None) -> ModelCard | None:
    file = _find_file(source, "README.md", token=token) if source else None
    try:
        return None if file is None else ModelCard.load(file)
    except (ValueError, yaml.YAMLError):  # an invalid header
        return None


def _is_copy(weights: Path, source: str) -> bool:
    # Does not download. Weights that were loaded from the Hub are in the cache.
    file = _find_file(source, weights.name, local_files_only=True) if source else None
    return file is not None and filecmp.cmp(weights, file, shallow=False)


def _rename(card: Any, name: str) -> None:
    """Changes the name of the repository in a card by `snugbert`: in the title and in the code."""
    title = re.search(rf"{re.escape(OWN_CARD)}\n\n# (.+)\n", card.text)
    if title is not None:
        old = re.sub(r"\\(.)", r"\1", title[1])  # undoes `escape`
        renamed = f"{card.text[: title.start(1)]}{escape(name)}{card.text[title.end(1) :]}"
        loading = rf"(from_pretrained\(|model=|QuestionAnswerer\(|Predictor\(){re.escape(json.dumps(old))}"
        card.text = re.sub(loading, lambda match: match[1] + json.dumps(name), renamed)
    if card.data.model_name is not None:
        card.data.model_name = name


def _new_card(
    model: PreTrainedModel, head: Head, name: str, source: str, base_card: Any, unchanged: bool
) -> ModelCard:
    base_model, base_name = find_base_model(source) if source else (None, "")
    base = ModelCardData() if base_card is None else base_card.data
    header = inherit_header(
        base,
        library_name="transformers",
        pipeline_tag=head.task,
        base_model=base.base_model if base_model in (None, name) else base_model,
        tags=list(TAGS),
    )
    origin = "The training data and the scores were not recorded."
    if source:
        origin = f"Training started from the weights of {escape(base_name)}. {origin}"
    if unchanged:
        origin = f"The weights are an unchanged copy of {escape(base_name)}."
    sections = [
        f"# {escape(name)}",
        f"A BERT encoder that {head.ability}.",
        _facts(model, head),
        how_to_load(name, head, base.language),
        f"## Training\n\n{origin}",
        f"## Limitations\n\n{head.limits} {_length_limit(model.config)} {BIAS_WARNING}",
    ]
    return compose(header, sections)


def _length_limit(config: Any) -> str:
    if config.position_embedding_type == "relative":
        return f"In each direction, distances beyond {config.max_position_embeddings} tokens have the same effect."
    return f"The maximum input length is {config.max_position_embeddings} tokens."


def _facts(model: PreTrainedModel, head: Head) -> str:
    config: Any = model.config
    facts = [
        f"{type(model).__name__}: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} attention heads, {model.num_parameters():,} parameters",
        f"a vocabulary of {config.vocab_size:,} tokens",
    ]
    if head.limits is CLASSIFIES:
        labels = [code_span(str(config.id2label[index])) for index in sorted(config.id2label)]
        more = f" and {len(labels) - LISTED_LABELS} more" if len(labels) > LISTED_LABELS else ""
        facts.append(f"{len(labels)} labels: {', '.join(labels[:LISTED_LABELS])}{more}")
    return "\n".join(f"- {fact}" for fact in facts)
