"""The lock of an output folder in a store: an object that its holder renews.

The holder is the run whose owner and number are in the object `_lock`. The owner identifies the local copy of the
folder, see `RemoteOutput`. The number is random. Every `BEAT_SECONDS`, the holder reads the object, and writes it
again with a new random beat. The holder removes the object at the end. Clocks are not compared.

A run that finds a lock watches the lock. If the lock changes, its holder lives, and this run stops. If the lock stays
the same for `STALE_SECONDS`, its holder is dead, and this run takes the lock over. If the owner is the local folder of
this run, the holder was a process on this machine. That process is dead, because this process has the lock of the
local folder. So this run takes the lock over at once.

Some stores ignore conditional writes (If-None-Match). If two runs find no lock there, both write a lock, and the last
lock stays. Each run reads the lock again after `SETTLE_SECONDS`, and the run that finds a different number stops. A
run that takes over a lock while its holder renews it stops in the same way. If a write takes longer than
`SETTLE_SECONDS`, both runs start, and the first run finds the other number at its next beat. The same happens to a
holder that was cut off from the store for longer than `STALE_SECONDS`. A holder that lost its lock stops with an
error. Every run reads the lock before it changes anything in the store, so a run without the lock replaces nothing.
"""

import json
import logging
import os
import platform
import threading
import time
import uuid
from typing import Any

from snugbert.errors import InputError
from snugbert.files import LOCK_NAME
from snugbert.storage.requests import ask_together, hide_credentials
from snugbert.storage.urls import find_entry, join, read_bytes, remove, write_bytes

logger = logging.getLogger(__name__)

BEAT_SECONDS = 15.0
STALE_SECONDS = 90.0  # several beats
SETTLE_SECONDS = 1.0
READ_AGAIN = (0.05, 0.2)  # seconds before each further attempt


class StoreLock:
    """The lock of an output folder in a store, held by this process.

    Args:
        folder: the URL of the folder.
        owner: identifies the local copy of the folder. This process holds the lock of the copy.

    Attributes:
        loss: why this process may no longer write. Empty while it may.
    """

    def __init__(self, folder: str, owner: str):
        self.loss = ""
        self._url, self._shown = join(folder, LOCK_NAME), hide_credentials(folder)
        self._content = {"owner": owner, "number": uuid.uuid4().hex, "beat": uuid.uuid4().hex}
        self._content["holder"] = f"process {os.getpid()} on {platform.node()}"
        self._ended, self._access = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._start, daemon=True)

    def acquire(self) -> None:
        """Takes the lock, and starts to renew it.

        Raises:
            InputError: another run holds the lock.
        """
        self._wait_for_holder()
        time.sleep(SETTLE_SECONDS)
        self.check()
        self._thread.start()

    def _wait_for_holder(self) -> None:
        """Returns when this process has written its lock. Raises an error if another run still uses the folder."""
        found, deadline = self._read(), time.monotonic() + STALE_SECONDS
        first = found
        if found and found.get("owner") != self._content["owner"]:
            logger.info(
                "%s is locked by %s. Waiting up to %g seconds to see whether that process still runs.",
                self._shown,
                found.get("holder"),
                STALE_SECONDS,
            )
        while found and found.get("owner") != self._content["owner"] and time.monotonic() < deadline:
            time.sleep(min(1.0, STALE_SECONDS / 10))
            found = self._read()
            if found and found != first:
                raise InputError(self._explain(found))
        written = write_bytes(self._url, json.dumps(self._content).encode(), only_new=not found)
        if not written:
            raise InputError(self._explain(self._read()))

    def _explain(self, found: dict[str, Any]) -> str:
        holder = found.get("holder", "another run")
        return (
            f"--output_dir: {holder} is running in {self._shown}. Wait until that process ends, or choose another "
            "folder."
        )

    def _read(self) -> dict[str, Any]:
        """Returns the content of the lock. Empty if there is no lock.

        Some stores replace a file in two steps. So a lock that seems to be missing or damaged is read again.

        Raises:
            InputError: the store does not answer, or refuses access.
        """
        for seconds in (*READ_AGAIN, None):
            try:
                entry = find_entry(self._url)
                data = read_bytes(self._url, 0, entry.size) if entry is not None else b"{}"
            except FileNotFoundError:
                data = b"{}"
            try:
                content = json.loads(data)
            except ValueError:
                content = None
            if isinstance(content, dict) and content:
                return content
            if seconds is not None:
                time.sleep(seconds)
        return {} if content == {} else {"holder": "another program"}

    def check(self) -> None:
        """Reads the lock.

        Raises:
            InputError: another run holds the lock, or the store does not answer.
        """
        with self._access:
            found = self._read()
        if found.get("number") != self._content["number"]:
            missing = f"--output_dir: the lock of {self._shown} was removed. Run the same command again to continue."
            self.loss = self._explain(found) if found else missing
            raise InputError(self.loss)

    def _start(self) -> None:
        """Renews the lock in a thread whose requests are not retried after the end."""
        ask_together(lambda renew: renew(), [self._renew], self._ended)

    def _renew(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self.check()
                # Always the same length, so that a read never mixes two versions.
                self._content["beat"] = uuid.uuid4().hex
                with self._access:
                    write_bytes(self._url, json.dumps(self._content).encode())
            except Exception as error:  # if the lock is not lost, the next beat retries
                if self.loss or self._ended.is_set():
                    return
                logger.warning("%s: the lock was not renewed. %s", self._shown, error)

    def release(self) -> None:
        """Stops renewing the lock, and removes it if this process holds it and the store answers."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            if self._read().get("number") == self._content["number"]:
                remove(self._url)
        except InputError as error:  # it must not hide the error that ended the run
            logger.warning("%s stays locked for %g seconds. %s", self._shown, STALE_SECONDS, error)
