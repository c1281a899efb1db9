"""Requests to any file system that fsspec opens: URLs, time limits, retries, credentials.

fsspec retries for a few seconds. [`ask`] retries for longer, because a network can fail for minutes. After the last
attempt, it raises one error. Every request has a time limit, so that none waits forever. No list of files is cached.

Credentials come from the environment, as fsspec's file systems read them. They are read again after a refusal, because
they may have been renewed. User names and query strings of URLs can be credentials. [`hide_credentials`] removes them
from all messages and files.
"""

import errno
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import fsspec
from fsspec.asyn import FSTimeoutError, reset_lock, sync

from snugbert.errors import InputError, join_lines

T = TypeVar("T")
Item = TypeVar("Item")
logger = logging.getLogger(__name__)

# "s3://", also chained, such as "zip://a.txt::s3://". One letter is a Windows drive.
URL = re.compile(r"[a-z][a-z0-9+.-]+(://|::)", re.IGNORECASE)
PROTOCOL = re.compile(r"([a-z0-9+.-]+)://")
WEB = re.compile(r"https?://", re.IGNORECASE)
LINK = re.compile(r"::(?=[a-z][a-z0-9+.-]+(?:://|::))", re.IGNORECASE)  # between the URLs of a chain
# A password may contain "/", "?", "#" and "@". `name@revision` of the Hub has no colon, and a port has 2 to 5 digits.
USER = re.compile(r"(?<=://)(?![^/@:]*:\d{2,5}/)(.*:.*@|[^/]*@)", re.DOTALL)
# "?" and "#" can be part of a name in a bucket, and "?" a pattern. But "?name=" starts a query string, and "&name=" is
# the rest of one that had an "@".
QUERY, WEB_QUERY = re.compile(r"[?&][\w.-]+=.*", re.DOTALL), re.compile(r"([?#]|&[\w.-]+=).*", re.DOTALL)
COPIES = re.compile(r"(simplecache|filecache|blockcache|cached)::")  # they keep local copies, which can be incomplete
DEADLINE_VARIABLE = "SNUGBERT_STORAGE_TIMEOUT"
# Seconds until a store that does not answer is an error. Less than torch's limit for processes, 1,800.
DEADLINE = 600.0
REQUEST_SECONDS = 60.0  # for a request, and more for long answers
SLOWEST = 2**18  # bytes per second. A slower connection counts as lost
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between two attempts
ATTEMPTS = 4  # before a refusal is an error. Credentials are read again each time
CONNECTIONS = 8  # at a time. One connection to S3 carries 90 MB/s
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # protocols whose packages an extra of SnugBERT installs
# Errors of the network in botocore, aiohttp, google.auth and httpx that are no OSError.
NETWORK_ERRORS = {
    "ConnectionError",
    "HTTPClientError",
    "IncompleteReadError",
    "ResponseParserError",
    "ClientConnectionError",
    "ClientPayloadError",
    "TransportError",
}
DAMAGED = re.compile("IncompleteBody|BadDigest|SHA256Mismatch")  # S3 answers 400, as it does to invalid requests
LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)
# gcsfs logs errors with their traceback. In this module, errors are retried, or become one message.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
# A forked process must start its own network thread, or it waits forever. fsspec 2025.3 does not do this.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset_lock)


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


class Store(NamedTuple):
    """A file system whose requests have a time limit.

    Attributes:
        system: the file system of fsspec.
        seconds: the limit of a request without data. Only asynchronous file systems keep it.
    """

    system: Any
    seconds: float

    def call(self, method: str, *args: Any, size: int = 0, requests: int = 1, **kwargs: Any) -> Any:
        """Calls a method that makes some requests, and sends or receives `size` bytes."""
        if self.system.async_impl and hasattr(self.system, f"_{method}"):
            limit = requests * self.seconds + size / SLOWEST
            try:
                return sync(self.system.loop, getattr(self.system, f"_{method}"), *args, timeout=limit, **kwargs)
            except FSTimeoutError as error:
                raise TimeoutError(f"a request takes longer than {limit:.3g} seconds") from error
        return getattr(self.system, method)(*args, **kwargs)


def _open_store(url: str, seconds: float) -> tuple[Store, str]:
    if COPIES.search(url):
        raise InputError(f"{hide_credentials(url)}: fsspec's local copies can be incomplete. Use the URL after '::'.")
    options = {protocol: _read_options(protocol) for protocol in PROTOCOL.findall(url)}
    system, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    system.retries = 1  # s3fs
    return Store(system, seconds), path


def _read_options(protocol: str) -> dict[str, Any]:
    """Returns the options of a file system. The user's options, such as `FSSPEC_S3`, take precedence."""
    options = fsspec.config.conf.get(protocol, {})
    if protocol in ("s3", "s3a"):
        return {"config_kwargs": {"retries": {"max_attempts": 0}, **options.get("config_kwargs", {})}}
    if protocol in ("http", "https"):  # ranges of the file itself
        return {"headers": {"Accept-Encoding": "identity", **options.get("headers", {})}}
    return {}


_thread = threading.local()  # `stop`: an event that ends the attempts of this thread


def ask_together(function: Callable[[Item], T], items: Iterable[Item], stop: threading.Event | None = None) -> list[T]:
    """Like `map`, in `CONNECTIONS` threads. After an error or Ctrl-C, the threads do not retry.

    Args:
        function: makes requests.
        items: the arguments of its calls.
        stop: another thread may set it, to end the requests with an [`InputError`].
    """
    event = stop or threading.Event()
    pool = ThreadPoolExecutor(CONNECTIONS, initializer=lambda: vars(_thread).update(stop=event))
    try:
        return list(pool.map(function, items))
    except BaseException:
        event.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def read_deadline() -> float:
    """Returns how long requests are retried, in seconds: `SNUGBERT_STORAGE_TIMEOUT`, or 600."""
    try:
        return float(os.environ.get(DEADLINE_VARIABLE) or DEADLINE)
    except ValueError as error:
        raise InputError(f"{DEADLINE_VARIABLE} must be a number of seconds.") from error


def ask(url: str, do: Callable[[Store, str], T]) -> T:
    """Calls `do` with the file system and the path of a URL, again and again until it succeeds or the time is up.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: the store does not answer before the deadline or refuses access, or its package is missing.
    """
    seconds, shown = read_deadline(), hide_credentials(url)
    # The time starts at the first error, because a long transfer can precede it.
    deadline, wait, refusals = float("inf"), FIRST_WAIT, 0
    while True:
        try:
            limit = min(REQUEST_SECONDS, seconds, max(deadline - time.monotonic(), 0.5))
            return do(*_open_store(url, limit))
        except InputError:
            raise
        except Exception as caught:
            error = _find_cause(caught)
        reason, cause = _describe(error), error if shown == url else None  # a traceback shows the whole URL
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{shown}: no such file.") from cause
        if isinstance(error, ImportError):
            protocol = PROTOCOL.findall(url)[0]
            install = f"pip install 'snugbert[{EXTRAS[protocol]}]'" if protocol in EXTRAS else reason
            raise InputError(f"{shown}: the package for {protocol}:// is missing. Run: {install}") from cause
        if _is_temporary(error):
            if deadline == float("inf"):
                deadline = time.monotonic() + seconds
                logger.warning("%s: %s. Retrying for %g seconds.", shown, reason, seconds)
            if time.monotonic() + wait > deadline:
                raise InputError(
                    f"{shown}: no answer for {seconds:g} seconds ({reason}). Check the network, and run the same "
                    f"command again to continue. {DEADLINE_VARIABLE} sets the number of seconds."
                ) from cause
        elif _is_refusal(error):
            refusals += 1
            if refusals == ATTEMPTS:
                raise InputError(
                    f"{shown}: the store refuses access ({reason}). Check the URL, and the credentials in the "
                    "environment. Then run the same command again."
                ) from cause
            _forget_credentials(url)
        else:
            raise error
        pause = wait * random.uniform(0.5, 1)  # so that many machines do not try in the same moment
        stop = getattr(_thread, "stop", None)
        if stop is None:
            time.sleep(pause)
        elif stop.wait(pause):
            raise InputError(f"{shown}: stopped.")
        wait = min(2 * wait, LONGEST_WAIT)


def _forget_credentials(url: str) -> None:
    """Makes fsspec open new connections, which read the credentials of the environment again."""
    for protocol in PROTOCOL.findall(url):
        if protocol in fsspec.registry:
            fsspec.registry[protocol].clear_instance_cache()


def _find_cause(error: Exception) -> Exception:
    """Returns the real error of a web server. fsspec turns every error into FileNotFoundError."""
    is_other = isinstance(error, FileNotFoundError) and type(error.__cause__).__module__.startswith("aiohttp")
    return error.__cause__ if is_other and read_status(error) not in (404, 410) else error  # type: ignore[return-value]


def _is_temporary(error: Exception) -> bool:
    """Whether the same request can succeed later."""
    if isinstance(error, TimeoutError | EOFError) or DAMAGED.search(str(error.__cause__)):
        return True
    if status := read_status(error):
        return status >= 500 or status in (408, 409, 425, 429)
    if isinstance(error, OSError):
        return not isinstance(error, PermissionError | FileExistsError) and error.errno not in LASTING
    return any(base.__name__ in NETWORK_ERRORS for base in type(error).__mro__)


def _is_refusal(error: Exception) -> bool:
    """Whether a store refused the request. Other errors are bugs."""
    is_from_library = type(error).__module__.split(".")[0] in ("aiohttp", "botocore", "gcsfs", "google", "httpx")
    return isinstance(error, OSError | ValueError) or is_from_library or read_status(error) > 0


def read_status(error: BaseException) -> int:
    """Returns the HTTP status of an answer, or 0."""
    for each in filter(None, (error, error.__cause__)):
        response = getattr(each, "response", None)
        if isinstance(response, Mapping):  # botocore
            return response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        # httpx and requests, aiohttp, gcsfs
        status = getattr(response, "status_code", None) or getattr(each, "status", None) or vars(each).get("code")
        if str(status).isdigit():
            return int(status)  # type: ignore[arg-type]
    return 403 if str(error).startswith("Forbidden") else 0  # gcsfs


def _describe(error: Exception) -> str:
    """Returns the reason of an error in one line, without credentials."""
    text = join_lines(error) or type(error).__name__
    return re.sub(r"[a-zA-Z][a-zA-Z0-9+.-]+://[^\s'\"<>]+", lambda match: hide_credentials(match[0]), text)[:200]
