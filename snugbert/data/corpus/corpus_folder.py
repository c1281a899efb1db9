"""The folder of a corpus, on this machine or in a bucket.

A part is two files. The index is written and uploaded last, so a part with an index is complete. For a bucket, a local
folder holds the part that is being written. A finished part is uploaded, and removed from this machine. So the disk
needs space for one part per process.
"""

import re
from pathlib import Path
from typing import Any

from snugbert.data.corpus.part_files import DamagedError, index_name, read_index
from snugbert.errors import InputError
from snugbert.files import hash_json
from snugbert.storage.inputs import work_folder
from snugbert.storage.uploads import OUTPUTS
from snugbert.storage.urls import ask_together, hide_credentials, is_url, join, list_files, remove, upload

PART_NAME = re.compile(r"part-\d{5}-of-(\d{5})\.arrow")


def part_name(number: int, num_parts: int) -> str:
    """Returns the name of a part's file."""
    return f"part-{number:05d}-of-{num_parts:05d}.arrow"


def read_num_parts(name: str) -> int:
    """Returns the number of parts of the corpus that a part belongs to, from the part's name. 0: it is no part."""
    match = PART_NAME.fullmatch(name)
    return int(match[1]) if match else 0


def _find_complete(files: dict[str, int]) -> dict[str, int]:
    """Returns the names of the parts that have an index, in order, and their sizes."""
    return {name: files[name] for name in sorted(files) if read_num_parts(name) and index_name(name) in files}


class CorpusFolder:
    """The folder of a corpus at a path or a URL."""

    def __init__(self, place: str | Path):
        self.url = str(place).rstrip("/") if is_url(place) else None  # None: the corpus is only on this machine
        self.folder = Path(place)  # on this machine
        if self.url is not None:
            self.folder = work_folder() / OUTPUTS / hash_json(hide_credentials(self.url))

    def __str__(self) -> str:
        return hide_credentials(str(self.place))

    @property
    def place(self) -> str | Path:
        """The URL, or the folder."""
        return self.url or self.folder

    def locate(self, name: str) -> str:
        """Returns the path or the URL of a file."""
        return str(self.folder / name) if self.url is None else join(self.url, name)

    def find_parts(self) -> dict[str, int]:
        """Returns the names of the complete parts, in order, and their sizes."""
        return _find_complete(self._list_files())

    def _list_files(self) -> dict[str, int]:
        if self.url is None:
            return {file.name: file.stat().st_size for file in self.folder.glob("part-*")}
        return {name: entry.size for name, entry in list_files(self.url).items()}

    def find_states(self) -> dict[str, str]:
        """Returns the state of each part that the corpus must have, in order: "" if it is complete."""
        files = self._list_files()
        complete = _find_complete(files)
        divisions = {read_num_parts(name): name for name in complete or filter(read_num_parts, files)}
        if not divisions:
            raise InputError(f"{self} contains no prepared corpus. Run `snugbert prepare` first.")
        if len(divisions) > 1:
            first, second = sorted(divisions.values())[:2]
            raise InputError(
                f"{self}: {first} and {second} belong to different corpora. Move one corpus to another folder."
            )
        (num_parts,) = divisions
        names = [part_name(number, num_parts) for number in range(num_parts)]
        incomplete = {name: "has no index" if name in files else "is missing" for name in names}
        return incomplete | dict.fromkeys(complete, "")

    def read_record(self, name: str) -> dict[str, Any] | None:
        """Returns the record of a part, see `part_files.py`. None: the part does not exist, or is damaged."""
        return self._read_record(name, self.find_parts().get(name))

    def read_records(self) -> dict[str, dict[str, Any] | None]:
        """Returns the record of each part. None: the part is damaged."""
        sizes = self.find_parts()
        records = ask_together(lambda name: self._read_record(name, sizes[name]), sizes)
        return dict(zip(sizes, records, strict=True))

    def _read_record(self, name: str, size: int | None) -> dict[str, Any] | None:
        try:
            return None if size is None else read_index(self.locate(name), size).record
        except DamagedError:
            return None

    def publish(self, name: str) -> None:
        """Uploads a finished part, and removes it from this machine."""
        if self.url is None:
            return
        remove(join(self.url, index_name(name)))  # until the new one is there, the part is incomplete
        for each in (name, index_name(name)):
            upload(self.folder / each, join(self.url, each))
        for each in (index_name(name), name):
            (self.folder / each).unlink()

    def publish_file(self, name: str) -> None:
        """Uploads a file."""
        if self.url is not None:
            upload(self.folder / name, join(self.url, name))

    def remove_part(self, name: str) -> None:
        """Removes the files of a part."""
        self.remove_file(index_name(name))
        self.remove_file(name)

    def remove_file(self, name: str) -> None:
        """Removes a file. It may be missing."""
        (self.folder / name).unlink(missing_ok=True)
        if self.url is not None:
            remove(join(self.url, name))
