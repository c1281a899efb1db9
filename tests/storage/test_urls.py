"""Files in a real S3 bucket, in memory, in folders and on web servers, and the faults of a store."""

import functools
import gc
import http.server
import io
import logging
import multiprocessing
import random
import sys
import threading
import zipfile
from contextlib import nullcontext
from unittest.mock import Mock

import fsspec
import pytest

from snugbert.data.documents import find_files
from snugbert.errors import InputError
from snugbert.storage import urls as remote_files
from snugbert.storage.urls import hide_credentials

DATA = random.Random(0).randbytes(100_000)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Small files have several pieces."""
    monkeypatch.setattr(remote_files, "CHUNK_BYTES", 2**14)


@pytest.fixture(params=["s3", "memory", "file"])
def folder(request, tmp_path):
    """The URL of an empty folder in each kind of store."""
    if request.param == "s3":
        request.getfixturevalue("faults")
        return request.getfixturevalue("bucket").url
    fsspec.filesystem("memory").store.clear()
    return {"memory": "memory:///folder", "file": f"file://{tmp_path}"}[request.param]


@pytest.fixture
def web(tmp_path):
    """The URL of a web server for `tmp_path`, which ignores ranges and query strings."""
    handler = functools.partial(_Silent, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def find_urls(pattern):
    return list(remote_files.find_entries(pattern))


# --- every store ------------------------------------------------------------------------------------------------


def test_files_are_the_same_in_every_store(folder, tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copies" / "copy"
    source.write_bytes(DATA)
    url = f"{folder}/a/b/part.arrow"
    assert remote_files.find_entry(url) is None
    remote_files.write_bytes(url, b"old")
    old = remote_files.find_entry(url)
    remote_files.upload(source, url)
    new = remote_files.find_entry(url)
    assert new.size == len(DATA) and new.version != old.version
    assert remote_files.read_bytes(url) == DATA
    assert remote_files.read_bytes(url, 10, 40_000) == DATA[10:40_000]
    assert remote_files.read_bytes(url, 5, 5) == b""
    remote_files.download(url, copy)
    assert copy.read_bytes() == DATA and [file.name for file in copy.parent.iterdir()] == ["copy"]
    with remote_files.open_file(url) as stream:
        assert stream.read() == DATA
        stream.seek(-30_000, io.SEEK_END)
        assert stream.read() == DATA[-30_000:]
    remote_files.remove(url)
    remote_files.remove(url)
    assert remote_files.find_entry(url) is None
    with pytest.raises(FileNotFoundError, match=r"part\.arrow: no such file"):
        remote_files.read_bytes(url)


def test_globs(folder):
    names = ["a1.txt", "a2.txt", "b1.txt", "a[1].txt", "deep/a3.txt"]
    for name in names:
        remote_files.write_bytes(f"{folder}/texts/{name}", name.encode())

    def find(pattern):
        return [url.removeprefix(f"{folder}/texts/") for url in find_urls(f"{folder}/texts/{pattern}")]

    assert find("a?.txt") == ["a1.txt", "a2.txt"]
    assert find("[ab]1.txt") == ["a1.txt", "b1.txt"]
    assert find("**/a*.txt") == ["a1.txt", "a2.txt", "a[1].txt", "deep/a3.txt"]
    assert find("a[1].txt") == ["a[1].txt"]  # a file with this name is no pattern
    assert find("a1.txt") == ["a1.txt"]
    assert find("c*") == find("none.txt") == find("deep") == []
    assert list(remote_files.list_files(f"{folder}/texts")) == sorted(names)
    assert remote_files.list_files(f"{folder}/texts")["deep/a3.txt"].size == 11
    assert remote_files.list_files(f"{folder}/no") == {}


# --- S3 ---------------------------------------------------------------------------------------------------------


def test_lists_are_never_stale(faults, bucket):
    for written, removed in (("a", "none"), ("b", "a")):
        (bucket.folder / removed).unlink(missing_ok=True)
        (bucket.folder / written).write_bytes(b"of another machine")
        assert list(remote_files.list_files(bucket.url)) == [written]
        assert find_urls(f"{bucket.url}/*") == [f"{bucket.url}/{written}"]
    assert remote_files.find_entry(f"{bucket.url}/a") is None
    (bucket.folder / "b").write_bytes(b"longer than before, on another machine")
    assert remote_files.find_entry(f"{bucket.url}/b").size == 38


def test_a_file_that_changes_while_it_is_read_is_an_error(faults, bucket, tmp_path):
    file, url = bucket.folder / "file", f"{bucket.url}/file"

    def replace():
        (tmp_path / "new").write_bytes(DATA[::-1])
        (tmp_path / "new").replace(file)

    for read in (remote_files.read_bytes, functools.partial(remote_files.download, file=tmp_path / "copy")):
        file.write_bytes(DATA)
        faults.fail("then", replace, method="GET", times=1)
        with pytest.raises(InputError, match="file changed while it was read"):
            read(url)
    assert list(tmp_path.iterdir()) == []
    file.write_bytes(DATA)
    stream = remote_files.open_file(url)
    stream.read(10)
    replace()
    with pytest.raises(InputError, match="changed"):
        stream.read()


def test_a_file_is_new_for_one_writer(faults, bucket):
    assert remote_files.write_new(f"{bucket.url}/lock", b"first") == b"first"
    assert remote_files.write_new(f"{bucket.url}/lock", b"second") == b"first"
    faults.fail("lost", method="PUT", times=1)
    assert remote_files.write_new(f"{bucket.url}/lost", b"this process") == b"this process"
    # Another process writes after the check. rclone ignores the condition, other stores answer 412.
    faults.fail("status", (404, "NoSuchKey"), method="HEAD", times=1)
    faults.fail("status", (412, "PreconditionFailed"), method="PUT", times=1)
    assert remote_files.write_new(f"{bucket.url}/lock", b"second") == b"first"


# --- other URLs -------------------------------------------------------------------------------------------------


def test_chained_urls(faults, bucket):
    with zipfile.ZipFile(bucket.folder / "texts.zip", "w") as archive:
        archive.writestr("a.txt", "one")
        archive.writestr("b.txt", "two")
    rest = f"::{bucket.url}/texts.zip"
    assert find_urls(f"zip://*.txt{rest}") == [f"zip://a.txt{rest}", f"zip://b.txt{rest}"]
    assert remote_files.read_bytes(f"zip://b.txt{rest}") == b"two"
    assert remote_files.find_entry(f"zip://c.txt{rest}") is None
    assert remote_files.find_entry(f"zip://a.txt{rest}").version  # a checksum
    assert find_files([f"zip://*.txt{rest}"])[1].name == "b.txt"


def test_names_below_a_folder():
    assert remote_files.join("s3://bucket/a/", "b", "c.txt") == "s3://bucket/a/b/c.txt"
    assert remote_files.join("https://host/model?sig=1", "config.json") == "https://host/model/config.json?sig=1"
    assert remote_files.join("zip://a::https://host/a.zip?sig=1", "b") == "zip://a/b::https://host/a.zip?sig=1"


def test_web_servers(web, tmp_path, monkeypatch):
    (tmp_path / "small.txt").write_bytes(DATA[:10_000])
    (tmp_path / "large.txt").write_bytes(DATA)
    assert find_urls(f"{web}/small.txt?token=SECRET") == [f"{web}/small.txt?token=SECRET"]
    assert remote_files.read_bytes(f"{web}/small.txt?token=SECRET") == DATA[:10_000]
    sizes = {url.removeprefix(web): entry.size for url, entry in remote_files.find_entries(f"{web}/*.txt").items()}
    assert sizes == {"/large.txt": 100_000, "/small.txt": 10_000}
    assert find_urls(f"{web}/none.txt") == []
    with pytest.raises(InputError, match="does not support range requests"):
        remote_files.read_bytes(f"{web}/large.txt")
    send = http.server.BaseHTTPRequestHandler.send_header
    monkeypatch.setattr(_Silent, "send_header", lambda *header: "Content-Length" in header or send(*header))
    with pytest.raises(InputError, match="the server sends no file size"):
        remote_files.read_bytes(f"{web}/small.txt")


# --- faults -----------------------------------------------------------------------------------------------------

FAULTS = {
    "500": ("status", (500, "InternalError")),
    "503": ("status", (503, "SlowDown")),
    "429": ("status", (429, "TooManyRequests")),
    "refused": ("status", (403, "AccessDenied")),
    "cut off": ("cut", 1000),
    "wrong length": ("short", 1000),
    "no answer": ("lost", None),
    "hang": ("hang", None),
    "slow": ("slow", 200_000),
    "truncated": ("truncate", 1000),
}
PASSING = [("GET", name) for name in ("500", "cut off", "slow")]
PASSING += [("PUT", name) for name in ("503", "no answer")]
LASTING = [("GET", name) for name in ("500", "429", "refused", "cut off", "wrong length", "no answer", "hang")]
LASTING += [("PUT", name) for name in ("500", "refused", "truncated")]
ROWS = [(*fault, False) for fault in PASSING] + [(*fault, True) for fault in LASTING]


@pytest.fixture
def url(faults, bucket, monkeypatch):
    """A file behind the proxy. The libraries soon give up."""
    (bucket.folder / "file").write_bytes(DATA)
    store = fsspec.get_filesystem_class("s3")
    monkeypatch.setattr(store, "retries", 2)
    monkeypatch.setattr(store, "read_timeout", 0.5)
    store.clear_instance_cache()
    yield f"{bucket.url}/file"
    store.clear_instance_cache()


@pytest.mark.parametrize("method, fault, lasts", ROWS)
def test_a_fault_is_not_noticed_or_one_sentence(faults, url, bucket, tmp_path, method, fault, lasts):
    """A fault that passes is not noticed. One that lasts is one sentence, and neither file is half written."""
    source, stored = tmp_path / "source", bucket.folder / "file"
    source.write_bytes(DATA[::-1])
    found = faults.fail(*FAULTS[fault], method=method, times=float("inf") if lasts else 1)
    message = r"/file: (the store does not answer or refuses access \(.+\)\. Check|[\d,]+ bytes|the stored copy)"
    with pytest.raises(InputError, match=message) if lasts else nullcontext():
        if method == "GET":
            remote_files.download(url, tmp_path / "copy")
        else:
            remote_files.upload(source, url)
    if lasts:
        assert list(tmp_path.iterdir()) == [source]
        # rclone keeps a copy that does not match the checksum that old versions of s3fs send.
        assert fault in ("truncated", "other byte") or not stored.exists() or stored.read_bytes() == DATA
    else:
        assert found.hits == 1
        assert stored.read_bytes() == (tmp_path / "copy" if method == "GET" else source).read_bytes()


def test_a_bug_is_not_an_error_of_the_store():
    for error in (MemoryError, TypeError):
        with pytest.raises(error):
            remote_files.ask("memory://file", Mock(side_effect=error))


def test_a_server_that_is_gone(faults, url):
    with faults.refuse():
        for do in (remote_files.read_bytes, remote_files.list_files, find_urls, remote_files.remove):
            with pytest.raises(InputError, match=r"the store does not answer.*\(Could not connect"):
                do(url)


def test_credentials_are_read_again_after_an_error(url, tmp_path, monkeypatch):
    """They may have been renewed."""
    file = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with pytest.raises(InputError, match=r"refuses access \(Unable to locate credentials\)"):
        remote_files.read_bytes(url)
    for key, error in (("WRONG", pytest.raises(InputError, match="refuses access")), ("LONGKEYID", nullcontext())):
        file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=SECRETSECRET\n")
        with error:
            assert remote_files.read_bytes(url) == DATA


@pytest.mark.parametrize(
    "name, message",
    [
        ("nothing://a/b", "nothing://a/b: the store does not answer .*Protocol not known: nothing"),
        ("s3://Not a bucket/b", "Invalid bucket name"),
        ("s3://no-such-bucket/a", "no-such-bucket/a: no such bucket"),
        ("gs://a/b", r"gs://a/b: .*Please install gcsfs.*the installed extras \(snugbert\[s3,gcs\]\)"),
    ],
)
def test_urls_that_cannot_work(name, message, faults, bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=message):
        remote_files.write_bytes(name, b"")
    assert not (bucket.folder.parent / "no-such-bucket").exists()


# --- secrets ----------------------------------------------------------------------------------------------------

SHOWN = {
    "https://user:pass@word@host/file.txt?token=abc#part": "https://host/file.txt",
    "zip://a.txt::https://user:word@host/a.zip?token=abc": "zip://a.txt::https://host/a.zip",
    "hf://datasets/user/name@main/file.txt": "hf://datasets/user/name@main/file.txt",
    "a path/with?signs@all": "a path/with?signs@all",
    # These characters should be encoded in a password, but often are not.
    "https://user:pa#ss@host/f": "https://host/f",
    "https://user:pa?ss@host/f": "https://host/f",
    "https://user:pa/ss@host/f": "https://host/f",
    "https://user:pa@ss@host/f": "https://host/f",
    "s3://KEY:SEC/RET@bucket/x": "s3://bucket/x",
    "https://host/f?id=name@project&signature=abc": "https://host/f",
    "http://127.0.0.1:80/a@b.txt": "http://127.0.0.1:80/a@b.txt",
    # Names in a bucket can have these signs, but a query string is never shown.
    "s3://bucket/c#1?.txt": "s3://bucket/c#1?.txt",
    "s3://bucket/a.txt?versionId=abc": "s3://bucket/a.txt",
}


def test_credentials_in_urls_are_hidden():
    assert {url: hide_credentials(url) for url in SHOWN} == SHOWN
    assert "abc" not in hide_credentials("https://host/f?time=12:00&id=name@project&signature=abc")


@pytest.mark.parametrize("status", [404, 403, 500, 0])
def test_no_message_has_a_secret(status, faults, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    faults.fail("status", (status, "error"))
    url = faults.address.replace("://", "://USERNAME:PASSWORD@") + "/file?token=TOKEN"
    with faults.refuse() if status == 0 else nullcontext():
        with pytest.raises(FileNotFoundError if status == 404 else InputError) as caught:
            remote_files.download(url, tmp_path / "file")
    shown = [str(caught.value), *(record.getMessage() for record in caplog.records)]
    assert caught.value.__cause__ is caught.value.__context__ is None  # a traceback shows no other error
    assert all("/file" in each for each in shown)
    for secret in ("USERNAME", "PASSWORD", "TOKEN"):
        assert not any(secret in each for each in shown)


# --- processes --------------------------------------------------------------------------------------------------


def read_in_child(url):
    assert remote_files.read_bytes(url) == DATA


def test_a_forked_process_does_not_hang(url):
    read_in_child(url)  # the connection exists before the fork
    gc.collect()  # fsspec takes a second to close each old connection of another test in the child
    child = multiprocessing.get_context("fork").Process(target=read_in_child, args=[url])
    child.start()
    child.join(10)
    child.kill()
    assert child.exitcode == 0
    read_in_child(url)
