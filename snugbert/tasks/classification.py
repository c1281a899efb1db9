"""Classification of texts and pairs of texts, for GLUE's tasks and your own data.

A model predicts one label, several labels, or a number.

Shapes: N examples, C labels.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, List, Value
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from snugbert.configuration_snugbert import get_windows
from snugbert.data.glue import GLUE_ON_THE_HUB, find_task_files
from snugbert.data.packed_batches import NUM_WINDOWS
from snugbert.data.sources import SPLITS, DataArguments, DataSource, load_dataset_splits
from snugbert.data.tables import read_text
from snugbert.errors import InputError, format_count
from snugbert.families.loading import is_regression
from snugbert.files import dump_json
from snugbert.reports.cards import Head
from snugbert.reports.intervals import bootstrap
from snugbert.reports.plots import draw_confusion_matrix, plot_file
from snugbert.reports.score_tables import AVERAGES, LABEL_METRICS, LabelScores
from snugbert.tasks.base import (
    Baseline,
    Features,
    Problem,
    Sources,
    Task,
    check_teacher_labels,
    list_labels,
    store_labels,
)
from snugbert.tasks.decisions import (
    FOLDS,
    Decisions,
    TextAnswers,
    choose_decisions,
    compute_confidence,
    decide,
)
from snugbert.tasks.labeled_texts import (
    UNLABELED_ID,
    TextSplit,
    choose_text_columns,
    name_vectors,
    read_labeled_texts,
)
from snugbert.tasks.labels import choose_labels, choose_problem, encode_labels, fold_label
from snugbert.tasks.metrics import score_classes, score_label_sets, score_labels, score_numbers
from snugbert.tasks.outputs import SEQUENCE, UNLABELED, Logits
from snugbert.tasks.task_arguments import BINARY_METRICS, LABEL_SET_METRICS, GlueDataArguments
from snugbert.tasks.windows import PadNested, tokenize_documents, tokenize_texts

logger = logging.getLogger(__name__)

SCORES = {
    "regression": score_numbers,
    "single_label_classification": score_classes,
    "multi_label_classification": score_label_sets,
}
# Metrics for your own data. The first is the main metric.
METRICS = {
    "regression": ("mse",),
    "single_label_classification": ("accuracy",),
    "multi_label_classification": ("micro_f1", "macro_f1", "subset_accuracy"),
}
DEFAULT_LENGTH = 128  # maximum tokens, as in `run_glue.py`
# The scores of each label are shown if the most frequent label is this many times as frequent as the rarest.
UNEVEN = 2


class TextClassification(Task[TextSplit, Features, TextAnswers]):
    """Predicts a label, several labels or a number for each text or pair of texts.

    A task of GLUE has its own columns, labels, metrics and files. For your own data, labels and the kind of problem
    come from the training examples. [`GlueDataArguments`] describes the settings.
    """

    arguments = GlueDataArguments
    head = "ForSequenceClassification"
    output = SEQUENCE
    padding_collator = PadNested
    set_names = {
        "validation": "eval",
        "validation_mismatched": "eval_mm",
        "test": "predict",
        "test_mismatched": "predict_mm",
        "test_diagnostic": "predict_ax",
    }
    default_columns = (("sentence1", "sentence2"), ("text", "text_pair"), ("text",), ("sentence",))
    any_columns = True
    predicted_columns = ("predicted_label", "probabilities")

    def __init__(self, args: DataArguments | None = None, **settings: Any):
        super().__init__(args, **settings)
        self.text_pairs: bool | None = None
        self.num_texts = self.num_truncated = 0  # in all calls of `encode`
        problem: Problem = "single_label_classification"
        if self.args.do_regression or (self.args.task is not None and not self.args.task.labels):
            problem = "regression"
        elif self.args.label_separator:
            problem = "multi_label_classification"
        self.set_problem(problem)

    def set_problem(self, problem: Problem) -> None:
        """Sets the kind of problem and its metrics. If thresholds are tuned, their metric is the main metric."""
        self.problem = problem
        task, tuned = self.args.task, self.args.tune_thresholds
        names = task.metrics if task else METRICS[problem]
        self.main_metric = tuned or (task.main_metric if task else names[0])
        combined = ("combined_score",) if task and len(names) > 1 else ()
        self.metrics = tuple(dict.fromkeys((self.main_metric, *names, *combined)))

    @property
    def name(self) -> str:
        """The name of the GLUE task, or the kind of problem."""
        if self.args.task is not None:
            return self.args.task.folder
        return "Regression" if self.labels is None else "Text classification"

    @property
    def card_head(self) -> Head:
        """The text about classifiers, or about models that predict numbers."""
        return Head(self.head, self.labels is None, self.text_pairs, len(self.thresholds), self.windows)

    # --- data ---------------------------------------------------------------------------------------------------

    def find_files(self) -> Sources:
        """See [`Task`]. Also finds GLUE's files in `data_dir`."""
        args, task = self.args, self.args.task
        if args.data_dir is None or task is None:
            return super().find_files()
        folder = Path(args.data_dir)
        folder = folder / task.folder if (folder / task.folder).is_dir() else folder
        found = {name: [file] for name, file in find_task_files(folder, task).items()}
        if not found:
            expected = ", ".join(f"{task.files[split][0]}.tsv" for split in SPLITS)
            raise InputError(f"--data_dir: no {task.folder} files in {folder}. Expected {expected}.")
        return found | args.files

    def find_datasets(self, wanted: tuple[str, ...] | None, **download: Any) -> Sources:
        """See [`Task`]. Also finds GLUE on the Hub. MNLI has several validation and test splits."""
        args = self.args
        from_hub = args.dataset_name is None and args.task_name is not None
        place = (GLUE_ON_THE_HUB, args.task_name) if from_hub else (args.dataset_name, args.dataset_config_name)
        if place[0] is None:
            return {}
        splits = load_dataset_splits(*place, **download)
        names = ("train", "validation", "validation_mismatched", "test", "test_mismatched")
        found = {name: [splits[n]] for name in names for n in (f"{name}_matched", name) if n in splits}
        if from_hub and args.task_name == "mnli" and "test" in (wanted or ()):
            found["test_diagnostic"] = [load_dataset_splits(GLUE_ON_THE_HUB, "ax", **download)["test"]]
        return found

    def describe_place(self, data: Path | Dataset, split: str) -> str:
        """See [`Task`]. Also names GLUE's dataset."""
        if isinstance(data, Dataset) and self.args.dataset_name is None and self.args.task is not None:
            return f"{GLUE_ON_THE_HUB} ({split})"
        return super().describe_place(data, split)

    def read_splits(self, sources: Sources, trained_columns: tuple[str, ...] = ()) -> dict[str, TextSplit]:
        """See [`Task`]. All splits use the text columns of the first split.

        Without training, the columns that the checkpoint was trained on are preferred.
        """
        splits: dict[str, TextSplit] = {}
        text_columns: tuple[str, ...] = ()
        for name, (data,) in sources.items():
            source = self.describe_place(data, name)
            if not splits:
                preferred = () if name in ("train", "unlabeled") else trained_columns
                text_columns = choose_text_columns(self.args, data, source, preferred)
            splits[name] = read_labeled_texts(data, name, source, self.args, text_columns)
        name_vectors(splits.values())
        return splits

    def choose_labels(
        self,
        splits: Mapping[str, TextSplit],
        config: PreTrainedConfig,
        teacher: Task[Any, Any, Any] | None = None,
        is_teacher: bool = False,
    ) -> None:
        """See [`Task`]. Also encodes the labels of the splits. A model keeps its windows unless it is trained."""
        trains = not is_teacher and {"train", "unlabeled"} & splits.keys()
        self._use_windows(None if trains else get_windows(config), is_teacher)
        known = list_labels(config) if teacher is None else teacher.labels or ["LABEL_0"]
        self._remove_hidden_labels(splits, known)
        distills = is_teacher or teacher is not None
        self.labels = choose_labels(self.args.task, splits, known, self.args.do_regression, distills)
        if is_teacher:
            check_teacher_labels(known, self.labels, fold_label)
        logger.info("labels: %s", "numbers (regression)" if self.labels is None else ", ".join(self.labels))
        known_problem = config.problem_type if teacher is None else teacher.problem
        self.set_problem(choose_problem(splits, self.labels, known_problem))
        for split in splits.values():
            if split.labeled:
                references = encode_labels(split, self.labels, "train" not in splits and self.args.task is None)
                split.references = np.array(references[: split.num_examples])
        self.text_pairs = len(self.text_columns(splits)) == 2
        config.problem_type = self.problem
        self._read_thresholds(config)
        store_labels(config, self.labels or ["LABEL_0"])

    def _remove_hidden_labels(self, splits: Mapping[str, TextSplit], checkpoint_labels: list[str]) -> None:
        """Removes the labels of splits in which every label is -1, unless -1 is a label to learn or to predict."""
        known = splits["train"].labels if "train" in splits else checkpoint_labels
        if any(label in UNLABELED_ID for label in known):
            return
        for split in splits.values():
            if split.labels and all(label in UNLABELED_ID for label in split.labels):
                if split.name.startswith("validation"):
                    raise InputError(
                        f"{split.source}: every label is -1. Add labels, or pass the file as --test_file."
                    )
                logger.info("%s: every label is -1. Labels are predicted, but not scored.", split.source)
                split.labels = [None] * len(split.labels)

    def _use_windows(self, windows: tuple[int, int] | None, is_teacher: bool = False) -> None:
        """Sets the length and the windows of texts, unless the user chose them. A teacher keeps its own windows.

        `windows`: the windows of a model that this run does not train, see [`get_windows`]. None for other models.
        """
        args, (size, stride) = self.args, windows or (DEFAULT_LENGTH, None)
        if windows is None or not is_teacher:
            size = args.max_seq_length or size
        if not is_teacher and args.doc_stride is not None:
            stride = args.doc_stride
        self.args = replace(args, max_seq_length=size, doc_stride=stride)

    def describe_sources(self, split: TextSplit) -> list[DataSource]:
        """See [`Task`]. Files in `data_dir` get the name of the dataset on the Hub."""
        args, task, name = self.args, self.args.task, split.name
        if task is None or name == "unlabeled" or name in args.files or args.dataset_name is not None:
            (source,) = super().describe_sources(split)
            return [source if split.split_in_dataset is None else source._replace(split=split.split_in_dataset)]
        if name == "test_diagnostic":
            return [DataSource("GLUE diagnostic", "test", split.num_examples, GLUE_ON_THE_HUB, "ax")]
        on_the_hub = f"{name}_matched" if f"{name}_mismatched" in task.files else name
        return [DataSource(f"GLUE {task.folder}", on_the_hub, split.num_examples, GLUE_ON_THE_HUB, args.task_name)]

    @property
    def given_columns(self) -> tuple[str, ...]:
        """The text columns of the GLUE task, or the columns in `text_column_names`. See [`Task`]."""
        return self.args.given_columns

    def text_columns(self, splits: Mapping[str, TextSplit]) -> tuple[str, ...]:
        """Returns the column of texts, or the two columns of pairs."""
        return next(iter(splits.values())).text_columns

    def list_texts(self, split: TextSplit) -> tuple[list[list[str]], list[Any]]:
        """Returns the texts or the pairs. See [`Task`]."""
        number, references = split.num_examples, split.references
        labels = [None] * number if references is None else references.tolist()
        return [texts[:number] for texts in split.texts], labels

    # --- model inputs and outputs -------------------------------------------------------------------------------

    @property
    def windows(self) -> tuple[int, int] | None:  # type: ignore[override]
        """See [`Task`]. None without `doc_stride`."""
        return None if self.args.doc_stride is None else (self.max_length, self.args.doc_stride)

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """See [`Task`]."""
        super().use_tokenizer(tokenizer, max_length)
        room, stride = max_length - tokenizer.num_special_tokens_to_add(), self.args.doc_stride
        if stride is not None and stride >= room:
            raise InputError(
                f"--doc_stride {stride} must be less than {room}, the number of text tokens in a window "
                f"(--max_seq_length {max_length}). Decrease --doc_stride or increase --max_seq_length."
            )

    def encode(self, split: TextSplit) -> Features:
        """Tokenizes the examples. Cuts long texts into windows or truncates them, the longer text of a pair first.

        Labels are in the column `label`: an id, a list of 1.0 and 0.0 for several labels, or a number. With windows,
        a row has a list of windows, and their number in the column `num_windows`.
        """
        number, stride = split.num_examples, self.args.doc_stride
        texts = [column[:number] for column in split.texts]
        columns: dict[str, Any]
        if stride is None:
            columns, truncated = tokenize_texts(self.tokenizer, texts, self.max_length, split.source)
            self.num_texts += number
            self.num_truncated += truncated
            if split.source:  # rows to predict have no source and are encoded in many calls
                logger.info("%s: %s", split.name, self._describe_lengths(number, truncated, len(texts) > 1))
        elif len(texts) > 1:
            raise InputError(
                "--doc_stride: pairs of texts cannot be cut into windows. Join the texts of each pair, or choose one "
                "column (--text_column_names). A model that was trained with --doc_stride reads only single texts."
            )
        else:
            columns = tokenize_documents(self.tokenizer, texts[0], self.max_length, stride, split.source)
            if split.source:
                windows = pc.sum(columns[NUM_WINDOWS]).as_py()
                message = "%s: %s in %d windows of at most %d tokens"
                logger.info(message, split.name, format_count(number, "text"), windows, self.max_length)
        if split.name == "unlabeled":
            several = [np.nan] * len(self.labels or ())
            nothing = {"regression": np.nan, "multi_label_classification": several}.get(self.problem, UNLABELED)
            columns["label"] = pa.chunked_array([pa.array([nothing] * number)])
        elif split.references is not None:
            columns["label"] = pa.chunked_array([pa.array(split.references.tolist())])
        return Features(Dataset(pa.table(columns)))

    def describe_truncation(self, columns: Sequence[str]) -> str | None:
        """See [`Task`]."""
        if not self.num_truncated:
            return None
        return self._describe_lengths(self.num_texts, self.num_truncated, len(columns) > 1)

    def _describe_lengths(self, texts: int, truncated: int, are_pairs: bool) -> str:
        if not truncated:
            return f"no text has more than {self.max_length} tokens (--max_seq_length)"
        remedies = ["increase --max_seq_length"] if self.max_length < self.tokenizer.model_max_length else []
        remedies += [] if are_pairs else ["train with --doc_stride, which reads whole texts"]
        advice = f". To keep more, {', or '.join(remedies)}" if remedies else ""
        return (
            f"{truncated:,} of {format_count(texts, 'text')} ({truncated / texts:.1%}) are longer than "
            f"{self.max_length} tokens (--max_seq_length), and are truncated{advice}"
        )

    def decode(self, logits: Logits, split: TextSplit, features: Features) -> TextAnswers:
        """Returns the label, the labels or the number for each example. Applies stored thresholds."""
        scores = logits[0] if isinstance(logits, tuple) else logits
        if self.problem == "regression":
            return TextAnswers(scores.squeeze(-1) if scores.shape[-1] == 1 else scores)
        return decide(scores, self.problem == "multi_label_classification", self.thresholds)

    # --- decisions ----------------------------------------------------------------------------------------------

    @property
    def chooses_decisions(self) -> bool:  # type: ignore[override]
        """Whether a run chooses thresholds or a temperature after training."""
        return self.args.calibrate or self.args.tune_thresholds is not None

    def check_decisions(self, split: TextSplit | None) -> None:
        """See [`Task`]."""
        if not self.chooses_decisions:
            return
        metric = self.args.tune_thresholds
        flag = "--calibrate" if metric is None else "--tune_thresholds"
        if self.labels is None or split is None or not split.labeled or split.num_examples < FOLDS:
            raise InputError(
                f"{flag} needs training examples, and at least {FOLDS} validation examples with labels that are not "
                f"numbers. Remove {flag}."
            )
        several = self.problem == "multi_label_classification"
        fitting = LABEL_SET_METRICS if several else BINARY_METRICS if len(self.labels) == 2 else ()
        if metric not in (None, *fitting):
            raise InputError(
                f"--tune_thresholds {metric} does not fit these data. f1 and accuracy need two classes, and macro_f1 "
                "needs several labels per example. Choose another metric."
            )

    def choose_decisions(self, split: TextSplit, logits: Logits) -> Decisions:
        """Chooses thresholds and a temperature on labeled examples, from logits before any temperature."""
        assert split.references is not None and self.labels is not None
        # Label 1 of a GLUE task may have another id in this checkpoint.
        positive = self.labels.index(self.args.task.labels[1]) if self.args.task and len(self.labels) == 2 else 1
        scores = logits[0] if isinstance(logits, tuple) else logits
        references = split.references.astype(np.int64)
        return choose_decisions(scores, references, self.args.calibrate, self.args.tune_thresholds, positive)

    def _read_thresholds(self, config: PreTrainedConfig) -> None:
        """Uses the thresholds that a fine-tuned model stores."""
        stored = getattr(config, "thresholds", None) or {}
        if not isinstance(stored, dict):
            raise InputError(f"config.json: `thresholds` is {stored}. Fix or remove it.")
        labels = list_labels(config)
        fitting = len(labels) if self.problem == "multi_label_classification" else 1
        self.thresholds = {i: stored[label] for i, label in enumerate(labels) if label in stored}
        if len(self.thresholds) < len(stored) or len(stored) not in (0, fitting):
            raise InputError(
                f"config.json: the thresholds {stored} do not match the labels. Fix or remove `thresholds`."
            )
        if self.args.abstain_below is not None and self.problem == "regression":
            raise InputError("--abstain_below needs a model that predicts labels. This model predicts numbers.")

    # --- scores -------------------------------------------------------------------------------------------------

    def measure(self, split: TextSplit, answers: TextAnswers) -> np.ndarray:
        """Returns the correct and the predicted value of each example. *Shape:* (N, 2), or (N, 2 x C)"""
        references, predictions = split.references, answers.values
        assert references is not None
        task = self.args.task
        if self.problem != "regression":
            references = references.astype(np.int64)
        if task is not None and task.labels and self.labels:
            # F1 refers to label 1 of the task, which may have another id in this checkpoint.
            task_ids = np.array([task.labels.index(label) for label in self.labels])
            references, predictions = task_ids[references], task_ids[predictions]
        return np.column_stack((references, predictions))

    def score(self, split: TextSplit, rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
        """Returns the metrics. For a GLUE task with two metrics, also returns their mean, `combined_score`."""
        counts = np.ones(len(rows), np.int64) if counts is None else counts
        values, task = SCORES[self.problem](rows, counts), self.args.task
        names = own = task.metrics if task else METRICS[self.problem]
        if split.name == "test_diagnostic":
            names = ("matthews_correlation",)  # Wang et al. (2018), section 4
        metrics = {name: values[name] for name in names}
        if task is not None and len(metrics) > 1:
            metrics["combined_score"] = sum(metrics.values()) / len(metrics)
        chosen = [name for name in self.metrics if name not in (*own, "combined_score")]  # by the user
        if not values.keys() >= set(chosen):
            labels = list(task.labels if task else self.labels or ())  # in the order of the ids in `rows`
            scores = score_labels(rows, counts, None if self.problem == "multi_label_classification" else len(labels))
            pairs = [(i, label, metric) for i, label in enumerate(labels) for metric in LABEL_METRICS]
            values |= {f"{label}_{metric}": scores[f"{metric}_{i}"] for i, label, metric in pairs}
            values |= {name: scores[name] for name in AVERAGES}
        return metrics | {name: values[name] for name in chosen}

    def list_label_metrics(self, split: TextSplit) -> tuple[str, ...]:
        """See [`Task`]. The tables of labels show these metrics."""
        labels = self.labels or ()
        return (*AVERAGES, *(f"{label}_{name}" for label in labels for name in LABEL_METRICS)) if labels else ()

    def score_labels(self, split: TextSplit, answers: TextAnswers) -> LabelScores | None:
        """See [`Task`]. Labels are scored if they are `UNEVEN`, or if a label is never predicted."""
        if self.labels is None or split.references is None:
            return None
        sides, count = (split.references.astype(np.int64), answers.values), len(self.labels)
        several = answers.values.ndim == 2
        numbers, predicted = (side.sum(axis=0) if several else np.bincount(side, minlength=count) for side in sides)
        if numbers.max() < UNEVEN * numbers.min() and predicted.all():
            return None
        rows, score = np.column_stack(sides), partial(score_labels, labels=None if several else count)
        scores, intervals = score(rows, np.ones(len(rows), np.int64)), bootstrap(rows, score)
        return {
            "averages": {name: scores[name] for name in AVERAGES},
            "intervals": {name: intervals[name] for name in AVERAGES if name in intervals},
            "labels": [
                {"label": label, "number": int(numbers[i]), "predicted": int(predicted[i])}
                | {name: scores[f"{name}_{i}"] for name in LABEL_METRICS}
                | {"intervals": {name: intervals.get(f"{name}_{i}") for name in LABEL_METRICS}}
                for i, label in enumerate(self.labels)
            ],
        }

    def baseline(self, split: TextSplit, train: TextSplit | None) -> Baseline:
        """Scores the best constant answer: the same answer to every example.

        The answer is the mean number, the most frequent label, or the set of labels with the highest micro F1.
        """
        references, labels = split.references, self.labels
        assert references is not None
        if labels is None:
            answer = references.mean(keepdims=True)
        elif references.ndim == 1:
            values, counts = np.unique(references, return_counts=True)
            answer = values[[counts.argmax()]]
        else:
            # The best set of k labels consists of the k most frequent labels.
            # F1 = 2 * correct / (predicted + labels in the data).
            counts = references.sum(axis=0)
            order = np.argsort(-counts, kind="stable")
            sizes = np.arange(1, len(labels) + 1)
            f1 = 2 * counts[order].cumsum() / (sizes * len(references) + counts.sum())
            answer = np.zeros((1, len(labels)), dtype=np.int64)
            answer[0, order[: f1.argmax() + 1]] = 1
        rows = self.measure(split, TextAnswers(np.broadcast_to(answer, references.shape)))
        shown = f"{answer[0]:.3f}" if labels is None else repr(self.format_answers(answer, labels, ", ")[0])
        return Baseline(f"always {shown}", self.score(split, rows))

    def metric_features(self) -> dict[str, Any]:
        """See [`Task`]. Features are label ids, lists of 1 and 0 for several labels, or numbers."""
        value: Any = Value("float64" if self.problem == "regression" else "int64")
        value = List(value) if self.problem == "multi_label_classification" else value
        return {"predictions": value, "references": value}

    def pair(self, references: list[Any], predictions: list[Any]) -> tuple[TextSplit, TextAnswers]:
        """Returns examples and answers from label ids, or numbers."""
        split = self.make_split([[""]] * len(references))
        split.references = np.array(references)
        return split, TextAnswers(np.array(predictions))

    def select(self, split: TextSplit, indices: np.ndarray, name: str) -> TextSplit:
        """Returns some of the examples. See [`Task`]."""
        if self.labels is None or split.references is None:
            return super().select(split, indices, name)  # refuses numbers
        return replace(
            split,
            name=name,
            texts=[[column[index] for index in indices] for column in split.texts],
            labels=[split.labels[index] for index in indices],
            indices=[split.indices[index] for index in indices],
            rows=[split.rows[index] for index in indices],
            references=split.references[indices],
        )

    def rate_labels(self, split: TextSplit, logits: Logits, features: Features) -> list[dict[str, Any]]:
        """Returns predictions, and the probability of each example's label. With several labels, it is the lowest."""
        answers, references = self.decode(logits, split, features), split.references
        assert answers.probabilities is not None and references is not None
        if references.ndim == 2:
            own = np.where(references == 1, answers.probabilities, 1 - answers.probabilities).min(axis=1)
        else:
            own = answers.probabilities[np.arange(len(references)), references]
        expected, found = (self.name_answers(each, self.labels) for each in (references.astype(int), answers.values))
        rows = []
        for index, probabilities in enumerate(answers.probabilities.tolist()):
            row = {"row": split.rows[index], "label": expected[index], "predicted_label": found[index]}
            row["label_probability"] = float(own[index])
            row["probabilities"] = dict(zip(self.labels or (), probabilities, strict=True))
            rows.append(
                {name: texts[index] for name, texts in zip(split.text_columns, split.texts, strict=True)} | row
            )
        return rows

    # --- files --------------------------------------------------------------------------------------------------

    def list_prediction_files(self, split: TextSplit) -> list[str]:
        """Returns the file of all predictions. Test splits also have a file in the format of gluebenchmark.com."""
        files, task = super().list_prediction_files(split), self.args.task
        if split.name.startswith("test"):
            files.append(f"{task.leaderboard.get(split.name, task.folder)}.tsv" if task else "predict_results.txt")
        return files

    def write(self, split: TextSplit, answers: TextAnswers, folder: Path) -> None:
        """Writes a JSON object for each example, and for test splits also a table for gluebenchmark.com.

        The keys of an object are the columns of the row (of GLUE's columns, only the texts), "label" (if the split is
        labeled), "predicted_label", and "probabilities", an object with the probability of each label (not for
        regression). The table has the columns index and prediction. For GLUE's tasks, it has GLUE's example numbers
        and labels. For your own data, the table is predict_results.txt, as in `run_glue.py`.
        """
        labels = [] if split.references is None else self.name_answers(split.references, self.labels)
        first, *tables = self.list_prediction_files(split)
        with (folder / first).open("w", encoding="utf-8", errors="backslashreplace") as stream:
            for index, predicted in enumerate(self.to_columns(split, answers)):
                example = dict(split.values[index]) if split.values else {}
                example |= {name: texts[index] for name, texts in zip(split.text_columns, split.texts, strict=True)}
                if labels:
                    example["label"] = labels[index]
                stream.write(dump_json(example | predicted) + "\n")
        for table in tables:
            self._write_table(folder / table, split.indices[: len(answers.values)], answers.values)
        if split.references is not None and self.problem == "single_label_classification":
            plot = plot_file(folder, self.set_names[split.name], "confusion_matrix.png")
            draw_confusion_matrix(split.references, answers.values, self.labels or [], plot)

    def _write_table(self, file: Path, indices: list[object], values: np.ndarray) -> None:
        task, labels = self.args.task, self.labels
        if task is not None and self.problem == "regression":
            values = values.clip(0, 5)  # STS-B
        if task is not None and task.writes_label_ids and labels is not None:
            labels = [str(task.labels.index(label)) for label in labels]
        answers = self.format_answers(values, labels, self.args.label_separator or ",")
        lines = [f"{index}\t{answer}\n" for index, answer in zip(indices, answers, strict=True)]
        file.write_text("".join(["index\tprediction\n", *lines]), encoding="utf-8")

    @staticmethod
    def name_answers(values: np.ndarray, labels: list[str] | None) -> list[Any]:
        """Returns the answer to each example: a number (without `labels`), a label, or a list of labels."""
        if labels is None:
            return values.tolist()
        if values.ndim == 2:
            return [[labels[i] for i in np.flatnonzero(row)] for row in values]
        return [labels[i] for i in values]

    @classmethod
    def format_answers(cls, values: np.ndarray, labels: list[str] | None, separator: str) -> list[str]:
        """Returns the answer to each example as text, with `separator` between the labels of an example."""
        named = cls.name_answers(values, labels)
        return [separator.join(answer) if isinstance(answer, list) else str(answer) for answer in named]

    # --- prediction ---------------------------------------------------------------------------------------------

    def use_checkpoint(self, config: PreTrainedConfig) -> None:
        """See [`Task`]. As in transformers, a model with one output and no `problem_type` predicts a number."""
        self._use_windows(get_windows(config))
        self.labels = None if is_regression(config) else list_labels(config)
        problem: Any = config.problem_type or "single_label_classification"
        self.set_problem("regression" if self.labels is None else problem)
        self._read_thresholds(config)

    def read(self, values: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
        """Returns the text or the pair."""
        return [read_text(values, column) for column in columns]

    def make_split(self, examples: list[Any]) -> TextSplit:
        """Returns a split of texts or pairs."""
        return TextSplit("test", "", texts=[list(column) for column in zip(*examples, strict=True)])

    def to_columns(self, split: TextSplit, answers: TextAnswers) -> list[dict[str, Any]]:
        """Returns `predicted_label`, and `probabilities` unless the model predicts numbers.

        With `abstain_below`, each row also has `abstained`. The label of an uncertain row is None.
        """
        named, labels = self.name_answers(answers.values, self.labels), self.labels
        if labels is None or answers.probabilities is None:
            return [{"predicted_label": answer} for answer in named]
        columns = [
            {"predicted_label": answer, "probabilities": dict(zip(labels, row, strict=True))}
            for answer, row in zip(named, answers.probabilities.tolist(), strict=True)
        ]
        if self.args.abstain_below is not None:
            uncertain = compute_confidence(answers) < self.args.abstain_below
            for row, abstained in zip(columns, uncertain.tolist(), strict=True):
                row |= {"abstained": abstained} | ({"predicted_label": None} if abstained else {})
        return columns
