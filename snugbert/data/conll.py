"""Reads sentences with a tag for each word, from CoNLL columns or JSON lines, and writes them with new tags.

Writing a CoNLL file changes only the tags. It keeps separators, line ends, other columns, comments and -DOCSTART-
lines. JSON rows keep their other values.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from snugbert.data.tables import read_rows
from snugbert.errors import InputError, format_count, list_columns

DOCUMENT_START = "-DOCSTART-"  # Tjong Kim Sang and De Meulder (2003)
COMMENT = "# "  # as in CoNLL-U
ONLY_IDS = "%s: the first column, read as words, has only numbers. If the words are in column 2, set %s 2."
FORM = 'A row has "tokens" and "tags", one tag per word, or "text" and "entities", such as [[0, 3, "PER"]].'
WORD_ID = re.compile(r"[0-9]+([-.][0-9]+)?")  # of CoNLL-U: a number, a range or a decimal

Tags = list[list[str]]  # the tags of each sentence


class Sentence(NamedTuple):
    """The words of a sentence and their tags."""

    words: list[str]
    tags: list[str] | None  # one per word. None: not labeled
    row: int  # row number in the source. In a CoNLL file, the line number of the first word
    document: str | int | None = None  # id of the document, compared only between neighbors. None: unknown


# --- reading columns --------------------------------------------------------------------------------------------


def parse_column_number(flag: str, value: str | None) -> int | None:
    """Returns a column number of a CoNLL file, counted from 1. None if `value` is None."""
    if value is not None and (not value.isdecimal() or int(value) == 0):
        raise InputError(f"--{flag} {value}: columns of a CoNLL file have no names. Use a number, counted from 1.")
    return None if value is None else int(value)


def read_conll(
    lines: Iterable[str],
    source: str,
    word_column: int | None = None,
    tag_column: int | None = None,
    labeled: bool = False,
) -> Iterator[Sentence]:
    """Streams sentences in CoNLL's format: one word per line, with columns separated by tabs or spaces.

    An empty line ends a sentence. A line that begins with -DOCSTART- begins a document. A file with one column has no
    tags. Before a sentence, a line that begins with "# " is a comment if it has more or fewer columns than the lines
    with words, or no tab although those lines have tabs.

    Columns are counted from 1. By default, words are in the first column and tags in the last one. `labeled`: whether
    every sentence must have tags.
    """
    word_column = word_column or 1
    # Other white space, such as a no-break space, can be part of a word.
    stripped = (line.strip("\r\n ") for line in lines)
    columns, tabs = 0, False  # of the first line with a word
    head = []
    for first, line in enumerate(stripped, start=1):
        head.append(line)
        if line.strip("\t") and not line.startswith((DOCUMENT_START, COMMENT)):
            columns, tabs = len(split_cells(line)[::2]), "\t" in line
            needed = max(word_column, tag_column or 2) if labeled else word_column
            if columns < needed:
                raise InputError(
                    f"{source}, line {first}: no column {needed} in {line!r}. Expected a word and its tag, separated "
                    "by spaces or a tab. If the file contains JSON, rename it to .json or .jsonl."
                )
            break
    tag_index = find_tag_cell(columns, tag_column)
    words: list[str] = []
    tags: list[str] = []
    document: int | None = None
    for number, line in enumerate(chain(head, stripped, [""]), start=1):  # the end of the file also ends a sentence
        starts_document = line.startswith(DOCUMENT_START)
        if not line.strip("\t") or starts_document:
            if words:
                yield Sentence(words, tags if tag_index is not None else None, number - len(words), document)
                words, tags = [], []
            if starts_document:
                document = 0 if document is None else document + 1
            continue
        cells = split_cells(line)[::2]
        other_form = len(cells) != columns or (tabs and "\t" not in line)
        if other_form and line.startswith(COMMENT) and not words:
            continue
        if len(cells) != columns:
            raise InputError(
                f"{source}, line {number}: expected {format_count(columns, 'column')} as in line {first}, found "
                f"{len(cells)}: {line!r}."
            )
        words.append(cells[word_column - 1])
        if tag_index is not None:
            tags.append(cells[tag_index])


def has_only_ids(sentences: Iterable[Sentence]) -> bool:
    """Whether the words of a CoNLL file with several columns are only numbers."""
    sentences = iter(sentences)
    first = next(sentences, None)
    return first is not None and all(
        sentence.tags is not None and all(map(WORD_ID.fullmatch, sentence.words))
        for sentence in chain([first], sentences)
    )


def split_cells(line: str) -> list[str]:
    """Splits a line at tabs, or at spaces if the line has no tabs. Cells have even indices, separators odd indices."""
    return re.split(r"(\t)" if "\t" in line else "( +)", line)


def find_tag_cell(columns: int, tag_column: int | None) -> int | None:
    """Returns the index of the tag among the cells of a word. None if words have no tags."""
    column = tag_column or columns
    return column - 1 if columns > 1 and column <= columns else None


# --- reading JSON -----------------------------------------------------------------------------------------------


def read_records(
    data: Path | Dataset,
    source: str,
    text_column: str | None,
    tag_columns: Sequence[str] = (),
    document_columns: Sequence[str] = (),
    labeled: bool = False,
    in_documents: bool = False,
) -> Iterator[Sentence]:
    """Reads sentences from JSON lines or a dataset. A row has a list of words and a list of tags or class ids.

    Words are in `text_column`, by default "tokens". From `tag_columns` and from `document_columns`, each row uses the
    first column that it contains. Every sentence must have tags if `labeled`, and a document id if `in_documents`.
    """
    for row, values in read_rows(data):
        where = f"{source}, row {row}"
        text, words = _read_column("text_column_name", [text_column or "tokens"], values, where, required=True)
        label, tags = _read_column("label_column_name", tag_columns, values, where, required=labeled)
        _, document = _read_column("document_column_name", document_columns, values, where, required=in_documents)
        if not _are_texts(words):
            raise InputError(f"{where}: expected a list of words in column {text!r}, found {words!r:.60}. {FORM}")
        if (labeled or tags is not None) and not (_are_texts(tags) and len(tags) == len(words)):
            raise InputError(
                f"{where}: expected {format_count(len(words), 'tag')}, one per word, in column {label!r}, found "
                f"{tags!r:.60}. Tags are texts, or class ids of a dataset. {FORM}"
            )
        yield Sentence(words, tags, row, document)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _read_column(
    flag: str, names: Sequence[str], values: Mapping[str, Any], where: str, required: bool
) -> tuple[str | None, Any]:
    """Returns the first of `names` that is a column of the row, and its value. None: the row has none of them."""
    column = next((name for name in names if name in values), None)
    if column is not None:
        return column, values[column]
    if required:
        expected = " or ".join(map(repr, names))
        raise InputError(f"{where}: no column {expected}. {list_columns(values)} Set --{flag}. {FORM}")
    return None, None


# --- writing ----------------------------------------------------------------------------------------------------


def tag_lines(
    lines: Sequence[str],
    sentences: Sequence[Sentence],
    tags: Tags,
    tag_column: int | None = None,
    limited: bool = False,
) -> str:
    """Returns the text of a CoNLL file with new tags.

    The tags replace the tags of the source. If the source has no tags, words and -DOCSTART- lines get a tag column.
    """
    changed = [*lines]
    for sentence, sentence_tags in zip(sentences, tags, strict=True):
        for index, tag in enumerate(sentence_tags, start=sentence.row - 1):
            changed[index] = _tag_line(changed[index], tag, tag_column)
    if limited:
        end = sentences[-1].row - 1 + len(sentences[-1].words)
        while not changed[end].strip():
            end += 1
        del changed[end:]
    if any(sentence.tags is None for sentence in sentences):
        starts = [index for index, line in enumerate(changed) if line.strip("\r\n ").startswith(DOCUMENT_START)]
        for index in starts:
            changed[index] = _tag_line(changed[index], "O", tag_column)
    return "".join(changed)


def _tag_line(line: str, tag: str, tag_column: int | None) -> str:
    before, cells, after = line.partition(line.strip("\r\n "))
    parts = split_cells(cells)  # cells and the separators between them
    separator = "\t" if "\t" in cells else " "
    # An entity type from a JSON file may contain a separator.
    tag = re.sub(rf"[{separator}\r\n]+", "_", tag)
    index = find_tag_cell(len(parts[::2]), tag_column)
    if index is None:
        parts += [separator, tag]
    else:
        parts[2 * index] = tag
    return "".join((before, *parts, after))


def tag_records(
    lines: Sequence[str],
    sentences: Sequence[Sentence],
    tags: Sequence[Any],
    tag_columns: Sequence[str],
    limited: bool = False,
) -> str:
    """Returns the rows with new tags, as JSON lines or a JSON list like the source. Rows without tags get a new key.

    `tags`: for each sentence, its tags or another value, which goes to the first of `tag_columns` in the row.
    """
    text = "".join(lines)
    is_list = text.lstrip().startswith("[")
    rows: list[Any] = json.loads(text) if is_list else [json.loads(line) if line.strip() else None for line in lines]
    for sentence, sentence_tags in zip(sentences, tags, strict=True):
        row = rows[sentence.row - 1]
        columns = (name for name in tag_columns if isinstance(row.get(name, ""), list | None))
        row[next(columns, tag_columns[0])] = sentence_tags
    if limited:
        del rows[sentences[-1].row :]
    written = [json.dumps(row, ensure_ascii=False) for row in rows if row is not None]
    return "[" + ",\n".join(written) + "]\n" if is_list else "".join(f"{line}\n" for line in written)
