"""Preparing a corpus."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
from filelock import FileLock
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from snugbert.errors import InputError
from snugbert.trainers.pretraining.corpus import Corpus, open_corpus
from snugbert.trainers.pretraining.digests import hash_tokenizer
from snugbert.trainers.pretraining.document_tokenizer import DocumentTokenizer, TokenizedDocuments
from snugbert.trainers.pretraining.parallel_map import map_in_order
from snugbert.trainers.pretraining.part_files import (
    DAMAGE,
    END_OF_STREAM,
    FORMAT,
    corpus_schema,
    read_origin,
    validate_batch,
)
from snugbert.trainers.pretraining.text_parts import Part, plan_parts
from snugbert.trainers.text_arguments import TextArguments

BLOCK_TOKENS = 2**22  # word pieces of a block, at least, but for the last of a part
BATCH_CHARACTERS = 2**20  # of text that a process tokenizes at a time, at least


def prepare_corpus(
    files: str | Path | Sequence[str | Path],
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    text_column_name: str = "text",
    lines_are_sentences: bool = False,
    language: str = "en",
    preprocessing_num_workers: int | None = None,
    overwrite_output_dir: bool = False,
    show_progress: bool = True,
) -> Corpus:
    """Tokenizes text files once, into a corpus to pretrain on. `snugbert prepare` does the same from the command line.

    A second call with the same text, tokenizer and settings reuses the corpus in `folder`. A call after an
    interruption continues where the first one stopped.

        tokenizer = AutoTokenizer.from_pretrained("tokenizer")
        corpus = snugbert.prepare_corpus(["corpus/*.txt.gz"], tokenizer, "prepared")

    Args:
        files: Paths and glob patterns of .txt, .jsonl (both also .gz and .zst) and .parquet files. In .txt files, a
            blank line ends a document. In the other files, each row is a document.
        tokenizer: A fast tokenizer.
        folder: Where to write the corpus. It is created if it does not exist.
        text_column_name: The column of .jsonl and .parquet files that holds the text.
        lines_are_sentences: Whether each line is one sentence. By default, lines are split into sentences.
        language: ISO 639-1 code of the language whose rules split lines into sentences.
        preprocessing_num_workers: Number of processes that tokenize. Default: one per core.
        overwrite_output_dir: Whether to replace a corpus of another text, tokenizer or other settings in `folder`.
        show_progress: Whether to show progress bars.

    Returns:
        The corpus, as [`open_corpus`] opens it.

    Raises:
        InputError: A file does not exist, cannot be read, or changes while it is read; `folder` holds a corpus of
            another text, tokenizer or other settings; the disk is full; or a worker process was killed.
    """
    patterns = [files] if isinstance(files, str | Path) else files
    text = TextArguments(train_file=[str(pattern) for pattern in patterns], text_column_name=text_column_name)
    folder = Path(folder)
    prepare_parts(
        folder,
        plan_parts(text),
        tokenizer,
        None if lines_are_sentences else language,
        num_workers=preprocessing_num_workers,
        replace=overwrite_output_dir,
        show_progress=show_progress,
    )
    return open_corpus(folder, tokenizer)


def prepare_parts(
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
    worker: DocumentTokenizer | None = None
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
                worker = worker or DocumentTokenizer(tokenizer, language)
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
    folder: Path, part: Part, origin: dict[str, Any], worker: DocumentTokenizer, num_workers: int, show_progress: bool
) -> None:
    """Writes the Arrow stream of a part, from where an earlier attempt stopped."""
    schema = corpus_schema(worker.dtype, {b"snugbert": json.dumps(origin).encode()})
    partial = folder / f"{part.name}.partial"
    last_document = _cut_to_whole_blocks(partial, schema, worker.vocab_size)
    batches = (batch for batch in _batches(part.documents()) if batch[0][0] > last_document)
    with (
        partial.open("ab") as stream,
        tqdm(desc=f"preparing {part.number + 1}/{part.of}", unit=" documents", disable=not show_progress) as progress,
    ):
        if stream.tell() == 0:
            stream.write(schema.serialize())
        block: list[TokenizedDocuments] = []
        tokens = 0
        for pieces in map_in_order(worker, batches, num_workers):
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
                    last_document = validate_batch(batch, last_document, vocab_size)
                    end = stream.tell()
    except DAMAGE:
        pass  # there is none, or it was cut off within a block
    if partial.exists():
        os.truncate(partial, end)
    return last_document


def _write_block(stream: Any, block: list[TokenizedDocuments], schema: pa.Schema) -> None:
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
