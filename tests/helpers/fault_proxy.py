"""A proxy between an S3 client and its server that injects faults on demand."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STEP = 0.02  # seconds between two parts of a slow answer


@dataclass
class Fault:
    """What happens to some requests."""

    kind: str  # a method of `_Handler` without `fault_`
    value: Any  # its argument
    times: float = float("inf")  # for so many requests
    method: str = ".*"  # only for these, such as "GET|HEAD"
    path: str = ""  # only for paths with a match of this pattern
    hits: int = 0  # how many requests it had

    def matches(self, method: str, path: str) -> bool:
        is_meant = re.fullmatch(self.method, method) and re.search(self.path, path)
        return self.hits < self.times and is_meant is not None


class FaultProxy:
    """A running proxy."""

    def __init__(self, upstream: str):
        self.upstream = upstream.removeprefix("http://")
        self.requests: list[tuple[str, str, str]] = []  # method, path and range of each request
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.healed = threading.Event()
        self._port = 0
        self._listen()
        self.address = f"http://127.0.0.1:{self._port}"  # for AWS_ENDPOINT_URL_S3

    def fail(self, kind: str, value: Any = None, **which: Any) -> Fault:
        """Injects a fault from now on, see [`Fault`]."""
        fault = Fault(kind, value, **which)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Ends all faults, and the requests that hang."""
        self._faults.clear()
        self.healed.set()
        self.healed = threading.Event()

    @contextmanager
    def refuse(self) -> Iterator[None]:
        """Refuses connections, as a host without a server does."""
        self._close()
        try:
            yield
        finally:
            self._listen()

    def take_fault(self, method: str, path: str) -> Fault | None:
        """Returns the first fault for a request, and counts it."""
        with self._lock:
            fault = next((fault for fault in self._faults if fault.matches(method, path)), None)
            if fault is not None:
                fault.hits += 1
            return fault

    def close(self) -> None:
        self.heal()
        self._close()

    def _listen(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), _Handler)
        self._server.proxy = self
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    proxy: FaultProxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass

    def pass_on(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy.requests.append((self.command, self.path, self.headers.get("Range", "")))
        self.close_connection = True  # so that the proxy can refuse new connections
        fault = proxy.take_fault(self.command, self.path)
        if fault is None:
            self.answer(*self.forward(body))
        else:
            getattr(self, f"fault_{fault.kind}")(body, fault.value)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on

    def forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Asks the server. The signature covers the Host header, so it stays."""
        connection = HTTPConnection(self.server.proxy.upstream)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection", "content-length"):
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), data

    def answer(self, status: int, headers: dict[str, str], data: bytes, write: Callable | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        # The length of a HEAD request is the one of the file.
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.send_header("Connection", "close")
        self.end_headers()
        (write or self.wfile.write)(data)

    def fault_status(self, body: bytes, value: tuple[int, str]) -> None:
        """An error of S3, such as (503, "SlowDown")."""
        status, code = value
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        data = b"" if self.command == "HEAD" else text.encode()
        self.answer(status, {"Content-Type": "application/xml"}, data)

    def fault_hang(self, body: bytes, value: None) -> None:
        """Never answers."""
        self.server.proxy.healed.wait()

    def fault_slow(self, body: bytes, value: float) -> None:
        """So many bytes a second."""

        def write(data: bytes) -> None:
            size = max(1, int(value * STEP))
            for start in range(0, len(data), size):
                self.wfile.write(data[start : start + size])
                time.sleep(STEP)

        self.answer(*self.forward(body), write)

    def fault_cut(self, body: bytes, value: int) -> None:
        """Closes the connection after so many bytes of the answer."""
        self.answer(*self.forward(body), lambda data: self.wfile.write(data[:value]))

    def fault_lost(self, body: bytes, value: None) -> None:
        """The server gets the request, and the client no answer."""
        self.forward(body)

    def fault_short(self, body: bytes, value: int) -> None:
        """An answer that lacks its last bytes, with a header for the rest."""
        status, headers, data = self.forward(body)
        self.answer(status, headers, data[: len(data) - value])

    def fault_truncate(self, body: bytes, value: int) -> None:
        """The server gets a request without its last bytes."""
        self.answer(*self.forward(body[: len(body) - value]))

    def fault_corrupt(self, body: bytes, value: int) -> None:
        """The server gets a request with one other byte."""
        self.answer(*self.forward(body[:value] + bytes([body[value] ^ 1]) + body[value + 1 :]))

    def fault_then(self, body: bytes, value: Callable[[], None]) -> None:
        """Something happens after the answer, such as another writer who replaces the file."""
        response = self.forward(body)
        value()
        self.answer(*response)


@contextmanager
def proxy_faults(upstream: str) -> Iterator[FaultProxy]:
    """Starts a proxy to a server, such as `http://127.0.0.1:9000`."""
    proxy = FaultProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
