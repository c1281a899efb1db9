"""Sentences whose words are tagged with entities: CoNLL's columns, JSON lines, or a datasets name.

Files may be in any of the schemes BIO, IOB1, IOBES and BILOU. They are checked, and read into BIO, in which models are
trained and scored; [`write_tagged`] writes the file's own. Sentences are held in memory, 14,041 of them in CoNLL-2003.
"""

import logging
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, List

from snugbert.entity_tags import SCHEMES, TAG, decode_tags, encode_tags
from snugbert.errors import InputError
from snugbert.trainers.ner.arguments import DOCUMENT_COLUMNS, NerDataArguments
from snugbert.trainers.rows import read_rows, read_text_lines
from snugbert.trainers.splits import SPLITS, choose_splits, load_dataset_splits

logger = logging.getLogger(__name__)

DOCUMENT_START = "-DOCSTART-"  # Tjong Kim Sang and De Meulder (2003)


class Sentence(NamedTuple):
    """Words and their tags."""

    words: list[str]
    tags: list[str] | None  # one for each word; None: not told
    row: int  # in its source; in a CoNLL file the line of the first word
    document: str | int | None = None  # the same for neighbours in one document; None: not told


class NerSplit(NamedTuple):
    """The sentences of training, validation or test."""

    source: str  # the file or data set they come from, for messages
    sentences: list[Sentence]
    in_lines: bool  # whether each word has a line of its own
    scheme: str = "bio"  # that of the source; the tags of `sentences` are BIO once they are checked
    types: frozenset[str] = frozenset()  # of entities in the source, the sentences that are not used included

    @property
    def labelled(self) -> bool:
        """Whether the tags are told."""
        return all(sentence.tags is not None for sentence in self.sentences)

    def where(self, sentence: Sentence, word: int) -> str:
        """Says where a word is from, in messages."""
        if self.in_lines:
            return f"{self.source}, line {sentence.row + word}"
        return f"{self.source}, row {sentence.row}, word {word + 1}"


# --- reading ----------------------------------------------------------------------------------------------------


def load_splits(data_args: NerDataArguments, wanted: tuple[str, ...] | None, **download: Any) -> dict[str, NerSplit]:
    """Reads the sentences that the arguments name, and their tags into BIO.

    Args:
        data_args: what to read.
        wanted: those of "train", "validation" and "test" to read; None: all files, of a data set train and validation.
        download: goes to `datasets.load_dataset`.

    Raises:
        InputError: a split or a data set does not exist; or as in [`read_conll`], [`read_records`] and [`check_tags`].
    """
    found: dict[str, Path | Dataset] = dict(data_args.files) or _load_dataset_splits(data_args, **download)
    wanted = choose_splits(wanted, found, bool(data_args.files), "sentences")
    splits = {}
    for name in wanted:
        splits[name] = _read_split(found[name], name, data_args)
    return check_tags(splits, data_args.tag_scheme, data_args.on_bad_tag)


def _load_dataset_splits(data_args: NerDataArguments, **download: Any) -> dict[str, Path | Dataset]:
    splits = load_dataset_splits(str(data_args.dataset_name), data_args.dataset_config_name, **download)
    return {split: splits[split] for split in SPLITS if split in splits}


def _read_split(data: Path | Dataset, name: str, data_args: NerDataArguments) -> NerSplit:
    source = str(data) if isinstance(data, Path) else f"the {name} sentences of {data_args.dataset_name}"
    labelled = name != "test"
    stem = data.name.removesuffix(".gz").removesuffix(".zst") if isinstance(data, Path) else ""
    if isinstance(data, Path) and not stem.endswith((".json", ".jsonl")):
        in_lines, sentences = True, list(read_conll(data, data_args, labelled))
    else:
        in_lines, sentences = False, list(read_records(data, source, data_args, labelled))
    empty = [sentence.row for sentence in sentences if not sentence.words]
    if empty:
        logger.warning(
            "%s: %d sentences without words are left out; the first is row %d", source, len(empty), empty[0]
        )
        sentences = [sentence for sentence in sentences if sentence.words]
    types = {tag[2:] for sentence in sentences for tag in sentence.tags or () if TAG.fullmatch(tag)} - {""}
    sentences = sentences[: data_args.max_samples[name]]
    if not sentences:
        raise InputError(f"{source} holds no sentences.")
    untagged = [sentence.row for sentence in sentences if sentence.tags is None]
    if 0 < len(untagged) < len(sentences):
        message = "%s: %d of %d sentences have no tags, the first is row %d; they are tagged, and nothing is scored"
        logger.warning(message, source, len(untagged), len(sentences), untagged[0])
    if data_args.document_context and any(sentence.document is None for sentence in sentences):
        how = (
            f"{DOCUMENT_START} lines" if in_lines else "a column that tells them; name it with --document_column_name"
        )
        raise InputError(f"--document_context: {source} does not tell where documents begin; it needs {how}.")
    return NerSplit(source, sentences, in_lines, types=frozenset(types))


def read_conll(file: Path, data_args: NerDataArguments, labelled: bool) -> Iterator[Sentence]:
    """Sentences of a file in CoNLL's form: a line a word, its columns divided by tabs or spaces.

    An empty line ends a sentence, a line that begins with -DOCSTART- a document. A file of one column has no tags.

    Args:
        file: plain, .gz or .zst.
        data_args: `text_column_name` and `label_column_name`, if given, are numbers of columns, counted from 1.
        labelled: whether there must be tags.

    Raises:
        InputError: lines with different numbers of columns, a missing column, or as in [`read_text_lines`]; with line.
    """
    text = _column_number("text_column_name", data_args.text_column_name)
    label = _column_number("label_column_name", data_args.label_column_name)
    words: list[str] = []
    tags: list[str] = []
    document: int | None = None
    first, columns = 0, 0  # the line of the first word of the file, and how many columns it has
    number = 0

    def sentence() -> Sentence:
        return Sentence([*words], [*tags] if tags else None, number - len(words), document)

    # The line None ends the last sentence, too.
    for number, line in enumerate((*read_text_lines(file), None), start=1):
        # Other white space, such as a no-break space, may be a part of a word.
        line = line.strip("\r\n ") if line is not None else ""
        starts_document = line.startswith(DOCUMENT_START)
        if not line.strip("\t") or starts_document:
            if words:
                yield sentence()
                words, tags = [], []
            if starts_document:
                document = 0 if document is None else document + 1
            continue
        cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
        if not columns:
            first, columns = number, len(cells)
            missing = max(text or 1, label or (2 if labelled else 1))
            if columns < (missing if labelled else text or 1):
                raise InputError(
                    f"{file}, line {number}: {_count(columns, 'column')}, {line!r}, but column {missing} is needed; "
                    "a line has a word and its tag, with spaces or a tab between, or the file is .json or .jsonl."
                )
        if len(cells) != columns:
            raise InputError(
                f"{file}, line {number}: {_count(len(cells), 'column')}, {line!r}, and line {first} has {columns}; "
                "every line needs the same, the word and its tag among them."
            )
        words.append(cells[(text or 1) - 1])
        if columns > 1 and (label or columns) <= columns:
            tags.append(cells[(label or columns) - 1])


def _column_number(flag: str, value: str | None) -> int | None:
    if value is not None and (not value.isdecimal() or value == "0"):
        raise InputError(
            f"--{flag} {value}: the columns of a CoNLL file have no names; give a number, the first is 1."
        )
    return None if value is None else int(value)


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' if number != 1 else ''}"


def read_records(data: Path | Dataset, source: str, data_args: NerDataArguments, labelled: bool) -> Iterator[Sentence]:
    """Sentences of JSON lines or a data set: a row each, with a list of words and one of tags or their class ids.

    Args:
        data: the data set, or a .json or .jsonl file.
        source: what it is called in messages.
        data_args: the names of the columns.
        labelled: whether there must be tags.

    Raises:
        InputError: a row without the columns, with something else than words or tags in them, or with another number
            of tags than of words; tags that are numbers without names.
    """
    label_columns = (f"{data_args.task_name}_tags", "tags")
    names: list[str] = []
    for row, values in read_rows(data):
        here = f"{source}, row {row}"
        text = _choose("text_column_name", data_args.text_column_name, ("tokens",), values, here)
        label = _choose("label_column_name", data_args.label_column_name, label_columns, values, here, labelled)
        document = _choose(
            "document_column_name", data_args.document_column_name, DOCUMENT_COLUMNS, values, here, required=False
        )
        words = values[str(text)]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError(f"{here}: column {text!r} must hold a list of words, not {words!r:.60}.")
        tags = values[label] if label is not None else None
        if tags is None and labelled:
            raise InputError(f"{here}: no tags in column {label!r}.")
        if tags is not None:
            if not isinstance(tags, list) or len(tags) != len(words):
                number = f"{len(tags)} of them" if isinstance(tags, list) else f"{tags!r:.60}"
                raise InputError(
                    f"{here}: column {label!r} must hold a tag for each of the {len(words)} words, not {number}."
                )
            if not all(isinstance(tag, str) for tag in tags):
                names = names or _class_names(data, str(label), here)
                # The Hub's test sets have -1 for "not told".
                told = all(isinstance(tag, int) and 0 <= tag < len(names) for tag in tags)
                if not told and labelled:
                    raise InputError(
                        f"{here}: column {label!r} holds {tags!r:.60}, and the tags are 0 to {len(names) - 1}."
                    )
                tags = [names[tag] for tag in tags] if told else None
        yield Sentence(words, tags, row, values[document] if document is not None else None)


def _choose(
    flag: str, given: str | None, usual: tuple[str, ...], values: dict[str, Any], here: str, required: bool = True
) -> str | None:
    """The column that the user named, or the first usual one that there is."""
    column = next((name for name in ([given] if given else usual) if name in values), None)
    if column is None and (required or (given and flag != "label_column_name")):
        expected = repr(given) if given else " or ".join(map(repr, usual))
        raise InputError(f"{here}: no column {expected} among {', '.join(values)}; name the right one with --{flag}.")
    return column


def _class_names(data: Path | Dataset, column: str, here: str) -> list[str]:
    feature = data.features[column] if isinstance(data, Dataset) else None
    if not (isinstance(feature, List) and isinstance(feature.feature, ClassLabel)):
        raise InputError(
            f"{here}: the tags in column {column!r} are not text, and nothing says what they mean; write their names."
        )
    return feature.feature.names


# --- schemes ----------------------------------------------------------------------------------------------------


def check_tags(splits: dict[str, NerSplit], scheme: str, on_bad_tag: str) -> dict[str, NerSplit]:
    """Turns all tags into BIO.

    A tag breaks its scheme if the entities that `conlleval` would see, written in that scheme, have another tag there.

    Args:
        splits: with tags as they were read.
        scheme: that of all splits; "auto": the one that fewest tags break.
        on_bad_tag: what to do if tags break it: "stop", or "repair": take `conlleval`'s entities and warn.

    Raises:
        InputError: a tag of no scheme, or tags that break theirs, and these are not to be repaired; with the first.
    """
    told = [(split, s, s.tags) for split in splits.values() if split.labelled for s in split.sentences if s.tags]
    for split, sentence, tags in told:
        for word, tag in enumerate(tags):
            if not TAG.fullmatch(tag):
                raise InputError(
                    f"{split.where(sentence, word)}: {tag!r} is no tag of an entity; these are O and B-, I-, E-, S-, "
                    "L- or U- with a type, such as B-PER. Is it the right column (--label_column_name)?"
                )
    entities = [decode_tags(tags) for _, _, tags in told]
    broken: dict[str, list[tuple[int, int, str]]] = {}
    for candidate in SCHEMES if scheme == "auto" else (scheme,):
        broken[candidate] = _broken([tags for _, _, tags in told], entities, candidate)
        if not broken[candidate]:  # it is the only one, but where all tags are O
            break
    scheme = min(broken, key=lambda candidate: len(broken[candidate]))
    bad = broken[scheme]
    if bad:
        index, word, right = bad[0]
        split, sentence, tags = told[index]
        before = f"behind {tags[word - 1]!r}" if word else "at the start of a sentence"
        message = (
            f"{split.where(sentence, word)}: the tag {tags[word]!r} {before} breaks the scheme {scheme.upper()}"
            f"{', which fits the tags best' if len(broken) > 1 else ''}; conlleval takes it for {right!r} "
            f"({_count(len(bad), 'such tag')})"
        )
        if on_bad_tag == "stop":
            raise InputError(f"{message}. Correct them, or read them as it does: --on_bad_tag repair.")
        logger.warning("%s, and so it is read", message)
    elif told:
        begin = "; entities begin with I-, behind another of their type with B-" if scheme == "iob1" else ""
        logger.info("the tags are in the scheme %s%s", scheme.upper(), begin)
    in_bio = iter([encode_tags(found, len(tags), "bio") for (_, _, tags), found in zip(told, entities, strict=True)])
    checked = {}
    for name, split in splits.items():
        labelled = split.labelled
        sentences = [s._replace(tags=next(in_bio) if labelled else None) for s in split.sentences]
        checked[name] = split._replace(scheme=scheme, sentences=sentences)
    return checked


def _broken(
    told: list[list[str]], entities: list[list[tuple[str, int, int]]], scheme: str
) -> list[tuple[int, int, str]]:
    """The tags that break a scheme: index of the sentence, word, and what the tag would be."""
    broken = []
    for index, (tags, found) in enumerate(zip(told, entities, strict=True)):
        right = encode_tags(found, len(tags), scheme)
        if right != tags:
            broken += [(index, word, right[word]) for word, tag in enumerate(tags) if tag != right[word]]
    return broken


# --- labels -----------------------------------------------------------------------------------------------------


def choose_labels(splits: dict[str, NerSplit], known: list[str]) -> list[str]:
    """The tags that a model tells apart, in the order of their ids: O, and B- and I- of each type in training.

    Args:
        splits: what [`load_splits`] returned.
        known: the checkpoint's labels in the order of their ids. If the labels are the same ones, its order is kept,
            so that its classifier means what it meant. Without training sentences they are the labels.

    Raises:
        InputError: there are no entities in training, other splits have a type that training lacks, or there is
            nothing to train on and the checkpoint's labels are no tags.
    """
    if "train" in splits:
        types = set(splits["train"].types)
        labels = ["O", *(f"{mark}-{kind}" for kind in sorted(types) for mark in "BI")]
        if not types:
            raise InputError(f"{splits['train'].source}: every tag is O; nothing to learn.")
        if set(labels) == set(known):
            labels = known
        there = f"in {splits['train'].source}"
    else:
        labels, there = known, "among the checkpoint's labels"
        types = {label[2:] for label in labels if TAG.fullmatch(label)} - {""}
        if not types or "O" not in labels:
            raise InputError(f"the checkpoint is no tagger, its labels are {', '.join(labels)}; give --train_file.")
    for split in splits.values():
        for sentence in split.sentences:
            for word, tag in enumerate(sentence.tags or ()):
                if tag != "O" and tag[2:] not in types:
                    known_types = ", ".join(sorted(types))
                    raise InputError(
                        f"{split.where(sentence, word)}: the type {tag[2:]!r} is not {there}; mend or remove it; "
                        f"there are {known_types}."
                    )
    return labels


# --- writing ----------------------------------------------------------------------------------------------------


def write_tagged(file: Path, split: NerSplit, predicted: list[list[str]]) -> None:
    """Writes words, their tags if told, and the predicted tags: CoNLL's form, which `conlleval` reads.

    Columns are divided by a space, tags are in the scheme of the source, documents begin with -DOCSTART-. White space
    within a word or a type, which would divide it, is written as `_`.

    Args:
        file: to write.
        split: from [`load_splits`].
        predicted: BIO tags, for each word of each sentence.
    """
    with file.open("w", encoding="utf-8") as stream:
        pairs = zip(split.sentences, predicted, strict=True)
        for document, sentences in groupby(pairs, key=lambda pair: pair[0].document):
            if document is not None:
                stream.write(f"{DOCUMENT_START} O{' O' if split.labelled else ''}\n\n")
            for sentence, tags in sentences:
                columns = [sentence.words]
                for bio in (sentence.tags, tags):
                    if bio is not None:
                        columns.append(encode_tags(decode_tags(bio), len(bio), split.scheme))
                for cells in zip(*columns, strict=True):
                    stream.write(" ".join(re.sub(r"[ \t\r\n]+", "_", cell) or "_" for cell in cells) + "\n")
                stream.write("\n")
