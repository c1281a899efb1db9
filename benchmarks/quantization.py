r"""8-bit inference on a CPU: accuracy, size and speed of a SnugBERT and a stock BERT classifier.

    snugbert glue --model_name_or_path BERT --task_name sst2 --data_dir glue --output_dir sst2
    python benchmarks/quantization.py --classifier sst2 --glue_dir glue

Six variants of the same weights: SnugBERT and stock BERT, each in torch, in ONNX Runtime with float32, and in ONNX
Runtime with dynamic quantization as in docs/how-to/integrate.md. Only SnugBERT in torch skips padding.

Accuracy is measured on SST-2's dev set. Times are measured on its first sentences: one at a time, in batches in file
order, and in batches sorted by length. All six variants run in each round, and the first one changes. A ratio is stock
BERT's time in torch / the variant's time in the same round.
"""

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import onnxruntime
import torch
from finetuning import glue_features, make_padding_collator
from onnxruntime.quantization import QuantType, quantize_dynamic
from side_by_side import TOLERANCE, describe_machine, positive
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

import snugbert
from snugbert.errors import InputError
from snugbert.models import ModelArguments, load_tokenizer

OPSET = 23  # the first with an attention operator
REFERENCE = "BERT, torch, float32"
Batch = dict[str, torch.Tensor]
Run = Callable[[Batch], torch.Tensor]  # a padded batch -> logits


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classifier", required=True, help="output folder of `snugbert glue --task_name sst2`")
    parser.add_argument("--glue_dir", required=True, help="folder with SST-2")
    parser.add_argument("--batch_size", type=positive, default=32)
    parser.add_argument("--max_samples", type=positive, help="number of sentences for accuracy; default: all")
    parser.add_argument("--timed_samples", type=positive, default=256, help="number of sentences for times")
    parser.add_argument("--rounds", type=positive, default=7, help="measured rounds, after one warmup round")
    return parser.parse_args(argv)


# --- the models -------------------------------------------------------------------------------------------------


def make_stock(ours: PreTrainedModel) -> PreTrainedModel:
    """Builds stock BERT with the weights of our classifier."""
    stock = BertForSequenceClassification(BertConfig(**{**ours.config.to_dict(), "model_type": "bert"}))
    stock.load_state_dict(ours.state_dict())
    return stock.eval()


def run_in_torch(model: PreTrainedModel) -> Run:
    """Returns a function that runs the model in torch."""

    def run(batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return model(**batch).logits

    return run


def export(model: PreTrainedModel, example: Batch, file: Path) -> None:
    """Exports the model to ONNX, for any batch size and length."""
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=model.config.max_position_embeddings)}
    torch.onnx.export(
        model,
        (),
        file,
        kwargs=example,
        dynamic_shapes=dict.fromkeys(example, sizes),
        opset_version=OPSET,
        external_data=False,
        verbose=False,
    )


def quantize(file: Path, to: Path) -> None:
    """Quantizes the exported model to 8 bits, as in docs/how-to/integrate.md."""
    exported = onnx.load(file)
    del exported.graph.value_info[:]  # stale shapes would contradict the quantizer's (microsoft/onnxruntime#25890)
    quantize_dynamic(
        exported,
        to,
        op_types_to_quantize=["Gather", "MatMul", "Gemm"],
        weight_type=QuantType.QInt8,
        per_channel=True,
    )


def run_in_onnx_runtime(file: Path) -> Run:
    """Returns a function that runs an exported model with as many threads as torch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options)

    def run(batch: Batch) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {name: values.numpy() for name, values in batch.items()})[0])

    return run


def make_variants(ours: PreTrainedModel, example: Batch, folder: Path) -> tuple[dict[str, Run], dict[str, float]]:
    """Creates all six variants, with their sizes in MB."""
    runs: dict[str, Run] = {}
    sizes: dict[str, float] = {}
    for name, model in (("SnugBERT", ours), ("BERT", make_stock(ours))):
        float32, int8 = (folder / f"{name}-{kind}.onnx" for kind in ("float32", "int8"))
        export(model, example, float32)
        quantize(float32, int8)
        runs[f"{name}, torch, float32"] = run_in_torch(model)
        sizes[f"{name}, torch, float32"] = sum(weight.nbytes for weight in model.state_dict().values()) / 1e6
        for kind, file in (("float32", float32), ("8 bits", int8)):
            runs[f"{name}, ONNX Runtime, {kind}"] = run_in_onnx_runtime(file)
            sizes[f"{name}, ONNX Runtime, {kind}"] = file.stat().st_size / 1e6
    return runs, sizes


# --- measurements -----------------------------------------------------------------------------------------------


def quality_table(runs: dict[str, Run], sizes: dict[str, float], batches: list[Batch], labels: torch.Tensor) -> str:
    """Formats size, accuracy and the difference from stock BERT's logits.

    Raises:
        SystemExit: a float32 variant does not compute the same as stock BERT.
    """
    logits = {name: torch.cat([run(batch) for batch in batches]) for name, run in runs.items()}
    expected = logits[REFERENCE]
    table = "| model | MB | accuracy | other answers than in float32 | largest difference of logits |\n"
    table += "|" + " --- |" * 5 + "\n"
    for name, mine in logits.items():
        distance = (mine - expected).abs().max().item()
        if "float32" in name and distance > TOLERANCE["float32"] * max(1, expected.abs().max().item()):
            raise SystemExit(f"{name}: logits differ from stock BERT's by {distance:.1e}. Not measured.")
        accuracy = (mine.argmax(1) == labels).double().mean().item()
        others = (mine.argmax(1) != expected.argmax(1)).sum().item()
        table += f"| {name} | {sizes[name]:.1f} | {accuracy:.2%} | {others} of {len(labels)} | {distance:.2g} |\n"
    return table


def time_table(runs: dict[str, Run], works: dict[str, list[Batch]], sentences: int, rounds: int) -> str:
    """Measures each variant: stock BERT's time / its time, and its sentences per second."""
    names = list(runs)
    cells: dict[str, list[str]] = {name: [] for name in names}
    for batches in works.values():
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds + 1):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                for batch in batches:
                    runs[name](batch)
                seconds[name].append(time.perf_counter() - start)
        stock = seconds[REFERENCE][1:]
        for name in names:
            ratios = [theirs / mine for theirs, mine in zip(stock, seconds[name][1:], strict=True)]
            rate = sentences / median(seconds[name][1:])
            cells[name].append(f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}), {rate:,.0f}/s")
    table = f"| model | {' | '.join(works)} |\n|" + " --- |" * (len(works) + 1) + "\n"
    return table + "".join(f"| {name} | {' | '.join(cells[name])} |\n" for name in names)


def measure(args: argparse.Namespace) -> Iterator[str]:
    """Yields both tables."""
    model = snugbert.SnugBertForSequenceClassification.from_pretrained(args.classifier)
    tokenizer = load_tokenizer(ModelArguments(model_name_or_path=args.classifier))
    features = glue_features("sst2", args.glue_dir, "validation", tokenizer, args.max_samples, seed=None)
    labels = torch.tensor([feature["label"] for feature in features])

    def make_batches(features: list[dict[str, Any]], size: int) -> list[Batch]:
        collate = make_padding_collator("sst2", tokenizer)
        batches = [collate(features[start : start + size]) for start in range(0, len(features), size)]
        return [{name: values for name, values in batch.items() if name != "labels"} for batch in batches]

    timed = features[: args.timed_samples]
    by_length = sorted(timed, key=lambda feature: len(feature["input_ids"]))
    works = {
        "one at a time": make_batches(timed, 1),
        f"batches of {args.batch_size}": make_batches(timed, args.batch_size),
        f"batches of {args.batch_size}, sorted": make_batches(by_length, args.batch_size),
    }
    all_batches = make_batches(features, args.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        runs, sizes = make_variants(model, all_batches[0], Path(folder))
        yield quality_table(runs, sizes, all_batches, labels)
        yield time_table(runs, works, len(timed), args.rounds)


def main(argv: list[str]) -> None:
    """Prints versions, command and both tables."""
    args = parse_arguments(argv)
    machine = {**describe_machine("cpu"), "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"\n    python benchmarks/quantization.py {shlex.join(argv)}")
    try:
        for table in measure(args):
            print(f"\n{table}", end="", flush=True)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
