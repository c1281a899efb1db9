r"""`snugbert predict` next to pipelines of transformers and sentence-transformers with stock BERT, on the same file.

    python benchmarks/prediction.py --classifier sst2 --tagger conll --embedder sentence-encoder \
        --glue_dir glue --squad_file squad/dev-v1.1.jsonl.gz

The classifier predicts the sentences of SST-2's dev set. The tagger finds entities in SQuAD's paragraphs. The embedder
embeds these paragraphs. It has two baselines: a feature-extraction pipeline, followed by the model's pooling, and
sentence-transformers, which sorts texts by length. The pipelines keep the order of the file.

Each side reads a JSON-lines file, predicts it and writes JSON lines. Loading the models is not timed. Stock BERT has
the same weights, converted by `snugbert convert`, and batches of `--batch_size`. The sides alternate. A ratio is
stock's time / ours in the same round, after one round of warmup. Before that, labels, entities and scores must agree.
Rows with another label or other entities are counted.
"""

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import sentence_transformers
import torch
from reporting import format_line, format_median
from side_by_side import SIDES, describe_machine, positive, print_table, take_turns
from transformers import pipeline

from snugbert.data.tables import read_rows
from snugbert.families.conversion import convert_model
from snugbert.families.sentence_transformers_files import TRANSFORMER
from snugbert.files import read_json
from snugbert.prediction.formats import make_format
from snugbert.prediction.make_predictor import make_predictor
from snugbert.prediction.predict_file import write_predictions
from snugbert.prediction.prediction_arguments import PredictionArguments

TOLERANCE = 1e-4  # of scores and embeddings
MOST_DIFFERENT = 0.002  # share of rows with another label or other entities: ties
MOST_CHARACTERS = 1500  # a pipeline does not cut texts that are longer than the model
Rows = list[dict[str, Any]]
COLUMNS = ("work", "rows", "ratio: median (min-max)", "rows/s ours", "rows/s stock", "rows that differ", "difference")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classifier", required=True, help="output folder of `snugbert glue --task_name sst2`")
    parser.add_argument("--tagger", required=True, help="output folder of `snugbert ner`")
    parser.add_argument("--embedder", required=True, help="embedding model of sentence-transformers")
    parser.add_argument("--glue_dir", required=True, help="folder with SST-2")
    parser.add_argument("--squad_file", required=True, help="questions with the columns of the Hugging Face dataset")
    parser.add_argument("--max_rows", type=positive, help="use the first rows only")
    parser.add_argument("--batch_size", type=positive, default=32, help="of the pipelines")
    parser.add_argument("--rounds", type=positive, default=5)
    return parser.parse_args(argv)


def write_rows(file: Path, texts: list[str]) -> Path:
    """Writes JSON lines with a column `text`."""
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def read_sentences(glue_dir: str) -> list[str]:
    """Reads the sentences of SST-2's dev set."""
    return [values["sentence"].strip() for _, values in read_rows(Path(glue_dir) / "SST-2" / "dev.tsv")]


def read_paragraphs(squad_file: str) -> list[str]:
    """Reads the different paragraphs of SQuAD, in order, cut after `MOST_CHARACTERS` characters."""
    with gzip.open(squad_file, "rt", encoding="utf-8") as stream:
        contexts = dict.fromkeys(json.loads(line)["context"] for line in stream)
    return [context[:MOST_CHARACTERS] for context in contexts]


# --- the sides --------------------------------------------------------------------------------------------------


def make_ours(model: str, rows: Path, output: Path, bf16: bool = False) -> Callable[[], Rows]:
    """Makes a function that predicts the rows with `snugbert predict`, and returns what it wrote."""
    args = PredictionArguments(
        model_name_or_path=model,
        input_file=str(rows),
        output_file=str(output),
        overwrite_output_file=True,
        use_cpu=True,
        bf16=bf16,
    )
    data = make_format(args)
    predictor = make_predictor(Path(model), args, [values for _, values in read_rows(rows)])

    def run() -> Rows:
        write_predictions(args, data, predictor, Path(model))
        return _read(output)

    return run


def make_stock(task: str, model: Path, rows: Path, output: Path, batch_size: int) -> Callable[[], Rows]:
    """Returns a function that predicts the rows with stock BERT, and returns what it wrote."""
    if task == "embeddings":
        encoder = sentence_transformers.SentenceTransformer(str(model), device="cpu")

        def predict(texts: Iterator[str]) -> Iterator[Any]:
            return iter(encoder.encode(list(texts), batch_size=batch_size, show_progress_bar=False).tolist())

    elif task == "feature-extraction":
        predict = make_extractor(model, batch_size)
    else:
        options = {"aggregation_strategy": "first"} if task == "token-classification" else {"truncation": True}
        predictor = pipeline(task, str(model), device="cpu", batch_size=batch_size, **options)

        def predict(texts: Iterator[str]) -> Iterator[Any]:
            return predictor(texts)

    def run() -> Rows:
        with rows.open() as source, output.open("w") as target:
            for prediction in predict(json.loads(line)["text"] for line in source):
                target.write(json.dumps({"prediction": prediction}, default=float) + "\n")
        return _read(output)

    return run


def make_extractor(model: Path, batch_size: int) -> Callable[[Iterator[str]], Iterator[Any]]:
    """Returns a function that embeds texts with a feature-extraction pipeline and the model's own pooling.

    Args:
        model: folder that `snugbert convert` wrote.
        batch_size: of the pipeline.
    """
    modules = list(sentence_transformers.SentenceTransformer(str(model), device="cpu"))[1:]
    limits = {"truncation": True, "max_length": read_json(model / TRANSFORMER)["max_seq_length"]}
    extract = pipeline(
        "feature-extraction",
        str(model),
        device="cpu",
        batch_size=batch_size,
        return_tensors=True,
        tokenize_kwargs=limits,
    )

    def predict(texts: Iterator[str]) -> Iterator[Any]:
        texts = list(texts)
        # The pipeline's tensors include padding. Tokenizing again to remove it takes less than 1 % of the time.
        masks = extract.tokenizer(texts, **limits)["attention_mask"]
        for mask, tokens in zip(masks, extract(text for text in texts), strict=True):
            features = {"token_embeddings": tokens[:, : len(mask)], "attention_mask": torch.tensor([mask])}
            for module in modules:
                features = module(features)
            yield features["sentence_embedding"][0].tolist()

    return predict


def _read(file: Path) -> Rows:
    return [json.loads(line) for line in file.read_text().splitlines()]


def count_differences(task: str, ours: Rows, stock: Rows) -> tuple[int, float]:
    """Counts rows with another label or other entities, and returns the largest difference of scores elsewhere."""
    different, largest = abs(len(ours) - len(stock)), 0.0
    for mine, theirs in zip(ours, stock, strict=False):
        other = theirs["prediction"]
        if task == "text-classification":
            same, scores = mine["predicted_label"] == other["label"], [max(mine["probabilities"].values())]
            others = [other["score"]]
        elif task == "token-classification":
            entities = [(each["label"], each["start"], each["end"]) for each in mine["entities"]]
            same = entities == [(each["entity_group"], each["start"], each["end"]) for each in other]
            scores, others = [each["score"] for each in mine["entities"]], [each["score"] for each in other]
        else:
            same, scores, others = True, mine["embedding"], other
        different += not same
        if same and scores:
            largest = max(largest, float(np.abs(np.array(scores) - np.array(others)).max()))
    return different, largest


# --- measurements -----------------------------------------------------------------------------------------------


def measure(run: Callable[[], Rows]) -> float:
    """Returns the seconds of a side."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(name: str, task: str, model: str, texts: list[str], args: argparse.Namespace) -> str:
    """Returns a row of the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        convert_model(Path(model), folder / "stock", "bert")
        rows = write_rows(folder / "rows.jsonl", texts[: args.max_rows])
        sides = {
            "ours": make_ours(model, rows, folder / "ours.jsonl"),
            "stock": make_stock(task, folder / "stock", rows, folder / "stock.jsonl", args.batch_size),
        }
        different, largest = count_differences(task, sides["ours"](), sides["stock"]())
        if largest > TOLERANCE or different > MOST_DIFFERENT * len(texts[: args.max_rows]):
            raise SystemExit(f"{name}: scores differ by {largest:.1e}, {different} rows differ. Not measured.")
        seconds = take_turns(lambda side, _: measure(sides[side]), 1 + args.rounds)
    number = len(texts[: args.max_rows])
    ours, stock = (seconds[side][1:] for side in SIDES)  # without the warmup
    ratios = [theirs / mine for mine, theirs in zip(ours, stock, strict=True)]
    speeds = (f"{number / median(side):,.0f}" for side in (ours, stock))
    return format_line([name, f"{number:,}", format_median(ratios), *speeds, str(different), f"{largest:.1e}"])


def main(argv: list[str]) -> None:
    """Prints a table with a row for each model."""
    args = parse_arguments(argv)
    machine = describe_machine("cpu") | {"sentence-transformers": sentence_transformers.__version__}
    sentences, paragraphs = read_sentences(args.glue_dir), read_paragraphs(args.squad_file)
    works = (
        ("classifier, SST-2", "text-classification", args.classifier, sentences),
        ("entities, paragraphs", "token-classification", args.tagger, paragraphs),
        ("embeddings, paragraphs", "feature-extraction", args.embedder, paragraphs),
        ("embeddings, paragraphs, next to sentence-transformers", "embeddings", args.embedder, paragraphs),
    )
    print_table(__file__, argv, machine, COLUMNS, (compare(*work, args) for work in works))


if __name__ == "__main__":
    main(sys.argv[1:])
