"""Finds out what kind of model a folder contains, and makes its predictor."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from snugbert.errors import InputError
from snugbert.families.loading import get_text_columns
from snugbert.families.reading import HEADS_BY_CLASS
from snugbert.families.sentence_transformers_files import is_cross_encoder, read_modules
from snugbert.files import read_json
from snugbert.prediction.columns import choose_columns
from snugbert.prediction.embedders import Embedder, Reranker, SentenceTransformerPredictor
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.prediction.predictor import Predictor, RowPredictor, choose_device, find_head
from snugbert.tasks import find_task

# Arguments of the command that are passed to tasks with the same argument.
TASK_SETTINGS = ("max_seq_length", "doc_stride", "version_2_with_negative", "abstain_below")


def make_predictor(
    folder: Path,
    args: PredictionArguments,
    first_rows: Sequence[Mapping[str, Any]],
    device: torch.device | None = None,
) -> RowPredictor:
    """Returns the predictor of a model.

    Args:
        folder: a fine-tuned model, a sentence-transformers model (embedding model or CrossEncoder), or a plain
            encoder. The embeddings of a plain encoder are means over tokens.
        args: the arguments of the command.
        first_rows: values of the first rows, to find the columns of text.
        device: where the model runs. Default: the accelerator, if there is one and the user wants it, or the CPU.

    Raises:
        InputError: the model cannot be used or has no fine-tuned head, the columns are missing, or a package is
            missing.
    """
    reader = find_reader(folder)
    is_sentence_transformer = issubclass(reader, SentenceTransformerPredictor)
    trained_columns = () if is_sentence_transformer else get_text_columns(read_json(folder / "config.json"))
    columns: Sequence[str] = ("tokens",)
    if not args.reads_conll:
        columns = choose_columns(reader, args.columns, str(args.input_file), first_rows, trained_columns)
    known = set() if is_sentence_transformer else {each.name for each in dataclasses.fields(reader.arguments)}
    abstains = args.abstain_below is not None
    if abstains and "abstain_below" not in known:
        raise InputError("--abstain_below: only text classifiers can abstain. Remove the flag.")
    predicted = {*reader.predicted_columns, *(["abstained"] if abstains else [])}
    taken = sorted({name for values in first_rows for name in values} & predicted)
    if taken:
        raise InputError(f"{args.input_file}: the column {taken[0]!r} would be overwritten. Rename the column.")
    device = device or choose_device(args.use_cpu)
    if is_sentence_transformer:
        return reader(args, folder, columns, device)
    if args.prompt_name is not None:
        raise InputError("--prompt_name: only embedding models and CrossEncoders have prompts. Remove the flag.")
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
    """Returns a [`Reader`]: the task of a fine-tuned model, or the class that predicts with any other model.

    Raises:
        InputError: the model has no fine-tuned head.
    """
    if is_cross_encoder(folder):
        return Reranker
    if read_modules(folder):
        return Embedder
    architectures = read_json(folder / "config.json").get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else "no model class"
    if HEADS_BY_CLASS.get(name) == "Model":
        return Embedder
    return find_task(find_head(name, f"--model_name_or_path: {folder}/config.json names"))
