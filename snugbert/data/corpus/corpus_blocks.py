"""The blocks of a corpus on the disk, or in a bucket with a local cache.

[`Blocks`] and [`CachedBlocks`] map blocks into memory. The process that opened the corpus verifies each block at its
first use. Other processes, such as data workers, do not verify blocks, and never use the network.

The cache of a bucket is a folder with a file for each block:

    00000017.block ...

The folder holds the blocks of the windows in use (see `block_windows.py`), and as many of the corpus's first blocks as
fit. The blocks of a window are random, so any other fixed blocks would save as many downloads. All processes
of a machine share the folder. A removed file stays readable in processes that have mapped it.
"""

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from snugbert.data.corpus.part_files import ARROW_ERRORS, Block, DamagedError, damaged, view_block
from snugbert.errors import InputError
from snugbert.files import lock_file, replacing
from snugbert.storage.urls import ask_together, hide_credentials, read_bytes


@dataclass(frozen=True)
class MappedPart:
    """The location of the blocks of a part, see [`PartIndex`]."""

    name: str  # the file or URL
    schema: pa.Schema
    offsets: np.ndarray
    digests: np.ndarray


class Blocks(Sequence[Block]):
    """The blocks of a corpus, mapped into memory from the files of its parts. Can be pickled."""

    def __init__(self, parts: Sequence[MappedPart]):
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part.digests) for part in parts)])
        self._process: int | None = os.getpid()
        self._open: dict[int, Block] = {}
        self._maps: dict[str, Any] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, number: int) -> Block:  # type: ignore[override]
        if number not in self._open:
            number = range(len(self))[number]
            self._open[number] = self._map(number)
        return self._open[number]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process": None, "_open": {}, "_maps": {}}

    @property
    def is_own(self) -> bool:
        """Whether this process opened the corpus. Only then does it verify blocks and use the network."""
        return self._process == os.getpid()

    def retain(self, numbers: Iterable[int]) -> None:
        """Unmaps all blocks except `numbers`."""
        kept = set(numbers)
        self._open = {number: block for number, block in self._open.items() if number in kept}

    @property
    def sizes(self) -> np.ndarray:
        """The bytes of each block. *Shape:* (blocks,)"""
        return np.concatenate([np.diff(part.offsets) for part in self.parts])

    def _find(self, number: int) -> tuple[MappedPart, int, int, bytes]:
        """Returns the part of a block, the block's start and end in the part, and the block's digest."""
        at = int(np.searchsorted(self.starts, number, side="right")) - 1
        part, row = self.parts[at], number - int(self.starts[at])
        return part, int(part.offsets[row]), int(part.offsets[row + 1]), part.digests[row].tobytes()

    def _map(self, number: int) -> Block:
        part, _, _, digest = self._find(number)
        try:
            data = self._map_bytes(number)
            if self.is_own and hashlib.sha256(data.data).digest() != digest:
                raise pa.ArrowInvalid(f"the checksum of block {number} does not match the index")
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), part.schema)
            if self.is_own:
                batch.validate(full=True)  # afterwards, the buffers are safe to read
            return view_block(batch)
        except InputError:
            raise
        except (*ARROW_ERRORS, ValueError) as error:  # an empty file cannot be mapped
            raise damaged(hide_credentials(part.name), error) from error

    def _map_bytes(self, number: int) -> np.ndarray:
        part, start, end, _ = self._find(number)
        if part.name not in self._maps:
            self._maps[part.name] = np.memmap(part.name, mode="r")
        return self._maps[part.name][start:end]


class CachedBlocks(Blocks):
    """The blocks of a corpus in a bucket, through a cache on the local disk.

    Only the process that opened the corpus downloads blocks.
    """

    def __init__(self, parts: Sequence[MappedPart], folder: Path, cache_bytes: int):
        super().__init__(parts)
        self.folder = folder
        self.cache_bytes = cache_bytes
        self.pinned = 0  # the first `pinned` blocks are never removed
        self._download: threading.Thread | None = None
        self._stop = threading.Event()

    def reserve(self, in_use: int) -> None:
        """Divides the cache: `in_use` bytes for two windows and their tables, and the rest for pinned blocks."""
        if self.sizes.sum() <= self.cache_bytes:
            self.pinned = len(self)
        elif in_use > self.cache_bytes:
            raise InputError(
                f"--corpus_cache_gb {self.cache_bytes / 1e9:g} is too small: two windows of blocks need "
                f"{in_use / 1e9:.2g} GB. Increase the cache, or decrease --window_blocks."
            )
        else:
            self.pinned = int(np.searchsorted(np.cumsum(self.sizes), self.cache_bytes - in_use, side="right"))

    def ensure(self, numbers: Iterable[int]) -> None:
        """Downloads the blocks `numbers` if they are missing. Waits for a download that [`ensure_later`] began."""
        if self._download is not None:
            self._download.join()  # blocks that failed to download are retried now
            self._download = None
        self._fetch_missing(numbers)

    def ensure_later(self, numbers: Sequence[int]) -> None:
        """Starts to download missing blocks, and returns. After an error, [`ensure`] retries."""
        if self._download is None and any(not self._file(number).exists() for number in numbers):
            self._stop.clear()

            def fetch() -> None:
                with suppress(InputError, OSError):
                    self._fetch_missing(numbers, self._stop)

            self._download = threading.Thread(target=fetch, daemon=True)
            self._download.start()

    def end_download(self) -> None:
        """Ends the downloads of [`ensure_later`] after the current requests. Call it before removing the folder."""
        self._stop.set()
        if self._download is not None:
            self._download.join()
            self._download = None

    def keep(self, numbers: Iterable[int]) -> None:
        """Removes all blocks from the cache except `numbers` and the pinned blocks."""
        kept = {self._file(number).name for number in numbers}
        with lock_file(self.folder / "blocks.lock"):
            for file in self.folder.glob("[0-9]*.block"):
                if file.name not in kept and int(file.stem) >= self.pinned:
                    file.unlink(missing_ok=True)

    def _map(self, number: int) -> Block:
        try:
            return super()._map(number)
        except DamagedError:
            if not self.is_own:
                raise
            self._file(number).unlink(missing_ok=True)  # the disk may have damaged the file since an earlier run
            self.ensure([number])
            return super()._map(number)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}.block"

    def _fetch_missing(self, numbers: Iterable[int], stop: threading.Event | None = None) -> None:
        with lock_file(self.folder / "blocks.lock"):
            missing = [number for number in numbers if not self._file(number).exists()]
            ask_together(self._fetch, missing, stop)

    def _fetch(self, number: int) -> None:
        part, start, end, digest = self._find(number)
        data = read_bytes(part.name, start, end)
        if hashlib.sha256(data).digest() != digest:
            raise damaged(hide_credentials(part.name), f"the checksum of block {number} does not match the index")
        with replacing(self._file(number)) as unfinished:
            unfinished.write_bytes(data)

    def _map_bytes(self, number: int) -> np.ndarray:
        if self.is_own and not self._file(number).exists():
            self.ensure([number])
        return np.memmap(self._file(number), mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_download": None, "_stop": None}
