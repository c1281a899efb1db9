"""Prepares a corpus: text files or a dataset -> sentences -> token ids -> the part files of a folder.

Each part is written block by block to `....arrow.partial`, and renamed when it is complete. After a full disk or a
killed process, the blocks that were written stay valid, and the next call continues after them. Memory holds a few
batches of text, one block of about 4 million tokens, and 12 bytes for each different line, by which repeated text is
found (see `repeated_text.py`, which has the limit). It does not grow with the corpus otherwise.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import joblib
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus import Corpus, open_corpus
from snugbert.data.corpus_index import index_name, make_index, open_index, write_index
from snugbert.data.data_arguments import Deduplication, OnBadText, TextArguments
from snugbert.data.documents import (
    count_dataset_rows,
    dataset_version,
    find_files,
    read_dataset_documents,
    read_documents,
)
from snugbert.data.languages import DEFAULT, check_language, choose_language, stored_in_tokenizer
from snugbert.data.part_files import (
    ARROW_ERRORS,
    END_OF_STREAM,
    FORMAT,
    WORDS,
    Origin,
    Source,
    corpus_schema,
    read_origin,
    validate_block,
)
from snugbert.data.repeated_text import REPORT_NAME, RepeatCounter, RepeatedText, read_report, write_report
from snugbert.data.text_lines import ReadingLog
from snugbert.data.tokenizing import (
    DocumentTokenizer,
    TokenizedDocuments,
    hash_tokenizer,
    map_in_order,
    needs_words,
)
from snugbert.errors import InputError, format_count
from snugbert.files import hash_file, lock_file
from snugbert.progress import Progress

BLOCK_TOKENS = 2**22  # a block has at least this many tokens, except the last one of a part
BATCH_CHARACTERS = 2**20  # a process tokenizes at least this much text at a time
MOST_PARTS = 256  # each is a file to open and map
PART_BYTES = 2**26  # of text files per part, unless that makes more than MOST_PARTS


def part_name(number: int, num_parts: int) -> str:
    """Returns the name of a part's file."""
    return f"part-{number:05d}-of-{num_parts:05d}.arrow"


def keep_all(number: int) -> bool:
    """Keeps every document."""
    return True


@dataclass(frozen=True)
class Part:
    """The text of one file of a corpus: some of the text files, or every nth document of a dataset.

    Attributes:
        number, num_parts: index of the part, and the number of parts.
        text: where the text is.
        files: the text files of this part. Empty for a dataset.
        keeps: returns whether to keep a document, by its index in the part's text.
        deduplicate: which copies to leave out. Then each part has every nth document of all files, because a copy is
            found by reading all text before it.
    """

    number: int
    num_parts: int
    text: TextArguments
    files: tuple[Path, ...]
    keeps: Callable[[int], bool]
    deduplicate: Deduplication | None = None

    @property
    def name(self) -> str:
        """Name of the part's file."""
        return part_name(self.number, self.num_parts)

    @property
    def size(self) -> int | None:
        """Bytes of the text files, or rows of the dataset, which the part reads. None if it is unknown."""
        return sum(file.stat().st_size for file in self.files) if self.files else count_dataset_rows(self.text)

    @property
    def source_names(self) -> list[str]:
        """Paths of the text files, or `dataset` and its name."""
        return [str(file.resolve()) for file in self.files] or [f"dataset {self.text.dataset_name}"]

    @property
    def reads_everything(self) -> bool:
        """Whether the part reads all of the corpus's text and keeps every nth document of it."""
        return not self.files or self.deduplicate is not None

    def read_documents(self, log: ReadingLog, counter: RepeatCounter) -> Iterator[tuple[int, list[str]]]:
        """Reads the documents of the part, each with its index in the part's text.

        Args:
            log: follows the reading.
            counter: follows the text, also the documents that are not kept, and leaves out copies.
        """
        if self.files:
            documents = read_documents(self.files, self.text.text_column_name, log)
        else:
            documents = read_dataset_documents(self.text, log)
        step = self.num_parts if self.reads_everything else 1
        for number, document in counter.follow(enumerate(documents)):
            if number % step == self.number % step and self.keeps(number):
                yield number, document

    def describe_sources(self, known: Sequence[Source]) -> list[Source]:
        """Returns the names and digests of the part's text files, or of the dataset.

        Args:
            known: an earlier result. Files that have not changed since are not read again.
        """
        if not self.files:
            return [{"name": self.source_names[0], "digest": dataset_version(self.text)}]
        digests = {tuple(source.get("identity", ())): source["digest"] for source in known}
        return [_describe_file(file, digests) for file in self.files]


def _describe_file(file: Path, digests: Mapping[tuple[int, ...], str]) -> Source:
    stat = file.stat()
    identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    digest = digests.get(identity)
    if digest is None:
        digest = hash_file(file)[:32]
    return {"name": str(file.resolve()), "digest": digest, "identity": identity}


def plan_parts(
    text: TextArguments,
    num_shards: int = 1,
    keeps: Callable[[int], bool] = keep_all,
    deduplicate: Deduplication | None = None,
) -> list[Part]:
    """Divides text into parts of consecutive files, at least one part per shard.

    Args:
        text: files or a dataset.
        num_shards: number of machines that share the work.
        keeps: returns whether to keep a document, by its index in its part's text.
        deduplicate: which copies to leave out. Then there is one part per shard, see [`Part`].

    Raises:
        InputError: there is no text, or there are fewer files than shards.
    """
    files = [] if text.dataset_name is not None else find_files(text.train_file)
    if not files and text.dataset_name is None:
        raise InputError("no text. Give --train_file or --dataset_name.")
    if not files or deduplicate is not None:
        return [Part(number, num_shards, text, tuple(files), keeps, deduplicate) for number in range(num_shards)]
    if len(files) < num_shards:
        raise InputError(f"--shard: more shards ({num_shards}) than text files ({len(files)}). Use fewer shards.")
    sizes = [file.stat().st_size for file in files]
    part_bytes = max(sum(sizes) / MOST_PARTS, min(PART_BYTES, sum(sizes) / num_shards))
    # The middle of a file decides which part it belongs to.
    places = ((np.cumsum(sizes) - np.array(sizes) / 2) / max(part_bytes, 1)).astype(int)
    if len(set(places)) < num_shards:
        places = np.arange(len(files)) * num_shards // len(files)
    groups = [
        tuple(file for file, at in zip(files, places, strict=True) if at == place) for place in sorted(set(places))
    ]
    return [Part(number, len(groups), text, group, keeps) for number, group in enumerate(groups)]


# --- preparing them ---------------------------------------------------------------------------------------------


def prepare_corpus(
    files: str | Path | Sequence[str | Path],
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    text_column_name: str = "text",
    lines_are_sentences: bool = False,
    language: str | None = None,
    on_bad_text: OnBadText = "error",
    deduplicate: Deduplication | None = None,
    store_words: bool = False,
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
        files: paths and glob patterns of .txt, .jsonl (both also .gz and .zst) and .parquet files. In .txt files, a
            blank line ends a document. In the other files, each row is a document.
        tokenizer: a fast tokenizer.
        folder: where to write the corpus. It is created if it does not exist.
        text_column_name: the column of .jsonl and .parquet files that holds the text.
        lines_are_sentences: whether each line is one sentence. By default, lines are split into sentences.
        language: code of the language whose rules split lines into sentences, such as "de". Default: the language
            that the tokenizer stores, or "en".
        on_bad_text: what to do with lines that are not UTF-8, rows that are not JSON, and rows without text. "error"
            raises an error, "skip" leaves them out, and "replace" puts U+FFFD in place of bytes that are not UTF-8.
        deduplicate: "lines" leaves out lines that are equal to an earlier one, and "documents" documents that are.
        store_words: whether to store which tokens form a word, for masks of words and spans. The vocabulary of
            WordPiece already shows it, so nothing is stored.
        preprocessing_num_workers: number of processes that tokenize. Default: one per core.
        overwrite_output_dir: whether to replace a corpus with a different text, tokenizer or settings in `folder`.
        show_progress: whether to show a progress bar on a terminal, or occasional lines in a log file.

    Returns:
        The corpus, as [`open_corpus`] opens it.

    Raises:
        InputError: the language is not a code, or contradicts the tokenizer's; a file does not exist, cannot be read,
            or changes while it is read; the text is empty; `folder` holds a corpus with a different text, tokenizer or
            settings; the disk is full; or a worker process was killed.
    """
    if language is not None:
        check_language(language)
    language = choose_language(language, [stored_in_tokenizer(tokenizer, tokenizer.name_or_path)])
    patterns = [files] if isinstance(files, str | Path) else files
    text = TextArguments(
        train_file=[str(pattern) for pattern in patterns], text_column_name=text_column_name, on_bad_text=on_bad_text
    )
    folder = Path(folder)
    prepare_parts(
        folder,
        plan_parts(text, deduplicate=deduplicate),
        tokenizer,
        None if lines_are_sentences else language or DEFAULT,
        lines_language=language if lines_are_sentences else None,
        store_words=store_words,
        num_workers=preprocessing_num_workers,
        replace=overwrite_output_dir,
        show_progress=show_progress,
    )
    return open_corpus(folder, tokenizer)


def prepare_parts(
    folder: Path,
    parts: Sequence[Part],
    tokenizer: PreTrainedTokenizerBase,
    language: str | None = "en",
    documents: str = "all",
    num_workers: int | None = None,
    replace: bool = False,
    show_progress: bool = True,
    lines_language: str | None = None,
    store_words: bool = False,
) -> RepeatedText | None:
    """Writes the parts of a corpus that are not in `folder` yet, or whose text has changed.

    Several processes may call this at the same time. Each part is written by one of them, and the others wait. If all
    parts are prepared, nothing is written, so `folder` may be read-only.

    Args:
        folder, tokenizer, show_progress: as in [`prepare_corpus`].
        parts: the parts of the whole corpus, or of one shard. If a part reads all of the text, it is the only one.
        language: code of the language whose rules split lines into sentences. None if each line is a sentence.
        documents: a description of the documents that the parts keep. It is one of the settings of the corpus.
        num_workers, replace: `preprocessing_num_workers` and `overwrite_output_dir` of [`prepare_corpus`].
        lines_language: the language of the text if each line is a sentence. None: unknown.
        store_words: as in [`prepare_corpus`].

    Returns:
        How much of the text is repeated. If parts are missing, it is about the text that these parts read. None if no
        text was read and the corpus has no report.

    Raises:
        InputError: as in [`prepare_corpus`].
    """
    settings = {
        "format": FORMAT,
        "tokenizer": hash_tokenizer(tokenizer),
        "language": language,
        "sentence_splitter": None if language is None else f"sentencex {version('sentencex')}",
        "documents": documents,
        "source": [parts[0].text.text_column_name, parts[0].text.dataset_config_name, parts[0].text.dataset_split],
    }
    on_bad_text = parts[0].text.on_bad_text
    if on_bad_text != "error":  # so corpora from before this setting stay valid
        settings["on_bad_text"] = on_bad_text
    if lines_language is not None:
        settings["lines_language"] = lines_language
    if parts[0].deduplicate is not None:
        settings["deduplicate"] = parts[0].deduplicate
    if store_words := store_words and needs_words(tokenizer):
        settings[WORDS] = True
    try:
        if _is_complete(folder, parts, settings):
            report = read_report(folder)
        else:
            worker = DocumentTokenizer(tokenizer, language, store_words)
            report = _write_missing_parts(folder, parts, settings, worker, num_workers, replace, show_progress)
        if documents == "all":
            _check_not_empty(folder, parts)
        return report
    except BrokenProcessPool as error:
        raise InputError(
            "a tokenizing process was killed, probably because memory ran out. Run the same command again with fewer "
            "--preprocessing_num_workers. Finished parts are kept."
        ) from error
    except OSError as error:
        if error.errno is None:  # not from the operating system
            raise
        raise InputError(
            f"{error.filename or folder}: {os.strerror(error.errno)}. Fix this and run the same command again. "
            "Partial output was kept."
        ) from error


def _is_complete(folder: Path, parts: Sequence[Part], settings: dict[str, Any]) -> bool:
    for part in parts:
        known = _read_sources(folder / part.name, settings)
        if not known or not _have_same_text(known, part.describe_sources(known)):
            return False
    return not _find_foreign_parts(folder, parts, settings)


def _have_same_text(before: Sequence[Source], now: Sequence[Source]) -> bool:
    return [source["digest"] for source in before] == [source["digest"] for source in now]


def _read_sources(file: Path, settings: dict[str, Any]) -> list[Source]:
    """Returns the sources of a part. Empty if the part does not exist, is damaged, or has different settings."""
    try:
        origin = read_origin(file)
    except InputError:
        return []
    return origin["sources"] if origin["settings"] == settings else []


def _find_foreign_parts(folder: Path, parts: Sequence[Part], settings: dict[str, Any]) -> list[Path]:
    """Finds parts with a different text, division, tokenizer or settings."""
    names = {part.name: part.source_names for part in parts}
    foreign = []
    for file in sorted(folder.glob("part-*.arrow")):
        known = [source["name"] for source in _read_sources(file, settings)]
        is_of_same_division = file.stem.endswith(f"-of-{parts[0].num_parts:05d}")
        if not (is_of_same_division and known and known == names.get(file.name, known)):
            foreign.append(file)
    return foreign


def _write_missing_parts(
    folder: Path,
    parts: Sequence[Part],
    settings: dict[str, Any],
    worker: DocumentTokenizer,
    num_workers: int | None,
    replace: bool,
    show_progress: bool,
) -> RepeatedText:
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / ".lock"):
        foreign = _find_foreign_parts(folder, parts, settings)
        if foreign and not replace:
            raise InputError(
                f"--output_dir: {foreign[0]} was prepared with a different text, tokenizer or settings. Choose "
                "another folder, or set --overwrite_output_dir to replace it."
            )
        if not _is_complete(folder, parts, settings):  # another process may have completed it
            for file in (*foreign, folder / REPORT_NAME):
                file.unlink(missing_ok=True)
    sizes = [part.size for part in parts]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    log, counter = ReadingLog(parts[0].text.on_bad_text), RepeatCounter(parts[0].deduplicate)
    uncounted: list[Part] = []
    with Progress("preparing", total, "bytes" if parts[0].files else "rows", show=show_progress) as progress:
        for part, size in zip(parts, sizes, strict=True):
            with lock_file(folder / f".{part.name}.lock"):  # other machines may work on other parts
                known = _read_sources(folder / part.name, settings)
                sources = part.describe_sources(known)
                if known and _have_same_text(known, sources):
                    uncounted.append(part)
                    log.skip(size or 0)
                    progress.skip_to(log.position)
                    continue
                origin: Origin = {"settings": settings, "sources": sources}
                documents = part.read_documents(log, counter)
                _write_part(
                    folder, part.name, documents, origin, worker, num_workers or joblib.cpu_count(), log, progress
                )
                if part.describe_sources(sources) != sources:
                    (folder / part.name).unlink()
                    raise InputError(f"the text of {part.name} changed while it was read. Run the same command again.")
    if summary := log.summarize():
        print(summary, file=sys.stderr)
    with lock_file(folder / ".lock"):  # one of the processes counts what the others wrote
        report = read_report(folder)
        if report is None:
            for part in uncounted:
                for _ in part.read_documents(ReadingLog(log.on_bad_text), counter):
                    pass
            report = counter.summarize()
            if parts[0].reads_everything or len(parts) == parts[0].num_parts:
                write_report(folder, report)
    return report


def _check_not_empty(folder: Path, parts: Sequence[Part]) -> None:
    """Raises an [`InputError`] if all parts of the corpus are prepared and none has a document. Removes them."""
    num_parts = parts[0].num_parts
    files = [folder / part_name(number, num_parts) for number in range(num_parts)]
    if all(file.exists() for file in files) and not any(len(open_index(file).digests) for file in files):
        for file in files:
            file.unlink()
            (folder / index_name(file.name)).unlink(missing_ok=True)
        sources = parts[0].source_names
        more = f" and {format_count(len(sources) - 1, 'more file')}" if len(sources) > 1 else ""
        raise InputError(f"{sources[0]}{more}: no documents.")


def _write_part(
    folder: Path,
    name: str,
    documents: Iterator[tuple[int, list[str]]],
    origin: Origin,
    worker: DocumentTokenizer,
    num_workers: int,
    log: ReadingLog,
    progress: Progress,
) -> None:
    """Writes the Arrow stream of a part, from where an earlier attempt stopped."""
    schema = corpus_schema(worker.dtype, origin)
    partial = folder / f"{name}.partial"
    last_document = _cut_to_whole_blocks(partial, schema, worker.vocab_size)
    positions: deque[int] = deque()  # in the text, after each batch that is being tokenized

    def read_batches() -> Iterator[list[tuple[int, list[str]]]]:
        for batch in _make_batches(documents):
            if batch[0][0] > last_document:
                positions.append(log.position)
                yield batch
            else:
                progress.skip_to(log.position)

    with partial.open("ab") as stream:
        if stream.tell() == 0:
            stream.write(schema.serialize())
        block: list[TokenizedDocuments] = []
        num_tokens = 0
        for batch in map_in_order(worker, read_batches(), num_workers):
            block.append(batch)
            num_tokens += len(batch.tokens)
            progress.counts["documents"] += batch.documents_read
            progress.move_to(positions.popleft())
            if num_tokens >= BLOCK_TOKENS:
                _write_block(stream, block, schema)
                block, num_tokens = [], 0
        if num_tokens:
            _write_block(stream, block, schema)
        stream.write(END_OF_STREAM)
        stream.flush()
        os.fsync(stream.fileno())
    write_index(make_index(partial), folder / index_name(name))
    partial.replace(folder / name)


def _cut_to_whole_blocks(partial: Path, schema: pa.Schema, vocab_size: int) -> int:
    """Cuts an unfinished file after its last valid block.

    Returns:
        The index of the last document that is left, or -1.
    """
    last_document, end = -1, 0
    try:
        with pa.memory_map(str(partial)) as stream:
            header = schema.serialize().to_pybytes()
            if stream.read_at(len(header), 0) == header:
                end = len(header)
                for batch in pa.ipc.open_stream(stream):
                    validate_block(batch, vocab_size)
                    last_document, end = batch.column("document")[-1].as_py(), stream.tell()
    except ARROW_ERRORS:
        pass  # the file does not exist, or ends in the middle of a block
    if partial.exists():
        os.truncate(partial, end)
    return last_document


def _write_block(stream: IO[bytes], block: Sequence[TokenizedDocuments], schema: pa.Schema) -> None:
    sentences = pa.ListArray.from_arrays(
        _offsets([batch.sentence_lengths for batch in block]),
        pa.array(np.concatenate([batch.tokens for batch in block])),
    )
    documents = pa.ListArray.from_arrays(_offsets([batch.document_lengths for batch in block]), sentences)
    columns = [pa.array(np.concatenate([batch.numbers for batch in block])), documents]
    if WORDS in schema.names:
        starts = sentences.offsets.take(documents.offsets)  # of documents, in tokens
        bits = np.concatenate([batch.continues_word for batch in block])
        columns.append(pa.ListArray.from_arrays(starts, pa.array(bits)))
    stream.write(pa.record_batch(columns, schema=schema).serialize())
    stream.flush()


def _offsets(lengths: Sequence[np.ndarray]) -> pa.Array:
    return pa.array(np.concatenate([[0], *lengths]).cumsum(), type=pa.int32())


def _make_batches(documents: Iterable[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Groups documents that are tokenized together. The groups depend on the text alone, not on the processes."""
    batch, characters = [], 0
    for number, document in documents:
        batch.append((number, document))
        characters += sum(map(len, document))
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
