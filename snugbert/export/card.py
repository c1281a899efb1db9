"""The card of an exported model: what it is, how it differs from the original, and code that runs it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

from snugbert.card_heads_snugbert import HEADS, Head
from snugbert.card_snugbert import TAGS, escape, find_base_model
from snugbert.sentence_transformers_files import is_cross_encoder, read_modules
from snugbert.trainers.card import save_model_card, table

if TYPE_CHECKING:
    from snugbert.export.export import Export

TOKENIZE = """from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
batch = tokenizer(["A text.", "Another text."], padding=True, truncation=True, return_tensors="{tensors}")
"""
# Target -> code that runs the model.
CODE = {
    "onnx": """import onnxruntime
{tokenize}session = onnxruntime.InferenceSession("{name}/onnx/model.onnx")
print(session.run(None, dict(batch)))""",
    "openvino": """import openvino
{tokenize}model = openvino.Core().compile_model(
    "{name}/openvino/openvino_model.xml", "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}}
)
print(model(dict(batch)))""",
    "ctranslate2": """import ctranslate2
import numpy as np
{tokenize}lengths = batch["attention_mask"].sum(axis=1)
ids = [row[:length].tolist() for row, length in zip(batch["input_ids"], lengths)]
outputs = ctranslate2.Encoder("{name}/ctranslate2").forward_batch(ids)
print(np.array(outputs.last_hidden_state).shape)""",
    "bert": """from transformers import {model_class}
{tokenize}print({model_class}.from_pretrained("{name}")(**batch))""",
}
EMBEDS = Head(
    "AutoModel",
    "sentence-similarity",
    "returns a vector for each text",
    "Compare vectors of this model only with each other.",
    "",
)
EMBED = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}"{backend})
print(model.encode(["A text.", "Another text."]))"""
RERANK = """from sentence_transformers import CrossEncoder

model = CrossEncoder("{name}"{backend})
print(model.predict([("A question?", "A text that may answer it.")]))"""


def write_card(written: Path, source: Path, name: str, head: str, to: str, done: "Export") -> None:
    """Writes README.md, with language and license of the original card.

    Args:
        written: folder of the exported model.
        source: folder of the original.
        name: name of the exported model.
        head: its head, a key of `HEADS`.
        to: the target.
        done: the export.
    """
    base = _read_header(source)
    base_model, base_name = find_base_model(str(source))
    text = EMBEDS if read_modules(source) and head == "Model" else HEADS[head]
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
    sections = [
        f"# {escape(name)}",
        f"A BERT encoder that {text.ability}. Exported from {escape(base_name)} by `snugbert export`.",
        "\n".join(f"- {fact}" for fact in facts),
    ]
    if done.scores:
        rows = [(metric, f"{before:.4f}", f"{after:.4f}") for metric, (before, after) in done.scores.items()]
        sections.append(f"## Scores\n\n{table(('metric', 'original', f'exported, {done.dtype}'), rows)}")
    sections.append(f"## How to run it\n\n{_code(source, name, head, to, done.model_class)}")
    sections.append(f"## Limitations\n\n{text.limits}")
    save_model_card(written, header, sections)


def _read_header(source: Path) -> Any:
    try:
        return ModelCard.load(source / "README.md", ignore_metadata_errors=True).data
    except (OSError, ValueError, yaml.YAMLError):  # no card, or an invalid header
        return ModelCardData()


def _code(source: Path, name: str, head: str, to: str, model_class: str) -> str:
    # CTranslate2 is not a backend of sentence-transformers.
    backend = {"bert": "", "onnx": ', backend="onnx"', "openvino": ', backend="openvino"'}.get(to)
    if backend is not None and is_cross_encoder(source):
        code = RERANK.format(name=name, backend=backend)
    elif backend is not None and read_modules(source):
        code = EMBED.format(name=name, backend=backend)
    else:
        tokenize = TOKENIZE.format(name=name, tensors="pt" if to == "bert" else "np")
        code = CODE[to].format(tokenize=tokenize, name=name, model_class=model_class)
    return f"```python\n{code}\n```"
