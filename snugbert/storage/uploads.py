"""Outputs that URLs name: written on this machine first, then uploaded file by file.

~/.cache/huggingface/snugbert/outputs/0123456789abcdef0123456789abcdef/name

Files that mark a folder as complete are uploaded last. If these files are replaced, the old files are removed first.
After a failed upload, the local files stay, and the same command uploads the rest. After an upload, the local files
are removed.

Files and folders whose names begin with "_" are not uploaded. Checkpoints of runs have their own rules, see
`trainers/run/checkpoint_copies.py`.
"""

import json
import logging
import shutil
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
    split_checkpoint,
    write_atomically,
)
from snugbert.progress import format_bytes
from snugbert.storage.inputs import announce_copy, check_names, name_parts, serves_only_its_run, show_as, work_folder
from snugbert.storage.owner import StoreLock
from snugbert.storage.requests import hide_credentials
from snugbert.storage.urls import download, find_entry, join, list_files, read_bytes, remove, upload, write_bytes

logger = logging.getLogger(__name__)

OUTPUTS = "outputs"
# Uploaded last, in this order.
MARKS = ("tokenizer_config.json", "tokenizer.json", "config.json", "results.json")
STORED = "_stored.json"  # the versions of local files that are in the store
MOST_BYTES, MOST_FILES = 50e9, 10_000  # in an output folder. A larger folder is probably data, and not an output
OWNER = "_owner"  # identifies the local folder
WRITER = "_writer"  # in the store: the owner of the local folder that a run wrote from last
PENDING = "_pending"  # the command whose output is complete, but not uploaded

_outputs: dict[Path, "RemoteOutput"] = {}


class RemoteOutput:
    """A folder on this machine, whose files belong to a folder in a store.

    Attributes:
        folder: on this machine.
        url: the folder in the store. It may contain credentials.
        lock: of the folder in the store, while this process holds it.
    """

    def __init__(self, folder: Path, url: str):
        self.folder, self.url = folder, url
        self.lock: StoreLock | None = None

    @property
    def loss(self) -> str:
        """Why this process may no longer write. Empty while it may."""
        return self.lock.loss if self.lock is not None else ""

    def check(self) -> None:
        """Checks that this process still holds the lock. Call it before changing the folder in the store.

        Raises:
            InputError: another run holds the lock, or the store does not answer.
        """
        if self.lock is not None:
            self.lock.check()

    def url_of(self, path: Path) -> str:
        """Returns the URL of a path in the folder."""
        names = path.relative_to(self.folder).parts
        return join(self.url, *names)

    @property
    def owner(self) -> str:
        """A random name of the local folder. It is lost with the folder."""
        file = self.folder / OWNER
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(file, uuid.uuid4().hex)
        return file.read_text()

    def was_last_writer(self) -> bool:
        """Whether the last run that wrote to the store used this local folder. The folder may then be newer."""
        try:
            return read_bytes(join(self.url, WRITER)).decode() == self.owner
        except FileNotFoundError:
            return False

    def claim(self) -> None:
        """Stores the local folder as the last writer. A run calls this when all checks of its start have passed.

        Raises:
            InputError: another run holds the lock, or the store does not answer.
        """
        self.check()
        write_bytes(join(self.url, WRITER), self.owner.encode())

    def download(self) -> None:
        """Makes the local folder like the folder in the store.

        Only the manifest of a checkpoint is downloaded. Checkpoints whose upload is incomplete are left out.

        Raises:
            InputError: the folder contains too much, or the store does not answer.
        """
        owner = self.owner
        stored = list_files(self.url)
        check_names(stored, self.url)
        manifests = [name for name in stored if is_checkpoint_manifest(name)]
        files = [name for name in stored if not _is_skipped(name)]
        size = sum(stored[name].size for name in files)
        if len(files) > MOST_FILES or size > MOST_BYTES:
            raise InputError(
                f"{hide_credentials(self.url)} contains {format_count(len(files), 'other file')} "
                f"({format_bytes(size)}). Choose another folder for the output."
            )
        announce_copy(self.url, size)
        self.clear()
        # In the order of the steps, because old checkpoints are removed by age.
        for name in [*files, *sorted(manifests, key=lambda name: int(name.split("-")[-1].split("/")[0]))]:
            download(join(self.url, name), self.folder / name)
        write_atomically(self.folder / OWNER, owner)
        self._store(self.list_versions())
        for checkpoint in sorted({split_checkpoint(name)[0] for name in stored} - {""}):
            if f"{checkpoint}/{MANIFEST_NAME}" not in manifests:
                shown = hide_credentials(join(self.url, checkpoint))
                logger.warning("skipping %s: %s is missing.", shown, MANIFEST_NAME)

    def check_for_run(self) -> None:
        """Checks that the local folder can be replaced.

        Raises:
            InputError: the folder contains checkpoints of a run that may not be in the store.
        """
        files = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        # A checkpoint of the store has only a manifest here.
        if any(rest not in ("", MANIFEST_NAME) for _, rest in map(split_checkpoint, files)):
            raise InputError(
                f"{hide_credentials(self.url)}: a run has checkpoints on this machine that may not be uploaded yet. "
                "Resume the run first, or choose another folder."
            )

    def upload(self) -> None:
        """Uploads new and changed files, and removes files that were deleted locally. Skips checkpoints and unfinished
        files.

        Raises:
            InputError: the store does not answer or refuses access, or another run holds the lock. The next call
                uploads the rest.
        """
        before, now = self._read_stored(), self.list_versions()
        changed = sorted((name for name in now if now[name] != before.get(name)), key=_rank)
        if changed:
            logger.info("uploading %s to %s", format_count(len(changed), "file"), hide_credentials(self.url))
        self.check()
        for name in [*(before.keys() - now.keys()), *(name for name in changed if _rank(name)[0] >= 0)]:
            remove(join(self.url, name))
            before.pop(name, None)
            self._store(before)
        for name in changed:
            if _rank(name)[0] >= 0:
                self.check()
            upload(self.folder / name, join(self.url, name))
            before[name] = now[name]
            self._store(before)

    def clear(self) -> None:
        """Removes the local files. A lock in the folder stays.

        First removes the files that mark the folder as newer than the store. If this process is killed, the next run
        downloads the folder again.
        """
        for name in (PENDING, OWNER, STORED):
            (self.folder / name).unlink(missing_ok=True)
        for path in self.folder.glob("*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_NAME:
                path.unlink(missing_ok=True)

    def list_versions(self, also: Callable[[str], bool] = lambda name: False) -> dict[str, list[int]]:
        """Returns size and time of each file that is uploaded, and of the files whose names `also` accepts."""
        files = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        wanted = [name for name in files if not _is_skipped(name) or also(name)]
        stats = {name: files[name].stat() for name in wanted}
        return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}

    def _read_stored(self) -> dict[str, list[int]]:
        file = self.folder / STORED
        return json.loads(file.read_text()) if file.exists() else {}

    def _store(self, versions: dict[str, list[int]]) -> None:
        write_atomically(self.folder / STORED, json.dumps(versions))


def is_checkpoint_manifest(name: str) -> bool:
    """Whether a name in an output folder is a checkpoint's manifest."""
    return split_checkpoint(name)[1] == MANIFEST_NAME


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
    shown = hide_credentials(url)
    folder = work_folder() / OUTPUTS / hash_json(shown) / name_parts(url)[-1]
    _outputs[folder] = RemoteOutput(folder, url)
    show_as(folder, url)
    return folder


def find_output(path: str | Path | None) -> RemoteOutput | None:
    """Returns the output that a local path belongs to. None if the path belongs to no store."""
    path = Path(path or "")
    return next((_outputs[each] for each in (path, *path.parents) if each in _outputs), None)


@contextmanager
def hold_store_lock(output: RemoteOutput) -> Iterator[None]:
    """Keeps other machines from writing the same folder of a store. The caller holds the lock of the local folder.

    Raises:
        InputError: another run holds the lock, or the store does not answer.
    """
    output.lock = StoreLock(output.url, output.owner)
    output.lock.acquire()
    try:
        yield
    finally:
        output.lock.release()
        output.lock = None


def write_output(output: RemoteOutput, command: object, run: Callable[[], object]) -> None:
    """Runs a command that writes a folder, and uploads the folder.

    Args:
        output: the folder.
        command: the arguments and the versions of the inputs. If their output is complete and was not uploaded, the
            command does not run again.
        run: the command. It sees the folder in the store as a local folder.

    Raises:
        InputError: another process writes the folder, a run has checkpoints there that only this machine has, or the
            store does not answer.
    """
    pending, key = output.folder / PENDING, hash_json(repr(command))
    try:
        with lock_file(output.folder / LOCK_NAME, seconds=0), hold_store_lock(output):
            if pending.exists() and pending.read_text() == key:
                logger.warning("%s: uploading the output of the earlier run.", hide_credentials(output.url))
            else:
                output.check_for_run()
                output.download()
                run()
                write_atomically(pending, key)
            output.upload()
            output.clear()
        shutil.rmtree(output.folder.parent, ignore_errors=True)
    except LockTaken as holder:
        raise InputError(
            f"{hide_credentials(output.url)}: {holder} is writing this output. Wait until that process ends."
        ) from holder


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
