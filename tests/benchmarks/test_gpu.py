"""The measurements of `benchmarks/gpu.sh`, rehearsed on a CPU."""

import gzip
import json
import re
import subprocess
import time
import zipfile
from contextlib import nullcontext
from functools import partial
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from emulated_graphs import emulated_graphs
from transformers import AutoModelForPreTraining, AutoTokenizer

from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.long


def test_rehearsal_of_the_gpu_measurements(tmp_path, monkeypatch):
    """All pieces in this process. `correctness` finds a graph that repeats an earlier batch."""
    import gpu
    import gpu_quick
    import gpu_rows
    from gpu_table import format_results, read_rows

    class Stale(gpu.CudaGraphs):
        """Always runs the first batch, as a graph that does not copy its inputs."""

        def __call__(self, batch):
            self.first = getattr(self, "first", batch)
            return super().__call__(self.first)

    def run_piece(piece, command, *_):
        with emulated_graphs() if piece in ("correctness", "steps") else nullcontext():
            gpu.main(command[1:])

    assert list(gpu_quick.PLAN) == list(gpu.PIECES)
    rehearsal = gpu.parse_arguments(["correctness", "--rehearse"])
    for module in (gpu, gpu_rows):  # collecting takes a tenth of a second after each row
        monkeypatch.setattr(module, "gc", SimpleNamespace(collect=lambda: None))
    monkeypatch.setattr(gpu_quick, "PLAN", dict.fromkeys(gpu.PIECES, 1000))
    monkeypatch.setattr(gpu_quick, "REPOSITORY", tmp_path)
    monkeypatch.setattr(gpu_quick, "run_piece", run_piece)
    (tmp_path / "lengths.jsonl").write_text("of an earlier call, on another card")
    kernel = tmp_path / "build/compiler-cache/fxgraph/key"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("compiled")
    flags = ["--rehearse", "--output_dir", str(tmp_path)]
    gpu_quick.main(flags)
    results = {piece: read_rows(tmp_path / f"{piece}.jsonl") for piece in gpu.PIECES}
    assert zipfile.ZipFile(tmp_path / "compiler-cache.zip").read("fxgraph/key") == b"compiled"
    assert not [row for rows in results.values() for row in rows.values() if "error" in row]
    assert [len(rows) for rows in results.values()] == [1 + 3 + 1, 1 + 9, 1 + 4, 1 + 1]
    with_graphs = {name: row for name, row in (results["correctness"] | results["steps"]).items() if row.get("graphs")}
    assert list(with_graphs) == ["pretraining, float32 | SnugBERT, graphs", "pretraining, 4 x 24 | SnugBERT, graphs"]

    # Labels that are gathered before the head change no loss: dropout is the same, and so is the batch.
    steps = {name.partition(" | ")[2]: row for name, row in results["steps"].items()}
    gathered = steps["stock sdpa, reduce-overhead, labels gathered"]["losses"]
    assert gathered == pytest.approx(steps["stock sdpa, reduce-overhead"]["losses"], rel=1e-2)
    # Ratios are to the fastest stock BERT on the same work.
    best = min(np.median(row["seconds"]) for side, row in steps.items() if side.startswith("stock"))
    ratio = best / np.median(steps["SnugBERT"]["seconds"])
    table = (tmp_path / "table.md").read_text()
    assert re.search(rf"\| pretraining, 4 x 24 \| SnugBERT \| .* \| {ratio:.2f} \|  \| \d\.\d+ \| 0\.\d \|\n", table)
    assert table.count("| equal |") == 3 + 1 + 1 and not re.search("DIFFERENT|REPEATS|Not measured", table)

    monkeypatch.setattr(gpu, "CudaGraphs", Stale)
    rows = list(gpu.correctness_rows(rehearsal))[:-1]
    monkeypatch.setitem(gpu.PIECES, "correctness", lambda args: rows)
    (tmp_path / "correctness.jsonl").unlink()
    (tmp_path / "processes.jsonl").unlink()
    gpu.main(["correctness", *flags])
    lines = [line for line in format_results(tmp_path, gpu.PIECES).splitlines() if "| equal |" in line]
    assert len(lines) == 1 and "SnugBERT, compiled |" in lines[0]


def test_flops_of_modernbert():
    """Twice the matrix weights for each token, and for the head each labeled token, plus attention."""
    import gpu

    config = gpu.ModernBertConfig(**dict(gpu.REHEARSAL.modern))
    model = gpu.ModernBertForMaskedLM(config)
    batch = {"attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]), "labels": torch.full((2, 4), -100)}
    batch["labels"][1, 2] = 5
    weights = {name: weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2}
    layers = sum(number for name, number in weights.items() if ".layers." in name)
    head = weights["head.dense.weight"] + weights["model.embeddings.tok_embeddings.weight"]
    assert gpu.modern_flops(config, batch) == 2 * 7 * layers + 2 * head + 2 * 4 * 32 * (3**2 + 4**2)


def test_the_gpu_measurements_fit_into_their_time():
    import gpu_quick
    import gpu_recipe

    assert sum(gpu_quick.PLAN.values()) + gpu_quick.FINISHING <= 510 - 15  # 15 s to unpack wheels
    longest = max(sum(gpu_recipe.PLAN.values()), gpu_recipe.LONGEST_TRAINING)
    assert longest + gpu_recipe.FINISHING <= 600 - 15


@pytest.fixture
def recipe_flags(data_dir, tmp_path) -> list[str]:
    """Flags of the pieces of the recipe, with little data."""
    data, vocabulary = tmp_path / "data", data_dir / "vocab/bert-base-uncased-vocab.txt"
    for folder in ("tokenizer", "books_en", "blimp"):
        (data / folder).mkdir(parents=True)
    (data / "glue").symlink_to(data_dir / "glue")
    with vocabulary.open() as tokens:
        (data / "tokenizer/vocab.txt").write_text("".join(islice(tokens, 2000)))
    text = data / "books_en/validation.txt.gz"
    with gzip.open(data_dir / "wikitext2/valid.docs.txt.gz", "rt") as lines, gzip.open(text, "wt") as file:
        file.writelines(islice(lines, 300))
    for name in ("adjunct_island", "anaphor_gender_agreement"):
        (data / f"blimp/{name}.jsonl.gz").symlink_to(data_dir / f"blimp/{name}.jsonl.gz")
    prepare = ["prepare", "--train_file", str(text), "--tokenizer_name", str(data / "tokenizer")]
    assert snugbert_command([*prepare, "--output_dir", str(data / "corpus")]) == 0
    flags = ["--data_dir", str(data), "--work_dir", str(tmp_path / "runs"), "--output_dir", str(tmp_path / "out")]
    return ["--rehearse", *flags]


def test_rehearsal_of_the_recipe(recipe_flags, tmp_path, monkeypatch):
    """All pieces in this process. The parts of the weights can be joined, also after a stopped run."""
    import gpu_quick
    import gpu_recipe
    import recipe
    from gpu_table import read_rows

    timers = []

    def note_timer(seconds, function, arguments):
        timers.append((seconds, partial(function, *arguments)))
        return SimpleNamespace(start=lambda: None, cancel=lambda: None)

    monkeypatch.setattr(recipe.threading, "Timer", note_timer)
    monkeypatch.setattr(recipe, "EXPECTED", {"rte": 10, "cola": 1e9})
    monkeypatch.setattr(recipe, "SEEDS", {"rte": 1})
    monkeypatch.setattr(recipe, "PART_BYTES", 10**6)
    monkeypatch.setattr(gpu_recipe, "PLAN", dict.fromkeys(gpu_recipe.PLAN, 1000))
    monkeypatch.setattr(gpu_recipe, "run_piece", lambda piece, command, *_: recipe.main(command[1:]))
    monkeypatch.setattr(gpu_quick, "REPOSITORY", tmp_path)
    gpu_recipe.main([*recipe_flags, "--seed", "7", "--set", "weight_decay=0.2"])
    with pytest.raises(SystemExit, match=r"--set: unknown argument --lerning_rate\. Did you mean --learning_rate\?"):
        gpu_recipe.main([*recipe_flags, "--set", "lerning_rate=1e-3"])
    out, runs = tmp_path / "out", tmp_path / "runs"
    rows = read_rows(out / "rows.jsonl")
    assert [name for name, row in rows.items() if "error" in row] == ["cola, seed 1"]
    assert "TimeoutError: it needs about 1000000000.0 s" in rows["cola, seed 1"]["error"]
    assert len(rows["speed"]["seconds_per_step"]) == 3 and rows["speed"]["overhead"] > 0
    run = rows["training"]
    assert run["step"] == run["planned_steps"] == len(run["curve"]) == 12
    assert run["settings"]["weight_decay"] == "0.2" and run["settings"]["seed"] == "7"
    last = json.loads((runs / "pretrained/metrics.jsonl").read_text().splitlines()[-2])
    assert last["learning_rate"] == pytest.approx(2e-3 / 11)  # 1 step of warmup, 11 of decay
    ours, stock = (rows[f"held-out text, {side}"]["metrics"] for side in ("SnugBERT", "stock BERT"))
    assert ours == pytest.approx(stock, rel=1e-5) and rows["BLiMP"]["pairs"] == 2
    table = (out / "table.md").read_text()
    assert f"| rte | {rows['rte, seed 1']['score']:.1f} |" in table and "- recipe: cola, seed 1: TimeoutError" in table

    def load() -> dict[str, torch.Tensor]:
        parts = sorted(out.glob("weights.tar.*"))
        assert len(parts) > 1
        subprocess.run(["tar", "x"], input=b"".join(part.read_bytes() for part in parts), cwd=out, check=True)
        AutoTokenizer.from_pretrained(out / "model")
        return AutoModelForPreTraining.from_pretrained(out / "model", dtype=torch.bfloat16).state_dict()

    trained = AutoModelForPreTraining.from_pretrained(runs / "pretrained").bfloat16().state_dict()
    torch.testing.assert_close(load(), trained, atol=0, rtol=0)

    # The time is over in the third step.
    compute_loss = PretrainingTrainer.compute_loss

    def stop(trainer, *args, **kwargs):
        if trainer.state.global_step == 2:
            timers[-1][1]()
        return compute_loss(trainer, *args, **kwargs)

    monkeypatch.setattr(PretrainingTrainer, "compute_loss", stop)
    (out / "rows.jsonl").write_text(json.dumps({"row": "speed", "error": "not known"}))
    recipe.main(["training", *recipe_flags, "--deadline", str(time.monotonic() + 1000)])
    rows = read_rows(out / "rows.jsonl")
    assert rows["training"]["step"] == 3 and rows["weights"]["source"] == "checkpoint-3"
    assert timers[-1][0] == pytest.approx(1000 - recipe.STOPPING, abs=1)
    assert load().keys() == trained.keys()


def test_steps_of_the_recipe():
    """At most the passes, and no more than fit. The first half of each phase does not count as speed."""
    import recipe

    speed = {"seconds_per_step": [0.01, 0.03], "overhead": 40, "passes_per_step": 0.001}
    assert recipe.choose_steps(speed, [0.75, 0.25], 10, 1e6) == 10_000
    fits = 40 + recipe.SECONDS_OF_GRAPHS + 1000 * (0.015 + 0.001 * recipe.SECONDS_PER_PASS)
    assert recipe.choose_steps(speed, [0.75, 0.25], 10, fits + 0.001) == 1000
    assert recipe.choose_steps(speed, [0.75, 0.25], 10, 0) == 1
    rates = {5: 1, 10: 100, 15: 200, 20: 100, 25: 1, 30: 50}  # step -> tokens per second; a step has 10 tokens
    lines = [{"step": step, "tokens": 10 * step, "tokens_per_second": rate} for step, rate in rates.items()]
    assert recipe.average_seconds(lines, [20, 10]) == [(50 / 200 + 50 / 100) / 10, 50 / 50 / 5]
