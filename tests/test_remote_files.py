"""Tests for files in stores."""

from snugbert import remote_files


def test_a_bucket(bucket):
    remote_files.write_bytes(f"{bucket.url}/a/b.txt", b"text")
    (bucket.folder / "c.txt").write_bytes(b"other")
    assert (bucket.folder / "a/b.txt").read_bytes() == b"text"
    assert list(remote_files.list_files(bucket.url)) == ["a/b.txt", "c.txt"]


def test_another_bucket(bucket):
    assert remote_files.list_files(bucket.url) == {}
