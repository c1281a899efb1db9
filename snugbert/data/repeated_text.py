"""Repeated text: counts exact copies of earlier lines and documents, and leaves them out on request.

Two lines are copies if they are equal without surrounding space. Two documents are copies if they have the same lines
in the same order. Lines and documents are compared by 64-bit hashes. Among 15 million lines, two different lines have
the same hash with a probability of 6e-6.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from snugbert.data.data_arguments import Deduplication
from snugbert.files import write_atomically
from snugbert.storage.urls import is_url, join, open_file

REPORT_NAME = "repeated_text.json"
# The report stops counting after this many different lines, in 0.3 GB of memory. --deduplicate has no limit.
MOST_COUNTED = 2**22
# If copies make up at least this share of the characters, a warning says what to do. After the same number of steps,
# the held-out loss with 10 % of copies equaled the loss without copies. With 50 and 90 %, the loss was higher
# (benchmarks/results/repeated_text_*). In books, Wikipedia and WikiText-2, the share is at most 0.04 %.
HIGH_SHARE = 0.1


@dataclass
class RepeatedText:
    """How much of a text is repeated, before copies are left out."""

    left_out: Deduplication | None  # "lines" or "documents" if the corpus does not contain the copies
    lines: int = 0
    copied_lines: int = 0  # copies of earlier lines
    documents: int = 0
    copied_documents: int = 0
    characters: int = 0
    copied_characters: int = 0  # characters of copied lines
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


class RepeatCounter:
    """Counts the copies in a text that is read in order, and leaves them out on request.

    Args:
        deduplicate: "lines" leaves out each line that is equal to an earlier line, and documents that have no lines
            left. "documents" leaves out each document that is equal to an earlier document.
    """

    def __init__(self, deduplicate: Deduplication | None = None):
        self.report = RepeatedText(deduplicate)
        self._lines: set[int] = set()  # hashes
        self._documents: set[int] = set()

    def follow(self, documents: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
        """Yields numbered documents, without the copies to leave out."""
        for number, document in documents:
            if self.report.left_out is None and len(self._lines) >= MOST_COUNTED:
                self.report.is_complete = False
                yield number, document
            elif kept := self._count(document):
                yield number, kept

    def _count(self, document: list[str]) -> list[str]:
        report, key = self.report, hash(tuple(document))
        new = [line for line in document if self._is_new(line)]
        is_copy = key in self._documents
        self._documents.add(key)
        report.documents += 1
        report.copied_documents += is_copy
        if report.left_out == "documents":
            return [] if is_copy else document
        return new if report.left_out == "lines" else document

    def _is_new(self, line: str) -> bool:
        report, key = self.report, hash(line)
        is_copy = key in self._lines
        self._lines.add(key)
        report.lines += 1
        report.copied_lines += is_copy
        report.characters += len(line)
        report.copied_characters += len(line) * is_copy
        return not is_copy
