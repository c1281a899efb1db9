"""Outputs that URLs name: written on this machine first, then uploaded file by file.

~/.cache/huggingface/snugbert/outputs/0123456789abcdef0123456789abcdef/name

Files that mark a folder as complete are uploaded last. If these files are replaced, the old files are removed first.
After a failed upload, the local files stay, and the same command uploads them. After an upload, the local files are
removed.

Files and folders whose names begin with "_" are not uploaded. Checkpoints of runs have their own rules, see
`trainers/run/checkpoint_copies.py`.
"""

import json
import logging
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from snugbert.errors import InputError, format_count
from snugbert.files import (
    LOCK_NAME,
    MANIFEST_NAME,
    LockTaken,
    hash_json,
    lock_file,
    read_json,
    split_checkpoint,
    write_atomically,
)
from snugbert.progress import format_bytes
from snugbert.storage.inputs import announce_copy, check_names, serves_only_its_run, work_folder
from snugbert.storage.urls import (
    download,
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
MARKS = ("tokenizer_config.json", "tokenizer.json", "config.json", "results.json")
MOST_BYTES, MOST_FILES = 50e9, 10_000  # of an output folder: more is something else, such as a corpus
OWNER = "_owner"  # on this machine: a random name of the local folder
WRITER = "_writer"  # in the store: the owner of the local folder that a run wrote from last
STORED = "_stored"  # on this machine: the versions of the files that are in the store
PENDING = "_pending"  # the command whose output is complete, but not uploaded

_outputs: dict[Path, "RemoteOutput"] = {}


class RemoteOutput:
    """A folder on this machine, whose files belong to the folder `url` in a store. The URL may contain credentials."""

    def __init__(self, folder: Path, url: str):
        self.folder, self.url = folder, url

    def __str__(self) -> str:
        return hide_credentials(self.url)

    def url_of(self, path: Path) -> str:
        """Returns the URL of a path in the folder."""
        return join(self.url, *path.relative_to(self.folder).parts)

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
        """Keeps other machines from writing the folder in the store, by an object that names the owner.

        A killed process leaves the object. Its machine may continue, and other machines only after the object is
        removed. The caller holds the lock of the local folder.
        """
        url = join(self.url, LOCK_NAME)
        process = f"process {os.getpid()} on {platform.node()}"
        if not write_new(url, f"{self.owner} {process}".encode()):
            owner, _, holder = read_bytes(url).decode(errors="replace").partition(" ")
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

    def was_last_writer(self) -> bool:
        """Whether the last run that wrote to the store used this local folder. The folder may then be newer."""
        try:
            return read_bytes(join(self.url, WRITER)).decode() == self.owner
        except FileNotFoundError:
            return False

    def claim(self) -> None:
        """Stores the local folder as the last writer. A run calls this when all checks of its start have passed."""
        write_bytes(join(self.url, WRITER), self.owner.encode())

    def download(self) -> None:
        """Makes the local folder like the folder in the store.

        Only the manifest of a checkpoint is downloaded. Checkpoints whose upload is incomplete are left out.
        """
        stored = list_files(self.url)
        check_names(stored, self.url)
        files = {name: entry for name, entry in stored.items() if not _is_skipped(name)}
        size = sum(entry.size for entry in files.values())
        if len(files) > MOST_FILES or size > MOST_BYTES:
            raise InputError(
                f"--output_dir: {self} contains {format_count(len(files), 'other file')} ({format_bytes(size)}). "
                "Choose another folder for the output."
            )
        manifests = [name for name in stored if split_checkpoint(name)[1] == MANIFEST_NAME]
        announce_copy(self.url, files)
        self._remove_files()
        # In the order of the steps, because old checkpoints are removed by age.
        for name in [*files, *sorted(manifests, key=lambda name: int(name.split("-")[-1].split("/")[0]))]:
            download(join(self.url, name), self.folder / name)
        self._store(self._list_versions())

    def upload(self) -> None:
        """Uploads new and changed files, and removes files that were deleted locally. Skips checkpoints and unfinished
        files. After an error, the next call uploads the rest.
        """
        before, now = self._read_stored(), self._list_versions()
        changed = sorted((name for name in now if now[name] != before.get(name)), key=_rank)
        for name in [*(before.keys() - now.keys()), *(name for name in changed if _rank(name)[0] >= 0)]:
            remove(join(self.url, name))
            before.pop(name, None)
            self._store(before)
        for name in changed:
            upload(self.folder / name, join(self.url, name))
            before[name] = now[name]
            self._store(before)
        if changed:
            print(f"uploaded {format_count(len(changed), 'file')} to {self}", file=sys.stderr)

    def _read_stored(self) -> dict[str, tuple[int, int]]:
        file = self.folder / STORED
        return {name: tuple(version) for name, version in read_json(file).items()} if file.exists() else {}

    def _store(self, versions: dict[str, tuple[int, int]]) -> None:
        write_atomically(self.folder / STORED, json.dumps(versions))

    def clear(self) -> None:
        """Removes the local files. First removes the file that marks the folder as newer than the store."""
        (self.folder / OWNER).unlink(missing_ok=True)
        self._remove_files()

    def _remove_files(self) -> None:
        (self.folder / PENDING).unlink(missing_ok=True)  # first: it marks the other files as complete
        for path in self.folder.glob("*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in (LOCK_NAME, OWNER):
                path.unlink(missing_ok=True)

    def _list_versions(self) -> dict[str, tuple[int, int]]:
        """Returns size and time of each file that is uploaded."""
        files = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        stats = {name: file.stat() for name, file in files.items() if not _is_skipped(name)}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _is_skipped(name: str) -> bool:
    """Whether [`RemoteOutput.upload`] skips a file, such as a table in `epochs`, which a run can rebuild."""
    return serves_only_its_run(name) or "epochs" in name.split("/")[:-1]


def _rank(name: str) -> tuple[int, str]:
    """Returns the place of a file in the order of uploads. It begins with -1 if the file is not in `MARKS`."""
    last = name.rpartition("/")[2]
    return (MARKS.index(last) if last in MARKS else -1, name)


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


def write_output(output: RemoteOutput, command: object, run: Callable[[], object]) -> None:
    """Runs a command that writes a local folder, and uploads the folder.

    `command` holds the arguments and the versions of the inputs. If their output is complete and was not uploaded, the
    command does not run again.
    """
    pending, key = output.folder / PENDING, hash_json(repr(command))
    try:
        with lock_file(output.folder / LOCK_NAME, seconds=0):
            with output.lock():
                if pending.exists() and pending.read_text() == key:
                    logger.warning("%s: uploading the output of the earlier run.", output)
                elif output.was_last_writer():
                    raise InputError(
                        f"{output}: a run on this machine is not uploaded yet. Resume the run first, or choose "
                        "another folder."
                    )
                else:
                    output.download()
                    run()
                    write_atomically(pending, key)
                output.upload()
            output.clear()
        shutil.rmtree(output.folder.parent, ignore_errors=True)
    except LockTaken as holder:
        raise InputError(f"{output}: {holder} is writing this output. Wait until that process ends.") from holder


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
