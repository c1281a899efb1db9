"""Outputs at URLs: written on this machine first, then uploaded.

~/.cache/huggingface/snugbert/outputs/0123456789abcdef0123456789abcdef/name

Files that mark a folder as complete are uploaded last, and so is the manifest of a checkpoint. When these files are
replaced, the old ones are removed first. After a failed upload, the local files are kept.

Files and folders whose names begin with "_" are not uploaded.
"""

import json
import logging
import os
import platform
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import iglob
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from snugbert.errors import InputError, format_count
from snugbert.files import (
    LOCK_NAME,
    MANIFEST_NAME,
    hash_json,
    lock_file,
    read_json,
    split_checkpoint,
    step_of,
    write_atomically,
)
from snugbert.storage.inputs import download_files, is_unfinished, serves_only_its_run, work_folder
from snugbert.storage.urls import (
    find_entry,
    hide_credentials,
    join,
    list_files,
    name_parts,
    read_bytes,
    remove,
    upload,
    write_bytes,
    write_new,
)

logger = logging.getLogger(__name__)

OUTPUTS = "outputs"
# Uploaded last, in this order.
MARKS = ("tokenizer_config.json", "tokenizer.json", "config.json", "results.json", MANIFEST_NAME)
OWNER = "_owner"  # on this machine: a random name of the local folder
WRITER = "_writer"  # in the store: the owner of the local folder of the last run
STORED = "_stored"  # on this machine: size and time of each file that was downloaded or uploaded

_outputs: dict[Path, "RemoteOutput"] = {}


class RemoteOutput:
    """A folder on this machine, whose files belong to the folder `url` in a store. The URL may contain credentials."""

    def __init__(self, folder: Path, url: str):
        self.folder, self.url = folder, url
        self.keeps_checkpoints = threading.Lock()  # while checkpoints are uploaded, a run may not remove any

    def __str__(self) -> str:
        return hide_credentials(self.url)

    def url_of(self, path: Path) -> str:
        """Returns the URL of a path in the folder."""
        return join(self.url, *path.relative_to(self.folder).parts)

    # --- one writer ---------------------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """A random name of the local folder. It is lost with the folder."""
        file = self.folder / OWNER
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(file, uuid.uuid4().hex)
        return file.read_text()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other machines from writing to the folder in the store, with an object that names the owner.

        A killed process leaves the object. Its own machine may then continue, but other machines only after the
        object is removed. The caller holds the lock of the local folder.
        """
        url = join(self.url, LOCK_NAME)
        process = f"process {os.getpid()} on {platform.node()}"
        stored = write_new(url, f"{self.owner} {process}".encode()).decode(errors="replace")
        owner, _, holder = stored.partition(" ")
        if owner != self.owner:
            raise InputError(
                f"--output_dir: {holder} is running in {self}. Wait until that process ends, or choose another "
                f"folder. If that process was killed, remove {hide_credentials(url)}."
            )
        try:
            yield
        finally:
            try:
                remove(url)
            except InputError as error:  # it must not hide the error that ended the run
                logger.warning("%s stays locked for other machines. %s", self, error)

    def claim(self) -> None:
        """Stores the local folder as the last writer. A run calls this when all checks of its start have passed.

        From then on, the local folder may be newer than the store.
        """
        write_bytes(join(self.url, WRITER), self.owner.encode())

    # --- copies -------------------------------------------------------------------------------------------------

    def download(self) -> bool:
        """Replaces the local folder by the store's, unless the local one may be newer. Returns whether it did.

        Only the manifest of a checkpoint is downloaded.
        """
        with suppress(FileNotFoundError):
            if read_bytes(join(self.url, WRITER)).decode() == self.owner:
                return False
        entries = {
            name: entry
            for name, entry in list_files(self.url).items()
            if _is_uploaded(name) or split_checkpoint(name)[1] == MANIFEST_NAME
        }
        self._remove_files()
        download_files(self.url, entries, self.folder)
        write_atomically(self.folder / STORED, json.dumps(self._list_files()))
        return True

    def upload_run(self) -> None:
        """Uploads everything that a run wrote. Removes its last checkpoint when the final model is there."""
        self.claim()
        self.upload()
        self.upload_checkpoints()

    def upload_checkpoints(self) -> None:
        """Makes the checkpoints in the store match the local checkpoints. Uploads the newest first.

        Old checkpoints are removed last, so that the store always has a complete checkpoint.
        """
        with self.keeps_checkpoints:
            # Unlike `rglob`, ignores folders that are removed meanwhile.
            manifests = iglob(f"**/checkpoint-*/{MANIFEST_NAME}", root_dir=self.folder, recursive=True)
            local = {split_checkpoint(name)[0] for name in manifests if not is_unfinished(name)}
            local.discard("")  # a folder of the user, such as `checkpoint-best`
            for name in sorted(local, key=step_of, reverse=True):
                self._upload_checkpoint(name)
            stored = [name for name in list_files(self.url) if split_checkpoint(name)[0]]
            self._replace(name for name in stored if not (self.folder / split_checkpoint(name)[0]).is_dir())

    def _upload_checkpoint(self, checkpoint: str) -> None:
        """Uploads a checkpoint, unless the store has it."""
        folder = self.folder / checkpoint
        manifest = folder / MANIFEST_NAME
        with suppress(FileNotFoundError):
            if read_bytes(self.url_of(manifest)) == manifest.read_bytes():
                return
        files = [path.relative_to(self.folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        self._replace([f"{checkpoint}/{name}" for name in list_files(self.url_of(folder))], files)

    def upload(self) -> None:
        """Uploads new and changed files, after removing deleted and changed files from the store. Skips checkpoints.

        Files that were neither downloaded nor uploaded from here stay in the store.
        """
        now: dict[str, Any] = self._list_files()
        before = read_json(self.folder / STORED) if (self.folder / STORED).exists() else {}
        changed = [name for name in now if now[name] != before.get(name)]
        old = {*changed, *before.keys() - now.keys()}
        self._replace(old & list_files(self.url).keys(), changed)
        write_atomically(self.folder / STORED, json.dumps(now))
        if changed:
            print(f"uploaded {format_count(len(changed), 'file')} to {self}", file=sys.stderr)

    def _replace(self, old: Iterable[str], new: Iterable[str] = ()) -> None:
        """Removes old files from the store, and uploads new files. `MARKS` are removed first and uploaded last."""
        for name in sorted(old, key=_rank, reverse=True):
            remove(join(self.url, name))
        for name in sorted(new, key=_rank):
            upload(self.folder / name, join(self.url, name))

    def _list_files(self) -> dict[str, list[int]]:
        """Returns size and time of each file that is uploaded, except for checkpoints."""
        files = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        stats = {name: file.stat() for name, file in files.items() if _is_uploaded(name)}
        return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}

    def clear(self) -> None:
        """Removes the local files. The file that marks them as newer than the store is removed first."""
        (self.folder / OWNER).unlink(missing_ok=True)
        with suppress(OSError):
            self._remove_files()

    def move_away(self) -> Path:
        """Moves the local files to a new folder, which no later command replaces."""
        folder = Path(mkdtemp(prefix=f"{self.folder.name}-", dir=self.folder.parent))
        for path in self.folder.iterdir():
            if not is_unfinished(path.name):
                path.rename(folder / path.name)
        return folder

    def _remove_files(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in (LOCK_NAME, OWNER):  # this process still holds the lock
                path.unlink()


def _is_uploaded(name: str) -> bool:
    """Whether a file belongs to an output. Tables in `epochs` do not, because a run can rebuild them."""
    return not serves_only_its_run(name) and "epochs" not in name.split("/")[:-1]


def _rank(name: str) -> tuple[int, str]:
    """Returns the place of a file in the order of uploads."""
    last = name.rpartition("/")[2]
    return (MARKS.index(last) if last in MARKS else -1, name)


def download_checkpoint(checkpoint: Path) -> None:
    """Downloads the files of a checkpoint that are missing on this machine. Without a store, changes nothing.

    The content is not checked, see [`check_checkpoint`].
    """
    output, manifest = find_output(checkpoint), checkpoint / MANIFEST_NAME
    if output is None:
        return
    entries = list_files(output.url_of(checkpoint))
    if MANIFEST_NAME not in entries:
        return
    # The local copy may be newer.
    if not manifest.exists() or manifest.read_bytes() == read_bytes(output.url_of(manifest)):
        missing = {name: entry for name, entry in entries.items() if not (checkpoint / name).exists()}
        download_files(output.url_of(checkpoint), missing, checkpoint)


def choose_output(url: str) -> Path:
    """Returns the local folder for an output folder in a store."""
    url = url.rstrip("/")
    folder = work_folder() / OUTPUTS / hash_json(hide_credentials(url)) / name_parts(url)[-1]
    _outputs[folder] = RemoteOutput(folder, url)
    return folder


def find_output(path: str | Path | None) -> RemoteOutput | None:
    """Returns the output that a local path belongs to. None if the path belongs to no store."""
    path = Path(path or "")
    return next((_outputs[each] for each in (path, *path.parents) if each in _outputs), None)


def write_output(output: RemoteOutput, run: Callable[[], object]) -> None:
    """Runs a command that writes a local folder, and uploads the folder."""
    with lock_file(output.folder / LOCK_NAME, seconds=0):
        with output.lock():
            if not output.download():
                raise InputError(
                    f"{output}: a run on this machine is not uploaded yet. Resume the run first, or choose another "
                    "folder."
                )
            run()
            try:
                output.upload()
            except InputError as error:
                kept = output.move_away()
                raise InputError(f"{error} Or copy the folder {kept}, the whole output, to {output}.") from error
        output.clear()


def is_stored(file: Path) -> bool:
    """Whether a local output file also exists in the store that it belongs to."""
    output = find_output(file)
    return output is not None and find_entry(output.url_of(file)) is not None


def publish_file(unfinished: Path, file: Path) -> None:
    """Moves a complete file to its final name, on this machine or in the store that it belongs to."""
    output = find_output(file)
    if output is None:
        unfinished.replace(file)
    else:
        upload(unfinished, output.url_of(file))
        unfinished.unlink()
