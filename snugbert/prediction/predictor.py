"""Predicts rows with a fine-tuned model, an embedding model or a reranker.

A predictor reads examples from rows (`read`), and predicts many at once (`answer`), so that texts of similar
length share batches.

Shapes: N sequences, T tokens in a batch.
"""

import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.checkpoints.loading import (
    get_text_columns,
    load_config,
    load_model,
    load_tokenizer,
    max_tokens,
)
from snugbert.checkpoints.model_arguments import ModelArguments
from snugbert.checkpoints.reading import CLASSES, HEADS_BY_CLASS
from snugbert.checkpoints.sentence_transformers_files import find_model_folder, is_cross_encoder, read_modules
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.cuda_graphs import CudaGraphs
from snugbert.data.packed_batches import pack
from snugbert.data.row_sizes import choose_prediction_multiple, pad_row
from snugbert.data.tables import read_text
from snugbert.errors import InputError
from snugbert.files import read_json
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.reports.intervals import Interval
from snugbert.tasks import find_task, list_tasks
from snugbert.tasks.base import Features, Task, make_evaluation_set
from snugbert.tasks.labeled_texts import describe_columns, find_text_columns
from snugbert.tasks.outputs import Logits, Output

logger = logging.getLogger(__name__)

Prediction = dict[str, Any]
TASK_SETTINGS = (
    "max_seq_length",
    "doc_stride",
    "version_2_with_negative",
)  # arguments of the command for tasks that have them
BATCH_SIZE = 32  # of sentence-transformers, which does not take a token budget


class Reader(Protocol):
    """How columns are chosen: a task, or a model of sentence-transformers.

    Attributes:
        default_columns: names of columns to look for, by priority.
        any_columns: whether it also reads other columns, if no more than it needs have text.
        predicted_columns: the columns that it adds.
    """

    default_columns: ClassVar[tuple[tuple[str, ...], ...]]
    any_columns: ClassVar[bool]
    predicted_columns: ClassVar[tuple[str, ...]]


class RowPredictor(ABC):
    """Predicts rows.

    Attributes:
        columns: the columns to read.
    """

    columns: Sequence[str] = ()

    @abstractmethod
    def read(self, values: Mapping[str, Any]) -> Any:
        """Returns the example of a row.

        Raises:
            InputError: a column is missing or has no text. The message does not name the row.
        """

    @abstractmethod
    def answer(self, examples: list[Any]) -> list[Prediction]:
        """Returns the prediction for each example from [`read`]: columns to add to its row."""

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[Prediction]:
        """Returns the prediction for each row, as columns to add to it.

        Raises:
            InputError: a row has no text in the columns to read. The message names the row, counted from 1.
        """
        examples = []
        for row, values in enumerate(rows, start=1):
            try:
                examples.append(self.read(values))
            except InputError as error:
                raise InputError(f"row {row}: {error}") from error
        return self.answer(examples) if examples else []


def make_predictor(folder: Path, args: PredictionArguments, first_rows: Sequence[Mapping[str, Any]]) -> RowPredictor:
    """Returns the predictor of a model.

    Args:
        folder: a fine-tuned model, an embedding model or a CrossEncoder of sentence-transformers, or a plain encoder,
            whose embeddings are means over tokens.
        args: the arguments of the command.
        first_rows: values of the first rows, to find the columns of text.

    Raises:
        InputError: the model cannot be used or has no fine-tuned head, the columns are missing, or a package is
            missing.
    """
    reader = find_reader(folder)
    is_sentence_transformer = issubclass(reader, SentenceTransformerPredictor)
    trained_columns = () if is_sentence_transformer else get_text_columns(read_json(folder / "config.json"))
    columns: Sequence[str] = ("tokens",)
    if not args.reads_conll:
        columns = _choose_columns(reader, args.columns, str(args.input_file), first_rows, trained_columns)
    taken = sorted({name for values in first_rows for name in values} & set(reader.predicted_columns))
    if taken:
        raise InputError(f"{args.input_file}: the column {taken[0]!r} would be overwritten. Rename it.")
    if is_sentence_transformer:
        return reader(args, folder, columns)
    if args.prompt_name is not None:
        raise InputError("--prompt_name: only embedding models and CrossEncoders have prompts. Remove it.")
    options: dict[str, Any] = {
        "columns": columns,
        "max_seq_length": args.max_seq_length,
        "max_batch_tokens": args.max_batch_tokens,
        "bf16": bool(args.bf16),
        "cuda_graphs": args.cuda_graphs,
        "device": choose_device(args.use_cpu),
    }
    known = {each.name for each in dataclasses.fields(reader.arguments)}
    settings = {name: getattr(args, name) for name in TASK_SETTINGS if name in known}
    task = reader(**{name: value for name, value in settings.items() if value is not None})
    return Predictor(folder, task=task, **options)


def find_reader(folder: Path) -> Any:
    """Returns the task of a fine-tuned model, or the class that predicts with another model: a [`Reader`].

    Raises:
        InputError: the model has no fine-tuned head.
    """
    if is_cross_encoder(folder):
        return Reranker
    if read_modules(folder):
        return Embedder
    name = (read_json(folder / "config.json").get("architectures") or ["no model class"])[0]
    head = HEADS_BY_CLASS.get(name, "")
    if head in list_tasks():
        return find_task(head)
    if head == "Model":
        return Embedder
    raise InputError(
        f"--model_name_or_path: {folder}/config.json names {name}. Expected a fine-tuned model of the BERT "
        "family, or an embedding model."
    )


def _choose_columns(
    reader: Reader,
    given: list[str] | None,
    source: str,
    first_rows: Sequence[Mapping[str, Any]],
    trained_columns: tuple[str, ...],
) -> Sequence[str]:
    """Returns the given columns, those that the model was trained on, or the first default columns that exist."""
    numbers: Sequence[int] = sorted({len(names) for names in reader.default_columns})
    present = list(dict.fromkeys(name for values in first_rows for name in values))
    if given is not None:
        if len(given) not in numbers:
            expected = " or ".join(map(str, numbers))
            raise InputError(f"--text_column_names: expected {expected} columns, not {len(given)}.")
        missing = [name for name in given if first_rows and name not in present]
        if missing:
            raise InputError(f"--text_column_names: no column {missing[0]!r}. Columns: {', '.join(present)}.")
        return given
    if not first_rows:
        return ("text",) * numbers[0]
    defaults, trained = reader.default_columns, ""
    if len(trained_columns) in numbers:
        trained = f" The model was trained on the {describe_columns(trained_columns)}."
        numbers = (len(trained_columns),)
        defaults = (trained_columns, *(names for names in defaults if len(names) in numbers))
    for names in defaults:
        if all(name in first_rows[0] for name in names):
            return names
    if not reader.any_columns:
        expected = " or ".join(dict.fromkeys(map(describe_columns, defaults)))
        raise InputError(f"{source}: no {expected}. Columns: {', '.join(present)}. Set --text_column_names.")
    try:
        found = find_text_columns(list(first_rows), "label", source)
    except InputError as error:
        columns = ", ".join(present)
        raise InputError(f"{source}: no text column. Columns: {columns}. Set --text_column_names.") from error
    if len(found) != numbers[0]:  # an id could be mistaken for a text
        problem = "several text columns" if len(found) > numbers[0] else "this model needs two text columns, found"
        raise InputError(f"{source}: {problem}: {', '.join(found)}.{trained} Set --text_column_names.")
    logger.info("%s: text %s", source, describe_columns(found))
    return found


def choose_device(use_cpu: bool = False) -> torch.device:
    """Returns the accelerator, if there is one and the user wants it, or the CPU."""
    accelerator = None if use_cpu else torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")


# --- fine-tuned models ------------------------------------------------------------------------------------------


class HeadPredictor(RowPredictor):
    """Runs a model with a fine-tuned head. SnugBERT gets packed batches, without padding.

    Args:
        model: a folder or Hub name, or a model in memory, which stays on its device.
        tokenizer: the tokenizer of a model in memory.
        columns: the columns to read.
        max_seq_length: maximum tokens of a window. Default: the limit of the model.
        max_batch_tokens: maximum tokens of a batch.
        bf16: compute in bfloat16.
        cuda_graphs: on a GPU, fill batches up to a few sizes, and record the kernels of each size once.
        device: where to run a model from a folder. Default: the GPU, if there is one.
    """

    def __init__(
        self,
        model: Path | str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        columns: Sequence[str] = (),
        max_seq_length: int | None = None,
        max_batch_tokens: int = 4096,
        bf16: bool = False,
        cuda_graphs: bool = True,
        device: torch.device | str | None = None,
    ):
        if isinstance(model, PreTrainedModel):
            self.model = model.eval()
        else:
            model_args = ModelArguments(model_name_or_path=str(model))
            tokenizer = load_tokenizer(model_args)
            config = load_config(model_args, tokenizer)
            name = (config.architectures or ["no model class"])[0]
            head = HEADS_BY_CLASS.get(name, "")
            if head not in list_tasks():
                raise InputError(f"{model}: config.json names {name}. Expected a fine-tuned model of the BERT family.")
            loaded = load_model(CLASSES["snugbert"][head], model_args, config, trained=True)
            self.model = loaded.to(device or choose_device()).eval()  # type: ignore[arg-type]
        if tokenizer is None:
            raise ValueError("`tokenizer` is missing. Pass the tokenizer of the model.")
        self.tokenizer, self.columns = tokenizer, columns
        self.max_batch_tokens, self.bf16, self.cuda_graphs = max_batch_tokens, bf16, cuda_graphs
        self.max_length = min(
            max_tokens(self.model, tokenizer), max_seq_length or max(512, self.model.config.max_position_embeddings)
        )
        self._graphs = CudaGraphs(self._forward, self.model)

    @property
    @abstractmethod
    def output(self) -> Output:
        """The form of the logits."""

    def compute_logits(self, columns: Mapping[str, list[np.ndarray]], has_choices: bool = False) -> list[np.ndarray]:
        """Computes the logits of each sequence.

        Args:
            columns: `input_ids` and any other columns with one value per token.
            has_choices: whether the model chooses. Each sequence is then an example with one choice.

        Returns:
            float32, *shape* (labels,) each, or (tokens, labels) if the output is per token.
        """
        lengths = np.array([len(ids) for ids in columns["input_ids"]])
        results: list[Any] = [None] * len(lengths)
        batches = list(split_by_tokens(lengths, self.max_batch_tokens))
        packs, multiple = isinstance(self.model.config, SnugBertConfig), None
        if self.cuda_graphs and packs:
            multiple = choose_prediction_multiple(self.model, self.max_batch_tokens, len(batches))
        for indices in batches:
            rows = {name: [column[index] for index in indices] for name, column in columns.items()}
            batch = pack(rows) if packs else self._pad(rows)
            if has_choices:
                batch = batch | {"num_choices": 1} if packs else {name: ids[:, None] for name, ids in batch.items()}
            tokens, number = int(lengths[indices].sum()), len(indices)
            if multiple is not None:
                # Rounding up to a power of two keeps the number of sizes small.
                batch = pad_row(batch, multiple, 1 << (number - 1).bit_length())
                del batch["num_sequences"]
            logits = self._run(batch, self._forward if multiple is None else self._graphs)
            if not np.isfinite(logits).all():
                raise InputError("--model_name_or_path: the model's outputs are not finite. Are its weights damaged?")
            parts: Any = logits[:number]
            if self.output.per_token and packs:  # without the padding of filled rows
                parts = np.split(logits[0, :tokens], np.cumsum(lengths[indices])[:-1])
            elif self.output.per_token:
                parts = [row[:length] for row, length in zip(logits, lengths[indices], strict=True)]
            for index, part in zip(indices.tolist(), parts, strict=True):
                results[index] = part
        return results

    def _pad(self, rows: Mapping[str, list[np.ndarray]]) -> dict[str, Any]:
        """Makes a padded batch. Padding on the left would shift the tokens."""
        lists = {name: [values.tolist() for values in column] for name, column in rows.items()}
        return dict(self.tokenizer.pad(lists, padding_side="right", return_tensors="pt"))

    @torch.inference_mode()
    def _run(self, batch: dict[str, Any], forward: Callable[[dict[str, Any]], torch.Tensor]) -> np.ndarray:
        device = self.model.device
        batch = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        return forward(batch).cpu().numpy()

    def _forward(self, batch: dict[str, Any]) -> torch.Tensor:
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bf16):
            return self.output.stack(self.model(**batch)).float()


class Predictor(HeadPredictor):
    """Predicts and scores rows with a fine-tuned model.

        predictor = Predictor("sst2")
        predictor.predict([{"text": "Good."}])  # [{"predicted_label": "positive", "probabilities": {...}}]
        predictor.evaluate(dataset)  # {"accuracy": 0.92}

    The task of the model reads the rows, and turns logits into columns.

    Args:
        model: a folder or Hub name, or a model in memory, which stays on its device.
        tokenizer: the tokenizer of a model in memory.
        task: the task, with settings such as the names of columns. Default: the task of the model's head.
        kwargs: `columns`, the columns to predict from (default: those that the model was trained on, or usual names);
            `max_seq_length` for predictions (default: the limit of the model); `max_batch_tokens` (4096); `bf16`
            (False); `cuda_graphs` (True); and `device` (default: the GPU, if there is one).

    Attributes:
        intervals: metric -> low and high end of its 95 % interval, of the last call of [`evaluate`].

    Raises:
        InputError: the model cannot be loaded or has no fine-tuned head.
    """

    def __init__(
        self,
        model: Path | str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        task: Task[Any, Any, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(model, tokenizer, **kwargs)
        self.intervals: dict[str, Interval] = {}
        self.task = find_task(HEADS_BY_CLASS[type(self.model).__name__])() if task is None else task.copy()
        self.task.use_checkpoint(self.model.config)
        self.task.use_tokenizer(self.tokenizer, self.max_length)

    @property
    def output(self) -> Output:
        """The form of the task's logits."""
        return self.task.output

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[Prediction]:
        """Returns the prediction for each row, as columns to add to it.

        Without `columns`, the first call chooses them as `snugbert predict` does.

        Args:
            rows: dicts, or a `datasets.Dataset`.

        Returns:
            A dict for each row, such as `predicted_label` and `probabilities` of a text. docs/how-to/predict.md lists
            the keys of each task.

        Raises:
            InputError: a row has no text in the columns to read. The message names the row, counted from 1.
        """
        if not self.columns:
            trained_columns = get_text_columns(self.model.config.to_dict())
            self.columns = _choose_columns(self.task, None, "the rows", rows, trained_columns)
        return super().predict(rows)

    def evaluate(self, data: Path | Dataset) -> dict[str, float]:
        """Returns the metrics on labeled examples, and sets `intervals`, as the fine-tuning commands do.

        Args:
            data: a dataset, or a file in a format of the command. Windows have the `max_seq_length` of the task.

        Raises:
            InputError: the examples cannot be used, have no labels, or have other labels than the model.
        """
        config: Any = self.model.config
        validation = make_evaluation_set(self.task, config, self.tokenizer, {"validation": [data]})
        logits = self.run(validation.features)
        metrics = validation.score_in_training(logits)
        self.intervals = validation.estimate_intervals(validation.decode(logits))
        return metrics

    def read(self, values: Mapping[str, Any]) -> Any:
        """Returns the example of a row, as the task reads it."""
        return self.task.read(values, self.columns)

    def answer(self, examples: list[Any]) -> list[Prediction]:
        """Returns the task's columns for each example."""
        split = self.task.make_split(examples)
        features = self.task.encode(split)
        return self.task.to_columns(split, self.task.decode(self.run(features), split, features))

    def run(self, features: Features) -> Logits:
        """Returns the logits of model inputs, in the form that tasks decode."""
        columns, choices = _list_sequences(features.inputs)
        if choices is None:
            return self.output.join_windows(self.compute_logits(columns))
        # Each sequence is an example with one choice. Examples may have different numbers of choices, and the logit of
        # a choice does not depend on the others.
        logits = np.concatenate(self.compute_logits(columns, has_choices=True))
        return self.output.join_windows(np.split(logits, np.cumsum(choices)[:-1]))


def _list_sequences(inputs: Dataset) -> tuple[dict[str, list[np.ndarray]], np.ndarray | None]:
    """Returns the values of each sequence, and the number of choices of each row. None: a row is one sequence.

    Packed batches need no attention mask.
    """
    table = inputs.with_format("arrow")[:]
    columns: dict[str, list[np.ndarray]] = {}
    choices = None
    for name in ("input_ids", "token_type_ids"):
        if name in table.column_names:
            lists = table[name].combine_chunks()
            if pa.types.is_list(lists.type.value_type):
                choices = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
                lists = pc.list_flatten(lists)
            ends = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False))[:-1]
            columns[name] = np.split(pc.list_flatten(lists).to_numpy().astype(np.int64), ends)
    return columns, choices


def split_by_tokens(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Groups sequences of similar length, the longest first, into batches of at most `max_tokens` tokens.

    A longer sequence is a batch of its own. Yields the indices of the sequences.
    """
    order = np.argsort(-lengths, kind="stable")
    start = tokens = 0
    for position, index in enumerate(order):
        if position > start and tokens + lengths[index] > max_tokens:
            yield order[start:position]
            start, tokens = position, 0
        tokens += lengths[index]
    if len(order):
        yield order[start:]


# --- sentence-transformers --------------------------------------------------------------------------------------


class SentenceTransformerPredictor(RowPredictor):
    """A predictor with a model of sentence-transformers. Its encoder is a SnugBERT model, which drops padding."""

    any_columns = True
    kind: ClassVar[str]  # the class in sentence-transformers

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str]):
        self.args, self.columns = args, columns
        self.model = _load_sentence_transformer(self.kind, folder, args)


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
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            embeddings = self.model.encode(
                examples, batch_size=BATCH_SIZE, prompt_name=self.args.prompt_name, show_progress_bar=False
            )
        # The shortest digits that give the same float32.
        rows = (row.astype(np.float32).astype(str) for row in embeddings)
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
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            scores = self.model.predict(
                examples, batch_size=BATCH_SIZE, prompt_name=self.args.prompt_name, show_progress_bar=False
            )
        return [{"score": score} for score in scores.tolist()]


def _load_sentence_transformer(name: str, folder: Path, args: PredictionArguments) -> Any:
    """Loads an embedding model or a CrossEncoder, and replaces its encoder by the same weights in SnugBERT."""
    try:
        import sentence_transformers
    except ModuleNotFoundError as error:
        raise InputError(
            "--model_name_or_path: this model needs sentence-transformers. Run: pip install 'snugbert[embeddings]'"
        ) from error
    model = getattr(sentence_transformers, name)(
        str(folder), device=str(choose_device(args.use_cpu)), local_files_only=True
    )
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
