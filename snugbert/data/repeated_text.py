"""Repeated text: counts copies of earlier lines and documents, and leaves them out on request.

Two lines are copies if they are equal without surrounding space. Two documents are copies if they have the same lines
in the same order. Lines and documents are compared by 64-bit hashes. Among 15 million lines, two different lines have
the same hash with a probability of 6e-6.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from snugbert.data.data_arguments import Deduplication
from snugbert.files import write_atomically
from snugbert.storage.urls import is_url, join, open_file

REPORT_NAME = "repeated_text.json"
CHUNK_CHARACTERS = 2**20  # the lines of this much text are looked up together
# The report stops counting after this many different lines. A billion words of books have 15 million. --deduplicate
# has no limit.
MOST_COUNTED = 2**24
# If copies make up at least this share of the characters, a warning says what to do. After the same number of steps,
# the held-out loss with 10 % of copies equaled the loss without copies. With 50 and 90 %, the loss was higher
# (benchmarks/results/repeated_text_*). In books, Wikipedia and WikiText-2, the share is at most 0.04 %.
HIGH_SHARE = 0.1

NumberedDocument = tuple[int, list[str]]


@dataclass
class RepeatedText:
    """How much of a text is repeated, before copies are left out.

    Attributes:
        lines, copied_lines: number of all lines, and of copies of earlier lines.
        characters, copied_characters: number of characters of all lines, and of the lines that are copies.
        left_out: "lines" or "documents" if the corpus does not contain the copies.
    """

    left_out: Deduplication | None
    lines: int = 0
    copied_lines: int = 0
    documents: int = 0
    copied_documents: int = 0
    characters: int = 0
    copied_characters: int = 0
    is_complete: bool = True

    def __str__(self) -> str:
        text = (
            f"{self.copied_lines:,} of {self.lines:,} lines are copies of earlier lines "
            f"({self.copied_lines / max(self.lines, 1):.2%}, with {self.copied_share:.2%} of the characters), "
            f"{self.copied_documents:,} of {self.documents:,} documents"
        )
        if not self.is_complete:
            text += f". Only the text up to {MOST_COUNTED:,} different lines was counted"
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


def write_report(folder: Path, report: RepeatedText) -> None:
    """Writes the report of a corpus to its folder."""
    write_atomically(folder / REPORT_NAME, json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n")


def read_report(folder: Path | str) -> RepeatedText | None:
    """Reads the report of a corpus in a folder or at a URL. None if there is none, as after preparing in shards."""
    try:
        file = join(str(folder), REPORT_NAME)
        with open_file(file if is_url(folder) else Path(file)) as stream:
            return RepeatedText(**json.load(stream))
    except (OSError, ValueError, TypeError):
        return None


# --- counting ---------------------------------------------------------------------------------------------------


class KnownHashes:
    """A set of hashes, in 8 bytes for each. Merging needs twice as much for a moment."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # sorted. Each has more than twice the length of the next one

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Adds hashes in order. Returns whether each of them occurred before.

        `hashes`: *Shape:* (hashes,), int64
        """
        distinct, first = np.unique(hashes, return_index=True)
        is_new = np.ones(len(distinct), bool)
        for known in self._runs:
            places = np.searchsorted(known, distinct)
            places[places == len(known)] = 0
            is_new &= known[places] != distinct
        is_copy = np.ones(len(hashes), bool)
        is_copy[first[is_new]] = False
        self._append(distinct[is_new])
        return is_copy

    def _append(self, hashes: np.ndarray) -> None:
        while self._runs and len(self._runs[-1]) <= 2 * len(hashes):
            longer = self._runs.pop()
            hashes = np.insert(longer, np.searchsorted(longer, hashes), hashes)
        if len(hashes):
            self._runs.append(hashes)


class RepeatCounter:
    """Counts the copies in a text that is read in order, and leaves them out on request.

    Args:
        deduplicate: "lines" leaves out each line that is equal to an earlier line, and documents that have no lines
            left. "documents" leaves out each document that is equal to an earlier document.
    """

    def __init__(self, deduplicate: Deduplication | None = None):
        self.report = RepeatedText(deduplicate)
        self._lines, self._documents = KnownHashes(), KnownHashes()

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

    def _count(self, chunk: list[NumberedDocument]) -> list[NumberedDocument]:
        report = self.report
        if report.left_out is None and len(self._lines) >= MOST_COUNTED:
            report.is_complete = False
            return chunk
        lines = list(chain.from_iterable(document for _, document in chunk))
        # Python caches the hash of each string, so hashing the document afterwards costs little.
        line_hashes = np.fromiter(map(hash, lines), np.int64, len(lines))
        document_hashes = np.fromiter((hash(tuple(document)) for _, document in chunk), np.int64, len(chunk))
        is_copy, is_copied_document = self._lines.add(line_hashes), self._documents.add(document_hashes)
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        report.lines += len(lines)
        report.copied_lines += int(is_copy.sum())
        report.documents += len(chunk)
        report.copied_documents += int(is_copied_document.sum())
        report.characters += int(lengths.sum())
        report.copied_characters += int(lengths[is_copy].sum())
        if report.left_out == "documents":
            return [document for document, is_copied in zip(chunk, is_copied_document, strict=True) if not is_copied]
        if report.left_out == "lines":
            copied = iter(is_copy.tolist())
            kept = [(number, [line for line in document if not next(copied)]) for number, document in chunk]
            return [(number, document) for number, document in kept if document]
        return chunk
