"""Reading rows from files of any size."""

import gzip
import resource

import forked

from snugbert.trainers.rows import LONGEST_LINE, read_text_lines


def read_and_print_peak(files):
    """Prints the error of each file, and then by how many megabytes the largest memory of the process has grown."""

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    before = peak()
    for file in files:
        try:
            list(read_text_lines(file))
        except ValueError as error:
            print(error)
    print(peak() - before)


def test_a_huge_line_in_a_small_file_takes_no_gigabytes(tmp_path):
    """600 MB of text in 600 KB of gzip are refused in 100 MB of memory."""
    files = [tmp_path / name for name in ("line.txt.gz", "line.jsonl.gz", "line.csv.gz")]
    content = gzip.compress(b"a" * 10**6)  # members of a gzip file follow each other
    for file in files:
        file.write_bytes(gzip.compress(b"fine\n") + content * 600)
    assert files[0].stat().st_size < 10**6
    process = forked.run(read_and_print_peak, files)
    assert process.returncode == 0, process.stderr
    *messages, megabytes = process.stdout.splitlines()
    assert messages == [
        f"{file}, line 2: longer than 16 MiB. Split it. In JSON, write one object per line." for file in files
    ]
    assert int(megabytes) < 100


def test_a_line_may_be_as_long_as_the_limit(tmp_path):
    line = "a" * (LONGEST_LINE - 1) + "\n"
    (tmp_path / "long.txt").write_text(f"{line}b")
    assert [len(line) for line in read_text_lines(tmp_path / "long.txt")] == [LONGEST_LINE, 1]
