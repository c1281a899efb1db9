"""A prepared corpus: tokenized text with sentence and document boundaries, in the part files of a folder.

[`prepare_corpus`] writes the folder, and [`open_corpus`] opens it.

    prepared/part-00000-of-00003.arrow part-00000-of-00003.index ...

Each part is an Arrow stream, written block by block and read by memory mapping. A row is a document: `sentences` holds
lists of token ids, and `document` is its index in the text of the part. `continues_word`, if it was requested and the
vocabulary does not mark such tokens, has a bit for each token of the document. The schema's metadata records the
origin of the part: digests of the text and the tokenizer, and the settings. `datasets.Dataset.from_file` opens a part.

The index of a part stores the offsets of its blocks, see `corpus_index.py`. So opening a corpus reads no text. A block
is read and verified when it is first used.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.corpus_blocks import Blocks, CachedBlocks, MappedPart
from snugbert.data.corpus.corpus_index import (
    Counts,
    count_blocks,
    index_name,
    join_counts,
    open_index,
    read_index,
)
from snugbert.data.corpus.part_files import (
    INDEX_ADVICE,
    NO_INDEX,
    WORDS,
    Block,
    Origin,
    damaged,
    find_states,
    read_origin,
)
from snugbert.data.data_arguments import CACHE_GB
from snugbert.data.tokenizing import hash_tokenizer
from snugbert.errors import InputError
from snugbert.files import hash_json
from snugbert.storage.inputs import work_folder
from snugbert.storage.urls import ask_together, hide_credentials, is_url, join, list_files

logger = logging.getLogger(__name__)

MANY_UNKNOWN = 0.05  # the share of [UNK] from which on a warning appears


@dataclass(eq=False, repr=False)
class Corpus:
    """The blocks of a prepared corpus.

    Attributes:
        blocks: the text. Blocks from a folder are memory-mapped and use no memory of their own.
        digest: changes when the text, the tokenizer or a setting changes.
        folder: the folder of the files, or its URL. None if the corpus was made in memory.
        sources: the digest of each text file, or of the dataset, by name.
        settings: everything else that determines the content: the digest of the tokenizer, the language, and which
            documents were kept.
        known_counts: `counts` of the blocks, from an index. None: `counts` reads the blocks when it is first used.
        language: the language of the text. None: unknown.
    """

    blocks: Sequence[Block]
    digest: str
    folder: Path | str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    known_counts: Counts | None = None

    def __post_init__(self):
        self.language = _find_language(self.settings)

    @cached_property
    def counts(self) -> Counts:
        """Counts of the blocks."""
        return count_blocks(self.blocks) if self.known_counts is None else self.known_counts

    @cached_property
    def document_starts(self) -> np.ndarray:
        """Number of documents before each block, and in total. *Shape:* (blocks + 1,)"""
        return np.cumsum([0, *self.counts.documents])

    @cached_property  # read for each example
    def has_words(self) -> bool:
        """Whether the tokens that continue a word are stored."""
        if isinstance(self.blocks, Blocks):
            return WORDS in self.settings
        return all(block.word_bits is not None for block in self.blocks)

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return int(self.counts.documents.sum())

    @property
    def num_sentences(self) -> int:
        """The number of sentences."""
        return int(self.counts.sentences.sum())

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return int(self.counts.tokens.sum())

    def __str__(self) -> str:
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} tokens"


def _find_language(settings: dict[str, Any]) -> str | None:
    return settings.get("language") or settings.get("lines_language")


def check_unknown_tokens(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Warns if many tokens of a corpus are [UNK]. The message begins with `name`.

    Raises:
        InputError: all tokens are special tokens, so no token can be masked.
    """
    counts, unknown = corpus.counts.token_ids, tokenizer.unk_token
    special = {index: counts[index] for index in tokenizer.all_special_ids if index < len(counts)}
    remedy = "Use another tokenizer, or train one on this text with `snugbert vocabulary`."
    if sum(special.values()) == counts.sum():
        raise InputError(f"{name}: every token is {unknown}, so no token can be masked. {remedy}")
    share = special.get(tokenizer.unk_token_id, 0) / counts.sum()
    if share >= MANY_UNKNOWN:
        problem = f"{share:.0%} of the tokens are {unknown}, text that the vocabulary cannot represent"
        logger.warning("%s: %s. %s", name, problem, remedy)


def read_corpus_language(folder: str | Path) -> str | None:
    """Returns the language of a corpus without opening all of it. None if no language is stored.

    Raises:
        InputError: `folder` holds no corpus, or a part is missing or damaged.
    """
    first = next(iter(_find_parts(folder)))
    origin = read_index(first).origin if is_url(folder) else read_origin(Path(first))
    return _find_language(origin["settings"])


def open_corpus(
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | Path | None = None,
    cache_gb: float = CACHE_GB,
) -> Corpus:
    """Opens a corpus that [`prepare_corpus`] or `snugbert prepare` wrote. Reads no text.

        corpus = snugbert.open_corpus("prepared", tokenizer)
        corpus = snugbert.open_corpus("s3://bucket/prepared", tokenizer)

    Args:
        folder: the folder of the corpus, or its URL on any file system that fsspec opens.
        tokenizer: the tokenizer that the corpus was prepared with.
        cache_dir: for a URL, the folder for the blocks in use. The processes of a run share it. Runs at the same time
            need different folders. Default: a folder for this corpus in `HF_HOME`.
        cache_gb: for a URL, the size of this folder in GB (1e9 bytes).

    Returns:
        The corpus. It is memory-mapped, so it may be larger than the memory. Blocks are verified when they are first
        used.

    Raises:
        InputError: `folder` holds no corpus; a part is missing, unfinished or damaged; the settings of the parts
            differ; the corpus was prepared with a different tokenizer; or the bucket does not answer.
    """
    sizes, vocab_size = _find_parts(folder), len(tokenizer)
    names = list(sizes)
    if is_url(folder):
        indices = ask_together(read_index, names)
    else:
        settings = read_origin(Path(names[0]))["settings"]
        _check_tokenizer(folder, settings, tokenizer)  # before old parts without index are read
        indices = [open_index(Path(name), vocab_size) for name in names]
    origins = [index.origin for index in indices]
    _check_tokenizer(folder, origins[0]["settings"], tokenizer)
    _check_origins(names, origins)
    for name, index in zip(names, indices, strict=True):
        if index.file_size != sizes[name]:
            raise damaged(hide_credentials(name), f"it has {sizes[name]:,} bytes instead of {index.file_size:,}")
        if (highest := len(index.counts.token_ids) - 1) >= vocab_size:
            raise damaged(hide_credentials(name), f"token id {highest} is outside the vocabulary of {vocab_size}")
    settings = origins[0]["settings"]
    sources = {source["name"]: source["digest"] for origin in origins for source in origin["sources"]}
    digest = hash_json([settings, [[source["digest"] for source in origin["sources"]] for origin in origins]])
    parts = [
        MappedPart(name, index.read_schema(), index.offsets, index.digests)
        for name, index in zip(names, indices, strict=True)
    ]
    if is_url(folder):
        cache = Path(cache_dir or work_folder() / "blocks" / digest)
        blocks: Blocks = CachedBlocks(parts, vocab_size, cache, round(cache_gb * 1e9))
    else:
        blocks, folder = Blocks(parts, vocab_size), Path(folder)
    return Corpus(blocks, digest, folder, sources, settings, join_counts([index.counts for index in indices]))


def _check_tokenizer(folder: str | Path, settings: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
    if settings["tokenizer"] != hash_tokenizer(tokenizer):
        raise InputError(
            f"{hide_credentials(str(folder))} was prepared with a different tokenizer. Use that tokenizer, or prepare "
            "the text again."
        )


def _check_origins(names: Sequence[str], origins: Sequence[Origin]) -> None:
    for name, origin in zip(names, origins, strict=True):
        if origin["settings"] != origins[0]["settings"]:
            raise InputError(
                f"{hide_credentials(name)} and {names[0].rpartition('/')[2]} were prepared with different settings or "
                "tokenizers. Prepare all shards again with the same settings and tokenizer."
            )


def _find_parts(folder: str | Path) -> dict[str, int]:
    """Returns the paths or URLs of the parts of a corpus, in order, and their sizes.

    Raises:
        InputError: there are no parts, a part is missing, or the parts belong to different corpora.
    """
    if is_url(folder):
        entries = list_files(str(folder))
        # A part is uploaded before its index.
        names = {name for name in entries if name.endswith(".arrow") and index_name(name) in entries}
        _check_parts(hide_credentials(str(folder)), names, entries)
        return {join(str(folder), name): entries[name].size for name in sorted(names)}
    names = {file.name for file in Path(folder).glob("part-*.arrow")}
    _check_parts(str(folder), names, {file.name for file in Path(folder).glob("part-*")})
    return {str(file): file.stat().st_size for file in sorted(Path(folder).glob("part-*.arrow"))}


def _check_parts(folder: str, names: Collection[str], files: Collection[str]) -> None:
    """Checks that the parts of a corpus are all there.

    Args:
        folder: the folder or URL, for messages.
        names: names of the complete parts.
        files: names of all files in the folder.

    Raises:
        InputError: there are no parts, a part is missing, or the parts belong to different corpora.
    """
    states = find_states(folder, names, files)
    if not states:
        raise InputError(f"{folder} contains no prepared corpus. Run `snugbert prepare` first.")
    missing = [name for name, state in states.items() if state]
    if not missing:
        return
    if states[missing[0]] == NO_INDEX:
        raise InputError(f"{folder}: {missing[0]} has no index. {INDEX_ADVICE}")
    raise InputError(
        f"{folder}: {missing[0]} {states[missing[0]]}. Missing or unfinished: {len(missing)} of {len(states)} parts. "
        "Run `snugbert prepare` again for all shards."
    )
