"""Reads sentences with entity tags from CoNLL columns, JSON lines, or a dataset.

Tags may be in any of the schemes BIO, IOB1, IOBES and BILOU. They are checked and converted to BIO for training.
Sentences are kept in memory. CoNLL-2003 has 14,041 training sentences.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, List

from snugbert.data.sources import SPLITS, choose_splits, load_dataset_splits, uncompressed_name
from snugbert.data.tables import read_rows
from snugbert.data.text_lines import LONGEST_LINE, LONGEST_LINE_OF_JSON, find_encoding, read_text_lines
from snugbert.errors import InputError, format_count
from snugbert.files import check_unicode
from snugbert.tasks.entity_tags import SCHEMES, TAG, convert_tags, decode_tags, encode_tags
from snugbert.tasks.tagging_arguments import DOCUMENT_COLUMNS, NerDataArguments

logger = logging.getLogger(__name__)

DOCUMENT_START = "-DOCSTART-"  # Tjong Kim Sang and De Meulder (2003)
COMMENT = "# "  # as in CoNLL-U
ONLY_IDS = "%s: the first column has only numbers, and is read as words. If the words are in column 2, set %s 2."
WORD_ID = re.compile(r"[0-9]+([-.][0-9]+)?")  # of CoNLL-U: a number, a range or a decimal

Tags = list[list[str]]  # the tags of each sentence


class Sentence(NamedTuple):
    """The words of a sentence and their tags.

    Attributes:
        words: the words.
        tags: one tag per word. None: not labeled.
        row: the row in the source. In a CoNLL file, the line of the first word.
        document: id of the document, equal for neighboring sentences of a document. None: unknown.
    """

    words: list[str]
    tags: list[str] | None
    row: int
    document: str | int | None = None


class NerSplit(NamedTuple):
    """The sentences of a split.

    Attributes:
        source: the file or dataset, for messages.
        sentences: the sentences. After [`check_tags`] their tags are in BIO.
        one_word_per_line: the source is a CoNLL file.
        scheme: the tagging scheme of the source.
        types: the entity types in the source, including sentences beyond the limit on examples.
        lines: the lines of the source. A dataset is JSON lines. Empty for training and unlabeled sentences.
        encoding: how Python opens the source: "utf-8", or "utf-8-sig" if it begins with a byte order mark.
        limited: a limit on examples left out sentences at the end of the source.
    """

    source: str
    sentences: list[Sentence]
    one_word_per_line: bool
    scheme: str = "bio"
    types: frozenset[str] = frozenset()
    lines: Sequence[str] = ()
    encoding: str = "utf-8"
    limited: bool = False

    @property
    def labeled(self) -> bool:
        """Whether every sentence has tags."""
        return all(sentence.tags is not None for sentence in self.sentences)

    @property
    def references(self) -> Tags:
        """The tags of each sentence of a labeled split, in the scheme of the source."""
        return [convert_tags(sentence.tags or (), self.scheme) for sentence in self.sentences]

    def describe_place(self, sentence: Sentence, word: int) -> str:
        """Returns the source and the line or row of a word, for messages."""
        if self.one_word_per_line:
            return f"{self.source}, line {sentence.row + word}"
        return f"{self.source}, row {sentence.row}, word {word + 1}"


# --- reading ----------------------------------------------------------------------------------------------------


def load_splits(data_args: NerDataArguments, wanted: tuple[str, ...] | None, **download: Any) -> dict[str, NerSplit]:
    """Reads the sentences that the arguments select, and converts their tags to BIO.

    Args:
        data_args: the data to read.
        wanted: which of "train", "validation" and "test" to read. None: all files, or train and validation of a
            dataset. "train" includes "unlabeled", the sentences that only a teacher tags.
        download: passed on to `datasets.load_dataset`.

    Raises:
        InputError: a split or a dataset does not exist; or see [`read_conll`], [`read_records`] and [`check_tags`].
    """
    found: dict[str, Path | Dataset] = dict(data_args.files)
    if not found and data_args.dataset_name is not None:
        found.update(_load_dataset_splits(data_args, **download))
    if data_args.unlabeled_file is not None:
        found["unlabeled"] = Path(data_args.unlabeled_file)
    wanted = choose_splits(wanted, found, bool(data_args.files), "sentences")
    splits = {}
    for name in wanted:
        splits[name] = _read_split(found[name], name, data_args)
    return check_tags(splits, data_args.tag_scheme, data_args.on_bad_tag)


def _load_dataset_splits(data_args: NerDataArguments, **download: Any) -> dict[str, Path | Dataset]:
    splits = load_dataset_splits(str(data_args.dataset_name), data_args.dataset_config_name, **download)
    return {split: splits[split] for split in SPLITS if split in splits}


def _read_split(data: Path | Dataset, name: str, data_args: NerDataArguments) -> NerSplit:
    source = str(data) if isinstance(data, Path) else f"{data_args.dataset_name} ({name})"
    labeled, keeps_lines = name not in ("unlabeled", "test"), name in ("validation", "test")
    stem = uncompressed_name(data) if isinstance(data, Path) else ""
    one_word_per_line = isinstance(data, Path) and not stem.endswith((".json", ".jsonl"))
    if one_word_per_line:
        lines = list(_read_lines(data, LONGEST_LINE))
        sentences = list(read_conll(lines, source, data_args, labeled))
        if data_args.text_column_name is None and reads_ids(sentences):
            logger.warning(ONLY_IDS, source, "--text_column_name")
    else:
        columns = () if name == "unlabeled" else tag_columns(data_args)
        sentences = list(read_records(data, source, data_args, columns, labeled))
        lines = list(_read_lines(data, LONGEST_LINE_OF_JSON)) if keeps_lines else []
    empty = [sentence.row for sentence in sentences if not sentence.words]
    if empty:
        logger.warning("%s: skipped sentences without words: %d, the first in row %d.", source, len(empty), empty[0])
        sentences = [sentence for sentence in sentences if sentence.words]
    if name == "unlabeled":
        sentences = [sentence._replace(tags=None) for sentence in sentences]
    types = {tag[2:] for sentence in sentences for tag in sentence.tags or () if TAG.fullmatch(tag)} - {""}
    all_sentences, sentences = sentences, sentences[: data_args.max_samples.get(name)]
    if not sentences:
        raise InputError(f"{source}: no sentences.")
    untagged = [sentence.row for sentence in sentences if sentence.tags is None]
    if 0 < len(untagged) < len(sentences):
        message = "%s: %d of %d sentences have no tags, the first in row %d. The split is tagged but not scored."
        logger.warning(message, source, len(untagged), len(sentences), untagged[0])
    if data_args.document_context and any(sentence.document is None for sentence in sentences):
        advice = f"Add {DOCUMENT_START} lines" if one_word_per_line else "Set --document_column_name"
        raise InputError(f"--document_context: {source} does not mark its documents. {advice}.")
    return NerSplit(
        source,
        sentences,
        one_word_per_line,
        types=frozenset(types),
        lines=lines if keeps_lines else [],
        encoding=find_encoding(data) if isinstance(data, Path) else "utf-8",
        limited=len(sentences) < len(all_sentences),
    )


def _read_lines(data: Path | Dataset, longest: int) -> Iterator[str]:
    """Yields the lines of a file with their line ends, or a line of JSON for each row of a dataset."""
    if isinstance(data, Path):
        return read_text_lines(data, longest)
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in data)


def read_conll(
    lines: Iterable[str], source: str, data_args: NerDataArguments, labeled: bool, reports: bool = True
) -> Iterator[Sentence]:
    """Streams sentences in CoNLL's format: one word per line, with columns separated by tabs or spaces.

    An empty line ends a sentence. A line that begins with -DOCSTART- begins a document. A line before a sentence that
    begins with "# " is a comment if it has another number of columns than words, or if words have tabs and it has
    none. A file with one column has no tags.

    Args:
        lines: the lines of the file.
        source: its name in messages.
        data_args: `text_column_name` and `label_column_name`, if given, are column numbers, counted from 1.
        labeled: whether every sentence must have tags.
        reports: whether to log the number of comments.

    Raises:
        InputError: the number of columns changes, or a column is missing. The message names the line.
    """
    text = _column_number("text_column_name", data_args.text_column_name) or 1
    # Other white space, such as a no-break space, can be part of a word.
    stripped = (line.strip("\r\n ") for line in lines)
    columns, tabs = 0, False  # of the first word
    head = []
    for first, line in enumerate(stripped, start=1):
        head.append(line)
        if line.strip("\t") and not line.startswith((DOCUMENT_START, COMMENT)):
            columns, tabs = len(split_cells(line)[::2]), "\t" in line
            needed = max(text, tag_column(data_args) or 2) if labeled else text
            if columns < needed:
                raise InputError(
                    f"{source}, line {first}: no column {needed} in {line!r}. A line must contain a word and its tag, "
                    "separated by spaces or a tab. JSON files must end in .json or .jsonl."
                )
            break
    tag = tag_index(columns, data_args)
    words: list[str] = []
    tags: list[str] = []
    comments: list[int] = []
    document: int | None = None
    for number, line in enumerate(chain(head, stripped, [""]), start=1):  # the end of the file also ends a sentence
        starts_document = line.startswith(DOCUMENT_START)
        if not line.strip("\t") or starts_document:
            if words:
                yield Sentence(words, tags if tag is not None else None, number - len(words), document)
                words, tags = [], []
            if starts_document:
                document = 0 if document is None else document + 1
            continue
        cells = split_cells(line)[::2]
        other_form = len(cells) != columns or (tabs and "\t" not in line)
        if other_form and line.startswith(COMMENT) and not words:
            comments.append(number)
            continue
        if len(cells) != columns:
            raise InputError(
                f"{source}, line {number}: expected {format_count(columns, 'column')} as in line {first}, found "
                f"{len(cells)}: {line!r}."
            )
        words.append(cells[text - 1])
        if tag is not None:
            tags.append(cells[tag])
    if comments and reports:
        found = format_count(len(comments), "comment line")
        logger.info("%s: skipped %s, the first is line %d.", source, found, comments[0])


def reads_ids(sentences: Iterable[Sentence]) -> bool:
    """Whether the words of a CoNLL file with several columns are only numbers."""
    found = False
    for sentence in sentences:
        if sentence.tags is None or not all(map(WORD_ID.fullmatch, sentence.words)):
            return False
        found = True
    return found


def split_cells(line: str) -> list[str]:
    """Splits a line at tabs or, if it has none, at spaces. Cells have even indices, separators odd ones."""
    return re.split(r"(\t)" if "\t" in line else "( +)", line)


def tag_column(data_args: NerDataArguments) -> int | None:
    """Returns the number of the column of tags in CoNLL files, counted from 1. None: the last.

    Raises:
        InputError: `label_column_name` is not a column number.
    """
    return _column_number("label_column_name", data_args.label_column_name)


def tag_index(columns: int, data_args: NerDataArguments) -> int | None:
    """Returns the index of the tag among the cells of a word. None: it has no tag.

    Args:
        columns: the number of cells.
        data_args: `label_column_name` may be a column number.
    """
    column = tag_column(data_args) or columns
    return column - 1 if columns > 1 and column <= columns else None


def _column_number(flag: str, value: str | None) -> int | None:
    if value is not None and (not value.isdecimal() or value == "0"):
        raise InputError(f"--{flag} {value}: columns of a CoNLL file have no names. Give a number, from 1.")
    return None if value is None else int(value)


def read_records(
    data: Path | Dataset, source: str, data_args: NerDataArguments, columns: tuple[str, ...], labeled: bool
) -> Iterator[Sentence]:
    """Reads sentences from JSON lines or a dataset. A row has a list of words and a list of tags or class ids.

    Args:
        data: a .json or .jsonl file, or a dataset.
        source: its name in messages.
        data_args: the names of the other columns.
        columns: the possible columns of tags. The first of them in a row is used. Empty: tags are not read.
        labeled: whether every sentence must have tags.

    Raises:
        InputError: a row lacks a column, a column has values of another type, the numbers of words and tags differ,
            or tags are numbers without class names.
    """
    names: list[str] = []
    for row, values in read_rows(data):
        where = f"{source}, row {row}"
        text = _choose_column("text_column_name", data_args.text_column_name, ("tokens",), values, where)
        label = _choose_column("label_column_name", None, columns, values, where, labeled)
        document = _choose_column(
            "document_column_name", data_args.document_column_name, DOCUMENT_COLUMNS, values, where, required=False
        )
        words = values[str(text)]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError(f"{where}: expected a list of words in column {text!r}, found {words!r:.60}.")
        tags = values[label] if label is not None else None
        if tags is None and labeled:
            raise InputError(f"{where}: no tags in column {label!r}.")
        if tags is not None:
            if not isinstance(tags, list) or len(tags) != len(words):
                found = len(tags) if isinstance(tags, list) else f"{tags!r:.60}"
                expected = f"{len(words)} tags, one per word,"
                raise InputError(f"{where}: expected {expected} in column {label!r}, found {found}.")
            if not all(isinstance(tag, str) for tag in tags):
                names = names or _class_names(data, str(label), where)
                # Test sets on the Hub use -1 for missing tags.
                valid = all(isinstance(tag, int) and 0 <= tag < len(names) for tag in tags)
                if not valid and labeled:
                    expected = f"class ids from 0 to {len(names) - 1}"
                    raise InputError(f"{where}: expected {expected} in column {label!r}, found {tags!r:.60}.")
                tags = [names[tag] for tag in tags] if valid else None
        for column, texts in ((text, words), (label, tags or ())):
            check_unicode("".join(texts), f"{where}: column {column!r}")
        yield Sentence(words, tags, row, values[document] if document is not None else None)


def tag_columns(data_args: NerDataArguments) -> tuple[str, ...]:
    """Returns the possible columns of tags in JSON files and datasets."""
    given = data_args.label_column_name
    return (given,) if given else (f"{data_args.task_name}_tags", "tags")


def _choose_column(
    flag: str,
    given: str | None,
    default: tuple[str, ...],
    values: Mapping[str, Any],
    where: str,
    required: bool = True,
) -> str | None:
    """Returns the given column, or the first default column that exists."""
    column = next((name for name in ([given] if given else default) if name in values), None)
    if column is None and (required or given):
        expected = repr(given) if given else " or ".join(map(repr, default))
        raise InputError(f"{where}: no column {expected}. Columns: {', '.join(values)}. Set --{flag}.")
    return column


def _class_names(data: Path | Dataset, column: str, where: str) -> list[str]:
    feature = data.features[column] if isinstance(data, Dataset) else None
    if not (isinstance(feature, List) and isinstance(feature.feature, ClassLabel)):
        raise InputError(
            f"{where}: the tags in column {column!r} are neither text nor class labels. Write them as text."
        )
    return feature.feature.names


# --- schemes ----------------------------------------------------------------------------------------------------


def check_tags(splits: dict[str, NerSplit], scheme: str, on_bad_tag: str) -> dict[str, NerSplit]:
    """Converts all tags to BIO.

    A tag is invalid in a scheme if `conlleval`'s reading of the sentence, written in that scheme, has a different tag
    there.

    Args:
        splits: the splits with their original tags.
        scheme: the scheme of all splits. "auto": the scheme with the fewest invalid tags.
        on_bad_tag: for invalid tags, "stop", or "repair": use `conlleval`'s reading, with a warning.

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
    entities = [decode_tags(tags) for _, _, tags in labeled]
    invalid: dict[str, list[tuple[int, int, str]]] = {}
    for candidate in SCHEMES if scheme == "auto" else (scheme,):
        invalid[candidate] = _find_invalid_tags([tags for _, _, tags in labeled], entities, candidate)
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
    bio = iter([encode_tags(found, len(tags), "bio") for (_, _, tags), found in zip(labeled, entities, strict=True)])
    checked = {}
    for name, split in splits.items():
        is_labeled = split.labeled
        sentences = [s._replace(tags=next(bio) if is_labeled else None) for s in split.sentences]
        checked[name] = split._replace(scheme=scheme, sentences=sentences)
    return checked


def count_invalid_tags(tags: list[str], scheme: str) -> int:
    """Counts the tags of a sentence that are invalid in a scheme, see [`check_tags`]."""
    return len(_find_invalid_tags([tags], [decode_tags(tags)], scheme))


def _find_invalid_tags(
    sentences: list[list[str]], entities: list[list[tuple[str, int, int]]], scheme: str
) -> list[tuple[int, int, str]]:
    """Returns the tags that are invalid in a scheme: index of the sentence, word, and the expected tag."""
    invalid = []
    for index, (tags, found) in enumerate(zip(sentences, entities, strict=True)):
        expected = encode_tags(found, len(tags), scheme)
        if expected != tags:
            invalid += [(index, word, expected[word]) for word, tag in enumerate(tags) if tag != expected[word]]
    return invalid


# --- labels -----------------------------------------------------------------------------------------------------


def choose_labels(splits: dict[str, NerSplit], checkpoint_labels: list[str], distills: bool = False) -> list[str]:
    """Returns the labels in the order of their ids: O, and B- and I- for each entity type in the training data.

    Args:
        splits: the splits from [`load_splits`].
        checkpoint_labels: the checkpoint's labels in the order of their ids. If they are the same labels, their order
            is kept, so that the checkpoint's classifier stays valid. Without training data, these labels are used.
        distills: whether they are a teacher's labels. Then the training data may lack some of them.

    Raises:
        InputError: the training data have no entities, another split has an entity type that the labels lack, or there
            are no training data and the checkpoint's labels are not entity tags.
    """
    if "train" in splits:
        types = set(splits["train"].types)
        labels = ["O", *(f"{mark}-{kind}" for kind in sorted(types) for mark in "BI")]
        if not types:
            raise InputError(f"{splits['train'].source}: no entities. All tags are O. Check --label_column_name.")
        origin = splits["train"].source
        if set(labels) == set(checkpoint_labels):
            labels = checkpoint_labels
        elif distills and set(labels) < set(checkpoint_labels):
            labels, types, origin = checkpoint_labels, _list_types(checkpoint_labels), "the teacher"
    else:
        labels, types, origin = checkpoint_labels, _list_types(checkpoint_labels), "the checkpoint"
        if not types or "O" not in labels:
            found = ", ".join(labels)
            raise InputError(
                f"--train_file is missing. Without training, the labels of the model must be entity tags, not {found}."
            )
    for split in splits.values():
        for sentence in split.sentences:
            for word, tag in enumerate(sentence.tags or ()):
                if tag != "O" and tag[2:] not in types:
                    place = split.describe_place(sentence, word)
                    expected = f"Expected a type in {origin}: {', '.join(sorted(types))}"
                    raise InputError(f"{place}: unknown entity type {tag[2:]!r}. {expected}.")
    return labels


def _list_types(labels: list[str]) -> set[str]:
    """Returns the entity types of labels such as B-LOC."""
    return {label[2:] for label in labels if TAG.fullmatch(label)} - {""}
