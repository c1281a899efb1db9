"""Files in a real S3 bucket, in memory, in folders and on web servers."""

import functools
import http.server
import io
import random
import threading
import zipfile

import fsspec
import pytest

from snugbert.data.documents import find_files
from snugbert.errors import InputError
from snugbert.storage import urls as remote_files
from snugbert.storage.urls import Entry

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
    return {"memory": "memory://folder", "file": f"file://{tmp_path}"}[request.param]


@pytest.fixture
def web(tmp_path):
    """The URL and the folder of a web server, which ignores ranges and query strings."""
    handler = functools.partial(_Silent, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


# --- every store ------------------------------------------------------------------------------------------------


def test_files_are_the_same_in_every_store(folder, tmp_path, monkeypatch):
    source, copy = tmp_path / "source", tmp_path / "copies" / "copy"
    source.write_bytes(DATA)
    url = f"{folder}/a/b/part.arrow"
    assert remote_files.find_entry(url) is None
    assert remote_files.write_bytes(url, b"old")
    old = remote_files.find_entry(url)
    remote_files.upload(source, url)
    new = remote_files.find_entry(url)
    assert new.size == len(DATA) and new.version != old.version
    assert remote_files.read_bytes(url) == DATA
    assert remote_files.read_bytes(url, 10, 40_000) == DATA[10:40_000]
    assert remote_files.read_bytes(url, 5, 5) == b""
    remote_files.download(url, copy)
    assert copy.read_bytes() == DATA and [file.name for file in copy.parent.iterdir()] == ["copy"]
    with remote_files.open_file(url) as stream, monkeypatch.context() as patch:
        patch.setattr(remote_files, "_read_range", lambda *arguments: DATA)  # called once
        assert stream.read() == DATA
    with remote_files.open_file(url) as stream:
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
        return [url.removeprefix(f"{folder}/texts/") for url in remote_files.find_urls(f"{folder}/texts/{pattern}")]

    assert find("a?.txt") == ["a1.txt", "a2.txt"]
    assert find("[ab]1.txt") == ["a1.txt", "b1.txt"]
    assert find("**/a*.txt") == ["a1.txt", "a2.txt", "a[1].txt", "deep/a3.txt"]
    assert find("a[1].txt") == ["a[1].txt"]  # a file with this name is no pattern
    assert find("a1.txt") == ["a1.txt"]
    assert find("c*") == find("none.txt") == find("deep") == []
    assert list(remote_files.list_files(f"{folder}/texts")) == sorted(names)
    assert remote_files.list_files(f"{folder}/texts")["deep/a3.txt"].size == 11
    assert remote_files.list_files(f"{folder}/no") == {}
    assert [remote_files.read_bytes(url) for url in remote_files.find_urls(f"{folder}/texts/b*")] == [b"b1.txt"]


def test_a_new_file_is_made_once(folder):
    url = f"{folder}/run/lock"
    assert remote_files.write_bytes(url, b"first", only_new=True)
    assert not remote_files.write_bytes(url, b"second", only_new=True)
    assert remote_files.read_bytes(url) == b"first"


# --- S3 ---------------------------------------------------------------------------------------------------------


def test_lists_are_never_stale(faults, bucket):
    remote_files.write_bytes(f"{bucket.url}/a", b"a")
    assert list(remote_files.list_files(bucket.url)) == ["a"]
    assert remote_files.find_urls(f"{bucket.url}/*") == [f"{bucket.url}/a"]
    (bucket.folder / "b").write_bytes(b"of another machine")
    (bucket.folder / "a").unlink()
    assert list(remote_files.list_files(bucket.url)) == ["b"]
    assert remote_files.find_urls(f"{bucket.url}/*") == [f"{bucket.url}/b"]
    assert remote_files.find_entry(f"{bucket.url}/a") is None
    (bucket.folder / "b").write_bytes(b"longer than before, on another machine")
    assert remote_files.find_entry(f"{bucket.url}/b").size == 38


def test_a_missing_bucket_is_not_created(faults, bucket):
    with pytest.raises(InputError, match="no-such-bucket/a: no such bucket"):
        remote_files.write_bytes("s3://no-such-bucket/a", b"")
    assert not (bucket.folder.parent / "no-such-bucket").exists()


def test_a_file_that_changes_while_it_is_read_is_an_error(faults, bucket, tmp_path):
    file, url = bucket.folder / "file", f"{bucket.url}/file"
    file.write_bytes(DATA)

    def replace():
        file.write_bytes(DATA[::-1])

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


def test_a_file_that_becomes_shorter_is_an_error_at_once(folder, faults, caplog):
    """It is no lost connection, although the answer is too short or there is none."""
    remote_files.write_bytes(f"{folder}/file", DATA[:50_000])
    for start in (0, 60_000):
        with pytest.raises(InputError, match=r"file: 50,000 bytes instead of 100,000 or more\. The file was cut"):
            remote_files.read_bytes(f"{folder}/file", start, len(DATA))
    assert caplog.records == []


def test_pieces_are_read_at_once_and_only_again_if_they_failed(faults, bucket):
    (bucket.folder / "file").write_bytes(DATA)
    slow = faults.fail("slow", 2**16, method="GET", times=6)  # a quarter of a second for each piece
    cut = faults.fail("cut", 100, method="GET", times=1)
    assert remote_files.read_bytes(f"{bucket.url}/file") == DATA
    ranges = [part for method, _, part in faults.requests if method == "GET"]
    assert (slow.hits, cut.hits, len(ranges), len(set(ranges))) == (6, 1, 8, 7)


@pytest.mark.parametrize("kind", ["truncate", "corrupt"])
def test_a_damaged_upload_is_repeated(faults, bucket, tmp_path, monkeypatch, kind):
    source, url = tmp_path / "source", f"{bucket.url}/file"
    source.write_bytes(DATA)
    monkeypatch.setenv("SNUGBERT_STORAGE_TIMEOUT", "3")
    damage = faults.fail(kind, 1000, method="PUT", times=1)
    remote_files.upload(source, url)
    assert damage.hits == 1 and remote_files.read_bytes(url) == DATA
    faults.fail(kind, 1000, method="PUT")
    with pytest.raises(InputError) as caught:
        remote_files.upload(source, url)
    # Nobody reads the damaged one. Old versions of s3fs send a checksum, and rclone keeps what it does not match.
    assert remote_files.find_entry(url) is None or "BadDigest" in str(caught.value)


def test_an_encrypted_file_has_no_md5(faults, bucket, tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.write_bytes(DATA)
    monkeypatch.setattr(remote_files, "_read_entry", lambda store, path, facts: Entry(facts["size"], "0" * 32))
    remote_files.upload(source, f"{bucket.url}/file")
    assert remote_files.read_bytes(f"{bucket.url}/file") == DATA


def test_a_new_file_whose_answer_was_lost_is_ours(faults, bucket):
    faults.fail("lost", method="PUT", times=1)
    assert remote_files.write_bytes(f"{bucket.url}/lock", b"this process", only_new=True)
    faults.fail("status", (412, "PreconditionFailed"), method="PUT", times=1)  # rclone does not
    faults.fail("status", (404, "NoSuchKey"), method="HEAD", times=1)
    assert not remote_files.write_bytes(f"{bucket.url}/lock", b"another process", only_new=True)


# --- other URLs -------------------------------------------------------------------------------------------------


def test_chained_urls(faults, bucket):
    with zipfile.ZipFile(bucket.folder / "texts.zip", "w") as archive:
        archive.writestr("a.txt", "one")
        archive.writestr("b.txt", "two")
    rest = f"::{bucket.url}/texts.zip"
    assert remote_files.find_urls(f"zip://*.txt{rest}") == [f"zip://a.txt{rest}", f"zip://b.txt{rest}"]
    assert remote_files.read_bytes(f"zip://b.txt{rest}") == b"two"
    assert remote_files.find_entry(f"zip://c.txt{rest}") is None
    assert remote_files.find_entry(f"zip://a.txt{rest}").version  # a checksum
    assert find_files([f"zip://*.txt{rest}"])[1].name == "b.txt"
    with pytest.raises(InputError, match="fsspec's local copies can be incomplete"):
        remote_files.read_bytes(f"simplecache::{bucket.url}/texts.zip")


def test_names_below_a_folder():
    assert remote_files.join("s3://bucket/a/", "b", "c.txt") == "s3://bucket/a/b/c.txt"
    assert remote_files.join("https://host/model?sig=1", "config.json") == "https://host/model/config.json?sig=1"
    assert remote_files.join("zip://a::https://host/a.zip?sig=1", "b") == "zip://a/b::https://host/a.zip?sig=1"


def test_web_servers(web, monkeypatch):
    url, folder = web
    (folder / "small.txt").write_bytes(DATA[:10_000])
    (folder / "large.txt").write_bytes(DATA)
    assert remote_files.find_urls(f"{url}/small.txt?token=SECRET") == [f"{url}/small.txt?token=SECRET"]
    assert remote_files.read_bytes(f"{url}/small.txt?token=SECRET") == DATA[:10_000]
    assert {each[len(url) :]: entry.size for each, entry in remote_files.find_entries(f"{url}/*.txt").items()} == {
        "/large.txt": 100_000,
        "/small.txt": 10_000,
    }
    assert remote_files.find_urls(f"{url}/none.txt") == []
    with pytest.raises(InputError, match="does not support range requests"):
        remote_files.read_bytes(f"{url}/large.txt")
    monkeypatch.setattr(_Silent, "send_header", _without_length)
    with pytest.raises(InputError, match="the server sends no file size"):
        remote_files.read_bytes(f"{url}/small.txt")


def _without_length(handler, name, value):
    if name != "Content-Length":
        http.server.BaseHTTPRequestHandler.send_header(handler, name, value)
