"""Faults of a store: each is tried again until it works, or is one clear error in a stated time."""

import errno
import gc
import http.server
import logging
import os
import signal
import threading
import time

import botocore.exceptions
import fsspec
import pytest

from snugbert.errors import InputError
from snugbert.storage import requests as remote_requests
from snugbert.storage import urls as remote_files

DATA = bytes(range(256)) * 400


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Waits between two attempts are short, and so are the time limits of large answers."""
    monkeypatch.setattr(remote_requests, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(remote_requests, "SLOWEST", 2**20)


@pytest.fixture
def url(faults, bucket):
    """A file behind the proxy."""
    (bucket.folder / "file").write_bytes(DATA)
    return f"{bucket.url}/file"


def seconds_of(do):
    start = time.monotonic()
    do()
    return time.monotonic() - start


# --- lost connections -------------------------------------------------------------------------------------------

FAULTS = {
    "500": ("status", (500, "InternalError")),
    "503": ("status", (503, "SlowDown")),
    "429": ("status", (429, "TooManyRequests")),
    "damaged": ("status", (400, "IncompleteBody")),
    "cut off": ("cut", 1000),
    "wrong length": ("short", 1000),
    "no answer": ("lost", None),
    "hang": ("hang", None),
}


def mark_long(*values):
    """These parameters show little that the others do not show."""
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "method, fault",
    [
        *(("GET", fault) for fault in ("500", "damaged", "cut off", "wrong length")),
        *(mark_long("GET", fault) for fault in ("503", "429", "no answer", "hang")),
        *(("PUT", fault) for fault in ("no answer", "hang")),
        mark_long("PUT", "503"),
    ],
)
def test_a_fault_that_passes_is_not_noticed(faults, url, bucket, tmp_path, monkeypatch, caplog, method, fault):
    kind, value = FAULTS[fault]
    if fault == "hang":
        monkeypatch.setattr(remote_requests, "REQUEST_SECONDS", 0.3)
    found = faults.fail(kind, value, method=method, times=2)
    file = tmp_path / "copy"
    if method == "GET":
        remote_files.download(url, file)
    else:
        file.write_bytes(DATA[::-1])
        remote_files.upload(file, url)
    assert found.hits == 2
    assert (bucket.folder / "file").read_bytes() == file.read_bytes()
    warnings = [record.getMessage() for record in caplog.records]
    assert all(each.startswith(f"{url}: ") and each.endswith(". Retrying for 20 seconds.") for each in warnings)
    assert len(warnings) == 1 or fault == "hang"  # a busy computer can take 0.3 seconds for other requests


@pytest.mark.parametrize("fault", ["500", mark_long("cut off"), mark_long("wrong length"), "hang"])
def test_a_fault_that_stays_is_one_error(faults, url, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(remote_requests, "REQUEST_SECONDS", 0.3)
    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "0.6")
    faults.fail(*FAULTS[fault], method="GET")

    def download():
        with pytest.raises(InputError, match=r"file: no answer for 0.6 seconds \(.+\)\. Check the network, and run"):
            remote_files.download(url, tmp_path / "copy")

    assert seconds_of(download) < 3
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_gone_for_a_moment(faults, url):
    down = faults.refuse()
    down.__enter__()
    threading.Timer(0.3, down.__exit__, (None, None, None)).start()
    assert remote_files.read_bytes(url) == DATA


def test_a_server_that_is_gone(faults, url, monkeypatch):
    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "0.2")
    with faults.refuse():
        for do in (remote_files.read_bytes, remote_files.list_files, remote_files.find_urls, remote_files.remove):
            with pytest.raises(InputError, match=r"no answer for 0.2 seconds \(Could not connect"):
                do(url)


def test_a_slow_connection_is_not_an_error(faults, url, monkeypatch):
    monkeypatch.setattr(remote_requests, "REQUEST_SECONDS", 0.3)
    faults.fail("slow", 200_000, method="GET", times=1)  # half a second
    monkeypatch.setattr(remote_requests, "SLOWEST", 150_000)
    assert remote_files.read_bytes(url) == DATA
    assert [method for method, *_ in faults.requests].count("GET") == 1


def test_half_an_upload_is_never_published(faults, url, bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "0.2")
    file = tmp_path / "new"
    file.write_bytes(DATA * 2)
    faults.fail("status", (500, "InternalError"), method="PUT")
    with pytest.raises(InputError, match="no answer"):
        remote_files.upload(file, url)
    with pytest.raises(InputError, match="no answer"):
        remote_files.write_bytes(f"{bucket.url}/other", b"text")
    assert [(each.name, each.read_bytes()) for each in bucket.folder.iterdir()] == [("file", DATA)]


# --- refusals ---------------------------------------------------------------------------------------------------


def test_a_refusal_ends_soon(faults, url, caplog, monkeypatch):
    monkeypatch.setattr(remote_requests, "ATTEMPTS", 2)
    faults.fail("status", (403, "AccessDenied"))
    for do in (remote_files.read_bytes, remote_files.list_files):
        with pytest.raises(InputError, match=r"the store refuses access \(.*\)\. Check the URL, and the credentials"):
            do(url)
    assert caplog.records == []  # it is not tried again until the deadline


@pytest.fixture
def no_credentials(url, monkeypatch):
    """Neither the environment nor a connection has credentials."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_credentials_that_expire_are_read_again(faults, url, no_credentials, tmp_path, monkeypatch):
    file = tmp_path / "credentials"

    def renew(token):
        file.write_text(
            f"[default]\naws_access_key_id=LONGKEYID\naws_secret_access_key=SECRETSECRET\naws_session_token={token}\n"
        )

    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    renew("first")
    faults.fail("expired", "first")
    assert remote_files.read_bytes(url) == DATA
    faults.heal()
    faults.fail("expired", "second")
    threading.Timer(0.1, renew, ["second"]).start()
    assert remote_files.read_bytes(url) == DATA
    renew("third")
    faults.heal()
    expired = faults.fail("expired", "third")
    assert remote_files.read_bytes(url) == DATA
    before = expired.hits
    assert remote_files.read_bytes(url) == DATA
    assert expired.hits == before + 3  # HEAD, GET, HEAD: the new connection is kept


def test_missing_credentials_are_one_error(url, no_credentials, monkeypatch):
    monkeypatch.setattr(remote_requests, "ATTEMPTS", 2)
    with pytest.raises(InputError, match=r"refuses access \(Unable to locate credentials\)"):
        remote_files.read_bytes(url)


def test_which_errors_are_tried_again():
    def classify(error, cause=None):
        error.__cause__ = cause
        if remote_requests._is_temporary(error):
            return "again"
        return "refused" if remote_requests._is_refusal(error) else "mistake"

    class HttpError(Exception):  # as in gcsfs
        def __init__(self, code):
            self.code = code

    assert classify(ConnectionResetError()) == "again"
    assert classify(OSError(errno.EHOSTUNREACH, "No route to host")) == "again"
    assert classify(TimeoutError()) == "again"
    assert classify(botocore.exceptions.EndpointConnectionError(endpoint_url="http://a")) == "again"
    assert classify(HttpError("503")) == classify(HttpError(429)) == "again"
    assert classify(HttpError(401)) == "refused"
    assert classify(OSError("Forbidden: gs://bucket/file")) == "refused"
    assert classify(botocore.exceptions.NoCredentialsError()) == "refused"
    assert classify(OSError(errno.EINVAL, "InvalidBucketName")) == "refused"
    assert classify(OSError(errno.ENOSPC, "No space left on device")) == "refused"
    assert classify(TypeError()) == "mistake"


@pytest.mark.parametrize(
    "name, message",
    [("nothing://a/b", "Protocol not known: nothing"), ("s3://Not a bucket/b", "Invalid bucket name")],
)
def test_urls_that_cannot_work(name, message, faults, monkeypatch):
    monkeypatch.setattr(remote_requests, "ATTEMPTS", 2)
    with pytest.raises(InputError, match=message):
        remote_files.read_bytes(name)


def test_a_missing_package_is_named(monkeypatch):
    def fail(*args, **kwargs):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    with pytest.raises(
        InputError, match=r"s3://a/b: the package for s3:// is missing. Run: pip install 'snugbert\[s3\]'"
    ):
        remote_files.read_bytes("s3://a/b")


# --- secrets ----------------------------------------------------------------------------------------------------


def test_credentials_in_urls_are_hidden():
    hide = remote_requests.hide_credentials
    assert hide("https://user:pass@word@host/file.txt?token=abc#part") == "https://host/file.txt"
    assert hide("zip://a.txt::https://user:word@host/a.zip?token=abc") == "zip://a.txt::https://host/a.zip"
    assert hide("hf://datasets/user/name@main/file.txt") == "hf://datasets/user/name@main/file.txt"
    assert hide("a path/with?signs@all") == "a path/with?signs@all"
    # These characters should be encoded in a password, but often are not.
    for sign in "#?/@":
        assert hide(f"https://user:pa{sign}ss@host/f") == "https://host/f"
    assert hide("s3://KEY:SEC/RET@bucket/x") == "s3://bucket/x"
    assert hide("https://host/f?id=name@project&signature=abc") == "https://host/f"
    assert "abc" not in hide("https://host/f?time=12:00&id=name@project&signature=abc")
    assert hide("http://127.0.0.1:80/a@b.txt") == "http://127.0.0.1:80/a@b.txt"
    # Names in a bucket can have these signs, but a query string is never shown.
    assert hide("s3://bucket/c#1?.txt") == "s3://bucket/c#1?.txt"
    assert hide("s3://bucket/a.txt?versionId=abc") == "s3://bucket/a.txt"


@pytest.mark.parametrize("status", [404, 403, 500, 0])
def test_no_message_has_a_secret(status, caplog, monkeypatch, tmp_path):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(status)

        do_HEAD = do_GET

        def log_message(self, *args):
            pass

    caplog.set_level(logging.INFO)
    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "0.2")
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        if status:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        else:
            server.server_close()  # nobody listens
        url = f"http://USERNAME:PASSWORD@127.0.0.1:{server.server_port}/file?token=TOKEN"
        with pytest.raises(FileNotFoundError if status == 404 else InputError) as caught:
            remote_files.download(url, tmp_path / "file")
        if status:
            server.shutdown()
    shown = [str(caught.value), *(record.getMessage() for record in caplog.records)]
    assert caught.value.__cause__ is caught.value.__context__ is None  # a traceback shows no other error
    assert all("/file" in each for each in shown)
    for secret in ("USERNAME", "PASSWORD", "TOKEN"):
        assert not any(secret in each for each in shown)


# --- processes and signals --------------------------------------------------------------------------------------


def test_a_forked_process_does_not_hang(url):
    assert remote_files.read_bytes(url) == DATA  # the connection exists before the fork
    gc.collect()  # fsspec takes a second to close each old connection of another test in the child
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if remote_files.read_bytes(url) == DATA else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + 10
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended[0] and os.waitstatus_to_exitcode(ended[1]) == 0
    assert remote_files.read_bytes(url) == DATA


@pytest.mark.parametrize("kind", ["hang", "status"])
def test_control_c_ends_at_once(faults, url, tmp_path, monkeypatch, kind):
    """During a request, and between two attempts."""
    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "60")
    monkeypatch.setattr(remote_requests, "FIRST_WAIT", 30)
    faults.fail(kind, (500, "InternalError"), method="GET")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    def download():
        with pytest.raises(KeyboardInterrupt):
            remote_files.download(url, tmp_path / "copy")

    assert seconds_of(download) < 1.5
    assert list(tmp_path.iterdir()) == []
