"""The files of `snugbert predict`: reads rows, and writes them with their predictions.

The output is JSON lines, or has the format of its input: CSV, TSV, or CoNLL columns.
"""

import csv
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from snugbert.data.conll import (
    ONLY_IDS,
    Sentence,
    has_only_ids,
    parse_column_number,
    read_conll,
    split_cells,
    tag_lines,
)
from snugbert.data.tables import NO_SEPARATOR, choose_separator, find_separator, read_rows
from snugbert.data.text_lines import ReadingLog, find_encoding, read_numbered_lines
from snugbert.files import dump_json
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.tasks.tagged_sentences import TAG, convert_tags

logger = logging.getLogger(__name__)

Values = dict[str, Any]


class Format:
    """Rows of a table or of JSON, written as JSON lines."""

    def __init__(self, args: PredictionArguments):
        self.source = Path(str(args.input_file))

    def read(self, log: ReadingLog) -> Iterator[tuple[str, Values]]:
        """Streams the place of each row, for messages, and its values."""
        return ((f"row {row}", values) for row, values in read_rows(self.source, log=log))

    def write_head(self, row: Values) -> str:
        """Returns the text before the first row of the output. `row` includes the predictions."""
        return ""

    def write(self, row: Values) -> str:
        """Returns a row of the output. Numbers that JSON cannot represent, such as NaN, become null."""
        return dump_json(row) + "\n"


class TableFormat(Format):
    """Rows of a CSV or TSV file, written with the separator of the input. Lists and dictionaries become JSON."""

    def __init__(self, args: PredictionArguments):
        super().__init__(args)
        self.is_csv = Path(str(args.output_file)).suffix == ".csv"
        separator = find_separator(self.source, args.on_bad_text) if self.is_csv else "\t"
        self.separator = "," if separator == NO_SEPARATOR else separator

    def write_head(self, row: Values) -> str:
        """Returns the header. Names are quoted if they contain another separator."""
        header = self._join([*row])
        if self.is_csv and choose_separator(header) != self.separator:
            header = self._join([*row], csv.QUOTE_ALL)
        return _byte_order_mark(self.source) + header

    def write(self, row: Values) -> str:
        """Returns a line of the table. Missing values become empty cells."""
        return self._join([_format_cell(value) for value in row.values()])

    def _join(self, cells: list[str], quoting: Literal[0, 1] = csv.QUOTE_MINIMAL) -> str:
        if not self.is_csv:  # TSV has no quotes
            return "\t".join(re.sub(r"[\t\r\n]+", " ", cell) for cell in cells) + "\n"
        line = io.StringIO()
        # The writer quotes cells that contain a character of `lineterminator`. An unquoted \r would end the line.
        csv.writer(line, delimiter=self.separator, lineterminator="\r\n", quoting=quoting).writerow(cells)
        return line.getvalue().removesuffix("\r\n") + "\n"


class ConllFormat(Format):
    """Sentences in CoNLL columns, written as JSON lines. `text_column_names` may be a column number."""

    def __init__(self, args: PredictionArguments):
        super().__init__(args)
        self.word_column = parse_column_number("text_column_names", args.text_column_names)
        blocks = self._read_blocks(ReadingLog(args.on_bad_text))
        if self.word_column is None and has_only_ids(sentence for _, sentence, _ in blocks):
            logger.warning(ONLY_IDS, self.source, "--text_column_names")

    def read(self, log: ReadingLog) -> Iterator[tuple[str, Values]]:
        """Streams the line of the first word of each sentence, and the words as `tokens`."""
        for line, sentence, _ in self._read_blocks(log):
            yield f"line {line}", {"tokens": sentence.words}

    def _read_blocks(self, log: ReadingLog) -> Iterator[tuple[int, Sentence, list[str]]]:
        """Yields the line of each sentence's first word, the sentence, and its block of lines.

        A block has all lines after the previous sentence. The last block also has the rest of the file.
        `sentence.row` is relative to the block.
        """
        lines: list[str] = []
        # Skipping a bad line would remove a word from its sentence.
        numbered = read_numbered_lines(self.source, log=log if log.on_bad_text == "replace" else None)

        def record() -> Iterator[str]:
            for _, line in numbered:
                lines.append(line)
                yield line

        start, block = 0, None  # number of lines before the block, and the block
        for sentence in read_conll(record(), str(self.source), self.word_column):
            if block is not None:
                yield block
            end = sentence.row - 1 - start + len(sentence.words)
            block = sentence.row, sentence._replace(row=sentence.row - start), lines[:end]
            del lines[:end]
            start += end
        if block is not None:
            block[2].extend(lines)
            yield block


class TaggedConllFormat(ConllFormat):
    """Sentences in CoNLL columns, written with the predicted tags in a new last column, as `conlleval` reads them."""

    def read(self, log: ReadingLog) -> Iterator[tuple[str, Values]]:
        """Streams sentences as [`ConllFormat`] does, with `sentence` and `lines` to write them again."""
        for line, sentence, lines in self._read_blocks(log):
            yield f"line {line}", {"tokens": sentence.words, "sentence": sentence, "lines": lines}

    def write_head(self, row: Values) -> str:
        """Returns the byte order mark of the input, or ""."""
        return _byte_order_mark(self.source)

    def write(self, row: Values) -> str:
        """Returns the lines of a sentence with its tags, in BIO if they mark entities."""
        tags, sentence = row["predicted_tags"], row["sentence"]
        columns = len(split_cells(row["lines"][sentence.row - 1].strip("\r\n "))[::2])
        if all(TAG.fullmatch(tag) for tag in tags):
            tags = convert_tags(tags, "bio")
        return tag_lines(row["lines"], [sentence._replace(tags=None)], [tags], columns + 1)


def make_format(args: PredictionArguments) -> Format:
    """Returns the format that reads the input and writes the output."""
    to_json = Path(str(args.output_file)).suffix == ".jsonl"
    if args.reads_conll:
        return ConllFormat(args) if to_json else TaggedConllFormat(args)
    return Format(args) if to_json else TableFormat(args)


def _byte_order_mark(source: Path) -> str:
    """Returns the mark that Excel needs to read UTF-8, if the input has it."""
    return "\ufeff" if find_encoding(source) == "utf-8-sig" else ""


def _format_cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = dump_json(value)
    return "" if text == "null" else text
