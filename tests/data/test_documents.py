"""Every format of text gives the same documents: files and datasets, line ends, bad text and huge lines."""

import gzip
import json
import resource
from pathlib import Path

import datasets
import forked
import pyarrow as pa
import pyarrow.parquet
import pytest

from snugbert.data.data_arguments import TextArguments
from snugbert.data.documents import find_files, name_files, read_dataset_documents, read_documents, read_lines
from snugbert.data.text_lines import ReadingLog, RemoteText, read_numbered_lines, read_text_lines
from snugbert.errors import InputError

DOCUMENTS = [["A line. And more of it.", "Another line."], ["Zwei Zeilen, ja."], ["ein Café", "€ 5"]]


def write_documents(folder: Path, suffix: str, line_end: str = "\n") -> Path:
    file = folder / f"text{suffix}"
    if suffix == ".parquet":
        datasets.Dataset.from_dict({"text": ["\n".join(lines) for lines in DOCUMENTS]}).to_parquet(file)
        return file
    if ".jsonl" in suffix:
        plain = "".join(json.dumps({"text": "\n".join(lines)}) + "\n" for lines in DOCUMENTS).encode()
    else:
        plain = "\ufeff".encode() + "\n\n".join("\n".join(lines) for lines in DOCUMENTS).encode()
    plain = plain.replace(b"\n", line_end.encode())
    if suffix.endswith(".gz"):
        plain = gzip.compress(plain)
    elif suffix.endswith(".zst"):  # in two frames, as parallel compressors write
        plain = b"".join(pa.compress(half, "zstd", asbytes=True) for half in (plain[:20], plain[20:]))
    file.write_bytes(plain)
    return file


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_every_format_gives_the_same_documents(bucket, suffix):
    """With every line end, from a folder and from a bucket."""
    for line_end in ("\n", "\r\n", "\r"):
        file = write_documents(bucket.folder, suffix, line_end)
        found = find_files([f"{bucket.url}/*{suffix}", f"{bucket.url}/{file.name}"])
        assert [str(each) for each in found] == [f"{bucket.url}/{file.name}"]
        for files in ([file], found):
            log = ReadingLog()
            assert list(read_documents(files, log=log)) == DOCUMENTS
            assert log.position == file.stat().st_size  # for the progress bar
        assert list(read_lines([file])) == [line for document in DOCUMENTS for line in document]
    assert found[0].size == file.stat().st_size


def test_each_file_is_found_once(tmp_path, bucket):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x")
    found = find_files([str(tmp_path / "*.txt"), str(tmp_path / "a.txt"), str(tmp_path / "c.jsonl")])
    assert [file.name for file in found] == ["a.txt", "b.txt", "c.jsonl"]
    with pytest.raises(
        InputError, match=f"{tmp_path} is a folder. Pass a file in it, or for text a pattern such as '{tmp_path}/"
    ):
        find_files([str(tmp_path)])
    (bucket.folder / "a.txt").write_text("x")  # old versions of s3fs do not list an empty bucket
    with pytest.raises(InputError, match=rf"^{bucket.url}/\*\.zip: no such file\. Check the URL\.$"):
        find_files([f"{bucket.url}/*.zip"])


def test_bad_rows_stop_or_are_left_out_or_repaired(tmp_path):
    file = tmp_path / "text.jsonl"
    bad = {
        b'{"text": "b\xffd"}': "line 2: not UTF-8",
        b'{"text": "cut': "row 3: not JSON",
        b"[1]": "row 4: expected a JSON object, found a list",
        b'{"body": "x"}': "row 5: no column 'text'. Columns: 'body'",
        b'{"text": 5}': "row 6: expected text in column 'text', found int.",
        b'{"text": null}': "row 7: expected text in column 'text', found null.",
    }
    for number, (row, problem) in enumerate(bad.items(), start=1):
        file.write_bytes(b'{"text": ""}\n' * number + row)
        with pytest.raises(InputError, match=f"{file}, {problem}.* To continue, set --on_bad_text skip"):
            list(read_documents([file], log=ReadingLog("error")))
    file.write_bytes(b"\n".join([b'{"text": "fine"}', *bad, b'{"text": "end"}']))
    log = ReadingLog("skip")
    assert list(read_documents([file], log=log)) == [["fine"], ["end"]]
    assert (log.left_out, log.repaired) == (6, 0) and f"The first: {file}, line 2: not UTF-8" in log.summarize()
    log = ReadingLog("replace")
    assert list(read_documents([file], log=log)) == [["fine"], ["b\ufffdd"], ["end"]]
    assert (log.left_out, log.repaired) == (5, 1)


def test_null_is_bad_text_in_parquet_and_in_datasets(tmp_path):
    """Empty texts are only empty documents."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "data/text.parquet"
    datasets.Dataset.from_dict({"text": ["one", None, "", "two"]}).to_parquet(file)
    text = TextArguments(dataset_name=str(tmp_path / "data"))
    for read in (lambda log: read_documents([file], log=log), lambda log: read_dataset_documents(text, log)):
        with pytest.raises(InputError, match=r", row 2: expected text in column 'text', found null\. To continue, s"):
            list(read(ReadingLog("error")))
        log = ReadingLog("skip")
        assert list(read(log)) == [["one"], ["two"]] and log.left_out == 1


def test_bad_rows_of_a_dataset_are_one_error(tmp_path):
    """The datasets library cannot skip them."""
    file, text = tmp_path / "data/train.jsonl", TextArguments(dataset_name=str(tmp_path / "data"), on_bad_text="skip")
    file.parent.mkdir()
    for row in (b'{"text": "b\xffd"}', b'{"te'):
        file.write_bytes(b'{"text": "fine"}\n' + row)
        with pytest.raises(InputError, match=r"dataset .*data, after row [01]: .* --train_file with --on_bad_text sk"):
            list(read_dataset_documents(text, ReadingLog("skip")))
    file.write_bytes(b'{"text": 5}\n{"text": 6}\n')
    log = ReadingLog("skip")
    assert list(read_dataset_documents(text, log)) == []
    assert (log.left_out, log.position) == (2, 2)


def test_a_damaged_parquet_file_is_named(tmp_path):
    file = tmp_path / "text.parquet"
    for checksum, changed, words in (
        (False, b"PAR1" + bytes(40), "damaged or incomplete"),
        (True, b"find", "damaged or incomplete"),  # still text: only the checksum of the page shows the damage
        (False, b"f\xffne", r"not UTF-8 \(invalid start byte\)\. Convert"),
    ):
        options = {"write_page_checksum": checksum, "compression": "none", "write_statistics": False}
        pyarrow.parquet.write_table(pa.table({"text": ["fine"]}), file, **options)
        content = file.read_bytes()
        start = content.index(b"fine") if len(changed) == 4 else 0
        file.write_bytes(content[:start] + changed + content[start + len(changed) :])
        with pytest.raises(InputError, match=rf"text\.parquet, after row 0: {words}"):
            list(read_documents([file], log=ReadingLog("skip")))


def test_names_are_relative_and_without_credentials():
    remote = [RemoteText(f"https://me:secret@host/text/{name}?token=secret", 1, "") for name in ("a/1.txt", "b/2.txt")]
    local = [Path("/data/text/c/3.txt"), Path("/data/text/c/4.txt")]
    assert name_files(remote) == ["a/1.txt", "b/2.txt"]
    assert name_files(local) == ["3.txt", "4.txt"]
    assert (remote[0].name, remote[0].suffix) == ("1.txt", ".txt") and "secret" not in f"{remote[0]} {remote[0]!r}"


# --- lines ---


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines_end_with_every_line_end_and_with_nothing_else(tmp_path, suffix):
    """Buffers have powers of two bytes. With every length of the first line, each line end is divided between two."""
    ends = ["\n", "\r", "\r\n", "\r", "\r\n", "\r\n", "\n", "\r", "\r"]
    rest = [f"{number}\u2028a\u2029b\x85c\x0bd\x0ce\x1cf{end}" for number, end in enumerate(ends)] + ["last"]
    compress = {"": bytes, ".gz": gzip.compress, ".zst": lambda text: pa.compress(text, "zstd", asbytes=True)}[suffix]
    file = tmp_path / f"text.txt{suffix}"
    for length in range(2**13 - 400, 2**13, 1 if suffix == "" else 20):
        lines = ["a" * length + "\r\n", *rest]
        file.write_bytes(compress("".join(lines).encode()))
        assert list(read_numbered_lines(file)) == list(enumerate(lines, start=1))


def test_lines_that_are_not_utf_8(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"fine\nb\xffd\nfine\n\xfe\n")
    advice = r"Convert the file to UTF-8, for example with iconv\."
    with pytest.raises(InputError, match=rf"text.txt, line 2: not UTF-8 \(invalid start byte\)\. {advice}$"):
        list(read_text_lines(file))
    with pytest.raises(InputError, match=rf"{advice} To continue, set --on_bad_text skip or replace\.$"):
        list(read_numbered_lines(file, log=ReadingLog("error")))
    for choice, lines, counts in (
        ("skip", {1: "fine", 3: "fine"}, "2 bad lines left out"),
        ("replace", {1: "fine", 2: "b\ufffdd", 3: "fine", 4: "\ufffd"}, "2 bad lines repaired, 0 bad lines left out"),
    ):
        log = ReadingLog(choice)
        assert list(read_numbered_lines(file, log=log)) == [(number, f"{line}\n") for number, line in lines.items()]
        assert log.summarize().startswith(f"--on_bad_text {choice}: {counts}. The first: {file}, line 2: not UTF-8")
        assert log.position == file.stat().st_size
    assert ReadingLog("skip").summarize() == ""


def read_and_print_peak(file):
    """Prints the error of a file, then the growth of the peak memory in megabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        list(read_text_lines(file))
    except InputError as error:
        print(error)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)


@pytest.mark.slow
def test_a_huge_line_in_a_small_file_takes_no_gigabytes(tmp_path):
    """400 MB of text in 400 KB of gzip are refused in 250 MB of memory."""
    file = tmp_path / "line.txt.gz"
    file.write_bytes(gzip.compress(b"fine\n") + gzip.compress(b"a" * 10**6) * 400)  # members follow each other
    assert file.stat().st_size < 600_000
    process = forked.run(read_and_print_peak, file)
    assert process.returncode == 0, process.stderr
    message, megabytes = process.stdout.splitlines()
    assert message.startswith(f"{file}, line 2: longer than 64 MiB. Split this line.") and int(megabytes) < 250
