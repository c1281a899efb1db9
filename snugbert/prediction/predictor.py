"""One predictor for each kind of model: which columns it reads, and what it predicts.

A predictor reads examples from rows (`read`), and predicts many at once (`predict`), so that texts of similar length
share batches.

Shapes: N sequences, T tokens in a batch.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import softmax
from transformers import AutoModel, PreTrainedModel

from snugbert.checkpoints.loading import (
    get_text_columns,
    is_regression,
    load_config,
    load_model,
    load_tokenizer,
    max_tokens,
)
from snugbert.checkpoints.model_arguments import ModelArguments
from snugbert.checkpoints.reading import CLASSES, HEADS_BY_CLASS
from snugbert.checkpoints.sentence_transformers_files import find_model_folder, is_cross_encoder, read_modules
from snugbert.cuda_graphs import CudaGraphs
from snugbert.data.conll import NerSplit, Sentence
from snugbert.data.packed_batches import pack
from snugbert.data.row_sizes import choose_prediction_multiple, pad_row
from snugbert.errors import InputError
from snugbert.files import check_unicode, read_json
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.prediction.question_answerer import QuestionAnswerer
from snugbert.tasks.classification import decode_logits, name_answers
from snugbert.tasks.entity_tags import TAG, decode_tags
from snugbert.tasks.layout import describe_columns, find_text_columns
from snugbert.tasks.tag_windows import make_windows, put_space_before_words

logger = logging.getLogger(__name__)

Prediction = dict[str, Any]
BATCH_SIZE = 32  # of sentence-transformers, which does not take a token budget
MOST_QUESTION_TOKENS = 64  # as in `QuestionAnswerer`
FIRST_CHARACTERS = 100  # where to look for words


class Predictor(ABC):
    """Predicts rows.

    Args:
        args: the arguments of the command.
        folder: folder of the model.
        columns: the columns to read.

    Attributes:
        numbers_of_columns: how many columns it can read.
        default_columns: names of columns to look for, by priority.
        any_columns: whether it also reads other columns, if no more than it needs have text.
        added_columns: the columns that it adds.
    """

    numbers_of_columns: ClassVar[tuple[int, ...]] = (1,)
    default_columns: ClassVar[tuple[tuple[str, ...], ...]] = (("text",), ("sentence",))
    any_columns: ClassVar[bool] = True
    added_columns: ClassVar[tuple[str, ...]]

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str]):
        self.args = args
        self.columns = columns

    @abstractmethod
    def read(self, values: Mapping[str, Any]) -> Any:
        """Returns the example of a row.

        Raises:
            InputError: a column is missing or has no text. The message does not name the row.
        """

    @abstractmethod
    def predict(self, examples: list[Any]) -> list[Prediction]:
        """Returns the prediction for each example: columns to add to its row."""


def make_predictor(folder: Path, args: PredictionArguments, first_rows: Sequence[Mapping[str, Any]]) -> Predictor:
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
    kind = find_kind(folder)
    trained_columns = get_text_columns(read_json(folder / "config.json")) if issubclass(kind, HeadPredictor) else ()
    columns = ("tokens",) if args.reads_conll else _choose_columns(kind, args, first_rows, trained_columns)
    taken = sorted({name for values in first_rows for name in values} & set(kind.added_columns))
    if taken:
        raise InputError(f"{args.input_file}: the column {taken[0]!r} would be overwritten. Rename it.")
    return kind(args, folder, columns)


def find_kind(folder: Path) -> type[Predictor]:
    """Returns the kind of predictor of a model.

    Raises:
        InputError: the model has no fine-tuned head.
    """
    if is_cross_encoder(folder):
        return Reranker
    if read_modules(folder):
        return Embedder
    name = (read_json(folder / "config.json").get("architectures") or ["no model class"])[0]
    kind = PREDICTORS.get(HEADS_BY_CLASS.get(name, ""))
    if kind is None:
        raise InputError(
            f"--model_name_or_path: {folder}/config.json names {name}. Expected a fine-tuned model of the BERT "
            "family, or an embedding model."
        )
    return kind


def _choose_columns(
    kind: type[Predictor],
    args: PredictionArguments,
    first_rows: Sequence[Mapping[str, Any]],
    trained_columns: tuple[str, ...],
) -> Sequence[str]:
    given, source, numbers = args.columns, str(args.input_file), kind.numbers_of_columns
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
    defaults, trained = kind.default_columns, ""
    if len(trained_columns) in numbers:
        trained = f" The model was trained on the {describe_columns(trained_columns)}."
        numbers = (len(trained_columns),)
        defaults = (trained_columns, *(names for names in defaults if len(names) in numbers))
    for names in defaults:
        if all(name in first_rows[0] for name in names):
            return names
    if not kind.any_columns:
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


def _read_text(values: Mapping[str, Any], column: str) -> str:
    if column not in values:
        raise InputError(f"no column {column!r}. Columns: {', '.join(values)}.")
    value = values[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:
        raise InputError(f"no text in column {column!r}.")
    return check_unicode(str(value), f"column {column!r}")


def _read_texts(values: Mapping[str, Any], column: str) -> list[str]:
    texts = values.get(column)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"no list of texts in column {column!r}.")
    return [_read_text({column: text}, column) for text in texts]


def choose_device(args: PredictionArguments) -> torch.device:
    """Returns the accelerator, if there is one and the user wants it, or the CPU."""
    accelerator = None if args.use_cpu else torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")


# --- heads ------------------------------------------------------------------------------------------------------


class HeadPredictor(Predictor):
    """A predictor with a SnugBERT model that has a fine-tuned head."""

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str]):
        super().__init__(args, folder, columns)
        if args.prompt_name is not None:
            raise InputError("--prompt_name: only embedding models and CrossEncoders have prompts. Remove it.")
        model_args = ModelArguments(model_name_or_path=str(folder))
        self.tokenizer = load_tokenizer(model_args)
        config = load_config(model_args, self.tokenizer)
        head = HEADS_BY_CLASS[config.architectures[0]]  # type: ignore[index]  # see `make_predictor`
        model = load_model(CLASSES["snugbert"][head], model_args, config, trained=True)
        self.model: PreTrainedModel = model.to(choose_device(args)).eval()  # type: ignore[arg-type]
        limit = max_tokens(self.model, self.tokenizer)
        self.max_length = min(limit, args.max_seq_length or max(512, self.model.config.max_position_embeddings))
        self.labels = [label for _, label in sorted((config.id2label or {}).items())]
        self._graphs = CudaGraphs(self._forward, self.model)

    def tokenize(self, texts: list[str], second: list[str] | None = None) -> dict[str, list[list[int]]]:
        """Tokenizes texts or pairs. Longer ones are truncated."""
        return dict(
            self.tokenizer(
                texts, second, truncation="longest_first", max_length=self.max_length, return_attention_mask=False
            )
        )

    def compute_logits(self, features: Mapping[str, Sequence[Sequence[int]]], **extra: Any) -> list[np.ndarray]:
        """Computes the logits of each sequence.

        Args:
            features: `input_ids` and any other columns with one value per token.
            extra: more arguments of the model.

        Returns:
            float32, *shape* (labels,) each, or (tokens, labels) for heads that label tokens.
        """
        columns = {name: [np.asarray(values) for values in column] for name, column in features.items()}
        lengths = np.array([len(ids) for ids in columns["input_ids"]])
        results: list[Any] = [None] * len(lengths)
        batches = list(split_by_tokens(lengths, self.args.max_batch_tokens))
        multiple = None
        if self.args.cuda_graphs:
            multiple = choose_prediction_multiple(self.model, self.args.max_batch_tokens, len(batches))
        for indices in batches:
            batch = pack({name: [column[index] for index in indices] for name, column in columns.items()}) | extra
            tokens, number = int(lengths[indices].sum()), len(indices)
            if multiple is not None:
                # Rounding up to a power of two keeps the number of sizes small.
                batch = pad_row(batch, multiple, 1 << (number - 1).bit_length())
                del batch["num_sequences"]
            logits = self._run(batch, self._forward if multiple is None else self._graphs)
            if not np.isfinite(logits).all():
                raise InputError("--model_name_or_path: the model's outputs are not finite. Are its weights damaged?")
            per_token = logits.shape[0] == 1 and logits.ndim == 3
            # Without the padding of filled rows.
            parts = np.split(logits[0, :tokens], np.cumsum(lengths[indices])[:-1]) if per_token else logits[:number]
            for index, part in zip(indices.tolist(), parts, strict=True):
                results[index] = part
        return results

    @torch.inference_mode()
    def _run(self, batch: dict[str, Any], forward: Callable[[dict[str, Any]], torch.Tensor]) -> np.ndarray:
        device = self.model.device
        batch = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        return forward(batch).cpu().numpy()

    def _forward(self, batch: dict[str, Any]) -> torch.Tensor:
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            return self.model(**batch).logits.float()


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


class TextClassifier(HeadPredictor):
    """Predicts the label, the labels or the number of a text or a pair."""

    numbers_of_columns = (1, 2)
    default_columns = (("sentence1", "sentence2"), ("text", "text_pair"), ("text",), ("sentence",))
    added_columns = ("predicted_label", "probabilities")

    def read(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the text or the pair."""
        return [_read_text(values, column) for column in self.columns]

    def predict(self, examples: list[list[str]]) -> list[Prediction]:
        """Returns `predicted_label`, and `probabilities` unless the model predicts numbers."""
        logits = np.stack(self.compute_logits(self.tokenize(*map(list, zip(*examples, strict=True)))))
        config: Any = self.model.config
        if is_regression(config):  # one number, or a list of them
            numbers = logits[:, 0] if logits.shape[1] == 1 else logits
            return [{"predicted_label": number} for number in numbers.tolist()]
        found = decode_logits(logits, config.problem_type or "single_label_classification")
        answers = name_answers(found.answers, self.labels)
        assert found.probabilities is not None
        return [
            {"predicted_label": answer, "probabilities": dict(zip(self.labels, row, strict=True))}
            for answer, row in zip(answers, found.probabilities.tolist(), strict=True)
        ]


class WordTagger(HeadPredictor):
    """Tags the words of a list, or the entities of a text."""

    default_columns = (("tokens",), ("text",))
    any_columns = False
    added_columns = ("predicted_tags", "entities")

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str]):
        super().__init__(args, folder, columns)
        put_space_before_words(self.tokenizer)
        self.is_scheme = all(TAG.fullmatch(label) for label in self.labels)

    def read(self, values: Mapping[str, Any]) -> list[str] | str:
        """Returns the words, or the text."""
        column = self.columns[0]
        return _read_texts(values, column) if isinstance(values.get(column), list) else _read_text(values, column)

    def predict(self, examples: list[list[str] | str]) -> list[Prediction]:
        """Returns `predicted_tags` of words, or `entities` of a text: type, start and end character, text and score.

        The score of an entity is the mean probability of the labels of its words, as in transformers' pipeline with
        `aggregation_strategy="first"`.
        """
        spans = [None if isinstance(example, list) else self._find_words(example) for example in examples]
        words = [
            example if isinstance(example, list) else [example[start:end] for start, end in found or ()]
            for example, found in zip(examples, spans, strict=True)
        ]
        probabilities = self._label(words)
        results: list[Prediction] = []
        for example, found, rows in zip(examples, spans, probabilities, strict=True):
            tags = [self.labels[index] for index in rows.argmax(axis=-1)]
            if found is None:
                results.append({"predicted_tags": tags})
            else:
                scores = rows.max(axis=-1, initial=0)
                results.append({"entities": self._list_entities(str(example), found, tags, scores)})
        return results

    def _find_words(self, text: str) -> list[tuple[int, int]]:
        """Returns start and end character of each word, as the tokenizer separates them."""
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        words: dict[int, tuple[int, int]] = {}
        for word, (start, end) in zip(encoding.word_ids(), encoding["offset_mapping"], strict=True):
            if word is not None and end > start:
                words[word] = (words.get(word, (start, end))[0], end)
        # Some tokenizers count the space before a word.
        return [(start + len(text[start:end]) - len(text[start:end].lstrip()), end) for start, end in words.values()]

    def _label(self, words: list[list[str]]) -> list[np.ndarray]:
        """Computes the probability of each label for the words of each example. *Shape:* (words, labels) each"""
        sentences = [Sentence(each, None, row) for row, each in enumerate(words) if each]
        results = [np.zeros((0, len(self.labels)))] * len(words)
        if not sentences:
            return results
        split = NerSplit("", sentences, one_word_per_line=False)
        windows = make_windows(split, self.labels, self.tokenizer, self.max_length)
        features = {
            name: windows.features[name][:] for name in windows.features.column_names if name != "attention_mask"
        }
        logits = self.compute_logits(features)
        pairs = zip(windows.window_indices.tolist(), windows.token_indices.tolist(), strict=True)
        probabilities = softmax(np.stack([logits[window][token] for window, token in pairs]), axis=-1)
        ends = np.cumsum([len(sentence.words) for sentence in sentences])
        for sentence, rows in zip(sentences, np.split(probabilities, ends[:-1]), strict=True):
            results[sentence.row] = rows
        return results

    def _list_entities(
        self, text: str, words: list[tuple[int, int]], tags: list[str], scores: np.ndarray
    ) -> list[dict[str, Any]]:
        if self.is_scheme:
            found = decode_tags(tags)
        else:  # each word by itself
            found = [(tag, index, index) for index, tag in enumerate(tags) if tag != "O"]
        entities = []
        for kind, first, last in found:
            start, end = words[first][0], words[last][1]
            score = float(scores[first : last + 1].mean())
            entities.append({"type": kind, "start": start, "end": end, "text": text[start:end], "score": score})
        return entities


class ChoicePredictor(HeadPredictor):
    """Predicts which of several texts best fits a text."""

    numbers_of_columns = (2,)
    default_columns = (("text", "choices"),)
    any_columns = False
    added_columns = ("predicted_choice", "probabilities")

    def read(self, values: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Returns the text and its choices."""
        choices = _read_texts(values, self.columns[1])
        if not choices:
            raise InputError(f"no choices in column {self.columns[1]!r}.")
        return _read_text(values, self.columns[0]), choices

    def predict(self, examples: list[tuple[str, list[str]]]) -> list[Prediction]:
        """Returns `predicted_choice`, counted from 0, and the `probabilities` of the choices."""
        texts = [text for text, choices in examples for _ in choices]
        features = self.tokenize(texts, [choice for _, choices in examples for choice in choices])
        # One choice per example: the logit of a choice does not depend on the others.
        logits = np.concatenate(self.compute_logits(features, num_choices=1))
        ends = np.cumsum([len(choices) for _, choices in examples])
        rows = [softmax(part.astype(np.float64)) for part in np.split(logits, ends[:-1])]
        return [{"predicted_choice": int(row.argmax()), "probabilities": row.tolist()} for row in rows]


class QuestionPredictor(HeadPredictor):
    """Extracts the answers to questions from texts of any length."""

    numbers_of_columns = (2,)
    default_columns = (("question", "context"),)
    any_columns = False
    added_columns = ("answer", "score", "start", "end")

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str]):
        super().__init__(args, folder, columns)
        length = min(self.max_length, args.max_seq_length or 384)
        # A window has three or four special tokens, and needs room for more than the tokens it shares.
        room = length - len(self.tokenizer("a", "b")["input_ids"]) + 2 - args.doc_stride - 1
        self.max_query_length = min(MOST_QUESTION_TOKENS, room)
        if self.max_query_length < 1:
            raise InputError(f"--doc_stride {args.doc_stride} leaves no room in windows of {length} tokens. Lower it.")
        self.answerer = QuestionAnswerer(
            self.model,
            self.tokenizer,
            batch_size=max(1, args.max_batch_tokens // length),
            max_seq_length=length,
            doc_stride=args.doc_stride,
            cuda_graphs=args.cuda_graphs,
        )

    def read(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the question and the text."""
        question, context = (_read_text(values, column) for column in self.columns)
        tokens, limit = len(self.tokenizer.tokenize(question)), self.max_query_length
        if not 0 < tokens <= limit:
            raise InputError(f"the question has {tokens} tokens. Expected 1 to {limit}.")
        # The first characters are nearly always enough.
        if not self.tokenizer.tokenize(context[:FIRST_CHARACTERS]) and not self.tokenizer.tokenize(context):
            raise InputError(f"no words in column {self.columns[1]!r}.")
        return question, context

    def predict(self, examples: list[tuple[str, str]]) -> list[Prediction]:
        """Returns `answer`, `score`, `start` and `end`, see [`QuestionAnswerer`]."""
        questions, contexts = map(list, zip(*examples, strict=True))
        device = self.model.device.type
        with torch.autocast(device, torch.bfloat16, enabled=bool(self.args.bf16)):
            answers: Any = self.answerer(
                questions, contexts, handle_impossible_answer=self.args.version_2_with_negative
            )
        return [dict(answer) for answer in answers]


# --- sentence-transformers --------------------------------------------------------------------------------------


class Embedder(Predictor):
    """Embeds texts with sentence-transformers. Its encoder is a SnugBERT model, which drops padding."""

    added_columns = ("embedding",)

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str]):
        super().__init__(args, folder, columns)
        self.model = _load_sentence_transformer("SentenceTransformer", folder, args)

    def read(self, values: Mapping[str, Any]) -> str:
        """Returns the text."""
        return _read_text(values, self.columns[0])

    def predict(self, examples: list[str]) -> list[Prediction]:
        """Returns the `embedding`, a list of numbers in float32."""
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=bool(self.args.bf16)):
            embeddings = self.model.encode(
                examples, batch_size=BATCH_SIZE, prompt_name=self.args.prompt_name, show_progress_bar=False
            )
        # The shortest digits that give the same float32.
        rows = (row.astype(np.float32).astype(str) for row in embeddings)
        return [{"embedding": [float(number) for number in row]} for row in rows]


class Reranker(Predictor):
    """Scores pairs with a CrossEncoder of sentence-transformers. Its encoder is a SnugBERT model."""

    numbers_of_columns = (2,)
    default_columns = (("query", "text"), ("question", "context"), ("sentence1", "sentence2"))
    added_columns = ("score",)

    def __init__(self, args: PredictionArguments, folder: Path, columns: Sequence[str]):
        super().__init__(args, folder, columns)
        self.model = _load_sentence_transformer("CrossEncoder", folder, args)

    def read(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the pair."""
        first, second = (_read_text(values, column) for column in self.columns)
        return first, second

    def predict(self, examples: list[tuple[str, str]]) -> list[Prediction]:
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
    model = getattr(sentence_transformers, name)(str(folder), device=str(choose_device(args)), local_files_only=True)
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


# Head -> predictor.
PREDICTORS: dict[str, type[Predictor]] = {
    "ForSequenceClassification": TextClassifier,
    "ForTokenClassification": WordTagger,
    "ForQuestionAnswering": QuestionPredictor,
    "ForMultipleChoice": ChoicePredictor,
    "Model": Embedder,
}
