"""A block of a corpus -> its examples: next sentences, sentence order, or full sentences.

The recipes, as functions of a block and a source of chance; [`PretrainingDataset`] keeps what they return.

- Next sentences (Devlin et al., 2018, section 3.1, A.2): two spans, of which the second follows the first or comes
  from another document.
- Sentence order (ALBERT: Lan et al., 2019, section 3.1): two spans of which one follows the other, in half of the
  pairs swapped.
- Full sentences (RoBERTa: Liu et al., 2019, section 4.2): no pairs; sentences packed one behind the other.

Where next sentences differ from `create_pretraining_data.py` of the original release, whose labels can be told from
lengths: a random second half has about the length that the real one had, where the original fills up to the target
even if the real one was short because its document ended; a chunk has two sentences wherever the document has, so
that its pair is hardly ever random by force (1 % of the pairs of 64 tokens on books, 17 % otherwise), and what is
forced is made up for, which keeps the labels equally many.
"""

import random
from bisect import bisect_left, bisect_right
from itertools import pairwise

import numpy as np

from snugbert.trainers.pretraining.corpus import Block, Corpus

PAIR_SPECIAL_TOKENS = 3  # [CLS] first [SEP] second [SEP]
SHORTEST_TARGET = 2  # word pieces of a short pair, at least; as in the original release
# How much less likely a random pair becomes with each by which they are ahead. The labels of a block then differ in
# number by about ten at most, while those of neighbours hardly depend on each other.
PULL = 1 / 32

# An example's spans: block, offset in the block's word pieces and length; those of a second half, or 0, 0, 0; and its
# label: 0 where the second half follows the first, 1 where it is random or comes before it.
Example = tuple[int, int, int, int, int, int, int]


def next_sentence_pairs(
    corpus: Corpus, number: int, max_seq_length: int, short_seq_prob: float, rng: random.Random
) -> list[Example]:
    """Cuts a block into pairs whose second half follows the first (label 0) or is random (1).

    Args:
        corpus: at least two documents; random second halves come from all of it.
        number: of the block.
        max_seq_length: tokens of the longest pair, special tokens included.
        short_seq_prob: share of the pairs that aim at a random shorter length, so that the model sees these too.
        rng: chooses lengths, halves, random documents and what truncation drops.

    Sentences are gathered until the target length is reached, and split into halves at a random sentence. A random
    second half takes the place of the real one, which goes back to the text still to be used. What is over
    `max_seq_length` is cut from the longer half, word piece by word piece, at either end at random.
    """
    block, longest = corpus.blocks[number], max_seq_length - PAIR_SPECIAL_TOKENS
    # Lists: bisect and indexing are several times faster on them than on arrays.
    sentences, documents = block.sentences.tolist(), block.documents.tolist()
    document_starts = corpus.document_starts.tolist()
    pairs: list[Example] = []
    ahead = 0  # random pairs less those that are next

    for document in range(len(documents) - 1):
        sentence, document_end = documents[document], documents[document + 1]
        while sentence < document_end:
            target = _target(longest, short_seq_prob, rng)
            chunk_end = _chunk_end(sentences, sentence, document_end, target)
            is_alone = chunk_end - sentence == 1  # no second half: random by force
            is_random = is_alone or rng.random() < 0.5 - ahead * PULL
            ahead += 1 if is_random else -1
            first_end = sentence + 1
            if not is_alone:
                first_end += int(rng.random() * (chunk_end - sentence - 1))
            start, first = sentences[sentence], sentences[first_end] - sentences[sentence]
            if is_random:
                # As long as the pair would have been with the real half; full, if that filled it.
                total = target if is_alone else sentences[chunk_end] - start
                wanted = max(min(total, longest) - first, 1)
                other = int(rng.random() * (document_starts[-1] - 1))
                other += other >= document_starts[number] + document
                second_block = bisect_right(document_starts, other) - 1
                second_start, second = _random_second(
                    corpus.blocks[second_block], other - document_starts[second_block], wanted, total >= longest, rng
                )
            else:
                second_block, second_start = number, sentences[first_end]
                second = sentences[chunk_end] - second_start
            first_cut, first, second_cut, second = _truncate(first, second, longest, rng)
            pairs.append(
                (number, start + first_cut, first, second_block, second_start + second_cut, second, int(is_random))
            )
            sentence = first_end if is_random else chunk_end
    return pairs


def sentence_order_pairs(
    block: Block, number: int, max_seq_length: int, short_seq_prob: float, rng: random.Random
) -> list[Example]:
    """Cuts a block into pairs of consecutive spans, in order (label 0) or swapped (1).

    Args:
        block: any number of documents.
        number: of the block.
        max_seq_length, short_seq_prob, rng: as in [`next_sentence_pairs`].

    Documents are cut from the front or from the back at random. The last sentence that a chunk gathers is longer than
    others on average, and would always be in the half that comes second in the text.

    A document of one sentence is split in the middle of it; one of a single word piece cannot be, and is left out.
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
            spans = (number, start, first), (number, middle, second)
            if from_back:
                spans = (number, -middle - second, second), (number, -start - first, first)
            is_swapped = rng.random() < 0.5
            pairs.append((*spans[is_swapped], *spans[not is_swapped], int(is_swapped)))
    return pairs


def full_sentences(block: Block, number: int, max_seq_length: int) -> list[Example]:
    """Cuts a block into examples of as many whole sentences as fit, from one document or several.

    Args:
        block: any number of documents.
        number: of the block.
        max_seq_length: tokens of the longest example, [CLS], the last [SEP] and one between documents included.

    A sentence that is longer than an example is cut into pieces of one; what remains goes on with the next sentence.
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
        examples.append((number, start, end - start, 0, 0, 0, 0))
        start = end
    return examples


def _target(longest: int, short_seq_prob: float, rng: random.Random) -> int:
    if rng.random() < short_seq_prob:
        return SHORTEST_TARGET + int(rng.random() * (longest - SHORTEST_TARGET + 1))
    return longest


def _chunk_end(sentences: list[int], start: int, document_end: int, target: int) -> int:
    """The end of the shortest run of two or more sentences with `target` word pieces, or of the document before that.

    A last sentence that would be left alone belongs to the run too.
    """
    end = max(bisect_left(sentences, sentences[start] + target, start + 1, document_end), start + 2)
    return end if end < document_end - 1 else document_end


def _random_second(block: Block, document: int, wanted: int, fills: bool, rng: random.Random) -> tuple[int, int]:
    """Start and length of whole sentences of `document`, from a random one on.

    Args:
        block: the document's.
        document: its index in the block.
        wanted: word pieces to have.
        fills: whether to have at least as many; otherwise the nearest end of a sentence is taken, before or after,
            so that random second halves are as long as real ones.
        rng: chooses the sentence.
    """
    first, end = block.documents[document : document + 2].tolist()
    first = min(first + 1, end - 1)  # no real second half begins a document, so that one which does would tell
    start = first + int(rng.random() * (end - first))
    document_end = int(block.sentences[end])
    if document_end - int(block.sentences[start]) < wanted:  # too near to the end: back as far as needed
        start = first + int(np.searchsorted(block.sentences[first:end], document_end - wanted, side="right")) - 1
        start = max(start, first)
    # No sentence is empty, so that `wanted` of them are enough.
    offsets = block.sentences[start : min(start + wanted, end) + 1].tolist()
    last = min(bisect_left(offsets, offsets[0] + wanted, 1), len(offsets) - 1)
    if not fills and last > 1 and offsets[last] + offsets[last - 1] > 2 * (offsets[0] + wanted):
        last -= 1
    return offsets[0], offsets[last] - offsets[0]


def _truncate(first: int, second: int, longest: int, rng: random.Random) -> tuple[int, int, int, int]:
    """Shortens two halves to `longest` word pieces together: what each loses in front, and what it keeps."""
    excess = first + second - longest
    if excess <= 0:
        return 0, first, 0, second
    # Dropping one word piece at a time from the longer half evens the lengths first and then alternates; which half
    # loses an odd one is left to chance, or lengths would tell which was the first before they were swapped.
    from_first = min(excess, max(first - second, 0))
    from_second = min(excess, max(second - first, 0))
    rest = excess - from_first - from_second
    odd = rng.getrandbits(1)
    from_first, from_second = from_first + (rest + odd) // 2, from_second + (rest + 1 - odd) // 2
    # Each dropped word piece goes from the front or the back with equal chance: a binomial share of the bits.
    first_cut = rng.getrandbits(from_first).bit_count() if from_first else 0
    second_cut = rng.getrandbits(from_second).bit_count() if from_second else 0
    return first_cut, first - from_first, second_cut, second - from_second
