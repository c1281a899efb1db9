"""Speed and memory of data preparation, compared with the recipe of BERT's original release.

    python benchmarks/data_preparation.py --train_file 'books/train-*.txt.gz' --tokenizer_name tok

The original script of 2018 tokenizes sentences in Python, builds pairs and masks them, in memory and in one process.
This file reimplements its recipe with the Python tokenizer of transformers. As in the original, sentences are already
split. No files are written. Both tokenizers must give the same number of tokens.

Each stage runs `--rounds` times, with both sides in turn, and the best time counts. Memory is the private memory of a
process and its children, without mapped files, sampled 20 times per second. It is measured for preparing the text, and
for building an epoch's pairs and reading and masking examples, with the text once and `--copies` times.
"""

import argparse
import gc
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from reporting import describe_run, format_table
from side_by_side import describe_machine, positive
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.corpus import Corpus, open_corpus
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.data.documents import find_files, read_documents, split_sentences
from snugbert.data.tokenizing import DocumentTokenizer
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.examples import PretrainingDataset

BATCH_SIZE = 32
READ_EXAMPLES = 20_000  # per epoch, for masking and memory
SAMPLING_SECONDS = 0.05
# The original script's defaults.
SHORT_SEQ_PROB, MASKED_SHARE, MOST_MASKED = 0.1, 0.15, 20

Sentence = list[str]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", required=True, help="documents, as for `snugbert pretrain`")
    parser.add_argument("--tokenizer_name", required=True, help="tokenizer folder")
    parser.add_argument("--max_seq_length", type=positive, default=128)
    parser.add_argument("--num_workers", type=positive, default=2, help="preparation processes")
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--copies", type=positive, default=8, help="copies of the text for the memory measurement")
    parser.add_argument("--skip_memory", action="store_true")
    # Internal: the task of a process whose memory is measured.
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


# --- the original recipe ----------------------------------------------------------------------------------------


def original_tokens(documents: list[list[str]], tokenizer: Any) -> list[list[Sentence]]:
    """Tokenizes documents of sentences. Tokens are strings."""
    basic = BasicTokenizer(do_lower_case=tokenizer.do_lower_case)
    word_piece = WordpieceTokenizer(tokenizer.get_vocab(), tokenizer.unk_token)
    tokenized = (
        [[piece for word in basic.tokenize(text) for piece in word_piece.tokenize(word)] for text in document]
        for document in documents
    )
    return [[sentence for sentence in document if sentence] for document in tokenized if any(document)]


def original_pairs(documents: list[list[Sentence]], max_seq_length: int, seed: int) -> list[tuple[Sentence, Sentence]]:
    """Makes pairs: sentences up to a target length per document, split in two. Half get a random second segment."""
    rng = random.Random(seed)
    longest = max_seq_length - 3
    pairs = []
    for number, document in enumerate(documents):
        target = rng.randint(2, longest) if rng.random() < SHORT_SEQ_PROB else longest
        chunk: list[Sentence] = []
        length = position = 0
        while position < len(document):
            chunk.append(document[position])
            length += len(document[position])
            if position == len(document) - 1 or length >= target:
                cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                first = list(chain.from_iterable(chunk[:cut]))
                second = list(chain.from_iterable(chunk[cut:]))
                if len(chunk) == 1 or rng.random() < 0.5:
                    position -= len(chunk) - cut  # reuses the real second half later
                    second = _random_second(documents, number, target - len(first), rng)
                while len(first) + len(second) > longest:
                    longer = first if len(first) > len(second) else second
                    longer.pop(0 if rng.random() < 0.5 else -1)
                pairs.append((first, second))
                chunk, length = [], 0
            position += 1
    rng.shuffle(pairs)
    return pairs


def _random_second(documents: list[list[Sentence]], number: int, wanted: int, rng: random.Random) -> Sentence:
    other = number
    while other == number:
        other = rng.randrange(len(documents))
    second: Sentence = []
    for sentence in documents[other][rng.randrange(len(documents[other])) :]:
        second += sentence
        if len(second) >= wanted:
            break
    return second


def original_masks(pairs: Iterable[tuple[Sentence, Sentence]], tokenizer: Any, seed: int) -> Iterator[Any]:
    """Yields ids, segments, and positions and labels of the masked tokens of each pair."""
    rng = random.Random(seed)
    vocabulary = tokenizer.get_vocab()
    words = list(vocabulary)
    cls, sep, mask = tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token
    for first, second in pairs:
        tokens = [cls, *first, sep, *second, sep]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        candidates = [position for position, token in enumerate(tokens) if token not in (cls, sep)]
        rng.shuffle(candidates)
        number = min(MOST_MASKED, max(1, round(len(tokens) * MASKED_SHARE)))
        hidden = list(tokens)
        chosen = sorted(candidates[:number])
        for position in chosen:
            if rng.random() < 0.8:
                hidden[position] = mask
            elif rng.random() >= 0.5:
                hidden[position] = rng.choice(words)
        yield (
            [vocabulary[token] for token in hidden],
            segments,
            chosen,
            [vocabulary[tokens[position]] for position in chosen],
        )


# --- speed ------------------------------------------------------------------------------------------------------


def measure_speed(args: argparse.Namespace, folder: Path) -> list[str]:
    """Measures all stages, and returns the lines of the table."""
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    collate = SnugBertDataCollatorForPretraining(tokenizer)
    files = find_files(args.train_file)
    documents = list(read_documents(files))
    sentences = [split_sentences(document, "en") for document in documents]
    numbered = list(enumerate(sentences))
    batches = [numbered[start : start + 256] for start in range(0, len(numbered), 256)]
    seconds: dict[str, list[float]] = defaultdict(list)
    for round_ in range(args.rounds):
        with timed(seconds["read"]):
            for _ in read_documents(files):
                pass
        with timed(seconds["split"]):
            for document in documents:
                split_sentences(document, "en")
        worker = DocumentTokenizer(tokenizer, None)  # a new one each round, because it caches words
        with timed(seconds["tokenize"]):
            for batch in batches:
                worker(batch)
        for workers in sorted({1, args.num_workers}):
            with timed(seconds[f"prepare {workers}"]):
                corpus = prepare(args, folder / f"{round_}-{workers}", tokenizer, workers)
        with timed(seconds["pairs"]):
            dataset = make_dataset(corpus, folder / f"epochs-{round_}", tokenizer, args)
        with timed(seconds["mask"]):
            masked = read_and_mask(dataset, collate)
        with timed(seconds["original tokenize"]):
            tokens = original_tokens(sentences, tokenizer)
        with timed(seconds["original pairs"]):
            pairs = original_pairs(tokens, args.max_seq_length, seed=round_)
        with timed(seconds["original mask"]):
            for _ in original_masks(pairs, tokenizer, seed=round_):
                pass
    best = {stage: min(times) for stage, times in seconds.items()}
    number = corpus.num_tokens
    if (original_number := sum(len(sentence) for document in tokens for sentence in document)) != number:
        raise SystemExit(f"error: {number:,} tokens, but the original tokenizer gives {original_number:,}.")
    original_masked = sum(len(first) + len(second) + 3 for first, second in pairs)
    workers = f"prepare {args.num_workers}"
    rates = [
        ("reading files", number / best["read"], None),
        ("splitting into sentences", number / best["split"], None),
        ("tokenizing sentences", number / best["tokenize"], number / best["original tokenize"]),
        ("all three, into a prepared corpus, 1 process", number / best["prepare 1"], None),
        (f"the same, {args.num_workers} processes", number / best[workers], None),
        ("pairs of an epoch", number / best["pairs"], number / best["original pairs"]),
        ("masking and batching", masked / best["mask"], original_masked / best["original mask"]),
        (
            f"text to pairs, {args.num_workers} processes / sentences to masked pairs, 1 process",
            number / (best[workers] + best["pairs"]),
            number / sum(best[f"original {stage}"] for stage in ("tokenize", "pairs", "mask")),
        ),
    ]
    rows = [
        [stage, f"{ours:,.0f}", *((f"{theirs:,.0f}", f"{ours / theirs:.1f}") if theirs else ("", ""))]
        for stage, ours, theirs in rates
    ]
    table = format_table(("stage", "SnugBERT", "original recipe", "ratio"), rows)
    return [f"{corpus}; tokens per second:", "", table]


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Appends the duration of its block in seconds."""
    gc.collect()
    gc.freeze()  # a collection in the block would walk through all texts of the benchmark
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)


def prepare(args: argparse.Namespace, folder: Path, tokenizer: Any, num_workers: int) -> Corpus:
    """Prepares the text, and opens the corpus."""
    options: dict[str, Any] = {"preprocessing_num_workers": num_workers, "show_progress": False}
    return prepare_corpus(args.train_file, tokenizer, folder, **options)


def make_dataset(corpus: Corpus, folder: Path, tokenizer: Any, args: argparse.Namespace) -> PretrainingDataset:
    """Creates the dataset, which makes the pairs of the first epoch."""
    return PretrainingDataset(corpus, tokenizer, max_seq_length=args.max_seq_length, epochs_dir=folder)


def read_and_mask(dataset: PretrainingDataset, collate: Any) -> int:
    """Makes batches of the first `READ_EXAMPLES` examples, and counts their tokens."""
    number = min(READ_EXAMPLES, len(dataset))
    ranges = [range(start, min(start + BATCH_SIZE, number)) for start in range(0, number, BATCH_SIZE)]
    return sum(collate([dataset[index] for index in indices])["input_ids"].numel() for indices in ranges)


# --- memory -----------------------------------------------------------------------------------------------------


def measure_memory(args: argparse.Namespace, folder: Path) -> list[str]:
    """Measures memory, and returns the lines of the table."""
    files = find_files(args.train_file)
    copies = folder / "copies"
    copies.mkdir()
    for copy in range(args.copies):
        for index, file in enumerate(files):
            (copies / f"{copy}-{index}-{file.name}").symlink_to(file.resolve())
    idle = peak_memory(args, "idle", files, folder)
    rows = []
    for text, names in (("the text", files), (f"{args.copies} times the text", sorted(copies.iterdir()))):
        at = folder / f"memory-{len(names)}"
        peaks = [peak_memory(args, task, names, at) for task in ("prepare", "read")]
        stored = sum(file.stat().st_size for file in at.glob("*.arrow"))
        rows.append([text, *(f"{size / 1e6:,.0f}" for size in (stored, *peaks))])
    reading = f"pairs of an epoch, and {READ_EXAMPLES:,} examples read and masked"
    header = ("", "prepared corpus on disk", f"preparing, {args.num_workers} processes", reading)
    caption = f"Peak memory in MB, including {idle / 1e6:,.0f} for the program with torch and transformers:"
    return [caption, "", format_table(header, rows)]


def peak_memory(args: argparse.Namespace, task: str, files: list[Path], folder: Path) -> int:
    """Measures the peak private memory in bytes of a process with this task and its children."""
    command = [sys.executable, __file__, "--tokenizer_name", args.tokenizer_name, "--task", task]
    command += ["--folder", str(folder), "--num_workers", str(args.num_workers)]
    command += ["--max_seq_length", str(args.max_seq_length), "--train_file", *map(str, files)]
    process = subprocess.Popen(command)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(own_memory, list_family(process.pid))))
        time.sleep(SAMPLING_SECONDS)
    if process.returncode:
        raise SystemExit(f"error: measuring the memory of {task!r} failed.")
    return peak


def list_family(pid: int) -> list[int]:
    """Returns a process and its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return []
    return [pid, *chain.from_iterable(list_family(int(child)) for child in children)]


def own_memory(pid: int) -> int:
    """Returns the bytes of anonymous memory. Shared memory is divided among its processes."""
    return read_smaps(pid, "Pss_Anon:")


def read_smaps(pid: int, field: str) -> int:
    """Returns a field of the memory maps of a process, in bytes. 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(field))


def run_task(args: argparse.Namespace) -> None:
    """Runs the task of a process whose memory is measured."""
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    if args.task == "prepare":
        prepare(args, args.folder, tokenizer, args.num_workers)
    elif args.task == "read":
        dataset = make_dataset(open_corpus(args.folder, tokenizer), args.folder / "epochs", tokenizer, args)
        read_and_mask(dataset, SnugBertDataCollatorForPretraining(tokenizer))


TASKS = ("idle", "prepare", "read")


def main(argv: list[str]) -> None:
    """Measures, and prints both tables."""
    args = parse_arguments(argv)
    try:
        if args.task:
            run_task(args)
            return
        with tempfile.TemporaryDirectory() as folder:
            print(describe_run(__file__, argv, describe_machine("cpu")), flush=True)
            print("\n".join(measure_speed(args, Path(folder))), flush=True)
            if not args.skip_memory:
                print("\n" + "\n".join(measure_memory(args, Path(folder))))
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
