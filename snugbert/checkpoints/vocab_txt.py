"""Writes `vocab.txt`, the vocabulary file of BERT's original release."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase


def write_vocab_txt(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokens of a WordPiece tokenizer to `folder/vocab.txt`, one per line, in the order of their ids.

    transformers 5 no longer writes this file, but Google's code and many other tools need it. A token's id is its line
    number, so no file is written if there are gaps in the ids.

    Args:
        tokenizer: a fast WordPiece tokenizer. Tokens added after its vocabulary are left out.
        folder: an existing folder.
    """
    tokens = {index: token for token, index in tokenizer.backend_tokenizer.get_vocab(False).items()}
    if tokens.keys() == set(range(len(tokens))):
        text = "".join(f"{tokens[index]}\n" for index in range(len(tokens)))
        (folder / "vocab.txt").write_text(text, encoding="utf-8", newline="\n")


def is_uncased(vocabulary: Path) -> bool:
    """Whether all tokens of a `vocab.txt` are lowercase, apart from special tokens in brackets."""
    tokens = vocabulary.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    return all(token == token.lower() for token in tokens if not token.startswith("["))
