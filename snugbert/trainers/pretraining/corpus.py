"""A prepared corpus."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from snugbert.errors import InputError
from snugbert.trainers.pretraining.digests import hash_json, hash_tokenizer
from snugbert.trainers.pretraining.part_files import Block, read_blocks, read_origin


class Corpus:
    """The blocks of a prepared corpus. No sentence and no document is empty.

    Attributes:
        blocks: memory-mapped; reading them costs no memory of the process's own.
        digest: of the text, the tokenizer and the settings that it was made with.
        folder: where its files are; None if it was made in memory.
        sources: digest of each file, or of the dataset, that it was made from, by name.
        settings: what else decides its content: tokenizer (its digest), language, documents.
        document_starts: the number of documents before each block, and of all. *Shape:* (blocks + 1,)
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
        """The number of word pieces."""
        return sum(len(block.tokens) for block in self.blocks)

    def __reduce__(self) -> Any:
        # A data worker that is not forked maps the files itself; pickled, their content would be copied.
        return super().__reduce__() if self.folder is None else (_open, (self.folder, self.digest))

    def __str__(self) -> str:
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} word pieces"


def open_corpus(folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """Opens the corpus that [`prepare_parts`] left in `folder`, and reads all of it once to validate it.

    Args:
        folder: of the prepared corpus.
        tokenizer: the one that it was prepared with.

    Raises:
        InputError: there is none, a part is missing, unfinished or damaged, parts do not belong together, or it was
            made with another tokenizer.
    """
    return _open(Path(folder), tokenizer=tokenizer)


def _open(folder: Path, digest: str | None = None, tokenizer: Any = None) -> Corpus:
    """Opens a corpus. Given a tokenizer, validates it. Given a digest, checks that it is still the same corpus."""
    files = _find_parts(folder)
    origins = [read_origin(file) for file in files]
    settings = origins[0]["settings"]
    for file, origin in zip(files, origins, strict=True):
        if origin["settings"] != settings:
            raise InputError(f"{file} was prepared with other settings or another tokenizer than {files[0].name}.")
    if tokenizer is not None and settings["tokenizer"] != hash_tokenizer(tokenizer):
        raise InputError(
            f"the corpus in {folder} was prepared with another tokenizer; give that one, or prepare the text again."
        )
    sources = {source["name"]: source["digest"] for origin in origins for source in origin["sources"]}
    content = [[source["digest"] for source in origin["sources"]] for origin in origins]
    vocab_size = None if tokenizer is None else len(tokenizer)
    blocks = list(chain.from_iterable(read_blocks(file, vocab_size) for file in files))
    corpus = Corpus(blocks, hash_json([settings, content]), folder, sources, settings)
    if digest not in (None, corpus.digest):
        raise InputError(f"the corpus in {folder} was replaced while it was in use; start again.")
    return corpus


def _find_parts(folder: Path) -> list[Path]:
    """The files of a corpus. Refuses a missing or stray one."""
    files = sorted(folder.glob("part-*.arrow"))
    if not files:
        raise InputError(f"{folder} holds no prepared corpus; make one with `snugbert prepare`.")
    names = [re.fullmatch(r"part-\d{5}-of-(\d{5})\.arrow", file.name) for file in files]
    number_of_parts = next((int(name[1]) for name in names if name), 0)
    expected = [f"part-{part:05d}-of-{number_of_parts:05d}.arrow" for part in range(number_of_parts)]
    if stray := {file.name for file in files} - set(expected):
        raise InputError(f"{folder}: {min(stray)} does not belong to the {number_of_parts} parts of the others.")
    missing = [name for name in expected if not (folder / name).exists()]
    if missing:
        unfinished = " was begun but not finished" if (folder / f"{missing[0]}.partial").exists() else " is missing"
        raise InputError(
            f"{folder}: {missing[0]}{unfinished} ({len(missing)} of {len(expected)} parts are not there); run "
            "`snugbert prepare` again, for all shards."
        )
    return files
