"""A prepared corpus: tokenized text with sentence and document boundaries, memory-mapped from a folder.

[`prepare_corpus`] writes the folder, and [`open_corpus`] opens it.

    prepared/part-00000-of-00003.arrow ...

Each part is an Arrow stream, written block by block and read by memory mapping. A row is a document: `sentences` holds
lists of token ids, and `document` is its index in the text of the part. `continues_word`, if it was requested and the
vocabulary does not mark such tokens, has a bit for each token of the document. The schema's metadata records the
origin of the part: digests of the text and the tokenizer, and the settings. `datasets.Dataset.from_file` opens a part.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike
from transformers import PreTrainedTokenizerBase

from snugbert.data.tokenizing import hash_tokenizer
from snugbert.errors import InputError
from snugbert.files import hash_json

FORMAT = 1  # version of the files; other versions are refused
DATASET = "dataset "  # before the name of a dataset, in the names of sources
WORDS = "continues_word"  # column of the bits of words, and the setting of a corpus that has it
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of an Arrow stream
ARROW_ERRORS = (pa.ArrowException, OSError)  # raised when a damaged file is read


@dataclass
class Block:
    """Consecutive documents of a corpus. No sentence and no document is empty.

    Attributes:
        tokens: token ids, without special tokens. *Shape:* (tokens,)
        sentences: offset in `tokens` of each sentence, and of the end. *Shape:* (sentences + 1,)
        documents: offset in `sentences` of each document's first sentence, and of the end. *Shape:* (documents + 1,)
        word_bits: for each token, whether it continues the word of the token before it. Eight tokens share a byte, the
            first one in its lowest bit. None: not stored. *Shape:* (tokens / 8, rounded up,)
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    word_bits: np.ndarray | None = None

    def read_continuations(self, start: int, length: int) -> np.ndarray:
        """Returns whether each of `length` tokens from `start` continues a word. *Shape:* (length,), bool"""
        assert self.word_bits is not None
        bits = np.unpackbits(self.word_bits[start // 8 : (start + length + 7) // 8], bitorder="little")
        return bits[start % 8 :][:length].astype(bool)


@dataclass(eq=False, repr=False)
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
        has_words: whether the tokens that continue a word are stored.
        document_starts: number of documents before each block, and in total. *Shape:* (blocks + 1,)
    """

    blocks: Sequence[Block]
    digest: str
    folder: Path | None = None
    sources: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        self.language = _find_language(self.settings)
        self.has_words = all(block.word_bits is not None for block in self.blocks)
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


# --- the files --------------------------------------------------------------------------------------------------


class Source(TypedDict):
    """A text file or a dataset.

    Attributes:
        name: of the file, relative to the common folder of all text files of the corpus, or `dataset` and its name. In
            corpora of earlier versions, the absolute path.
        digest: changes when the text changes.
        identity: device, inode, size and times of the file. While they stay the same, the file is not read again. Only
            earlier versions stored it in the corpus.
    """

    name: str
    digest: str
    identity: NotRequired[Sequence[int | str]]


class Origin(TypedDict):
    """The text and the settings that a part was made from."""

    settings: dict[str, Any]
    sources: list[Source]


def corpus_schema(dtype: DTypeLike, origin: Origin) -> pa.Schema:
    """Returns the schema of a part with token ids of type `dtype`, uint16 or uint32. Its metadata is the `origin`."""
    columns = [("document", pa.int64()), ("sentences", pa.list_(pa.list_(pa.from_numpy_dtype(dtype))))]
    if origin["settings"].get(WORDS):
        columns.append((WORDS, pa.list_(pa.bool_())))
    return pa.schema(columns, metadata={b"snugbert": json.dumps(origin).encode()})


def read_origin(file: Path) -> Origin:
    """Reads the origin of a part from its metadata.

    Raises:
        InputError: the file is damaged.
    """
    try:
        with pa.memory_map(str(file)) as stream:
            return _parse_origin(pa.ipc.read_schema(stream))
    except ARROW_ERRORS as error:
        raise _damaged(file, error) from error


def _parse_origin(schema: pa.Schema) -> Origin:
    try:
        origin = json.loads(schema.metadata[b"snugbert"])
        if origin["settings"]["format"] == FORMAT:
            return origin
    except (ValueError, LookupError, TypeError):  # not JSON, or a stream of another program
        pass
    raise pa.ArrowInvalid("not part of a corpus, or from another version of SnugBERT")


def read_blocks(file: Path, vocab_size: int | None) -> list[Block]:
    """Maps the blocks of a part into memory.

    Args:
        file: the part.
        vocab_size: if given, every block is validated, and token ids must be below this.

    Raises:
        InputError: the file is damaged.
    """
    blocks = []
    try:
        with pa.memory_map(str(file)) as stream:
            for batch in pa.ipc.open_stream(stream):
                if vocab_size is not None:
                    validate_block(batch, vocab_size)
                blocks.append(_view_block(batch))
            if stream.tell() != stream.size() or stream.read_at(8, stream.size() - 8) != END_OF_STREAM:
                raise pa.ArrowInvalid("truncated")
    except ARROW_ERRORS as error:
        raise _damaged(file, error) from error
    return blocks


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(f"{file} is damaged ({error}). Remove it and prepare the text again.")


def validate_block(batch: pa.RecordBatch, vocab_size: int) -> None:
    """Checks a block from a file. All token ids must be below `vocab_size`.

    Raises:
        pyarrow.ArrowInvalid: the file is damaged.
    """
    batch.validate(full=True)  # makes the buffers safe to read
    block = _view_block(batch)
    if (highest := block.tokens.max()) >= vocab_size:
        raise pa.ArrowInvalid(f"token id {highest} is outside the vocabulary of {vocab_size}")
    if block.word_bits is not None:
        bits = batch.column(WORDS).values
        if len(bits) != len(block.tokens) or bits.null_count or bits.offset:
            raise pa.ArrowInvalid(f"{len(bits)} bits of words for {len(block.tokens)} tokens")


def _view_block(batch: pa.RecordBatch) -> Block:
    documents = batch.column("sentences")
    sentences = documents.values
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentences=sentences.offsets.to_numpy(zero_copy_only=True),
        documents=documents.offsets.to_numpy(zero_copy_only=True),
        word_bits=_view_bits(batch.column(WORDS).values) if WORDS in batch.schema.names else None,
    )


def _view_bits(values: pa.BooleanArray) -> np.ndarray:
    return np.frombuffer(values.buffers()[1], np.uint8)[: (len(values) + 7) // 8]
