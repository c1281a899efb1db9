"""The folder that a corpus is written to, on this machine or in a bucket.

For a bucket, a local folder holds unfinished parts, so that the next command can continue them. The local folder also
holds the headers of the parts in the bucket, so that other modules find all prepared parts in local files. A finished
part is uploaded, and its text is removed from this machine. So the disk needs space for one part per process.
"""

import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from snugbert.data.corpus.part_files import ARROW_ERRORS, PART_NAME
from snugbert.files import LockTaken, hash_json, lock_file, replacing
from snugbert.storage.inputs import work_folder
from snugbert.storage.uploads import OUTPUTS
from snugbert.storage.urls import (
    ask_together,
    download,
    hide_credentials,
    is_url,
    join,
    list_files,
    read_bytes,
    remove,
    upload,
)

IDENTITIES = ".identities"  # suffix of a file next to a part. With it, unchanged text files are not read again
# The files of a part, in the order of their upload. The last file marks the part as complete.
SUFFIXES = (IDENTITIES, ".arrow", ".index")


class CorpusFolder:
    """The folder of a corpus while it is written.

    Args:
        output: a path or a URL.

    Attributes:
        folder: the folder on this machine.
        url: the folder in a bucket. None: the corpus is only on this machine.
    """

    def __init__(self, output: str | Path):
        self.url = str(output).rstrip("/") if is_url(output) else None
        self.folder = Path(output)
        if self.url is not None:
            self.folder = work_folder() / OUTPUTS / hash_json(hide_credentials(self.url))

    def __str__(self) -> str:
        return str(self.folder) if self.url is None else hide_credentials(self.url)

    def list_names(self) -> set[str]:
        """Returns the names of all files."""
        return {file.name for file in self.folder.glob("*")} if self.url is None else {*list_files(self.url)}

    def measure_parts(self) -> dict[str, int]:
        """Returns the names and the sizes of the finished parts."""
        if self.url is None:
            return {file.name: file.stat().st_size for file in sorted(self.folder.glob("part-*.arrow"))}
        sizes = {name: entry.size for name, entry in list_files(self.url).items()}
        parts = filter(PART_NAME.fullmatch, sizes)
        return {name: sizes[name] for name in sorted(parts) if _replace_suffix(name, SUFFIXES[-1]) in sizes}

    def fetch(self) -> None:
        """Copies headers and small files of the parts in the bucket. Local parts that are not uploaded yet stay."""
        if self.url is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        finished = self.measure_parts()
        names = sorted({file.name for file in self.folder.glob("part-*.arrow")} | finished.keys())
        ask_together(lambda name: self._fetch_part(name, finished.get(name)), names)

    def fetch_part(self, name: str) -> None:
        """Copies the header of a part again, because another machine may have replaced the part."""
        if self.url is not None:
            self._fetch_part(name, self.measure_parts().get(name))

    def _fetch_part(self, name: str, size: int | None) -> None:
        """Copies the header of a part. `size` is in bytes. None: the bucket has no such part, so a copy is removed."""
        assert self.url is not None
        file, url = self.folder / name, join(self.url, name)
        # A process that holds the lock is writing the part or uploading it.
        with suppress(LockTaken), lock_file(self.folder / f".{name}.lock", seconds=0):
            if file.exists() and not _is_header(file):
                return
            if size is None:
                file.unlink(missing_ok=True)
                return
            length = int.from_bytes(read_bytes(url, 4, min(8, size)), "little")
            with replacing(file) as unfinished:
                unfinished.write_bytes(read_bytes(url, 0, min(8 + length, size)))
            self.fetch_file(_replace_suffix(name, IDENTITIES))

    def fetch_file(self, name: str) -> None:
        """Copies a small file from the bucket, if there is one."""
        if self.url is not None:
            with suppress(FileNotFoundError):
                download(join(self.url, name), self.folder / name)

    def publish(self, name: str) -> None:
        """Uploads a finished part that is not in the bucket yet, and removes its text from this machine."""
        file = self.folder / name
        if self.url is None or _is_header(file):
            return
        # The last file marks the part as complete. It is removed first, because the other files are replaced now.
        remove(join(self.url, _replace_suffix(name, SUFFIXES[-1])))
        for suffix in SUFFIXES:
            self.publish_file(_replace_suffix(name, suffix))
        os.truncate(file, measure_header(file))

    def publish_file(self, name: str) -> None:
        """Uploads a file, if there is one."""
        if self.url is not None and (self.folder / name).exists():
            upload(self.folder / name, join(self.url, name))

    def remove_file(self, name: str) -> None:
        """Removes a file, or all files of a part."""
        names = [name]
        if PART_NAME.fullmatch(name):
            names = [_replace_suffix(name, suffix) for suffix in reversed(SUFFIXES)]
        for each in names:
            if self.url is not None:
                remove(join(self.url, each))
            (self.folder / each).unlink(missing_ok=True)


def _replace_suffix(name: str, suffix: str) -> str:
    return f"{name.removesuffix('.arrow')}{suffix}"


def measure_header(file: Path) -> int:
    """Returns the size of a part's header, which precedes the text, in bytes.

    Raises:
        pyarrow.ArrowException, OSError: the file is damaged.
    """
    with pa.memory_map(str(file)) as stream:
        pa.ipc.read_schema(stream)
        return stream.tell()


def _is_header(file: Path) -> bool:
    """Whether a file has only the header of a part."""
    try:
        return file.stat().st_size == measure_header(file)
    except ARROW_ERRORS:
        return False
