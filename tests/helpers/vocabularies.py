"""Texts and helpers for the tests of vocabularies."""

from collections import Counter
from pathlib import Path

from snugbert.cli.main import run_command
from snugbert.vocabulary.learning import learn_tokens

# Accents, tabs, a no-break space, a control character, a combining mark, Chinese and punctuation affect words.
DOCUMENTS = [
    ["The café's naïve  façade,\ttwo tabs\u00a0and more.", "Zo\u0308e\x07s 北京 city: 3.5% (half-open]"],
    ["The house; the mouse -- THE END"],
]


def train(output_dir: Path, *arguments: str | Path) -> list[str]:
    run_command("vocabulary", [*map(str, arguments), "--output_dir", str(output_dir)])
    return (output_dir / "vocab.txt").read_text(encoding="utf-8").splitlines()


def learn_wordpiece(words: Counter[str], vocab_size: int, min_frequency: int = 2) -> list[str]:
    return learn_tokens(words, vocab_size, min_frequency)[0]


def many_ties() -> Counter[str]:
    """Equally frequent words of four letters, so that nearly every merge is a tie."""
    return Counter({f"{a}{b}{c}{d}": 3 for a in "abcd" for b in "efgh" for c in "abgh" for d in "cdef"})


def write_ties(folder: Path) -> Path:
    (folder / "ties.txt").write_text(" ".join(many_ties().elements()), encoding="utf-8")
    return folder / "ties.txt"


def split_longest_first(token: str, old: dict[str, int]) -> list[int]:
    """Splits a new token into old ones with plain WordPiece, and returns their ids."""
    prefix, text, ids = "", token, []
    if token.startswith("##"):
        prefix, text = "##", token[2:]
    while text:
        end = next(end for end in range(len(text), 0, -1) if prefix + text[:end] in old)
        ids.append(old[prefix + text[:end]])
        prefix, text = "##", text[end:]
    return ids
