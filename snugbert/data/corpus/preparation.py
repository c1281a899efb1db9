"""Prepares a corpus: text files or a dataset -> sentences -> token ids -> the part files of a folder.

A part is written completely or not at all. If the disk fills up or the process is killed, the next call writes the
missing parts. Memory holds a few batches of text, one block of about 4 million tokens, and 8 bytes for each different
line, to find repeated text. If copies are only counted, the number of lines has a limit (`MOST_COUNTED` in
`repeated_text.py`). Apart from these lines, memory does not grow with the corpus.

[`prepare_in_cache`] prepares text in the cache. Each combination of text, tokenizer and settings has a folder:

    ~/.cache/huggingface/snugbert/0123456789abcdef0123456789abcdef/part-00000-of-00001.arrow ...
"""

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import joblib
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from snugbert.continuation import check_continuation, list_changes, make_record
from snugbert.data.corpus.corpus import Corpus, check_unknown_tokens, open_corpus
from snugbert.data.corpus.part_files import (
    END_OF_STREAM,
    FORMAT,
    KIND,
    TEXT,
    WORDS,
    CorpusFolder,
    corpus_schema,
    index_name,
    make_index,
    read_num_parts,
    shared_settings,
    write_index,
)
from snugbert.data.corpus.text_parts import Keeps, Part, plan_parts
from snugbert.data.data_arguments import Deduplication, OnBadText, TextArguments
from snugbert.data.languages import DEFAULT, check_language, choose_language, stored_in_tokenizer
from snugbert.data.repeated_text import RepeatedText
from snugbert.data.text_lines import ReadingLog
from snugbert.data.tokenizing import (
    DocumentTokenizer,
    TokenizedDocuments,
    hash_tokenizer,
    map_in_order,
    needs_words,
)
from snugbert.errors import InputError
from snugbert.files import explaining_failed_writes, hash_json, lock_file
from snugbert.progress import Progress
from snugbert.storage.inputs import work_folder
from snugbert.storage.urls import hide_credentials

BLOCK_TOKENS = 2**22  # a block has at least this many tokens, except the last block of a part
BATCH_CHARACTERS = 2**20  # a process tokenizes at least this much text at a time


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
    interruption prepares the parts that are missing.

        tokenizer = AutoTokenizer.from_pretrained("tokenizer")
        corpus = snugbert.prepare_corpus(["corpus/*.txt.gz"], tokenizer, "prepared")

    Args:
        files: paths, URLs and glob patterns of .txt, .jsonl (both also .gz and .zst) and .parquet files. In .txt
            files, a blank line ends a document. In the other files, each row is a document.
        tokenizer: a fast tokenizer.
        folder: where to write the corpus, a path or a URL such as "s3://bucket/prepared". It is created if it does not
            exist.
        text_column_name: the column of .jsonl and .parquet files that holds the text.
        lines_are_sentences: whether each line is one sentence. By default, lines are split into sentences.
        language: code of the language whose rules split lines into sentences, such as "de". Default: the language
            that the tokenizer stores, or "en".
        on_bad_text: what to do with lines that are not UTF-8, rows that are not JSON, and rows without text. "error"
            raises an error, "skip" leaves them out, and "replace" puts U+FFFD in place of bytes that are not UTF-8.
        deduplicate: "lines" leaves out copies of earlier lines, "documents" copies of earlier documents.
        store_words: whether to store which tokens form a word, for masking words and spans. For WordPiece, nothing is
            stored, because its vocabulary marks tokens inside words.
        preprocessing_num_workers: number of processes that tokenize. Default: one per core.
        overwrite_output_dir: whether to replace a corpus in `folder` that has a different text, tokenizer or settings.
        show_progress: whether to show a progress bar on a terminal, or occasional lines in a log file.

    Returns:
        The corpus, as [`open_corpus`] opens it.

    Raises:
        InputError: a file cannot be read or changes while it is read; the text is empty; all tokens are [UNK]; or
            `folder` holds a corpus with a different text, tokenizer or settings.
    """
    if language is not None:
        check_language(language)
    language = choose_language(language, [stored_in_tokenizer(tokenizer, tokenizer.name_or_path)])
    patterns = [files] if isinstance(files, str | Path) else files
    text = TextArguments(
        train_file=[str(pattern) for pattern in patterns], text_column_name=text_column_name, on_bad_text=on_bad_text
    )
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
    corpus = open_corpus(folder, tokenizer)
    check_unknown_tokens(corpus, tokenizer, hide_credentials(str(folder)))
    return corpus


def prepare_in_cache(
    text: TextArguments,
    tokenizer: PreTrainedTokenizerBase,
    language: str | None,
    cache_dir: str | None,
    num_workers: int | None = None,
    keeps: Keeps = None,
    documents: str = "all",
    deduplicate: Deduplication | None = None,
    store_words: bool = False,
) -> Corpus:
    """Prepares a text in the cache `cache_dir` (default: in `HF_HOME`), or reuses the prepared text.

    The name of its folder is a digest of the text, the tokenizer and the settings. A local file counts as changed if
    its size or time changed, so unchanged files are not read.
    """
    parts = plan_parts(text, keeps=keeps, deduplicate=deduplicate)
    settings = _list_settings(parts[0], tokenizer, language, documents, None, store_words)
    key = hash_json([settings, [[part.names, part.identify()] for part in parts]])
    folder = work_folder(cache_dir) / key
    if not {part.name for part in parts} <= CorpusFolder(folder).find_parts().keys():
        prepare_parts(
            folder, parts, tokenizer, language, documents, num_workers, replace=True, store_words=store_words
        )
    return open_corpus(folder, tokenizer)


def prepare_parts(
    folder: str | Path,
    parts: Sequence[Part],
    tokenizer: PreTrainedTokenizerBase,
    language: str | None = "en",
    documents: str = "all",
    num_workers: int | None = None,
    replace: bool = False,
    show_progress: bool = True,
    lines_language: str | None = None,
    store_words: bool = False,
) -> None:
    """Writes the parts of a corpus that are not in `folder` yet. Prints how much of the text is repeated.

    `parts` are the whole corpus or one shard. Several processes may call this at the same time. One process writes
    each part, and other processes wait for it. If all parts are prepared, nothing is written, so `folder` may be
    read-only. The rules of `language` split lines into sentences. None: each line is a sentence, and `lines_language`
    is its language, if known. `documents`, a setting of the corpus, describes which documents the parts keep.
    """
    settings = _list_settings(parts[0], tokenizer, language, documents, lines_language, store_words)
    output = CorpusFolder(folder)
    if _find_finished(output, parts, settings, replace) >= {part.name for part in parts}:
        return
    worker = DocumentTokenizer(tokenizer, language, settings[WORDS])
    try:
        with explaining_failed_writes(output.folder, "run the same command again. Finished parts are kept"):
            _write_missing_parts(output, parts, settings, worker, num_workers, show_progress)
    except BrokenProcessPool as error:
        raise InputError(
            "a tokenizing process was killed, probably because memory ran out. Run the same command again with fewer "
            "--preprocessing_num_workers. Finished parts are kept."
        ) from error


def _list_settings(
    part: Part,
    tokenizer: PreTrainedTokenizerBase,
    language: str | None,
    documents: str,
    lines_language: str | None,
    store_words: bool,
) -> dict[str, Any]:
    """Returns all settings that determine the content of a corpus, besides its text."""
    return {
        "format": FORMAT,
        "tokenizer": hash_tokenizer(tokenizer),
        "language": language,
        "lines_language": lines_language,
        "sentence_splitter": None if language is None else f"sentencex {version('sentencex')}",
        "documents": documents,
        "source": [part.text.text_column_name, part.text.dataset_config_name, part.text.dataset_split],
        "on_bad_text": part.text.on_bad_text,
        "deduplicate": part.deduplicate,
        WORDS: store_words and needs_words(tokenizer),
        "parts": part.num_parts,
    }


def _find_finished(
    output: CorpusFolder, parts: Sequence[Part], settings: Mapping[str, Any], replace: bool
) -> set[str]:
    """Returns the names of the parts in a folder that belong to this corpus.

    Parts of another corpus raise an [`InputError`]. With `replace`, they are removed, unless this corpus has
    parts of the same names, which another machine may have just written.
    """
    own = {part.name: part for part in parts}
    finished = set()
    for name, record in output.read_records().items():
        text = own[name].describe_text() if name in own else (record or {"settings": {}})["settings"].get(TEXT)
        remedy = "Choose another folder, or set --overwrite_output_dir to replace the corpus."
        try:
            check_continuation(record, KIND, {**settings, TEXT: text}, f"--output_dir: {output}/{name}", remedy)
            finished.add(name)
        except InputError:
            if not replace:
                raise
            if read_num_parts(name) != settings["parts"]:
                output.remove_part(name)
    return finished


def _write_missing_parts(
    output: CorpusFolder,
    parts: Sequence[Part],
    settings: Mapping[str, Any],
    worker: DocumentTokenizer,
    num_workers: int | None,
    show_progress: bool,
) -> None:
    sizes = [part.size for part in parts]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    log, report = ReadingLog(parts[0].text.on_bad_text), RepeatedText(parts[0].deduplicate)
    with Progress("preparing", total, "bytes" if parts[0].files else "rows", show=show_progress) as progress:
        for part, size in zip(parts, sizes, strict=True):
            with lock_file(output.folder / f".{part.name}.lock"):
                identities = part.identify()
                record = make_record(KIND, {**settings, TEXT: part.describe_text()})
                written = CorpusFolder(output.folder)
                is_published = _is_made_from(output.read_record(part.name), record)
                if is_published or _is_made_from(written.read_record(part.name), record):  # made, but not uploaded
                    log.skip(size or 0)
                    progress.skip_to(log.position)
                else:
                    documents, schema = part.read_documents(log, report), corpus_schema(worker.dtype, record)
                    written.remove_part(part.name)  # not overwritten: another process may have mapped it
                    _write_part(output.folder / part.name, documents, schema, worker, num_workers, log, progress)
                    if part.identify() != identities:
                        raise InputError(
                            f"the text of {part.name} changed while it was read. Run the same command again."
                        )
                    file = output.folder / part.name
                    write_index(make_index(file), file.with_name(index_name(file.name)))
                if not is_published:
                    output.publish(part.name)
    if summary := log.summarize():
        print(summary, file=sys.stderr)
    if report.copied_lines:
        print(f"repeated text: {report}", file=sys.stderr)


def _is_made_from(before: Mapping[str, Any] | None, record: Mapping[str, Any]) -> bool:
    """Whether a part has the text and the settings of a record."""
    return before is not None and not list_changes(before["settings"], record["settings"])


def find_missing_parts(output: CorpusFolder, parts: Sequence[Part], prepared: Part) -> list[str]:
    """Returns the names of a corpus's parts that are unfinished or have other settings than `prepared`."""
    settings = {name: record and shared_settings(record) for name, record in output.read_records().items()}
    return [part.name for part in parts if settings.get(part.name) != settings[prepared.name]]


def _write_part(
    file: Path,
    documents: Iterator[tuple[int, list[str]]],
    schema: pa.Schema,
    worker: DocumentTokenizer,
    num_workers: int | None,
    log: ReadingLog,
    progress: Progress,
) -> None:
    """Writes the Arrow stream of a part. Without an index, the part is incomplete."""
    positions: deque[int] = deque()  # in the text, at the end of each batch that is being tokenized

    def read_batches() -> Iterator[list[tuple[int, list[str]]]]:
        for batch in _make_batches(documents):
            positions.append(log.position)
            yield batch

    with file.open("wb") as stream:
        stream.write(schema.serialize())
        block: list[TokenizedDocuments] = []
        num_tokens = 0
        for batch in map_in_order(worker, read_batches(), num_workers or joblib.cpu_count()):
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


def _write_block(stream: IO[bytes], block: Sequence[TokenizedDocuments], schema: pa.Schema) -> None:
    sentences = pa.ListArray.from_arrays(
        _offsets([batch.sentence_lengths for batch in block]),
        pa.array(np.concatenate([batch.tokens for batch in block])),
    )
    documents = pa.ListArray.from_arrays(_offsets([batch.document_lengths for batch in block]), sentences)
    columns = [pa.array(np.concatenate([batch.numbers for batch in block])), documents]
    if WORDS in schema.names:
        starts = sentences.offsets.take(documents.offsets)  # index of each document's first token
        bits = np.concatenate([batch.continues_word for batch in block])
        columns.append(pa.ListArray.from_arrays(starts, pa.array(bits)))
    stream.write(pa.record_batch(columns, schema=schema).serialize())
    stream.flush()


def _offsets(lengths: Sequence[np.ndarray]) -> pa.Array:
    return pa.array(np.concatenate([[0], *lengths]).cumsum(), type=pa.int32())


def _make_batches(documents: Iterable[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Groups documents into batches for tokenizing. Batches depend only on the text, not on `num_workers`."""
    batch, characters = [], 0
    for number, document in documents:
        batch.append((number, document))
        characters += sum(map(len, document))
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
