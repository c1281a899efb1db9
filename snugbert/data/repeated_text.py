"""Repeated text: counts exact copies of earlier lines and documents, and leaves them out on request.

Two lines are copies if they are equal without surrounding space. Two documents are copies if they have the same lines
in the same order. Lines and documents are compared by 64-bit hashes. Among 15 million lines, two different lines have
the same hash with a probability of 6e-6.
"""

import json
from collections.abc import Hashable, Iterable, Iterator
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
    """Counts how much of a text is repeated, and leaves out copies on request."""

    # "lines": each line that is equal to an earlier line, and documents that have no lines left. "documents": each
    # document that is equal to an earlier document. None: nothing is left out.
    left_out: Deduplication | None = None
    lines: int = 0
    copied_lines: int = 0  # copies of earlier lines
    documents: int = 0
    copied_documents: int = 0
    characters: int = 0
    copied_characters: int = 0  # characters of copied lines
    is_complete: bool = True

    def __post_init__(self):
        self._seen: set[int] = set()  # hashes of lines
        self._seen_documents: set[int] = set()

    def follow(self, documents: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
        """Counts numbered documents, which are read in order. Yields them without the copies to leave out."""
        for number, document in documents:
            if self.left_out is None and len(self._seen) >= MOST_COUNTED:
                self.is_complete = False
                yield number, document
            elif kept := self._count(document):
                yield number, kept

    def _count(self, document: list[str]) -> list[str]:
        new = [line for line in document if _add(line, self._seen)]
        is_new = _add(tuple(document), self._seen_documents)
        characters = sum(map(len, document))
        self.lines += len(document)
        self.copied_lines += len(document) - len(new)
        self.documents += 1
        self.copied_documents += not is_new
        self.characters += characters
        self.copied_characters += characters - sum(map(len, new))
        if self.left_out == "documents":
            return document if is_new else []
        return new if self.left_out == "lines" else document

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


def _add(item: Hashable, seen: set[int]) -> bool:
    """Adds the hash of an item, and returns whether it is new."""
    is_new = hash(item) not in seen
    seen.add(hash(item))
    return is_new


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
