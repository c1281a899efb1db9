"""The lock of an output folder in a bucket."""

import json
import time
from contextlib import ExitStack

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from snugbert.errors import InputError
from snugbert.storage import owner as store_lock
from snugbert.storage import requests as remote_requests
from snugbert.storage.owner import StoreLock
from snugbert.storage.uploads import RemoteOutput, hold_store_lock


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(store_lock, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(store_lock, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(store_lock, "SETTLE_SECONDS", 0.2)


@pytest.fixture
def outputs(bucket, tmp_path) -> list[RemoteOutput]:
    """The same folder of a store on two machines."""
    return [RemoteOutput(tmp_path / name / "run", f"{bucket.url}/run") for name in ("one", "two")]


def test_a_second_run_is_refused_while_the_first_lives(outputs, bucket):
    with hold_store_lock(outputs[0]):
        with pytest.raises(InputError, match=r"process \d+ on .* is running in s3://.*/run\. Wait until that"):
            with hold_store_lock(outputs[1]):
                pass
        outputs[0].check()
    assert not (bucket.folder / "run/_lock").exists()
    with hold_store_lock(outputs[1]):
        pass


def die(output: RemoteOutput) -> None:
    """Leaves the lock of a process that was killed."""
    lock = StoreLock(output.url, output.owner)
    lock.acquire()
    lock._ended.set()
    lock._thread.join()


def test_the_lock_of_a_dead_run_is_taken_over(outputs):
    die(outputs[0])
    start = time.monotonic()
    with hold_store_lock(outputs[1]):
        assert time.monotonic() - start > 1  # it watched the lock
    die(outputs[0])
    start = time.monotonic()
    with hold_store_lock(outputs[0]):  # the same machine
        assert time.monotonic() - start < 1


def test_a_run_that_lost_its_lock_stops(outputs, bucket):
    """As after a long outage, or in a store that ignores conditional writes."""
    lock = bucket.folder / "run/_lock"
    with ExitStack() as stack:
        stack.enter_context(hold_store_lock(outputs[0]))
        other = json.dumps({"owner": "other", "number": "1", "beat": "1", "holder": "process 7 on other"})
        lock.write_text(other)
        deadline = time.monotonic() + 10
        while not outputs[0].loss:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "process 7 on other is running in" in outputs[0].loss
        with pytest.raises(InputError, match="process 7 on other"):
            outputs[0].check()
    assert lock.read_text() == other  # it belongs to the other run


@pytest.mark.parametrize("error", [TimeoutError("down"), PermissionError("403 Forbidden"), KeyError("defect")])
def test_a_store_that_fails_for_a_while_costs_no_lock(error, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "0.2")
    monkeypatch.setattr(remote_requests, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(remote_requests, "ATTEMPTS", 2)
    monkeypatch.setattr(store_lock, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(store_lock, "BEAT_SECONDS", 0.05)
    output = RemoteOutput(tmp_path / "run", "memory://locks/run")
    lock = "/locks/run/_lock"
    store = fsspec.filesystem("memory")
    with hold_store_lock(output):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "info", fail)
            time.sleep(0.3)
            start = time.monotonic()
            with pytest.raises((InputError, KeyError)):
                output.check()
            with pytest.raises((InputError, KeyError), match=r"no answer for 0\.2|refuses access|defect"):
                StoreLock(output.url, "another").acquire()
            assert time.monotonic() - start < 2  # each tries once
        before = store.cat_file(lock)
        assert output.loss == ""
        time.sleep(0.3)
        assert output.loss == "" and store.cat_file(lock) != before  # it is renewed again
    assert not store.exists(lock)
    with pytest.raises(ZeroDivisionError), hold_store_lock(output):
        monkeypatch.setattr(MemoryFileSystem, "info", fail if isinstance(error, OSError) else MemoryFileSystem.info)
        raise ZeroDivisionError  # not hidden by the failure to remove the lock
    store.store.clear()


def test_of_two_runs_that_write_at_once_one_stops(outputs, bucket, monkeypatch):
    """The store ignores the condition, and the other run writes last."""
    first, second = (StoreLock(output.url, output.owner) for output in outputs)
    first._wait_for_holder()
    store_lock.write_bytes(second._url, json.dumps(second._content).encode())
    second.check()
    with pytest.raises(InputError, match="is running in"):
        first.check()
