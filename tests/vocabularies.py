"""Texts to learn from, and shortcuts."""

from collections import Counter
from pathlib import Path

from snugbert.trainers.vocabulary.command import main
from snugbert.trainers.vocabulary.learning import learn_pieces

# Accents, tabs, a no-break space, a control character, a combining mark, Chinese, punctuation: what words hang on.
DOCUMENTS = [
    ["The café's naïve  façade,\ttwo tabs\u00a0and more.", "Zo\u0308e\x07s 北京 city: 3.5% (half-open]"],
    ["The house; the mouse -- THE END"],
]


def train(output_dir: Path, *arguments: str | Path) -> list[str]:
    main([*map(str, arguments), "--output_dir", str(output_dir)])
    return (output_dir / "vocab.txt").read_text(encoding="utf-8").splitlines()


def learn_word_pieces(words: Counter[str], vocab_size: int, min_frequency: int = 2) -> list[str]:
    return learn_pieces(words, vocab_size, min_frequency, show_progress=False)[0]


def many_ties() -> Counter[str]:
    """Words of four letters' alphabet, all equally frequent, so that nearly every merge is a tie."""
    return Counter({f"{a}{b}{c}{d}": 3 for a in "abcd" for b in "efgh" for c in "abgh" for d in "cdef"})


def write_ties(folder: Path) -> Path:
    (folder / "ties.txt").write_text(" ".join(many_ties().elements()), encoding="utf-8")
    return folder / "ties.txt"


def longest_pieces_first(piece: str, old: dict[str, int]) -> list[int]:
    """WordPiece, written out: the ids of the old pieces of a new one."""
    prefix, text, ids = "", piece, []
    if piece.startswith("##"):
        prefix, text = "##", piece[2:]
    while text:
        end = next(end for end in range(len(text), 0, -1) if prefix + text[:end] in old)
        ids.append(old[prefix + text[:end]])
        prefix, text = "##", text[end:]
    return ids
