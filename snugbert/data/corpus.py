"""A prepared corpus: tokenized text with sentence and document boundaries, memory-mapped from a folder.

[`prepare_corpus`] writes the folder, and [`open_corpus`] opens it. `part_files.py` describes the files in it.
"""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from snugbert.data.digests import hash_json, hash_tokenizer
from snugbert.data.part_files import Block, read_blocks, read_origin
from snugbert.errors import InputError


class Corpus:
    """The blocks of a prepared corpus.

    Attributes:
        blocks: the text. Blocks from a folder are memory-mapped and use no memory of their own.
        digest: changes when the text, the tokenizer or a setting changes.
        folder: the folder of the files, or None if the corpus was made in memory.
        sources: the digest of each text file, or of the dataset, by name.
        settings: everything else that decides the content: the digest of the tokenizer, the language, and which
            documents were kept.
        language: the language of the text. None: unknown.
        document_starts: number of documents before each block, and in total. *Shape:* (blocks + 1,)
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        digest: str,
        folder: Path | None = None,
        sources: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
    ):
        self.blocks = list(blocks)
        self.digest = digest
        self.folder = folder
        self.sources = sources or {}
        self.settings = settings or {}
        self.language = _find_language(self.settings)
        self.document_starts = np.cumsum([0, *(len(block.documents) - 1 for block in self.blocks)])

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return int(self.document_starts[-1])

    @property
    def num_sentences(self) -> int:
        """The number of sentences."""
        return sum(len(block.sentences) - 1 for block in self.blocks)

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return sum(len(block.tokens) for block in self.blocks)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A data worker that is not forked maps the files itself. Pickling the blocks would copy the text.
        return super().__reduce__() if self.folder is None else (_reopen, (self.folder, self.digest))

    def __str__(self) -> str:
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} tokens"


def _find_language(settings: dict[str, Any]) -> str | None:
    return settings.get("language") or settings.get("lines_language")


def read_corpus_language(folder: str | Path) -> str | None:
    """Returns the language of a corpus without opening all of it. None: it stores none.

    Raises:
        InputError: `folder` holds no corpus, or a part is missing or damaged.
    """
    return _find_language(read_origin(_find_parts(Path(folder))[0])["settings"])


def open_corpus(folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """Opens a corpus that [`prepare_corpus`] or `snugbert prepare` wrote. Reads all of it once to validate it.

        corpus = snugbert.open_corpus("prepared", tokenizer)

    Args:
        folder: the folder of the corpus.
        tokenizer: the tokenizer that it was prepared with.

    Returns:
        The corpus. It is memory-mapped, so it may be larger than the memory.

    Raises:
        InputError: `folder` holds no corpus; a part is missing, unfinished or damaged; the settings of the parts
            differ; or the corpus was prepared with a different tokenizer.
    """
    folder = Path(folder)
    files = _find_parts(folder)
    tokenizer_digest = read_origin(files[0])["settings"]["tokenizer"]
    if tokenizer_digest != hash_tokenizer(tokenizer):
        raise InputError(f"{folder} was prepared with a different tokenizer. Use that one, or prepare the text again.")
    return _map_parts(folder, files, len(tokenizer))


def _reopen(folder: Path, digest: str) -> Corpus:
    """Opens a corpus in another process, without validating it again."""
    corpus = _map_parts(folder, _find_parts(folder), vocab_size=None)
    if corpus.digest != digest:
        raise InputError(f"{folder} was replaced while it was in use. Run the command again.")
    return corpus


def _map_parts(folder: Path, files: Sequence[Path], vocab_size: int | None) -> Corpus:
    origins = [read_origin(file) for file in files]
    settings = origins[0]["settings"]
    for file, origin in zip(files, origins, strict=True):
        if origin["settings"] != settings:
            raise InputError(
                f"{file} and {files[0].name} were prepared with different settings or tokenizers. Prepare all shards "
                "again with the same settings and tokenizer."
            )
    sources = {source["name"]: source["digest"] for origin in origins for source in origin["sources"]}
    content = [[source["digest"] for source in origin["sources"]] for origin in origins]
    blocks = chain.from_iterable(read_blocks(file, vocab_size) for file in files)
    return Corpus(list(blocks), hash_json([settings, content]), folder, sources, settings)


def _find_parts(folder: Path) -> list[Path]:
    """Returns the files of a corpus, in order.

    Raises:
        InputError: there are none, one is missing, or one does not belong to the others.
    """
    files = sorted(folder.glob("part-*.arrow"))
    if not files:
        raise InputError(f"{folder} contains no prepared corpus. Run `snugbert prepare` first.")
    names = [re.fullmatch(r"part-\d{5}-of-(\d{5})\.arrow", file.name) for file in files]
    num_parts = next((int(name[1]) for name in names if name), 0)
    expected = [f"part-{part:05d}-of-{num_parts:05d}.arrow" for part in range(num_parts)]
    if stray := {file.name for file in files} - set(expected):
        raise InputError(f"{folder}: {min(stray)} does not belong to the other {num_parts} parts. Remove it.")
    missing = [name for name in expected if not (folder / name).exists()]
    if missing:
        state = "is unfinished" if (folder / f"{missing[0]}.partial").exists() else "is missing"
        raise InputError(
            f"{folder}: {missing[0]} {state}. Missing or unfinished: {len(missing)} of {len(expected)} parts. Run "
            "`snugbert prepare` again for all shards."
        )
    return files
