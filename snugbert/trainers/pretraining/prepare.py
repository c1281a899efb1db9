"""`snugbert prepare`: text -> a prepared corpus, once, on one machine or shared among several.

`snugbert pretrain` prepares its text by itself, in a cache. This command is for a corpus that is prepared on other
machines than those that train, or that takes one machine alone too long:

    snugbert prepare --tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --output_dir prepared --shard 1/4
    snugbert pretrain --corpus prepared ...

It also lists and cleans the cache:

    snugbert prepare --list
    snugbert prepare --clean all
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub.constants import HF_HOME
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from snugbert.command_line import parse_arguments
from snugbert.errors import InputError
from snugbert.models import TokenizerArguments, load_tokenizer
from snugbert.trainers.documents import TextArguments
from snugbert.trainers.pretraining.corpus import (
    Corpus,
    every,
    hash_json,
    hash_tokenizer,
    open_corpus,
    plan_parts,
    prepare_corpus,
    read_origin,
)

CACHED = re.compile(r"[0-9a-f]{32}")  # name of a folder in the cache
PART = re.compile(r"part-\d{5}-of-(\d{5})\.arrow(\.partial)?")
LOCK = re.compile(r"\.lock|\.part-\d{5}-of-\d{5}\.arrow\.lock")
Names = list[str]  # `list` is a field of CacheArguments


@dataclass(kw_only=True)
class PreparationArguments(TextArguments):
    """Which text, and how it is cut into sentences."""

    lines_are_sentences: bool = field(
        default=False, metadata={"help": "Each line is one sentence; otherwise lines are split into sentences."}
    )
    language: str = field(default="en", metadata={"help": "Language code, for splitting into sentences."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize; default: one for each core."}
    )

    def __post_init__(self):
        super().__post_init__()
        if self.preprocessing_num_workers is not None and self.preprocessing_num_workers < 1:
            raise InputError(f"--preprocessing_num_workers {self.preprocessing_num_workers} must be at least 1.")


@dataclass(kw_only=True)
class OutputArguments:
    """Where the corpus goes, and which share of the work is this machine's."""

    output_dir: str | None = field(default=None, metadata={"help": "Folder for the prepared corpus."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace what was prepared there from another text or with other settings."}
    )
    shard: str = field(
        default="1/1", metadata={"help": "Prepare share i of n, as i/n; the machines may share the folder or not."}
    )

    def __post_init__(self):
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"--shard {self.shard!r} must be i/n with i from 1 to n, such as 1/4.")
        self.shard_number, self.shards = int(match[1]), int(match[2])


@dataclass(kw_only=True)
class CacheArguments:
    """Arguments that list or clean the cache instead of preparing text."""

    clean: Names = field(
        default_factory=list,
        metadata={"help": "Remove prepared text from the cache: names that --list prints, or all; then stop."},
    )
    list: bool = field(
        default=False, metadata={"help": "List the prepared text in the cache (--cache_dir names another); then stop."}
    )


def main(argv: list[str]) -> None:
    """Runs `snugbert prepare` with the arguments `argv`.

    Raises:
        InputError: what the user gave cannot be used, see [`plan_parts`], [`prepare_corpus`] and [`clean_cache`].
    """
    tokenizer_args, text_args, output_args, cache_args = parse_arguments(
        (TokenizerArguments, PreparationArguments, OutputArguments, CacheArguments),
        argv,
        prog="snugbert prepare",
        description="Tokenizes a corpus once, to pretrain on it many times.",
    )
    if cache_args.clean or cache_args.list:
        if text_args.train_file or text_args.dataset_name or output_args.output_dir:
            raise InputError("--clean and --list prepare no text. Give them without text and --output_dir.")
        if cache_args.clean:
            clean_cache(cache_folder(tokenizer_args.cache_dir), cache_args.clean)
        if cache_args.list:
            list_cache(cache_folder(tokenizer_args.cache_dir))
        return
    if output_args.output_dir is None:
        raise InputError("--output_dir is missing. Name a folder for the prepared corpus.")
    if tokenizer_args.tokenizer_name is None:
        raise InputError("which tokenizer? Give --tokenizer_name.")
    tokenizer = load_tokenizer(tokenizer_args)
    parts = plan_parts(text_args, output_args.shards)
    folder = Path(output_args.output_dir)
    prepare_corpus(
        folder,
        parts[output_args.shard_number - 1 :: output_args.shards],
        tokenizer,
        None if text_args.lines_are_sentences else text_args.language,
        num_workers=text_args.preprocessing_num_workers,
        replace=output_args.overwrite_output_dir,
    )
    missing = [part.name for part in parts if not (folder / part.name).exists()]
    if missing:
        print(
            f"Shard {output_args.shard} is in {folder}. {len(missing)} of {len(parts)} parts are not there yet: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )
    else:
        print(f"{folder}: {open_corpus(folder, tokenizer)}")
        print(
            f"Next: snugbert pretrain --tokenizer_name {shlex.quote(tokenizer_args.tokenizer_name)} "
            f"--corpus {shlex.quote(str(folder))} --config_name mini --output_dir pretrained"
        )


# --- the cache --------------------------------------------------------------------------------------------------


def cache_folder(cache_dir: str | None) -> Path:
    """The folder of prepared text in `cache_dir`, or in `HF_HOME`."""
    return Path(cache_dir or HF_HOME) / "snugbert"


def prepare_in_cache(
    text: TextArguments,
    tokenizer: PreTrainedTokenizerBase,
    language: str | None,
    cache_dir: str | None,
    num_workers: int | None = None,
    keeps: Callable[[int], bool] = every,
    documents: str = "all",
    show_progress: bool = True,
) -> tuple[Path, Corpus]:
    """The prepared corpus of a text, from the cache if it is there and the text has not changed.

    Args:
        text: files or a dataset.
        tokenizer, language, num_workers, documents, show_progress: as in [`prepare_corpus`].
        cache_dir: the folder of the cache; default: `HF_HOME`.
        keeps: as in [`plan_parts`].

    Returns:
        The folder, `snugbert/<digest of names and settings>` in the cache, and what it holds.

    Raises:
        InputError: as in [`plan_parts`] and [`prepare_corpus`].
    """
    parts = plan_parts(text, keeps=keeps)
    dataset = [text.dataset_name, text.dataset_config_name, text.dataset_split]
    names = [str(file.resolve()) for part in parts for file in part.files]
    key = hash_json([dataset, names, text.text_column_name, hash_tokenizer(tokenizer), language, documents])
    folder = cache_folder(cache_dir) / key
    prepare_corpus(folder, parts, tokenizer, language, documents, num_workers, True, show_progress)
    os.utime(folder)  # `list_cache` prints when it was last used
    return folder, open_corpus(folder, tokenizer)


def list_cache(cache: Path) -> None:
    """Prints a table of the prepared text in the folder `cache`, the last used last."""
    rows = [("name", "size", "last used", "state", "text", "settings")]
    total = 0
    for folder in _cached(cache):
        size = sum(file.stat().st_size for file in os.scandir(folder) if PART.fullmatch(file.name))
        total += size
        used = datetime.fromtimestamp(folder.stat().st_mtime)
        rows.append((folder.name, _bytes(size), f"{used:%Y-%m-%d %H:%M}", *_describe(folder)))
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(map(str.ljust, row, widths)).rstrip())
    print(f"total: {len(rows) - 1}, {_bytes(total)}, in {cache}")


def clean_cache(cache: Path, names: Names) -> None:
    """Removes prepared text from the folder `cache`, and prints what was removed.

    Args:
        cache: the folder.
        names: of the folders to remove, or `["all"]`.

    Raises:
        InputError: a name is unknown, which removes nothing. Or a folder was kept, because a process is preparing it
            or because it holds anything that we do not write. The others are removed.
    """
    cached = {folder.name: folder for folder in _cached(cache)}
    if names == ["all"]:
        names = list(cached)
    if unknown := [name for name in names if name not in cached]:
        raise InputError(f"--clean: no prepared text named {unknown[0]} in {cache}. Run snugbert prepare --list.")
    freed, kept = 0, []
    for name in dict.fromkeys(names):
        try:
            size = _remove(cached[name])
        except InputError as error:
            kept.append(f"{name} ({error})")
        else:
            freed += size
            print(f"removed {name}, {_bytes(size)}")
    print(f"{_bytes(freed)} freed in {cache}")
    if kept:
        raise InputError(f"--clean: kept {', '.join(kept)}. Remove it by hand, or wait for the other process.")


def _cached(cache: Path) -> Iterator[Path]:
    """The folders of prepared text, the last used last. No symlink is followed, so nothing elsewhere is removed."""
    if cache.is_dir():
        folders = [entry for entry in os.scandir(cache) if entry.is_dir(follow_symlinks=False)]
        for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime):
            if CACHED.fullmatch(folder.name):
                yield Path(folder)


def _describe(folder: Path) -> tuple[str, str, str]:
    """State, text and settings of prepared text."""
    parts = [match for file in sorted(folder.iterdir()) if (match := PART.fullmatch(file.name))]
    whole = [part for part in parts if not part[2]]
    state = "whole" if whole and len(whole) == int(whole[0][1]) else "unfinished"
    sources: list[str] = []
    settings = ""
    for part in parts:
        try:
            origin = read_origin(folder / part[0])
        except InputError:
            state = state if part[2] else "damaged"  # a part that was just begun is not
        else:
            sources += [Path(source["name"]).name for source in origin["sources"]]
            used = origin["settings"]
            settings = f"{used.get('language') or 'lines'}, {used.get('documents')}, tokenizer {used['tokenizer'][:8]}"
    text = ", ".join(sources[:2]) + (f" and {len(sources) - 2} more" if len(sources) > 2 else "")
    return state, _printable(text), _printable(settings)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _remove(folder: Path) -> int:
    """Removes prepared text and returns its size in bytes."""
    files = list(os.scandir(folder))
    for file in files:
        if not (PART.fullmatch(file.name) or LOCK.fullmatch(file.name)) or not file.is_file(follow_symlinks=False):
            raise InputError(f"contains {file.name}, which SnugBERT did not write")
    size = sum(file.stat().st_size for file in files)
    with ExitStack() as locks:
        try:
            for file in files:
                if LOCK.fullmatch(file.name):
                    locks.enter_context(FileLock(file.path, timeout=0))
        except Timeout as error:
            raise InputError("a process is preparing it") from error
        for file in files:
            os.unlink(file.path)
    folder.rmdir()
    return size


def _bytes(size: int) -> str:
    return tqdm.format_sizeof(size, "B") if size >= 1000 else f"{size}B"
