"""Tagging: a tag for each word, which marks entities. This is the task of `snugbert ner`.

    rows -> sentences -> windows -> logits -> tags -> counts of entities -> precision, recall and F1

Sentences are kept in memory. CoNLL-2003 has 14,041 training sentences.

Shapes: N sentences, W words in all sentences.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, concatenate_datasets
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)

from snugbert.checkpoints.loading import limit_length, load_config, load_tokenizer, remember_text_columns
from snugbert.data.conll import (
    DOCUMENT_START,
    ONLY_IDS,
    Sentence,
    Tags,
    has_only_ids,
    parse_column_number,
    read_conll,
    read_records,
    tag_lines,
    tag_records,
)
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.data.sources import (
    SPLITS,
    DataSource,
    choose_splits,
    describe_source,
    load_dataset_splits,
    uncompressed_name,
)
from snugbert.data.text_lines import LONGEST_LINE, LONGEST_LINE_OF_JSON, find_encoding, read_text_lines
from snugbert.errors import InputError, format_count
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.reports.intervals import bootstrap
from snugbert.reports.score_plots import draw_confusion_matrix, draw_entity_scores, plot_file
from snugbert.reports.score_tables import split_by_type
from snugbert.tasks.base import Baseline, EvaluationSet, FineTuningTask, Logits, check_teacher_labels, model_maker
from snugbert.tasks.entity_tags import SCHEMES, TAG, convert_tags, decode_tags, find_invalid_tags
from snugbert.tasks.tag_windows import TagWindows, make_windows, put_space_before_words
from snugbert.tasks.tagging_arguments import DOCUMENT_COLUMNS, NerDataArguments
from snugbert.trainers.finetuning.fine_tune import check_early, collect_data_settings
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.learning_rate import choose_learning_rate
from snugbert.trainers.finetuning.soft_targets import UNLABELED

logger = logging.getLogger(__name__)

METRICS = ("precision", "recall", "f1", "accuracy")  # of all types together
NAMES = {"validation": "eval", "test": "predict"}  # split -> prefix of metrics and files


class TagSplit(NamedTuple):
    """The sentences of a split.

    Attributes:
        source: the file or dataset, for messages.
        sentences: the sentences. After [`check_tags`] their tags are in BIO.
        one_word_per_line: the source is a CoNLL file.
        types: the entity types in the source, including sentences beyond the limit on examples.
        lines: the lines of the source. A dataset is JSON lines. Empty for training and unlabeled sentences.
        encoding: how Python opens the source: "utf-8", or "utf-8-sig" if it begins with a byte order mark.
        limited: a limit on examples left out sentences at the end of the source.
    """

    source: str
    sentences: list[Sentence]
    one_word_per_line: bool
    types: frozenset[str] = frozenset()
    lines: Sequence[str] = ()
    encoding: str = "utf-8"
    limited: bool = False

    @property
    def labeled(self) -> bool:
        """Whether every sentence has tags."""
        return all(sentence.tags is not None for sentence in self.sentences)

    def describe_place(self, sentence: Sentence, word: int) -> str:
        """Returns the source and the line or row of a word, for messages."""
        if self.one_word_per_line:
            return f"{self.source}, line {sentence.row + word}"
        return f"{self.source}, row {sentence.row}, word {word + 1}"


class Tagging:
    """Tags the words of sentences.

    Args:
        args: which data to use and how to read them.

    Attributes:
        labels: O, and B- and I- for each entity type, in the order of their ids. A checkpoint that is not trained may
            have other tags.
        scheme: the tagging scheme of the data. Predictions are converted to it. None: they are not converted.
    """

    def __init__(self, args: NerDataArguments):
        self.args = args
        self.labels: list[str] = []
        self.scheme: str | None = None

    @property
    def types(self) -> list[str]:
        """The entity types of the labels, sorted."""
        return sorted({kind for label in self.labels for kind, _, _ in decode_tags([label])})

    # --- reading ------------------------------------------------------------------------------------------------

    def load_splits(self, wanted: tuple[str, ...] | None, **download: Any) -> dict[str, TagSplit]:
        """Reads the sentences that the arguments select, and converts their tags to BIO. Sets `scheme`.

        Args:
            wanted: which of "train", "validation" and "test" to read. None: all files, or train and validation of a
                dataset. "train" includes "unlabeled", the sentences that only a teacher tags.
            download: passed on to `datasets.load_dataset`.

        Raises:
            InputError: a split or a dataset does not exist; or see [`read_conll`], [`read_records`] and
                [`check_tags`].
        """
        args = self.args
        found: dict[str, Path | Dataset] = dict(args.files)
        if not found and args.dataset_name is not None:
            splits = load_dataset_splits(args.dataset_name, args.dataset_config_name, **download)
            found.update({split: splits[split] for split in SPLITS if split in splits})
        if args.unlabeled_file is not None:
            found["unlabeled"] = Path(args.unlabeled_file)
        wanted = choose_splits(wanted, found, bool(args.files), "sentences")
        read = {name: self._read_split(found[name], name) for name in wanted}
        self.scheme, checked = check_tags(read, args.tag_scheme, args.on_bad_tag)
        return checked

    def _read_split(self, data: Path | Dataset, name: str) -> TagSplit:
        source = str(data) if isinstance(data, Path) else f"{self.args.dataset_name} ({name})"
        one_word_per_line = isinstance(data, Path) and not uncompressed_name(data).endswith((".json", ".jsonl"))
        sentences, lines = self._read_sentences(data, source, name, one_word_per_line)
        empty = [sentence.row for sentence in sentences if not sentence.words]
        if empty:
            message = "%s: skipped sentences without words: %d, the first in row %d."
            logger.warning(message, source, len(empty), empty[0])
            sentences = [sentence for sentence in sentences if sentence.words]
        types = {tag[2:] for sentence in sentences for tag in sentence.tags or () if TAG.fullmatch(tag)} - {""}
        used = sentences[: self.args.max_samples.get(name)]
        if not used:
            raise InputError(f"{source}: no sentences.")
        untagged = [sentence.row for sentence in used if sentence.tags is None]
        if 0 < len(untagged) < len(used):
            message = "%s: %d of %d sentences have no tags, the first in row %d. The split is tagged but not scored."
            logger.warning(message, source, len(untagged), len(used), untagged[0])
        if self.args.document_context and any(sentence.document is None for sentence in used):
            advice = f"Add {DOCUMENT_START} lines" if one_word_per_line else "Set --document_column_name"
            raise InputError(f"--document_context: {source} does not mark its documents. {advice}.")
        return TagSplit(
            source,
            used,
            one_word_per_line,
            types=frozenset(types),
            lines=lines,
            encoding=find_encoding(data) if isinstance(data, Path) else "utf-8",
            limited=len(used) < len(sentences),
        )

    def _read_sentences(
        self, data: Path | Dataset, source: str, name: str, one_word_per_line: bool
    ) -> tuple[list[Sentence], list[str]]:
        """Returns the sentences of the split `name`, and the lines of a source that predictions are written to."""
        args = self.args
        labeled, is_written = name not in ("unlabeled", "test"), name in ("validation", "test")
        if one_word_per_line:
            lines = list(_read_lines(data, LONGEST_LINE))
            word_column = parse_column_number("text_column_name", args.text_column_name)
            sentences = list(read_conll(lines, source, word_column, self._tag_column, labeled))
            if word_column is None and has_only_ids(sentences):
                logger.warning(ONLY_IDS, source, "--text_column_name")
        else:
            columns, document_column = () if name == "unlabeled" else self._tag_columns, args.document_column_name
            documents = (document_column,) if document_column else DOCUMENT_COLUMNS
            in_documents = document_column is not None
            sentences = list(
                read_records(data, source, args.text_column_name, columns, documents, labeled, in_documents)
            )
            lines = list(_read_lines(data, LONGEST_LINE_OF_JSON)) if is_written else []
        if name == "unlabeled":
            sentences = [sentence._replace(tags=None) for sentence in sentences]
        return sentences, lines if is_written else []

    @property
    def _tag_column(self) -> int | None:
        """The column of tags in CoNLL files, counted from 1. None: the last."""
        return parse_column_number("label_column_name", self.args.label_column_name)

    @property
    def _tag_columns(self) -> tuple[str, ...]:
        """The possible columns of tags in JSON files and datasets."""
        given = self.args.label_column_name
        return (given,) if given else (f"{self.args.task_name}_tags", "tags")

    def choose_labels(self, splits: Mapping[str, TagSplit], known: list[str], distills: bool = False) -> None:
        """Sets `labels`: O, and B- and I- for each entity type in the training data.

        Args:
            splits: the splits from [`load_splits`].
            known: the checkpoint's labels in the order of their ids. If they are the same labels, their order is kept,
                so that the checkpoint's classifier stays valid. Without training data, these labels are used.
            distills: whether they are a teacher's labels. Then the training data may lack some of them.

        Raises:
            InputError: the training data have no entities, another split has an entity type that the labels lack, or
                there are no training data and the checkpoint's labels are not entity tags.
        """
        known_types = {label[2:] for label in known if TAG.fullmatch(label)} - {""}
        if "train" in splits:
            types, origin = set(splits["train"].types), splits["train"].source
            labels = ["O", *(f"{mark}-{kind}" for kind in sorted(types) for mark in "BI")]
            if not types:
                raise InputError(f"{origin}: no entities. All tags are O. Check --label_column_name.")
            if set(labels) == set(known):
                labels = known
            elif distills and set(labels) < set(known):
                labels, types, origin = known, known_types, "the teacher"
        else:
            labels, types, origin = known, known_types, "the checkpoint"
            if not types or "O" not in labels:
                raise InputError(
                    "--train_file is missing. Without training, the labels of the model must be entity tags, not "
                    f"{', '.join(labels)}."
                )
        for split in splits.values():
            for sentence in split.sentences:
                for word, tag in enumerate(sentence.tags or ()):
                    if tag != "O" and tag[2:] not in types:
                        place = split.describe_place(sentence, word)
                        expected = f"Expected a type in {origin}: {', '.join(sorted(types))}"
                        raise InputError(f"{place}: unknown entity type {tag[2:]!r}. {expected}.")
        self.labels = labels

    # --- features -----------------------------------------------------------------------------------------------

    def encode(self, sentences: Sequence[Sentence], tokenizer: PreTrainedTokenizerBase, max_length: int) -> TagWindows:
        """Cuts sentences into windows, see [`make_windows`]. Windows of tagged sentences have labels.

        Args:
            sentences: tagged in BIO, or not tagged.
            tokenizer: a fast tokenizer with BERT's special tokens.
            max_length: maximum tokens of a window.
        """
        context = self.args.document_context
        if any(sentence.tags is None for sentence in sentences):
            return make_windows(sentences, tokenizer, max_length, context)
        tags = [tag for sentence in sentences for tag in sentence.tags or ()]
        # If a checkpoint lacks a B- or I- label, such tokens are not learned, but their words are scored.
        ids = {label: i for i, label in enumerate(self.labels)}
        first = [ids.get(tag, IGNORE_INDEX) for tag in tags]
        other = None
        if self.args.label_all_tokens:  # with B- on the first sub-token of a word, and I- on the others
            inside = {tag: ids.get(tag if tag == "O" else f"I-{tag[2:]}", IGNORE_INDEX) for tag in self.labels}
            other = [inside.get(tag, IGNORE_INDEX) for tag in tags]
        return make_windows(sentences, tokenizer, max_length, context, first, other)

    # --- predictions --------------------------------------------------------------------------------------------

    def decode(self, logits: Logits, windows: TagWindows, sentences: Sequence[Sentence]) -> Tags:
        """Returns the predicted tag of each word, in `scheme`.

        A word takes the label predicted for its first sub-token, as in training. Invalid tags are repaired as
        `conlleval` reads them. This does not change the scores of entities, only the accuracy of tags.

        Args:
            logits: *Shape:* (windows, tokens, labels); or a tuple that begins with them.
            windows: the windows of the sentences.
            sentences: the sentences.
        """
        logits = logits[0] if isinstance(logits, tuple) else logits
        ids = iter(logits[windows.window_indices, windows.token_indices].argmax(axis=-1).tolist())
        return self._in_scheme([[self.labels[next(ids)] for _ in sentence.words] for sentence in sentences])

    def _in_scheme(self, tags: Iterable[Sequence[str]]) -> Tags:
        return [convert_tags(row, self.scheme) if self.scheme else [*row] for row in tags]

    def references(self, sentences: Sequence[Sentence]) -> Tags:
        """Returns the tags of tagged sentences, in `scheme`."""
        return self._in_scheme(sentence.tags or () for sentence in sentences)

    def predict_baseline(self, sentences: Sequence[Sentence], train: Sequence[Sentence]) -> Tags:
        """Predicts each word's most frequent tag in the training data, and O for unknown words, in `scheme`.

        Invalid tags are repaired, as in predictions of a model.
        """
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in train:
            for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
                counts[word][tag] += 1
        most_frequent = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        return self._in_scheme([most_frequent.get(word, "O") for word in sentence.words] for sentence in sentences)

    # --- scores -------------------------------------------------------------------------------------------------

    def measure(self, sentences: Sequence[Sentence], tags: Tags) -> np.ndarray:
        """Counts correct, predicted and reference entities, equal tags and words of each sentence.

        An entity is correct if its type, first word and last word are correct. Invalid tags are read as in
        `conlleval`, the script of CoNLL's shared tasks: an I- that does not continue an entity begins one.

        Args:
            sentences: tagged sentences.
            tags: the predicted tags of each sentence, in `scheme`.

        Returns:
            Equal tags and words, then correct, predicted and reference entities of all types together, then of each
            of `types`. *Shape:* (N, 2 + 3 * (1 + types))
        """
        types = self.types
        rows = np.zeros((len(sentences), 1 + len(types), 3), dtype=np.int64)
        equal_tags = np.zeros((len(sentences), 2), dtype=np.int64)
        for index, (correct, predicted) in enumerate(zip(self.references(sentences), tags, strict=True)):
            entities, found = set(decode_tags(correct)), set(decode_tags(predicted))
            equal_tags[index] = sum(map(str.__eq__, correct, predicted)), len(correct)
            for column, group in enumerate((entities & found, found, entities)):
                rows[index, 0, column] = len(group)
                for kind, _, _ in group:
                    rows[index, 1 + types.index(kind), column] += 1
        return np.concatenate([equal_tags, rows.reshape(len(sentences), -1)], axis=1)

    def score(self, rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
        """Computes precision, recall and F1 of entities, as fractions, and accuracy, the share of equal tags.

        A fraction with denominator 0 is 0. The formulas are those of seqeval, to the last digit.

        Args:
            rows: from [`measure`].
            counts: how often each row was drawn. None: once, and the metrics of each type, such as PER_precision,
                PER_recall, PER_f1 and PER_number, the number of entities in the references, are also returned.
        """
        totals = rows.sum(axis=0) if counts is None else counts @ rows
        equal_tags, words = totals[:2].tolist()
        overall, *by_type = totals[2:].reshape(-1, 3).tolist()
        metrics = {**_score_entities(*overall), "accuracy": equal_tags / words}
        if counts is not None:
            return metrics
        for kind, (correct, predicted, references) in zip(self.types, by_type, strict=True):
            if predicted + references:
                scores = _score_entities(correct, predicted, references)
                metrics |= {f"{kind}_{name}": value for name, value in scores.items()}
                metrics[f"{kind}_number"] = references
        return metrics

    # --- files --------------------------------------------------------------------------------------------------

    def predictions_file(self, name: str) -> str:
        """Returns the name of the file of predictions: the suffix is that of the source, without .gz and .zst.

        Args:
            name: "eval" or "predict". Predictions for test sentences have the name that `run_ner.py` gives them.
        """
        stem = "predictions" if name == "predict" else f"{name}_predictions"
        data = self.args.files.get("test" if name == "predict" else "validation")
        # A dataset is written as JSON lines.
        return f"{stem}.jsonl" if data is None else stem + (Path(uncompressed_name(data)).suffix or ".txt")

    def write(self, name: str, split: TagSplit, tags: Tags, folder: Path) -> None:
        """Writes the predictions for a split, and plots if the split is labeled.

        Args:
            name: "eval" or "predict".
            split: the sentences and the lines of their source.
            tags: tags of each sentence, in `scheme`.
            folder: the folder to write to.
        """
        self.write_sentences(folder / self.predictions_file(name), split, tags)
        if split.labeled:
            metrics = self.score(self.measure(split.sentences, tags))
            draw_entity_scores(split_by_type(metrics)[1], plot_file(folder, name, "entity_scores.png"))
            file = plot_file(folder, name, "confusion_matrix.png")
            _draw_confusion(self.references(split.sentences), tags, file)

    def write_sentences(self, file: Path, split: TagSplit, tags: Tags) -> None:
        """Writes the source of a split with predicted tags in place of its own.

        Tags go where the source has tags. A source without tags gets a last column, or a last key in each object.
        Sentences beyond a limit on examples are left out.

        Args:
            file: the file to write. It is not compressed.
            split: the sentences and the lines of their source.
            tags: tags of each sentence, in `scheme`.
        """
        if split.one_word_per_line:
            text = tag_lines(split.lines, split.sentences, tags, self._tag_column, split.limited)
        else:
            text = tag_records(split.lines, split.sentences, tags, self._tag_columns, split.limited)
        file.write_text(text, encoding=split.encoding, newline="")  # line ends as in the source


def _read_lines(data: Path | Dataset, longest: int) -> Iterator[str]:
    """Yields the lines of a file with their line ends, or a line of JSON for each row of a dataset."""
    if isinstance(data, Path):
        return read_text_lines(data, longest)
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in data)


def _score_entities(correct: int, predicted: int, references: int) -> dict[str, float]:
    precision = correct / predicted if predicted else 0.0
    recall = correct / references if references else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def _draw_confusion(references: Tags, predictions: Tags, file: Path) -> None:
    """Draws a confusion matrix of the tags of words. They are in the scheme of the source, as in the accuracy."""
    expected, predicted = ([tag for row in rows for tag in row] for rows in (references, predictions))
    prefixes = "OBIELSU"  # O, and the prefixes of an entity from its first word to its last
    labels = sorted({*expected, *predicted}, key=lambda tag: (tag[2:], prefixes.index(tag[0])))
    ids = {label: i for i, label in enumerate(labels)}
    draw_confusion_matrix(
        np.array([ids[tag] for tag in expected]), np.array([ids[tag] for tag in predicted]), labels, file
    )


# --- tags and labels of the data --------------------------------------------------------------------------------


def check_tags(splits: Mapping[str, TagSplit], scheme: str, on_bad_tag: str) -> tuple[str, dict[str, TagSplit]]:
    """Finds the tagging scheme, and converts all tags to BIO.

    Args:
        splits: the splits with their original tags.
        scheme: the scheme of all splits. "auto": the scheme with the fewest invalid tags, see [`find_invalid_tags`].
        on_bad_tag: for invalid tags, "stop", or "repair": use `conlleval`'s reading, with a warning.

    Returns:
        The scheme, and the splits with converted tags.

    Raises:
        InputError: a tag is not an entity tag, or is invalid with `on_bad_tag` "stop". The message names the first.
    """
    labeled = [(split, s, s.tags) for split in splits.values() if split.labeled for s in split.sentences if s.tags]
    for split, sentence, tags in labeled:
        for word, tag in enumerate(tags):
            if not TAG.fullmatch(tag):
                raise InputError(
                    f"{split.describe_place(sentence, word)}: {tag!r} is not an entity tag. Expected O, or a type "
                    "after B-, I-, E-, S-, L- or U-, such as B-PER. Check --label_column_name."
                )
    invalid: dict[str, list[tuple[int, int, str]]] = {}  # scheme -> sentence, word and expected tag
    for candidate in SCHEMES if scheme == "auto" else (scheme,):
        invalid[candidate] = [
            (index, *found)
            for index, (_, _, tags) in enumerate(labeled)
            for found in find_invalid_tags(tags, candidate)
        ]
        if not invalid[candidate]:  # no other scheme fits, unless all tags are O
            break
    scheme = min(invalid, key=lambda candidate: len(invalid[candidate]))
    if invalid[scheme]:
        index, word, expected = invalid[scheme][0]
        split, sentence, tags = labeled[index]
        before = f"after {tags[word - 1]!r}" if word else "at the start of a sentence"
        message = (
            f"{split.describe_place(sentence, word)}: tag {tags[word]!r} {before} is invalid in {scheme.upper()}"
            f"{', the best fitting scheme' if len(invalid) > 1 else ''}. conlleval reads {expected!r} "
            f"({format_count(len(invalid[scheme]), 'such tag')})."
        )
        if on_bad_tag == "stop":
            raise InputError(f"{message} Fix the tags, or set --on_bad_tag repair.")
        logger.warning("%s All invalid tags are repaired.", message)
    elif labeled:
        iob1 = ": entities begin with I-, but with B- directly after another of their type" if scheme == "iob1" else ""
        logger.info("tagging scheme: %s%s", scheme.upper(), iob1)
    checked = {}
    for name, split in splits.items():
        is_labeled = split.labeled
        sentences = [
            s._replace(tags=convert_tags(s.tags or (), "bio") if is_labeled else None) for s in split.sentences
        ]
        checked[name] = split._replace(sentences=sentences)
    return scheme, checked


# --- adapter, until the runs take a `Task` ----------------------------------------------------------------------


def make_task(
    model_args: FineTunedModelArguments,
    data_args: NerDataArguments,
    training_args: FineTuningArguments,
    teacher: FineTuningTask | None = None,
) -> FineTuningTask:
    """Returns the task that the arguments describe.

    Args:
        model_args: the model. With `is_teacher`, it is not trained.
        data_args: the data.
        training_args: the settings.
        teacher: the task with the teacher's model. The labels get its order.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    task = Tagging(data_args)
    splits = task.load_splits(training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token)
    tokenizer = load_tokenizer(model_args)
    put_space_before_words(tokenizer)
    config = load_config(model_args, tokenizer)
    trains = not model_args.is_teacher and ("train" in splits or "unlabeled" in splits)
    if trains:
        choose_learning_rate(config, training_args)
        check_early(model_args, training_args)
        name = data_args.text_column_name or "tokens"
        remember_text_columns(config, ("tokens" if name.isdecimal() else name,))  # CoNLL's columns are numbers
    checkpoint_labels = [label for _, label in sorted((config.id2label or {}).items())]
    if teacher is not None and teacher.labels is not None:
        checkpoint_labels = teacher.labels
    distills = model_args.is_teacher or teacher is not None
    task.choose_labels(splits, checkpoint_labels, distills)
    labels = task.labels
    if model_args.is_teacher:
        check_teacher_labels(checkpoint_labels, labels, ignore_case=False)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = limit_length(config, tokenizer, data_args.max_seq_length)
    windows = {name: task.encode(split.sentences, tokenizer, max_length) for name, split in splits.items()}
    training = [windows["train"].inputs] if "train" in windows else []
    if "unlabeled" in windows:
        training.append(label_as_unlabeled(windows["unlabeled"]))
    types = (
        sorted(splits["validation"].types) if data_args.return_entity_level_metrics and "validation" in splits else []
    )
    return FineTuningTask(
        name="Token classification",
        make_model=model_maker(AutoModelForTokenClassification, model_args, config, trained=not trains),
        tokenizer=tokenizer,
        data_collator=(
            DataCollatorForTokenClassification(tokenizer, padding="max_length", max_length=max_length)
            if training_args.pad_to_max_length
            else SnugBertDataCollatorWithPacking()
        ),
        train_features=concatenate_datasets(training) if training else None,
        evaluation_sets=[
            make_evaluation_set(task, NAMES[name], splits[name], windows[name], splits.get("train"))
            for name in NAMES
            if name in splits
        ],
        main_metric="f1",
        metrics=(*METRICS, *(f"{kind}_{metric}" for kind in types for metric in METRICS[:3])),
        pipeline_tag="token-classification",
        labels=labels,
        data=describe_sets(data_args, splits),
        settings=collect_data_settings(data_args),
    )


def label_as_unlabeled(windows: TagWindows) -> Dataset:
    """Returns the inputs of unlabeled sentences with `UNLABELED` as the label of each word."""
    labels = [np.full(len(ids), IGNORE_INDEX) for ids in windows.inputs["input_ids"]]
    for window, token in zip(windows.window_indices.tolist(), windows.token_indices.tolist(), strict=True):
        labels[window][token] = UNLABELED
    return windows.inputs.add_column("labels", labels)


def describe_sets(data_args: NerDataArguments, splits: Mapping[str, TagSplit]) -> dict[str, list[DataSource]]:
    """Names the sentences of each set as results and cards do. Unlabeled sentences are training sentences."""
    sets: dict[str, list[DataSource]] = {}
    for name, split in splits.items():
        set_name = "train" if name == "unlabeled" else NAMES.get(name, name)
        sets.setdefault(set_name, []).append(describe_split(data_args, name, len(split.sentences)))
    return sets


def describe_split(data_args: NerDataArguments, name: str, num_examples: int) -> DataSource:
    """Names the sentences of the split `name` as results and cards do."""
    unlabeled = Path(data_args.unlabeled_file) if name == "unlabeled" and data_args.unlabeled_file else None
    source = unlabeled or data_args.files.get(name) or str(data_args.dataset_name)
    return describe_source(source, data_args.dataset_config_name, name, num_examples)


def make_evaluation_set(
    task: Tagging, name: str, split: TagSplit, windows: TagWindows, train: TagSplit | None
) -> EvaluationSet[Tags]:
    """Returns sentences to tag, and to score if they are labeled.

    Args:
        task: the task.
        name: "eval" or "predict".
        split: the sentences.
        windows: windows of the sentences.
        train: the training sentences. The baseline predicts each word's most frequent tag in them.
    """

    def score(tags: Tags) -> dict[str, float]:
        return task.score(task.measure(split.sentences, tags))

    baseline = None
    if train is not None and split.labeled:
        metrics = score(task.predict_baseline(split.sentences, train.sentences))
        baseline = Baseline("each word's most frequent tag", {metric: metrics[metric] for metric in METRICS})
    return EvaluationSet(
        name=name,
        features=windows.inputs,
        num_examples=len(split.sentences),
        decode=lambda logits: task.decode(logits, windows, split.sentences),
        score=score if split.labeled else None,
        write=lambda tags, folder: task.write(name, split, tags, folder),
        predictions_files=(task.predictions_file(name),),
        baseline=baseline,
        estimate_intervals=(
            (lambda tags: bootstrap(task.measure(split.sentences, tags), task.score)) if split.labeled else None
        ),
        training_metrics=None if task.args.return_entity_level_metrics else METRICS,
    )
