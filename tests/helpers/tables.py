"""Writes tables that several tests read."""

import csv
from pathlib import Path


def write_csv(file: Path, rows: list[dict]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file
