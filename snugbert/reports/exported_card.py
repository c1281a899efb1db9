"""The card of an exported model: what it is, how it differs from the original, and code that runs it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

from snugbert.card_heads_snugbert import CLASSIFIES, HEADS, WINDOWS, Head, classifier
from snugbert.card_snugbert import TAGS, code_span, escape, find_base_model
from snugbert.configuration_snugbert import get_windows
from snugbert.reports.cards import save_model_card, table

Wrapper = Literal["SentenceTransformer", "CrossEncoder"]

EMBEDS = Head(
    "AutoModel",
    "sentence-similarity",
    "returns a vector for each text",
    "Compare vectors of this model only with each other.",
    "",
)
TEXTS = '["A text.", "Another text."]'
TEXT_PAIRS = '["The first text of a pair."], ["The second text."]'
# Inputs of a head, if they are not single texts.
PAIRS = '["Where was Ada Lovelace born?"], ["Ada Lovelace was born in London."]'
INPUTS = {"ForQuestionAnswering": PAIRS, "ForNextSentencePrediction": PAIRS, "ForMultipleChoice": f"{TEXTS}, {TEXTS}"}
TOKENIZE = """from transformers import {classes}

tokenizer = AutoTokenizer.from_pretrained({name})
batch = dict(tokenizer({inputs}, padding=True, {limits}, return_tensors="{tensors}"))
"""
DROP_MAPPING = 'del batch["overflow_to_sample_mapping"]\n'
ADD_CHOICES = "batch = {name: values[None] for name, values in batch.items()}  # one example with two choices\n"
FILES = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
# Target -> code that runs the model.
CODE = {
    "onnx": """import onnxruntime
{tokenize}session = onnxruntime.InferenceSession({file})
{result}""",
    "openvino": """import openvino
{tokenize}precision = {{"INFERENCE_PRECISION_HINT": "f32"}}
model = openvino.Core().compile_model({file}, "CPU", precision)
{result}""",
    "bert": """from transformers import {model_class}
{tokenize}model = {model_class}.from_pretrained({name})
{result}""",
}
# Target -> all outputs, and the logits.
OUTPUTS = {"onnx": "session.run(None, batch)", "openvino": "model(batch)", "bert": "model(**batch)"}
LOGITS = {"onnx": "session.run(None, batch)[0]", "openvino": "model(batch)[0]", "bert": "model(**batch).logits"}
# Code that prints the labels.
LABELS = {
    "text": "print([labels[index] for index in logits.argmax(-1).tolist()])",
    "text, several labels": """for row in logits.tolist():
    print([labels[index] for index, logit in enumerate(row) if logit > 0])  # a probability above 0.5""",
    "text, threshold": """((label, least),) = config.thresholds.items()
(other,) = config.label2id.keys() - {label}
for row in logits.tolist():
    margin = row[config.label2id[label]] - row[config.label2id[other]]
    print(label if 1 / (1 + math.exp(-margin)) >= least else other)""",
    "text, thresholds": """for row in logits.tolist():
    scores = {labels[index]: 1 / (1 + math.exp(-logit)) for index, logit in enumerate(row)}
    print([label for label, least in config.thresholds.items() if scores[label] >= least])""",
    "tokens": """for ids, row in zip(batch["input_ids"], logits.argmax(-1).tolist()):
    print(list(zip(tokenizer.convert_ids_to_tokens(ids), [labels[index] for index in row])))""",
}
EMBED = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer({name}{backend})
print(model.encode(["A text.", "Another text."]))"""
RERANK = """from sentence_transformers import CrossEncoder

model = CrossEncoder({name}{backend})
print(model.predict([("A question?", "A text that may answer it.")]))"""
# Target -> arguments of sentence-transformers.
BACKENDS = {
    "bert": "",
    "onnx": ', backend="onnx"',
    "openvino": ', backend="openvino", model_kwargs={"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}',
}


@dataclass
class Export:
    """Result of an export.

    Attributes:
        calibrated: whether ranges of activations were measured on text.
        size: total size of the model files, in bytes.
        difference: largest difference from the outputs of the SnugBERT model.
        num_texts: number of texts that both models ran on.
        scores: metric -> its value in the SnugBERT model and in the export. Empty without a validation file.
    """

    engine: str
    model_class: str
    dtype: str
    calibrated: bool
    size: int
    difference: float
    num_texts: int
    scores: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def write_card(
    output_dir: Path,
    source: Path,
    source_name: str,
    model: PreTrainedModel,
    to: str,
    done: Export,
    is_regression: bool,
    wrapper: Wrapper | None,
) -> None:
    """Writes README.md, with language and license of the original card. A card that the user wrote is not replaced."""
    head = type(model).__name__.removeprefix("SnugBert")
    text = EMBEDS if wrapper == "SentenceTransformer" else HEADS[head]
    reads_pairs = head == "ForSequenceClassification" and _reads_pairs(source)
    if head == "ForSequenceClassification":
        text = classifier(is_regression, text_pairs=reads_pairs or None, windows=get_windows(model.config))
    base = _read_header(source)
    base_model, base_name = find_base_model(source_name)
    header = ModelCardData(
        language=base.language,
        license=base.license,
        license_name=base.license_name,
        license_link=base.license_link,
        library_name="transformers" if to == "bert" else to,
        pipeline_tag=text.task,
        base_model=base_model or base.base_model,
        tags=[*TAGS, *([] if to == "bert" else [to])],
    )
    calibrated = ", activations calibrated on text" if done.calibrated else ""
    facts = [
        f"engine: {done.engine}",
        f"weights: {done.dtype}{calibrated}, {done.size / 1e6:,.1f} MB",
        f"largest difference from the outputs of the original, on {done.num_texts:,} texts: {done.difference:.1e}",
    ]
    if text.limits is CLASSIFIES:
        labels: Any = model.config.id2label
        facts.append(f"labels: {', '.join(code_span(labels[index]) for index in sorted(labels))}")
        if thresholds := getattr(model.config, "thresholds", None):
            shown = ", ".join(f"{code_span(label)} from {value:.3f}" for label, value in thresholds.items())
            facts.append(f"thresholds, chosen on validation examples: {shown}")
    sections = [
        f"# {escape(output_dir.name)}",
        f"A BERT encoder that {text.ability}. Exported from {escape(base_name)} by `snugbert export`.",
        "\n".join(f"- {fact}" for fact in facts),
    ]
    if done.scores:
        rows = [(metric, f"{before:.4f}", f"{after:.4f}") for metric, (before, after) in done.scores.items()]
        sections.append(f"## Scores\n\n{table(('metric', 'original', f'exported, {done.dtype}'), rows)}")
    inputs = TEXT_PAIRS if reads_pairs else INPUTS.get(head, TEXTS)
    inputs = inputs if get_windows(model.config) is None else '"A long text."'
    labels = _choose_labels(model, is_regression)
    if wrapper is not None:
        code = _write_wrapper_code(wrapper, output_dir.name, to)
    else:
        code = _write_code(head, output_dir.name, to, done.model_class, inputs, labels, get_windows(model.config))
    sections.append(f"## How to run it\n\n{code}")
    sections.append(f"## Limitations\n\n{text.limits}")
    save_model_card(output_dir, header, sections)


def _reads_pairs(source: Path) -> bool:
    """Whether the card of a classifier shows only pairs of texts, as the cards of `snugbert glue` do."""
    try:
        text = (source / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return '"text_pair"' in text and 'classify("' not in text


def _choose_labels(model: PreTrainedModel, is_regression: bool) -> str | None:
    """Returns a key of `LABELS`. None: the model does not predict labels."""
    head = type(model).__name__.removeprefix("SnugBert")
    if head == "ForTokenClassification":
        return "tokens"
    if head != "ForSequenceClassification" or is_regression:
        return None
    several = model.config.problem_type == "multi_label_classification"
    if getattr(model.config, "thresholds", None):
        return "text, thresholds" if several else "text, threshold"
    return "text, several labels" if several else "text"


def _read_header(source: Path) -> Any:
    try:
        return ModelCard.load(source / "README.md", ignore_metadata_errors=True).data
    except (OSError, ValueError, yaml.YAMLError):  # no card, or an invalid header
        return ModelCardData()


def _write_wrapper_code(wrapper: Wrapper, name: str, to: str) -> str:
    template, lowest = {"CrossEncoder": (RERANK, "4.1"), "SentenceTransformer": (EMBED, "3.2")}[wrapper]
    note = "" if to == "bert" else f"This needs sentence-transformers {lowest} to 5 and optimum.\n\n"
    return f"{note}```python\n{template.format(name=json.dumps(name), backend=BACKENDS[to])}\n```"


def _write_code(
    head: str,
    name: str,
    to: str,
    model_class: str,
    inputs: str,
    labels: str | None,
    windows: tuple[int, int] | None,
) -> str:
    quoted = json.dumps(name)
    tokenize = TOKENIZE.format(
        classes="AutoTokenizer" if labels is None else "AutoConfig, AutoTokenizer",
        name=quoted,
        inputs=inputs,
        limits="truncation=True" if windows is None else WINDOWS.format(size=windows[0], stride=windows[1]),
        tensors="pt" if to == "bert" else "np",
    )
    if windows is not None:
        tokenize += DROP_MAPPING
    if head == "ForMultipleChoice":
        tokenize += ADD_CHOICES
    code = CODE[to].format(
        name=quoted,
        file=json.dumps(f"{name}/{FILES.get(to, '')}"),
        tokenize=tokenize,
        model_class=model_class,
        result=_write_result(name, to, labels, windows is not None),
    )
    if "math." in code:
        code = f"import math\n\n{code}"
    return f"```python\n{code}\n```"


def _write_result(name: str, to: str, labels: str | None, has_windows: bool) -> str:
    """Returns the last lines of the code, which print labels or the outputs."""
    lines = []
    outputs = OUTPUTS[to] if labels is None and not has_windows else LOGITS[to]
    if has_windows:
        lines.append(f"logits = ({outputs}).mean(0)[None]  # the mean of all windows")
        outputs = "logits"
    elif labels is not None:
        lines.append(f"logits = {outputs}")
    if labels is None:
        lines.append(f"print({outputs})")
    else:
        lines += [
            f"labels = AutoConfig.from_pretrained({json.dumps(name)}).id2label",
            LABELS[labels],
        ]
        if "threshold" in labels:
            lines[-2:-1] = [f"config = AutoConfig.from_pretrained({json.dumps(name)})", "labels = config.id2label"]
    return "\n".join(lines)
