"""Finds out what kind of model a folder contains, and makes its predictor.

Models of sentence-transformers embed texts or score pairs.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoModel

from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.tables import read_text
from snugbert.errors import InputError
from snugbert.families.loading import get_text_columns, load_config, load_model, load_tokenizer
from snugbert.families.reading import CLASSES, HEADS_BY_CLASS
from snugbert.families.sentence_transformers_files import find_model_folder, is_cross_encoder, read_modules
from snugbert.files import read_json
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.prediction.predictor import Prediction, Predictor, RowPredictor, choose_columns, choose_device, find_head
from snugbert.tasks import find_task

# Arguments of the command that are passed to tasks with the same argument.
TASK_SETTINGS = ("max_seq_length", "doc_stride", "version_2_with_negative", "abstain_below")


def make_predictor(
    folder: Path,
    args: PredictionArguments,
    first_rows: Sequence[Mapping[str, Any]],
    device: torch.device | None = None,
) -> RowPredictor:
    """Returns the predictor of a fine-tuned model, a model of sentence-transformers, or a plain encoder.

    The embeddings of a plain encoder are means over tokens. `first_rows` are inspected to find the columns of text.
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
    """Returns a [`Reader`]: the task of a fine-tuned model, or the class that predicts with any other model."""
    if is_cross_encoder(folder):
        return Reranker
    if read_modules(folder):
        return Embedder
    architectures = read_json(folder / "config.json").get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else "no model class"
    if HEADS_BY_CLASS.get(name) == "Model":
        return Embedder
    return find_task(find_head(name, f"--model_name_or_path: {folder}/config.json names"))


# --- sentence-transformers --------------------------------------------------------------------------------------

BATCH_SIZE = 32  # texts. sentence-transformers cannot limit the tokens of a batch


class SentenceTransformerPredictor(RowPredictor):
    """A predictor with a model of sentence-transformers. Its encoder is a SnugBERT model, which drops padding."""

    any_columns = True
    kind: ClassVar[str]  # the class in sentence-transformers

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str], device: torch.device):
        super().__init__()
        self.args, self.columns = args, columns
        self.model = _load_sentence_transformer(self.kind, folder, args, device)

    def run(self, method: Any, examples: list[Any]) -> np.ndarray:
        """Returns the outputs of a method of the model."""
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            return method(examples, batch_size=BATCH_SIZE, prompt_name=self.args.prompt_name, show_progress_bar=False)


class Embedder(SentenceTransformerPredictor):
    """Embeds texts."""

    kind = "SentenceTransformer"
    default_columns = (("text",), ("sentence",))
    predicted_columns = ("embedding",)

    def read(self, values: Mapping[str, Any]) -> str:
        """Returns the text."""
        return read_text(values, self.columns[0])

    def answer(self, examples: list[str]) -> list[Prediction]:
        """Returns the `embedding`, a list of numbers in float32."""
        # Keeps the fewest digits that give the same float32.
        rows = (row.astype(np.float32).astype(str) for row in self.run(self.model.encode, examples))
        return [{"embedding": [float(number) for number in row]} for row in rows]


class Reranker(SentenceTransformerPredictor):
    """Scores pairs with a CrossEncoder."""

    kind = "CrossEncoder"
    default_columns = (("query", "text"), ("question", "context"), ("sentence1", "sentence2"))
    predicted_columns = ("score",)

    def read(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the pair."""
        first, second = (read_text(values, column) for column in self.columns)
        return first, second

    def answer(self, examples: list[tuple[str, str]]) -> list[Prediction]:
        """Returns the `score`, a number, or a list of numbers if the model has several labels."""
        return [{"score": score} for score in self.run(self.model.predict, examples).tolist()]


def _load_sentence_transformer(name: str, folder: Path, args: PredictionArguments, device: torch.device) -> Any:
    """Loads an embedding model or a CrossEncoder, and replaces its encoder with the same weights in SnugBERT."""
    try:
        import sentence_transformers
    except ModuleNotFoundError as error:
        raise InputError(
            "--model_name_or_path: this model needs sentence-transformers. Run: pip install 'snugbert[embeddings]'"
        ) from error
    model = getattr(sentence_transformers, name)(str(folder), device=str(device), local_files_only=True)
    known = [prompt for prompt, text in model.prompts.items() if text]
    if args.prompt_name is not None and args.prompt_name not in known:
        raise InputError(
            f"--prompt_name: unknown prompt {args.prompt_name!r}. Prompts of the model: {', '.join(known) or 'none'}."
        )
    model_args = ModelArguments(model_name_or_path=str(find_model_folder(folder)))
    config = load_config(model_args, load_tokenizer(model_args))
    is_reranker = name == "CrossEncoder"
    auto_class: Any = CLASSES["snugbert"]["ForSequenceClassification"] if is_reranker else AutoModel
    options = {} if is_reranker else {"add_pooling_layer": False}
    encoder = load_model(auto_class, model_args, config, trained=True, **options)
    model[0].model = encoder.to(model.device).eval()  # type: ignore[arg-type]
    if args.max_seq_length is not None:
        model.max_seq_length = min(args.max_seq_length, model.max_seq_length or args.max_seq_length)
    return model
