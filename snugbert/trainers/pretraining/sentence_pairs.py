"""The recipes that make examples: next sentences, sentence order, or full sentences.

- Next sentences (Devlin et al., 2018, section 3.1, A.2): two spans. The second follows the first, or comes from
  another document.
- Sentence order (ALBERT: Lan et al., 2019, section 3.1): two consecutive spans, swapped in half of the pairs.
- Full sentences (RoBERTa: Liu et al., 2019, section 4.2): no pairs. Sentences fill each example.

Each recipe shows nearly every token in every epoch. `create_pretraining_data.py` of the original release drops tokens
that exceed a pair, and shows the text of short documents many times. Its second segments also reveal the label. Here,
random pairs exchange their second segments, so neither the text nor the lengths of segments reveal the label.

Over-long sentences are split first. The sentence splitter does not split inside quotation marks, so an unbalanced mark
can make a "sentence" of thousands of tokens. Cuts depend only on token ids, so one prepared corpus serves every
sequence length.
"""

import random
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from tokenizers.decoders import ByteLevel, Metaspace
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import Block
from snugbert.trainers.pretraining.pretraining_arguments import Objective

# --- where text may be cut -------------------------------------------------------------------------------------------

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
    kinds = [CONTINUATION if len(token) > 1 and token.startswith(prefix) else _classify(token) for token in tokens]
    return np.array(kinds, dtype=np.uint8)


def _classify_spaced(text: str) -> int:
    """Returns the kind of a decoded token, whose text includes the space before it. Incomplete characters are U+FFFD.

    Chinese and Japanese words have no spaces.
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
    """Returns the rank of the place between two tokens of the kinds `context` and `after`.

    If the first token may be a closing mark, `context` is its kind plus `NUM_KINDS` times the previous token's kind.
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

    *Shape:* (tokens,), uint8
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

    A part has at most `limit` tokens, and at least half of that unless it is the last part. Returns the offsets of all
    sentences and parts, and of the end. *Shape:* (parts + 1,)
    """
    cuts = []
    for sentence in np.flatnonzero(np.diff(block.sentences) > limit).tolist():
        start, end = block.sentences[sentence : sentence + 2].tolist()
        while end - start > limit:
            reach = places[start + (limit + 1) // 2 : start + limit + 1]
            start += limit - int(reach[::-1].argmax())
            cuts.append(start)
    return np.union1d(block.sentences, cuts).astype(np.int64) if cuts else block.sentences


# --- examples --------------------------------------------------------------------------------------------------------

PAIR_SPECIAL_TOKENS = 3  # [CLS] first [SEP] second [SEP]
SHORTEST_TARGET = 2  # minimum tokens of a short pair, as in the original release
# A pair is split between sentences only if both segments have at least this many tokens (with `whole_sentences`, one).
# A shorter segment lacks context.
SHORTEST_SEGMENT = 4

# An example in 21 bytes: block, offset in its tokens and length of the first span; the same for the second, or 0;
# and the label: 0 if the second span follows the first, 1 if it is random or precedes it. A block has fewer than 2^32
# tokens, an example fewer than 2^16.
EXAMPLE = np.dtype(
    [
        *[("block", "<u4"), ("start", "<u4"), ("length", "<u2")],
        *[("second_block", "<u4"), ("second_start", "<u4"), ("second_length", "<u2")],
        ("label", "u1"),
    ]
)
LABELED_ROWS = 2**20  # rows that are labeled together, in about 200 MB of memory

# Offsets in a block: the start of the first segment, the start of the second, and the end of the pair.
PairOffsets = tuple[int, int, int]


def cut_pairs(
    block: Block,
    block_index: int,
    token_kinds: np.ndarray,
    max_seq_length: int,
    short_seq_prob: float,
    rng: random.Random,
    objective: Objective = "nsp",
) -> np.ndarray:
    """Cuts a block into pairs of adjacent segments. Every token is in a pair.

    A pair gathers at least two sentences, up to a target length, and is split before a random sentence. A sentence
    that exceeds the maximum is cut between words, and its rest starts the next pair. The last pair of a document would
    be short, so it repeats sentences of the previous pair until it is full. Sentences longer than a pair are split
    first, see [`split_long_sentences`]. A document of one sentence is split between words, and a document of one token
    makes no pair.

    Documents are cut from the front or from the back, at random. So pairs change from epoch to epoch, and the lengths
    of two segments do not reveal which segment was first. The share `short_seq_prob` of the pairs has a random shorter
    target, so that the model also sees short sequences.

    With the objective `"sop"`, pairs end with the last sentence that fits. If such pairs ended within sentences but
    were split between sentences, the ends of swapped segments would reveal the label.

    Returns rows whose second segment follows the first, with label 0. *Shape:* (pairs,), [`EXAMPLE`]
    """
    longest, whole_sentences = max_seq_length - PAIR_SPECIAL_TOKENS, objective == "sop"
    places = rank_places(block, token_kinds)
    # For sentence order, two sentences must fit into a pair.
    sentences = split_long_sentences(block, places, longest // 2 if whole_sentences else longest)
    documents = np.searchsorted(sentences, block.sentences[block.documents]).tolist()
    # Lists and bytes: bisect and indexing are several times faster on them than on arrays.
    offsets = sentences.tolist()
    cutter = _Cutter(places.tobytes(), longest, short_seq_prob, whole_sentences, rng)
    pairs: list[PairOffsets] = []
    for first, last in pairwise(documents):
        document = offsets[first : last + 1]
        if rng.random() < 0.5:
            pairs += cutter.cut(document)
        else:
            pairs += [(-end, -middle, -start) for start, middle, end in cutter.cut([-at for at in reversed(document)])]
    starts, middles, ends = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    table = np.zeros(len(pairs), dtype=EXAMPLE)
    table["block"] = table["second_block"] = block_index
    table["start"], table["length"] = starts, middles - starts
    table["second_start"], table["second_length"] = middles, ends - middles
    return table


@dataclass(frozen=True)
class _Cutter:
    """Cuts documents into pairs from the front, see [`cut_pairs`]. Offsets are negative if a document is mirrored."""

    ranks: bytes  # from `rank_places`
    longest: int  # tokens of the longest pair, without special tokens
    short_seq_prob: float
    whole_sentences: bool
    rng: random.Random

    def cut(self, offsets: list[int]) -> Iterator[PairOffsets]:
        """Yields the pairs of a document, from the offsets of its sentences and of its end."""
        end = offsets[0]
        while end < offsets[-1] and offsets[-1] - offsets[0] >= 2:
            start, target = end, self.longest
            if offsets[-1] - start < self.longest:
                start = self._move_back(start, offsets)
            elif self.rng.random() < self.short_seq_prob:
                target = SHORTEST_TARGET + int(self.rng.random() * (self.longest - SHORTEST_TARGET + 1))
            following = bisect_right(offsets, start)  # the first boundary between sentences after `start`
            end = self._find_end(start, offsets, following, target)
            yield start, self._find_middle(start, end, offsets, following), end

    def _move_back(self, start: int, offsets: list[int]) -> int:
        """Returns where the last pair begins, so that it is full: at a sentence if two sentences fit."""
        earliest = offsets[-1] - self.longest
        sentence = bisect_left(offsets, earliest)
        if 0 < sentence == len(offsets) - 2:  # only one sentence fits: add the end of the previous sentence
            return min(start, _find_place(self.ranks, range(earliest, offsets[-1] - 1)))
        return min(start, offsets[sentence])

    def _find_end(self, start: int, offsets: list[int], following: int, target: int) -> int:
        """Returns the end of the pair: the first sentence end that gives it `target` tokens and two whole sentences.

        If this does not fit, the pair ends earlier.
        """
        last = len(offsets) - 1
        second = following + 1 if offsets[following - 1] == start else following + 2  # two whole sentences
        end = offsets[min(bisect_left(offsets, start + target, min(second, last)), last)]
        if end - start <= self.longest:
            return end
        fitting = offsets[bisect_right(offsets, start + self.longest) - 1]
        if self.whole_sentences and fitting - start >= 2:
            return fitting
        return _find_place(self.ranks, range(start + self.longest, start + self.longest // 2, -1))

    def _find_middle(self, start: int, end: int, offsets: list[int], following: int) -> int:
        """Returns a random boundary between sentences. Without one, returns the best place in the middle half."""
        boundaries = offsets[following : bisect_left(offsets, end, following)]
        shortest = 1 if self.whole_sentences else SHORTEST_SEGMENT
        boundaries = [place for place in boundaries if shortest <= place - start <= end - start - shortest]
        if boundaries:
            return boundaries[int(self.rng.random() * len(boundaries))]
        quarter = (end - start) // 4
        places = sorted(range(start + max(quarter, 1), end - quarter), key=lambda at: abs(2 * at - start - end))
        ranks = [self.ranks[abs(place)] for place in places]  # the nearest to the middle first
        return places[ranks.index(max(ranks))]


def _find_place(ranks: bytes, places: range) -> int:
    """Returns the first place between words, or the first place."""
    return next((place for place in places if ranks[abs(place)] != IN_WORD), places[0])


def exchange_second_segments(table: np.ndarray, corpus: Corpus, max_seq_length: int, rng: random.Random) -> None:
    """Makes half of the pairs of [`cut_pairs`] random: they exchange their second segments, and get label 1.

    Segments of similar length are exchanged, never within a document. A segment that ends within a sentence is
    shortened or extended to fill its new pair. So nearly every token is still shown once, and both labels have the
    same segments and the same lengths.

    If one document has more than half of the random pairs, some of these pairs copy the second segment of another
    document, and their own second segments are not shown in this epoch. If no other document exists, such pairs do not
    change, and keep label 0.
    """
    ends = _find_ends(table, corpus)
    random_rows = rng.sample(range(len(table)), (len(table) + rng.getrandbits(1)) // 2)
    sources = _match_rows(table["second_length"], ends, random_rows, rng)
    first, second = table["length"].astype(np.int64), table["second_length"].astype(np.int64)
    wanted = np.minimum(np.where(ends.ends_in_sentence[sources], second, second[sources]), ends.after[sources])
    # If a first segment begins within a sentence, its start moves to keep the total length.
    shift = np.where(ends.begins_in_sentence, wanted - second, 0).clip(-ends.before, first - 1)
    table["label"] = sources != np.arange(len(table))
    table["start"] = table["start"] + shift
    table["length"] = first - shift
    table["second_length"] = np.minimum(wanted, max_seq_length - PAIR_SPECIAL_TOKENS - table["length"])
    for name in ("second_block", "second_start"):
        table[name] = table[name][sources]


class _Ends(NamedTuple):
    """Where pairs of adjacent segments begin and end. Each array has an item per pair."""

    documents: np.ndarray  # the document of the pair
    before: np.ndarray  # tokens of the document before the pair
    after: np.ndarray  # tokens from the start of the second segment to the document's end
    begins_in_sentence: np.ndarray  # whether the pair begins within a sentence
    ends_in_sentence: np.ndarray


def _find_ends(table: np.ndarray, corpus: Corpus) -> _Ends:
    parts = []
    for number in np.unique(table["block"]).tolist():  # rows are in the order of the blocks
        rows, block = table[table["block"] == number], corpus.blocks[number]
        starts, seconds = rows["start"].astype(np.int64), rows["second_start"].astype(np.int64)
        bounds = block.sentences[block.documents]
        following = np.searchsorted(bounds, starts, side="right")
        documents = corpus.document_starts[number] + following - 1
        before, after = starts - bounds[following - 1], bounds[following] - seconds
        ends = _is_in_sentence(block, seconds + rows["second_length"])
        parts.append((documents, before, after, _is_in_sentence(block, starts), ends))
    return _Ends(*map(np.concatenate, zip(*parts, strict=True)))


def _is_in_sentence(block: Block, offsets: np.ndarray) -> np.ndarray:
    return block.sentences[np.searchsorted(block.sentences, offsets)] != offsets


def _match_rows(lengths: np.ndarray, ends: _Ends, random_rows: list[int], rng: random.Random) -> np.ndarray:
    """Returns, for each row, the row that supplies its second segment: in a random pair, a row of another document."""
    sources = np.arange(len(lengths))
    document_of = ends.documents.tolist()
    order = (ends.ends_in_sentence.astype(np.int64) << 16 | lengths).tolist()
    waiting: list[int] = []  # rows of one document
    for row in sorted(random_rows, key=order.__getitem__):  # equal rows keep their random order
        if waiting and document_of[row] != document_of[waiting[-1]]:
            other = waiting.pop()
            sources[row], sources[other] = other, row
        else:
            waiting.append(row)
    if waiting:
        others = np.flatnonzero(ends.documents != document_of[waiting[0]]).tolist()
        sources[waiting] = rng.choices(others, k=len(waiting)) if others else waiting
    return sources


def swap_segments(table: np.ndarray, rng: random.Random) -> None:
    """Swaps the segments of half of the pairs. Sets `label` to 0 (in order) or 1 (swapped). Changes `table`."""
    size = len(table)
    swapped = np.zeros(size, dtype=bool)
    swapped[rng.sample(range(size), (size + rng.getrandbits(1)) // 2)] = True
    table["label"] = swapped
    for first, second in (("start", "second_start"), ("length", "second_length")):
        table[first][swapped], table[second][swapped] = table[second][swapped], table[first][swapped]


def full_sentences(block: Block, block_index: int, token_kinds: np.ndarray, max_seq_length: int) -> np.ndarray:
    """Cuts a block into examples of as many whole sentences as fit, from one or more documents.

    A sentence that is longer than an example is cut between words. The rest of it starts the next example. The length
    includes [CLS], the final [SEP] and a [SEP] between documents. *Shape:* (examples,), [`EXAMPLE`]
    """
    sentences, documents = block.sentences.tolist(), block.sentences[block.documents].tolist()
    ranks = rank_places(block, token_kinds).tobytes()
    examples = []
    start, document = 0, 1  # `documents[document]` is where the current document ends
    while start < sentences[-1]:
        end, room = start, max_seq_length - 2
        while document < len(documents):
            fitting = min(sentences[bisect_right(sentences, end + room) - 1], documents[document])
            if fitting <= end:
                break
            end, room = fitting, room - (fitting - end)
            if end < documents[document]:
                break
            document, room = document + 1, room - 1
        if end == start:
            end = _find_place(ranks, range(start + room, start + room // 2, -1))
        examples.append((block_index, start, end - start, 0, 0, 0, 0))
        start = end
    return np.array(examples, dtype=EXAMPLE)
