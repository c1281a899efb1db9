"""benchmarks/scale.py measures preparation and reading, and its formulas equal computations by hand."""

import json

import numpy as np
import pytest
from benchmark_files import BENCHMARKS
from markdown_tables import cells

from snugbert.data.corpus import preparation, text_parts

pytestmark = pytest.mark.long


def test_messages_equal_a_computation_by_hand():
    """Two machines with four GPUs. A GPU sends 100 bytes/s on its machine, and a machine 10 bytes/s to the other."""
    import gpu_scaling
    from gpu_scaling import Cluster, Work

    cluster = Cluster("test", 4, 100.0, 10.0)
    # Three quarters of 800 bytes on the machine, half of them between the machines.
    gathered = 600 / 100 + 400 / 10
    ring = 6 * 1.9e-6 + 1 * 4e-6
    assert gpu_scaling.gather_seconds(800, 0, 8, cluster) == pytest.approx(gathered)
    assert gpu_scaling.gather_seconds(0, 5, 8, cluster) == pytest.approx(5 * ring)
    tree = 2 * (3 * 1.25e-6 + 8.5e-6)
    assert gpu_scaling.all_reduce_seconds(800, 3, 8, cluster) == pytest.approx(2 * gathered + 3 * tree)
    assert gpu_scaling.all_reduce_seconds(800, 0, 4, cluster) == pytest.approx(2 * 600 / 100)  # one machine
    # 200 float32 parameters, of which 50 are outside the layers. A batch takes 90 s.
    work = Work("test", 200, 50, 2, 90.0)
    overlap, none = gpu_scaling.step_seconds("DDP", 3, work, 8, cluster)
    assert none == pytest.approx(3 * 90 + 2 * 46, abs=1e-3)
    assert overlap == pytest.approx(2 * 90 + 30 + max(60, 2 * 46 * 3 / 4) + 2 * 46 / 4, abs=1e-3)
    overlap, none = gpu_scaling.step_seconds("FSDP2", 3, work, 8, cluster)
    assert none == pytest.approx(3 * 90 + 7 * 46, abs=1e-3)
    assert overlap == pytest.approx(2 * (max(90, 1.75 * 46) + 46 / 4) + max(90, 2.5 * 46) + 2 * 46 / 4, abs=1e-3)


def test_models_and_steps_of_the_throughput():
    """A base model has the published number of parameters, and its step the measured time."""
    import gpu_scaling

    base, large = (gpu_scaling.make_work(size, 256) for size in ("base", "large"))
    assert (base.parameters, large.parameters) == (110_106_428, 336_226_108)
    assert base.parameters - base.outside == 12 * (4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    assert base.seconds == pytest.approx(51.6e-3) and 3 < large.seconds / base.seconds < 4
    assert gpu_scaling.make_work("base", 64).seconds == 24.7e-3  # Python limits the speed


def test_the_documentation_shows_the_throughput():
    """The columns are base on 8, 64 and 1,000 GPUs, and large. Cells have the speed with overlap and without."""
    import gpu_scaling

    page = (BENCHMARKS.parent / "docs/explanation/scale.md").read_text()
    rows = [row[1:] for row in cells(page) if len(row) == 7][1:]
    works = [gpu_scaling.make_work(size, 256) for size in ("base", "large") for _ in gpu_scaling.GPUS]
    places = list(zip(works, 2 * gpu_scaling.GPUS, strict=True))

    def speed(work, gpus, seconds) -> str:
        millions = gpus * 256 * gpu_scaling.TOKENS / seconds / 1e6
        return f"{millions:.{1 if millions < 12 else 0}f}"

    assert rows[0] == [speed(work, gpus, work.seconds) for work, gpus in places]
    for number, row in enumerate(rows[1:]):
        cluster, (method, batches) = (
            gpu_scaling.CLUSTERS[number // 3],
            (("DDP", 1), ("DDP", 8), ("FSDP2", 1))[number % 3],
        )
        for cell, (work, gpus) in zip(row, places, strict=True):
            seconds = gpu_scaling.step_seconds(method, batches, work, gpus, cluster)
            expected = ", ".join(speed(work, gpus, each / batches) for each in seconds)
            assert cell == (expected if cluster == gpu_scaling.CLUSTERS[0] or gpus > 8 else "")


def test_the_documentation_shows_the_measurements():
    """The table of text and the table of windows have cells of the benchmark's output."""

    def read(page: str) -> dict[tuple[str, str], str]:
        found = {}
        for block in (BENCHMARKS.parent / page).read_text().split("\n\n"):
            header, *rows = cells(block) or [[]]
            found |= {(row[0], name): cell for row in rows for name, cell in zip(header, row, strict=True) if name}
        return found

    page, output = read("docs/explanation/scale.md"), read("benchmarks/results/scale_epyc-2-cores_202611.md")
    shared = page.keys() & output.keys()
    assert {key: page[key] for key in shared} == {key: output[key] for key in shared}
    assert len(shared) == 2 * 5 + 5 * 3


def test_lines_through_sizes():
    import scale

    # A quarter of the measured blocks are half full.
    sizes = [
        {"text": 1e9, "x": 7.0, "parts": 16, "blocks": 64, "tokens": 56 * 2**22},
        {"text": 1e10, "x": 61.0, "parts": 160, "blocks": 640, "tokens": 560 * 2**22},
    ]
    assert scale.extrapolate(scale.Row("", "x", 1), sizes, 1e12) == pytest.approx(1 + 6 * 1000)
    read = [each | {"requests": 1.75 * each["blocks"]} for each in sizes]
    for name, expected in (("blocks", 56_000), ("requests", 2 * 56_000)):
        assert scale.extrapolate(scale.Row("", name, 1, "blocks"), read, 1e12) == pytest.approx(expected)
    index = [each | {"index": 1000 + 10 * each["parts"] + 72 * each["blocks"]} for each in sizes]
    row = scale.Row("", "index", 1, "parts")
    assert scale.extrapolate(row, index, 1e12) == pytest.approx(1000 + 10 * 256 + 72 * 56_000)


def test_text_has_new_words():
    import scale

    text = b"a few letters are changed, nothing else.\n" * 5000
    changed = scale.change_letters(text, np.random.default_rng(0))
    old, new = np.frombuffer(text, np.uint8), np.frombuffer(changed, np.uint8)
    is_letter = (old >= ord("a")) & (old <= ord("z"))
    assert len(old) == len(new) and np.array_equal(old[~is_letter], new[~is_letter])
    share = np.mean(old != new) / is_letter.mean()
    assert share == pytest.approx(25 / 26 / scale.LETTERS_PER_CHANGE, rel=0.1)


@pytest.mark.slow
def test_two_sizes(data_dir, minilm, tmp_path, capsys, monkeypatch):
    """Prepares here instead of in a new process, and starts no runs. A second call measures nothing."""
    pytest.importorskip("s3fs")
    import scale

    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 2000)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(text_parts, "PART_BYTES", 50_000)
    monkeypatch.setattr(scale, "time_start", lambda *_: (9.0, 1e6))
    counted = []

    def prepare(text, folder, args):
        files = sorted(text.iterdir())
        corpus = preparation.prepare_corpus(files, open_tokenizer(), folder, preprocessing_num_workers=1)
        counted.append((corpus.num_tokens, len(corpus.blocks), sum(file.stat().st_size for file in files)))
        return {"prepare_cpu": len(files), "prepare_wall": 1.0, "prepare_memory": 1e6}

    def open_tokenizer():
        return scale.load_tokenizer(scale.TokenizerArguments(tokenizer_name=str(minilm)))

    monkeypatch.setattr(scale, "measure_preparation", prepare)
    text = tmp_path / "text.txt"
    text.write_text((data_dir / "sample_text/sample_text.txt").read_text())
    size = len(text.read_bytes()) / 1e9
    argv = ["--tokenizer_name", str(minilm), "--train_file", str(text), "--output_dir", str(tmp_path / "out")]
    argv += ["--gigabytes", str(size), str(3 * size)]
    scale.main(argv)
    output = capsys.readouterr().out
    rows = {row[0]: row[1:] for row in cells(output)}
    measures = [json.loads(file.read_text()) for file in sorted((tmp_path / "out").glob("[0-9]*.json"))]
    measures.sort(key=lambda each: each["text"])
    assert [(each["tokens"], each["blocks"], each["text"]) for each in measures] == counted
    for each in measures:
        assert each["read_requests"] == each["blocks"]
        assert each["read_bytes"] == pytest.approx(each["corpus"], rel=0.3)  # headers of answers, schemas of parts
        assert each["open_requests"] == 3 + 3 * each["parts"]  # listings of the folder; HEAD, GET and HEAD of an index
    assert [float(cell) for cell in rows["blocks"][:2]] == [each["blocks"] for each in measures]
    assert not any((tmp_path / "out" / name).exists() for name in ("text", "store", "tables", "cache"))
    monkeypatch.setattr(scale, "measure_preparation", None)
    scale.main(argv)
    assert capsys.readouterr().out == output
