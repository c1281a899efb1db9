"""Reads lines from plain and compressed text files. Errors name the file and the line.

A [`ReadingLog`] records how much of a corpus was read, and which text was bad (`--on_bad_text`).
"""

import codecs
import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

import pyarrow

from snugbert.data.data_arguments import OnBadText
from snugbert.errors import InputError, format_count, join_lines
from snugbert.storage.urls import Entry, hide_credentials, open_file

# In characters. A megabyte of gzip can contain a line of a gigabyte, and tokenizing a line takes 30 times its size in
# memory. A JSON file may be a single line: the training set of SQuAD v2.0 has 42 MB.
LONGEST_LINE = 2**26

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class RemoteText:
    """A text file in a bucket. It has the methods of `Path` that reading needs, and is streamed."""

    url: str = field(repr=False)  # may contain credentials. Messages and files use `str()` of this object
    size: int  # size and version come from the listing, see [`Entry`]
    version: str

    def __str__(self) -> str:
        return hide_credentials(self.url)

    @property
    def name(self) -> str:
        """The name without folders. For a file in an archive, `a.txt` for `zip://a.txt::s3://...`."""
        return PurePosixPath(str(self).split("::")[0]).name

    @property
    def suffix(self) -> str:
        """The last suffix, such as ".gz"."""
        return PurePosixPath(self.name).suffix

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Opens the file for reading bytes, whatever `mode` is. Fails if the version is not the listed one."""
        return open_file(self.url, Entry(self.size, self.version))


TextFile = Path | RemoteText


def measure_file(file: TextFile) -> int:
    """Returns the size in bytes. For a file in a bucket, the size comes from the listing."""
    return file.size if isinstance(file, RemoteText) else file.stat().st_size


# --- bad text ---------------------------------------------------------------------------------------------------


def describe_bad_data(error: Exception, json_form: str = "") -> str:
    """Describes what a library found wrong in data, and what to do. Re-raises errors with other causes.

    `json_form` describes the JSON that the file should contain. Empty: no JSON was parsed.
    """
    if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
        raise error
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 ({error.reason}). Convert the file to UTF-8, for example with iconv."
    if isinstance(error, csv.Error):
        problem = str(error).replace("'\0'", "line end")  # files with one column have no separator
        return f"not CSV ({problem}). Close each quote, and double the quotes inside a quoted cell."
    if isinstance(error, pyarrow.ArrowException | OSError):
        return f"damaged or incomplete ({join_lines(error)}). Get a new copy of the file."
    if json_form:
        return f"not JSON ({join_lines(error)}). {json_form}"
    raise error


@contextmanager
def explaining_bad_data(place: Callable[[], str], json_form: str = "") -> Iterator[None]:
    """Turns a library's error about data into an [`InputError`], see [`describe_bad_data`].

    `place` returns the file, and the line or row.
    """
    try:
        yield
    except InputError:
        raise
    except (ValueError, csv.Error, pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{place()}: {describe_bad_data(error, json_form)}") from error


class ReadingLog:
    """Records how much of a corpus was read, and handles bad text: lines that are not UTF-8, and rows without text.

    `on_bad_text`: "error" raises an [`InputError`], "skip" leaves out the line or row, and "replace" puts U+FFFD in
    place of bad bytes and leaves out other bad rows. None: like "error", for commands without `--on_bad_text`.
    `report` is called with a sentence about each bad line or row that is left out or repaired.
    """

    def __init__(self, on_bad_text: OnBadText | None = None, report: Callable[[str], None] | None = None):
        self.on_bad_text = on_bad_text
        self._report = report
        self.left_out = self.repaired = 0  # lines and rows
        self._first = ""
        self._read_before = 0
        self._tell: Callable[[], int] = lambda: 0

    @property
    def position(self) -> int:
        """How much was read: bytes of the files as they are stored (compressed), or rows of a dataset."""
        return self._read_before + self._tell()

    @contextmanager
    def follow(self, tell: Callable[[], int]) -> Iterator[None]:
        """Adds a file or a dataset to `position`. `tell` returns how much of it was read."""
        self._tell = tell
        yield
        self._read_before += tell()
        self._tell = lambda: 0

    def skip(self, amount: int) -> None:
        """Adds text to `position` without reading it, because it was prepared earlier."""
        self._read_before += amount

    def leave_out(self, source: TextFile | str, place: str, problem: str) -> None:
        """Counts a line or row that is left out, or raises an error."""
        self._record(f"{source}, {place}: {problem}")
        self.left_out += 1

    def decode(self, file: TextFile, place: str, text: bytes, encoding: str = "utf-8") -> str | None:
        """Decodes a line. Returns None if it is left out."""
        try:
            return text.decode(encoding)
        except UnicodeDecodeError as error:
            problem = describe_bad_data(error)
        if self.on_bad_text != "replace":
            self.leave_out(file, place, problem)
            return None
        self._record(f"{file}, {place}: {problem}")
        self.repaired += 1
        return text.decode(encoding, errors="replace")

    def _record(self, described: str) -> None:
        if self.on_bad_text in (None, "error"):
            advice = "" if self.on_bad_text is None else " To continue, set --on_bad_text skip or replace."
            raise InputError(f"{described}{advice}")
        self._first = self._first or described
        if self._report is not None:
            self._report(described)

    def summarize(self) -> str:
        """Describes the bad text in one line. Empty if there was none."""
        if not self.left_out + self.repaired:
            return ""
        left_out = f"{format_count(self.left_out, 'bad line')} left out"
        repaired = f"{format_count(self.repaired, 'bad line')} repaired, " if self.on_bad_text == "replace" else ""
        return f"--on_bad_text {self.on_bad_text}: {repaired}{left_out}. The first: {self._first}"


# --- lines ------------------------------------------------------------------------------------------------------


def read_text_lines(file: TextFile, log: ReadingLog | None = None) -> Iterator[str]:
    """Streams the lines of a UTF-8 file, with their line ends. See [`read_numbered_lines`]."""
    return (line for _, line in read_numbered_lines(file, log))


def find_encoding(file: Path) -> str:
    """Returns "utf-8-sig" if a file begins with a byte order mark, else "utf-8". Decompresses .gz and .zst."""
    with file.open("rb") as raw:
        begins_with_mark = _decompress(raw, file).read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return "utf-8-sig" if begins_with_mark else "utf-8"


def read_numbered_lines(file: TextFile, log: ReadingLog | None = None) -> Iterator[tuple[int, str]]:
    r"""Streams the lines of a UTF-8 file, with their line ends and their numbers, counted from 1.

    Lines end with \n, \r\n or \r, and nothing else.
    """
    log = log or ReadingLog()
    number = 0
    with explaining_bad_data(lambda: f"{file}, after line {number}"), file.open("rb") as raw, log.follow(raw.tell):
        # Latin-1 maps each byte to a character. Lines are decoded one by one, so that an error can name the line.
        stream = io.TextIOWrapper(_decompress(raw, file), encoding="latin-1", newline="")
        lines = iter(lambda: stream.readline(LONGEST_LINE + 1), "")
        for number, line in enumerate(lines, start=1):
            if len(line) > LONGEST_LINE:
                raise InputError(f"{file}, line {number}: longer than {LONGEST_LINE >> 20} MiB. Split this line.")
            encoding = "utf-8-sig" if number == 1 else "utf-8"  # the first line may begin with a byte order mark
            text = log.decode(file, f"line {number}", line.encode("latin-1"), encoding)
            if text is not None:
                yield number, text


def _decompress(raw: IO[bytes], file: TextFile) -> IO[bytes]:
    if file.suffix not in COMPRESSIONS:
        return raw
    return io.BufferedReader(pyarrow.input_stream(raw, compression=COMPRESSIONS[file.suffix]))
