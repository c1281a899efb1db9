"""`Predictor` predicts and scores rows with a fine-tuned model. `QuestionAnswerer` answers questions.

Shapes: N sequences, T tokens in a batch.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from accelerate.utils import send_to_device
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.cli.model_arguments import ModelArguments, TokenizerArguments
from snugbert.configuration_snugbert import get_windows
from snugbert.data.packed_batches import NUM_WINDOWS, pack
from snugbert.data.tables import make_source, number_rows
from snugbert.errors import InputError, list_columns
from snugbert.families.engine_models import EngineModel
from snugbert.families.loading import get_text_columns, load_config, load_model, load_tokenizer, max_tokens
from snugbert.families.reading import CLASSES, HEADS_BY_CLASS
from snugbert.gpu.cuda_graphs import CudaGraphs
from snugbert.gpu.row_sizes import choose_prediction_multiple, pad_row
from snugbert.modeling_snugbert import SnugBertPreTrainedModel
from snugbert.reports.intervals import Interval
from snugbert.tasks import list_tasks
from snugbert.tasks.base import Features, Task
from snugbert.tasks.evaluation_set import make_evaluation_set
from snugbert.tasks.labeled_texts import ROWS_TO_INSPECT, describe_columns, list_text_columns
from snugbert.tasks.outputs import Logits, average_windows
from snugbert.tasks.question_answering import QuestionAnswering

logger = logging.getLogger(__name__)

Prediction = dict[str, Any]


def choose_device(use_cpu: bool = False) -> torch.device:
    """Returns the accelerator, if available, or the CPU."""
    accelerator = None if use_cpu else torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")


class Predictor:
    """Predicts and scores rows with a fine-tuned model.

        predictor = Predictor("sst2")
        predictor("Good.")  # {"predicted_label": "positive", "probabilities": {"positive": 0.97, "negative": 0.03}}
        predictor.evaluate(dataset)  # {"accuracy": 0.92}

    The task of the model reads the rows, and turns logits into columns. SnugBERT runs packed batches, without padding.

    Args:
        model: a folder or Hub name, a folder that `snugbert export` wrote, or a model in memory, which stays on its
            device.
        tokenizer: default: the tokenizer in the model's folder.
        task: the task, with settings such as the names of columns. Default: the task of the model's head.
        columns: the columns to predict from. Default: the task's, the columns of the training data, or common names.
        max_seq_length: maximum tokens of a window in predictions. Default: the limit of the model.
        max_batch_tokens: maximum tokens of a batch.
        bf16: compute in bfloat16.
        cuda_graphs: on a GPU, pad batches to a few sizes, and record a CUDA graph for each size.
        device: where to run a model from a folder. Default: the GPU, if there is one.

    Attributes:
        intervals: metric -> low and high end of its 95 % interval, from the last call of [`evaluate`].
    """

    def __init__(
        self,
        model: Path | str | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        task: Task[Any, Any, Any] | None = None,
        *,
        columns: Sequence[str] = (),
        max_seq_length: int | None = None,
        max_batch_tokens: int = 4096,
        bf16: bool = False,
        cuda_graphs: bool = True,
        device: torch.device | str | None = None,
    ):
        loaded: Any = model
        if not isinstance(model, PreTrainedModel):
            model_args = ModelArguments(model_name_or_path=str(model))
            tokenizer = load_tokenizer(model_args) if tokenizer is None else tokenizer
            config = load_config(model_args, tokenizer)
            head = find_head((config.architectures or ["no model class"])[0], f"{model}: config.json names")
            loaded = load_model(CLASSES["snugbert"][head], model_args, config, trained=True)
            loaded.to("cpu" if isinstance(loaded, EngineModel) else device or choose_device())
        if tokenizer is None:
            raise InputError("tokenizer is missing. Pass the tokenizer of the model.")
        is_export = isinstance(loaded, EngineModel)
        class_name = str((loaded.config.architectures or [""])[0]) if is_export else type(loaded).__name__
        if task is None:
            task = list_tasks()[find_head(class_name, "model: unexpected class")]()
        elif HEADS_BY_CLASS.get(class_name, task.head) != task.head:
            raise InputError(f"model: a {class_name} does not fit the task {type(task).__name__}.")
        self.model, self.tokenizer, self.task = loaded.eval(), tokenizer, task.copy()
        self.columns = [columns] if isinstance(columns, str) else columns or task.given_columns
        self.max_batch_tokens, self.bf16, self.cuda_graphs = max_batch_tokens, bf16, cuda_graphs
        self.intervals: dict[str, Interval] = {}
        self._graphs = CudaGraphs(self._forward, self.model)
        self.task.use_checkpoint(loaded.config)
        windows = get_windows(loaded.config)
        longest = max_seq_length or (windows[0] if windows else max(512, loaded.config.max_position_embeddings))
        self.task.use_tokenizer(tokenizer, min(max_tokens(loaded, tokenizer), longest))

    def __call__(self, rows: Any) -> Any:
        """Returns the prediction for each row, as columns to add to the row. docs/how-to/predict.md lists the columns.

        If neither `columns` nor the task names the columns, each call chooses them, as `snugbert predict` does.

        Args:
            rows: a `datasets.Dataset`, a DataFrame of pandas, or dicts in a list or another iterable. For a model that
                reads single texts, also texts. A `str` is a text, not the path of a file.

        Returns:
            A list of dicts. For a single text or dict, returns a dict.
        """
        trained_columns = get_text_columns(self.model.config.to_dict())
        names = tuple(self.columns or trained_columns)
        choices = (names,) if names else self.task.default_columns
        single = [columns[0] for columns in choices if len(columns) == 1]
        if not self.task.any_columns:  # a tagger reads words or texts
            single = ["text"] if ("text",) in self.task.default_columns else []
        dicts = f"a dict with the {' or the '.join(map(describe_columns, choices))}"
        numbered = list(number_rows(rows, single[0] if single else None, "a text or a dict" if single else dicts))
        if not numbered:
            return []
        first_rows = [values for _, values in numbered[:ROWS_TO_INSPECT]]
        given = self.columns or None
        columns = choose_columns(self.task, given, "the rows", first_rows, trained_columns, "columns")
        examples = []
        for row, values in numbered:
            try:
                examples.append(self.task.read(values, columns))
            except InputError as error:
                raise InputError(f"row {row}: {error}") from error
        answers = self.answer(examples)
        return answers[0] if isinstance(rows, str | Mapping) else answers

    def evaluate(self, data: Any) -> dict[str, float]:
        """Returns the metrics on labeled examples, as in the fine-tuning commands, and sets `intervals`.

        `data`: as in [`FineTuningTrainer`]. Windows have the `max_seq_length` of the task.
        """
        config: Any = self.model.config
        sources = {"validation": [make_source(data, "data")]}
        validation = make_evaluation_set(self.task, config, self.tokenizer, sources)
        logits = self.run(validation.features)
        metrics = validation.score_in_training(logits)
        self.intervals = validation.estimate_intervals(validation.decode(logits))
        return metrics

    def read(self, values: Mapping[str, Any]) -> Any:
        """Returns the example of a row. Error messages do not name the row."""
        return self.task.read(values, self.columns)

    def answer(self, examples: list[Any]) -> list[Prediction]:
        """Returns the predictions for examples from [`read`], as columns to add to their rows."""
        split = self.task.make_split(examples)
        features = self.task.encode(split)
        return self.task.to_columns(split, self.task.decode(self.run(features), split, features))

    def describe_truncation(self) -> str | None:
        """See [`Task`]."""
        return self.task.describe_truncation(self.columns)

    def run(self, features: Features) -> Logits:
        """Returns the logits of model inputs, in the form that tasks decode."""
        columns, choices = _list_sequences(features.inputs)
        if choices is None:
            return self.task.output.join_windows(self.compute_logits(columns))
        if NUM_WINDOWS in features.inputs.column_names:
            return self.task.output.join_windows(average_windows(self.compute_logits(columns), choices))
        # Each choice is scored as a separate example. Its logit does not depend on the other choices, and examples
        # may have different numbers of choices.
        logits = np.concatenate(self.compute_logits(columns, has_choices=True))
        return self.task.output.join_windows(np.split(logits, np.cumsum(choices)[:-1]))

    def compute_logits(self, columns: Mapping[str, list[np.ndarray]], has_choices: bool = False) -> list[np.ndarray]:
        """Computes the logits of each sequence: float32, *shape* (labels,), or (tokens, labels) for output per token.

        `columns`: `input_ids` and other columns with one value per token. `has_choices`: the head is for multiple
        choice, so that each sequence is an example with one choice.
        """
        lengths = np.array([len(ids) for ids in columns["input_ids"]])
        results: list[Any] = [None] * len(lengths)
        batches = list(split_by_tokens(lengths, self.max_batch_tokens))
        packs, multiple = isinstance(self.model, SnugBertPreTrainedModel | EngineModel), None
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
            forward = self._forward if multiple is None else self._graphs
            with torch.inference_mode():
                logits = forward(send_to_device(batch, self.model.device)).cpu().numpy()
            if not np.isfinite(logits).all():
                raise InputError("--model_name_or_path: outputs are NaN or infinite. The weights may be damaged.")
            parts: Any = logits[:number]
            if self.task.output.per_token and packs:  # drops the padding of filled rows
                parts = np.split(logits[0, :tokens], np.cumsum(lengths[indices])[:-1])
            elif self.task.output.per_token:
                parts = [row[:length] for row, length in zip(logits, lengths[indices], strict=True)]
            for index, part in zip(indices.tolist(), parts, strict=True):
                results[index] = part
        return results

    def _pad(self, rows: Mapping[str, list[np.ndarray]]) -> dict[str, Any]:
        """Makes a padded batch. Padding on the left would shift the tokens."""
        lists = {name: [values.tolist() for values in column] for name, column in rows.items()}
        return dict(self.tokenizer.pad(lists, padding_side="right", return_tensors="pt"))

    def _forward(self, batch: dict[str, Any]) -> torch.Tensor:
        # Cached copies of weights would be freed, but a CUDA graph would keep reading them.
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            return self.task.output.stack(self.model(**batch)).float()


def find_head(class_name: str, place: str) -> str:
    """Returns the head of a class of models, such as "ForTokenClassification"."""
    head = HEADS_BY_CLASS.get(class_name, "")
    if head not in list_tasks():
        raise InputError(f"{place} {class_name}. Expected a fine-tuned model of the BERT family.")
    return head


def _list_sequences(inputs: Dataset) -> tuple[dict[str, list[np.ndarray]], np.ndarray | None]:
    """Returns the values of each sequence, and the number of choices or windows of each row. None: one each."""
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

    A longer sequence is a separate batch. Yields the indices of the sequences.
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


# --- columns ----------------------------------------------------------------------------------------------------


def choose_columns(
    reader: Any,
    given: Sequence[str] | None,
    source: str,
    first_rows: Sequence[Mapping[str, Any]],
    trained_columns: tuple[str, ...],
    argument: str = "--text_column_names",
) -> Sequence[str]:
    """Returns the given columns, the columns the model was trained on, or the first default columns that exist.

    `reader` is a task, or a class that predicts with a model of sentence-transformers. [`Task`] describes its columns.
    Without `first_rows`, the columns are not checked. `source` and `argument` name the input and its flag in messages.
    """
    numbers: Sequence[int] = sorted({len(names) for names in reader.default_columns})
    present = list(dict.fromkeys(name for values in first_rows for name in values))
    if given is not None:
        if len(given) not in numbers:
            expected = " or ".join(map(str, numbers))
            raise InputError(f"{argument}: this model reads {expected} text columns, not {len(given)}.")
        missing = [name for name in given if first_rows and name not in present]
        if missing:
            raise InputError(f"{source}: no column {missing[0]!r}. {list_columns(present)}")
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
            logger.info("%s: %s", source, describe_columns(names))
            return names
    found = list_text_columns(first_rows, "label") if reader.any_columns else []
    if len(found) != 1 or numbers[0] != 1:
        expected = " or ".join(dict.fromkeys(map(describe_columns, defaults)))
        raise InputError(f"{source}: no {expected}. {list_columns(present)}{trained} Set {argument}.")
    logger.info("%s: %s", source, describe_columns(found))
    return found


# --- answers to questions ------------------------------------------------------------------------------------------


class QuestionAnswerer:
    """Extracts answers from texts of any length, as transformers 4's question answering pipeline did.

        answerer = QuestionAnswerer("out-squad")
        answerer(question="Who wrote it?", context="It was written by Ada in 1843.")
        {"score": 0.97, "start": 18, "end": 21, "answer": "Ada"}

    A long text is read in overlapping windows. Windows of similar length share a batch.

    Args:
        model: a model with a question answering head, such as the output of `snugbert squad`: a folder, a Hub name or
            a model object, which is switched to evaluation mode.
        tokenizer: a tokenizer, or its folder or Hub name. Default: the tokenizer in the model's folder.
        device: the device to run on. Default: an accelerator if there is one. A model object stays on its device.
        batch_size: windows per batch if all have `max_seq_length` tokens. A batch of shorter windows has more of them.
        max_seq_length: maximum tokens of a window, limited by the model and the tokenizer.
        doc_stride: tokens that neighboring windows share. Default: 128, or a third of a window below 256 tokens.
        max_query_length: maximum tokens of a question.
        cuda_graphs: on a GPU, in calls with at least 3 batches, pad batches to a few sizes and run CUDA graphs.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        max_seq_length: int = 384,
        doc_stride: int | None = None,
        max_query_length: int = 64,
        cuda_graphs: bool = True,
    ):
        if isinstance(tokenizer, (str, Path)):
            tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=str(tokenizer)))
        if isinstance(model, PreTrainedModel) and device is not None:
            model.to(device)  # type: ignore[arg-type]
        self._predictor = Predictor(
            model,
            tokenizer,
            QuestionAnswering(max_seq_length=max_seq_length, doc_stride=doc_stride, max_query_length=max_query_length),
            max_seq_length=max_seq_length,
            cuda_graphs=cuda_graphs,
            device=device,
        )
        self.model, self.tokenizer = self._predictor.model, self._predictor.tokenizer
        if self.tokenizer("a", "b")["input_ids"][0] != self.tokenizer.cls_token_id:
            raise ValueError(
                f"`tokenizer`: pairs of a {type(self.tokenizer).__name__} do not begin with [CLS], whose logits score "
                '"no answer". Use the model\'s own tokenizer.'
            )
        self.max_seq_length: int = self._predictor.task.max_length
        self.doc_stride: int = self._predictor.task.args.doc_stride
        self.batch_size = batch_size
        self._predictor.max_batch_tokens = batch_size * self.max_seq_length

    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 30,
    ) -> Any:
        """Answers one or several questions.

        Args:
            question: a question, or a sequence of questions.
            context: the text to extract the answer from. For several questions, one text for all or one for each.
            top_k: maximum number of answers to a question, with different texts.
            handle_impossible_answer: allow the answer "", which means that the context does not answer the question.
                Use it only with a model that was trained on such questions (SQuAD v2.0).
            max_answer_len: maximum tokens of an answer.

        Returns:
            A dict. With `top_k` above 1, a list of dicts, best first. For a sequence of questions, a list with the
            result of each question. The dict, see [`ExtractedAnswer`], contains

            - score: the probability that the answer starts at its first token times the probability that it ends at
              its last token. Both softmaxes run over [CLS] and the context tokens of all windows.
            - start, end: characters: `context[start:end]` is the answer. Both are 0 without an answer.
            - answer: the text of the answer.
        """
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        task = self._predictor.task.copy(
            n_best_size=top_k, max_answer_length=max_answer_len, version_2_with_negative=handle_impossible_answer
        )
        task.use_tokenizer(self.tokenizer, self.max_seq_length)
        examples = []
        for asked, text in zip(questions, contexts, strict=True):
            try:
                row = {"question": asked, "context": text}
                examples.append(self._predictor.task.read(row, ("question", "context")))
            except InputError as error:
                raise InputError(f"{asked!r}: {error}") from error
        if not examples:
            return []
        split = task.make_split(examples)
        windows = task.encode(split)
        answers = task.decode(self._predictor.run(windows), split, windows)
        found = [[answer.extract(candidate) for candidate in answer.n_best[:top_k]] for answer in answers]
        results = [candidates[0] for candidates in found] if top_k == 1 else found
        return results[0] if isinstance(question, str) else results
