"""Prepares a corpus: text files or a dataset -> sentences -> token ids -> the part files of a folder.

Each part is written block by block to `....arrow.partial`, and renamed when it is complete. After a full disk or a
killed process, the blocks that were written stay valid, and the next call continues after them. Memory holds a few
batches of text and one block of about 4 million tokens. To find repeated text, it also holds 12 bytes for each
different line, up to a limit (`MOST_COUNTED` in `repeated_text.py`) unless copies are left out. Otherwise, memory does
not grow with the corpus.
"""

import hashlib
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import joblib
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.corpus import Corpus, check_unknown_tokens, open_corpus
from snugbert.data.corpus.corpus_folder import IDENTITIES, CorpusFolder, measure_header
from snugbert.data.corpus.corpus_index import index_name, make_index, write_index
from snugbert.data.corpus.part_files import (
    ARROW_ERRORS,
    DATASET,
    END_OF_STREAM,
    FORMAT,
    WORDS,
    Origin,
    Source,
    corpus_schema,
    part_name,
    read_origin,
    validate_block,
)
from snugbert.data.data_arguments import Deduplication, OnBadText, TextArguments
from snugbert.data.documents import (
    count_dataset_files,
    count_dataset_rows,
    dataset_version,
    find_files,
    locate_file,
    name_files,
    read_dataset_documents,
    read_documents,
)
from snugbert.data.languages import DEFAULT, check_language, choose_language, stored_in_tokenizer
from snugbert.data.repeated_text import REPORT_NAME, RepeatCounter, RepeatedText, read_report, write_report
from snugbert.data.text_lines import ReadingLog, RemoteText, TextFile, measure_file
from snugbert.data.tokenizing import (
    DocumentTokenizer,
    TokenizedDocuments,
    hash_tokenizer,
    map_in_order,
    needs_words,
)
from snugbert.errors import InputError, format_count
from snugbert.files import hash_json, lock_file, write_atomically
from snugbert.progress import Progress
from snugbert.storage.urls import find_entry, hide_credentials

logger = logging.getLogger(__name__)

BLOCK_TOKENS = 2**22  # a block has at least this many tokens, except the last block of a part
BATCH_CHARACTERS = 2**20  # a process tokenizes at least this much text at a time
MOST_PARTS = 256  # each part is a file to open and map
PART_BYTES = 2**26  # of text files per part, unless that makes more than MOST_PARTS


def keep_all(number: int) -> bool:
    """Keeps every document."""
    return True


@dataclass(frozen=True)
class Part:
    """The text of one part of a corpus: some of the text files, some files of a dataset, or every nth document.

    Attributes:
        number, num_parts: index of the part, and the number of parts.
        text: where the text is.
        files: the text files of this part. Empty for a dataset.
        names: the names of the text files, relative to the common folder of all text files of the corpus. Or
            `dataset` and the name of the dataset. The names are the same on every machine.
        keeps: returns whether to keep a document, by its index in the part's text.
        deduplicate: which copies to leave out. If set, each part reads all files and keeps every nth document, because
            finding a copy requires all text before it.
        divides_files: whether each part of a dataset reads its own files of the dataset.
    """

    number: int
    num_parts: int
    text: TextArguments
    files: tuple[TextFile, ...]
    names: tuple[str, ...]
    keeps: Callable[[int], bool]
    deduplicate: Deduplication | None = None
    divides_files: bool = False

    @property
    def name(self) -> str:
        """Name of the part's file."""
        return part_name(self.number, self.num_parts)

    @property
    def size(self) -> int | None:
        """Bytes of the text files, or rows of the dataset, which the part reads. None if it is unknown."""
        if self.divides_files:
            return None
        return sum(map(measure_file, self.files)) if self.files else count_dataset_rows(self.text)

    @property
    def places(self) -> list[str]:
        """Absolute paths or URLs of the text files. For a dataset, the word "dataset" and its name."""
        return [locate_file(file) for file in self.files] or list(self.names)

    @property
    def reads_everything(self) -> bool:
        """Whether the part reads all of the corpus's text and keeps every nth document of it."""
        return self.deduplicate is not None or (not self.files and not self.divides_files)

    def read_documents(self, log: ReadingLog, counter: RepeatCounter) -> Iterator[tuple[int, list[str]]]:
        """Reads the documents of the part, each with its index in the part's text.

        Args:
            log: counts what was read, and handles bad text.
            counter: counts the text, including documents that are not kept, and leaves out copies.
        """
        if self.files:
            documents = read_documents(self.files, self.text.text_column_name, log)
        else:
            shard = (self.number, self.num_parts) if self.divides_files else None
            documents = read_dataset_documents(self.text, log, shard)
        step = self.num_parts if self.reads_everything else 1
        for number, document in counter.follow(enumerate(documents)):
            if number % step == self.number % step and self.keeps(number):
                yield number, document

    def describe_sources(self, known: Sequence[Source]) -> list[Source]:
        """Describes the part's text files, or the dataset. The names are digests of paths, which may be private.

        Args:
            known: earlier results. Files that have not changed since are not read again.
        """
        if not self.files:
            return [{"name": self.names[0], "digest": dataset_version(self.text)}]
        digests = {identity: source["digest"] for source in known if (identity := source.get("identity"))}
        identities = [_identify(file) for file in self.files]
        described: list[Source] = []
        for file, place, identity in zip(self.files, self.places, identities, strict=True):
            digest = digests.get(identity) or (_hash_text(file, identity) if identity else _hash_file(file))
            described.append({"name": hash_json(place), "digest": digest, "identity": identity})
        return described

    def has_changed(self, sources: Sequence[Source]) -> bool:
        """Whether the text has changed since `describe_sources` returned `sources`."""
        if not self.files:
            return self.describe_sources([]) != sources
        for file, source in zip(self.files, sources, strict=True):
            if _identify(file, again=True) != source["identity"]:
                return True
            if not source["identity"] and _hash_file(file) != source["digest"]:
                return True
        return False

    def describe_origin(self, sources: Sequence[Source], settings: dict[str, Any]) -> Origin:
        """Returns the sources and the settings as the part stores them. They are the same on every machine.

        Args:
            sources: from `describe_sources`.
            settings: of the corpus.
        """
        named = zip(self.names, sources, strict=True)
        return {"settings": settings, "sources": [{"name": name, "digest": of["digest"]} for name, of in named]}


def _identify(file: TextFile, again: bool = False) -> str:
    """Returns a digest that changes when a file changes, without reading the file.

    For a file in a bucket, the digest comes from the listing. The digest is empty if the store has neither a checksum
    nor a time, or if the file was removed.

    Args:
        file: the file.
        again: whether to ask the store again.
    """
    if isinstance(file, RemoteText):
        entry = find_entry(file.url) if again else file
        return hash_json([str(file), entry.size, entry.version]) if entry is not None and entry.version else ""
    stat = file.stat()
    return hash_json([stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])


@cache  # while its identity stays the same, a file is read once
def _hash_text(file: TextFile, identity: str) -> str:
    return _hash_file(file)


def _hash_file(file: TextFile) -> str:
    """Returns the digest of a text file.

    A text in a bucket is read twice, for the digest and for the tokens, because the digest is at the start of a part.
    The store's version would save one reading. But then the same text in a different place would make different parts,
    and reading is much faster than tokenizing.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32]


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
        deduplicate: which copies to leave out. If set, there is one part per shard, see [`Part`].

    Returns:
        The parts, which are the same on every machine. Shard i of n has the parts i - 1, i - 1 + n, and so on. The
        number of parts depends on the sizes of the files, and on the number of shards if the files are few or small.

    Raises:
        InputError: there is no text, or there are fewer files than shards.
    """
    files = [] if text.dataset_name is not None else find_files(text.train_file)
    if not files and text.dataset_name is None:
        raise InputError("no text. Pass --train_file or --dataset_name.")
    names = tuple(name_files(files)) or (f"{DATASET}{text.dataset_name}",)
    if not files or deduplicate is not None:
        divides_files = not files and deduplicate is None and _can_divide_files(text, num_shards)
        every = range(num_shards)
        return [Part(n, num_shards, text, tuple(files), names, keeps, deduplicate, divides_files) for n in every]
    if len(files) < num_shards:
        raise InputError(f"--shard: more shards ({num_shards}) than text files ({len(files)}). Use fewer shards.")
    sizes = [measure_file(file) for file in files]
    part_bytes = max(sum(sizes) / MOST_PARTS, min(PART_BYTES, sum(sizes) / num_shards))
    # The middle of a file decides which part it belongs to.
    places = ((np.cumsum(sizes) - np.array(sizes) / 2) / max(part_bytes, 1)).astype(int)
    if len(set(places)) < num_shards:
        places = np.arange(len(files)) * num_shards // len(files)
    groups = [np.flatnonzero(places == place) for place in sorted(set(places))]
    return [
        Part(number, len(groups), text, tuple(files[at] for at in group), tuple(names[at] for at in group), keeps)
        for number, group in enumerate(groups)
    ]


def _can_divide_files(text: TextArguments, num_shards: int) -> bool:
    """Whether each shard of a dataset can read its own files. Otherwise, logs that each shard reads all of it."""
    if num_shards == 1:
        return False
    if (num_files := count_dataset_files(text)) >= num_shards:
        return True
    logger.warning(
        "--dataset_name: %s has %s, fewer than the %d shards. So each shard reads all rows, and keeps every nth row.",
        text.dataset_name,
        format_count(num_files, "file"),
        num_shards,
    )
    return False


# --- preparing parts --------------------------------------------------------------------------------------------


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
    interruption continues where the first call stopped.

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
        overwrite_output_dir: whether to replace a corpus with a different text, tokenizer or settings in `folder`.
        show_progress: whether to show a progress bar on a terminal, or occasional lines in a log file.

    Returns:
        The corpus, as [`open_corpus`] opens it.

    Raises:
        InputError: the language is not a code, or contradicts the tokenizer's; a file does not exist, cannot be read,
            or changes while it is read; the text is empty; all tokens are [UNK]; `folder` holds a corpus with a
            different text, tokenizer or settings; the disk is full; or a worker process was killed.
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
) -> RepeatedText | None:
    """Writes the parts of a corpus that are not in `folder` yet, or whose text has changed.

    Several processes may call this at the same time. One process writes each part, and other processes wait for it. If
    all parts are prepared, nothing is written, so `folder` may be read-only.

    Args:
        folder, tokenizer, show_progress: as in [`prepare_corpus`].
        parts: the parts of the whole corpus, or of one shard. If a part reads all of the text, it is the only part.
        language: code of the language whose rules split lines into sentences. None if each line is a sentence.
        documents: a description of the documents that the parts keep. It is one of the settings of the corpus.
        num_workers, replace: `preprocessing_num_workers` and `overwrite_output_dir` of [`prepare_corpus`].
        lines_language: the language of the text if each line is a sentence. None: unknown.
        store_words: as in [`prepare_corpus`].

    Returns:
        How much of the text is repeated. If other parts are missing, only the text that these parts read is counted.
        None if no text was read and the corpus has no report.

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
    if parts[0].divides_files:  # in earlier versions, each part had every nth document
        settings["division"] = "files"
    if store_words := store_words and needs_words(tokenizer):
        settings[WORDS] = True
    output = CorpusFolder(folder)
    try:
        output.fetch()
        if _is_complete(output, parts, settings):
            output.fetch_file(REPORT_NAME)
            report = read_report(output.folder)
        else:
            worker = DocumentTokenizer(tokenizer, language, store_words)
            report = _write_missing_parts(output, parts, settings, worker, num_workers, replace, show_progress)
        if documents == "all":
            _check_not_empty(output, parts)
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
            f"{error.filename or output}: {os.strerror(error.errno)}. Fix this and run the same command again. "
            "Partial output was kept."
        ) from error


def _is_complete(output: CorpusFolder, parts: Sequence[Part], settings: dict[str, Any]) -> bool:
    finished = output.measure_parts()
    for part in parts:
        file = output.folder / part.name
        known = _read_sources(file, settings)
        if part.name not in finished or not _have_same_text(known, part.describe_sources(_read_identities(file))):
            return False
    return not _find_foreign_parts(output.folder, parts, settings)


def _have_same_text(before: Sequence[Source], now: Sequence[Source]) -> bool:
    return [source["digest"] for source in before] == [source["digest"] for source in now]


def _read_sources(file: Path, settings: dict[str, Any]) -> list[Source]:
    """Returns the sources of a part. Empty if the part does not exist, is damaged, or has different settings."""
    try:
        origin = read_origin(file)
    except InputError:
        return []
    return origin["sources"] if origin["settings"] == settings else []


def _read_identities(file: Path) -> list[Source]:
    """Returns what `describe_sources` returned when a part was made. Empty if it is unknown.

    A file next to the part stores it, because identities differ from machine to machine and only save reading the text
    again.
    """
    try:
        recorded = json.loads(file.with_suffix(IDENTITIES).read_text(encoding="utf-8"))
        return [{name: str(source[name]) for name in ("name", "digest", "identity")} for source in recorded]  # type: ignore[misc]
    except (OSError, ValueError, TypeError, LookupError):
        return []


def _find_foreign_parts(folder: Path, parts: Sequence[Part], settings: dict[str, Any]) -> list[Path]:
    """Finds parts with a different text, division, tokenizer or settings."""
    return [file for file in sorted(folder.glob("part-*.arrow")) if _is_foreign(file, parts, settings)]


def _is_foreign(file: Path, parts: Sequence[Part], settings: dict[str, Any]) -> bool:
    known = _read_sources(file, settings)
    if not (known and _is_of_same_division(file, parts)):
        return True
    part = next((part for part in parts if part.name == file.name), None)
    return part is not None and not _is_of_same_files(part, known, file)


def _is_of_same_division(file: Path, parts: Sequence[Part]) -> bool:
    return file.stem.endswith(f"-of-{parts[0].num_parts:05d}")


def _is_of_same_files(part: Part, known: Sequence[Source], file: Path) -> bool:
    """Whether a part was made from the same files, even if their text has changed, or from copies of these files."""
    names = [source["name"] for source in known]
    if names == part.places:  # a dataset
        return True
    recorded = _read_identities(file)
    is_same_place = [source["name"] for source in recorded] == [*map(hash_json, part.places)]
    return names == list(part.names) and (is_same_place or _have_same_text(known, part.describe_sources(recorded)))


def _write_missing_parts(
    output: CorpusFolder,
    parts: Sequence[Part],
    settings: dict[str, Any],
    worker: DocumentTokenizer,
    num_workers: int | None,
    replace: bool,
    show_progress: bool,
) -> RepeatedText:
    folder = output.folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / ".lock"):
        is_complete = _is_complete(output, parts, settings)  # another process may have completed it
        output.fetch()  # other machines may have finished parts while this machine read its text
        foreign = _find_foreign_parts(folder, parts, settings)
        if foreign and not replace:
            raise InputError(
                f"--output_dir: {output}/{foreign[0].name} was prepared with a different text, tokenizer or settings. "
                "Choose another folder, or set --overwrite_output_dir to replace the corpus."
            )
        if not is_complete:
            output.remove_file(REPORT_NAME)
            _remove_foreign_parts(output, foreign, parts, settings)
    sizes = [part.size for part in parts]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    log, counter = ReadingLog(parts[0].text.on_bad_text), RepeatCounter(parts[0].deduplicate)
    uncounted: list[Part] = []
    with Progress("preparing", total, "bytes" if parts[0].files else "rows", show=show_progress) as progress:
        for part, size in zip(parts, sizes, strict=True):
            file = folder / part.name
            with lock_file(folder / f".{part.name}.lock"):  # other machines may work on other parts
                known = _read_sources(file, settings)
                sources = part.describe_sources(_read_identities(file))
                if known and _have_same_text(known, sources):
                    output.publish(part.name)
                    uncounted.append(part)
                    log.skip(size or 0)
                    progress.skip_to(log.position)
                    continue
                origin, documents = part.describe_origin(sources, settings), part.read_documents(log, counter)
                _write_part(
                    folder, part.name, documents, origin, worker, num_workers or joblib.cpu_count(), log, progress
                )
                if part.has_changed(sources):
                    file.unlink()
                    raise InputError(f"the text of {part.name} changed while it was read. Run the same command again.")
                if part.files:
                    write_atomically(file.with_suffix(IDENTITIES), json.dumps(sources))
                output.publish(part.name)
    if summary := log.summarize():
        print(summary, file=sys.stderr)
    return _count_repeated_text(output, parts, uncounted, log.on_bad_text, counter)


def _remove_foreign_parts(
    output: CorpusFolder, foreign: Sequence[Path], parts: Sequence[Part], settings: dict[str, Any]
) -> None:
    """Removes foreign parts that `parts` replace, and parts of another division.

    Other shards remove the foreign parts that they replace. So a shard never removes a part that another machine has
    just finished.
    """
    names = {part.name for part in parts}
    for file in foreign:
        if file.name in names or not _is_of_same_division(file, parts):
            output.fetch_part(file.name)
            if file.exists() and _is_foreign(file, parts, settings):
                output.remove_file(file.name)


def find_missing_parts(output: CorpusFolder, parts: Sequence[Part], prepared: Part) -> list[str]:
    """Returns the names of a corpus's parts that are not finished, or have different settings.

    Args:
        output: the folder of the corpus.
        parts: all parts of the corpus.
        prepared: a finished part.
    """
    output.fetch()
    finished, settings = output.measure_parts(), read_origin(output.folder / prepared.name)["settings"]
    is_prepared = [part.name in finished and _read_sources(output.folder / part.name, settings) for part in parts]
    return [part.name for part, is_there in zip(parts, is_prepared, strict=True) if not is_there]


def _count_repeated_text(
    output: CorpusFolder,
    parts: Sequence[Part],
    uncounted: Sequence[Part],
    on_bad_text: OnBadText | None,
    counter: RepeatCounter,
) -> RepeatedText:
    """Writes the report of the corpus, if these parts read all of its text.

    Args:
        output, parts: as in [`prepare_parts`].
        uncounted: the parts whose text was not read, because they were prepared before.
        on_bad_text: see [`ReadingLog`].
        counter: has counted the text of the other parts.
    """
    covers_everything = parts[0].reads_everything or len(parts) == parts[0].num_parts
    with lock_file(output.folder / ".lock"):  # one process counts the text of the parts that other processes wrote
        output.fetch_file(REPORT_NAME)
        report = read_report(output.folder)
        if report is None:
            for part in uncounted if covers_everything else ():
                for _ in part.read_documents(ReadingLog(on_bad_text), counter):
                    pass
            report = counter.summarize()
            if covers_everything:
                write_report(output.folder, report)
                output.publish_file(REPORT_NAME)
    return report


def _check_not_empty(output: CorpusFolder, parts: Sequence[Part]) -> None:
    """If all parts are prepared and none has a document, removes the parts and raises an [`InputError`]."""
    num_parts = parts[0].num_parts
    files = [output.folder / part_name(number, num_parts) for number in range(num_parts)]
    if not all(file.exists() for file in files):  # in a bucket, a part of another machine may be unknown here
        return
    sizes = output.measure_parts()
    if all(sizes.get(file.name, 0) == measure_header(file) + len(END_OF_STREAM) for file in files):
        for file in files:
            output.remove_file(file.name)
        places = parts[0].places
        more = f" and {format_count(len(places) - 1, 'more file')}" if len(places) > 1 else ""
        raise InputError(f"{places[0]}{more}: no documents.")


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
    """Groups documents that are tokenized together. The groups depend only on the text, not on `num_workers`."""
    batch, characters = [], 0
    for number, document in documents:
        batch.append((number, document))
        characters += sum(map(len, document))
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
