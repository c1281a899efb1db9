"""Finds out what kind of model a folder contains, and makes its predictor.

Models of sentence-transformers embed texts or score pairs.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.tables import read_text
from snugbert.errors import InputError, explain_choice
from snugbert.families.loading import get_text_columns, load_config, load_model, load_tokenizer
from snugbert.families.reading import HEADS_BY_CLASS
from snugbert.families.sentence_transformers_files import find_model_folder, is_cross_encoder, read_modules
from snugbert.files import read_json
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.prediction.predictor import Prediction, Predictor, choose_columns, choose_device, find_head
from snugbert.tasks import list_tasks

# Arguments of the command that are passed to tasks with the same argument.
TASK_SETTINGS = ("max_seq_length", "doc_stride", "version_2_with_negative", "abstain_below")


def make_predictor(
    folder: Path,
    args: PredictionArguments,
    first_rows: Sequence[Mapping[str, Any]],
) -> Any:
    """Returns the [`Predictor`] of a fine-tuned model, or the predictor of any other model, with the same methods.

    The embeddings of a plain encoder are means over tokens. `first_rows` are inspected to find the columns of text.
    """
    reader = find_reader(folder)
    is_sentence_transformer = issubclass(reader, SentenceTransformerPredictor)
    trained_columns = () if is_sentence_transformer else get_text_columns(read_json(folder / "config.json"))
    columns: Sequence[str] = ("tokens",)
    if args.reads_conll and columns not in reader.default_columns:
        raise InputError(
            f"--input_file: only models that label tokens can read CoNLL files such as {args.input_file}. Use .tsv, "
            ".csv, .json or .jsonl."
        )
    if not args.reads_conll:
        columns = choose_columns(reader, args.columns, str(args.input_file), first_rows, trained_columns)
    known = (
        {"prompt_name"} if is_sentence_transformer else {each.name for each in dataclasses.fields(reader.arguments)}
    )
    for name in ("abstain_below", "prompt_name"):
        if getattr(args, name) is not None and name not in known:
            raise InputError(f"--{name} does not apply to this model. Remove the flag.")
    predicted = {*reader.predicted_columns, *(["abstained"] if args.abstain_below is not None else [])}
    taken = sorted({name for values in first_rows for name in values} & predicted)
    if taken:
        raise InputError(f"{args.input_file}: the column {taken[0]!r} would be overwritten. Rename the column.")
    device = choose_device(args.use_cpu)
    if is_sentence_transformer:
        return reader(args, folder, columns, device)
    settings = {name: getattr(args, name) for name in TASK_SETTINGS if name in known}
    return Predictor(
        folder,
        task=reader(**{name: value for name, value in settings.items() if value is not None}),
        columns=columns,
        max_seq_length=args.max_seq_length,
        max_batch_tokens=args.max_batch_tokens,
        bf16=bool(args.bf16),
        cuda_graphs=args.cuda_graphs,
        device=device,
    )


def find_reader(folder: Path) -> Any:
    """Returns the task of a fine-tuned model, or the class that predicts with any other model."""
    if is_cross_encoder(folder):
        return Reranker
    if read_modules(folder):
        return Embedder
    architectures = read_json(folder / "config.json").get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else "no model class"
    if HEADS_BY_CLASS.get(name) == "Model":
        return Embedder
    return list_tasks()[find_head(name, f"--model_name_or_path: {folder}/config.json names")]


# --- sentence-transformers --------------------------------------------------------------------------------------

BATCH_SIZE = 32  # texts. sentence-transformers cannot limit the tokens of a batch


class SentenceTransformerPredictor:
    """A predictor with a model of sentence-transformers. Its encoder is a SnugBERT model, which drops padding."""

    any_columns = True
    kind: str  # the class in sentence-transformers
    method: str  # its method that predicts
    predicted_columns: tuple[str, ...]

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str], device: torch.device):
        self.args, self.columns = args, columns
        self.model = _load_sentence_transformer(self.kind, folder, args, device)

    def describe_truncation(self) -> None:
        """Texts that are too long are not counted."""

    def read(self, values: Mapping[str, Any]) -> str | tuple[str, ...]:
        """Returns the text, or the pair."""
        texts = tuple(read_text(values, column) for column in self.columns)
        return texts if len(texts) > 1 else texts[0]

    def answer(self, examples: list[Any]) -> list[Prediction]:
        """Returns a number or a list of numbers for each example, with just enough digits for float32."""
        options = {"batch_size": BATCH_SIZE, "prompt_name": self.args.prompt_name, "show_progress_bar": False}
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            outputs = getattr(self.model, self.method)(examples, **options)
        numbers = np.asarray(outputs, np.float32).astype(str).astype(float).tolist()
        return [{self.predicted_columns[0]: number} for number in numbers]


class Embedder(SentenceTransformerPredictor):
    """Embeds texts."""

    kind, method = "SentenceTransformer", "encode"
    default_columns = (("text",), ("sentence",))
    predicted_columns = ("embedding",)


class Reranker(SentenceTransformerPredictor):
    """Scores pairs with a CrossEncoder. Models with several labels give a list of scores."""

    kind, method = "CrossEncoder", "predict"
    default_columns = (("query", "text"), ("question", "context"), ("sentence1", "sentence2"))
    predicted_columns = ("score",)


def _load_sentence_transformer(name: str, folder: Path, args: PredictionArguments, device: torch.device) -> Any:
    """Loads an embedding model or a CrossEncoder with a SnugBERT encoder, or with an exported encoder."""
    import sentence_transformers

    model_args = ModelArguments(model_name_or_path=str(find_model_folder(folder)))
    config = load_config(model_args, load_tokenizer(model_args))
    is_reranker = name == "CrossEncoder"
    auto_class = AutoModelForSequenceClassification if is_reranker else AutoModel
    options = {} if is_reranker else {"add_pooling_layer": False}
    encoder = load_model(auto_class, model_args, config, trained=True, **options).eval()
    # sentence-transformers does not accept a loaded model. It would read the weights again, and an export has none.
    with patch.object(auto_class, "from_pretrained", lambda *args, **options: encoder):
        model = getattr(sentence_transformers, name)(str(folder), device=str(device), local_files_only=True)
    if args.prompt_name is not None and args.prompt_name not in model.prompts:
        raise InputError(explain_choice("--prompt_name", args.prompt_name, model.prompts))
    if args.max_seq_length is not None:
        model.max_seq_length = min(args.max_seq_length, model.max_seq_length or args.max_seq_length)
    return model
