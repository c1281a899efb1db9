"""The recipes that make examples from a block: next sentences, sentence order, or full sentences.

- Next sentences (Devlin et al., 2018, section 3.1, A.2): two spans. The second follows the first, or comes from
  another document.
- Sentence order (ALBERT: Lan et al., 2019, section 3.1): two consecutive spans, swapped in half of the pairs.
- Full sentences (RoBERTa: Liu et al., 2019, section 4.2): no pairs. Sentences fill each example.

Next sentences differ from `create_pretraining_data.py` of the original release, where lengths reveal the label:

- A random second segment is about as long as the real one. The original fills up to the target length even if the real
  segment is short because its document ends.
- A chunk has at least two sentences, unless only one is left in the document. So few pairs are forced to be random
  (on books with 64 tokens per pair: 1 %, instead of 17 %). Forced random pairs are compensated for, so both labels
  are equally frequent.
"""

import random
from bisect import bisect_left, bisect_right
from itertools import pairwise

import numpy as np

from snugbert.trainers.corpus.corpus import Block, Corpus

PAIR_SPECIAL_TOKENS = 3  # [CLS] first [SEP] second [SEP]
SHORTEST_TARGET = 2  # minimum tokens of a short pair, as in the original release
# Probability correction per surplus random pair. The counts of the two labels in a block then differ by about ten at
# most, while neighboring labels are nearly independent.
CORRECTION = 1 / 32

# Block, offset in its tokens and length of the first span; the same of the second span, or 0, 0, 0; and the label: 0
# if the second span follows the first, 1 if it is random or precedes it.
Example = tuple[int, int, int, int, int, int, int]


def next_sentence_pairs(
    corpus: Corpus, block_index: int, max_seq_length: int, short_seq_prob: float, rng: random.Random
) -> list[Example]:
    """Cuts a block into pairs whose second segment follows the first (label 0) or is random (1).

    Sentences are gathered up to a target length and split into two segments at a random sentence. A random second
    segment replaces the real one, whose text is used for the next pair. If a pair exceeds `max_seq_length`, tokens are
    dropped one at a time from the longer segment, at either end at random.

    Args:
        corpus: at least two documents. Random segments come from the whole corpus.
        block_index: index of the block.
        max_seq_length: tokens of the longest pair, special tokens included.
        short_seq_prob: share of the pairs with a random shorter target, so that the model also sees short sequences.
        rng: the source of all random choices.
    """
    block, longest = corpus.blocks[block_index], max_seq_length - PAIR_SPECIAL_TOKENS
    # Lists: bisect and indexing are several times faster on them than on arrays.
    sentences, documents = block.sentences.tolist(), block.documents.tolist()
    document_starts = corpus.document_starts.tolist()
    pairs: list[Example] = []
    surplus = 0  # random pairs minus next pairs

    for document in range(len(documents) - 1):
        sentence, document_end = documents[document], documents[document + 1]
        while sentence < document_end:
            target = _target(longest, short_seq_prob, rng)
            chunk_end = _chunk_end(sentences, sentence, document_end, target)
            is_alone = chunk_end - sentence == 1  # there is no second segment, so the pair must be random
            is_random = is_alone or rng.random() < 0.5 - surplus * CORRECTION
            surplus += 1 if is_random else -1
            first_end = sentence + 1
            if not is_alone:
                first_end += int(rng.random() * (chunk_end - sentence - 1))
            start, first = sentences[sentence], sentences[first_end] - sentences[sentence]
            if is_random:
                # As long as the real pair, and full if the real pair is full.
                total = target if is_alone else sentences[chunk_end] - start
                wanted = max(min(total, longest) - first, 1)
                other = int(rng.random() * (document_starts[-1] - 1))
                other += other >= document_starts[block_index] + document
                second_block = bisect_right(document_starts, other) - 1
                second_start, second = _random_second(
                    corpus.blocks[second_block], other - document_starts[second_block], wanted, total >= longest, rng
                )
            else:
                second_block, second_start = block_index, sentences[first_end]
                second = sentences[chunk_end] - second_start
            first_cut, first, second_cut, second = _truncate(first, second, longest, rng)
            pairs.append(
                (
                    block_index,
                    start + first_cut,
                    first,
                    second_block,
                    second_start + second_cut,
                    second,
                    int(is_random),
                )
            )
            sentence = first_end if is_random else chunk_end
    return pairs


def sentence_order_pairs(
    block: Block, block_index: int, max_seq_length: int, short_seq_prob: float, rng: random.Random
) -> list[Example]:
    """Cuts a block into pairs of consecutive spans, in order (label 0) or swapped (1).

    Documents are cut into chunks from the front or from the back, at random. Otherwise lengths would reveal the order:
    the last sentence of a chunk is longer than average, and would always be in the second span of the text.

    A document of one sentence is split in the middle of the sentence. A document of one token is left out.

    Args:
        block: any number of documents.
        block_index: index of the block.
        max_seq_length, short_seq_prob, rng: as in [`next_sentence_pairs`].
    """
    longest = max_seq_length - PAIR_SPECIAL_TOKENS
    sentences, documents = block.sentences.tolist(), block.documents.tolist()
    pairs: list[Example] = []
    for document, next_document in pairwise(documents):
        offsets = sentences[document : next_document + 1]
        from_back = rng.random() < 0.5
        if from_back:
            offsets = [-offset for offset in reversed(offsets)]
        chunk, end = 0, len(offsets) - 1
        while chunk < end:
            chunk_end = _chunk_end(offsets, chunk, end, _target(longest, short_seq_prob, rng))
            start, stop = offsets[chunk], offsets[chunk_end]
            if chunk_end - chunk == 1:
                middle = (start + stop) // 2
            else:
                middle = offsets[chunk + 1 + int(rng.random() * (chunk_end - chunk - 1))]
            chunk = chunk_end
            if middle == start:
                continue
            first_cut, first, second_cut, second = _truncate(middle - start, stop - middle, longest, rng)
            start, middle = start + first_cut, middle + second_cut
            spans = (block_index, start, first), (block_index, middle, second)
            if from_back:
                spans = (block_index, -middle - second, second), (block_index, -start - first, first)
            is_swapped = rng.random() < 0.5
            pairs.append((*spans[is_swapped], *spans[not is_swapped], int(is_swapped)))
    return pairs


def full_sentences(block: Block, block_index: int, max_seq_length: int) -> list[Example]:
    """Cuts a block into examples of as many whole sentences as fit, from one or more documents.

    A sentence that is longer than an example is cut. The rest of it starts the next example.

    Args:
        block: any number of documents.
        block_index: index of the block.
        max_seq_length: tokens of the longest example, including [CLS], the final [SEP] and a [SEP] between documents.
    """
    sentences, documents = block.sentences.tolist(), block.sentences[block.documents].tolist()
    examples: list[Example] = []
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
            end = start + room
        examples.append((block_index, start, end - start, 0, 0, 0, 0))
        start = end
    return examples


def _target(longest: int, short_seq_prob: float, rng: random.Random) -> int:
    if rng.random() < short_seq_prob:
        return SHORTEST_TARGET + int(rng.random() * (longest - SHORTEST_TARGET + 1))
    return longest


def _chunk_end(sentences: list[int], start: int, document_end: int, target: int) -> int:
    """Returns the end of a chunk: at least two sentences and `target` tokens, unless the document ends first.

    A last sentence that would remain alone is included.
    """
    end = max(bisect_left(sentences, sentences[start] + target, start + 1, document_end), start + 2)
    return end if end < document_end - 1 else document_end


def _random_second(block: Block, document: int, wanted: int, fills: bool, rng: random.Random) -> tuple[int, int]:
    """Returns start and length of a span of whole sentences of `document` that starts at a random sentence.

    Args:
        block: the block of the document.
        document: its index in the block.
        wanted: tokens in the span.
        fills: whether the span must have at least `wanted` tokens. Otherwise it ends at the nearest sentence boundary,
            before or after, so that random spans are as long as real ones.
        rng: chooses the sentence.
    """
    first, end = block.documents[document : document + 2].tolist()
    first = min(first + 1, end - 1)  # a real second segment never starts a document
    start = first + int(rng.random() * (end - first))
    document_end = int(block.sentences[end])
    if document_end - int(block.sentences[start]) < wanted:  # too close to the end: move back
        start = first + int(np.searchsorted(block.sentences[first:end], document_end - wanted, side="right")) - 1
        start = max(start, first)
    # No sentence is empty, so `wanted` sentences are enough.
    offsets = block.sentences[start : min(start + wanted, end) + 1].tolist()
    last = min(bisect_left(offsets, offsets[0] + wanted, 1), len(offsets) - 1)
    if not fills and last > 1 and offsets[last] + offsets[last - 1] > 2 * (offsets[0] + wanted):
        last -= 1
    return offsets[0], offsets[last] - offsets[0]


def _truncate(first: int, second: int, longest: int, rng: random.Random) -> tuple[int, int, int, int]:
    """Shortens two segments to `longest` tokens in total. Returns the cut at the start and the new length of each."""
    excess = first + second - longest
    if excess <= 0:
        return 0, first, 0, second
    # Dropping tokens from the longer segment first makes the lengths equal and then alternates. A random segment loses
    # the odd token: otherwise lengths would reveal which segment was first before they were swapped.
    from_first = min(excess, max(first - second, 0))
    from_second = min(excess, max(second - first, 0))
    rest = excess - from_first - from_second
    odd = rng.getrandbits(1)
    from_first, from_second = from_first + (rest + odd) // 2, from_second + (rest + 1 - odd) // 2
    # Each dropped token comes from the start or the end with equal probability: a binomial number of random bits.
    first_cut = rng.getrandbits(from_first).bit_count() if from_first else 0
    second_cut = rng.getrandbits(from_second).bit_count() if from_second else 0
    return first_cut, first - from_first, second_cut, second - from_second
