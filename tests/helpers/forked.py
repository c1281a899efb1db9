"""Runs functions in processes forked from a server. Imports alone would take a new process five seconds.

The server is a fork of the test process, made before the first test runs. It contains everything that the test files
import, and nothing that a test has changed. Tests that depend on a fresh interpreter use subprocess instead.
"""

import faulthandler
import logging
import os
import pickle
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

PATIENCE = 120  # seconds
_FOLDERS = tempfile.TemporaryDirectory()
_server: Connection


@dataclass
class ForkedProcess:
    """A process that was forked from the server. Its output goes to files."""

    pid: int
    folder: Path

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def wait(self) -> int:
        """Waits until the process ends and returns its exit status, or the negative number of a signal."""
        return _wait([self.pid])[0]


def start(function: Callable[..., int | None], *arguments: Any, **environment: str) -> ForkedProcess:
    """Calls a function in a new process.

    Args:
        function: a module's function. Its result is the exit status; None is 0.
        arguments: for the function. They are pickled.
        environment: additional environment variables.
    """
    folder = Path(tempfile.mkdtemp(dir=_FOLDERS.name))
    for name in ("stdout", "stderr"):
        (folder / name).touch()
    _server.send_bytes(pickle.dumps((function, arguments, folder, os.getcwd(), os.environ | environment)))
    return ForkedProcess(_server.recv(), folder)


def run(function: Callable[..., int | None], *arguments: Any, processes: int = 1) -> CompletedProcess:
    """Calls a function in a new process, or in several as torchrun does, and waits for all of them.

    Returns:
        The first exit status that is not 0, and the output of all processes.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    running = []
    for rank in range(processes):
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        texts = {name: str(value) for name, value in environment.items()} if processes > 1 else {}
        running.append(start(function, *arguments, **texts))
    statuses = _wait([process.pid for process in running])
    output, errors = ("".join(getattr(process, name) for process in running) for name in ("stdout", "stderr"))
    return CompletedProcess(function.__name__, next(filter(None, statuses), 0), output, errors)


def _wait(pids: list[int]) -> list[int]:
    _server.send_bytes(pickle.dumps(pids))
    if not _server.poll(PATIENCE):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise TimeoutError(f"exit statuses after {PATIENCE} seconds: {_server.recv()}")
    return _server.recv()


def start_server() -> None:
    """Forks the server, which ends when this process ends."""
    global _server
    _server, requests = Pipe()
    if os.fork() != 0:
        requests.close()
        return
    try:
        # Open files of the tests, such as the connection of pytest-xdist, become /dev/null. Their descriptors stay in
        # use, so that an object that still refers to one cannot write to another file.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in {*map(int, os.listdir("/dev/fd"))} - {null, requests.fileno()}:
            with suppress(OSError):  # the folder's own descriptor is closed
                os.fstat(descriptor)
                os.dup2(null, descriptor)
        _serve(requests)
    finally:
        os._exit(1)


def _serve(requests: Connection) -> None:
    statuses: dict[int, int] = {}  # of the processes that have ended
    while True:
        try:
            message = requests.recv_bytes()
        except EOFError:
            os._exit(0)
        request = pickle.loads(message)
        if isinstance(request, list):
            while not statuses.keys() >= set(request):
                pid, status = os.wait()
                statuses[pid] = os.waitstatus_to_exitcode(status)
                if pid in request and statuses[pid] != 0:  # the others would wait for it
                    for other in set(request) - statuses.keys():
                        os.kill(other, signal.SIGKILL)
            requests.send([statuses[pid] for pid in request])
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            _run(*request)
        requests.send(pid)


def _run(function, arguments, folder: Path, cwd: str, environment: dict[str, str]) -> None:
    """Calls the function and ends the process at once, without destructors: gloo's can wait forever."""
    status = 1
    try:
        os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_APPEND), descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, closefd=False))
        faulthandler.enable()
        logging.root.handlers.clear()  # pytest's
        for logger in logging.root.manager.loggerDict.values():
            for handler in getattr(logger, "handlers", ()):
                if type(handler) is logging.StreamHandler:  # to the stderr of the tests
                    handler.setStream(sys.stderr)
        status = function(*arguments) or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
