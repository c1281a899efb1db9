"""Writes tagged sentences in the form of their source. Only the tags change.

A CoNLL file keeps its separators, line ends, other columns, comments and -DOCSTART- lines. A JSON file keeps its other
values as they were written. If no tag changes, the file equals its source.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from snugbert.data.conll import DOCUMENT_START, NerSplit, Tags, split_cells, tag_columns, tag_index
from snugbert.data.sources import uncompressed_name
from snugbert.files import locate_values
from snugbert.tasks.tagging_arguments import NerDataArguments


def predictions_file(stem: str, data: Path | None) -> str:
    """Returns the name of a file of predictions: `stem` with the suffix of the source, without .gz and .zst.

    Args:
        stem: "predictions" or "eval_predictions".
        data: the source. None: a dataset, which is written as JSON lines.
    """
    if data is None:
        return f"{stem}.jsonl"
    return stem + (Path(uncompressed_name(data)).suffix or ".txt")


def write_predictions(file: Path, split: NerSplit, tags: Tags, data_args: NerDataArguments) -> None:
    """Writes the source of a split with predicted tags in place of its own.

    Tags go where the source has tags. A source without tags gets a last column, or a last key in each object.
    Sentences beyond a limit on examples are left out.

    Args:
        file: the file to write. It is not compressed.
        split: the sentences and the lines of their source.
        tags: tags of each sentence, in the scheme of the source.
        data_args: the columns of the source.
    """
    tag = tag_lines if split.one_word_per_line else _tag_rows
    with file.open("w", encoding=split.encoding, newline="") as stream:  # line ends as in the source
        stream.write(tag(split, tags, data_args))


# --- columns ----------------------------------------------------------------------------------------------------


def tag_lines(split: NerSplit, tags: Tags, data_args: NerDataArguments) -> str:
    """Returns the lines of a CoNLL file with other tags, see [`write_predictions`]."""
    lines = [*split.lines]
    for sentence, sentence_tags in zip(split.sentences, tags, strict=True):
        for index, tag in enumerate(sentence_tags, start=sentence.row - 1):
            lines[index] = _tag_line(lines[index], tag, data_args)
    if split.limited:
        last = split.sentences[-1]
        end = last.row - 1 + len(last.words)
        while not lines[end].strip():
            end += 1
        del lines[end:]
    if not split.labeled:  # a new column, which -DOCSTART- lines have, too
        starts = [index for index, line in enumerate(lines) if line.strip("\r\n ").startswith(DOCUMENT_START)]
        for index in starts:
            lines[index] = _tag_line(lines[index], "O", data_args)
    return "".join(lines)


def _tag_line(line: str, tag: str, data_args: NerDataArguments) -> str:
    before, cells, after = line.partition(line.strip("\r\n "))
    parts = split_cells(cells)  # cells and the separators between them
    separator = "\t" if "\t" in cells else " "
    # An entity type from a JSON file may contain a separator.
    tag = re.sub(rf"[{separator}\r\n]+", "_", tag)
    index = tag_index(len(parts[::2]), data_args)
    if index is None:
        parts += [separator, tag]
    else:
        parts[2 * index] = tag
    return "".join((before, *parts, after))


# --- JSON -------------------------------------------------------------------------------------------------------


def _tag_rows(split: NerSplit, tags: Tags, data_args: NerDataArguments) -> str:
    text = "".join(split.lines)
    rows = _locate_rows(split.lines, text)
    parts, end = [], 0
    for sentence, sentence_tags in zip(split.sentences, tags, strict=True):
        row = text.index("{", rows[sentence.row - 1][0])
        for start, stop, new in _change_row(text, row, sentence_tags, tag_columns(data_args)):
            parts += [text[end:start], new]
            end = stop
    if split.limited:
        parts.append(text[end : rows[split.sentences[-1].row - 1][1]])
        end = rows[-1][1]
    return "".join((*parts, text[end:]))


def _locate_rows(lines: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Returns start and end of each row in JSON lines, or of each object in a JSON list."""
    if text.lstrip().startswith("["):
        return [(start, end) for _, start, end in locate_values(text, text.index("["))]
    ends = [*accumulate(map(len, lines))]
    return [*zip([0, *ends], ends, strict=False)]


def _change_row(text: str, row: int, tags: list[str], columns: tuple[str, ...]) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and new text of the values to change in the JSON object at `row`."""
    values = {key: (start, end) for key, start, end in locate_values(text, row)}
    column = next((name for name in columns if name in values), None)

    def dump(value: str | list[str]) -> str:
        return json.dumps(value, ensure_ascii=text.isascii())

    if column is None:
        last = max(end for _, end in values.values())
        yield last, last, f", {dump(columns[0])}: {dump(tags)}"
    elif text.startswith("null", values[column][0]):
        yield *values[column], dump(tags)
    else:
        for tag, (_, start, end) in zip(tags, locate_values(text, values[column][0]), strict=True):
            if json.loads(text[start:end]) != tag:
                yield start, end, dump(tag)
