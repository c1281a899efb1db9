"""Reading rows from files of any size."""

import gzip
import subprocess
import sys

from snugbert.trainers.rows import LONGEST_LINE, read_text_lines


def test_a_huge_line_in_a_small_file_takes_no_gigabytes(tmp_path):
    """600 MB of text in 600 KB of gzip are refused in 100 MB of memory."""
    files = [tmp_path / name for name in ("line.txt.gz", "line.jsonl.gz", "line.csv.gz")]
    content = gzip.compress(b"a" * 10**6)  # members of a gzip file follow each other
    for file in files:
        file.write_bytes(gzip.compress(b"fine\n") + content * 600)
    assert files[0].stat().st_size < 10**6
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom snugbert.trainers.rows import read_text_lines\n"
        "def peak():\n    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "for file in sys.argv[1:]:\n"
        "    try:\n        list(read_text_lines(Path(file)))\n    except ValueError as error:\n        print(error)\n"
        "print(peak() - before)"
    )
    process = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True, check=True)
    *messages, megabytes = process.stdout.splitlines()
    assert messages == [
        f"{file}, line 2: longer than 16 MiB. Split it. In JSON, write one object per line." for file in files
    ]
    assert int(megabytes) < 100


def test_a_line_may_be_as_long_as_the_limit(tmp_path):
    line = "a" * (LONGEST_LINE - 1) + "\n"
    (tmp_path / "long.txt").write_text(f"{line}b")
    assert [len(line) for line in read_text_lines(tmp_path / "long.txt")] == [LONGEST_LINE, 1]
