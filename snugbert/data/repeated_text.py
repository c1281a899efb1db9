"""Repeated text: counts exact copies of earlier lines and documents, and leaves them out on request.

Two lines are copies if they are equal without surrounding space. Two documents are copies if they have the same lines
in the same order. Lines and documents are compared by 64-bit hashes. Among 15 million lines, two different lines have
the same hash with a probability of 6e-6.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from snugbert.data.data_arguments import Deduplication

# The report stops counting after this many different lines, which take 0.3 GB of memory. --deduplicate has no limit.
MOST_COUNTED = 2**22
# If copies make up at least this share of the characters, the report says what to do. After the same number of steps,
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
        share = self.copied_characters / max(self.characters, 1)
        text = (
            f"{self.copied_lines:,} of {self.lines:,} lines are copies of earlier lines "
            f"({self.copied_lines / max(self.lines, 1):.2%}, with {share:.2%} of the characters), "
            f"{self.copied_documents:,} of {self.documents:,} documents."
        )
        if not self.is_complete:
            text += f" Only the text up to {MOST_COUNTED:,} different lines was counted."
        if self.left_out is not None:
            text += f" Copies of {self.left_out} are left out."
        elif share >= HIGH_SHARE:
            text += (
                " Copies take the same share of the training, and the model memorizes this text. --deduplicate lines "
                "leaves out copied lines, --deduplicate documents only copied documents."
            )
        return text


def _add(item: Hashable, seen: set[int]) -> bool:
    """Adds the hash of an item, and returns whether it is new."""
    is_new = hash(item) not in seen
    seen.add(hash(item))
    return is_new
