"""Files on any file system that fsspec opens, such as `s3://bucket/corpus/part.arrow`: listed, read and written.

The libraries retry for some minutes. After that, [`ask`] raises one error without credentials. Files are read and
written completely or not at all. No list of files is cached.

Credentials come from the environment, as fsspec's file systems read them. User names and query strings of URLs can be
credentials. [`hide_credentials`] removes them from all messages and files.

Forked processes, such as data workers, should not call these functions, because each process would open its own
connections.
"""

import io
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import fsspec
from fsspec.asyn import reset_lock
from fsspec.spec import AbstractBufferedFile

from snugbert.errors import InputError, join_lines
from snugbert.files import replacing

T = TypeVar("T")
Item = TypeVar("Item")

# "s3://", also chained, such as "zip://a.txt::s3://". One letter is a Windows drive.
URL = re.compile(r"[a-z][a-z0-9+.-]+(://|::)", re.IGNORECASE)
PROTOCOL = re.compile(r"([a-z0-9+.-]+)://")
WEB = re.compile(r"https?://", re.IGNORECASE)
LINK = re.compile(r"::(?=[a-z][a-z0-9+.-]+(?:://|::))", re.IGNORECASE)  # between the URLs of a chain
# A password may contain "/", "?", "#" and "@". `name@revision` of the Hub has no colon, and a port has 2 to 5 digits.
USER = re.compile(r"(?<=://)(?![^/@:]*:\d{2,5}/)(.*:.*@|[^/]*@)", re.DOTALL)
# "?" and "#" can be part of a name in a bucket, and "?" a pattern. But "?name=" starts a query string, and "&name=" is
# what `USER` leaves of a query string with an "@".
QUERY, WEB_QUERY = re.compile(r"[?&][\w.-]+=.*", re.DOTALL), re.compile(r"([?#]|&[\w.-]+=).*", re.DOTALL)
S3_RETRIES = {"mode": "adaptive", "total_max_attempts": 8}  # for botocore. s3fs repeats all of them five times
CONNECTIONS = 8  # at a time. One connection to S3 carries 90 MB/s
CHUNK_BYTES = 2**23  # of a file that is read in pieces
# Fields that identify a file's version, best first.
VERSIONS = ("md5Hash", "ETag", "etag", "Content-MD5", "blob_id", "CRC", "last_commit")
TIMES = ("LastModified", "Last-Modified", "mtime", "created")  # used if a file has none of `VERSIONS`

# Errors in the code. A store does not cause them.
BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError, TypeError)

# gcsfs logs errors with their traceback. In this module, they become one message.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
# A forked process must start its own network thread, or it waits forever. fsspec 2025.3 does not do this.
os.register_at_fork(after_in_child=reset_lock)


class Entry(NamedTuple):
    """A file in a store: its size in bytes, and its version, which changes with the file (empty if there is none)."""

    size: int
    version: str


# --- URLs -------------------------------------------------------------------------------------------------------


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL that fsspec opens, and not a path."""
    return isinstance(name, str) and URL.match(name) is not None


def hide_credentials(url: str) -> str:
    """Returns a URL without user name, password, query string and fragment. Other names are returned unchanged.

    Characters of a password that should be encoded, such as "/", make a URL ambiguous. Then more than the credentials
    is removed.
    """
    if not is_url(url):
        return url
    links = [USER.sub("", link) for link in LINK.split(url)]
    return "::".join((WEB_QUERY if WEB.match(link) else QUERY).sub("", link) for link in links)


def name_parts(url: str) -> list[str]:
    """Returns the names in a URL, without protocol and credentials: "s3://bucket/a/b.csv" -> bucket, a, b.csv."""
    path = hide_credentials(url).split("::")[-1].split("://")[-1]
    return [part for part in path.split("/") if part not in ("", ".", "..")]


def join(url: str, *names: str) -> str:
    """Returns the URL of a file below a folder. The query string of a web address stays at the end."""
    first, *chain = LINK.split(url)
    folder = re.split("[?#]", first)[0] if WEB.match(first) else first
    query = first.removeprefix(folder)
    return "::".join(["/".join([folder.removesuffix("/"), *names]) + query, *chain])


# --- requests ---------------------------------------------------------------------------------------------------


def ask(url: str, do: Callable[[Any, str], T]) -> T:
    """Calls `do` with the file system and the path of a URL. The library of the file system retries."""
    shown = hide_credentials(url)
    try:
        options = {protocol: _read_options(protocol) for protocol in PROTOCOL.findall(url)}
        return do(*fsspec.core.url_to_fs(url, use_listings_cache=False, **options))
    except (InputError, *BUGS):
        raise
    except Exception as caught:
        error = _find_cause(caught)
    cause = error if shown == url else None  # a traceback would show the credentials
    if isinstance(error, FileNotFoundError):
        raise FileNotFoundError(f"{shown}: no such file.") from cause
    for protocol in PROTOCOL.findall(url):  # the next request reads credentials again: they may have been renewed
        if protocol in fsspec.registry:
            fsspec.registry[protocol].clear_instance_cache()
    raise InputError(
        f"{shown}: the store does not answer or refuses access ({_describe(error)}). Check the URL, the installed "
        "extras (snugbert[s3,gcs]), the credentials in the environment and the network. Then run the same command "
        "again."
    ) from cause


def ask_together(function: Callable[[Item], T], items: Iterable[Item], stop: threading.Event | None = None) -> list[T]:
    """Like `map`, in `CONNECTIONS` threads. After an error, Ctrl-C or `stop`, no further call begins."""

    def call(item: Item) -> T:
        if stop is not None and stop.is_set():
            raise InputError("stopped")
        return function(item)

    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        return list(pool.map(call, items))
    finally:
        pool.shutdown(cancel_futures=True)


def _read_options(protocol: str) -> dict[str, Any]:
    """Returns the options of a file system. The user's options, such as `FSSPEC_S3`, take precedence."""
    options = fsspec.config.conf.get(protocol, {})
    if protocol in ("s3", "s3a"):
        return {"config_kwargs": {"retries": S3_RETRIES, **options.get("config_kwargs", {})}}
    if protocol in ("http", "https"):  # uncompressed, because byte ranges refer to the file
        return {"headers": {"Accept-Encoding": "identity", **options.get("headers", {})}}
    return {}


def _find_cause(error: Exception) -> Exception:
    """Returns the real error of a web server. fsspec turns every error into FileNotFoundError."""
    cause = error.__cause__
    is_missing = getattr(cause, "status", None) in (404, 410)
    return cause if type(cause).__module__.startswith("aiohttp") and not is_missing else error  # type: ignore[return-value]


def _describe(error: Exception) -> str:
    """Returns the reason of an error in one line, without credentials."""
    text = join_lines(error) or type(error).__name__
    return re.sub(r"[a-zA-Z][a-zA-Z0-9+.-]+://[^\s'\"<>]+", lambda match: hide_credentials(match[0]), text)[:200]


# --- listing ----------------------------------------------------------------------------------------------------


def find_entries(pattern: str) -> dict[str, Entry]:
    """Lists the files that match a URL or a glob pattern, sorted. Empty if there are none."""
    if (entry := find_entry(pattern)) is not None:  # names can contain brackets
        return {pattern: entry}
    if not re.search(r"[*\[]" if pattern.startswith("http") else r"[*?\[]", pattern):
        return {}

    def find(store: Any, path: str) -> dict[str, Entry]:
        entries = _read_entries(store, store.glob(path, detail=True))
        chain = pattern.split("::")[1:]
        return {"::".join([store.unstrip_protocol(path), *chain]): entries[path] for path in sorted(entries)}

    return ask(pattern, find)


def list_files(folder: str) -> dict[str, Entry]:
    """Lists all files below a folder, by their names relative to it. Empty if there is no such folder."""

    def find(store: Any, path: str) -> dict[str, Entry]:
        root = path.rstrip("/") + "/"
        entries = _read_entries(store, store.find(path, detail=True))
        return {name.removeprefix(root): entries[name] for name in sorted(entries) if name.startswith(root)}

    try:
        return ask(folder, find)
    except FileNotFoundError:
        return {}


def find_entry(url: str) -> Entry | None:
    """Returns the size and the version of a file. None: there is no such file."""
    try:
        return ask(url, lambda store, path: _read_entries(store, {path: store.info(path)}).get(path))
    except FileNotFoundError:
        return None


def _read_entries(store: Any, facts: Mapping[str, Any]) -> dict[str, Entry]:
    return {path: _read_entry(store, path, each) for path, each in facts.items() if each["type"] == "file"}


def _read_entry(store: Any, path: str, facts: Mapping[str, Any]) -> Entry:
    if facts.get("size") is None:  # web servers list only names
        facts = store.info(path)
    if facts.get("size") is None:
        raise InputError(f"{hide_credentials(path)}: the server sends no file size. Download the file first.")
    version = next((facts[name] for name in (*VERSIONS, *TIMES) if facts.get(name)), "")
    return Entry(int(facts["size"]), str(version).strip('"'))


# --- reading ----------------------------------------------------------------------------------------------------


def read_bytes(url: str, start: int = 0, end: int | None = None) -> bytes:
    """Reads a file, or its bytes from `start` to `end` (exclusive). Large pieces are read over several connections."""
    if end is not None:
        return _read_range(url, start, end)
    with RemoteFile(url) as stream:
        return stream.read()


def _read_range(url: str, start: int, end: int) -> bytes:
    starts = list(range(start, end, CHUNK_BYTES))
    ends = [min(at + CHUNK_BYTES, end) for at in starts]

    def read(store: Any, path: str) -> bytes:
        options = {"batch_size": CONNECTIONS} if store.async_impl else {}
        pieces = store.cat_ranges([path] * len(starts), starts, ends, on_error="raise", **options)
        for piece in pieces:
            if isinstance(piece, Exception):  # fsspec 2025.3 returns errors
                raise piece
        return b"".join(pieces)

    data = ask(url, read) if starts else b""
    if len(data) != max(0, end - start):
        raise InputError(
            f"{hide_credentials(url)}: {len(data):,} bytes instead of {end - start:,}. The file changed, or the "
            "server does not support range requests. Run the same command again, or download the file."
        )
    return data


class RemoteFile(AbstractBufferedFile):
    """A file in a store as a binary stream that can seek. If the file's version is not `entry`, reading fails.

    By default, `entry` is the current version.
    """

    def __init__(self, url: str, entry: Entry | None = None):
        self.url, self._entry = url, entry or find_entry(url)
        if self._entry is None:
            raise FileNotFoundError(f"{hide_credentials(url)}: no such file.")
        super().__init__(None, url, size=self._entry.size, cache_type="none")

    def _fetch_range(self, start: int, end: int) -> bytes:
        data = _read_range(self.url, start, min(end, self.size))
        if find_entry(self.url) != self._entry:
            raise InputError(f"{hide_credentials(self.url)} changed while it was read. Run the same command again.")
        return data


def download(url: str, file: Path, entry: Entry | None = None) -> None:
    """Copies a file from a store, see [`RemoteFile`]. The whole file appears under its name, or nothing."""
    with RemoteFile(url, entry) as source:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as unfinished, unfinished.open("wb") as copy:
            shutil.copyfileobj(source, copy, CONNECTIONS * CHUNK_BYTES)


def open_file(name: str | Path, entry: Entry | None = None) -> Any:
    """Opens a path or a URL for reading bytes. The stream can seek. `entry`: see [`RemoteFile`]."""
    return io.BufferedReader(RemoteFile(name, entry), CHUNK_BYTES) if is_url(name) else Path(name).open("rb")  # type: ignore[arg-type]


# --- writing ----------------------------------------------------------------------------------------------------


def upload(file: Path, url: str) -> None:
    """Copies a file to a store, and checks the size of the copy. Removes an incomplete copy."""
    _write(url, lambda store, path: store.put_file(str(file), path))
    entry = find_entry(url)
    if entry is None or entry.size != file.stat().st_size:
        remove(url)
        raise InputError(f"{hide_credentials(url)}: the stored copy differs. Check the network and its proxies.")


def write_bytes(url: str, data: bytes) -> None:
    """Writes a small file."""
    _write(url, lambda store, path: store.pipe_file(path, data))


def write_new(url: str, data: bytes) -> bytes:
    """Writes a small file unless it exists, and returns what it contains.

    In a store without conditional writes, two writers that start at the same moment replace each other's file, and the
    first writer may not notice.
    """
    if find_entry(url) is None:
        try:
            _write(url, lambda store, path: store.pipe_file(path, data, mode="create"))
        except InputError:
            if find_entry(url) is None:
                raise
    return read_bytes(url)


def _write(url: str, do: Callable[[Any, str], None]) -> None:
    def write(store: Any, path: str) -> None:
        if not store.async_impl:  # object stores, which are asynchronous, have no folders
            store.makedirs(store._parent(path), exist_ok=True)
        do(store, path)

    try:
        ask(url, write)
    except FileNotFoundError as error:
        raise InputError(f"{hide_credentials(url)}: no such bucket. Check the name, or create the bucket.") from error


def remove(url: str) -> None:
    """Removes a file, if it exists."""
    with suppress(FileNotFoundError):
        ask(url, lambda store, path: store.rm_file(path))
