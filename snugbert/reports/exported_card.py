"""The card of an exported model: what it is, how it differs from the original, and code that runs it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

from snugbert.card_heads_snugbert import CLASSIFIES, HEADS, WINDOWS, Head, classifier
from snugbert.card_snugbert import TAGS, code_span, escape, find_base_model, inherit_header
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
# Inputs of a head, if they are not single texts.
TEXTS = '["A text.", "Another text."]'
PAIRS = '["Where was Ada Lovelace born?"], ["Ada Lovelace was born in London."]'
INPUTS = {"ForQuestionAnswering": PAIRS, "ForNextSentencePrediction": PAIRS, "ForMultipleChoice": f"{TEXTS}, {TEXTS}"}
# Target -> code that imports the engine, opens the model, and runs it.
ENGINES = {
    "onnx": ("import onnxruntime", "model = onnxruntime.InferenceSession({file})", "model.run(None, batch)"),
    "openvino": (
        "import openvino",
        'model = openvino.Core().compile_model({file}, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})',
        "model(batch)",
    ),
    "bert": ("import transformers", "model = transformers.{model_class}.from_pretrained({name})", "model(**batch)"),
}
FILES = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml", "bert": ""}
# Code that prints the labels.
TEXT_LABELS = "print([labels[index] for index in logits.argmax(-1).tolist()])"
SEVERAL_LABELS = """for row in logits.tolist():
    print([labels[index] for index, logit in enumerate(row) if logit > 0])  # a probability above 0.5"""
ONE_THRESHOLD = """((label, least),) = config.thresholds.items()
(other,) = config.label2id.keys() - {label}
for row in logits.tolist():
    margin = row[config.label2id[label]] - row[config.label2id[other]]
    print(label if 1 / (1 + math.exp(-margin)) >= least else other)"""
THRESHOLDS = """for row in logits.tolist():
    scores = {labels[index]: 1 / (1 + math.exp(-logit)) for index, logit in enumerate(row)}
    print([label for label, least in config.thresholds.items() if scores[label] >= least])"""
TOKEN_LABELS = """for ids, row in zip(batch["input_ids"], logits.argmax(-1).tolist()):
    print(list(zip(tokenizer.convert_ids_to_tokens(ids), [labels[index] for index in row])))"""
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
    reads_pairs = len(getattr(model.config, "text_columns", None) or ()) == 2
    if head == "ForSequenceClassification":
        text = classifier(is_regression, reads_pairs or None, windows=get_windows(model.config))
    base = _read_header(source)
    base_model, base_name = find_base_model(source_name)
    header = inherit_header(
        base,
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
    if wrapper is not None:
        code = _write_wrapper_code(wrapper, output_dir.name, to)
    else:
        code = _write_code(model, output_dir.name, to, done.model_class, reads_pairs, is_regression)
    sections.append(f"## How to run it\n\n{code}")
    sections.append(f"## Limitations\n\n{text.limits}")
    save_model_card(output_dir, header, sections)


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
    model: PreTrainedModel, name: str, to: str, model_class: str, reads_pairs: bool, is_regression: bool
) -> str:
    """Returns code that runs the export on example texts, and prints the labels or the outputs."""
    head, windows, quoted = type(model).__name__.removeprefix("SnugBert"), get_windows(model.config), json.dumps(name)
    import_engine, open_model, outputs = ENGINES[to]
    logits = f"{outputs}.logits" if to == "bert" else f"{outputs}[0]"
    inputs, limits = INPUTS.get(head, TEXTS), "truncation=True"
    if head == "ForSequenceClassification" and reads_pairs:
        inputs = '["The first text of a pair."], ["The second text."]'
    lines = []
    if windows is not None:
        inputs, limits = '"A long text."', WINDOWS.format(size=windows[0], stride=windows[1])
        lines.append('del batch["overflow_to_sample_mapping"]')
        outputs = logits = f"({logits}).mean(0)[None]"  # the mean of all windows
    if head == "ForMultipleChoice":
        lines.append("batch = {name: values[None] for name, values in batch.items()}  # one example with two choices")
    file = json.dumps(f"{name}/{FILES[to]}")
    lines.append(open_model.format(file=file, model_class=model_class, name=quoted))
    if (labels := _choose_labels(model, is_regression)) is None:
        lines.append(f"print({outputs})")
    else:
        lines += [f"logits = {logits}", f"config = AutoConfig.from_pretrained({quoted})", "labels = config.id2label"]
        lines.append(labels)
    tensors, code = "pt" if to == "bert" else "np", "\n".join(lines)
    import_math = "import math\n" if "math." in code else ""
    return f"""```python
{import_math}{import_engine}
from transformers import {"AutoTokenizer" if labels is None else "AutoConfig, AutoTokenizer"}

tokenizer = AutoTokenizer.from_pretrained({quoted})
batch = dict(tokenizer({inputs}, padding=True, {limits}, return_tensors="{tensors}"))
{code}
```"""


def _choose_labels(model: PreTrainedModel, is_regression: bool) -> str | None:
    """Returns code that prints the labels. None: the model does not predict labels."""
    if type(model).__name__.endswith("ForTokenClassification"):
        return TOKEN_LABELS
    if is_regression or not type(model).__name__.endswith("ForSequenceClassification"):
        return None
    several = model.config.problem_type == "multi_label_classification"
    if getattr(model.config, "thresholds", None):
        return THRESHOLDS if several else ONE_THRESHOLD
    return SEVERAL_LABELS if several else TEXT_LABELS
