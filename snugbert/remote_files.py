"""Files on any file system that fsspec opens, such as `s3://bucket/corpus/part.arrow`.

fsspec tries again for a few seconds. The functions here try for longer, because a network can be gone for minutes, and
fail with one message. Every request has a time limit, so that none waits forever. No list of files is cached.

Credentials come from the environment, as fsspec's file systems read them. They are read again after a refusal, because
they may have been renewed. User names and query strings of URLs can be credentials. So they are in no message, and
[`hide_credentials`] removes them for files.

Processes that were forked, such as data workers, must not call these functions. The network library of a file system
can wait forever in them.
"""

import io
import logging
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import fsspec
from fsspec.asyn import sync

from snugbert.errors import InputError
from snugbert.files import replacing

T = TypeVar("T")
logger = logging.getLogger(__name__)

# "s3://", also chained, such as "zip://a.zip::s3://". One letter is a Windows drive.
URL = re.compile(r"[a-z][a-z0-9+.-]+(://|::)", re.IGNORECASE)
DEADLINE_VARIABLE = "SNUGBERT_STORAGE_TIMEOUT"
DEADLINE = (
    600.0  # seconds, until a store that does not answer is an error. Less than torch's limit for processes, 1,800
)
REQUEST_SECONDS = 60.0  # for a request, and more for long answers
SLOWEST = 2**18  # bytes per second. A slower connection counts as lost
LONGEST_WAIT = 30.0  # seconds between two attempts
REFUSALS = 3  # so often, a store may refuse access. Credentials are read again each time
CHUNK_BYTES = 2**23  # of a file that is read in pieces
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # protocols whose packages an extra of SnugBERT installs


class Entry(NamedTuple):
    """A file in a store.

    Attributes:
        size: in bytes.
        version: changes when the file is replaced: its ETag or checksum, or the time of the last change.
    """

    size: int
    version: str


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL that fsspec opens, and not a path."""
    return isinstance(name, str) and URL.match(name) is not None


def hide_credentials(url: str) -> str:
    """Returns a URL without user name, password, query string and fragment. Other names stay as they are."""
    if not is_url(url):
        return url
    return re.sub(r"(?<=://)[^/@]*@", "", url).split("?")[0].split("#")[0]


def join(url: str, *names: str) -> str:
    """Returns the URL of a file below a folder."""
    return "/".join([url.rstrip("/"), *names])


# --- listing ----------------------------------------------------------------------------------------------------


def find_urls(pattern: str) -> list[str]:
    """Lists the files that match a URL or a glob pattern, sorted. Empty if there are none."""
    return list(find_entries(pattern))


def find_entries(pattern: str) -> dict[str, Entry]:
    """Like [`find_urls`], with the size and the version of each file, which the listing has."""

    def find(store: Any, path: str) -> dict[str, Entry]:
        if "*" not in path and "[" not in path and "?" not in path:
            is_file = store.exists(path) and not store.isdir(path)
            return {path: _read_entry(_call(store, "info", path))} if is_file else {}
        found = store.glob(path, detail=True)
        return {name: _read_entry(facts) for name, facts in sorted(found.items()) if facts["type"] == "file"}

    return {_complete(pattern, path): entry for path, entry in _try(pattern, find).items()}


def list_files(folder: str) -> dict[str, Entry]:
    """Lists all files below a folder, by their names relative to it. Empty if there is no such folder."""

    def find(store: Any, path: str) -> dict[str, Entry]:
        root = path.rstrip("/") + "/"
        found = store.find(path, detail=True)
        return {name.removeprefix(root): _read_entry(facts) for name, facts in found.items() if name.startswith(root)}

    return dict(sorted(_try(folder, find).items()))


def find_entry(url: str) -> Entry | None:
    """Returns the size and the version of a file. None: there is no such file."""

    def find(store: Any, path: str) -> Entry | None:
        try:
            facts = _call(store, "info", path)
        except FileNotFoundError:
            return None
        return _read_entry(facts) if facts["type"] == "file" else None

    return _try(url, find)


def _read_entry(facts: Mapping[str, Any]) -> Entry:
    names = ("ETag", "etag", "md5Hash", "blob_id", "last_commit", "LastModified", "mtime", "created")
    version = next((facts[name] for name in names if facts.get(name)), "")
    return Entry(int(facts.get("size") or 0), str(version).strip('"'))


def _complete(url: str, path: str) -> str:
    """Returns the URL of a path that fsspec has listed, with the protocol and the query string of `url`."""
    protocol, separator, _ = url.partition("://")
    if protocol.lower() in ("http", "https"):  # fsspec does not remove the protocol
        return path
    return f"{protocol}{separator}{path.lstrip('/')}" if protocol != "file" else f"file://{path}"


# --- reading ----------------------------------------------------------------------------------------------------


def read_bytes(url: str, start: int = 0, end: int | None = None) -> bytes:
    """Reads a file, or the bytes from `start` to before `end`.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the store does not answer before the deadline, or refuses access.
    """

    def read(store: Any, path: str) -> bytes:
        if end is None:
            size = int(_call(store, "info", path)["size"])
            return b"".join(
                _read_range(store, path, at, min(at + CHUNK_BYTES, size)) for at in range(start, size, CHUNK_BYTES)
            )
        return _read_range(store, path, start, end)

    return _try(url, read)


def _read_range(store: Any, path: str, start: int, end: int) -> bytes:
    if start >= end:
        return b""
    data = _call(store, "cat_file", path, start=start, end=end, size=end - start)
    if len(data) != end - start:
        raise _ShortAnswer(f"{len(data)} bytes instead of {end - start}")
    return data


def download(url: str, file: Path) -> None:
    """Copies a file from a store. The whole file appears under its name, or nothing.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the store does not answer before the deadline or refuses access, or the file changes while it is
            read.
    """
    entry = find_entry(url)
    if entry is None:
        raise FileNotFoundError(f"{hide_credentials(url)}: no such file.")
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as unfinished:
        with unfinished.open("wb") as stream:
            for start in range(0, entry.size, CHUNK_BYTES):
                stream.write(read_bytes(url, start, min(start + CHUNK_BYTES, entry.size)))
        if find_entry(url) != entry:
            raise InputError(f"{hide_credentials(url)} changed while it was read. Run the same command again.")


class RemoteFile(io.RawIOBase):
    """A file in a store as a binary stream. It can seek. Wrap it in `io.BufferedReader` with [`open_file`].

    Args:
        url: the file.

    Raises:
        FileNotFoundError: there is no such file.
    """

    def __init__(self, url: str):
        entry = find_entry(url)
        if entry is None:
            raise FileNotFoundError(f"{hide_credentials(url)}: no such file.")
        self.url, self.size = url, entry.size
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
        """As in `io.IOBase`."""
        self._position = max(0, offset + (0, self._position, self.size)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        """As in `io.RawIOBase`."""
        end = min(self._position + len(buffer), self.size)
        if end <= self._position:
            return 0
        data = read_bytes(self.url, self._position, end)
        buffer[: len(data)] = data
        self._position = end
        return len(data)


def open_file(name: str | Path) -> Any:
    """Opens a path or a URL for reading bytes. The stream can seek."""
    return io.BufferedReader(RemoteFile(name), CHUNK_BYTES) if is_url(name) else Path(name).open("rb")  # type: ignore[arg-type]


# --- writing ----------------------------------------------------------------------------------------------------


def upload(file: Path, url: str) -> None:
    """Copies a file to a store, and compares the size there. Most stores also compare a checksum.

    Raises:
        InputError: the store does not answer before the deadline, or refuses access.
    """
    size = file.stat().st_size

    def put(store: Any, path: str) -> None:
        store.makedirs(store._parent(path), exist_ok=True)
        _call(store, "put_file", str(file), path, size=size)
        stored = int(_call(store, "info", path)["size"])
        if stored != size:
            raise _ShortAnswer(f"{stored} bytes stored instead of {size}")

    _try(url, put)


def write_bytes(url: str, data: bytes, only_new: bool = False) -> bool:
    """Writes a small file. Returns False if `only_new` and the store says that there is one already.

    Stores without conditional writes replace it.
    """

    def write(store: Any, path: str) -> bool:
        store.makedirs(store._parent(path), exist_ok=True)
        options = {"mode": "create"} if only_new else {}
        try:
            _call(store, "pipe_file", path, data, size=len(data), **options)
        except FileExistsError:
            return False
        except OSError as error:
            if only_new and "precondition" in str(error).lower():
                return False
            raise
        return True

    return _try(url, write)


def remove(url: str) -> None:
    """Removes a file. It may be missing."""

    def delete(store: Any, path: str) -> None:
        try:
            _call(store, "rm_file", path)
        except FileNotFoundError:
            pass

    _try(url, delete)


# --- trying again -----------------------------------------------------------------------------------------------


class _ShortAnswer(OSError):
    """A store sent or stored another number of bytes than it should."""


def read_deadline() -> float:
    """Returns for how many seconds a store is tried: `SNUGBERT_STORAGE_TIMEOUT`, or 600."""
    try:
        return float(os.environ.get(DEADLINE_VARIABLE) or DEADLINE)
    except ValueError as error:
        raise InputError(f"{DEADLINE_VARIABLE} must be a number of seconds.") from error


def _try(url: str, do: Callable[[Any, str], T]) -> T:
    """Calls `do` with the file system and the path of a URL, again and again until it succeeds or the time is up.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the store does not answer before the deadline or refuses access, or its package is missing.
    """
    seconds, shown = read_deadline(), hide_credentials(url)
    deadline, wait, refusals = time.monotonic() + seconds, 0.5, 0
    while True:
        try:
            store, path = _open_store(url, fresh=refusals > 0)
            return do(store, path)
        except (FileNotFoundError, InputError):
            raise
        except ImportError as error:
            protocol = url.split("://")[0]
            install = f"snugbert[{EXTRAS[protocol]}]" if protocol in EXTRAS else str(error)
            raise InputError(
                f"{shown}: a package for {protocol}:// is missing. Run: pip install '{install}'"
            ) from error
        except Exception as error:
            reason = _describe(error)
            if _is_refusal(error):
                refusals += 1
                if refusals == REFUSALS:
                    raise InputError(
                        f"{shown}: the store refuses access ({reason}). Check the credentials in the environment. "
                        "Then run the same command again."
                    ) from error
            elif not _is_temporary(error):
                raise
            if time.monotonic() + wait > deadline:
                raise InputError(
                    f"{shown}: no answer for {seconds:g} seconds ({reason}). Check the network, and run the same "
                    f"command again to continue. {DEADLINE_VARIABLE} sets the number of seconds."
                ) from error
            if wait == 0.5:
                logger.warning("%s: %s. Trying again for %g seconds.", shown, reason, seconds)
            time.sleep(wait * random.uniform(0.5, 1))  # so that many machines do not try in the same moment
            wait = min(2 * wait, LONGEST_WAIT)


def _open_store(url: str, fresh: bool) -> tuple[Any, str]:
    """Returns the file system and the path of a URL. `fresh` makes it read the credentials again."""
    return fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=fresh)


def _call(store: Any, method: str, *args: Any, size: int = 0, **kwargs: Any) -> Any:
    """Calls a method of a file system, with a time limit if it is asynchronous."""
    if getattr(store, "async_impl", False) and hasattr(store, f"_{method}"):
        limit = REQUEST_SECONDS + size / SLOWEST
        return sync(store.loop, getattr(store, f"_{method}"), *args, timeout=limit, **kwargs)
    return getattr(store, method)(*args, **kwargs)


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "ExpiredToken")


def _is_temporary(error: Exception) -> bool:
    """Whether the same request can succeed later. Other errors are mistakes in the program or the URL."""
    module = type(error).__module__.split(".")[0]
    return isinstance(error, OSError | TimeoutError | EOFError) or module in (
        "aiohttp",
        "botocore",
        "aiobotocore",
        "gcsfs",
        "google",
        "httpx",
        "urllib3",
        "requests",
        "fsspec",
    )


def _describe(error: Exception) -> str:
    """Returns the reason of an error in one line, without credentials."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"\S+://\S+", lambda match: hide_credentials(match[0]), text)[:200]
