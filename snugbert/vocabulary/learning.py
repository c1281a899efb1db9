"""Text -> word counts -> tokens -> a tokenizer: WordPiece, byte pair encoding (BPE), or byte-level BPE.

All three start from single characters or bytes, and repeatedly make the most frequent pair of neighboring tokens a new
token. WordPiece and BPE learn the same tokens, with `##` inside a word, but split words differently: WordPiece takes
the longest matching token from the left, and BPE applies the merges in order.

    tokenizer = make_tokenizer("wordpiece")
    words = count_words(read_lines(find_files(["corpus/*.txt.gz"])), tokenizer)
    tokenizer = make_tokenizer("wordpiece", *learn_tokens(words, vocab_size=30522))
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, repeat
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, TokenizersBackend

from snugbert.data.languages import DEFAULT, primary_language
from snugbert.errors import InputError
from snugbert.progress import Progress
from snugbert.tokenization_snugbert import MODEL_MAX_LENGTH, SPECIAL_TOKENS, SnugBertTokenizer

TokenizerKind = Literal["wordpiece", "bpe", "byte-bpe"]
KINDS: tuple[TokenizerKind, ...] = ("wordpiece", "bpe", "byte-bpe")
Merge = tuple[str, str]

# Number of characters that get a token. Both of Google's English vocabularies have 997. In scripts with more, as many
# characters get a token as cover 0.9995 of the text, as in sentencepiece, so that Chinese characters are not [UNK].
ALPHABET_SIZE = 1000
CHARACTER_COVERAGE = 0.9995
LONGEST_WORD = 100  # characters; WordPiece makes longer words [UNK] (max_input_chars_per_word)
# Measured: while the library trains, each word takes 1.1 kB, so this many words take 2.3 GB. 81 English books
# contain 70,000.
MOST_DISTINCT_WORDS = 2_000_000
CHARACTERS_AT_ONCE = 4_000_000  # characters between two updates of the word table. Their words take tens of MB
# The library counts pairs in 32 bits, and silently loses a pair that overflows. 8 % of English words begin with "th".
MOST_TRAINING_WORDS = 1_000_000_000

_BETWEEN_CHUNKS = re.compile(r"(?<=\S) (?=\S)")


# --- tokenizers -------------------------------------------------------------------------------------------------


def make_tokenizer(
    kind: TokenizerKind,
    tokens: Sequence[str] = SPECIAL_TOKENS,
    merges: Sequence[Merge] = (),
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> TokenizersBackend:
    """Makes a tokenizer that formats text as BERT does: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], token types 0 and 1.

    BPE and byte-level BPE are plain transformers tokenizers, which `AutoTokenizer` opens without SnugBERT. In
    byte-level BPE, a word's first token includes the space before it, even at the start of a text, and [MASK] also
    replaces this space. So a word always has the same tokens, even in lists of words.

    `tokens` are the vocabulary in the order of ids, including [`SPECIAL_TOKENS`]. By default, text is lowercased
    except in byte-level BPE, and `strip_accents` equals `do_lower_case`.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if do_lower_case is None:
        do_lower_case = kind != "byte-bpe"
    if kind == "wordpiece":
        return SnugBertTokenizer(
            vocabulary,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
        )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special_tokens: dict[str, str | AddedToken] = dict(zip(names, SPECIAL_TOKENS, strict=True))
    bert_format = processors.BertProcessing(
        ("[SEP]", SPECIAL_TOKENS.index("[SEP]")), ("[CLS]", SPECIAL_TOKENS.index("[CLS]"))
    )
    # In byte-level BPE, `decode` could not restore the spaces and control characters that cleaning adds or removes.
    normalizer = normalizers.BertNormalizer(
        clean_text=kind == "bpe",
        handle_chinese_chars=kind == "bpe" and tokenize_chinese_chars,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )
    if kind == "bpe":
        tokenizer = Tokenizer(BPE(vocabulary, list(merges), unk_token="[UNK]", continuing_subword_prefix="##"))
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        tokenizer.post_processor = bert_format
    else:
        tokenizer = Tokenizer(BPE(vocabulary, list(merges)))
        if do_lower_case or strip_accents:
            tokenizer.normalizer = normalizer
        # ByteLevel's own prefix option would also add a space after every [MASK].
        prefix = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
        chinese = [pre_tokenizers.Split(Regex(r" ?\p{Han}"), "isolated")] if tokenize_chinese_chars else []
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([prefix, *chinese, as_bytes])
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
        # Offsets exclude the spaces before words.
        offsets = processors.ByteLevel(add_prefix_space=True, trim_offsets=True)
        tokenizer.post_processor = processors.Sequence([offsets, bert_format])
        special_tokens["mask_token"] = AddedToken("[MASK]", lstrip=True, normalized=False, special=True)
    return TokenizersBackend(
        tokenizer_object=tokenizer,
        model_max_length=MODEL_MAX_LENGTH,
        model_input_names=SnugBertTokenizer.model_input_names,
        clean_up_tokenization_spaces=False,
        **special_tokens,
    )


# --- counting words ---------------------------------------------------------------------------------------------


def count_words(lines: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Counter[str]:
    """Counts the words of a text. A word is a unit that `tokenizer` then splits into tokens.

    Words of more than 100 characters are left out. When the table exceeds 2,000,000 words, the rarer half is dropped,
    as in word2vec. So memory is bounded. The result is reproducible, because pruning depends only on the counts.

    `tokenizer`: from [`make_tokenizer`]. Its vocabulary is not used.
    """
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    characters = 0
    with Progress("counting words", None, "lines") as progress:
        for line in lines:
            progress.update()
            # Neither the normalizer nor the pre-tokenizer looks across a space between two other characters. So it is
            # enough to process each distinct chunk between such spaces once.
            found = line.split()
            chunks.update(found if " ".join(found) == line else _BETWEEN_CHUNKS.split(line))
            characters += len(line)
            if characters >= CHARACTERS_AT_ONCE:
                _add_words(words, chunks, tokenizer)
                chunks.clear()
                characters = 0
    _add_words(words, chunks, tokenizer)
    return words


def _add_words(words: Counter[str], chunks: Counter[str], tokenizer: PreTrainedTokenizerBase) -> None:
    normalizer, pre_tokenizer = tokenizer.backend_tokenizer.normalizer, tokenizer.backend_tokenizer.pre_tokenizer
    for chunk, count in chunks.items():
        text = normalizer.normalize_str(chunk) if normalizer else chunk
        for word, _ in pre_tokenizer.pre_tokenize_str(text):
            if len(word) <= LONGEST_WORD:
                words[word] += count
    if len(words) > MOST_DISTINCT_WORDS:
        too_rare = sorted(words.values(), reverse=True)[MOST_DISTINCT_WORDS // 2]
        for word in [word for word, count in words.items() if count <= too_rare]:
            del words[word]


# --- learning tokens --------------------------------------------------------------------------------------------


def learn_tokens(
    words: Counter[str],
    vocab_size: int,
    min_frequency: int = 2,
    kind: TokenizerKind = "wordpiece",
) -> tuple[list[str], list[Merge]]:
    """Learns a vocabulary with the tokenizers library's BPE trainer, which its WordPiece trainer uses as well.

    `words`: number of occurrences of each word, from [`count_words`]. Above 10^9 in total, counts are scaled down.

    Returns the tokens in the order of their ids, and the merged pairs in order. The special tokens come first, then
    characters that begin a word, characters inside words (or the 256 bytes), and longer tokens as learned.
    """
    if kind == "byte-bpe":
        prefix = None
        initial = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        needs = "The 256 bytes and the special tokens"
    else:
        prefix = "##"
        alphabet = _choose_alphabet(words)
        # Words with other characters are rare, and WordPiece always makes them [UNK].
        words = Counter({word: count for word, count in words.items() if alphabet.issuperset(word)})
        inside = {character for word in words for character in word[1:]}
        initial = [*SPECIAL_TOKENS, *sorted(alphabet), *(f"##{character}" for character in sorted(inside))]
        needs = "The characters of this text and the special tokens"
    if not words:
        raise InputError("the text contains no words. Use different text.")
    if vocab_size < len(initial):
        raise InputError(f"--vocab_size {vocab_size} is too small. {needs} need at least {len(initial)}.")
    return merge_pairs(words, initial, vocab_size, min_frequency, prefix)


def merge_pairs(
    words: Counter[str],
    initial: list[str],
    vocab_size: int,
    min_frequency: int,
    prefix: str | None = None,
) -> tuple[list[str], list[Merge]]:
    """Repeatedly merges the most frequent pair of neighbors in `words`. Returns tokens and merged pairs, in order.

    Of equally frequent pairs, the pair with the lowest ids is merged first. Words contain no spaces. `initial`: the
    tokens to start with, in the order of their ids, including all characters of the words.
    """
    # The library breaks ties between pairs by the ids of their tokens. But it numbers the ## characters in the order
    # of a hash map, which differs between processes (huggingface/tokenizers#1794). Special tokens have fixed ids.
    scale = -(-words.total() // MOST_TRAINING_WORDS)
    options: dict[str, Any] = {} if prefix is None else {"continuing_subword_prefix": prefix}
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=max(1, min_frequency // scale),
        special_tokens=initial,
        show_progress=sys.stderr.isatty(),  # otherwise it would print blank lines
        **options,
    )
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_repeat_words(words, scale), trainer)
    vocabulary = learner.get_vocab()
    merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.__getitem__), merges


def _choose_alphabet(words: Counter[str]) -> set[str]:
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    # Ties are broken by code point, so that the result is reproducible.
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    enough = CHARACTER_COVERAGE * characters.total()
    needed = 1 + sum(covered < enough for covered in accumulate(characters[character] for character in ranked))
    return set(ranked[: max(ALPHABET_SIZE, needed)])


def _repeat_words(words: Counter[str], scale: int) -> Iterator[str]:
    # The library does not accept counts, so each word is repeated. This takes 0.2 s per million words on 2 cores.
    repeated = chain.from_iterable(repeat(word, count // scale) for word, count in words.items())
    while batch := list(islice(repeated, 1000)):
        yield " ".join(batch)


# --- case and accents ------------------------------------------------------------------------------------------------
#
# BERT's English models are often uncased: lowercased and without accents. Its multilingual models are cased, because
# accents distinguish words in many languages. Google recommends bert-base-multilingual-cased over its uncased model.


def default_casing(language: str | None, kind: TokenizerKind, given: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of [`make_tokenizer`]: the given settings, and defaults for the language, or for English."""
    if primary_language(language or DEFAULT) == DEFAULT:
        return {"do_lower_case": kind != "byte-bpe", **given}
    return {"do_lower_case": False, "strip_accents": False, **given}


def describe_casing(casing: dict[str, Any]) -> str:
    """Returns a sentence on how settings of [`make_tokenizer`] change case and accents."""
    lower, strip = bool(casing["do_lower_case"]), casing.get("strip_accents")
    strip = lower if strip is None else strip
    case, accents = ("removed" if lower else "kept"), ("removed" if strip else "kept")
    return f"Case and accents: both {case}." if lower == strip else f"Case: {case}. Accents: {accents}."
