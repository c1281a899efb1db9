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
from contextlib import contextmanager, nullcontext

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from snugbert.errors import InputError
from snugbert.storage import urls
from snugbert.storage.urls import hide_credentials

DATA = random.Random(0).randbytes(100_000)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Small files have several pieces."""
    monkeypatch.setattr(urls, "CHUNK_BYTES", 2**14)


@pytest.fixture(params=["s3", "memory", "file"])
def folder(request, tmp_path):
    """The URL of an empty folder in each kind of store."""
    if request.param == "s3":
        return request.getfixturevalue("bucket").url
    fsspec.filesystem("memory").store.clear()
    return {"memory": "memory:///folder", "file": f"file://{tmp_path}"}[request.param]


def find_urls(pattern):
    return list(urls.find_entries(pattern))


# --- every store ------------------------------------------------------------------------------------------------


def test_files_are_the_same_in_every_store(folder, tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copies" / "copy"
    source.write_bytes(DATA)
    url = f"{folder}/a/b/part.arrow"
    assert urls.find_entry(url) is None
    urls.write_bytes(url, b"old")
    old = urls.find_entry(url)
    urls.upload(source, url)
    new = urls.find_entry(url)
    assert new.size == len(DATA) and new.version != old.version
    assert urls.read_bytes(url) == DATA
    assert urls.read_bytes(url, 10, 40_000) == DATA[10:40_000]
    assert urls.read_bytes(url, 5, 5) == b""
    urls.download(url, copy)
    assert copy.read_bytes() == DATA and [file.name for file in copy.parent.iterdir()] == ["copy"]
    with urls.open_file(url) as stream:
        stream.seek(-30_000, io.SEEK_END)
        assert stream.read() == DATA[-30_000:]
    for _ in range(2):
        urls.remove(url)
    assert urls.find_entry(url) is None
    with pytest.raises(FileNotFoundError, match=r"part\.arrow: no such file"):
        urls.read_bytes(url)


def test_globs(folder):
    names = ["a1.txt", "a2.txt", "b1.txt", "a[1].txt", "deep/a3.txt"]
    for name in names:
        urls.write_bytes(f"{folder}/texts/{name}", name.encode())

    def find(pattern):
        return [url.removeprefix(f"{folder}/texts/") for url in find_urls(f"{folder}/texts/{pattern}")]

    assert find("a?.txt") == ["a1.txt", "a2.txt"]
    assert find("[ab]1.txt") == ["a1.txt", "b1.txt"]
    assert find("**/a*.txt") == ["a1.txt", "a2.txt", "a[1].txt", "deep/a3.txt"]
    assert find("a[1].txt") == ["a[1].txt"]  # a file with this name is no pattern
    assert find("a1.txt") == ["a1.txt"]
    assert find("c*") == find("none.txt") == find("deep") == []
    files = urls.list_files(f"{folder}/texts")
    assert list(files) == sorted(names) and files["deep/a3.txt"].size == 11
    assert urls.list_files(f"{folder}/no") == {}


# --- S3 ---------------------------------------------------------------------------------------------------------


def test_credentials_are_read_again_after_an_error(bucket, tmp_path, monkeypatch):
    """They may have been renewed."""
    file, store = tmp_path / "credentials", fsspec.get_filesystem_class("s3")
    (bucket.folder / "file").write_bytes(DATA)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    store.clear_instance_cache()
    for key, error in (("WRONG", pytest.raises(InputError, match="refuses access")), ("LONGKEYID", nullcontext())):
        file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=SECRETSECRET\n")
        with error:
            assert urls.read_bytes(f"{bucket.url}/file") == DATA
    store.clear_instance_cache()


# --- other URLs -------------------------------------------------------------------------------------------------


def test_names_below_a_folder():
    assert urls.join("s3://bucket/a/", "b", "c.txt") == "s3://bucket/a/b/c.txt"
    assert urls.join("https://host/model?sig=1", "config.json") == "https://host/model/config.json?sig=1"
    assert urls.join("zip://a::https://host/a.zip?sig=1", "b") == "zip://a/b::https://host/a.zip?sig=1"


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def serve(handler):
    """Yields the address of a web server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_web_servers(tmp_path):
    """The server ignores ranges and query strings."""
    (tmp_path / "small.txt").write_bytes(DATA[:10_000])
    (tmp_path / "large.txt").write_bytes(DATA)
    with serve(functools.partial(Silent, directory=tmp_path)) as web:
        assert urls.read_bytes(f"{web}/small.txt?token=SECRET") == DATA[:10_000]
        sizes = {url.removeprefix(web): entry.size for url, entry in urls.find_entries(f"{web}/*.txt").items()}
        assert sizes == {"/large.txt": 100_000, "/small.txt": 10_000}
        assert find_urls(f"{web}/none.txt") == []
        with pytest.raises(InputError, match="does not support range requests"):
            urls.read_bytes(f"{web}/large.txt")


@pytest.mark.parametrize(
    "name, message",
    [
        ("nothing://a/b", "nothing://a/b: the store does not answer .*Protocol not known: nothing"),
        ("s3://no-such-bucket/a", "no-such-bucket/a: no such bucket"),
        ("gs://a/b", r"gs://a/b: .*Please install gcsfs.*the installed extras \(snugbert\[s3,gcs\]\)"),
    ],
)
def test_urls_that_cannot_work(name, message, bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InputError, match=message):
        urls.write_bytes(name, b"")
    assert not (bucket.folder.parent / "no-such-bucket").exists()


# --- faults that the library of a store does not repair ---------------------------------------------------------

URL = "memory:///file"


@pytest.fixture
def replace_method(monkeypatch):
    """Replaces a method of the store in memory, which contains `URL`. The new one gets the old one."""
    fsspec.filesystem("memory").store.clear()
    urls.write_bytes(URL, DATA)

    def replace(name, new):
        old = getattr(MemoryFileSystem, name)
        monkeypatch.setattr(MemoryFileSystem, name, lambda *args, **options: new(old, *args, **options))

    return replace


def fail(*args, **options):
    raise OSError("broken")


def cut(old, store, *args, **options):
    return old(store, *args, **options)[:-1]


def truncate(old, store, file, path, **options):
    store.pipe_file(path, DATA[:-1])


@pytest.mark.parametrize(
    ("method", "fault", "message"),
    [
        ("cat_file", fail, r"/file: the store does not answer or refuses access \(broken\)\. Check"),
        ("cat_file", cut, r"/file: [\d,]+ bytes instead of 100,000"),
        ("put_file", fail, r"/file: the store does not answer or refuses access \(broken\)\. Check"),
        ("put_file", truncate, "/file: the stored copy differs"),
    ],
)
def test_a_fault_is_one_sentence_and_no_file_is_half_written(method, fault, message, replace_method, tmp_path):
    (tmp_path / "source").write_bytes(DATA[::-1])
    replace_method(method, fault)
    with pytest.raises(InputError, match=message):
        if method == "cat_file":
            urls.download(URL, tmp_path / "copy")
        else:
            urls.upload(tmp_path / "source", URL)
    assert [file.name for file in tmp_path.iterdir()] == ["source"]
    stored = fsspec.filesystem("memory").store
    assert "/file" not in stored if fault is truncate else stored["/file"].getvalue() == DATA


def test_a_file_that_changes_while_it_is_read_is_an_error(replace_method, tmp_path):
    changes = [DATA[::-1]]

    def read_and_change(old, store, path, *args, **options):
        data = old(store, path, *args, **options)
        if changes:
            store.pipe_file(path, changes.pop())
        return data

    replace_method("cat_file", read_and_change)
    with pytest.raises(InputError, match="file changed while it was read"):
        urls.download(URL, file=tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []
    with urls.open_file(URL) as stream:
        stream.read(10)
        changes.append(DATA)
        with pytest.raises(InputError, match="changed"):
            stream.read()


def test_a_file_is_new_for_one_writer(replace_method):
    """Also if the answer is lost, and if another process writes after the check."""
    assert urls.write_new("memory:///lock", b"first") == urls.write_new("memory:///lock", b"second") == b"first"

    def lose_the_answer(old, store, path, data, **options):
        if path == "/other":
            old(store, path, b"of another process")
        old(store, path, data, **options)
        raise OSError

    replace_method("pipe_file", lose_the_answer)
    assert urls.write_new("memory:///lost", b"this process") == b"this process"
    assert urls.write_new("memory:///other", b"this process") == b"of another process"


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


@pytest.mark.parametrize("status", [404, 403])
def test_no_message_has_a_secret(status, caplog, tmp_path):
    caplog.set_level(logging.INFO)

    class Refusing(Silent):
        def do_GET(self):
            self.send_error(status)

        do_HEAD = do_GET

    with serve(Refusing) as address:
        url = address.replace("://", "://USERNAME:PASSWORD@") + "/file?token=TOKEN"
        with pytest.raises(FileNotFoundError if status == 404 else InputError) as caught:
            urls.download(url, tmp_path / "file")
    shown = [str(caught.value), *(record.getMessage() for record in caplog.records)]
    assert caught.value.__cause__ is caught.value.__context__ is None  # a traceback shows no other error
    assert all("/file" in each for each in shown)
    for secret in ("USERNAME", "PASSWORD", "TOKEN"):
        assert not any(secret in each for each in shown)


# --- processes --------------------------------------------------------------------------------------------------


def read_in_child(url):
    assert urls.read_bytes(url) == DATA


def test_a_forked_process_does_not_hang(bucket):
    url = f"{bucket.url}/file"
    (bucket.folder / "file").write_bytes(DATA)
    read_in_child(url)  # the connection exists before the fork
    gc.collect()  # fsspec takes a second to close each old connection of another test in the child
    child = multiprocessing.get_context("fork").Process(target=read_in_child, args=[url])
    child.start()
    child.join(10)
    child.kill()
    assert child.exitcode == 0
    read_in_child(url)


def test_chained_urls(tmp_path):
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        archive.writestr("a.txt", "one")
        archive.writestr("b.txt", "two")
    rest = f"::file://{tmp_path}/texts.zip"
    assert find_urls(f"zip://*.txt{rest}") == [f"zip://a.txt{rest}", f"zip://b.txt{rest}"]
    assert urls.read_bytes(f"zip://b.txt{rest}") == b"two"
    assert urls.find_entry(f"zip://c.txt{rest}") is None
