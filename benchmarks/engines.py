r"""Engines next to torch: examples/s, size and accuracy of a classifier and an embedding model, in float32 and less.

    python benchmarks/engines.py --classifier sst2 --embedder sentence-encoder --glue_dir glue \
        --squad_file squad/dev-v1.1.jsonl.gz --calibration_file sentences.txt --plot engines.png

The classifier predicts SST-2's dev set, and its accuracy is measured there. The embedder embeds SQuAD's paragraphs.
Its accuracy is the rank correlation of cosine similarities on STS-B's dev set, and the share of paragraphs whose
nearest other paragraph is the same as with stock BERT. If there are more than `--timed_texts` texts, only every n-th
batch is timed.

`snugbert export` writes the models. All engines get the same tokens in the same batches, sorted by length, and the
same number of threads. Tokenization and pooling are not timed. All variants run in each round, and each round starts
with a different variant. A ratio is stock BERT's time in torch / the variant's time in the same round.
"""

import argparse
import shlex
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from prediction import read_paragraphs, read_sentences
from side_by_side import describe_machine, positive
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from snugbert.errors import InputError
from snugbert.export import stock_engine
from snugbert.export.export import export_model, list_model_files, load_pooling, make_score
from snugbert.export.export_arguments import ENGINES
from snugbert.export.texts import make_batches
from snugbert.families.comparing import FLOAT32_TOLERANCE, Batch, Run, find_difference, run_in_torch
from snugbert.families.reading import CLASSES, read_checkpoint
from snugbert.families.sentence_transformers_files import find_model_folder
from snugbert.reports.plots import COLORS, GREY, TITLE, new_figure, tidy

REFERENCE = "BERT in torch, float32"
# Engine, dtype, whether activations are calibrated -> name.
VARIANTS = {
    ("onnx", "float32", False): "ONNX Runtime, float32",
    ("onnx", "int8", False): "ONNX Runtime, int8",
    ("onnx", "int8", True): "ONNX Runtime, int8, calibrated",
    ("openvino", "float32", False): "OpenVINO, float32",
    ("openvino", "int8", False): "OpenVINO, int8 weights",
    ("openvino", "int8", True): "OpenVINO, int8, calibrated",
}
BARS = {"SnugBERT": COLORS["training"], "BERT": GREY}
ENGINE_BAR = COLORS["validation"]


class Variant(NamedTuple):
    """A way to run the model.

    Attributes:
        run: runs a padded batch.
        size: size of the model files in MB.
    """

    run: Run
    size: float


class Work(NamedTuple):
    """What is measured.

    Attributes:
        name: title of the table.
        model: folder of the model; None: not measured.
        texts: the texts to run on.
        validation: labeled examples for the accuracy.
        data: arguments for reading them, see [`make_score`].
        is_embedder: whether nearest neighbors are compared.
    """

    name: str
    model: str | None
    texts: list[str]
    validation: Path
    data: dict[str, Any]
    is_embedder: bool

    @property
    def folder(self) -> Path:
        """Folder of the model."""
        return Path(str(self.model))


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classifier", help="output folder of `snugbert glue --task_name sst2`. Default: none.")
    parser.add_argument("--embedder", help="embedding model of sentence-transformers. Default: none.")
    parser.add_argument("--glue_dir", required=True, help="folder with SST-2 and STS-B")
    parser.add_argument("--squad_file", required=True, help="questions with the columns of the Hugging Face dataset")
    parser.add_argument("--calibration_file", required=True, help="a text per line, not from the data above")
    parser.add_argument("--max_texts", type=positive, help="use the first texts only")
    parser.add_argument("--timed_texts", type=positive, default=1000, help="maximum number of texts that are timed")
    parser.add_argument("--batch_size", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=3, help="timed rounds, after one that is not timed")
    parser.add_argument("--plot", help="file for a plot of both tables")
    return parser.parse_args(argv)


# --- the variants -----------------------------------------------------------------------------------------------


def make_variants(work: Work, calibration: Path, root: Path) -> dict[str, Variant]:
    """Exports the model to every engine and dtype, and loads it with as many threads as torch has."""
    stock = root / "stock"
    export_model(work.folder, stock, "bert")
    ours = _load_ours(work.folder)
    size = sum(file.stat().st_size for file in list_model_files(stock, "bert")) / 1e6
    variants = {
        REFERENCE: Variant(stock_engine.load(stock), size),
        "SnugBERT in torch, float32": Variant(run_in_torch(ours), size),
        "SnugBERT in torch, bfloat16": Variant(_in_bfloat16(run_in_torch(ours)), size),
    }
    for (to, dtype, calibrated), name in VARIANTS.items():
        folder = root / name
        export_model(work.folder, folder, to, dtype=dtype, calibration_file=calibration if calibrated else None)
        engine = import_module(ENGINES[to])
        size = sum(file.stat().st_size for file in list_model_files(folder, to)) / 1e6
        variants[name] = Variant(engine.load(folder, torch.get_num_threads()), size)
        if (to, dtype) == ("openvino", "float32"):
            run = engine.load(folder, torch.get_num_threads(), precision=None)
            variants["OpenVINO, float32 files, its own precision"] = Variant(run, size)
    return variants


def _load_ours(folder: Path) -> Any:
    checkpoint = read_checkpoint(find_model_folder(folder))
    options = {"add_pooling_layer": False} if checkpoint.head == "Model" else {}
    return CLASSES["snugbert"][checkpoint.head].from_pretrained(checkpoint.folder, **options).eval()


def _in_bfloat16(run: Run) -> Run:
    def run_in_bfloat16(batch: Batch) -> dict[str, np.ndarray]:
        with torch.autocast("cpu", torch.bfloat16):
            return run(batch)

    return run_in_bfloat16


# --- measurements -----------------------------------------------------------------------------------------------


def measure(work: Work, args: argparse.Namespace, root: Path) -> dict[str, dict[str, Any]]:
    """Returns the results of each variant: size, accuracy, neighbors, difference, seconds and ratios."""
    variants = make_variants(work, Path(args.calibration_file), root)
    tokenizer = AutoTokenizer.from_pretrained(root / "stock")
    checkpoint = read_checkpoint(find_model_folder(work.folder))
    names, head = list(tokenizer.model_input_names), checkpoint.head
    limit = min(tokenizer.model_max_length, checkpoint.config.max_position_embeddings)
    pool = load_pooling(work.folder) if work.is_embedder else None

    def batches(texts: list[str]) -> list[Batch]:
        return make_batches(texts, tokenizer, head, names, limit, args.batch_size)

    def embed(run: Run, texts: list[str]) -> np.ndarray:
        assert pool is not None
        return np.concatenate([pool(run(batch)["last_hidden_state"], batch) for batch in batches(texts)])

    embed_texts = embed if work.is_embedder else None
    score = make_score(checkpoint, work.validation, tokenizer, names, embed_texts, **work.data)
    ordered = batches(sorted(work.texts[: args.max_texts], key=lambda text: len(tokenizer.tokenize(text))))
    results: dict[str, dict[str, Any]] = {}
    output = "last_hidden_state" if work.is_embedder else "logits"  # not the pooler, which embedders do not need
    reference = [{output: variants[REFERENCE].run(batch)[output]} for batch in ordered]
    neighbors = None
    for name, variant in variants.items():
        outputs = [variant.run(batch) for batch in ordered]  # also warms up
        difference, relative = find_difference(zip(ordered, reference, outputs, strict=True), head)
        if name.endswith("float32") and relative > FLOAT32_TOLERANCE:
            raise SystemExit(f"{name}: outputs differ from stock BERT's by {difference:.1e}. Not measured.")
        results[name] = {"MB": variant.size, "difference": difference} | score(variant.run)
        if pool is not None:
            states = zip(outputs, ordered, strict=True)
            found = find_neighbors(np.concatenate([pool(each["last_hidden_state"], batch) for each, batch in states]))
            neighbors = found if neighbors is None else neighbors
            results[name]["neighbors"] = float((found == neighbors).mean())
    every = -(-len(ordered) * args.batch_size // args.timed_texts)
    timed = ordered[::every]  # of all lengths
    number = sum(len(batch["input_ids"]) for batch in timed)
    print("timing", file=sys.stderr, flush=True)
    seconds = time_variants({name: variant.run for name, variant in variants.items()}, timed, args.rounds)
    for name, times in seconds.items():
        ratios = [theirs / mine for mine, theirs in zip(times, seconds[REFERENCE], strict=True)]
        results[name] |= {"rate": number / median(times), "ratios": ratios}
    return results


def find_neighbors(embeddings: np.ndarray) -> np.ndarray:
    """Returns the index of the most similar other text for each text."""
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarities = units @ units.T
    np.fill_diagonal(similarities, -np.inf)
    return similarities.argmax(axis=1)


def time_variants(runs: dict[str, Run], batches: list[Batch], rounds: int) -> dict[str, list[float]]:
    """Measures the seconds of each variant in each round. Each round starts with another variant."""
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn * len(names) // rounds
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            for batch in batches:
                runs[name](batch)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def format_table(work: Work, results: dict[str, dict[str, Any]]) -> str:
    """Formats a table with a row for each variant."""
    scores = ["spearman", "neighbors"] if work.is_embedder else ["accuracy"]
    titles = {"spearman": "STS-B, Spearman", "neighbors": "same neighbor", "accuracy": "accuracy"}
    header = ["model", "MB", "examples/s", "ratio: median (min-max)", *(titles[name] for name in scores), "difference"]
    lines = [f"## {work.name}\n", f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    for name, row in results.items():
        ratios = row["ratios"]
        cells = [name, f"{row['MB']:.1f}", f"{row['rate']:,.0f}"]
        cells.append(f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        cells += [f"{row[score]:.4f}" if score == "spearman" else f"{row[score]:.2%}" for score in scores]
        lines.append(f"| {' | '.join([*cells, format(row['difference'], '.1e')])} |")
    return "\n".join(lines)


def draw(all_results: dict[str, dict[str, dict[str, Any]]], file: Path) -> None:
    """Draws speed and accuracy of every variant, with a panel for each work."""
    figure = new_figure(1 + 6 * len(all_results), 5)
    panels = figure.subplots(1, len(all_results), sharey=True, squeeze=False)[0]
    for panel, (title, results) in zip(panels, all_results.items(), strict=True):
        names = list(results)[::-1]
        score = "spearman" if "spearman" in results[names[0]] else "accuracy"
        colors = [BARS.get(name.split()[0], ENGINE_BAR) for name in names]
        bars = panel.barh(names, [median(results[name]["ratios"]) for name in names], color=colors)
        labels = [f"{100 * results[name][score]:.1f}, {results[name]['MB']:.0f} MB" for name in names]
        panel.bar_label(bars, labels, padding=4, fontsize=8)
        panel.set_title(title, **TITLE)
        panel.set_xlabel(f"speed, stock BERT in torch = 1 (labels: {score} in percent, size)")
        panel.margins(x=0.25)
        tidy(panel, "x")
    figure.savefig(file)


def main(argv: list[str]) -> None:
    """Prints versions, command and both tables."""
    args = parse_arguments(argv)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    packages = ("onnx", "onnxruntime", "openvino", "nncf", "sentence-transformers")
    machine = describe_machine("cpu") | {name: version(name) for name in packages}
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"\n    python benchmarks/engines.py {shlex.join(argv)}", flush=True)
    glue = Path(args.glue_dir)
    sentences, paragraphs = read_sentences(args.glue_dir), read_paragraphs(args.squad_file)
    works = [
        Work(
            f"Classifier, SST-2 dev, {len(sentences)} sentences",
            args.classifier,
            sentences,
            glue / "SST-2" / "dev.tsv",
            {"task_name": "sst2"},
            is_embedder=False,
        ),
        Work(
            f"Embeddings, {len(paragraphs):,} paragraphs",
            args.embedder,
            paragraphs,
            glue / "STS-B" / "dev.tsv",
            {},
            is_embedder=True,
        ),
    ]
    all_results = {}
    try:
        for work in (work for work in works if work.model is not None):
            with tempfile.TemporaryDirectory() as temporary:
                all_results[work.name] = measure(work, args, Path(temporary))
            print(f"\n{format_table(work, all_results[work.name])}", flush=True)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    if args.plot:
        draw(all_results, Path(args.plot))


if __name__ == "__main__":
    main(sys.argv[1:])
