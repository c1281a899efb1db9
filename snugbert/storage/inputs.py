"""Copies inputs from URLs to this machine.

Inputs that are read as a stream or in blocks, such as text and corpora, are not copied. Other inputs are copied once:

~/.cache/huggingface/snugbert/staged/0123456789abcdef0123456789abcdef/folder/name

The digest is a hash of the URL and of the versions in the store, so changed files get a new folder.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub.constants import HF_HOME

from snugbert.errors import InputError
from snugbert.files import hash_json, lock_file, split_checkpoint
from snugbert.progress import format_bytes
from snugbert.storage.urls import (
    Entry,
    ask_together,
    download,
    find_entries,
    hide_credentials,
    join,
    list_files,
    name_parts,
)

STAGED = "staged"  # folder of the copies
LOCK = "lock"  # file that is locked while a copy is made
LARGE = 100e6  # bytes. Larger copies are announced


def work_folder(cache_dir: str | None = None) -> Path:
    """Returns the folder `snugbert` in `cache_dir`, by default in `HF_HOME`."""
    return Path(cache_dir or HF_HOME) / "snugbert"


def stage(url: str, flag: str) -> list[Path]:
    """Copies the target of a URL to this machine: a file, a folder, or the files that match a glob pattern.

    Processes of one machine share the copies.
    """
    if files := find_entries(url):
        return [_copy(each, {"": entry}) for each, entry in files.items()]
    if names := {name: entry for name, entry in list_files(url).items() if not serves_only_its_run(name)}:
        return [_copy(url, names)]
    raise InputError(f"{flag}: {hide_credentials(url)} does not exist.")


def _copy(url: str, entries: Mapping[str, Entry]) -> Path:
    """Copies the files `entries` of the folder `url`. If the only name is empty, copies the file `url`."""
    place = work_folder() / STAGED / hash_json([url, entries])
    copy = place / Path(*name_parts(url)[-2:])  # with the folder, because results show it: `sst2/train.csv`
    unfinished = place / "_unfinished" / copy.name
    with lock_file(place / LOCK):
        if not copy.exists():
            shutil.rmtree(unfinished.parent, ignore_errors=True)
            download_files(url, entries, unfinished)
            copy.parent.mkdir(parents=True, exist_ok=True)
            unfinished.rename(copy)
    return copy


def download_files(url: str, entries: Mapping[str, Entry], folder: Path) -> None:
    """Copies files from the folder `url`. An empty name means `url` itself. Prints a line if this takes long."""
    check_names(entries, url)
    size = sum(entry.size for entry in entries.values())
    if size > LARGE:
        print(f"copying {hide_credentials(url)} ({format_bytes(size)})", file=sys.stderr)
    urls = {name: join(url, name) if name else url for name in entries}
    ask_together(lambda name: download(urls[name], folder / name, entries[name]), entries)


def check_names(names: Iterable[str], url: str) -> None:
    """Checks that copies of a store's files stay in the local folder. Names of objects can contain `..`."""
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise InputError(f"{hide_credentials(url)}: the name {name!r} points outside the folder.")


def serves_only_its_run(name: str) -> bool:
    """Whether a file only serves to resume a run, or is unfinished. Loading a model does not need it."""
    return split_checkpoint(name)[0] != "" or is_unfinished(name)


def is_unfinished(name: str) -> bool:
    """Whether a file, or a folder that contains it, is unfinished."""
    return any(part.startswith("_") for part in name.split("/"))
