"""Text -> word pieces, once: a folder of memory-mapped Arrow files with sentence and document boundaries.

    corpus/part-00000-of-00003.arrow ...

A row is a document: `sentences`, lists of word piece ids, and `document`, its number in the part's text. A file says
in its schema what it was made from: text, tokenizer and settings, by digest. `datasets.Dataset.from_file` opens it.

A part is written block by block to `....arrow.partial` and renamed when it is whole. Whatever stops the work, a full
disk or a killed process, the blocks that are there stay good and the next attempt goes on behind them. Memory holds a
few batches of text and one block (about 4 million word pieces), whatever the size of the corpus.
"""

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
from filelock import FileLock
from tokenizers import Tokenizer
from tqdm import tqdm

from snugbert.errors import InputError
from snugbert.trainers.documents import (
    TextArguments,
    dataset_version,
    find_files,
    read_dataset_documents,
    read_documents,
    split_sentences,
)

FORMAT = 1  # of the files; another number is not read
BLOCK_TOKENS = 2**22  # word pieces of a block, at least, but for the last of a part
BATCH_CHARACTERS = 2**20  # of text that a process tokenizes at a time, at least
MOST_PARTS = 256  # each is a file to open and map
PART_BYTES = 2**26  # of text files to a part, as long as that makes no more than MOST_PARTS
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream
DAMAGE = (pa.ArrowException, OSError)  # what reading a damaged file raises
REMEMBERED_CHARACTERS = 2**22  # of words whose pieces a process remembers, some 100 MB; 80 books have 2 million


# --- a prepared corpus ------------------------------------------------------------------------------------------


@dataclass
class Block:
    """Consecutive documents of a corpus.

    Attributes:
        tokens: word piece ids, no special tokens. *Shape:* (tokens,)
        sentences: offset in `tokens` of each sentence, and of the end. *Shape:* (sentences + 1,)
        documents: index in `sentences` of each document's first sentence, and of the end. *Shape:* (documents + 1,)
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


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


def open_corpus(folder: Path, tokenizer: Any) -> Corpus:
    """Opens the corpus that [`prepare_corpus`] left in `folder`, and reads all of it once to validate it.

    Args:
        folder: of the prepared corpus.
        tokenizer: the one that it was prepared with.

    Raises:
        InputError: there is none, a part is missing, unfinished or damaged, parts do not belong together, or it was
            made with another tokenizer.
    """
    return _open(folder, tokenizer=tokenizer)


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
    blocks = list(chain.from_iterable(_read_blocks(file, vocab_size) for file in files))
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


def read_origin(file: Path) -> dict[str, Any]:
    """What a part was made from: `settings`, and `sources` by name, digest and identity.

    Raises:
        InputError: it is damaged.
    """
    try:
        with pa.memory_map(str(file)) as stream:
            return _origin(pa.ipc.read_schema(stream))
    except DAMAGE as error:
        raise _damaged(file, error) from error


def _read_blocks(file: Path, vocab_size: int | None) -> list[Block]:
    """The blocks of a part, memory-mapped. They are validated if `vocab_size` is given."""
    blocks = []
    last_document = -1
    try:
        with pa.memory_map(str(file)) as stream:
            for batch in _reader(stream):
                if vocab_size is not None:
                    last_document = _validate(batch, last_document, vocab_size)
                blocks.append(_block(batch))
            if stream.tell() != stream.size() or stream.read_at(8, stream.size() - 8) != END_OF_STREAM:
                raise pa.ArrowInvalid("its end is missing")
    except DAMAGE as error:
        raise _damaged(file, error) from error
    return blocks


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(f"{file} is damaged ({error}). Remove it and prepare the text again.")


def _reader(stream: Any) -> Any:
    reader = pa.ipc.open_stream(stream)
    if not any(reader.schema.equals(_schema(dtype)) for dtype in (np.uint16, np.uint32)):
        raise pa.ArrowInvalid("it has other columns than a corpus")
    return reader


def _schema(dtype: Any, metadata: dict[bytes, bytes] | None = None) -> pa.Schema:
    sentences = pa.list_(pa.list_(pa.from_numpy_dtype(dtype)))
    return pa.schema([("document", pa.int64()), ("sentences", sentences)], metadata=metadata)


def _validate(batch: pa.RecordBatch, last_document: int, vocab_size: int) -> int:
    """Refuses a block that violates the invariants of [`Block`] or [`Corpus`].

    Args:
        batch: the block as it was read.
        last_document: number of the document before it in the same part, or -1.
        vocab_size: all word piece ids must be below.

    Returns:
        The number of its last document.

    Raises:
        pyarrow.ArrowInvalid: the file is damaged.
    """
    batch.validate(full=True)  # first: makes the buffers safe to read
    numbers, documents = batch.columns
    buffers = numbers.buffers() + documents.buffers()
    if not len(numbers) or any(buffer is not None for buffer in buffers[::2]):
        raise pa.ArrowInvalid("it has empty or missing values")
    # A wrong start would expose another buffer's bytes. Arrow pads buffers to 8 bytes.
    if any(after.address != buffer.address + -(-buffer.size // 8) * 8 for buffer, after in pairwise(buffers[1::2])):
        raise pa.ArrowInvalid("its columns are not where they were written")
    block = _block(batch)
    for offsets, end in ((block.documents, len(block.sentences) - 1), (block.sentences, len(block.tokens))):
        if offsets[0] != 0 or offsets[-1] != end or not _increases(offsets):
            raise pa.ArrowInvalid("its sentences or documents overlap, are empty, or leave word pieces out")
    numbers = numbers.to_numpy()
    if numbers[0] <= last_document or not _increases(numbers):
        raise pa.ArrowInvalid("its documents are not in order")
    if (highest := block.tokens.max()) >= vocab_size:
        raise pa.ArrowInvalid(f"word piece id {highest} is outside the vocabulary of {vocab_size}")
    return int(numbers[-1])


def _increases(values: np.ndarray) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _block(batch: pa.RecordBatch) -> Block:
    documents = batch.column("sentences")
    sentences = documents.values
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentences=sentences.offsets.to_numpy(zero_copy_only=True),
        documents=documents.offsets.to_numpy(zero_copy_only=True),
    )


def _origin(schema: pa.Schema) -> dict[str, Any]:
    try:
        origin = json.loads((schema.metadata or {})[b"snugbert"])
        settings, sources = origin["settings"], origin["sources"]
        is_ours = settings["format"] == FORMAT and isinstance(settings["tokenizer"], str)
        is_ours = is_ours and isinstance(sources, list) and len(sources) > 0 and all(map(_is_source, sources))
    except (ValueError, LookupError, TypeError, RecursionError):  # not JSON, or of another form
        is_ours = False
    if not is_ours:
        raise pa.ArrowInvalid("it is not a part of a corpus, or of another version of this program")
    return origin


def _is_source(source: Any) -> bool:
    match source:
        case {"name": str(), "digest": str()}:
            return all(isinstance(number, int) for number in source.get("identity", []))
    return False


def hash_tokenizer(tokenizer: Any) -> str:
    """A digest of all that decides how a fast tokenizer cuts text; padding and truncation do not."""
    return hash_json(_definition(tokenizer))


def _definition(tokenizer: Any) -> dict[str, Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}


def hash_json(value: Any) -> str:
    """A digest of what can be written as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


# --- the parts of a text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What one file of a prepared corpus is made from: some of the text files, or a share of a dataset.

    Attributes:
        number, of: its place among the parts.
        text: where the text is found.
        files: those of this part, none for a dataset.
        keeps: which of its documents, by number.
    """

    number: int
    of: int
    text: TextArguments
    files: tuple[Path, ...]
    keeps: Callable[[int], bool]

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"part-{self.number:05d}-of-{self.of:05d}.arrow"

    @property
    def names(self) -> list[str]:
        """Where its text is found: paths, or the dataset."""
        return [str(file.resolve()) for file in self.files] or [f"dataset {self.text.dataset_name}"]

    def documents(self) -> Iterator[tuple[int, list[str]]]:
        """Its documents with their numbers."""
        documents: Iterable[tuple[int, list[str]]]
        if self.files:
            documents = enumerate(read_documents(self.files, self.text.text_column_name))
        else:  # every machine streams the whole dataset
            everything = enumerate(read_dataset_documents(self.text))
            documents = (document for document in everything if document[0] % self.of == self.number)
        return ((number, document) for number, document in documents if self.keeps(number))

    def sources(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Name and digest of its files or dataset.

        Args:
            known: what this gave an earlier time. A file that nothing has touched since is not read again.
        """
        if not self.files:
            return [{"name": self.names[0], "digest": dataset_version(self.text)}]
        digests = {tuple(source.get("identity", ())): source["digest"] for source in known}
        return [_describe_source(file, digests) for file in self.files]


def _describe_source(file: Path, digests: dict[tuple, str]) -> dict[str, Any]:
    stat = file.stat()
    identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    digest = digests.get(identity)
    if digest is None:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:32]
    return {"name": str(file.resolve()), "digest": digest, "identity": identity}


def every(number: int) -> bool:
    """Keeps all documents."""
    return True


def plan_parts(text: TextArguments, shards: int = 1, keeps: Callable[[int], bool] = every) -> list[Part]:
    """Divides text into parts, at least one for each of `shards` machines: files that follow each other make a part.

    Args:
        text: files or a dataset.
        shards: how many machines share the work.
        keeps: which documents of a part are wanted, by number.

    Raises:
        InputError: there is no text, or there are fewer files than shards.
    """
    if text.dataset_name is not None:
        return [Part(number, shards, text, (), keeps) for number in range(shards)]
    files = find_files(text.train_file)
    if not files:
        raise InputError("there is no text; name it with --train_file or --dataset_name.")
    if len(files) < shards:
        raise InputError(f"{len(files)} files cannot be shared among {shards} shards; split the text into more files.")
    sizes = [file.stat().st_size for file in files]
    part_bytes = max(sum(sizes) / MOST_PARTS, min(PART_BYTES, sum(sizes) / shards))
    # A file goes where its middle falls.
    places = ((np.cumsum(sizes) - np.array(sizes) / 2) / max(part_bytes, 1)).astype(int)
    if len(set(places)) < shards:
        places = np.arange(len(files)) * shards // len(files)
    groups = [
        tuple(file for file, at in zip(files, places, strict=True) if at == place) for place in sorted(set(places))
    ]
    return [Part(number, len(groups), text, group, keeps) for number, group in enumerate(groups)]


# --- preparing --------------------------------------------------------------------------------------------------


def prepare_corpus(
    folder: Path,
    parts: Sequence[Part],
    tokenizer: Any,
    language: str | None = "en",
    documents: str = "all",
    num_workers: int | None = None,
    replace: bool = False,
    show_progress: bool = True,
) -> None:
    """Makes those of `parts` that are not in `folder` yet, or whose text has changed since.

    Several processes may call this at the same time: one works on a part and the others wait for it.

    Args:
        folder: of the prepared corpus; created if need be.
        parts: from [`plan_parts`], all or those of a shard.
        tokenizer: a fast tokenizer.
        language: of the sentence splitter, an ISO 639-1 code; None when lines are sentences already.
        documents: which documents the parts keep, in words; part of the settings.
        num_workers: processes that tokenize; default: one for each core this process may use.
        replace: whether parts of another division, tokenizer or settings may be replaced.
        show_progress: whether to show a progress bar for each part, in documents.

    Raises:
        InputError: text that cannot be read, a part that is there and of other settings, a file that changes while
            it is read, a disk that is full, or a worker that was killed.
    """
    settings = {
        "format": FORMAT,
        "tokenizer": hash_tokenizer(tokenizer),
        "language": language,
        "sentence_splitter": None if language is None else f"sentencex {version('sentencex')}",
        "documents": documents,
        "source": [parts[0].text.text_column_name, parts[0].text.dataset_config_name, parts[0].text.dataset_split],
    }
    worker: _Worker | None = None
    num_workers = num_workers or joblib.cpu_count()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            _check_others(folder, parts, settings, replace)
        for part in parts:
            with FileLock(folder / f".{part.name}.lock"):  # other machines may work on other parts
                known = _known(folder / part.name, settings)
                sources = part.sources(known)
                if known and [source["digest"] for source in known] == [source["digest"] for source in sources]:
                    continue
                worker = worker or _Worker(tokenizer, language)
                _prepare(folder, part, {"settings": settings, "sources": sources}, worker, num_workers, show_progress)
                if part.sources(sources) != sources:
                    (folder / part.name).unlink()
                    raise InputError(f"the text of {part.name} changed while it was read; run the same command again.")
    except BrokenProcessPool as error:
        raise InputError(
            "a process that tokenizes was killed, most likely for want of memory; finished parts stay: run the same "
            "command again, with fewer processes (--preprocessing_num_workers)."
        ) from error
    except OSError as error:
        if error.errno is None:  # not the system's
            raise
        raise InputError(
            f"{error.filename or folder}: {os.strerror(error.errno)}; what has been prepared stays, run the same "
            "command again when this is mended."
        ) from error


def _known(file: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The sources of a part that is there, whole and of these settings; otherwise none."""
    try:
        origin = read_origin(file)
    except InputError:
        return []
    return origin["sources"] if origin["settings"] == settings else []


def _check_others(folder: Path, parts: Sequence[Part], settings: dict[str, Any], replace: bool) -> None:
    """Removes, or refuses to mix with, parts of another text, division, tokenizer or settings."""
    names = {part.name: part.names for part in parts}
    for file in sorted(folder.glob("part-*.arrow")):
        known = [source["name"] for source in _known(file, settings)]
        belongs = file.stem.endswith(f"-of-{parts[0].of:05d}") and known and known == names.get(file.name, known)
        if not belongs and not replace:
            raise InputError(
                f"{folder} holds {file.name} of another text, tokenizer or settings; choose another folder or replace "
                "what is there (--overwrite_output_dir)."
            )
        if not belongs:
            file.unlink()


def _prepare(
    folder: Path, part: Part, origin: dict[str, Any], worker: "_Worker", num_workers: int, show_progress: bool
) -> None:
    """Writes the Arrow stream of a part, from where an earlier attempt stopped."""
    schema = _schema(worker.dtype, {b"snugbert": json.dumps(origin).encode()})
    partial = folder / f"{part.name}.partial"
    last_document = _cut_to_whole_blocks(partial, schema, worker.vocab_size)
    batches = (batch for batch in _batches(part.documents()) if batch[0][0] > last_document)
    with (
        partial.open("ab") as stream,
        tqdm(desc=f"preparing {part.number + 1}/{part.of}", unit=" documents", disable=not show_progress) as progress,
    ):
        if stream.tell() == 0:
            stream.write(schema.serialize())
        block: list[_Pieces] = []
        tokens = 0
        for pieces in in_order(worker, batches, num_workers):
            block.append(pieces)
            tokens += len(pieces.tokens)
            progress.update(pieces.documents_read)
            if tokens >= BLOCK_TOKENS:
                _write_block(stream, block, schema)
                block, tokens = [], 0
        if tokens:
            _write_block(stream, block, schema)
        stream.write(END_OF_STREAM)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(folder / part.name)


def _cut_to_whole_blocks(partial: Path, schema: pa.Schema, vocab_size: int) -> int:
    """Cuts off what an earlier attempt did not finish, or what is damaged, and all after it.

    Returns:
        The number of the last document that stays, or -1.
    """
    last_document, end = -1, 0
    try:
        with pa.memory_map(str(partial)) as stream:
            header = schema.serialize().to_pybytes()
            if stream.read_at(len(header), 0) == header:
                end = len(header)
                for batch in pa.ipc.open_stream(stream):
                    last_document = _validate(batch, last_document, vocab_size)
                    end = stream.tell()
    except DAMAGE:
        pass  # there is none, or it was cut off within a block
    if partial.exists():
        os.truncate(partial, end)
    return last_document


def _write_block(stream: Any, block: list["_Pieces"], schema: pa.Schema) -> None:
    sentences = pa.ListArray.from_arrays(
        _offsets([pieces.sentence_lengths for pieces in block]),
        pa.array(np.concatenate([pieces.tokens for pieces in block])),
    )
    documents = pa.ListArray.from_arrays(_offsets([pieces.document_lengths for pieces in block]), sentences)
    numbers = pa.array(np.concatenate([pieces.numbers for pieces in block]))
    stream.write(pa.record_batch([numbers, documents], schema=schema).serialize())
    stream.flush()


def _offsets(lengths: list[np.ndarray]) -> pa.Array:
    return pa.array(np.concatenate([[0], *lengths]).cumsum(), type=pa.int32())


def _batches(documents: Iterable[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Documents that are tokenized together. Where a batch ends depends on the text alone."""
    batch, characters = [], 0
    for number, document in documents:
        batch.append((number, document))
        characters += sum(map(len, document))
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


# --- sentences and word pieces ----------------------------------------------------------------------------------


@dataclass
class _Pieces:
    """A batch of documents as word pieces; without documents and sentences that have none.

    Attributes:
        documents_read: number of documents of the batch, empty ones included.
        numbers: of the documents that are left. *Shape:* (documents,)
        document_lengths: in sentences. *Shape:* (documents,)
        sentence_lengths: in word pieces. *Shape:* (sentences,)
        tokens: word piece ids. *Shape:* (tokens,)
    """

    documents_read: int
    numbers: np.ndarray
    document_lengths: np.ndarray
    sentence_lengths: np.ndarray
    tokens: np.ndarray


class _Worker:
    """Cuts batches of documents into sentences and word pieces.

    The library's tokenizer does the work, but only once for each run of characters between spaces: BERT's normalizer,
    its pre-tokenizer and WordPiece never look across a space. With any other tokenizer whole sentences are tokenized.
    """

    def __init__(self, tokenizer: Any, language: str | None):
        self.language = language
        self.vocab_size = len(tokenizer)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)
        definition = _definition(tokenizer)
        self.backend = _backend(json.dumps(definition))
        kinds = [(definition[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
        self.by_word = kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and all(
            token["special"] for token in definition["added_tokens"]
        )
        self.known: dict[str, bytes] = {}
        self.known_characters = 0

    def __getstate__(self) -> dict[str, Any]:
        # For a process that is not forked. A pickled tokenizer loses `encode_special_tokens`.
        return self.__dict__ | {"backend": self.backend.to_str(), "known": {}, "known_characters": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"backend": _backend(state["backend"])}

    def __call__(self, batch: list[tuple[int, list[str]]]) -> _Pieces:
        documents = [
            document if self.language is None else split_sentences(document, self.language) for _, document in batch
        ]
        pieces = self._tokenize(list(chain.from_iterable(documents)))
        lengths = np.array([len(sentence) for sentence in pieces], dtype=np.int64) // self.dtype.itemsize
        ends = np.cumsum([len(document) for document in documents])
        sentences_before = np.concatenate([[0], np.cumsum(lengths > 0)])
        document_lengths = np.diff(sentences_before[ends], prepend=0)
        return _Pieces(
            documents_read=len(batch),
            numbers=np.array([number for number, _ in batch])[document_lengths > 0],
            document_lengths=document_lengths[document_lengths > 0],
            sentence_lengths=lengths[lengths > 0],
            tokens=np.frombuffer(b"".join(pieces), self.dtype),
        )

    def _tokenize(self, sentences: list[str]) -> list[bytes]:
        if not self.by_word:
            return self._encode(sentences)
        if self.known_characters > REMEMBERED_CHARACTERS:
            self.known.clear()
            self.known_characters = 0
        split = [sentence.split(" ") for sentence in sentences]
        new = [word for word in dict.fromkeys(chain.from_iterable(split)) if word not in self.known]
        self.known.update(zip(new, self._encode(new), strict=True))
        self.known_characters += sum(map(len, new))
        return [b"".join([self.known[word] for word in words]) for words in split]

    def _encode(self, texts: list[str]) -> list[bytes]:
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, self.dtype).tobytes() for encoding in encodings]


def _backend(definition: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.encode_special_tokens = True  # "[MASK]" in a text is three pieces, not the token
    return tokenizer


def in_order(function: Callable[[Any], Any], items: Iterator[Any], num_workers: int) -> Iterator[Any]:
    """`map`, in as many processes as pay: for a single item, or within a data worker, in none but this."""
    first, second = next(items, None), next(items, None)
    if first is None:
        return
    if second is None or num_workers == 1 or multiprocessing.current_process().daemon:
        yield from map(function, chain([first], [] if second is None else [second], items))
        return
    # Forking is fast and shares memory, but on macOS system libraries can crash in the child.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(function,)) as executor:
        try:
            pending: deque = deque()
            for item in chain([first, second], items):
                pending.append(executor.submit(_work, item))
                if len(pending) > 2 * num_workers:  # enough to keep all busy; more would only fill memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            executor.shutdown(cancel_futures=True)


_function: Callable[[Any], Any]


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are parallel already
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # When the main process is killed, its children would wait for work for ever.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(item: Any) -> Any:
    return _function(item)
