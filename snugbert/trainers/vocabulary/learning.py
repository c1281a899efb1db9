"""Text -> word counts -> pieces -> a tokenizer: WordPiece, byte pair encoding (BPE), or BPE of bytes.

All three learn by merging: from single characters (or bytes) on, the most frequent pair of neighbouring pieces becomes
a piece of its own. WordPiece and BPE learn the same pieces, those inside a word with `##`, and cut with them
differently: WordPiece takes the longest piece that fits, from the left, and makes a word with an unknown character
[UNK]; BPE merges again in the order of learning, and only the character is [UNK].

    tokenizer = make_tokenizer("wordpiece")
    words = count_words(read_lines(find_files(["corpus/*.txt.gz"])), tokenizer)
    tokenizer = make_tokenizer("wordpiece", *learn_pieces(words, vocab_size=30522))
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, TokenizersBackend

from snugbert.errors import InputError
from snugbert.tokenization_snugbert import MODEL_MAX_LENGTH, SnugBertTokenizer

Kind = Literal["wordpiece", "bpe", "byte-bpe"]
KINDS: tuple[Kind, ...] = ("wordpiece", "bpe", "byte-bpe")
Merge = tuple[str, str]

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

_BETWEEN_CHUNKS = re.compile(r"(?<=\S) (?=\S)")


# --- tokenizers -------------------------------------------------------------------------------------------------


def make_tokenizer(
    kind: Kind,
    pieces: Sequence[str] = SPECIAL_TOKENS,
    merges: Sequence[Merge] = (),
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> TokenizersBackend:
    """A tokenizer of BERT's form: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with token types 0 and 1.

    BPE and BPE of bytes are plain tokenizers of transformers, which open for everybody with `AutoTokenizer` and no
    code of ours. BPE of bytes has no [UNK], and its text comes back from `decode` as it was, one space at the start
    aside, unless it is lower-cased or loses its accents. A word has the space before it in its first piece, and the
    first word of a text has one too, so that a word is the same pieces wherever it stands, in lists of words
    (`is_split_into_words=True`) as well. The space before [MASK] belongs to [MASK], which stands for it.

    Args:
        kind: what cuts words into pieces.
        pieces: in the order of their ids, [`SPECIAL_TOKENS`] among them.
        merges: of BPE, in the order in which they are to be applied.
        do_lower_case: whether to lower-case text; if None, as BERT does, but not for BPE of bytes.
        strip_accents: whether to remove accents; as `do_lower_case` if None.
        tokenize_chinese_chars: whether each Chinese character is a word.
    """
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
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
    pair = processors.BertProcessing(
        ("[SEP]", SPECIAL_TOKENS.index("[SEP]")), ("[CLS]", SPECIAL_TOKENS.index("[CLS]"))
    )
    if kind == "bpe":
        tokenizer = Tokenizer(BPE(vocabulary, list(merges), unk_token="[UNK]", continuing_subword_prefix="##"))
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=tokenize_chinese_chars,
            strip_accents=strip_accents,
            lowercase=do_lower_case,
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        tokenizer.post_processor = pair
    else:
        tokenizer = Tokenizer(BPE(vocabulary, list(merges)))
        if do_lower_case or strip_accents:
            # Nothing that would add or remove spaces or control characters.
            tokenizer.normalizer = normalizers.BertNormalizer(
                clean_text=False, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=do_lower_case
            )
        # ByteLevel's own prefix would put a space behind every [MASK], too.
        prefix = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
        chinese = [pre_tokenizers.Split(Regex(r" ?\p{Han}"), "isolated")] if tokenize_chinese_chars else []
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([prefix, *chinese, as_bytes])
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
        offsets = processors.ByteLevel(add_prefix_space=True, trim_offsets=True)  # of words, without their spaces
        tokenizer.post_processor = processors.Sequence([offsets, pair])
        special_tokens["mask_token"] = AddedToken("[MASK]", lstrip=True, normalized=False, special=True)
    return TokenizersBackend(
        tokenizer_object=tokenizer,
        model_max_length=MODEL_MAX_LENGTH,
        model_input_names=SnugBertTokenizer.model_input_names,
        clean_up_tokenization_spaces=False,
        **special_tokens,
    )


# --- counting words ---------------------------------------------------------------------------------------------


def count_words(lines: Iterable[str], tokenizer: PreTrainedTokenizerBase, show_progress: bool = True) -> Counter[str]:
    """How often each word occurs, a word being what `tokenizer` then splits into pieces.

    Words of more than 100 characters are left out. When the table exceeds 2,000,000 words, its rarer half is dropped,
    with all words that are no more frequent, so that memory is bounded and the count of a word that comes and goes is
    a lower bound; word2vec prunes likewise. What is dropped depends on the counts alone: the result is reproducible.

    Args:
        lines: of text, as [`read_lines`] yields them; streamed.
        tokenizer: of [`make_tokenizer`]. Its normalizer and pre-tokenizer make words of the text; its vocabulary does
            not matter.
        show_progress: whether to show a progress bar, in lines.
    """
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    characters = 0
    for line in tqdm(lines, desc="counting words", unit=" lines", disable=None if show_progress else True):
        # Neither normalizer nor pre-tokenizer looks across a space between two other characters, so a chunk between
        # such spaces needs them once, however often it occurs.
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


# --- learning pieces --------------------------------------------------------------------------------------------


def learn_pieces(
    words: Counter[str],
    vocab_size: int,
    min_frequency: int = 2,
    kind: Kind = "wordpiece",
    show_progress: bool = True,
) -> tuple[list[str], list[Merge]]:
    """The vocabulary of `words`, by the BPE training of the tokenizers library, which its WordPiece training is, too.

    From single characters on, the most frequent pair of neighbouring pieces becomes a piece of its own, until there
    are `vocab_size`. Pieces inside a word begin with `##`, those of bytes aside.

    Args:
        words: how often each word occurs, see [`count_words`]. Above 10^9 occurrences, all counts are scaled down.
        vocab_size: the number of pieces, special tokens and characters included.
        min_frequency: the fewest occurrences that make a pair a piece.
        kind: of the tokenizer that counted the words.
        show_progress: whether to show progress bars, on a terminal.

    Returns:
        The pieces in the order of their ids: the five special tokens, characters that begin a word, characters
        inside words (or the 256 bytes), longer pieces in the order they were learned. Fewer than `vocab_size` if the
        words yield no more. And the pairs that were merged, in order.

    Raises:
        InputError: no words, or `vocab_size` below the number of special tokens and characters.
    """
    if kind == "byte-bpe":
        prefix = None
        given = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        needs = "the 256 bytes and the special tokens"
    else:
        prefix = "##"
        alphabet = _alphabet(words)
        # Words with any other character are [UNK] for WordPiece whatever its pieces, and one in thousands for BPE.
        words = Counter({word: count for word, count in words.items() if alphabet.issuperset(word)})
        inside = {character for word in words for character in word[1:]}
        given = [*SPECIAL_TOKENS, *sorted(alphabet), *(f"##{character}" for character in sorted(inside))]
        needs = "the characters of this text and the special tokens"
    if not words:
        raise InputError("the corpus is empty: it holds no words.")
    if vocab_size < len(given):
        raise InputError(f"--vocab_size {vocab_size} is too small; {needs} alone need at least {len(given)}.")
    return merge_pairs(words, given, vocab_size, min_frequency, prefix, show_progress)


def merge_pairs(
    words: Counter[str],
    given: list[str],
    vocab_size: int,
    min_frequency: int,
    prefix: str | None = None,
    show_progress: bool = True,
) -> tuple[list[str], list[Merge]]:
    """Merges the most frequent pair of neighbours in `words` over and over; of equal ones, that of the lowest ids.

    Args:
        words: without spaces, and how often each occurs.
        given: the pieces to begin with, all characters of the words among them; their ids are their places.
        vocab_size: the number of pieces to end with.
        min_frequency: the fewest occurrences that make a pair a piece.
        prefix: of pieces inside a word.
        show_progress: whether to show progress bars, on a terminal.

    Returns:
        All pieces in the order of their ids, and the pairs that were merged, in order.
    """
    # The library breaks ties between pairs by the ids of their pieces, but numbers the ## characters in the order of
    # a hash map, another in every process (huggingface/tokenizers#1794). Given as special tokens, their ids are fixed.
    scale = -(-words.total() // MOST_TRAINING_WORDS)
    options: dict[str, Any] = {} if prefix is None else {"continuing_subword_prefix": prefix}
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=max(1, min_frequency // scale),
        special_tokens=given,
        show_progress=show_progress and sys.stderr.isatty(),  # elsewhere it would print blank lines
        **options,
    )
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_running_text(words, scale), trainer)
    vocabulary = learner.get_vocab()
    merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.__getitem__), merges


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
