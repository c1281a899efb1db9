"""Reads lines from plain and compressed text files. Errors name the file and the line.

A [`ReadingLog`] records how much of a corpus was read, and which text was bad (`--on_bad_text`).
"""

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

import pyarrow

from snugbert.data.data_arguments import OnBadText
from snugbert.errors import InputError, format_count
from snugbert.storage.urls import hide_credentials, open_file

# Limits in bytes. One megabyte of gzip can contain a line of a gigabyte. Tokenizing a line takes 30 times its size in
# memory. A JSON file may be a single line: the training set of SQuAD v2.0 has 42 MB.
LONGEST_LINE, LONGEST_LINE_OF_JSON = 2**24, 2**26

COMPRESSIONS = {".gz": "gzip", ".zst": "Zstandard"}
COMPRESSION_ERRORS = (EOFError, zlib.error, OSError)  # raised when a damaged compressed file is read


@dataclass(frozen=True)
class RemoteText:
    """A text file in a bucket. It has the methods of `Path` that reading needs, and is read without a copy.

    Attributes:
        url: may contain credentials. Messages and files use `str()` of this object, without credentials.
        size, version: see [`Entry`]. They were read when the file was listed.
    """

    url: str = field(repr=False)
    size: int
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
        """Opens the file for reading bytes, whatever `mode` is."""
        try:
            return open_file(self.url)
        except FileNotFoundError as error:
            raise InputError(f"{self} was removed after it was listed. Run the same command again.") from error


TextFile = Path | RemoteText


def measure_file(file: TextFile) -> int:
    """Returns the size in bytes. For a file in a bucket, the size comes from the listing."""
    return file.size if isinstance(file, RemoteText) else file.stat().st_size


class ReadingLog:
    """Records how much of a corpus was read, and handles bad text.

    Bad text is a line that is not UTF-8, a row that is not JSON, or a row without text.

    Args:
        on_bad_text: "error" raises an [`InputError`], "skip" leaves out the line or row, and "replace" puts U+FFFD in
            place of bad bytes and leaves out other bad rows. None: like "error", for commands without `--on_bad_text`.
        report: called with a sentence about each bad line or row that is left out or repaired.

    Attributes:
        left_out, repaired: number of lines and rows.
    """

    def __init__(self, on_bad_text: OnBadText | None = None, report: Callable[[str], None] | None = None):
        self.on_bad_text = on_bad_text
        self._report = report
        self.left_out = self.repaired = 0
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
        """Adds text to `position` that is not read, because it was prepared earlier."""
        self._read_before += amount

    def leave_out(self, source: TextFile | str, place: str, problem: str) -> None:
        """Counts a line or row that is left out."""
        self._record_or_raise(source, place, problem, "skip")
        self.left_out += 1

    def decode(self, file: TextFile, place: str, text: bytes, encoding: str = "utf-8") -> str | None:
        """Decodes a line or the text of a row. Returns None if it is left out."""
        try:
            return text.decode(encoding)
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 ({error.reason}). Convert the file to UTF-8, for example with iconv."
            self._record_or_raise(file, place, problem, "skip or replace")
        if self.on_bad_text == "skip":
            self.left_out += 1
            return None
        self.repaired += 1
        return text.decode(encoding, errors="replace")

    def _record_or_raise(self, source: TextFile | str, place: str, problem: str, choices: str) -> None:
        if self.on_bad_text in (None, "error"):
            advice = "" if self.on_bad_text is None else f" To continue, set --on_bad_text {choices}."
            raise InputError(f"{source}, {place}: {problem}{advice}")
        described = f"{source}, {place}: {problem}"
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


def read_text_lines(file: Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    """Streams the lines of a UTF-8 file, with their line ends. See [`read_numbered_lines`]."""
    return (line for _, line in read_numbered_lines(file, longest))


def find_encoding(file: Path) -> str:
    """Returns "utf-8-sig" if a file, also .gz or .zst, begins with a byte order mark, and "utf-8" otherwise."""
    with file.open("rb") as raw:
        begins_with_mark = _decompress(raw, file).read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return "utf-8-sig" if begins_with_mark else "utf-8"


def read_numbered_lines(
    file: TextFile, longest: int = LONGEST_LINE, log: ReadingLog | None = None
) -> Iterator[tuple[int, str]]:
    r"""Streams the lines of a UTF-8 file, with their line ends and their numbers, counted from 1.

    Lines end with \n, \r\n, \r or \r\r\n, and nothing else. \r\r\n comes from replacing \n by \r\n twice.
    """
    log = log or ReadingLog()
    number = 0
    try:
        with file.open("rb") as raw, log.follow(raw.tell):
            # Latin-1 maps each byte to a character. Lines are decoded one by one, so that an error can name the line.
            stream = io.TextIOWrapper(_decompress(raw, file), encoding="latin-1", newline="")
            lines = _join_line_ends(iter(lambda: stream.readline(longest + 1), ""))
            for number, line in enumerate(lines, start=1):
                if len(line) > longest:
                    advice = "Split this line. In JSON, write one object per line"
                    raise InputError(f"{file}, line {number}: longer than {longest >> 20} MiB. {advice}.")
                encoding = "utf-8-sig" if number == 1 else "utf-8"  # the first line may begin with a byte order mark
                text = log.decode(file, f"line {number}", line.encode("latin-1"), encoding)
                if text is not None:
                    yield number, text
    except COMPRESSION_ERRORS as error:
        raise InputError(f"{file}, after line {number}: {_describe_damage(file, error)}") from error


def _join_line_ends(lines: Iterable[str]) -> Iterator[str]:
    r"""Joins a line that ends with \r and an empty line that ends with \r\n: together they end with \r\r\n."""
    previous = ""
    for line in lines:
        if line == "\r\n" and previous.endswith("\r"):
            line, previous = previous + line, ""
        if previous:
            yield previous
        previous = line
    if previous:
        yield previous


def _decompress(raw: IO[bytes], file: TextFile) -> IO[bytes]:
    if file.suffix == ".gz":
        return gzip.open(raw, "rb")  # type: ignore[return-value]
    if file.suffix == ".zst":
        return io.BufferedReader(pyarrow.input_stream(raw, compression="zstd"))
    return raw


def _describe_damage(file: TextFile, error: Exception) -> str:
    """Describes an error of a decompressor. Errors of the operating system are raised again."""
    if file.suffix not in COMPRESSIONS or (isinstance(error, OSError) and error.errno is not None):
        raise error
    return f"damaged or incomplete {COMPRESSIONS[file.suffix]} file ({error}). Get a new copy of it."
