"""Where text may be cut: ranks of the places between tokens, and splitting of over-long sentences.

The sentence splitter does not split inside quotation marks. An unbalanced mark can make a "sentence" of thousands of
tokens. Cuts depend only on token ids, so one prepared corpus serves every sequence length.
"""

import unicodedata

import numpy as np
from tokenizers.decoders import ByteLevel, Metaspace
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus import Block

SENTENCE_MARKS = frozenset(".!?…。！？｡؟۔।॥።")  # noqa: RUF001
CLAUSE_MARKS = frozenset(",;:—–，；：、､،؛")  # noqa: RUF001
JOINING_MARKS = frozenset("'’-/")  # noqa: RUF001 (inside words and numbers: don't, well-known, 1/2)

# Kinds of tokens, as `classify_tokens` returns them.
NUM_KINDS = 8
WORD, CONTINUATION, CLAUSE, SENTENCE, OPENING, CLOSING, QUOTE, JOINING = range(NUM_KINDS)
# Ranks of places, as `rank_places` returns them.
IN_WORD, BESIDE_MARK, WORD_END, CLAUSE_END, SENTENCE_END = range(5)


def classify_tokens(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Returns the kind of each token: a word, its continuation, or a kind of punctuation.

    Returns:
        *Shape:* (vocabulary,), uint8
    """
    backend = tokenizer.backend_tokenizer
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    if isinstance(backend.decoder, ByteLevel):
        texts = [backend.decoder.decode([token]) for token in tokens]
        return np.array([_classify_spaced(text) for text in texts], dtype=np.uint8)
    if isinstance(backend.decoder, Metaspace):  # SentencePiece
        return np.array([_classify_spaced(token.replace("▁", " ")) for token in tokens], dtype=np.uint8)
    prefix = getattr(backend.model, "continuing_subword_prefix", None) or "##"
    continues = [len(token) > 1 and token.startswith(prefix) for token in tokens]
    kinds = [
        CONTINUATION if continued else _classify(token) for token, continued in zip(tokens, continues, strict=True)
    ]
    return np.array(kinds, dtype=np.uint8)


def _classify_spaced(text: str) -> int:
    """Returns the kind of a token that includes the space before it. Chinese and Japanese words have no spaces.

    Args:
        text: the decoded token. Incomplete characters are U+FFFD.
    """
    word = text.lstrip(" ")
    kind = _classify(word[:1])
    starts_word = word != text or (word != "" and unicodedata.category(word[0]) == "Lo")
    return kind if kind != WORD or starts_word else CONTINUATION


def _classify(token: str) -> int:
    """Returns the kind of a mark. Everything else is a word."""
    for marks, kind in ((SENTENCE_MARKS, SENTENCE), (CLAUSE_MARKS, CLAUSE), (JOINING_MARKS, JOINING)):
        if token in marks:
            return kind
    if len(token) != 1:
        return WORD
    # Languages differ in which quotation marks open and which close.
    kinds = {"Ps": OPENING, "Pe": CLOSING, "Pi": QUOTE, "Pf": QUOTE}
    return QUOTE if token == '"' else kinds.get(unicodedata.category(token), WORD)


def _rank_place(context: int, after: int) -> int:
    """Returns the rank of the place between two tokens.

    Args:
        context: the kind of the token before the place. If that may close something, plus `NUM_KINDS` times the kind
            of the token before it.
        after: the kind of the token after the place.
    """
    mark, before = divmod(context, NUM_KINDS)
    if before not in (CLOSING, QUOTE):
        mark = before
    rank = {SENTENCE: SENTENCE_END, CLAUSE: CLAUSE_END}.get(mark, WORD_END)
    if after == CONTINUATION:
        return IN_WORD
    if before in (OPENING, JOINING) or after in (CLAUSE, SENTENCE, CLOSING, JOINING):
        return BESIDE_MARK
    # Quotation marks close after a mark, and open after a word.
    if (before == QUOTE and rank == WORD_END) or (after == QUOTE and rank != WORD_END):
        return BESIDE_MARK
    return rank


RANKS = np.array(
    [[_rank_place(context, after) for after in range(NUM_KINDS)] for context in range(NUM_KINDS * NUM_KINDS)],
    dtype=np.uint8,
)


def rank_places(block: Block, token_kinds: np.ndarray) -> np.ndarray:
    """Ranks how well a text can be cut before each of its tokens: best after a sentence, worst within a word.

    Args:
        block: any text.
        token_kinds: from [`classify_tokens`].

    Returns:
        One of the ranks above for each token. *Shape:* (tokens,), uint8
    """
    kinds = token_kinds[block.tokens]
    contexts = kinds.copy()
    closing = np.flatnonzero((kinds == CLOSING) | (kinds == QUOTE))
    contexts[closing] += NUM_KINDS * kinds[closing - 1]
    places = np.full(len(kinds), IN_WORD, dtype=np.uint8)
    places[1:] = RANKS[contexts[:-1], kinds[1:]]
    places[block.sentences[:-1]] = SENTENCE_END
    return places


def split_long_sentences(block: Block, places: np.ndarray, limit: int) -> np.ndarray:
    """Splits sentences of more than `limit` tokens at the best place within reach. Of equal places, the last is used.

    A part has at most `limit` tokens, and at least half of that unless it is the last one.

    Args:
        block: any text.
        places: from [`rank_places`].
        limit: tokens of the longest part.

    Returns:
        The offsets of all sentences and parts, and of the end. *Shape:* (parts + 1,)
    """
    cuts = []
    for sentence in np.flatnonzero(np.diff(block.sentences) > limit).tolist():
        start, end = block.sentences[sentence : sentence + 2].tolist()
        while end - start > limit:
            reach = places[start + (limit + 1) // 2 : start + limit + 1]
            start += limit - int(reach[::-1].argmax())
            cuts.append(start)
    return np.union1d(block.sentences, cuts).astype(np.int64) if cuts else block.sentences
