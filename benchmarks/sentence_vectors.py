r"""The recipe for sentence vectors without labels, next to SimCSE: search and similarity before and after.

    python benchmarks/sentence_vectors.py --model models/mini-en --text wiki_en/train.txt.gz \
        --squad_file squad/dev-v1.1.jsonl.gz --glue_dir glue

Search: the share of 2,000 questions of SQuAD whose paragraph is the first, or among the first 10, of all paragraphs.
Similarity: the rank correlation with the scores of STS-B's dev set. `neighbors` trains on neighboring sentences of a
line of the text, `SimCSE` on each sentence twice, with dropout.
"""

import argparse
import csv
import gzip
import json
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from datasets import Dataset
from reporting import format_line
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from side_by_side import describe_machine, positive, print_table

COLUMNS = ("training", "seed", "search, first", "search, first 10", "STS-B")
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
RATES = {"neighbors": 2e-4, "SimCSE": 1e-4}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, help="a paragraph per line, .gz")
    parser.add_argument("--squad_file", required=True)
    parser.add_argument("--glue_dir", required=True)
    parser.add_argument("--pairs", type=positive, default=10_000)
    parser.add_argument("--seeds", type=positive, default=3)
    return parser.parse_args(argv)


def read_pairs(args: argparse.Namespace, method: str, seed: int) -> list[tuple[str, str]]:
    """Returns random pairs from the beginning of the text, 20 times as long as needed."""
    pairs: list[tuple[str, str]] = []
    with gzip.open(args.text, "rt", encoding="utf-8") as lines:
        for line in lines:
            sentences = [each for each in re.split(r"(?<=[.!?])\s+", line) if 30 < len(each) < 200]
            second = sentences[1::2] if method == "neighbors" else sentences
            pairs += zip(sentences[::2] if method == "neighbors" else sentences, second, strict=False)
            if len(pairs) > 20 * args.pairs:
                break
    return random.Random(seed).sample(pairs, min(args.pairs, len(pairs)))


def score(model: SentenceTransformer, args: argparse.Namespace) -> list[str]:
    """Returns the last three columns."""
    with gzip.open(args.squad_file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    paragraphs = list(dict.fromkeys(row["context"] for row in rows))
    asked = random.Random(0).sample(rows, 2000)
    options: dict[str, Any] = {"normalize_embeddings": True, "show_progress_bar": False}
    questions = model.encode([row["question"] for row in asked], **options)
    order = np.argsort(-questions @ model.encode(paragraphs, **options).T, axis=1)[:, :10]
    found = order == np.array([paragraphs.index(row["context"]) for row in asked])[:, None]
    with open(f"{args.glue_dir}/STS-B/dev.tsv", encoding="utf-8") as table:
        texts = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))
    columns = ([row[name] for row in texts] for name in ("sentence1", "sentence2"))
    evaluator = EmbeddingSimilarityEvaluator(
        *columns, [float(row["score"]) for row in texts], similarity_fn_names=["cosine"]
    )
    shares = (found[:, 0].mean(), found.any(axis=1).mean(), evaluator(model)["spearman_cosine"])
    return [f"{100 * share:.1f}" for share in shares]


def load(args: argparse.Namespace, **config: Any) -> SentenceTransformer:
    """Loads the model with the mean of its token vectors."""
    model = SentenceTransformer(args.model, trust_remote_code=True, device="cpu", config_kwargs=config)
    model.max_seq_length = 128
    return model


def measure(args: argparse.Namespace) -> Iterator[str]:
    """Yields the rows of the table."""
    yield format_line(["none", "", *score(load(args), args)])
    for method, rate in RATES.items():
        for seed in range(1, args.seeds + 1):
            model = load(args, **DROPOUT if method == "SimCSE" else {})
            first, second = (list(side) for side in zip(*read_pairs(args, method, seed), strict=True))
            settings = SentenceTransformerTrainingArguments(
                "unused",
                per_device_train_batch_size=64,
                learning_rate=rate,
                num_train_epochs=1,
                seed=seed,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            )
            data = Dataset.from_dict({"first": first, "second": second})
            loss = MultipleNegativesRankingLoss(model)
            SentenceTransformerTrainer(model, settings, train_dataset=data, loss=loss).train()
            yield format_line([method, str(seed), *score(model, args)])


def main(argv: list[str]) -> None:
    """Prints a table with a row for each training."""
    args = parse_arguments(argv)
    print_table(__file__, argv, describe_machine("cpu"), COLUMNS, measure(args))


if __name__ == "__main__":
    main(sys.argv[1:])
