"""Sentence pairs for next sentence prediction, by the paper's recipe (Devlin et al., 2018, section 3.1, A.2).

A pair is two spans of the corpus's word pieces. Half of the second spans follow the first, half come from another
document. The pairs of an epoch are a function of (corpus, settings, seed, epoch): no state to save, none to lose.

Where this differs from `create_pretraining_data.py` of the original release: a chunk of a single sentence has no
second half, so its pair is random by force; there such pairs come on top of the random half (55 % random on books),
here one later pair is made "is next" for every two of them, which keeps the halves equal.
"""

import random
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch

from snugbert.trainers.pretraining.documents import Corpus

SPECIAL_TOKENS_OF_A_PAIR = 3  # [CLS] first [SEP] second [SEP]
SHORTEST_TARGET = 2  # word pieces of a short sequence, at least; as in the original release


@dataclass
class SentencePairs:
    """Pairs of an epoch, in the corpus's order.

    Attributes:
        spans: offsets in the corpus's word pieces: first span's start and end, second's start and end.
            *Shape:* (pairs, 4)
        labels: 0 where the second span follows the first, 1 where it is random. *Shape:* (pairs,)
    """

    spans: np.ndarray
    labels: np.ndarray


def make_sentence_pairs(
    corpus: Corpus, max_seq_length: int, short_seq_prob: float = 0.1, seed: int = 42, epoch: int = 0
) -> SentencePairs:
    """Cuts the corpus into pairs of at most `max_seq_length` tokens, special tokens included.

    Args:
        corpus: at least two documents.
        max_seq_length: tokens of the longest pair, at least 5.
        short_seq_prob: share of the pairs that aim at a random shorter length, so that the model sees these too; 0.1
            in the original release.
        seed, epoch: choose lengths, halves, random documents and what truncation drops.

    Sentences are gathered until the target length is reached, and split into halves at a random sentence. A random
    second half takes the place of the real one, which goes back to the text still to be used. What is over
    `max_seq_length` is cut from the longer half, word piece by word piece, at either end at random.

    Raises:
        ValueError: fewer than two documents, or a `max_seq_length` below 5.
    """
    num_documents = len(corpus.documents) - 1
    if num_documents < 2:
        raise ValueError("Random next sentences come from another document, but there are fewer than two.")
    longest = max_seq_length - SPECIAL_TOKENS_OF_A_PAIR
    if longest < SHORTEST_TARGET:
        raise ValueError(f"`max_seq_length` {max_seq_length} is too short for a pair; it must be at least 5.")
    rng = random.Random(f"sentence pairs {seed} {epoch}")
    # Lists: bisect and indexing are several times faster on them than on arrays.
    sentences, documents = corpus.sentences.tolist(), corpus.documents.tolist()
    spans: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    forced = 0  # pairs that had to be random; one turned into "is next" makes up for two of them

    for document in range(num_documents):
        sentence, document_end = documents[document], documents[document + 1]
        while sentence < document_end:
            target = longest
            if rng.random() < short_seq_prob:
                target = SHORTEST_TARGET + int(rng.random() * (longest - SHORTEST_TARGET + 1))
            chunk_end = _sentences_up_to(sentences, sentence, target, document_end)
            first_end = sentence + 1
            if chunk_end - sentence == 1:
                is_random = True
                forced += 1
            else:
                first_end += int(rng.random() * (chunk_end - sentence - 1))
                is_random = rng.random() < 0.5
                if is_random and forced >= 2:
                    is_random = False
                    forced -= 2
            if is_random:
                other = int(rng.random() * (num_documents - 1))
                other += other >= document
                second_start = documents[other] + int(rng.random() * (documents[other + 1] - documents[other]))
                missing = max(target - (sentences[first_end] - sentences[sentence]), 1)
                second_end = _sentences_up_to(sentences, second_start, missing, documents[other + 1])
            else:
                second_start, second_end = first_end, chunk_end
            spans.append(
                _truncate(
                    sentences[sentence],
                    sentences[first_end],
                    sentences[second_start],
                    sentences[second_end],
                    longest,
                    rng,
                )
            )
            labels.append(int(is_random))
            sentence = first_end if is_random else chunk_end
    return SentencePairs(np.array(spans, dtype=np.int64), np.array(labels, dtype=np.int8))


def _sentences_up_to(sentences: list[int], start: int, tokens: int, end: int) -> int:
    """The end of the shortest run of sentences from `start` that has `tokens` word pieces, or `end` before that."""
    return min(bisect_left(sentences, sentences[start] + tokens, start + 1), end)


def _truncate(
    first_start: int, first_end: int, second_start: int, second_end: int, longest: int, rng: random.Random
) -> tuple[int, int, int, int]:
    first, second = first_end - first_start, second_end - second_start
    excess = first + second - longest
    if excess > 0:
        # Dropping one word piece at a time from the longer span evens the lengths first and then alternates.
        from_first = min(excess, max(first - second, 0))
        from_second = min(excess, max(second - first, 0))
        rest = excess - from_first - from_second
        from_first, from_second = from_first + rest // 2, from_second + (rest + 1) // 2
        # Each dropped word piece goes from the front or the back with equal chance: a binomial share of the bits.
        first_front = rng.getrandbits(from_first).bit_count() if from_first else 0
        second_front = rng.getrandbits(from_second).bit_count() if from_second else 0
        first_start, first_end = first_start + first_front, first_end - (from_first - first_front)
        second_start, second_end = second_start + second_front, second_end - (from_second - second_front)
    return first_start, first_end, second_start, second_end


class SentencePairDataset(torch.utils.data.Dataset):
    """Examples of next sentence prediction, epoch after epoch, each epoch's pairs made and shuffled anew.

    Example `i` is a function of (corpus, settings, seed, i), whatever was asked for before: a run that stops can go
    on from any step, with any number of workers and processes. An epoch has as many examples as epoch 0 has pairs; the
    few pairs by which another epoch has more are left out of it, those by which it has fewer are taken twice.

    Args:
        corpus: at least two documents.
        cls_token_id, sep_token_id: ids of the special tokens.
        max_seq_length, short_seq_prob, seed: as in [`make_sentence_pairs`].
        num_examples: length of the dataset; one epoch if None.

    Attributes:
        epoch_length: examples of an epoch.
        share_next: share of epoch 0's pairs in which the second span follows the first.

    An example has `input_ids` and `token_type_ids` (arrays of the same length), `next_sentence_label`, and
    `mask_seed`, from which its masks are drawn.
    """

    def __init__(
        self,
        corpus: Corpus,
        cls_token_id: int,
        sep_token_id: int,
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        seed: int = 42,
        num_examples: int | None = None,
    ):
        self.corpus = corpus
        self.cls_token_id = cls_token_id
        self.sep_token_id = sep_token_id
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self._make_epoch(0)
        self.epoch_length = len(self._pairs.labels)
        self.share_next = float((self._pairs.labels == 0).mean())
        self.num_examples = self.epoch_length if num_examples is None else num_examples

    def _make_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._pairs = make_sentence_pairs(self.corpus, self.max_seq_length, self.short_seq_prob, self.seed, epoch)
        self._order = np.random.default_rng([self.seed, epoch]).permutation(len(self._pairs.labels))

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self.num_examples:
            raise IndexError(index)
        epoch, position = divmod(index, self.epoch_length)
        if epoch != self._epoch:
            self._make_epoch(epoch)
        pair = self._order[position % len(self._order)]
        first_start, first_end, second_start, second_end = self._pairs.spans[pair]
        tokens = self.corpus.tokens
        input_ids = np.concatenate(
            [
                [self.cls_token_id],
                tokens[first_start:first_end],
                [self.sep_token_id],
                tokens[second_start:second_end],
                [self.sep_token_id],
            ]
        ).astype(np.int64)
        token_type_ids = np.zeros_like(input_ids)
        token_type_ids[first_end - first_start + 2 :] = 1
        return {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "next_sentence_label": int(self._pairs.labels[pair]),
            "mask_seed": (self.seed, epoch, position),
        }
