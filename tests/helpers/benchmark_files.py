"""The folder of the benchmarks, and short files for them."""

import gzip
from itertools import islice
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def write_first_lines(source: Path, number: int, folder: Path) -> str:
    """Writes the first lines of a compressed file, and returns the name of the new file."""
    file = folder / source.name.removesuffix(".gz")
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        file.write_text("".join(islice(lines, number)), encoding="utf-8")
    return str(file)
