r"""Measures the masks of each tokenizer on real text: shares, word boundaries, cost, and the effect on training.

    python benchmarks/masks.py shares --train_file books_en/train-00.txt.gz --output_dir masks
    python benchmarks/masks.py speed --train_file books_en/train-00.txt.gz --output_dir masks
    python benchmarks/masks.py train --train_file books_en/train-00.txt.gz \
        --validation_file books_en/validation.txt.gz --output_dir masks

`shares` trains WordPiece, BPE and byte-level BPE (`snugbert vocabulary`) and Unigram (the tokenizers library),
prepares the text with each, masks full sentences, with new masks in every epoch, and counts:

- chosen: tokens to predict, as a share of all tokens except special ones, and as a share of the number that each
  example should have (rounded)
- [MASK], random, unchanged: shares of the chosen tokens. A random token can be the original one, and then counts as
  unchanged
- cut words: words of which some tokens are chosen and others are not
- words per span: the mean length, and the largest difference between the share of a length and its probability in the
  clipped geometric distribution. The last span of an example is cut, so the lengths depend on the number of tokens to
  choose. The table also has these numbers for the algorithm of SpanBERT's original release, which also cuts the last
  span, but within a word

`speed` times the collator and the preparation of text, with and without words. `train` pretrains with each kind of
masks and scores the models with the same masks: single tokens and whole words, 15 %. A finished run is skipped.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pretraining_ladder import as_flags
from side_by_side import describe_machine
from steps import format_seeds, format_table, run_snugbert
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import snugbert
from snugbert.data.documents import read_documents
from snugbert.data.tokenizing import DocumentTokenizer, needs_words
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.masking import SPAN_SHARES, choose_spans
from snugbert.vocabulary.train import train_vocabulary
from snugbert.vocabulary.vocabulary_arguments import VocabularyArguments

KINDS = {"wordpiece": "WordPiece", "bpe": "BPE", "byte-bpe": "byte-level BPE", "unigram": "Unigram"}
MASKINGS = ("tokens", "words", "spans")
VOCAB_SIZE = 8192
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SEEDS = (1, 2, 3)
# As in benchmarks/ladder/no-pairs.yaml, but with one length and smaller batches.
TRAINING = {
    "config_name": "tiny",
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "objective": "mlm",
    "bigram_init": "true",
    "max_seq_length": 128,
    "per_device_train_batch_size": 32,
    "optim": "muon",
    "learning_rate": "4e-3",
    "warmup_steps": "0.05",
    "adam_beta2": "0.98",
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": "true",
}
RUNS = {
    "tokens, 15 %": {"masking": "tokens"},
    "tokens, 30 %": {"masking": "tokens", "mlm_probability": "0.3"},
    "tokens, 30 % to 15 %": {"masking": "tokens", "mlm_probability": "0.3:0.15"},
    "words, 15 %": {"masking": "words"},
    "spans, 15 %": {"masking": "spans"},
}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("shares", "speed", "train"))
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--validation_file")
    parser.add_argument("--max_seq_length", type=int, nargs="+", default=[128, 512], help="for `shares`")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="tokenizers")
    parser.add_argument("--tokens", type=int, default=10**7, help="for `shares`: tokens for each row of the table")
    parser.add_argument("--max_steps", type=int, default=200, help="for `train`")
    parser.add_argument("--output_dir", type=Path, required=True)
    args = parser.parse_args(argv)
    if args.part == "train" and args.validation_file is None:
        parser.error("train needs --validation_file.")
    return args


# --- tokenizers -----------------------------------------------------------------------------------------------------


def load_tokenizer(kind: str, args: argparse.Namespace) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a kind. Trains it at the first call."""
    folder = args.output_dir / f"tokenizer-{kind}"
    if not (folder / "tokenizer.json").exists():
        if kind == "unigram":
            train_unigram(args.train_file, VOCAB_SIZE).save_pretrained(folder)
        else:
            settings = {"train_file": [args.train_file], "vocab_size": VOCAB_SIZE, "output_dir": str(folder)}
            train_vocabulary(VocabularyArguments(model=kind, **settings))
    return AutoTokenizer.from_pretrained(folder)


def train_unigram(file: str, vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a Unigram tokenizer with the tokenizers library. It formats text as BERT does."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=list(SPECIAL_TOKENS), unk_token="[UNK]"
    )
    tokenizer.train_from_iterator(chain.from_iterable(read_documents([Path(file)])), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, SPECIAL_TOKENS, strict=True)))


def make_examples(kind: str, length: int, args: argparse.Namespace) -> tuple[PreTrainedTokenizerBase, Any]:
    """Returns the tokenizer and the examples of the text, full sentences of at most `length` tokens."""
    tokenizer = load_tokenizer(kind, args)
    folder = args.output_dir / f"corpus-{kind}"
    corpus = snugbert.prepare_corpus(args.train_file, tokenizer, folder, store_words=True, show_progress=False)
    return tokenizer, PretrainingDataset(corpus, tokenizer, length, "mlm")


# --- shares ---------------------------------------------------------------------------------------------------------


def count_masks(kind: str, masking: str, length: int, args: argparse.Namespace) -> dict[str, Any]:
    """Masks examples and counts what was chosen and how it was replaced."""
    tokenizer, dataset = make_examples(kind, length, args)
    collate = snugbert.SnugBertDataCollatorForPretraining(tokenizer, masking=masking)
    counts: dict[str, float] = dict.fromkeys(("tokens", "budget", "chosen", "mask", "unchanged", "words", "cut"), 0)
    for example in list_examples(dataset, args.tokens):
        batch = collate([example])
        original, seen, labels = example["input_ids"], batch["input_ids"][0].numpy(), batch["labels"][0].numpy()
        ordinary, chosen = ~np.isin(original, tokenizer.all_special_ids), labels != -100
        starts = np.flatnonzero(~find_continuations(example, tokenizer))
        of_word = np.add.reduceat(chosen, starts) / np.diff(np.append(starts, len(original)))
        for name, count in {
            "tokens": ordinary.sum(),
            "budget": max(1, round(0.15 * int(ordinary.sum()))),
            "chosen": chosen.sum(),
            "mask": (seen[chosen] == tokenizer.mask_token_id).sum(),
            "unchanged": (seen[chosen] == original[chosen]).sum(),
            "words": (of_word > 0).sum(),
            "cut": ((of_word > 0) & (of_word < 1)).sum(),
        }.items():
            counts[name] += int(count)
    return counts


def find_continuations(example: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Returns which tokens of an example continue a word: from the corpus, or from the prefix of WordPiece.

    If the start of a word was cut off, the rest, after a special token, is a word.
    """
    is_special = np.isin(example["input_ids"], tokenizer.all_special_ids)
    if "continues_word" in example:
        continues = example["continues_word"]
    else:
        tokens = tokenizer.convert_ids_to_tokens(example["input_ids"].tolist())
        continues = np.array([token.startswith("##") for token in tokens])
    return continues & ~np.roll(is_special, 1)


def list_examples(dataset: PretrainingDataset, tokens: int) -> Iterator[dict[str, Any]]:
    """Yields examples with about so many tokens, from as many epochs as necessary."""
    for number in range(tokens // dataset.max_seq_length):
        yield dataset.get_example(*divmod(number, len(dataset)))


def measure_spans(kind: str, length: int, args: argparse.Namespace) -> list[np.ndarray]:
    """Returns how many spans have 1, 2, ... words: our spans, and the spans of SpanBERT's original algorithm."""
    tokenizer, dataset = make_examples(kind, length, args)
    rng = np.random.default_rng(0)
    ours, original = np.zeros((2, len(SPAN_SHARES) + 1), dtype=int)
    for example in list_examples(dataset, args.tokens // 10):
        indices = np.flatnonzero(~np.isin(example["input_ids"], tokenizer.all_special_ids))
        continues = find_continuations(example, tokenizer)
        budget = max(1, round(0.15 * len(indices)))
        chosen, spans = choose_spans(indices, continues, budget, rng)
        ours += np.bincount(np.bincount(spans[~continues[chosen]]), minlength=len(ours))
        original += np.bincount(draw_original_spans(continues[indices], budget, rng), minlength=len(original))
    return [ours[1:], original[1:]]


def draw_original_spans(continues: np.ndarray, budget: int, rng: np.random.Generator) -> list[int]:
    """Returns the number of words of each span, as `PairWithSpanMaskingScheme` of SpanBERT's release chooses them."""
    masked: set[int] = set()
    lengths = []
    while len(masked) < budget:
        length, anchor = 1 + rng.choice(len(SPAN_SHARES), p=SPAN_SHARES), rng.integers(len(continues))
        if anchor in masked:
            continue
        while anchor and continues[anchor]:
            anchor -= 1
        words = 0
        while words < length and anchor < len(continues) and len(masked) < budget:
            words += 1
            masked.add(int(anchor))
            anchor += 1
            while anchor < len(continues) and continues[anchor] and len(masked) < budget:
                masked.add(int(anchor))
                anchor += 1
        lengths.append(words)
    return lengths


def describe_shares(args: argparse.Namespace) -> str:
    """Returns a table with a row for each tokenizer, length and kind of masks."""
    rows = [["tokenizer", "tokens", "masks", "chosen", "of the rounded number", "[MASK]", "random", "unchanged"]]
    rows[0] += ["cut words", "words per span: mean, largest difference", "the same, SpanBERT's release"]
    for kind in args.kinds:
        for length in args.max_seq_length:
            spans = measure_spans(kind, length, args)
            for masking in MASKINGS:
                counts = count_masks(kind, masking, length, args)
                chosen = counts["chosen"]
                shares = [chosen / counts["tokens"], chosen / counts["budget"], counts["mask"] / chosen]
                shares += [1 - (counts["mask"] + counts["unchanged"]) / chosen, counts["unchanged"] / chosen]
                lengths = [_describe_lengths(counted) for counted in spans] if masking == "spans" else ["", ""]
                percent = [f"{100 * share:.2f} %" for share in shares]
                cut = f"{100 * counts['cut'] / counts['words']:.2f} %"
                rows.append([KINDS[kind], f"{length}", masking, *percent, cut, *lengths])
                print(*rows[-1], file=sys.stderr, flush=True)
    return format_table(rows)


def _describe_lengths(counts: np.ndarray) -> str:
    shares = counts / counts.sum()
    mean = shares @ (1 + np.arange(len(shares)))
    return f"{mean:.2f}, {100 * np.abs(shares - SPAN_SHARES).max():.1f} points"


# --- speed and size -------------------------------------------------------------------------------------------------


def describe_speed(args: argparse.Namespace) -> str:
    """Returns tables of the time of the collator and of preparing text, and of the size of the corpus."""
    rows = [["tokenizer", *(f"{masking}, microseconds per example of 128 tokens" for masking in MASKINGS)]]
    for kind in args.kinds:
        tokenizer, dataset = make_examples(kind, 128, args)
        examples = [dataset[index % len(dataset)] for index in range(2016)]
        batches = [examples[start : start + 32] for start in range(0, len(examples), 32)]
        cells = []
        for masking in MASKINGS:
            collate = snugbert.SnugBertDataCollatorForPretraining(tokenizer, masking=masking)
            seconds = [_time(lambda: list(map(collate, batches))) for _ in range(5)]  # noqa: B023
            cells.append(f"{1e6 * median(seconds) / (32 * len(batches)):.0f}")
        rows.append([KINDS[kind], *cells])
    text = format_table(rows)
    rows = [
        ["tokenizer", "seconds without words", "with words", "ratio", "corpus without words", "with words", "ratio"]
    ]
    documents = list(enumerate(read_documents([Path(args.train_file)])))[:100]
    for kind in args.kinds:
        tokenizer = load_tokenizer(kind, args)
        worker = DocumentTokenizer(tokenizer, "en")
        if not needs_words(tokenizer):
            rows.append([KINDS[kind], *["no change"] * 3, *[f"{_corpus_bytes(kind, args):,}", "the same", "1.000"]])
            continue
        times: dict[bool, list[float]] = {False: [], True: []}
        for stores in [False, True] * 5:
            worker.stores_words = stores
            times[stores].append(_time(lambda: worker(documents)))  # noqa: B023
        ratio = median(b / a for a, b in zip(times[False], times[True], strict=True))
        size = _corpus_bytes(kind, args)
        without = size - _words_bytes(kind, args)
        cells = [f"{median(times[stores]):.2f}" for stores in (False, True)] + [f"{ratio:.2f}"]
        rows.append([KINDS[kind], *cells, f"{without:,}", f"{size:,}", f"{size / without:.3f}"])
    return f"{text}\n\n{format_table(rows)}"


def _time(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _corpus_bytes(kind: str, args: argparse.Namespace) -> int:
    make_examples(kind, 128, args)
    return sum(file.stat().st_size for file in (args.output_dir / f"corpus-{kind}").glob("*.arrow"))


def _words_bytes(kind: str, args: argparse.Namespace) -> int:
    """Writes the corpus again without words. Returns how much smaller it is."""
    folder, tokenizer = args.output_dir / f"corpus-{kind}-without-words", load_tokenizer(kind, args)
    snugbert.prepare_corpus(args.train_file, tokenizer, folder, show_progress=False)
    return _corpus_bytes(kind, args) - sum(file.stat().st_size for file in folder.glob("*.arrow"))


# --- training -------------------------------------------------------------------------------------------------------


def train(name: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Pretrains and scores a model, unless its result exists. Returns the losses by kind of masks."""
    folder = args.output_dir / "runs" / "-".join([*re.findall(r"\w+", name), str(seed)])
    file = folder.with_suffix(".json")
    if not file.exists():
        text = {"train_file": args.train_file, "cache_dir": args.output_dir / "cache"}
        load_tokenizer("byte-bpe", args)
        flags = TRAINING | RUNS[name] | text | {"tokenizer_name": args.output_dir / "tokenizer-byte-bpe"}
        flags |= {"max_steps": args.max_steps, "seed": seed, "output_dir": folder, "overwrite_output_dir": "true"}
        run_snugbert(["pretrain", *as_flags(flags)], folder.with_suffix(".log"))
        losses = {}
        for masking in ("tokens", "words"):
            flags = {"model_name_or_path": folder, "objective": "mlm", "masking": masking, "do_eval": "true"}
            flags |= {"validation_file": args.validation_file, "cache_dir": args.output_dir / "cache"}
            flags |= {"max_eval_samples": 1000, "use_cpu": "true", "report_to": "none", "output_dir": folder / masking}
            run_snugbert(["pretrain", *as_flags(flags)], folder.with_suffix(f".{masking}.log"))
            losses[masking] = json.loads((folder / masking / "eval_results.json").read_text())["eval_mlm_loss"]
        file.write_text(json.dumps(losses))
    return json.loads(file.read_text())


def describe_training(args: argparse.Namespace) -> str:
    """Returns a table with a row for each kind of masks in training."""
    losses: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
    for seed in SEEDS:
        for name in RUNS:
            losses[name].append(train(name, seed, args))
            print(name, seed, losses[name][-1], file=sys.stderr, flush=True)
    rows = [["masks in training", "loss, 15 % of the tokens", "loss, 15 % of the words"]]
    for name, results in losses.items():
        rows.append([name, *(format_seeds([result[each] for result in results], 3) for each in ("tokens", "words"))])
    return format_table(rows)


def main(argv: list[str]) -> None:
    """Measures a part, and prints its tables."""
    args = parse_arguments(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    parts = {"shares": describe_shares, "speed": describe_speed, "train": describe_training}
    text = parts[args.part](args)
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items())
    text = f"{machine}\n\n    python benchmarks/masks.py {' '.join(argv)}\n\n{text}\n"
    (args.output_dir / f"{args.part}.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
