"""Exports a model: converts it, lets the engine's converter write it, runs it, and writes the card."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.checkpoints import CLASSES, Checkpoint, build_model, read_checkpoint
from snugbert.convert import check_output_dir, convert, put_in_place
from snugbert.errors import InputError
from snugbert.export.card import write_card
from snugbert.export.check import TOLERANCE, find_difference, run_in_torch
from snugbert.export.engine import Batch, Dtype, ExportSource, Run
from snugbert.export.scores import BATCH_SIZE, Score, make_score
from snugbert.export.texts import make_batches, make_texts, read_texts, tokenize
from snugbert.json_files import read_json
from snugbert.models import max_tokens
from snugbert.sentence_transformers_files import find_model_folder, read_modules
from snugbert.stock_models import choose_family
from snugbert.writing import writing

# Target -> its module and the extra with its packages.
ENGINES = {
    "onnx": ("snugbert.export.onnx_engine", "onnx"),
    "openvino": ("snugbert.export.openvino_engine", "openvino"),
    "ctranslate2": ("snugbert.export.ctranslate2_engine", "ctranslate2"),
    "bert": ("snugbert.export.stock_engine", "train"),
}
CALIBRATION_TEXTS = 300  # as in NNCF's default `subset_size`
LONGEST_CALIBRATION_TEXT = 256  # tokens; calibration keeps activations in memory
LONGEST_TEXT = 512  # of models without a limit, such as DeBERTa


@dataclass
class Export:
    """Result of an export.

    Attributes:
        engine: name and version of the engine.
        model_class: class of the stock model in config.json.
        dtype: dtype of the weights.
        calibrated: whether ranges of activations were measured on text.
        size: total size of the model files, in bytes.
        difference: largest difference from the outputs of the SnugBERT model.
        num_texts: number of texts that both ran on.
        scores: metric -> its value in the SnugBERT model and in the export. Empty without a validation file.
        notes: sentences to show to the user.
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


def export(
    source: Path,
    output_dir: Path,
    to: str,
    *,
    dtype: Dtype = "float32",
    calibration_file: Path | None = None,
    text_file: Path | None = None,
    validation_file: Path | None = None,
    overwrite_output_dir: bool = False,
    **data: Any,
) -> Export:
    """Writes a model for an engine, and compares it with the original.

    The folder contains config.json and tokenizer of the equivalent stock model, the files of sentence-transformers if
    the source has them, and the engine's files.

    Args:
        source: a checkpoint of the BERT family, see [`read_checkpoint`].
        output_dir: the folder to write. Other files in it are kept.
        to: one of `ENGINES`.
        dtype: dtype of the weights.
        calibration_file: a text per line, to measure the ranges of activations in int8. None: the engine quantizes
            activations at run time or not at all.
        text_file: a text per line, on which the outputs are compared. They are also compared on built-in text of all
            lengths.
        validation_file: labeled examples to score the model and its export on.
        overwrite_output_dir: whether to replace a model in `output_dir`.
        data: arguments for reading the validation file, such as `task_name`, see [`make_score`].

    Raises:
        InputError: a package is missing, the engine cannot run the model, a file cannot be used, or in float32 the
            outputs differ by more than `TOLERANCE`, times the largest output if it exceeds 1. Nothing is written.
    """
    engine = _import_engine(to)
    if calibration_file is not None and (dtype != "int8" or to == "bert"):
        raise InputError("--calibration_file needs --dtype int8, and --to onnx or openvino.")
    files = {"calibration_file": calibration_file, "text_file": text_file, "validation_file": validation_file}
    for name, file in files.items():
        if file is not None and not file.is_file():
            raise InputError(f"--{name}: there is no file {file}.")
    check_output_dir(source, output_dir, overwrite_output_dir)
    folder = find_model_folder(source)
    checkpoint = read_checkpoint(folder)
    family = "bert" if to == "bert" else choose_family(checkpoint)
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix=f".{output_dir.name}.", dir=output_dir.parent)
    with writing(output_dir, "run the same command again"), temporary:
        written = Path(temporary.name) / "export"
        stock_dtype = torch.float16 if to == "bert" and dtype == "float16" else torch.float32
        converted = convert(source, written, family, dtype=stock_dtype)
        tokenizer = AutoTokenizer.from_pretrained(written)
        model = _load_model(checkpoint, keep_pooler=not read_modules(source))
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids" or _has_segments(checkpoint)]
        limit = min(max_tokens(model, tokenizer), LONGEST_TEXT)

        def batches(texts: list[str], size: int = BATCH_SIZE, longest: int = limit) -> list[Batch]:
            return list(make_batches(tokenize(texts, tokenizer, checkpoint.head, longest), tokenizer, names, size))

        score = _make_score(checkpoint, source, validation_file, tokenizer, names, batches, data)
        calibration: list[Batch] = []
        if calibration_file is not None:
            texts = read_texts(calibration_file, CALIBRATION_TEXTS)
            calibration = batches(texts, size=1, longest=min(limit, LONGEST_CALIBRATION_TEXT))
        engine.write(ExportSource(model, checkpoint.head, names, written), written, dtype, calibration)
        if to != "bert":
            for file in written.glob("model*.safetensors*"):
                file.unlink()
        _complete_config(written, model)

        texts = make_texts(tokenizer, limit) + (read_texts(text_file) if text_file else [])
        model.set_attn_implementation("sdpa")  # what users run
        original, run = run_in_torch(model), engine.load(written)
        difference, largest = find_difference(original, run, batches(texts), checkpoint.head)
        if dtype == "float32" and not difference <= TOLERANCE * max(1, largest):
            raise InputError(
                f"{source}: in {engine.describe()}, the outputs differ by {difference:.1e}. The limit is "
                f"{TOLERANCE * max(1, largest):.1e}. Nothing was written."
            )
        done = Export(
            engine=engine.describe(),
            model_class=converted.model_class,
            dtype=dtype,
            calibrated=bool(calibration),
            size=sum(file.stat().st_size for file in list_model_files(written, to)),
            difference=difference,
            num_texts=len(texts),
            scores=_compare_scores(score, original, run),
            notes=converted.notes,
        )
        write_card(written, source, output_dir.name, checkpoint.head, to, done)
        for other in ENGINES:  # of a model that is replaced
            shutil.rmtree(output_dir / other, ignore_errors=True)
        put_in_place(written, output_dir)
    return done


def _import_engine(to: str) -> ModuleType:
    module, extra = ENGINES[to]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("snugbert"):
            raise
        raise InputError(
            f"--to {to}: the package {error.name} is not installed. Run: pip install 'snugbert[{extra}]'"
        ) from error


def _load_model(checkpoint: Checkpoint, keep_pooler: bool) -> PreTrainedModel:
    """Returns the SnugBERT model. An embedding model has its own pooling, and does not need a pooler."""
    head = checkpoint.head
    config, weights, options = checkpoint.config, checkpoint.weights, checkpoint.options("snugbert")
    if head == "Model" and not keep_pooler:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("bert.pooler.")}
        options = {"add_pooling_layer": False}
    config._attn_implementation = "eager"  # for the graph
    return build_model(CLASSES["snugbert"][head], config, weights, torch.float32, options).eval()


def _has_segments(checkpoint: Checkpoint) -> bool:
    return checkpoint.config.type_vocab_size > 1


def _make_score(
    checkpoint: Checkpoint,
    source: Path,
    file: Path | None,
    tokenizer: PreTrainedTokenizerBase,
    names: list[str],
    batches: Callable[[list[str]], list[Batch]],
    data: dict[str, Any],
) -> Score | None:
    if file is None:
        return None
    pool = load_pooling(source)

    def embed(run: Run, texts: list[str]) -> np.ndarray:
        return np.concatenate([pool(run(batch)["last_hidden_state"], batch) for batch in batches(texts)])

    return make_score(checkpoint.head, checkpoint.folder, file, tokenizer, names, embed, **data)


def load_pooling(folder: Path) -> Callable[[np.ndarray, Batch], np.ndarray]:
    """Returns a function that pools hidden states to one vector per text, *shape* (B, size).

    With modules.json, sentence-transformers' own modules do it. Without, it is the mean over tokens.

    Raises:
        InputError: sentence-transformers is missing.
    """
    if not read_modules(folder):
        return lambda states, batch: (
            (states * batch["attention_mask"][..., None]).sum(1) / batch["attention_mask"].sum(1, keepdims=True)
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise InputError(
            f"{folder}: its pooling needs sentence-transformers. Run: pip install 'snugbert[embeddings]'"
        ) from error
    modules = list(SentenceTransformer(str(folder), device="cpu", local_files_only=True))[1:]

    @torch.inference_mode()
    def pool(states: np.ndarray, batch: Batch) -> np.ndarray:
        features = {
            "token_embeddings": torch.from_numpy(np.asarray(states)),
            "attention_mask": torch.from_numpy(batch["attention_mask"]),
        }
        for module in modules:
            features = module(features)
        return features["sentence_embedding"].numpy()

    return pool


def _complete_config(folder: Path, model: PreTrainedModel) -> None:
    """Writes the labels of a classifier. transformers 5 omits the default ones, but servers need them."""
    config: Any = model.config
    if config.architectures and "Classification" in config.architectures[0]:
        labels = {"id2label": {str(index): label for index, label in config.id2label.items()}}
        values = read_json(folder / "config.json") | labels | {"label2id": config.label2id}
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _compare_scores(score: Score | None, original: Run, run: Run) -> dict[str, tuple[float, float]]:
    if score is None:
        return {}
    before, after = score(original), score(run)
    return {name: (value, after[name]) for name, value in before.items() if name in after}


def list_model_files(folder: Path, to: str) -> list[Path]:
    """Returns the files with the model in an exported folder, without tokenizer and settings."""
    return list(folder.glob("model*.safetensors") if to == "bert" else (folder / to).iterdir())
