r"""How many sizes filled rows have, and how much padding they contain (`--pad_to_multiple_of`).

    python benchmarks/row_sizes.py --train_file 'books_en/train-0[01].txt.gz' --glue_dir glue \
        --conll_file conll2003/train.jsonl.gz --squad_file squad/train.jsonl.gz

Each row of the table is a training set in random batches, as the trainers draw them, filled up to the multiple that
they choose on a GPU. Two batches have the same size if all of their shapes and numbers are equal. Padding is a share
of the tokens of filled rows.

Pretraining has 15 % masked tokens. In fine-tuning, a batch has 32 examples, and 12 for SQuAD. GLUE tasks are read from
`train_subset.tsv.gz` if their folder has this file.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from finetuning import encode_split
from reporting import format_header, format_line
from side_by_side import default_checkpoint, positive
from transformers import PreTrainedTokenizerBase

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.data.glue import TASKS
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking, count_tokens
from snugbert.data.squad import check_answers, read_questions
from snugbert.families.loading import load_tokenizer
from snugbert.gpu.row_sizes import choose_fine_tuning_multiple, choose_pretraining_multiple
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_windows import make_question_windows
from snugbert.tasks.tagging import Tagging
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.examples import PretrainingDataset

# Examples of a batch, their length, and whether they are pairs.
PRETRAINING = (
    (32, 128, True),
    (256, 128, True),
    (8, 512, True),
    (64, 512, True),
    (32, 128, False),
    (256, 128, False),
    (8, 512, False),
    (64, 512, False),
)
FINE_TUNING_BATCH = 32
SQUAD_BATCH = 12  # of BERT's release for windows of 384 tokens
MOST_FREQUENT = 8  # sizes
COLUMNS = ("training set", "tokens of a row", "multiple", "sizes", "padding", "batches in the 8 most frequent sizes")


class Rows(NamedTuple):
    """A training set and its filled rows.

    Attributes:
        name: for the table.
        batch_size: examples of a row.
        features: the examples.
        collate: makes a filled row.
    """

    name: str
    batch_size: int
    features: Any
    collate: Any


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--train_file", nargs="+", help="documents, as for `snugbert pretrain`")
    parser.add_argument("--glue_dir", help="folder with the GLUE tasks")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="GLUE tasks")
    parser.add_argument("--conll_file", help="CoNLL-2003 training file")
    parser.add_argument("--squad_file", help="SQuAD training file")
    parser.add_argument("--batches", type=positive, default=1000, help="batches of each training set")
    return parser.parse_args(argv)


def list_rows(args: argparse.Namespace, folder: Path) -> Iterator[Rows]:
    """Yields the training sets. Writes into `folder`."""
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=default_checkpoint()))
    if args.train_file:
        corpus = prepare_corpus(args.train_file, tokenizer, folder / "corpus", show_progress=False)
        for batch_size, length, are_pairs in PRETRAINING:
            objective = "nsp" if are_pairs else "mlm"
            dataset = PretrainingDataset(corpus, tokenizer, length, objective, epochs_dir=folder / "epochs")  # type: ignore[arg-type]
            multiple = choose_pretraining_multiple(batch_size, dataset)
            collate = SnugBertDataCollatorForPretraining(tokenizer, pad_to_multiple_of=multiple)
            kind = "sentence pairs" if are_pairs else "full sentences"
            yield Rows(f"pretraining, {kind}, {batch_size} x {length}", batch_size, dataset, collate)
    for name, features in list_task_features(args, tokenizer):
        batch_size = SQUAD_BATCH if name == "SQuAD" else FINE_TUNING_BATCH
        multiple = choose_fine_tuning_multiple(batch_size, count_tokens(features))
        yield Rows(name, batch_size, features, SnugBertDataCollatorWithPacking(multiple))


def list_task_features(
    args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[str, datasets.Dataset]]:
    """Yields name and features of each fine-tuning task."""
    for task in args.tasks if args.glue_dir else ():
        subset = Path(args.glue_dir) / TASKS[task].folder / "train_subset.tsv.gz"
        source = {"train_file": str(subset)} if subset.exists() else {"data_dir": args.glue_dir}
        yield TASKS[task].folder, encode_split(TextClassification(task_name=task, **source), "train", tokenizer)
    if args.conll_file:
        yield "CoNLL-2003", encode_split(Tagging(train_file=args.conll_file), "train", tokenizer)
    if args.squad_file:
        questions = read_questions(Path(args.squad_file), args.squad_file)
        questions = check_answers(questions, args.squad_file, training=True, version_2=True, skip=False)
        yield "SQuAD", make_question_windows(questions, tokenizer, training=True).inputs


def draw_batches(examples: int, batch_size: int) -> Iterator[list[int]]:
    """Yields the indices of random full batches, without end. Every epoch has another order."""
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(examples)
        for start in range(0, examples - batch_size + 1, batch_size):
            yield order[start : start + batch_size].tolist()


def format_row(rows: Rows, number: int) -> str:
    """Fills `number` batches, and returns a line of the table."""
    sizes: Counter[Any] = Counter()
    tokens = []
    if len(rows.features) < rows.batch_size:
        raise SystemExit(f"error: {rows.name}: {len(rows.features)} examples are fewer than a batch.")
    for indices in islice(draw_batches(len(rows.features), rows.batch_size), number):
        batch = rows.collate([rows.features[index] for index in indices])
        tokens.append((int(batch["cu_seq_lens_q"][batch["num_sequences"]]), batch["input_ids"].shape[1]))
        sizes[tuple((name, getattr(value, "shape", value)) for name, value in batch.items())] += 1
    real, filled = map(sum, zip(*tokens, strict=True))
    frequent = sum(count for _, count in sizes.most_common(MOST_FREQUENT)) / number
    shares = (f"{1 - real / filled:.1%}", f"{frequent:.1%}")
    return format_line(
        [rows.name, f"{real / number:,.0f}", str(rows.collate.pad_to_multiple_of), str(len(sizes)), *shares]
    )


def main(argv: list[str]) -> None:
    """Prints the table."""
    args = parse_arguments(argv)
    datasets.disable_progress_bars()
    print(format_header(COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for rows in list_rows(args, Path(folder)):
            print(format_row(rows, args.batches), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
