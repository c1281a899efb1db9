"""The model card that `push_to_hub` writes, and what all model cards share.

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

from .configuration_snugbert import get_windows

# Text that marks generated cards: ours, transformers' `push_to_hub` template, and Trainer's, which contains metrics.
OWN_CARD = "<!-- Written by `snugbert`, which may replace this file. Remove this line to keep your changes. -->"
TEMPLATE = "This is the model card of a 🤗 transformers model that has been pushed on the Hub."
TRAINERS_CARD = "<!-- This model card has been generated automatically according to the information"
TAGS = ["snugbert", "bert"]
BIAS_WARNING = "The model may reproduce errors and biases in its training data."
# Head -> the Hub's name of its task, if there is one.
TASKS = {
    "Model": "feature-extraction",
    "ForPreTraining": "fill-mask",
    "ForMaskedLM": "fill-mask",
    "ForReplacedTokenDetection": None,
    "ForNextSentencePrediction": None,
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
CARD = """---
{{ card_data }}
---

{{ own_card }}

# {{ title }}

A BERT encoder{{ " for " + pipeline_tag.replace("-", " ") if pipeline_tag }}.

- {{ class_name }}: {{ config.num_hidden_layers }} layers, hidden size {{ config.hidden_size }}, \
{{ config.num_attention_heads }} attention heads, {{ "{:,}".format(num_parameters) }} parameters
- a vocabulary of {{ "{:,}".format(config.vocab_size) }} tokens
{% if windows %}- windows of {{ windows[0] }} tokens that share {{ windows[1] }}
{% endif %}{% if labels %}- {{ labels | length }} labels: {{ labels[:50] | join(", ") }}\
{{ " and %d more" % (labels | length - 50) if labels | length > 50 }}
{% endif %}
{{ how_to_load }}

## Training

{% if unchanged %}The weights are an unchanged copy of {{ base_name }}.{% else -%}
{% if base_name %}Training started from the weights of {{ base_name }}. {% endif -%}
The training data and the scores were not recorded.{% endif %}

## Limitations

{% if config.position_embedding_type == "relative" -%}
In each direction, distances beyond {{ config.max_position_embeddings }} tokens have the same effect.
{%- else -%}
The maximum input length is {{ config.max_position_embeddings }} tokens.
{%- endif %} {{ bias_warning }}
"""


# --- text -------------------------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Escapes Markdown and HTML and joins lines, so that the text is displayed literally."""
    text = re.sub(r"([\\`*{}\[\]<>#|!~$&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)  # inside a word, Markdown treats _ as a letter


def code_span(text: str) -> str:
    """Formats text as inline code on one line, in more backticks than it contains."""
    text = " ".join(text.split()) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[0], text[-1]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def how_to_load(name: str, head: str, use: str = "", use_of_package: str = "") -> str:
    """Returns the section on how to load the model. `use` and `use_of_package` are example code.

    In the example code, MODEL is replaced by the arguments of `from_pretrained`.
    """
    others = {"Model": "AutoModel", "ForReplacedTokenDetection": "AutoModelForPreTraining"}
    auto_class, model = others.get(head, f"AutoModel{head}"), json.dumps(name)
    code = (
        f"from transformers import {auto_class}, AutoTokenizer{', pipeline' * ('pipeline(' in use)}\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained(MODEL)\nmodel = {auto_class}.from_pretrained(MODEL)\n"
    )
    plain = f"{code}{use}".rstrip().replace("MODEL", f"{model}, trust_remote_code=True")
    package = f"import snugbert\n{code}{use_of_package}".rstrip().replace("MODEL", model)
    return (
        "## How to load it\n\n"
        "Without the package snugbert: `trust_remote_code=True` runs the code in this repository. To pin a version of "
        f"the code, pass a commit hash as `revision`.\n\n```python\n{plain}\n```\n\n"
        f"With the package snugbert installed:\n\n```python\n{package}\n```"
    )


def inherit_header(base: Any, **fields: Any) -> ModelCardData:
    """Returns metadata with the given fields, and with the language and the license of `base`."""
    names = ("language", "license", "license_name", "license_link")
    return ModelCardData(**{name: getattr(base, name) for name in names}, **fields)


def find_base_model(name: str | None) -> tuple[str | None, str]:
    """Returns the Hub id (None if there is none) and the display name of the checkpoint that training started from.

    `name` is a folder or a Hub name, or None for random weights. Only the last part of a folder's path is shown,
    because cards are published.
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
    card is pushed, without its plots. Cards by users and by Trainer are not replaced. (Trainer's cards contain
    metrics.) `folder` holds the files to upload: the weights and a `README.md`. This file is the repository's card or
    transformers' template, with the tags that the caller passed.
    """
    file = folder / "README.md"
    present: Any = ModelCard.load(file)
    names = [model_class.__name__.removeprefix("SnugBert") for model_class in type(model).__mro__]
    head = next((name for name in names if name in TASKS), None)  # None: the head is a user's class
    weights = sorted(folder.glob("model*.safetensors"))  # empty if only an adapter is pushed
    if head is None or not weights or not any(mark in present.text for mark in (OWN_CARD, TEMPLATE)):
        return
    source = model.config.name_or_path or ""
    if source and Path(source).resolve() == folder.resolve():  # saving has just overwritten its card
        source = ""
    card = read_card(_find_file(source, "README.md", token=token))
    # Weights that were loaded from the Hub are in the cache.
    copies = {weight: _find_file(source, weight.name, local_files_only=True) for weight in weights}
    unchanged = all(copy and filecmp.cmp(weight, copy, shallow=False) for weight, copy in copies.items())
    if unchanged and OWN_CARD in card.text and card.data.model_name:
        _rename(card, repo_id)
        card.text = re.sub(r"!\[[^]]*]\([^)]*\)\n*", "", card.text)  # plots
    else:
        card = _new_card(model, head, repo_id, source, card.data, unchanged)
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *(present.data.tags or [])]))
    card.save(file)


def read_card(file: Path | str | None) -> Any:
    """Reads a model card. Returns an empty card if the file is missing or has an invalid header."""
    with suppress(ValueError, yaml.YAMLError):
        if file is not None and Path(file).exists():
            return ModelCard.load(file)
    return ModelCard("---\n{}\n---\n")


def _find_file(source: str, name: str, **options: Any) -> str | None:
    """Returns the path of a file in the folder or repository `source`. None: it is missing or cannot be loaded."""
    with suppress(OSError):
        return cached_file(source, name, **options) if source else None
    return None


def _rename(card: Any, name: str) -> None:
    """Changes the name of the model in a card by `snugbert`: in the header, in the title and in the code."""
    old, card.data.model_name = card.data.model_name, name
    card.text = card.text.replace(f"# {escape(old)}\n", f"# {escape(name)}\n", 1)
    card.text = card.text.replace(json.dumps(old), json.dumps(name))


def _new_card(model: Any, head: str, name: str, source: str, base: Any, unchanged: bool) -> ModelCard:
    base_model, base_name = find_base_model(source) if source else (None, "")
    config, labels = model.config, []
    if TASKS[head] in ("text-classification", "token-classification") and config.num_labels > 1:
        labels = [code_span(str(config.id2label[index])) for index in sorted(config.id2label)]
    header = inherit_header(
        base,
        library_name="transformers",
        pipeline_tag=TASKS[head],
        base_model=base.base_model if base_model in (None, name) else base_model,
        tags=list(TAGS),
        model_name=name,
    )
    return ModelCard.from_template(
        header,
        template_str=CARD,
        own_card=OWN_CARD,
        title=escape(name),
        class_name=type(model).__name__,
        config=config,
        num_parameters=model.num_parameters(),
        windows=get_windows(config),
        labels=labels,
        how_to_load=how_to_load(name, head),
        base_name=escape(base_name),
        unchanged=unchanged,
        bias_warning=BIAS_WARNING,
    )
