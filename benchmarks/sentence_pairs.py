"""Next-sentence pairs of SnugBERT and of BERT's original release: how much text they show, and what reveals the label.

    python benchmarks/sentence_pairs.py --train_file books.txt --tokenizer_name tok --language de

Each seed and length gives several epochs of pairs. The columns of the table, means over the seeds:

- Share of the tokens of the corpus in at least one pair, after 1 and after 4 epochs.
- How often a token is shown in one epoch: the maximum, and standard deviation / mean.
- Fill: tokens including special tokens / (pairs x length). Share of the pairs with label "next".
- How many points above 50 % a classifier scores that sees only a part of the pair, ± standard deviation over the
  seeds: the words of the second segment B; the length of its document; both; B's first and last token; the lengths of
  both segments. 0 means that the part does not reveal the label. Words and tokens go into logistic regression, lengths
  into gradient boosting.

A classifier learns from even epochs and is scored on odd ones, with as many pairs of each label. Classifiers
that see only B learn from a random half of the documents. They are scored first on the same documents, then on the
other half. A model in training sees the same documents in every epoch, so the first number is what it could exploit.
The second number shows what generalizes.

The original recipe is a reimplementation (`data_preparation.py`). Its epochs correspond to
`--dupe_factor`. Both recipes get the same prepared sentences.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from data_preparation import original_pairs
from scipy.sparse import csr_matrix, diags, hstack
from side_by_side import describe_machine, positive
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from transformers import PreTrainedTokenizerBase

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.data.documents import find_files, read_documents, split_sentences
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.trainers.pretraining.block_windows import WINDOW_BLOCKS, Window
from snugbert.trainers.pretraining.examples import PretrainingDataset

SPECIAL_TOKENS = 3
EPOCHS = 4  # for the share of the tokens, and at least for the classifiers
MOST_EPOCHS = 8  # for the classifiers, if an epoch has few pairs
MOST_PAIRS = 40_000  # to train a classifier, and to score it
DOCUMENT_LENGTH_BINS = 20  # for logistic regression
HEADER = (
    "| length | recipe | seen after 1 epoch, % | seen after 4 epochs, % | most shown | deviation / mean | fill, % "
    "| next, % | words of B | document length of B | both | ends of B | segment lengths |\n|" + " --- |" * 13
)
DIGITS = (2, 2, 0, 2, 1, 1)  # of the columns before the classifiers


@dataclass
class Text:
    """The tokens of a corpus in one array, and where its documents start and end."""

    tokens: np.ndarray
    sentences: list[np.ndarray]  # offsets in `tokens` of each document's sentences, and of its end
    documents: np.ndarray  # offset of each document, and of the end
    block_starts: np.ndarray


@dataclass
class Pairs:
    """The pairs of an epoch: offsets in the tokens of a corpus, lengths, and labels (0: next, 1: random)."""

    first: np.ndarray
    first_length: np.ndarray
    second: np.ndarray
    second_length: np.ndarray
    label: np.ndarray


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", required=True, help="documents, as for `snugbert pretrain`")
    parser.add_argument("--tokenizer_name", required=True, help="tokenizer folder")
    parser.add_argument("--language", default="en")
    parser.add_argument(
        "--document_sentences", type=positive, help="cut documents into shorter ones of this many sentences"
    )
    parser.add_argument("--lengths", type=positive, nargs="+", default=[64, 128, 512])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=positive, default=3)
    return parser.parse_args(argv)


# --- pairs ------------------------------------------------------------------------------------------------------


def join_blocks(corpus: Corpus) -> Text:
    """Joins the blocks of a corpus."""
    block_starts = np.cumsum([0, *(len(block.tokens) for block in corpus.blocks)])
    sentences = [
        start + block.sentences[first : last + 1].astype(np.int64)
        for start, block in zip(block_starts, corpus.blocks, strict=False)
        for first, last in pairwise(block.documents.tolist())
    ]
    documents = np.array([*(offsets[0] for offsets in sentences), block_starts[-1]])
    return Text(np.concatenate([block.tokens for block in corpus.blocks]), sentences, documents, block_starts)


def snugbert_epochs(
    corpus: Corpus,
    text: Text,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    seed: int,
    window_blocks: int = WINDOW_BLOCKS,
) -> Iterator[Pairs]:
    """Yields the epochs of SnugBERT's dataset."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = PretrainingDataset(
            corpus, tokenizer, length, seed=seed, epochs_dir=folder, window_blocks=window_blocks
        )
        for epoch in range(MOST_EPOCHS):
            windows = [Window(epoch, number) for number in range(dataset.windows.per_epoch)]
            # All epochs have the length of the first. The dataset leaves out random pairs of a longer epoch.
            rows = np.concatenate([np.delete(dataset.open_table(each), dataset.find_unused(each)) for each in windows])
            yield Pairs(
                text.block_starts[rows["block"]] + rows["start"],
                rows["length"].astype(np.int64),
                text.block_starts[rows["second_block"]] + rows["second_start"],
                rows["second_length"].astype(np.int64),
                rows["label"],
            )


def original_epochs(
    corpus: Corpus, text: Text, tokenizer: PreTrainedTokenizerBase, length: int, seed: int
) -> Iterator[Pairs]:
    """Yields epochs of the original recipe. It gets token positions instead of tokens, to locate the pairs."""
    documents = [
        [list(map(str, range(start, end))) for start, end in pairwise(offsets.tolist())] for offsets in text.sentences
    ]
    for epoch in range(MOST_EPOCHS):
        pairs = original_pairs(documents, length, seed * MOST_EPOCHS + epoch)
        first = np.array([int(first[0]) for first, _ in pairs])
        second = np.array([int(second[0]) for _, second in pairs])
        lengths = np.array([(len(first), len(second)) for first, second in pairs])
        # A random segment never comes from the same document.
        label = find_documents(text, first) != find_documents(text, second)
        yield Pairs(first, lengths[:, 0], second, lengths[:, 1], label)


RECIPES = {"original": original_epochs, "SnugBERT": snugbert_epochs}


def find_documents(text: Text, positions: np.ndarray) -> np.ndarray:
    """Returns the index of the document of each position."""
    return np.searchsorted(text.documents, positions, side="right") - 1


# --- measurements -----------------------------------------------------------------------------------------------


def measure(epochs: Iterator[Pairs], text: Text, length: int, seed: int) -> list[float]:
    """Returns the columns of a row for one seed."""
    made = [next(epochs) for _ in range(EPOCHS)]
    while len(made) < MOST_EPOCHS and sum(len(pairs.label) for pairs in made[::2]) < MOST_PAIRS:
        made += [next(epochs), next(epochs)]
    shown = [count_shown(pairs, len(text.tokens)) for pairs in made[:EPOCHS]]
    used = [pairs.first_length + pairs.second_length + SPECIAL_TOKENS for pairs in made]
    return [
        100 * np.mean(shown[0] > 0),
        100 * np.mean(sum(shown) > 0),
        shown[0].max(),
        shown[0].std() / shown[0].mean(),
        100 * np.mean(np.concatenate(used)) / length,
        100 * np.mean(np.concatenate([pairs.label for pairs in made]) == 0),
        *classify_seconds(made, text, seed),
        classify_lengths(made, text, seed),
    ]


def count_shown(pairs: Pairs, size: int) -> np.ndarray:
    """Counts how often each token is in a pair."""
    starts = np.concatenate([pairs.first, pairs.second])
    ends = starts + np.concatenate([pairs.first_length, pairs.second_length])
    return np.cumsum(np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1))[:-1]


def classify_seconds(epochs: list[Pairs], text: Text, seed: int) -> list[float]:
    """Returns the points of each classifier of B above 50 %: on the documents it learned from, and on others."""
    rng = np.random.default_rng(seed)
    is_known = rng.random(len(text.documents) - 1) < 0.5
    train = select(epochs[::2], text, is_known, rng)
    tests = [select(epochs[1::2], text, known, rng) for known in (is_known, ~is_known)]
    document_lengths = np.diff(text.documents)
    bins = np.unique(np.quantile(document_lengths, np.linspace(0, 1, DOCUMENT_LENGTH_BINS + 1)[1:-1]))

    def words(pairs: Pairs) -> csr_matrix:
        ends = np.cumsum(pairs.second_length)
        positions = np.arange(ends[-1]) + np.repeat(pairs.second - ends + pairs.second_length, pairs.second_length)
        shape = len(pairs.label), int(text.tokens.max()) + 1
        counts = csr_matrix((np.ones(ends[-1]), text.tokens[positions], [0, *ends]), shape)
        counts.sum_duplicates()
        return normalize(counts.log1p())

    def document_length(pairs: Pairs) -> np.ndarray:
        return document_lengths[find_documents(text, pairs.second)].reshape(-1, 1)

    def both(pairs: Pairs) -> csr_matrix:
        places = np.searchsorted(bins, document_length(pairs)[:, 0])
        return hstack([words(pairs), diags(np.ones(len(bins) + 1)).tocsr()[places]]).tocsr()

    def ends(pairs: Pairs) -> csr_matrix:
        first, last = text.tokens[[pairs.second, pairs.second + pairs.second_length - 1]].astype(np.int64)
        size, number = int(text.tokens.max()) + 1, len(first)
        columns = np.stack([first, size + last], axis=1).ravel()
        return csr_matrix((np.ones(2 * number), columns, range(0, 2 * number + 1, 2)), (number, 2 * size))

    points = []
    for features in (words, document_length, both, ends):
        classifier = LogisticRegression(max_iter=1000)
        if features is document_length:
            classifier = HistGradientBoostingClassifier(random_state=seed)
        classifier.fit(features(train), train.label)
        points += [100 * classifier.score(features(test), test.label) - 50 for test in tests]
    return points


def classify_lengths(epochs: list[Pairs], text: Text, seed: int) -> float:
    """Returns the points above 50 % of the classifier that sees only the lengths of both segments.

    It uses all documents. If only B's document were from one half, A's length would reveal whether A is from it, too.
    """
    rng = np.random.default_rng(seed)
    is_chosen = np.ones(len(text.documents) - 1, dtype=bool)
    train, test = (select(epochs[first::2], text, is_chosen, rng) for first in (0, 1))

    def lengths(pairs: Pairs) -> np.ndarray:
        return np.stack([pairs.first_length, pairs.second_length, pairs.first_length + pairs.second_length], axis=1)

    classifier = HistGradientBoostingClassifier(random_state=seed).fit(lengths(train), train.label)
    return 100 * classifier.score(lengths(test), test.label) - 50


def select(epochs: list[Pairs], text: Text, is_chosen: np.ndarray, rng: np.random.Generator) -> Pairs:
    """Selects random pairs whose second segment is from a chosen document: as many of each label."""
    joined = [np.concatenate([vars(pairs)[name] for pairs in epochs]) for name in vars(epochs[0])]
    label = joined[-1]
    candidates = rng.permutation(np.flatnonzero(is_chosen[find_documents(text, joined[2])]))
    groups = [candidates[label[candidates] == value] for value in (0, 1)]
    number = min(MOST_PAIRS // 2, *map(len, groups))
    chosen = np.concatenate([group[:number] for group in groups])
    return Pairs(*(values[chosen] for values in joined))


# --- table ------------------------------------------------------------------------------------------------------


def measure_recipes(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Prepares the text, and yields the lines of the table."""
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    files, options = args.train_file, {"language": args.language, "show_progress": False}
    if args.document_sentences:
        files = [str(folder / "documents.txt")]
        options["lines_are_sentences"] = True
        cut_documents(args, Path(files[0]))
    corpus = prepare_corpus(files, tokenizer, folder / "prepared", **options)
    text = join_blocks(corpus)
    longest = max(int(np.diff(offsets).max()) for offsets in text.sentences)
    yield f"{corpus}; longest sentence: {longest:,} tokens\n\n{HEADER}"
    for length in args.lengths:
        for recipe in args.recipes:
            make_epochs = RECIPES[recipe]
            results = [
                measure(make_epochs(corpus, text, tokenizer, length, seed), text, length, seed)
                for seed in range(args.seeds)
            ]
            yield row(length, recipe, np.array(results))


def cut_documents(args: argparse.Namespace, file: Path) -> None:
    """Writes documents of `--document_sentences` sentences, a sentence per line."""
    size = args.document_sentences
    with file.open("w") as lines:
        for document in read_documents(find_files(args.train_file)):
            sentences = split_sentences(document, args.language)
            for start in range(0, len(sentences), size):
                lines.write("\n".join(sentences[start : start + size]) + "\n\n")


def row(length: int, recipe: str, results: np.ndarray) -> str:
    """Formats a row. *Shape of the results:* (seeds, columns)"""
    mean, deviation = results.mean(axis=0), results.std(axis=0)
    cells = [f"{value:.{digits}f}" for value, digits in zip(mean, DIGITS, strict=False)]
    # Adding 0 turns -0.0 into 0.0.
    points = [f"{round(mean[at], 1) + 0:.1f} ± {deviation[at]:.1f}" for at in range(len(DIGITS), len(mean))]
    cells += [f"{seen}, {unseen}" for seen, unseen in zip(points[:-1:2], points[1::2], strict=True)] + points[-1:]
    return f"| {length} | {recipe} | {' | '.join(cells)} |"


def main(argv: list[str]) -> None:
    """Measures, and prints the table."""
    args = parse_arguments(argv)
    try:
        print(", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items()))
        print(f"\n    python benchmarks/sentence_pairs.py {shlex.join(argv)}\n", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for line in measure_recipes(args, Path(folder)):
                print(line, flush=True)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
