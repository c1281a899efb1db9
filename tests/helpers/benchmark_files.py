"""The folder of the benchmarks, and some rows of the test data for them."""

import gzip
from itertools import islice
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS = {  # number of rows, and steps from one to the next: neighbors of SQuAD have the same paragraph
    "glue/MRPC/train.tsv": (60, 1),
    "glue/MRPC/dev.tsv": (30, 1),
    "conll2003/train.jsonl.gz": (200, 1),
    "conll2003/valid.jsonl.gz": (100, 1),
    "squad/train-v1.1-first44.jsonl.gz": (60, 50),
    "squad/dev-v1.1.jsonl.gz": (60, 100),
}


def write_little_data(data_dir: Path, folder: Path) -> Path:
    """Writes some rows of MRPC, CoNLL-2003 and SQuAD into a folder of the same layout."""
    for name, (number, step) in ROWS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        read = gzip.open if name.endswith(".gz") else open
        with read(data_dir / name, "rt") as lines, read(folder / name, "wt") as file:
            file.writelines(islice(lines, 0, number * step, step))
    return folder
