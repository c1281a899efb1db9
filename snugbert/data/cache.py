"""The cache of prepared text: one folder per text, tokenizer and settings, and commands that list and clean it.

The folder `teachers` contains the logits of teachers, see `trainers/finetuning/teacher.py`. Three folders are for
files in stores. `staged` contains copies of inputs, see `staging.py`. `outputs` contains outputs that are not uploaded
yet, see `remote_outputs.py`. `blocks` contains blocks of corpora, see `corpus_blocks.py`.

~/.cache/huggingface/snugbert/0123456789abcdef0123456789abcdef/part-00000-of-00001.arrow ...
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

from huggingface_hub.constants import HF_HOME
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus import Corpus, open_corpus
from snugbert.data.data_arguments import Deduplication, TextArguments
from snugbert.data.documents import locate_file
from snugbert.data.part_files import PART_NAME, WORDS, read_origin
from snugbert.data.preparation import keep_all, plan_parts, prepare_parts
from snugbert.data.tokenizing import hash_tokenizer, needs_words
from snugbert.errors import InputError
from snugbert.files import LOCK_NAME, LockTaken, hash_json, lock_file
from snugbert.progress import format_bytes
from snugbert.remote_outputs import OUTPUTS
from snugbert.staging import LOCK, STAGED

CACHED_FOLDER = re.compile(r"[0-9a-f]{32}")
LOGITS_FILE = re.compile(r"(_\d+_)?[0-9a-f]{32}\.safetensors")
TEACHERS = "teachers"  # the folder of teachers' logits, and its name for `--clean`
# Other folders that `--clean` accepts -> what they contain.
COPIES = {
    STAGED: "copies of files in stores",
    OUTPUTS: "outputs that may not be uploaded yet",
    "blocks": "copies of blocks of corpora",
}


def cache_folder(cache_dir: str | None) -> Path:
    """Returns the folder `snugbert` in `cache_dir`, by default in `HF_HOME`."""
    return Path(cache_dir or HF_HOME) / "snugbert"


def prepare_in_cache(
    text: TextArguments,
    tokenizer: PreTrainedTokenizerBase,
    language: str | None,
    cache_dir: str | None,
    num_workers: int | None = None,
    keeps: Callable[[int], bool] = keep_all,
    documents: str = "all",
    deduplicate: Deduplication | None = None,
    store_words: bool = False,
    show_progress: bool = True,
) -> tuple[Path, Corpus]:
    """Prepares a text in the cache, or reuses it from there if the text has not changed.

    Args:
        text: files or a dataset.
        tokenizer, language, num_workers, documents, show_progress: see [`prepare_parts`].
        cache_dir: the folder of the cache. Default: `HF_HOME`.
        keeps, deduplicate: see [`plan_parts`].
        store_words: see [`prepare_corpus`].

    Returns:
        The folder in the cache, and the corpus in it. The folder's name is a digest of the file names or dataset, the
        tokenizer and the settings.

    Raises:
        InputError: see [`plan_parts`] and [`prepare_parts`].
    """
    parts = plan_parts(text, keeps=keeps, deduplicate=deduplicate)
    dataset = [text.dataset_name, text.dataset_config_name, text.dataset_split]
    names = [locate_file(file) for part in parts for file in part.files]
    # Only values that differ from the default, so that texts from before these settings are found.
    changed: list[str] = [] if text.on_bad_text == "error" else [text.on_bad_text]
    changed += [] if deduplicate is None else [deduplicate]
    changed += ["words"] if store_words and needs_words(tokenizer) else []
    key = hash_json([dataset, names, text.text_column_name, hash_tokenizer(tokenizer), language, documents, *changed])
    folder = cache_folder(cache_dir) / key
    prepare_parts(
        folder, parts, tokenizer, language, documents, num_workers, True, show_progress, store_words=store_words
    )
    with suppress(OSError):  # the cache may be read-only
        os.utime(folder)  # `list_cache` prints when a folder was last used
    return folder, open_corpus(folder, tokenizer)


def list_cache(cache: Path) -> None:
    """Prints a table of the prepared text in the folder `cache`. The most recently used text comes last."""
    table = [("name", "size", "last used", "state", "text", "settings")]
    total = 0
    for folder in _cached_folders(cache):
        size = _measure(folder)
        total += size
        used = datetime.fromtimestamp(folder.stat().st_mtime)
        table.append((folder.name, format_bytes(size), f"{used:%Y-%m-%d %H:%M}", *_describe(folder)))
    if len(table) > 1:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            print("  ".join(map(str.ljust, line, widths)).rstrip())
    print(f"prepared texts: {len(table) - 1}, {format_bytes(total)}, in {cache}")
    if logits := _list_logits(cache):
        print(f"logits of teachers: {format_bytes(sum(file.stat().st_size for file in logits))} (--clean {TEACHERS})")
    for name, what in COPIES.items():
        if copies := _measure(cache / name):
            print(f"{what}: {format_bytes(copies)} (--clean {name})")


def clean_cache(cache: Path, names: Sequence[str]) -> None:
    """Removes prepared text from the folder `cache`, and prints what was removed.

    Args:
        cache: the folder.
        names: names of folders in it, `TEACHERS`, names in `COPIES`, or `["all"]`.

    Raises:
        InputError: a name is unknown, and nothing was removed. Or a process is using a folder, and only the other
            folders were removed.
    """
    cached = {folder.name: folder for folder in _cached_folders(cache)}
    logits, copies = _list_logits(cache), [name for name in COPIES if _measure(cache / name)]
    others = [*([TEACHERS] if logits else []), *copies]
    if list(names) == ["all"]:
        names = [*cached, *others]
    if unknown := [name for name in names if name not in (*cached, *others)]:
        raise InputError(f"--clean: no prepared text named {unknown[0]} in {cache}. Run `snugbert prepare --list`.")
    freed = 0
    kept: list[str] = []
    if TEACHERS in names:
        freed = sum(file.stat().st_size for file in logits)
        for file in logits:
            file.unlink()
        print(f"removed the logits of teachers, {format_bytes(freed)}")
    for name in (name for name in copies if name in names):
        sizes = {folder.relative_to(cache).as_posix(): _remove(folder) for folder in (cache / name).glob("*/")}
        kept += [folder for folder, size in sizes.items() if size is None]
        removed = sum(filter(None, sizes.values()))
        freed += removed
        print(f"removed the {COPIES[name]}, {format_bytes(removed)}")
    for name in dict.fromkeys(name for name in names if name not in others):
        size = _remove(cached[name])
        if size is None:
            kept.append(name)
        else:
            freed += size
            print(f"removed {name}, {format_bytes(size)}")
    print(f"{format_bytes(freed)} freed in {cache}")
    if kept:
        raise InputError(f"--clean: a running process uses {', '.join(kept)}. Try again later.")


def _remove(folder: Path) -> int | None:
    """Removes a folder, and returns its size. None: a process is using the folder, so it was not removed."""
    size = _measure(folder)
    try:
        with ExitStack() as locks:
            for file in sorted(folder.rglob("*lock")):
                if file.name in (LOCK, LOCK_NAME) or file.suffix == ".lock":
                    locks.enter_context(lock_file(file, seconds=0))
            shutil.rmtree(folder)
    except LockTaken:
        return None
    return size


def _list_logits(cache: Path) -> list[Path]:
    """Lists the files with the logits of teachers. A killed run may leave unfinished files."""
    return sorted(file for file in (cache / TEACHERS).glob("*.safetensors") if LOGITS_FILE.fullmatch(file.name))


def _cached_folders(cache: Path) -> Iterator[Path]:
    """Yields folders of prepared text, most recently used last. Skips symlinks, so nothing elsewhere is removed."""
    if cache.is_dir():
        folders = [entry for entry in os.scandir(cache) if entry.is_dir(follow_symlinks=False)]
        for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime):
            if CACHED_FOLDER.fullmatch(folder.name) and any(Path(folder).glob("part-*.arrow*")):
                yield Path(folder)


def _describe(folder: Path) -> tuple[str, str, str]:
    """Returns the state, the text and the settings of a folder of prepared text."""
    parts = [match for file in sorted(folder.iterdir()) if (match := PART_NAME.fullmatch(file.name))]
    finished = [part for part in parts if not part[2]]
    state = "complete" if finished and len(finished) == int(finished[0][1]) else "unfinished"
    sources: list[str] = []
    settings = ""
    for part in parts:
        try:
            origin = read_origin(folder / part[0])
        except InputError:
            state = state if part[2] else "damaged"  # an unfinished part may not hold its origin yet
        else:
            sources += [Path(source["name"]).name for source in origin["sources"]]
            used = origin["settings"]
            more = f", unique {used['deduplicate']}" if "deduplicate" in used else ""
            more += ", words" if WORDS in used else ""
            settings = f"{used.get('language') or 'lines'}, {used.get('documents')}{more}, "
            settings += f"tokenizer {used['tokenizer'][:8]}"
    text = ", ".join(sources[:2]) + (f" and {len(sources) - 2} more" if len(sources) > 2 else "")
    return state, text, settings


def _measure(folder: Path) -> int:
    """Returns the size of the files in a folder. A file with several hard links counts once."""
    stats = [file.stat() for file in folder.rglob("*") if file.is_file()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())
