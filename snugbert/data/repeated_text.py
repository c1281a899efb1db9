"""Repeated text: counts copies of earlier lines and documents, and leaves them out on request. Also counts HTML.

Two lines are copies if they are equal without surrounding space. Two documents are copies if they have the same lines
in the same order. Lines and documents are compared by 64-bit hashes. Among 15 million lines, two different lines have
the same hash with a probability of 6e-6.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from snugbert.data.data_arguments import Deduplication
from snugbert.errors import format_count
from snugbert.files import write_atomically
from snugbert.storage.urls import is_url, join, open_file

REPORT_NAME = "repeated_text.json"
CHUNK_CHARACTERS = 2**20  # the lines of this much text are looked up together
# The report stops counting after this many different lines. A billion words of books have 15 million. --deduplicate
# has no limit.
MOST_COUNTED = 2**24
LISTED, LISTED_CHARACTERS = 3, 60  # how many frequent lines are listed, and where they are cut
# If copies make up at least this share of the characters, a warning says what to do. After the same number of steps,
# the held-out loss with 10 % of copies equaled the loss without copies. With 50 and 90 %, the loss was higher
# (benchmarks/repeated_text.py). In books, Wikipedia and WikiText-2, the share is at most 0.04 %.
HIGH_SHARE = 0.1
# An HTML tag, comment or entity.
HTML = re.compile(r"<(?:/?[a-zA-Z]|!--)[^<>]*>|&(?:[a-zA-Z]{2,}[0-9]*|#[0-9]+|#[xX][0-9a-fA-F]+);")

NumberedDocument = tuple[int, list[str]]


@dataclass
class Copies:
    """The copies among the lines, or among the documents, of a text.

    Attributes:
        total: number of lines or documents.
        copies: how many of them are copies of an earlier line or document.
        frequent: number of occurrences and beginning of the most frequent texts that occur at least twice.
    """

    total: int = 0
    copies: int = 0
    frequent: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class RepeatedText:
    """How much of a text is repeated, before copies are left out.

    Attributes:
        lines, documents: the copies among the lines, and among the documents.
        characters, copied_characters: number of characters of all lines, and of the lines that are copies.
        left_out: "lines" or "documents" if the corpus does not contain the copies.
        is_complete: whether all of the text was counted.
        html_lines: number of lines with an HTML tag or entity.
        html_example: the first tag or entity. Empty if there is none.
    """

    lines: Copies
    documents: Copies
    characters: int
    copied_characters: int
    left_out: Deduplication | None
    is_complete: bool
    html_lines: int
    html_example: str

    def __str__(self) -> str:
        lines, documents = self.lines, self.documents
        text = (
            f"{lines.copies:,} of {lines.total:,} lines are copies of earlier lines ({_share(lines):.2%}, with "
            f"{self.copied_share:.2%} of the characters), {documents.copies:,} of {documents.total:,} documents"
        )
        for noun, copies in (("lines", lines), ("documents", documents)):
            if copies.frequent:
                listed = ", ".join(f"{count:,} x {beginning!r}" for count, beginning in copies.frequent)
                text += f". Most frequent {noun}: {listed}"
        if not self.is_complete:
            text += f". Only the text up to {MOST_COUNTED:,} different lines was counted"
        if self.html_lines:
            text += f". {format_count(self.html_lines, 'line')} with HTML tags or entities ({self.html_example!r})"
        return text + (f". Copies of {self.left_out} are left out" if self.left_out else "")

    @property
    def copied_share(self) -> float:
        """Share of the characters in lines that are copies."""
        return self.copied_characters / max(self.characters, 1)

    @property
    def warning(self) -> str:
        """What to do if much of the text is repeated. Empty otherwise."""
        if self.left_out is not None or self.copied_share < HIGH_SHARE:
            return ""
        return (
            f"copies of earlier lines make up {self.copied_share:.0%} of the characters. Copies take the same share "
            "of the training, and the model memorizes this text. --deduplicate lines leaves out copied lines, "
            "--deduplicate documents only copied documents."
        )


def _share(copies: Copies) -> float:
    return copies.copies / max(copies.total, 1)


def write_report(folder: Path, report: RepeatedText) -> None:
    """Writes the report of a corpus to its folder."""
    write_atomically(folder / REPORT_NAME, json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n")


def read_report(folder: Path | str) -> RepeatedText | None:
    """Reads the report of a corpus in a folder or at a URL.

    Returns None if there is no report, for example because different commands prepared the shards, or an earlier
    version prepared the corpus.
    """
    try:
        file = join(str(folder), REPORT_NAME)
        with open_file(file if is_url(folder) else Path(file)) as stream:
            values = json.load(stream)
        for name in ("lines", "documents"):
            copies = values[name]
            values[name] = Copies(copies["total"], copies["copies"], [tuple(entry) for entry in copies["frequent"]])
        return RepeatedText(**values)
    except (OSError, ValueError, TypeError, LookupError):
        return None


# --- counting ---------------------------------------------------------------------------------------------------


class HashCounts:
    """Counts hashes, in 12 bytes for each different hash. Merging needs twice as much for a moment.

    Attributes:
        num_distinct: number of different hashes.
    """

    def __init__(self) -> None:
        self.num_distinct = 0
        # Sorted hashes and their counts. Each array has more than twice the length of the next array.
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Adds hashes in order. Returns how often each of them occurred before.

        Args:
            hashes: *Shape:* (hashes,), int64
        """
        distinct, inverse, times = np.unique(hashes, return_inverse=True, return_counts=True)
        times = times.astype(np.int32)
        before = np.zeros(len(distinct), np.int32)
        for known, counts in self._runs:
            places = np.searchsorted(known, distinct)
            places[places == len(known)] = 0
            found = known[places] == distinct
            before[found] = counts[places[found]]
            counts[places[found]] += times[found]
        is_new = before == 0
        self.num_distinct += int(is_new.sum())
        self._append(distinct[is_new], times[is_new])
        within = np.empty(len(hashes), np.int64)  # how often each occurred before in the same call
        within[np.argsort(inverse, kind="stable")] = np.arange(len(hashes)) - np.repeat(
            np.cumsum(times) - times, times
        )
        return before[inverse] + within

    def _append(self, hashes: np.ndarray, counts: np.ndarray) -> None:
        while self._runs and len(self._runs[-1][0]) <= 2 * len(hashes):
            longer, longer_counts = self._runs.pop()
            places = np.searchsorted(longer, hashes)
            hashes, counts = np.insert(longer, places, hashes), np.insert(longer_counts, places, counts)
        if len(hashes):
            self._runs.append((hashes, counts))


class CopyCounter:
    """Counts the copies among lines, or among documents.

    Attributes:
        counts: how often each occurred.
        total, copies: see [`Copies`].
    """

    def __init__(self) -> None:
        self.counts = HashCounts()
        self.total = self.copies = 0
        self._frequent: dict[int, tuple[int, str]] = {}  # occurrences and beginning, by hash

    def add(self, hashes: np.ndarray, read_beginning: Callable[[int], str]) -> np.ndarray:
        """Adds lines or documents in order. Returns how often each of them occurred before.

        Args:
            hashes: *Shape:* (lines,), int64
            read_beginning: returns the beginning of a text, by the index of its hash.
        """
        before = self.counts.add(hashes)
        repeated = np.flatnonzero(before)
        self.total += len(hashes)
        self.copies += len(repeated)
        # Each of the most frequent texts at the end was already among the most frequent when it last occurred.
        new: dict[int, tuple[int, str]] = {}
        for index in repeated[np.argsort(-before[repeated], kind="stable")]:
            if hashes[index] not in new:
                new[int(hashes[index])] = (int(before[index]) + 1, read_beginning(index))
            if len(new) == LISTED:
                break
        merged = sorted((self._frequent | new).items(), key=lambda entry: -entry[1][0])
        self._frequent = dict(merged[:LISTED])
        return before

    def summarize(self) -> Copies:
        """Returns the counts and the most frequent texts."""
        return Copies(self.total, self.copies, list(self._frequent.values()))


class RepeatCounter:
    """Counts the copies in a text that is read in order, and leaves them out on request.

    Args:
        deduplicate: "lines" leaves out each line that is equal to an earlier line, and documents that have no lines
            left. "documents" leaves out each document that is equal to an earlier document.
    """

    def __init__(self, deduplicate: Deduplication | None = None):
        self.deduplicate = deduplicate
        self._lines, self._documents = CopyCounter(), CopyCounter()
        self._characters = self._copied_characters = 0
        self._is_complete = True
        self._html_lines, self._html_example = 0, ""

    def follow(self, documents: Iterable[NumberedDocument]) -> Iterator[NumberedDocument]:
        """Yields numbered documents, without the copies to leave out. Reads [`CHUNK_CHARACTERS`] ahead."""
        chunk: list[NumberedDocument] = []
        characters = 0
        for document in documents:
            chunk.append(document)
            characters += sum(map(len, document[1]))
            if characters >= CHUNK_CHARACTERS:
                yield from self._count(chunk)
                chunk, characters = [], 0
        if chunk:
            yield from self._count(chunk)

    def summarize(self) -> RepeatedText:
        """Returns how much of the text up to here is repeated."""
        return RepeatedText(
            lines=self._lines.summarize(),
            documents=self._documents.summarize(),
            characters=self._characters,
            copied_characters=self._copied_characters,
            left_out=self.deduplicate,
            is_complete=self._is_complete,
            html_lines=self._html_lines,
            html_example=self._html_example,
        )

    def _count(self, chunk: list[NumberedDocument]) -> list[NumberedDocument]:
        if self.deduplicate is None and self._lines.counts.num_distinct >= MOST_COUNTED:
            self._is_complete = False
            return chunk
        lines = list(chain.from_iterable(document for _, document in chunk))
        self._count_html(lines)
        # Python caches the hash of each string, so hashing the document afterwards costs little.
        line_hashes = np.fromiter(map(hash, lines), np.int64, len(lines))
        document_hashes = np.fromiter((hash(tuple(document)) for _, document in chunk), np.int64, len(chunk))
        is_copy = self._lines.add(line_hashes, lambda index: _shorten(lines[index])) > 0
        is_copied_document = self._documents.add(document_hashes, lambda index: _shorten(chunk[index][1][0])) > 0
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        self._characters += int(lengths.sum())
        self._copied_characters += int(lengths[is_copy].sum())
        if self.deduplicate == "documents":
            return [document for document, is_copied in zip(chunk, is_copied_document, strict=True) if not is_copied]
        if self.deduplicate == "lines":
            copied = iter(is_copy.tolist())
            kept = [(number, [line for line in document if not next(copied)]) for number, document in chunk]
            return [(number, document) for number, document in kept if document]
        return chunk

    def _count_html(self, lines: list[str]) -> None:
        # Looking for the two characters first is much faster.
        found = [match for line in lines if ("<" in line or "&" in line) and (match := HTML.search(line))]
        self._html_lines += len(found)
        if found and not self._html_example:
            self._html_example = _shorten(found[0][0])


def _shorten(text: str) -> str:
    return text if len(text) <= LISTED_CHARACTERS else f"{text[: LISTED_CHARACTERS - 3]}..."
