"""Learning a tokenizer from text, or adding tokens to one, and writing it."""

import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerBase, TokenizersBackend
from transformers.utils import logging as transformers_logging

from snugbert.errors import InputError
from snugbert.models import TokenizerArguments, load_tokenizer
from snugbert.trainers.documents import find_files, read_dataset_documents, read_lines
from snugbert.trainers.vocabulary.arguments import VocabularyArguments
from snugbert.trainers.vocabulary.extension import (
    extend_model,
    extend_tokenizer,
    learn_extension,
    load_init_model,
    pieces_per_word,
    read_settings,
)
from snugbert.trainers.vocabulary.learning import Kind, count_words, learn_pieces, make_tokenizer
from snugbert.vocab_txt import write_vocab_txt

WRITTEN = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


def learn_vocabulary(args: VocabularyArguments) -> None:
    """Learns."""
    output_dir = Path(args.output_dir)
    there = any((output_dir / name).exists() for name in WRITTEN)
    if there and not args.overwrite_output_dir:
        raise InputError(
            f"--output_dir: {output_dir} already holds a tokenizer or a model; choose another folder or replace it "
            "(--overwrite_output_dir)."
        )
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file, not a folder.")
    lines = _lines(args)
    first = next(lines, None)
    if first is None:
        raise InputError(f"the corpus is empty: {_source(args)} holds no text.")
    output_dir.mkdir(parents=True, exist_ok=True)  # before the work, in case it cannot be made

    learn = _learn_anew if args.init is None else _go_on
    tokenizer, has_model = learn(args, output_dir, chain([first], lines))
    _save(tokenizer, output_dir)

    example = first[:100]
    if len(tokenizer) < args.vocab_size:
        print(
            f"Note: these are fewer than the {args.vocab_size:,} asked for, because no other pair of pieces occurs "
            f"{args.min_frequency} times (--min_frequency) in this text."
        )
    print(f"For example: {example}\n          -> {' '.join(tokenizer.tokenize(example))}")
    written = [name for name in WRITTEN if (output_dir / name).exists()]
    print(f"Written: {', '.join(written)} in {output_dir}")
    how = "--model_name_or_path {}" if has_model else "--tokenizer_name {} --config_name mini"
    print(
        f"Next: snugbert pretrain {how.format(shlex.quote(args.output_dir))} {_source(args)} --output_dir pretrained"
    )


def _learn_anew(args: VocabularyArguments, output_dir: Path, lines: Iterator[str]) -> tuple[TokenizersBackend, bool]:
    kind: Kind = args.model or "wordpiece"  # type: ignore[assignment]
    words = count_words(lines, make_tokenizer(kind, **args.casing))
    pieces, merges = learn_pieces(words, args.vocab_size, args.min_frequency, kind)
    print(f"{len(pieces):,} pieces ({kind}), learned from {_size(words)}")
    return make_tokenizer(kind, pieces, merges, **args.casing), False


def _go_on(args: VocabularyArguments, output_dir: Path, lines: Iterator[str]) -> tuple[TokenizersBackend, bool]:
    name = str(args.init)
    old = load_tokenizer(TokenizerArguments(tokenizer_name=name))
    _check_init(args, old, name)
    transformers_logging.disable_progress_bar()  # of reading and writing weights
    model = load_init_model(name)
    words = count_words(lines, old)
    extension = learn_extension(words, old, args.vocab_size - len(old), args.min_frequency)
    tokenizer = extend_tokenizer(old, extension, name)
    unknown = 1 - extension.learned_from / max(1, words.total())
    print(
        f"{len(old):,} pieces of {name} and {len(extension.pieces):,} new ones, learned from {_size(words)}; a word "
        f"of it is now {pieces_per_word(words, tokenizer):.3f} pieces, and was {pieces_per_word(words, old):.3f}"
    )
    if unknown:
        print(f"Note: {unknown:.2%} of the words hold a character that {name} has no piece for, and stay [UNK].")
    if model is None:
        print(f"{name} holds no model (config.json), so this is a tokenizer alone.")
    else:
        extend_model(model, extension)
        model.save_pretrained(output_dir)
        print(f"The {type(model).__name__} has them too: each starts from the mean of the old pieces it is made of.")
    return tokenizer, model is not None


def _check_init(args: VocabularyArguments, old: PreTrainedTokenizerBase, name: str) -> None:
    """Refuses what contradicts the tokenizer to go on from."""
    kind, settings = read_settings(old, name)
    if args.model not in (None, kind):
        raise InputError(f"--model {args.model}: the tokenizer of {name} is {kind}, and stays so; leave --model out.")
    if settings["strip_accents"] is None:
        settings["strip_accents"] = settings["do_lower_case"]
    for flag, value in args.casing.items():
        if value != settings[flag]:
            raise InputError(
                f"--{flag} {str(value).lower()} contradicts the tokenizer of {name}, which has "
                f"{str(settings[flag]).lower()}; its pieces were learned so: leave the flag out."
            )
    if max(old.get_vocab().values()) >= len(old):
        raise InputError(f"--init: the tokenizer of {name} has ids without a piece, and cannot be extended.")
    if args.vocab_size <= len(old):
        raise InputError(
            f"--vocab_size {args.vocab_size} must be above the {len(old)} pieces that {name} already has: say with "
            "--vocab_size how many there shall be, new ones included."
        )


def _save(tokenizer: TokenizersBackend, output_dir: Path) -> None:
    for name in ("vocab.txt", "special_tokens_map.json", "added_tokens.json"):
        (output_dir / name).unlink(missing_ok=True)  # of a tokenizer that was there
    tokenizer.save_pretrained(output_dir)
    if isinstance(tokenizer.backend_tokenizer.model, WordPiece):
        write_vocab_txt(tokenizer, output_dir)


def _size(words: Counter[str]) -> str:
    return f"{words.total():,} words, {len(words):,} of them distinct"


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
