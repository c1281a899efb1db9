"""A prepared corpus: tokenized text with sentence and document boundaries, in the part files of a folder.

[`prepare_corpus`] writes the folder, and [`open_corpus`] opens it.

    prepared/part-00000-of-00003.arrow part-00000-of-00003.index ...

Each part is an Arrow stream of blocks, see `part_files.py`. A row is a document: `sentences` holds lists of token ids,
and `document` is the document's index in the text of the part. With `store_words`, if the vocabulary does not mark
tokens inside words, `continues_word` has a bit for each token. `datasets.Dataset.from_file` opens a part.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.corpus_blocks import Blocks, CachedBlocks, MappedPart
from snugbert.data.corpus.part_files import (
    TEXT,
    WORDS,
    Block,
    CorpusFolder,
    Counts,
    count_block,
    join_counts,
    part_name,
    read_index,
    read_num_parts,
    shared_settings,
)
from snugbert.data.data_arguments import CACHE_GB
from snugbert.data.tokenizing import hash_tokenizer
from snugbert.errors import InputError
from snugbert.files import hash_json
from snugbert.storage.inputs import work_folder
from snugbert.storage.urls import ask_together, hide_credentials

logger = logging.getLogger(__name__)

MANY_UNKNOWN = 0.05  # share of [UNK] tokens at which a warning appears


@dataclass(eq=False, repr=False)
class Corpus:
    """The blocks of a prepared corpus. Blocks from a folder are memory-mapped and use no memory of their own."""

    blocks: Sequence[Block]
    digest: str  # changes when the text, the tokenizer or a setting changes
    folder: Path | str | None = None  # folder or URL. None: the corpus was made in memory
    sources: dict[str, str] = field(default_factory=dict)  # the digest of each text file, or of the dataset, by name
    # Everything else that determines the content, such as the digest of the tokenizer, the language, and which
    # documents were kept.
    settings: dict[str, Any] = field(default_factory=dict)
    counts: Counts = None  # type: ignore[assignment]  # from the indices. None: the blocks are counted

    def __post_init__(self):
        self.counts = self.counts or join_counts([count_block(block) for block in self.blocks])
        self.language = self.settings.get("language") or self.settings.get("lines_language")  # None: unknown

    @cached_property
    def document_starts(self) -> np.ndarray:
        """Number of documents before each block, and in total. *Shape:* (blocks + 1,)"""
        return np.cumsum([0, *self.counts.documents])

    @property
    def has_words(self) -> bool:
        """Whether the corpus stores which tokens continue a word."""
        return self.settings.get(WORDS, False)

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


def check_unknown_tokens(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Warns if many tokens of a corpus are [UNK], and raises an error if all are. The message begins with `name`."""
    counts, unknown = corpus.counts.token_ids, tokenizer.unk_token
    special = {index: counts[index] for index in tokenizer.all_special_ids if index < len(counts)}
    remedy = "Use another tokenizer, or train one on this text with `snugbert vocabulary`."
    if not corpus.num_tokens:
        raise InputError(f"{name}: no documents.")
    if sum(special.values()) == counts.sum():
        raise InputError(f"{name}: every token is {unknown}, so no token can be masked. {remedy}")
    share = special.get(tokenizer.unk_token_id, 0) / counts.sum()
    warn_of_unknown_tokens(share, tokenizer, name, remedy)


def warn_of_unknown_tokens(share: float, tokenizer: PreTrainedTokenizerBase, name: str, remedy: str) -> None:
    """Warns if the `share` of [UNK] among the tokens of a text is high. The message begins with `name`."""
    if share >= MANY_UNKNOWN:
        problem = f"{share:.0%} of the tokens are {tokenizer.unk_token}, text that the vocabulary cannot represent"
        logger.warning("%s: %s. %s", name, problem, remedy)


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
        cache_dir: for a URL, the folder for the blocks in use. The processes of a run share it. Simultaneous runs need
            different folders. Default: a folder for this corpus in `HF_HOME`.
        cache_gb: for a URL, the size of this folder in GB (1e9 bytes).

    Returns:
        The corpus. It is memory-mapped, so it may be larger than RAM. Blocks are verified when they are first
        used.

    Raises:
        InputError: `folder` holds no complete corpus, or the corpus was prepared with a different tokenizer.
    """
    output = CorpusFolder(folder)
    sizes = output.find_parts()
    if not sizes:
        raise InputError(f"{output} contains no prepared corpus. Run `snugbert prepare` first.")
    names = [part_name(number, read_num_parts(max(sizes))) for number in range(read_num_parts(max(sizes)))]
    if other := sizes.keys() - names:
        raise InputError(
            f"{output}: {min(other)} and {max(sizes)} belong to different corpora. Move one corpus to another folder."
        )
    if missing := [name for name in names if name not in sizes]:
        raise InputError(
            f"{output}: {len(missing)} of {len(names)} parts are missing or unfinished, such as {missing[0]}. Run "
            "`snugbert prepare` again for all shards."
        )
    parts = [output.locate(name) for name in sizes]
    indices = ask_together(lambda entry: read_index(*entry), zip(parts, sizes.values(), strict=True))
    records = [index.record for index in indices]
    settings = shared_settings(records[0])
    for part, record in zip(parts, records, strict=True):
        if shared_settings(record) != settings:
            raise InputError(
                f"{hide_credentials(part)} and {next(iter(sizes))} were prepared with different settings. Prepare all "
                "shards again with the same settings and tokenizer."
            )
    if settings["tokenizer"] != hash_tokenizer(tokenizer):
        raise InputError(f"{output} was prepared with a different tokenizer. Use that one, or prepare the text again.")
    texts = [record["settings"][TEXT] for record in records]
    sources = {name: digest for text in texts for name, digest in text.items()}
    settings.pop(TEXT, None)
    digest = hash_json([settings, [[*text.values()] for text in texts]])
    mapped = [
        MappedPart(part, index.read_schema(), index.offsets, index.digests)
        for part, index in zip(parts, indices, strict=True)
    ]
    blocks = Blocks(mapped)
    if output.url is not None:
        cache = Path(cache_dir or work_folder() / "blocks" / digest)
        blocks = CachedBlocks(mapped, cache, round(cache_gb * 1e9))
    counts = join_counts([index.counts for index in indices])
    return Corpus(blocks, digest, output.place, sources, settings, counts)
