"""Runs `snugbert vocabulary`: learns or extends a tokenizer, saves it, and prints a summary.

The same text and arguments give the same files, byte for byte, in every process and on any number of cores. Memory
does not grow with the corpus, because the table of word counts is pruned. Training on a full table takes the most
memory: 2.7 GB, or 3.6 GB if words have 15 characters on average, or 3.8 GB for byte-level BPE.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tokenizers.models import WordPiece
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TokenizersBackend
from transformers.utils import logging as transformers_logging

from snugbert.cli.model_arguments import ModelArguments, TokenizerArguments
from snugbert.data.documents import find_files, read_dataset_documents, read_lines
from snugbert.data.languages import choose_language, read_language, store_language, stored_in_tokenizer
from snugbert.data.text_lines import ReadingLog
from snugbert.errors import InputError
from snugbert.families.loading import GENERATOR_FOLDER, check_ids, load_tokenizer, write_vocab_txt
from snugbert.files import check_new_results, explaining_failed_writes
from snugbert.modeling_snugbert import SnugBertForReplacedTokenDetection
from snugbert.trainers.pretraining.electra import find_generator
from snugbert.trainers.run.folder import remove_generator
from snugbert.vocabulary.extension import (
    Extension,
    extend_model,
    extend_tokenizer,
    learn_extension,
    load_init_model,
    read_tokenizer_settings,
    tokens_per_word,
)
from snugbert.vocabulary.learning import (
    TokenizerKind,
    count_words,
    default_casing,
    describe_casing,
    learn_tokens,
    make_tokenizer,
)
from snugbert.vocabulary.vocabulary_arguments import VocabularyArguments

EXAMPLE_LENGTH = 100  # characters

# Files that mark a folder as a tokenizer or a model.
MARKING_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


def train_vocabulary(args: VocabularyArguments) -> TokenizersBackend:
    """Learns or extends a tokenizer, saves it, and prints a summary. Returns the tokenizer.

    With `init`, a model in its folder is also extended.
    """
    output_dir = Path(args.output_dir)
    check_new_results(output_dir, MARKING_FILES, args.overwrite_output_dir)
    log = ReadingLog(args.on_bad_text)
    lines: Iterator[str]
    if args.dataset_name:
        lines = chain.from_iterable(read_dataset_documents(args, log))
    else:
        lines = read_lines(find_files(args.train_file), args.text_column_name, log)
    first = next(lines, None)
    if first is None:
        source = args.dataset_name or ", ".join(args.train_file)
        raise InputError(f"{source}: the text is empty. {log.summarize()}".rstrip())
    output_dir.mkdir(parents=True, exist_ok=True)  # fails early if it cannot be created

    learn = _learn if args.init is None else _extend
    tokenizer = learn(args, chain([first], lines))
    with explaining_failed_writes(output_dir, "run the same command again"):
        _save(tokenizer, output_dir)

    if len(tokenizer) < args.vocab_size:
        print(
            f"Note: the vocabulary has fewer than {args.vocab_size:,} tokens. No other pair of tokens occurs "
            f"{args.min_frequency} times in this text (--min_frequency)."
        )
    if summary := log.summarize():
        print(f"Note: {summary}")
    example = first[:EXAMPLE_LENGTH]
    print(f"Example: {example}\n      -> {' '.join(tokenizer.tokenize(example))}")
    print(f"Written to {output_dir}.")
    if read_language(tokenizer) is None:
        print("Add --language if the text is not English. Other languages keep case and accents.")
    return tokenizer


def _learn(args: VocabularyArguments, lines: Iterator[str]) -> TokenizersBackend:
    kind: TokenizerKind = args.model or "wordpiece"  # type: ignore[assignment]
    casing = default_casing(args.language, kind, args.casing)
    words = count_words(lines, make_tokenizer(kind, **casing))
    tokens, merges = learn_tokens(words, args.vocab_size, args.min_frequency, kind)
    tokenizer = make_tokenizer(kind, tokens, merges, **casing)
    store_language(args.language, tokenizer)
    print(f"Learned {len(tokens):,} tokens ({kind}) from {_format_counts(words)}.")
    print(describe_casing(casing))
    return tokenizer


def _extend(args: VocabularyArguments, lines: Iterator[str]) -> TokenizersBackend:
    """Extends the tokenizer of `init`. If its folder has a model, also extends and saves the model."""
    name, output_dir = str(args.init), Path(args.output_dir)
    old = load_tokenizer(TokenizerArguments(tokenizer_name=name))
    kind, settings = read_tokenizer_settings(old, name)
    language = choose_language(args.language, [stored_in_tokenizer(old, name)])
    _check_init(args, old, name)
    transformers_logging.disable_progress_bar()  # the bar for reading and writing weights
    model = load_init_model(name)
    words = count_words(lines, make_tokenizer(kind, **settings))
    extension = learn_extension(words, old, args.vocab_size - len(old), args.min_frequency)
    tokenizer = extend_tokenizer(old, extension, name)
    store_language(language, tokenizer)
    print(
        f"Added {len(extension.tokens):,} tokens to the {len(old):,} of {name}, from {_format_counts(words)}.\n"
        f"Tokens per word: {tokens_per_word(words, old):.3f} before, {tokens_per_word(words, tokenizer):.3f} now."
    )
    print(f"{describe_casing(settings)} These are the settings of {name}.")
    unknown = 1 - extension.num_words / max(1, words.total())
    if unknown:
        print(f"Note: {unknown:.2%} of the words contain a character without a token in {name} and stay [UNK].")
    if model is None:
        print(f"{name} has no model (config.json), so only the tokenizer was extended.")
        return tokenizer
    generator_folder = None
    if isinstance(model, SnugBertForReplacedTokenDetection):
        generator_folder = find_generator(ModelArguments(model_name_or_path=name))
    # This can fail, so it comes before anything is written.
    generator = None if generator_folder is None else load_init_model(str(generator_folder))
    remove_generator(output_dir)
    _extend_and_save(model, extension, tokenizer, output_dir)
    if generator is not None:
        _extend_and_save(generator, extension, tokenizer, output_dir / GENERATOR_FOLDER)
    return tokenizer


def _extend_and_save(model: PreTrainedModel, extension: Extension, tokenizer: TokenizersBackend, folder: Path) -> None:
    extend_model(model, extension)
    with explaining_failed_writes(folder, "run the same command again"):
        model.save_pretrained(folder)
        _save(tokenizer, folder)
    print(f"The {type(model).__name__} was extended, too. New embeddings are means of old embeddings.")


def _check_init(args: VocabularyArguments, old: PreTrainedTokenizerBase, name: str) -> None:
    """Checks that the arguments change no settings of the tokenizer to extend, and leave room for new tokens."""
    for flag in args.casing | ({} if args.model is None else {"model": args.model}):
        raise InputError(f"--{flag}: the new tokens are split as in {name}. Remove the flag.")
    check_ids(old, name)
    if args.vocab_size <= len(old):
        raise InputError(
            f"--vocab_size {args.vocab_size} must be above the {len(old)} tokens of {name}. Set the total number, "
            "including new tokens."
        )


def _save(tokenizer: TokenizersBackend, output_dir: Path) -> None:
    for name in ("vocab.txt", "special_tokens_map.json", "added_tokens.json"):
        (output_dir / name).unlink(missing_ok=True)  # left over from another tokenizer
    tokenizer.save_pretrained(output_dir)
    if isinstance(tokenizer.backend_tokenizer.model, WordPiece):
        write_vocab_txt(tokenizer, output_dir)


def _format_counts(words: Counter[str]) -> str:
    return f"{words.total():,} words ({len(words):,} distinct)"
