"""The model card of `push_to_hub`, and what the cards of `snugbert`'s commands have in common with it.

transformers pushes an empty template where a repository has no card. What is known of a model says more: what it does,
where its weights come from, how to load it. A card with figures, which a command wrote, goes along with its weights.
"""

import filecmp
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

# Cards that nobody wrote: ours, the template of transformers' `push_to_hub`, and that of Trainer, which has figures.
OWN_CARD = "<!-- Written by `snugbert`, which replaces it as long as this line is here. -->"
TEMPLATE = "This is the model card of a 🤗 transformers model that has been pushed on the Hub."
TRAINERS_CARD = "<!-- This model card has been generated automatically according to the information"
TAGS = ["snugbert", "bert"]
# The plots that commands write. The name of an evaluation set may come first.
PLOT = re.compile(
    r"training\.png|((eval|predict)_((mm|ax)_)?)?"
    r"(learning_curve|confusion_matrix|entity_scores|f1_by_answer_length|thresholds)\.png"
)
LISTED_LABELS = 50
FAULTS = "What is wrong or one-sided in the text that it learned from, the model has learned, too."


class Head(NamedTuple):
    """What a card says of a head.

    Attributes:
        auto_class: the Auto class that loads it.
        task: the Hub's name for what it does, if it has one.
        ability: what it does, behind "A BERT encoder that".
        limits: what it cannot do.
        use: code that uses `tokenizer` and `model`; `{model}` stands for what `from_pretrained` is given.
        use_of_package: more of it, for which snugbert must be installed.
    """

    auto_class: str
    task: str | None
    ability: str
    limits: str
    use: str
    use_of_package: str = ""


CLASSIFIES = (
    "The model knows the labels above and no others, whether they fit a text or not; a score says how sure it is, not "
    "how often it is right."
)
FILLS_IN = "What the model fills in is likely in its text, which does not make it true."
FILL_MASK = """
fill_mask = pipeline("fill-mask", model={model})
print(fill_mask(f"Paris is the {{tokenizer.mask_token}} of France."))"""
# By the name of the class, without SnugBert.
HEADS = {
    "Model": Head(
        "AutoModel",
        "feature-extraction",
        "turns texts into a vector for each token",
        "The vectors are there to learn from: texts that mean the same need not have similar ones.",
        """
outputs = model(**tokenizer("A text.", return_tensors="pt"))
print(outputs.last_hidden_state.shape)""",
    ),
    "ForPreTraining": Head(
        "AutoModelForPreTraining",
        "fill-mask",
        "fills in masked words and tells whether two texts follow one another; classifiers, taggers and sentence "
        "embeddings are fine-tuned from it",
        FILLS_IN,
        f"""{FILL_MASK}

outputs = model(**tokenizer("The first of a pair.", "The second.", return_tensors="pt"))
print(outputs.seq_relationship_logits.softmax(-1))  # follows, does not follow""",
    ),
    "ForMaskedLM": Head(
        "AutoModelForMaskedLM",
        "fill-mask",
        "fills in masked words; classifiers, taggers and sentence embeddings are fine-tuned from it",
        FILLS_IN,
        FILL_MASK,
    ),
    "ForNextSentencePrediction": Head(
        "AutoModelForNextSentencePrediction",
        None,
        "tells whether two texts follow one another",
        "Two texts on one subject are easily taken for consecutive ones.",
        """
outputs = model(**tokenizer("The first of a pair.", "The second.", return_tensors="pt"))
print(outputs.logits.softmax(-1))  # follows, does not follow""",
    ),
    "ForSequenceClassification": Head(
        "AutoModelForSequenceClassification",
        "text-classification",
        "classifies texts or pairs of texts",
        CLASSIFIES,
        """
classify = pipeline("text-classification", model={model}, top_k=None)
print(classify("A text."))
print(classify({{"text": "The first of a pair.", "text_pair": "The second."}}))""",
    ),
    "ForTokenClassification": Head(
        "AutoModelForTokenClassification",
        "token-classification",
        "labels the words of a text, such as those of entities",
        CLASSIFIES,
        """
tag = pipeline("token-classification", model={model}, aggregation_strategy="first")
print(tag("Ada Lovelace was born in London."))""",
    ),
    "ForQuestionAnswering": Head(
        "AutoModelForQuestionAnswering",
        "question-answering",
        "answers questions about a text",
        "An answer is always a stretch of the text that is given, which is taken for true; a score says how sure the "
        "model is, not how often it is right.",
        """
inputs = tokenizer("Where was Ada Lovelace born?", "Ada Lovelace was born in London.", return_tensors="pt")
outputs = model(**inputs)
first, last = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs.input_ids[0, first : last + 1]))""",
        """
answer = snugbert.QuestionAnswerer({model})  # of long texts, too, and with a score
print(answer(question="Where was Ada Lovelace born?", context="Ada Lovelace was born in London."))""",
    ),
    "ForMultipleChoice": Head(
        "AutoModelForMultipleChoice",
        "multiple-choice",
        "chooses which of several texts goes with another",
        "One of the texts is always chosen, whether any fits or not.",
        """
inputs = tokenizer(["The street is wet."] * 2, ["It rained.", "It is dry."], padding=True, return_tensors="pt")
outputs = model(**{{name: values[None] for name, values in inputs.items()}})
print(outputs.logits.softmax(-1))""",
    ),
}
REGRESSION = HEADS["ForSequenceClassification"]._replace(
    ability="gives texts or pairs of texts a number",
    limits="The numbers are on the scale of the training data, and may lie a little outside of it.",
)


def how_to_load(name: str, head: Head) -> str:
    """The section of a card that says how to load the model, with the package snugbert and without it.

    Args:
        name: of the repository, or of the folder.
        head: of the model.
    """
    quoted = json.dumps(name)
    return (
        "## How to load it\n\n"
        "Without the package snugbert, with the code that lies beside the weights. `trust_remote_code=True` runs it; "
        "`revision=` with the hash of a commit makes sure that it stays as it is.\n\n"
        f"{_code(head, f'{quoted}, trust_remote_code=True')}\n\n"
        "Where the package is installed, with its own code:\n\n"
        f"{_code(head, quoted, head.use_of_package, 'import snugbert')}"
    )


def _code(head: Head, model: str, more: str = "", first_line: str = "") -> str:
    use = head.use + (f"\n{more}" if more else "")
    pipeline = ", pipeline" if "pipeline(" in use else ""
    lines = [
        *([first_line] if first_line else []),
        f"from transformers import {head.auto_class}, AutoTokenizer{pipeline}",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({model})",
        f"model = {head.auto_class}.from_pretrained({model})",
        use.format(model=model),
    ]
    return "```python\n" + "\n".join(lines) + "\n```"


def escape(text: str) -> str:
    """Escapes Markdown and HTML and joins lines, so that the text is shown literally."""
    text = re.sub(r"([\\`*{}\[\]<>#|!~$&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)  # within a word it is a letter like any other


def code_span(text: str) -> str:
    """Formats text as inline code on one line, in more backticks than it contains."""
    text = " ".join(text.split()) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[0], text[-1]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def compose(header: ModelCardData, sections: list[str]) -> ModelCard:
    """A card of ours.

    Args:
        header: what the Hub reads.
        sections: what people read, as Markdown, the title first.
    """
    return ModelCard("\n\n".join([f"---\n{header.to_yaml()}\n---", OWN_CARD, *sections]) + "\n")


def find_base_model(name: str | None) -> tuple[str | None, str]:
    """What a card says of the checkpoint that a model began from: its id on the Hub, if it has one, and its name.

    A folder is on somebody's machine: of its path a card has the last part.

    Args:
        name: a folder or a name on the Hub; None: random weights.
    """
    if name is None:
        return None, "random weights"
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None, Path(name).resolve().name
    return (None, Path(name).resolve().name) if Path(name).exists() else (name, name)


# --- the card of push_to_hub ------------------------------------------------------------------------------------


def write_model_card(model: PreTrainedModel, folder: Path, repo_id: str, token: Any = None) -> None:
    """Replaces transformers' template by a card that says what is known of a model that is about to be pushed.

    The card of the folder or repository that the model was loaded from goes along if `snugbert` wrote it and the
    weights are the same. Somebody's own card, and Trainer's, which has figures, are left alone.

    Args:
        model: the model.
        folder: what is going to be uploaded: the weights, and as `README.md` the card that the repository has, or
            transformers' template, with the tags that were asked for.
        repo_id: where it goes.
        token: for the Hub, as `from_pretrained` takes it.
    """
    file = folder / "README.md"
    present: Any = ModelCard.load(file)
    head = _find_head(model)
    weights = sorted(folder.glob("model*.safetensors"))  # none where only an adapter is pushed
    if head is None or not weights or not any(mark in present.text for mark in (OWN_CARD, TEMPLATE)):
        return
    source = model.config.name_or_path or ""
    if source and Path(source).resolve() == folder.resolve():  # overwritten by now
        source = ""
    card: Any = _find_card(source, token)
    unchanged = all(_is_copy(weight, source) for weight in weights)
    if card is not None and unchanged and OWN_CARD in card.text:
        _rename(card, repo_id, head)
        _copy_plots(card.text, source, folder, token)
    else:
        card = _new_card(model, head, repo_id, source, card, unchanged)
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *(present.data.tags or [])]))
    card.save(file)


def _find_head(model: PreTrainedModel) -> Head | None:
    """Of the class that was extended where it is somebody's own class; None if that has a head of its own."""
    for model_class in type(model).__mro__:
        if (head := HEADS.get(model_class.__name__.removeprefix("SnugBert"))) is not None:
            is_regression = head.task == "text-classification" and model.config.num_labels == 1
            return REGRESSION if is_regression else head
    return None


def _find_file(source: str, name: str, **options: Any) -> str | None:
    """The path of a file in the folder or repository `source`; None if there is none or it cannot be had."""
    try:
        return cached_file(
            source,
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **options,
        )
    except OSError:
        return None


def _find_card(source: str, token: Any) -> ModelCard | None:
    file = _find_file(source, "README.md", token=token) if source else None
    try:
        return None if file is None else ModelCard.load(file)
    except (ValueError, yaml.YAMLError):  # somebody's header that is none
        return None


def _is_copy(weights: Path, source: str) -> bool:
    # A download only for this would be too much: what has been loaded is in the cache.
    file = _find_file(source, weights.name, local_files_only=True) if source else None
    return file is not None and filecmp.cmp(weights, file, shallow=False)


def _copy_plots(text: str, source: str, folder: Path, token: Any) -> None:
    """Copies the plots that a card shows. A stranger may have written the card: only names in `PLOT` are copied."""
    for plot in re.findall(r"!\[[^]]*]\(([\w.-]+)\)", text):
        if not PLOT.fullmatch(plot) or os.path.lexists(folder / plot):
            continue
        path = _find_file(source, plot, token=token)
        # A symlink in a local folder may point at any file. In the Hub's cache every file is a symlink.
        if path is not None and not (Path(source).is_dir() and Path(path).is_symlink()):
            shutil.copyfile(path, folder / plot)


def _rename(card: Any, name: str, head: Head) -> None:
    """Puts the name of another repository into a card of ours."""
    title = re.search(rf"{re.escape(OWN_CARD)}\n\n# (.+)\n", card.text)
    if title is not None:
        start, end = title.span(1)
        old = re.sub(r"\\(.)", r"\1", title[1])  # undoes `escape`
        card.text = (card.text[:start] + escape(name) + card.text[end:]).replace(
            how_to_load(old, head), how_to_load(name, head)
        )
    if card.data.model_name is not None:
        card.data.model_name = name


def _new_card(
    model: PreTrainedModel, head: Head, name: str, source: str, base_card: Any, unchanged: bool
) -> ModelCard:
    base_model: Any
    base_model, base_name = find_base_model(source) if source else (None, "")
    base_name = escape(base_name)
    base = ModelCardData() if base_card is None else base_card.data
    if base_model is None or base_model == name:
        base_model = base.base_model
    header = ModelCardData(
        language=base.language,
        license=base.license,
        license_name=base.license_name,
        license_link=base.license_link,
        library_name="transformers",
        pipeline_tag=head.task,
        base_model=base_model,
        tags=list(TAGS),
    )
    if not source:
        origin = "What its weights were trained on is not recorded here, nor how well it does."
    elif unchanged:
        origin = f"The weights are those of {base_name}, unchanged."
    else:
        origin = (
            f"The weights began as those of {base_name}. What they were trained on since is not recorded here, nor "
            "how well the model does."
        )
    return compose(
        header,
        [
            f"# {escape(name)}",
            f"A BERT encoder that {head.ability}.",
            _facts(model, head),
            how_to_load(name, head),
            f"## Training\n\n{origin}",
            f"## Limits\n\n{head.limits} It reads at most {model.config.max_position_embeddings} tokens "
            f"at a time. {FAULTS}",
        ],
    )


def _facts(model: PreTrainedModel, head: Head) -> str:
    config: Any = model.config
    facts = [
        f"{type(model).__name__}: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} attention heads, {model.num_parameters():,} parameters",
        f"a vocabulary of {config.vocab_size:,} word pieces",
    ]
    if head.limits is CLASSIFIES:
        labels = [code_span(str(config.id2label[index])) for index in sorted(config.id2label)]
        more = f" and {len(labels) - LISTED_LABELS} more" if len(labels) > LISTED_LABELS else ""
        facts.append(f"{len(labels)} labels: {', '.join(labels[:LISTED_LABELS])}{more}")
    return "\n".join(f"- {fact}" for fact in facts)
