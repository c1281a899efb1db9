"""Lines of text files: line ends, text that is not UTF-8, and huge lines."""

import gzip
import resource

import forked
import pyarrow as pa
import pytest

from snugbert.data.text_lines import LONGEST_LINE, ReadingLog, read_numbered_lines, read_text_lines
from snugbert.errors import InputError


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines_end_with_every_line_end_and_with_nothing_else(tmp_path, suffix):
    """Buffers have powers of two bytes. With every length of the first line, each line end is divided between two."""
    ends = ["\n", "\r", "\r\n", "\r", "\r\n", "\r\r\n", "\r\n", "\n", "\r", "\r", "\r\r\n"]
    rest = [f"{number}\u2028a\u2029b\x85c\x0bd\x0ce\x1cf{end}" for number, end in enumerate(ends)] + ["last"]
    compress = {"": bytes, ".gz": gzip.compress, ".zst": lambda text: pa.compress(text, "zstd", asbytes=True)}[suffix]
    file = tmp_path / f"text.txt{suffix}"
    for length in range(2**13 - 400, 2**13, 1 if suffix == "" else 20):
        lines = ["a" * length + ("\r\r\n" if length % 2 else "\r\n"), *rest]
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


def test_a_huge_line_in_a_small_file_takes_no_gigabytes(tmp_path):
    """400 MB of text in 400 KB of gzip are refused in 250 MB of memory."""
    file = tmp_path / "line.txt.gz"
    file.write_bytes(gzip.compress(b"fine\n") + gzip.compress(b"a" * 10**6) * 400)  # members follow each other
    assert file.stat().st_size < 600_000
    process = forked.run(read_and_print_peak, file)
    assert process.returncode == 0, process.stderr
    message, megabytes = process.stdout.splitlines()
    assert message.startswith(f"{file}, line 2: longer than 64 MiB. Split this line.") and int(megabytes) < 250


def test_a_line_may_be_as_long_as_the_limit(tmp_path):
    line = "a" * (LONGEST_LINE - 1) + "\n"
    (tmp_path / "long.txt").write_text(f"{line}b")
    assert [len(line) for line in read_text_lines(tmp_path / "long.txt")] == [LONGEST_LINE, 1]
