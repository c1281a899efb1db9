"""Where text may be cut, and splitting of over-long sentences."""

from itertools import pairwise

import numpy as np
import pytest
from family_checkpoints import make_unigram
from synthetic import make_corpus
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

import snugbert
from snugbert.trainers.pretraining.sentence_splits import (
    CLAUSE,
    CONTINUATION,
    OPENING,
    SENTENCE,
    WORD,
    classify_tokens,
    rank_places,
    split_long_sentences,
)


def split(text: str, limit: int) -> list[str]:
    """Splits `text`, whose tokens are separated by spaces. "|" separates sentences."""
    sentences = [sentence.split() for sentence in text.split("|")]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(text.replace("|", " ").split())]
    tokenizer = snugbert.SnugBertTokenizer({token: index for index, token in enumerate(tokens)})
    (block,) = make_corpus([[[tokenizer.convert_tokens_to_ids(sentence) for sentence in sentences]]]).blocks
    places = rank_places(block, classify_tokens(tokenizer))
    offsets = split_long_sentences(block, places, limit)
    assert np.isin(block.sentences, offsets).all() and np.diff(offsets).max() <= limit
    words = text.replace("|", " ").split()
    return [" ".join(words[start:end]) for start, end in pairwise(offsets)]


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("a b c | d e", 3, ["a b c", "d e"]),  # nothing is too long
        # The last of the best places: after a sentence, after a clause, after a word, or anywhere.
        ("a b . c , d e f g h", 6, ["a b .", "c , d e f g", "h"]),
        ("a b c , d e f g", 6, ["a b c ,", "d e f g"]),
        ("a b c d ##e ##f g", 5, ["a b c", "d ##e ##f g"]),
        ("a ##b ##c ##d ##e ##f", 4, ["a ##b ##c ##d", "##e ##f"]),
        # Marks stay with the words before them, and opening quotes and brackets with the words after them.
        ('a b c . " d e f', 6, ['a b c . "', "d e f"]),
        ('a b c , " d e f', 6, ['a b c , "', "d e f"]),
        ('a b c " d e f', 4, ["a b c", '" d e f']),
        ("a b c ( d ) . e f", 7, ["a b c ( d ) .", "e f"]),
        ("a b c d ' t e f", 5, ["a b c", "d ' t e f"]),
        # Languages without spaces, and their marks.
        ("他 说 。 我 们 ， 走", 4, ["他 说 。", "我 们 ， 走"]),  # noqa: RUF001
        ("„ a b “ , c d e", 6, ["„ a b “ ,", "c d e"]),
    ],
)
def test_the_best_place_is_chosen(text, limit, parts):
    assert split(text, limit) == parts


def test_byte_level_tokens_are_classified():
    """A character may be several tokens. Text is cut only before a space or a whole Chinese character."""
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer, bpe.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    text = "the house the house, the mouse. 我走走我我。走。我走。" * 50
    bpe.train_from_iterator([text], BpeTrainer(vocab_size=290, initial_alphabet=ByteLevel.alphabet()))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe)
    kinds = classify_tokens(tokenizer)

    def kind(token: str) -> int:
        (id,) = tokenizer(token)["input_ids"]
        return kinds[id]

    expected = {".": SENTENCE, ",": CLAUSE, " the": WORD, "x": CONTINUATION, "我": WORD, "。": SENTENCE}
    assert {token: kind(token) for token in expected} == expected
    (partial,) = set(tokenizer("é")["input_ids"][:1])
    assert kinds[partial] == CONTINUATION


def test_sentencepiece_tokens_are_classified():
    pieces = {".": SENTENCE, ",": CLAUSE, "▁the": WORD, "the": CONTINUATION, "走": WORD, "。": SENTENCE, "▁(": OPENING}
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    backend = make_unigram(special, [(piece, -1.0) for piece in pieces])
    kinds = classify_tokens(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert kinds[len(special) : -1].tolist() == list(pieces.values())


def test_a_very_long_sentence_is_split():
    parts = split(" ".join(f"w{number}" for number in range(20_000)) + " | a b", 61)
    assert len(parts) == 329 and parts[-1] == "a b"
