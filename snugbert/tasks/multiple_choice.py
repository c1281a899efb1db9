"""Multiple choice: which of several texts best fits a text. This is the task of `snugbert swag`.

An example has one window for each choice. These windows are one nested row of features: (choices, tokens).

Shapes: N examples, C choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, Value
from scipy.special import softmax
from transformers import PreTrainedConfig

from snugbert.data.sources import ExampleArguments
from snugbert.data.tables import clean_label, read_rows, read_text, read_texts
from snugbert.errors import InputError, list_columns
from snugbert.files import dump_json
from snugbert.tasks.base import Baseline, Features, Sources, Task
from snugbert.tasks.labeled_texts import UNLABELED_ID, report_missing_labels
from snugbert.tasks.metrics import score_classes
from snugbert.tasks.outputs import SEQUENCE, UNLABELED, Logits
from snugbert.tasks.windows import PadNested, make_lists, tokenize_texts

SWAG_COLUMNS = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3")
NO_LABEL = ("", "None", "nan", *UNLABELED_ID)  # test sets on the Hub use -1


class Example(NamedTuple):
    """A text, and the texts to choose from."""

    text: str
    choices: list[str]


class ChoiceAnswers(NamedTuple):
    """The answers to all examples of a split."""

    values: np.ndarray  # the predicted choices, counted from 0, (N,)
    probabilities: Sequence[np.ndarray] = ()  # probabilities of the choices, (C,) each


@dataclass
class ChoiceSplit:
    """The examples of a split."""

    name: str
    source: str
    examples: list[Example]
    references: np.ndarray | None = None  # the correct choices, counted from 0, (N,). None: not labeled
    others: list[dict[str, Any]] = field(default_factory=list)  # other columns of each row. Empty in training

    @property
    def labeled(self) -> bool:
        """Whether every example is labeled."""
        return self.references is not None

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return len(self.examples)


class MultipleChoice(Task[ChoiceSplit, Features, ChoiceAnswers]):
    """Predicts which of several texts best fits a text.

    Examples have SWAG's columns, or `text` and `choices`, a list of texts. As in transformers' `run_swag.py`, the
    choices of SWAG are sent2, a space and an ending, and the text is sent1.
    """

    arguments = ExampleArguments
    head = "ForMultipleChoice"
    output = SEQUENCE
    padding_collator = PadNested
    name = "Multiple choice"
    paper_learning_rate = 2e-5  # Devlin et al. (2018), section 4.4
    main_metric = "accuracy"
    metrics: tuple[str, ...] = ("accuracy",)
    default_columns = (("text", "choices"), SWAG_COLUMNS)
    predicted_columns = ("predicted_choice", "probabilities")

    # --- data ---------------------------------------------------------------------------------------------------

    def read_splits(self, sources: Sources, trained_columns: tuple[str, ...] = ()) -> dict[str, ChoiceSplit]:
        """Reads and checks the examples of all splits. See [`Task`].

        All examples of a split need the same number of choices, because a batch cannot mix different numbers.
        Unlabeled examples need the same number as training examples.
        """
        splits: dict[str, ChoiceSplit] = {}
        for name, (data,) in sources.items():
            first = splits["train"].examples[:1] if name == "unlabeled" and "train" in splits else []
            splits[name] = self._read_split(data, name, first)
        return splits

    def _read_split(self, data: Path | Dataset, name: str, first: list[Example]) -> ChoiceSplit:
        source, needed = self.describe_place(data, name), name in ("train", "validation")
        split, labels, missing = ChoiceSplit(name, source, []), [], []
        for row, values in islice(read_rows(data), self.args.max_samples.get(name)):
            try:
                columns = _find_columns(values)
                example = self.read(values, columns)
                first = first or [example]
                number, expected = len(example.choices), len(first[0].choices)
                if number != expected or number < 2:
                    raise InputError(
                        f"number of choices: {number}. Expected at least 2, and as many as in the first example."
                    )
                label = None if name == "unlabeled" else _read_label(values, number)
            except InputError as error:
                raise InputError(f"{source}, row {row}: {error}") from error
            if label is None:
                missing.append(row)
                if needed:
                    continue
            split.examples.append(example)
            labels.append(label)
            if name not in ("train", "unlabeled"):
                split.others.append({key: values[key] for key in values if key not in (*columns, "label")})
        if name != "unlabeled":
            number = len(labels) + len(missing) * needed
            report_missing_labels(source, "label", missing, number, self.args.on_missing_label if needed else None)
        if not split.examples:
            raise InputError(f"{source}: no examples.")
        if None not in labels:
            split.references = np.array(labels)
        return split

    def text_columns(self, splits: Mapping[str, ChoiceSplit]) -> tuple[str, ...]:
        """Returns no columns, so that a model can predict both forms of examples after training on either."""
        return ()

    def list_texts(self, split: ChoiceSplit) -> tuple[list[Sequence[str]], list[Any]]:
        """Returns the texts, and all first choices, all second choices and so on. See [`Task`]."""
        choices: list[Sequence[str]] = [*zip(*(example.choices for example in split.examples), strict=True)]
        labels = [None] * split.num_examples if split.references is None else split.references.tolist()
        return [[example.text for example in split.examples], *choices], labels

    # --- model inputs and outputs -------------------------------------------------------------------------------

    def encode(self, split: ChoiceSplit) -> Features:
        """Tokenizes the pairs of text and choice. The correct choice is in the column `label`."""
        counts = [len(example.choices) for example in split.examples]
        texts = [example.text for example in split.examples for _ in example.choices]
        choices = [choice for example in split.examples for choice in example.choices]
        pairs, _ = tokenize_texts(self.tokenizer, (texts, choices), self.max_length, split.source)
        columns = {name: make_lists(lists.combine_chunks(), counts) for name, lists in pairs.items()}
        if split.name == "unlabeled":
            columns["label"] = pa.array([UNLABELED] * split.num_examples)
        elif split.references is not None:
            columns["label"] = pa.array(split.references)
        return Features(Dataset(pa.table(columns)))

    def decode(self, logits: Logits, split: ChoiceSplit, features: Features) -> ChoiceAnswers:
        """Returns the choice with the highest probability for each example."""
        scores = logits[0] if isinstance(logits, tuple) else logits
        probabilities = [
            softmax(row[: len(example.choices)].astype(np.float64))
            for row, example in zip(scores, split.examples, strict=True)
        ]
        return ChoiceAnswers(np.array([row.argmax() for row in probabilities]), probabilities)

    # --- scores -------------------------------------------------------------------------------------------------

    def measure(self, split: ChoiceSplit, answers: ChoiceAnswers) -> np.ndarray:
        """Returns the correct and the predicted choice of each example. *Shape:* (N, 2)"""
        assert split.references is not None
        return np.column_stack((split.references, answers.values))

    def score(self, split: ChoiceSplit, rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
        """Returns the accuracy."""
        counts = np.ones(len(rows), np.int64) if counts is None else counts
        return {"accuracy": score_classes(rows, counts)["accuracy"]}

    def baseline(self, split: ChoiceSplit, train: ChoiceSplit | None) -> Baseline:
        """Scores the position that is correct most often."""
        assert split.references is not None
        position = np.bincount(split.references).argmax()
        rows = self.measure(split, ChoiceAnswers(np.full(split.num_examples, position)))
        return Baseline(f"always choice {position}", self.score(split, rows))

    def metric_features(self) -> dict[str, Any]:
        """See [`Task`]. Features are choices, counted from 0."""
        return {"predictions": Value("int64"), "references": Value("int64")}

    def pair(self, references: list[Any], predictions: list[Any]) -> tuple[ChoiceSplit, ChoiceAnswers]:
        """Returns examples and answers from choices, counted from 0."""
        examples = [Example("", [])] * len(references)
        return ChoiceSplit("validation", "", examples, np.array(references)), ChoiceAnswers(np.array(predictions))

    # --- files --------------------------------------------------------------------------------------------------

    def write(self, split: ChoiceSplit, answers: ChoiceAnswers, folder: Path) -> None:
        """Writes a JSON object for each example.

        The keys are the other columns of the row, `text`, `choices`, `label` (if the split is labeled),
        `predicted_choice` and `probabilities`.
        """
        rows = [others | each._asdict() for others, each in zip(split.others, split.examples, strict=True)]
        if split.references is not None:
            rows = [row | {"label": label} for row, label in zip(rows, split.references.tolist(), strict=True)]
        (file,) = self.list_prediction_files(split)
        with (folder / file).open("w", encoding="utf-8", errors="backslashreplace") as stream:
            for row, predicted in zip(rows, self.to_columns(split, answers), strict=True):
                stream.write(dump_json(row | predicted) + "\n")

    # --- prediction ---------------------------------------------------------------------------------------------

    def use_checkpoint(self, config: PreTrainedConfig) -> None:
        """Does nothing: choices are not classes."""

    def read(self, values: Mapping[str, Any], columns: Sequence[str]) -> Example:
        """Returns the text and its choices. `columns` are a text and a list of texts, or like SWAG's."""
        if len(columns) > 2:
            text, beginning, *endings = (read_text(values, column) for column in columns)
            return Example(text, [f"{beginning} {ending}" for ending in endings])
        choices = read_texts(values, columns[1])
        if not choices:
            raise InputError(f"no choices in column {columns[1]!r}.")
        return Example(read_text(values, columns[0]), choices)

    def make_split(self, examples: list[Example]) -> ChoiceSplit:
        """Returns a split of examples, which may have different numbers of choices."""
        return ChoiceSplit("test", "", examples)

    def to_columns(self, split: ChoiceSplit, answers: ChoiceAnswers) -> list[dict[str, Any]]:
        """Returns `predicted_choice`, counted from 0, and the `probabilities` of the choices."""
        return [
            {"predicted_choice": choice, "probabilities": row.tolist()}
            for choice, row in zip(answers.values.tolist(), answers.probabilities, strict=True)
        ]


def _find_columns(values: Mapping[str, Any]) -> tuple[str, ...]:
    for columns in MultipleChoice.default_columns:
        if all(column in values for column in columns):
            return columns
    raise InputError(f"expected the columns text and choices, or {', '.join(SWAG_COLUMNS)}. {list_columns(values)}")


def _read_label(values: Mapping[str, Any], number: int) -> int | None:
    label = clean_label(str(values.get("label")))
    if label in NO_LABEL:
        return None
    if not label.isdecimal() or int(label) >= number:
        raise InputError(f"the label is {label!r}. Choices count from 0 to {number - 1}.")
    return int(label)
