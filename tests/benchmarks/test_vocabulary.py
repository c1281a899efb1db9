"""benchmarks/vocabulary.py measures both sides and finds the same quality."""

from itertools import islice
from pathlib import Path

import pytest

from snugbert.cli.main import run_command
from snugbert.data.documents import read_lines

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]


def test_benchmark_measures_both_sides(data_dir: Path, tmp_path: Path):
    import vocabulary as benchmark

    some_text = tmp_path / "wiki.txt"
    some_text.write_text("\n".join(islice(read_lines([data_dir / "wiki_en/train.txt.gz"]), 600)), encoding="utf-8")
    old = ["--model", "bpe", "--train_file", str(some_text), "--vocab_size", "4000"]
    run_command("vocabulary", [*old, "--output_dir", str(tmp_path / "bpe")])
    settings = ["--train_file", str(some_text), "--validation_file", str(some_text), "--vocab_size", "4000"]
    init = ["--init", str(tmp_path / "bpe"), "--init_vocab_size", "4500"]
    args = benchmark.parse_arguments([*settings, *init])
    sides = [(kind, side) for kind in ("wordpiece", "byte-bpe") for side in benchmark.SIDES]
    results = {(row, side): [benchmark.run(row, side, args)] for row, side in [*sides, ("init", "ours")]}
    header, _, wordpiece, of_bytes, extended = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in benchmark.table(results, ["wordpiece", "byte-bpe", "init"])
    )
    assert len(header) == len(wordpiece) == len(of_bytes) == len(extended) == 7
    assert (wordpiece[0], of_bytes[0], extended[0]) == ("wordpiece, 4,000", "byte-bpe, 4,000", "init, 4,500")
    for row in (wordpiece, of_bytes):
        ours, theirs = map(float, row[5].split(" / "))  # tokens per word
        assert 1 < ours == pytest.approx(theirs, rel=0.002) and row[6] == "yes / yes"
    assert extended[1].endswith(" / -") and extended[2] == ""
