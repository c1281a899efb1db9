"""`results.json` and `results.md`: everything about a run, for programs and for people."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugbert.card_snugbert import escape
from snugbert.trainers.finetuning.tables import results_table


def write_atomically(file: Path, text: str) -> None:
    """Writes the whole file or none of it, whatever happens meanwhile, a power cut included."""
    unfinished = file.with_name(f"_{file.name}")
    with unfinished.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)


def write_results(output_dir: Path, results: Mapping[str, Any], sweep: str | None = None) -> None:
    """Writes `results.md`, and after it `results.json`, which says that everything is there.

    Args:
        output_dir: the folder of the run.
        results: JSON values. `task` is the title; `figures`, `examples` and `baselines` become the table, the last
            with "answer" beside their figures. A number that is none (NaN) becomes null.
        sweep: the tables of a sweep.
    """
    baselines = {name: (of["answer"], of) for name, of in results["baselines"].items()}
    parts = [f"# {escape(results['task'])}", results_table(results["figures"], baselines, results["examples"])]
    write_atomically(output_dir / "results.md", "\n\n".join([*parts, *([sweep] if sweep else [])]) + "\n")
    finite = json.loads(json.dumps(results), parse_constant=lambda _: None)
    write_atomically(output_dir / "results.json", json.dumps(finite, indent=1, ensure_ascii=False) + "\n")
