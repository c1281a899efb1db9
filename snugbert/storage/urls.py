"""Files on any file system that fsspec opens, such as `s3://bucket/corpus/part.arrow`: listed, read and written.

Every function retries until a deadline, and then fails with one message (see `remote_requests`). Files are read
and written completely or not at all.

Forked processes, such as data workers, should not call these functions, because each process would open its own
connections.
"""

import base64
import hashlib
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from snugbert.errors import InputError
from snugbert.files import replacing
from snugbert.storage.requests import (
    ATTEMPTS,
    CONNECTIONS,
    LINK,
    WEB,
    Store,
    ask,
    hide_credentials,
    is_url,
    read_status,
)

CHUNK_BYTES = 2**23  # of a file that is read in pieces
LISTING = 10  # time limit of a listing, in requests
# Fields that identify a file's version, best first.
VERSIONS = ("md5Hash", "ETag", "etag", "Content-MD5", "blob_id", "CRC", "last_commit")
TIMES = ("LastModified", "Last-Modified", "mtime", "created")  # used if a file has none of `VERSIONS`


class Entry(NamedTuple):
    """A file in a store.

    Attributes:
        size: in bytes.
        version: changes when the file is replaced: its checksum or ETag, or the time of the last change. Empty if the
            store has none of these.
    """

    size: int
    version: str


def join(url: str, *names: str) -> str:
    """Returns the URL of a file below a folder. The query string of a web address stays at the end."""
    first, *chain = LINK.split(url)
    folder = re.split("[?#]", first)[0] if WEB.match(first) else first
    query = first.removeprefix(folder)
    return "::".join(["/".join([folder.removesuffix("/"), *names]) + query, *chain])


# --- listing ----------------------------------------------------------------------------------------------------


def find_urls(pattern: str) -> list[str]:
    """Lists the files that match a URL or a glob pattern, sorted. Empty if there are none."""
    return list(find_entries(pattern))


def find_entries(pattern: str) -> dict[str, Entry]:
    """Like [`find_urls`], with the size and the version of each file."""

    def find(store: Store, path: str) -> dict[str, Entry]:
        return _read_entries(store, store.call("glob", path, detail=True, requests=LISTING))

    if (entry := find_entry(pattern)) is not None:  # names can contain brackets
        return {pattern: entry}
    if not re.search(r"[*\[]" if pattern.startswith("http") else r"[*?\[]", pattern):
        return {}
    return {_complete(pattern, path): entry for path, entry in sorted(ask(pattern, find).items())}


def list_files(folder: str) -> dict[str, Entry]:
    """Lists all files below a folder, by their names relative to it. Empty if there is no such folder."""

    def find(store: Store, path: str) -> dict[str, Entry]:
        root = path.rstrip("/") + "/"
        entries = _read_entries(store, store.call("find", path, detail=True, requests=LISTING))
        return {name.removeprefix(root): entry for name, entry in entries.items() if name.startswith(root)}

    try:
        return dict(sorted(ask(folder, find).items()))
    except FileNotFoundError:
        return {}


def find_entry(url: str) -> Entry | None:
    """Returns the size and the version of a file. None: there is no such file."""

    def find(store: Store, path: str) -> Entry | None:
        return _read_entries(store, {path: store.call("info", path)}).get(path)

    try:
        return ask(url, find)
    except FileNotFoundError:
        return None


def _require_entry(url: str) -> Entry:
    if (entry := find_entry(url)) is None:
        raise FileNotFoundError(f"{hide_credentials(url)}: no such file.")
    return entry


def _check_unchanged(url: str, entry: Entry) -> None:
    if find_entry(url) != entry:
        raise InputError(f"{hide_credentials(url)} changed while it was read. Run the same command again.")


def _check_size(store: Store, url: str, path: str, end: int) -> None:
    """Raises an [`InputError`] if a file ends before `end`. If it does not, a short answer means a lost connection."""
    size = _read_entry(store, path, store.call("info", path)).size
    if size < end:
        raise InputError(
            f"{hide_credentials(url)}: {size:,} bytes instead of {end:,} or more. The file was cut off, or changed "
            "while it was read. Run the same command again."
        )


def _read_entries(store: Store, facts: Mapping[str, Any]) -> dict[str, Entry]:
    return {path: _read_entry(store, path, each) for path, each in facts.items() if each["type"] == "file"}


def _read_entry(store: Store, path: str, facts: Mapping[str, Any]) -> Entry:
    if facts.get("size") is None:  # web servers list only names
        facts = store.call("info", path)
    if facts.get("size") is None:
        raise InputError(f"{hide_credentials(path)}: the server sends no file size. Download the file first.")
    version = next((facts[name] for name in (*VERSIONS, *TIMES) if facts.get(name)), "")
    return Entry(int(facts["size"]), str(version).strip('"'))


def _complete(url: str, path: str) -> str:
    """Returns the URL of a path that fsspec has listed, with the protocol and the rest of the chain of `url`."""
    first, *chain = url.split("::")
    protocol = first.split("://")[0]
    if protocol.lower() not in ("http", "https"):  # fsspec's paths keep these two protocols
        path = f"{protocol}://{path if protocol == 'file' else path.lstrip('/')}"
    return "::".join([path, *chain])


# --- reading ----------------------------------------------------------------------------------------------------


def read_bytes(url: str, start: int = 0, end: int | None = None) -> bytes:
    """Reads a file, or the bytes from `start` to before `end`. Large pieces are read over several connections.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the store does not answer before the deadline or refuses access, or the file changes while it is
            read.
    """
    if end is not None:
        return _read_range(url, start, end)
    entry = _require_entry(url)
    data = _read_range(url, start, entry.size)
    _check_unchanged(url, entry)  # another process may have replaced it with a longer file
    return data


def _read_range(url: str, start: int, end: int) -> bytes:
    pieces: dict[int, bytes] = {}

    def read(store: Store, path: str) -> bytes:
        ranges = [(at, min(at + CHUNK_BYTES, end)) for at in range(start, end, CHUNK_BYTES) if at not in pieces]
        answers = _read_ranges(store, path, ranges)
        for (first, last), answer in zip(ranges, answers, strict=True):
            if isinstance(answer, bytes) and len(answer) == last - first:
                pieces[first] = answer
        for (first, last), answer in zip(ranges, answers, strict=True):
            if isinstance(answer, BaseException):
                if read_status(answer) == 416:  # the range is after the end
                    _check_size(store, url, path, end)
                raise answer
            if len(answer) > last - first:
                raise InputError(
                    f"{hide_credentials(url)}: the server does not support range requests. Download the file first."
                )
            if len(answer) < last - first:
                _check_size(store, url, path, end)
                raise OSError(f"the store sent {len(answer)} bytes instead of {last - first}")
        return b"".join(piece for _, piece in sorted(pieces.items()))

    return ask(url, read)


def _read_ranges(store: Store, path: str, ranges: list[tuple[int, int]]) -> list[Any]:
    """Reads parts of a file. Parts that failed are exceptions."""
    if not ranges or not store.system.async_impl:
        return [store.call("cat_file", path, start=start, end=end) for start, end in ranges]
    starts, ends = map(list, zip(*ranges, strict=True))
    size = sum(ends) - sum(starts)
    return store.call("cat_ranges", [path] * len(ranges), starts, ends, size=size, batch_size=CONNECTIONS)


def download(url: str, file: Path) -> None:
    """Copies a file from a store. The whole file appears under its name, or nothing.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the store does not answer before the deadline or refuses access, or the file changes while it is
            read.
    """
    entry = _require_entry(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as unfinished:
        with unfinished.open("wb") as stream:
            step = CONNECTIONS * CHUNK_BYTES
            for start in range(0, entry.size, step):
                stream.write(_read_range(url, start, min(start + step, entry.size)))
        _check_unchanged(url, entry)


class RemoteFile(io.RawIOBase):
    """A file in a store as a binary stream. It can seek. Wrap it in `io.BufferedReader` with [`open_file`].

    Args:
        url: the file.

    Raises:
        FileNotFoundError: there is no such file.
    """

    def __init__(self, url: str):
        self.url, self._entry = url, _require_entry(url)
        self.size = self._entry.size
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position, in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.IOBase`."""
        self._position = max(0, offset + (0, self._position, self.size)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`. If the file was replaced, raises an error instead of mixing both versions."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Reads the rest at once. `io.RawIOBase` would read small pieces."""
        return self._read(self.size)

    def _read(self, length: int) -> bytes:
        end = min(self._position + length, self.size)
        if end <= self._position:
            return b""
        data = _read_range(self.url, self._position, end)
        _check_unchanged(self.url, self._entry)
        self._position = end
        return data


def open_file(name: str | Path) -> Any:
    """Opens a path or a URL for reading bytes. The stream can seek."""
    return io.BufferedReader(RemoteFile(name), CHUNK_BYTES) if is_url(name) else Path(name).open("rb")  # type: ignore[arg-type]


# --- writing ----------------------------------------------------------------------------------------------------


def upload(file: Path, url: str) -> None:
    """Copies a file to a store, and compares the size and the checksum there.

    Raises:
        InputError: the store does not answer before the deadline, or refuses access.
    """
    size = file.stat().st_size

    def put(store: Store, path: str) -> None:
        _make_folder(store, path)
        store.call("put_file", str(file), path, size=size)

    for _ in range(ATTEMPTS):
        _write(url, put)
        if _is_copy(file, url):
            return
        remove(url)  # so that no process reads it
    raise InputError(f"{hide_credentials(url)}: the stored copy differs. Check the network and its proxies.")


def _is_copy(file: Path, url: str) -> bool:
    """Compares a file with its copy in a store, by the checksum of the store if there is one."""
    entry = find_entry(url)
    if entry is None or entry.size != file.stat().st_size:
        return False
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).digest()
    if entry.version in (digest.hex(), base64.b64encode(digest).decode()):
        return True
    if not re.fullmatch("[0-9a-f]{32}", entry.version):  # no MD5, as for a file of several parts
        return True
    # The ETag of an encrypted file looks like an MD5, but is not the file's MD5. So the bytes are compared.
    with file.open("rb") as stream, RemoteFile(url) as copy:
        return all(copy.read(len(part)) == part for part in iter(lambda: stream.read(CHUNK_BYTES), b""))


def write_bytes(url: str, data: bytes, only_new: bool = False) -> bool:
    """Writes a small file, and returns whether the file has this content.

    With `only_new`, an existing file stays. The file is read again after writing, so the result is right even after a
    lost connection. For this, the data must identify the writer. In a store without conditional writes, two writers
    that start at the same moment replace each other's file, and the first writer may not notice.

    Raises:
        InputError: the store does not answer before the deadline, or refuses access.
    """

    def write(store: Store, path: str) -> None:
        _make_folder(store, path)
        options: dict[str, Any] = {"mode": "create"} if only_new else {}
        try:
            store.call("pipe_file", path, data, size=len(data), **options)
        except OSError as error:
            if not only_new or not (isinstance(error, FileExistsError) or read_status(error) == 412):
                raise

    if only_new and find_entry(url) is not None:
        return False
    _write(url, write)
    return not only_new or read_bytes(url) == data


def _make_folder(store: Store, path: str) -> None:
    """Creates the folder of a file. Object stores, which are asynchronous, have no folders."""
    if not store.system.async_impl:
        store.call("makedirs", store.system._parent(path), exist_ok=True)


def _write(url: str, do: Callable[[Store, str], None]) -> None:
    try:
        ask(url, do)
    except FileNotFoundError as error:
        raise InputError(f"{hide_credentials(url)}: no such bucket. Check the name, or create the bucket.") from error


def remove(url: str) -> None:
    """Removes a file. It may be missing."""
    try:
        ask(url, lambda store, path: store.call("rm_file", path))
    except FileNotFoundError:
        pass
