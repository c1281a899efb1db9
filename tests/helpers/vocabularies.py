"""Texts and helpers for the tests of vocabularies."""

import sys
from collections import Counter
from pathlib import Path

from snugbert.cli.main import run_command
from snugbert.vocabulary.learning import learn_tokens
from snugbert_cli import main

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


def learn_all(folder: Path) -> None:
    """Learns and extends a vocabulary of each kind."""
    given = ["vocabulary", "--train_file", str(write_ties(folder)), "--vocab_size"]
    for kind, size in (("wordpiece", "150"), ("bpe", "150"), ("byte-bpe", "350")):
        assert main([*given, size, "--model", kind, "--output_dir", str(folder / kind)]) == 0
        more = ["--init", str(folder / kind), "--output_dir", str(folder / f"{kind} init")]
        assert main([*given, "400", *more]) == 0


if __name__ == "__main__":
    learn_all(Path(sys.argv[1]))
