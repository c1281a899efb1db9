"""Inputs that URLs name, copied to this machine, and messages that show the URLs instead of the copies.

Inputs that are read as a stream or in blocks, such as text and corpora, are not copied. Other inputs are copied once:

~/.cache/huggingface/snugbert/staged/0123456789abcdef0123456789abcdef/folder/name

The digest is a hash of the URL and of the versions in the store. So a changed file gets a new folder, and an
unchanged file is not copied again, even if other files of its folder changed.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HOME

from snugbert.errors import InputError
from snugbert.files import hash_json, lock_file, split_checkpoint
from snugbert.progress import format_bytes
from snugbert.storage.requests import ask_together, hide_credentials
from snugbert.storage.urls import Entry, download, find_entries, find_entry, join, list_files

STAGED = "staged"  # folder of the copies
LOCK = "lock"  # of a copy while it is made
LARGE = 100e6  # bytes. Copying more is announced

_shown: dict[str, str] = {}  # local path -> URL without credentials


def work_folder() -> Path:
    """Returns the folder for copies: `snugbert` in `HF_HOME`."""
    return Path(HF_HOME) / "snugbert"


def name_parts(url: str) -> list[str]:
    """Returns the names in a URL, without protocol and credentials: "s3://bucket/a/b.csv" -> bucket, a, b.csv."""
    path = hide_credentials(url).split("::")[-1].split("://")[-1]
    return [part for part in path.split("/") if part not in ("", ".", "..")]


# --- copying ----------------------------------------------------------------------------------------------------


def stage(url: str, flag: str) -> list[Path]:
    """Copies the target of a URL to this machine: a file, a folder, or the files that match a glob pattern.

    Processes of one machine share the copies.

    Args:
        url: can also be the prefix of a TensorFlow checkpoint's files.
        flag: for messages, such as `--train_file`.

    Returns:
        The local files, with their names, or the local folder.

    Raises:
        InputError: the URL does not exist, or changed while it was copied, or the store cannot be read.
    """
    if entries := find_entries(url):
        files = _stage_files(url, entries)
        _check_unchanged(url, entries, find_entries(url))
        return files
    if names := list_files(url):
        return [_stage_folder(url, names)]
    if find_entry(f"{url}.index") is not None:
        folder, _, name = url.rpartition("/")
        return [stage(folder, flag)[0] / name]
    raise InputError(f"{flag}: {hide_credentials(url)} does not exist.")


def _stage_files(url: str, entries: Mapping[str, Entry]) -> list[Path]:
    """Copies the files with the given URLs, several at a time. `url` names them all."""
    size = sum(entry.size for each, entry in entries.items() if not _find_copy(each, entry).exists())
    announce_copy(url, size)
    return ask_together(lambda each: _stage_file(each, entries[each]), entries)


def announce_copy(url: str, size: int) -> None:
    """Prints a line on standard error if copying `size` bytes takes long."""
    if size > LARGE:
        print(f"copying {hide_credentials(url)} ({format_bytes(size)})", file=sys.stderr)


def _stage_file(url: str, entry: Entry) -> Path:
    file = _find_copy(url, entry)
    with lock_file(_find_place(url, entry) / LOCK):
        if not file.exists():
            download(url, file)
    show_as(file, url)
    return file


def _stage_folder(url: str, entries: Mapping[str, Entry]) -> Path:
    entries = {name: entry for name, entry in entries.items() if not serves_only_its_run(name)}
    check_names(entries, url)
    folder = _find_copy(url, entries)
    with lock_file(_find_place(url, entries) / LOCK):
        if not folder.exists():
            files = {join(url, name): entry for name, entry in entries.items()}
            copies = _stage_files(url, files)
            _check_unchanged(url, files, {join(url, name): entry for name, entry in list_files(url).items()})
            unfinished = folder.with_name(f"_{folder.name}")
            shutil.rmtree(unfinished, ignore_errors=True)
            for name, copy in zip(entries, copies, strict=True):
                link_file(copy, unfinished / name)
            unfinished.rename(folder)
    show_as(folder, url)
    return folder


def _find_place(url: str, version: object) -> Path:
    """Returns the folder of a copy and its lock."""
    return work_folder() / STAGED / hash_json([url, version])


def _find_copy(url: str, version: object) -> Path:
    """Returns the path of a copy. The path includes the folder's name, which results show for `sst2/train.csv`."""
    return _find_place(url, version) / Path(*name_parts(url)[-2:])


def _check_unchanged(url: str, before: Mapping[str, Entry], now: Mapping[str, Entry]) -> None:
    """Checks that all copies are of one version. Removes the copies of files that changed.

    Raises:
        InputError: a file changed.
    """
    changed = [each for each in before if now.get(each) != before[each]]
    for each in changed:
        shutil.rmtree(_find_place(each, before[each]), ignore_errors=True)
    if changed:
        raise InputError(f"{hide_credentials(url)} changed while it was copied. Run the same command again.")


def check_names(names: Iterable[str], url: str) -> None:
    """Checks that files of a folder in a store are also below a local folder. Keys of objects can contain `..`.

    Raises:
        InputError: a file would be outside the local folder.
    """
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise InputError(f"{hide_credentials(url)}: the name {name!r} points outside the folder.")


def serves_only_its_run(name: str) -> bool:
    """Whether a file only serves to resume a run, or is unfinished. Loading a model does not need it."""
    return split_checkpoint(name)[0] != "" or any(part.startswith("_") for part in name.split("/"))


def is_staged(path: Path) -> bool:
    """Whether a local path is a copy of something in a store."""
    return path.is_relative_to(work_folder() / STAGED)


def link_file(file: Path, link: Path) -> None:
    """Gives a file another name, without a copy if the file system can. Creates the folder."""
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, link)
    except OSError:  # a file system without hard links
        shutil.copy2(file, link)


# --- messages ---------------------------------------------------------------------------------------------------


def show_as(path: Path, url: str) -> None:
    """Lets messages show a URL instead of a local path, and of the paths below it."""
    for each in (path, path.resolve()):
        _shown[str(each)] = hide_credentials(url)


def show_urls(text: str) -> str:
    """Replaces the local copies in a text by their URLs."""
    for path in sorted(_shown, key=len, reverse=True):
        text = text.replace(path, _shown[path])
    return text


class _Stream:
    """Standard output or error that shows URLs."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._stream.write(show_urls(text))


@contextmanager
def showing_urls() -> Iterator[None]:
    """Shows URLs instead of local copies, if there are any, in the output and the log lines of the block."""
    before = sys.stdout, sys.stderr
    if _shown:
        sys.stdout, sys.stderr = (stream and _Stream(stream) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
