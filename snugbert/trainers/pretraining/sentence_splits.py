"""Where text may be cut: ranks of the places between tokens, and splitting of over-long sentences.

The sentence splitter does not split inside quotation marks. An unbalanced mark can make a "sentence" of thousands of
tokens. Token ids alone decide where it is cut, so a prepared corpus fits every sequence length.
"""

import unicodedata

import numpy as np
from transformers import PreTrainedTokenizerBase

from snugbert.trainers.corpus.corpus import Block

SENTENCE_MARKS = frozenset(".!?…。！？｡؟۔।॥።")  # noqa: RUF001
CLAUSE_MARKS = frozenset(",;:—–，；：、､،؛")  # noqa: RUF001
JOINING_MARKS = frozenset("'’-/")  # noqa: RUF001 (inside words and numbers: don't, well-known, 1/2)

# Kinds of tokens, as `classify_tokens` returns them.
WORD, CONTINUATION, CLAUSE, SENTENCE, OPENING, CLOSING, QUOTE, JOINING = range(8)
# Ranks of places, as `rank_places` returns them.
IN_WORD, BESIDE_MARK, WORD_END, CLAUSE_END, SENTENCE_END = range(5)


def classify_tokens(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Returns the kind of each token: a word, its continuation, or a kind of punctuation.

    Returns:
        *Shape:* (vocabulary,), uint8
    """
    prefix = getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None) or "##"
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return np.array([_classify_token(token, prefix) for token in tokens], dtype=np.uint8)


def _classify_token(token: str, prefix: str) -> int:
    if len(token) > 1:
        return CONTINUATION if token.startswith(prefix) else WORD
    for marks, kind in ((SENTENCE_MARKS, SENTENCE), (CLAUSE_MARKS, CLAUSE), (JOINING_MARKS, JOINING)):
        if token in marks:
            return kind
    # Languages differ in which quotation marks open and which close.
    kinds = {"Ps": OPENING, "Pe": CLOSING, "Pi": QUOTE, "Pf": QUOTE}
    return QUOTE if token == '"' else kinds.get(unicodedata.category(token), WORD)


def rank_places(block: Block, token_kinds: np.ndarray) -> np.ndarray:
    """Ranks how well a text can be cut before each of its tokens: best after a sentence, worst within a word.

    Args:
        block: any text.
        token_kinds: from [`classify_tokens`].

    Returns:
        One of the ranks above for each token. *Shape:* (tokens,), uint8
    """
    places = np.full(len(block.tokens), IN_WORD, dtype=np.uint8)
    kind = token_kinds[block.tokens]
    before, after = kind[:-1], kind[1:]
    # The mark that a closing bracket or quotation mark follows decides the rank.
    closes = (before == CLOSING) | (before == QUOTE)
    mark = np.where(closes, np.concatenate([[WORD], before[:-1]])[: len(before)], before)
    ranks = np.full(len(before), WORD_END, dtype=np.uint8)
    ranks[mark == CLAUSE] = CLAUSE_END
    ranks[mark == SENTENCE] = SENTENCE_END
    ranks[(before == OPENING) | (before == JOINING)] = BESIDE_MARK
    ranks[(before == QUOTE) & (ranks == WORD_END)] = BESIDE_MARK  # it opens
    ranks[np.isin(after, (CLAUSE, SENTENCE, CLOSING, JOINING))] = BESIDE_MARK
    ranks[(after == QUOTE) & (ranks > WORD_END)] = BESIDE_MARK  # it closes
    ranks[after == CONTINUATION] = IN_WORD
    places[1:] = ranks
    places[block.sentences[:-1]] = SENTENCE_END
    return places


def split_long_sentences(block: Block, places: np.ndarray, limit: int) -> np.ndarray:
    """Splits sentences of more than `limit` tokens at the last place of the best rank in reach.

    A part has at most `limit` tokens, and at least half of that unless it is the last one.

    Args:
        block: any text.
        places: from [`rank_places`].
        limit: tokens of the longest part.

    Returns:
        The offsets of all sentences and parts, and of the end. *Shape:* (parts + 1,)
    """
    cuts = []
    for sentence in find_long_sentences(block, limit).tolist():
        start, end = block.sentences[sentence : sentence + 2].tolist()
        while end - start > limit:
            reach = places[start + (limit + 1) // 2 : start + limit + 1]
            start += limit - int(reach[::-1].argmax())
            cuts.append(start)
    return np.union1d(block.sentences, cuts).astype(np.int64) if cuts else block.sentences


def find_long_sentences(block: Block, limit: int) -> np.ndarray:
    """Returns the indices of the sentences with more than `limit` tokens."""
    return np.flatnonzero(np.diff(block.sentences) > limit)
