"""`snugbert vocabulary`: text -> word counts -> word pieces -> a [`SnugBertTokenizer`] folder.

The same text and arguments give the same files, byte for byte, in every process and on any number of cores. Memory
does not grow with the corpus: the table of word counts is pruned, and training on a full one is the peak, 2.7 GB.
The 50 million characters of 81 books take 8 seconds on 2 cores (without the imports, 4 more) and 0.5 GB.

    words = count_words(read_lines(find_files(["corpus/*.txt.gz"])), SnugBertTokenizer())
    pieces = learn_word_pieces(words, vocab_size=30522)
    tokenizer = SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})
"""

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer
from tqdm import tqdm

from snugbert.tokenization_snugbert import SnugBertTokenizer
from snugbert.trainers.command_line import InputError, parse_arguments
from snugbert.trainers.pretraining.documents import TextArguments, find_files, read_dataset_documents, read_lines

# Ids 0 to 4. Google's vocabularies have them at 0 and 100 to 103, between [unused] pieces; every reader looks them up
# by name, so the difference is harmless.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# How many characters get a piece of their own: 1,000, since both of Google's English vocabularies have 997. A script
# with more gets as many as cover 0.9995 of the text, the default of sentencepiece, so that Chinese is not [UNK].
ALPHABET = 1000
CHARACTER_COVERAGE = 0.9995
LONGEST_WORD = 100  # characters; WordPiece makes a longer one [UNK] (max_input_chars_per_word), so no piece helps it
# Each costs 1.1 kB while the library trains on it, so all of them 2.3 GB (measured). 81 English books have 70,000.
MOST_DISTINCT_WORDS = 2_000_000
CHARACTERS_AT_ONCE = 4_000_000  # of text between two updates of the word table: its words are a few 10 MB
# The library counts pairs in 32 bits, and an overflow silently loses the pair; 8 % of English words begin with "th".
MOST_TRAINING_WORDS = 1_000_000_000


@dataclass(kw_only=True)
class VocabularyArguments(TextArguments):
    """The arguments of `snugbert vocabulary`; text comes either from files or from a dataset.

    Raises:
        InputError: neither or both of the two sources, or a count that is not positive.
    """

    output_dir: str = field(metadata={"help": "Folder for tokenizer.json, tokenizer_config.json and vocab.txt."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the tokenizer that is there."})
    vocab_size: int = field(default=30522, metadata={"help": "Number of word pieces, special tokens included."})
    min_frequency: int = field(default=2, metadata={"help": "Fewest occurrences of a piece, characters aside."})
    do_lower_case: bool = field(default=True, metadata={"help": "Lower-case all text."})
    strip_accents: bool | None = field(default=None, metadata={"help": "Remove accents. Default: as do_lower_case."})
    tokenize_chinese_chars: bool = field(default=True, metadata={"help": "Make each Chinese character a word."})

    def __post_init__(self):
        super().__post_init__()
        if not self.train_file and self.dataset_name is None:
            raise InputError("there is no text; name it with --train_file or --dataset_name.")
        for name in ("vocab_size", "min_frequency"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}; it must be at least 1.")


def main(argv: list[str]) -> None:
    """Trains a vocabulary as `argv` says, saves it, and prints what was done and what to type next.

    Raises:
        InputError: arguments or text that cannot be used, see [`VocabularyArguments`], [`read_lines`] and
            [`learn_word_pieces`]; an empty corpus; an output folder that already holds a tokenizer.
    """
    (args,) = parse_arguments(
        (VocabularyArguments,), argv, "snugbert vocabulary", "Train a WordPiece vocabulary on text."
    )
    output_dir = Path(args.output_dir)
    there = any((output_dir / name).exists() for name in ("tokenizer.json", "vocab.txt"))
    if there and not args.overwrite_output_dir:
        raise InputError(
            f"--output_dir: {output_dir} already holds a tokenizer; choose another folder or replace it "
            "(--overwrite_output_dir)."
        )
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file, not a folder.")
    lines = _lines(args)
    first = next(lines, None)
    if first is None:
        raise InputError(f"the corpus is empty: {_source(args)} holds no text.")
    output_dir.mkdir(parents=True, exist_ok=True)  # before the work, in case it cannot be made

    casing = {name: getattr(args, name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}
    words = count_words(chain([first], lines), SnugBertTokenizer(**casing))
    pieces = learn_word_pieces(words, args.vocab_size, args.min_frequency)

    # transformers 5 no longer writes vocab.txt; Google's code and many other readers want it.
    (output_dir / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8", newline="\n")
    tokenizer = SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)}, **casing)
    tokenizer.save_pretrained(output_dir)

    example = first[:100]
    print(f"{len(pieces):,} word pieces, learned from {words.total():,} words, {len(words):,} of them distinct")
    if len(pieces) < args.vocab_size:
        print(
            f"Note: these are fewer than the {args.vocab_size:,} asked for, because no other pair of pieces occurs "
            f"{args.min_frequency} times (--min_frequency) in this text."
        )
    print(f"For example: {example}\n          -> {' '.join(tokenizer.tokenize(example))}")
    print(f"Written: tokenizer.json, tokenizer_config.json and vocab.txt in {output_dir}")
    print(
        f"Next: snugbert pretrain --tokenizer_name {shlex.quote(args.output_dir)} --config_name mini {_source(args)} "
        "--output_dir pretrained"
    )


def _lines(args: VocabularyArguments) -> Iterator[str]:
    if args.dataset_name:
        return chain.from_iterable(read_dataset_documents(args))
    return read_lines(find_files(args.train_file), args.text_column_name)


def _source(args: VocabularyArguments) -> str:
    """The arguments that name the text, for messages and for the next command."""
    if args.train_file:
        source = ["--train_file", *args.train_file]
    else:
        source = ["--dataset_name", str(args.dataset_name)]
        if args.dataset_config_name:
            source += ["--dataset_config_name", args.dataset_config_name]
        if args.dataset_split != "train":
            source += ["--dataset_split", args.dataset_split]
    if args.text_column_name != "text":
        source += ["--text_column_name", args.text_column_name]
    return shlex.join(source)


def count_words(lines: Iterable[str], tokenizer: SnugBertTokenizer, show_progress: bool = True) -> Counter[str]:
    """How often each word occurs, a word being what `tokenizer` then splits into pieces.

    Words of more than 100 characters are left out. When the table exceeds 2,000,000 words, its rarer half is dropped,
    with all words that are no more frequent, so that memory is bounded and the count of a word that comes and goes is
    a lower bound; word2vec prunes likewise. What is dropped depends on the counts alone: the result is reproducible.

    Args:
        lines: of text, as [`read_lines`] yields them; streamed.
        tokenizer: its normalizer and pre-tokenizer make words of the text; its vocabulary does not matter.
        show_progress: whether to show a progress bar, in lines.
    """
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    characters = 0
    for line in tqdm(lines, desc="counting words", unit=" lines", disable=not show_progress):
        # Neither normalizer nor pre-tokenizer looks across a space, so a chunk between spaces needs them once,
        # however often it occurs.
        chunks.update(line.split(" "))
        characters += len(line)
        if characters >= CHARACTERS_AT_ONCE:
            _add_words(words, chunks, tokenizer)
            chunks.clear()
            characters = 0
    _add_words(words, chunks, tokenizer)
    return words


def _add_words(words: Counter[str], chunks: Counter[str], tokenizer: SnugBertTokenizer) -> None:
    normalizer, pre_tokenizer = tokenizer.backend_tokenizer.normalizer, tokenizer.backend_tokenizer.pre_tokenizer
    for chunk, count in chunks.items():
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(chunk)):
            if len(word) <= LONGEST_WORD:
                words[word] += count
    if len(words) > MOST_DISTINCT_WORDS:
        too_rare = sorted(words.values(), reverse=True)[MOST_DISTINCT_WORDS // 2]
        for word in [word for word, count in words.items() if count <= too_rare]:
            del words[word]


def learn_word_pieces(
    words: Counter[str], vocab_size: int, min_frequency: int = 2, show_progress: bool = True
) -> list[str]:
    """The vocabulary of `words`, by the WordPiece training of the tokenizers library.

    From single characters on, the most frequent pair of neighbouring pieces becomes a piece of its own, until there
    are `vocab_size`. Pieces inside a word begin with `##`.

    Args:
        words: how often each word occurs, see [`count_words`]. Above 10^9 occurrences, all counts are scaled down.
        vocab_size: the number of pieces, special tokens and characters included.
        min_frequency: the fewest occurrences that make a pair a piece.
        show_progress: whether to show progress bars, on a terminal.

    Returns:
        The pieces in the order of their ids: the five special tokens, characters that begin a word, characters
        inside words, longer pieces in the order they were learned. Fewer than `vocab_size` if the words yield no more.

    Raises:
        InputError: no words, or `vocab_size` below the number of special tokens and characters.
    """
    alphabet = _alphabet(words)
    # A word with any other character is [UNK] whatever its pieces.
    words = Counter({word: count for word, count in words.items() if alphabet.issuperset(word)})
    if not words:
        raise InputError("the corpus is empty: it holds no words.")
    inside = {character for word in words for character in word[1:]}
    given = [*SPECIAL_TOKENS, *sorted(alphabet), *(f"##{character}" for character in sorted(inside))]
    if vocab_size < len(given):
        raise InputError(
            f"--vocab_size {vocab_size} is too small for this text; its characters and the special tokens alone need "
            f"at least {len(given)}."
        )

    # The library breaks ties between pairs by the ids of their pieces, but numbers the ## characters in the order of
    # a hash map, another in every process (huggingface/tokenizers#1794). Given as special tokens, their ids are fixed.
    scale = -(-words.total() // MOST_TRAINING_WORDS)
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=max(1, min_frequency // scale),
        special_tokens=given,
        show_progress=show_progress and sys.stderr.isatty(),  # elsewhere it would print blank lines
    )
    learner = Tokenizer(WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = WhitespaceSplit()
    learner.train_from_iterator(_running_text(words, scale), trainer)
    vocabulary = learner.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _alphabet(words: Counter[str]) -> set[str]:
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    # Ties go by code point, so that the cut is the same every time.
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = set(ranked[:ALPHABET])
    covered = sum(characters[character] for character in alphabet)
    for character in ranked[ALPHABET:]:
        if covered >= CHARACTER_COVERAGE * characters.total():
            break
        alphabet.add(character)
        covered += characters[character]
    return alphabet


def _running_text(words: Counter[str], scale: int) -> Iterator[str]:
    # The library counts words itself and takes no counts, so each word is repeated: 5 million a second on 2 cores.
    repeated = chain.from_iterable(repeat(word, count // scale) for word, count in words.items())
    while batch := list(islice(repeated, 1000)):
        yield " ".join(batch)
