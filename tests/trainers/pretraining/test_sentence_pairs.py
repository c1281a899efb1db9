"""Where text may be cut, and the recipes: next sentences, sentence order, full sentences."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from family_checkpoints import make_unigram
from scipy.sparse import csr_matrix
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from synthetic import make_corpus
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

import snugbert
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import Block
from snugbert.trainers.pretraining.sentence_pairs import (
    CLAUSE,
    CONTINUATION,
    OPENING,
    SENTENCE,
    WORD,
    classify_tokens,
    cut_pairs,
    exchange_second_segments,
    full_sentences,
    rank_places,
    split_long_sentences,
    swap_segments,
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


@pytest.fixture(scope="module")
def table_of(tokenizer):
    kinds = classify_tokens(tokenizer)

    def make(corpus, objective, max_seq_length=128, short_seq_prob=0.1, seed=0) -> np.ndarray:
        """The examples of an epoch."""
        tables = []
        for number, block in enumerate(corpus.blocks):
            if objective == "mlm":
                tables.append(full_sentences(block, number, kinds, max_seq_length))
            else:
                rng = Random(f"{seed} {number}")
                tables.append(cut_pairs(block, number, kinds, max_seq_length, short_seq_prob, rng, objective))
        table = np.concatenate(tables)
        if objective == "nsp":
            exchange_second_segments(table, corpus, max_seq_length, Random(seed))
        elif objective == "sop":
            swap_segments(table, Random(seed))
        return table

    return make


def numbers(table, name) -> np.ndarray:
    return table[name].astype(np.int64)


def document_of(corpus, blocks, positions) -> np.ndarray:
    """Index of the document of each token, for tokens of several blocks."""
    result = np.empty(len(positions), dtype=np.int64)
    for number, block in enumerate(corpus.blocks):
        here = blocks == number
        starts = block.sentences[block.documents]
        result[here] = np.searchsorted(starts, positions[here], side="right") - 1 + corpus.document_starts[number]
    return result


def showings(corpus, *tables) -> np.ndarray:
    """How often each token of the corpus is shown."""
    counts = []
    for number, block in enumerate(corpus.blocks):
        changes = np.zeros(len(block.tokens) + 1, dtype=np.int64)
        for table in tables:
            for prefix in ("", "second_"):
                here = table[table[f"{prefix}block"] == number]
                start, length = numbers(here, f"{prefix}start"), numbers(here, f"{prefix}length")
                np.add.at(changes, start, 1)
                np.add.at(changes, start + length, -1)
        counts.append(changes.cumsum()[:-1])
    return np.concatenate(counts)


@pytest.mark.slow
@pytest.mark.parametrize("max_seq_length", [128, 5])
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_pairs_follow_the_recipe(corpus, table_of, objective, max_seq_length):
    table = table_of(corpus, objective, max_seq_length, short_seq_prob=0.0)
    first, second, label = (numbers(table, name) for name in ("length", "second_length", "label"))
    start, second_start = numbers(table, "start"), numbers(table, "second_start")
    document = document_of(corpus, table["block"], start)
    second_document = document_of(corpus, table["second_block"], second_start)
    assert first.min() >= 1 and second.min() >= 1
    assert (first + second).max() == max_seq_length - 3
    assert (document == document_of(corpus, table["block"], start + first - 1)).all()
    assert (second_document == document_of(corpus, table["second_block"], second_start + second - 1)).all()
    assert abs(label.sum() - len(label) / 2) <= 0.5
    if objective == "nsp":
        is_next = label == 0
        assert (document == second_document)[is_next].all() and (document != second_document)[~is_next].all()
        assert (second_start == start + first)[is_next].all()
    else:
        assert (document == second_document).all()
        assert (np.where(label == 0, second_start - start - first, start - second_start - second) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("max_seq_length", "fill", "spread"), [(32, 0.96, 0.1), (512, 0.94, 0.25)])
@pytest.mark.parametrize("objective", ["nsp", "sop", "mlm"])
def test_every_token_is_shown_and_pairs_are_full(books, corpus, table_of, objective, max_seq_length, fill, spread):
    for text in (books, corpus):
        table = table_of(text, objective, max_seq_length)
        counts = showings(text, table)
        assert counts.std() < spread * counts.mean()
        if objective != "nsp":
            assert counts.min() == 1
            continue
        # A random segment may be cut to the length of the segment that it replaces.
        assert (counts > 0).mean() > 0.98
        others = [table_of(text, objective, max_seq_length, seed=seed) for seed in (1, 2, 3)]
        assert (showings(text, table, *others) > 0).mean() > 0.9999
        lengths = numbers(table, "length") + numbers(table, "second_length") + 3
        assert lengths.mean() > fill * max_seq_length


@pytest.mark.slow
def test_the_segments_do_not_reveal_the_label(books, table_of):
    """By their lengths, documents, words or ends. Documents have three sentences.

    The original recipe draws random documents, so a classifier gains 5.9 and 13 points.
    """
    blocks = [Block(block.tokens, block.sentences, np.arange(0, len(block.sentences), 3)) for block in books.blocks]
    for block in blocks:
        block.documents[-1] = len(block.sentences) - 1
    text = Corpus(blocks, "three sentences")
    table = np.concatenate([table_of(text, "nsp", seed=seed) for seed in range(2)])
    first, second = numbers(table, "length"), numbers(table, "second_length")
    assert gain(np.stack([first, second, first + second], axis=1), table["label"]) < 0.01
    sizes = np.concatenate([np.diff(block.sentences[block.documents]) for block in text.blocks])
    document = document_of(text, table["second_block"], numbers(table, "second_start"))
    assert gain(sizes[document][:, None], table["label"]) < 0.01
    spans = table[["second_block", "second_start", "second_length"]].tolist()
    tokens = [text.blocks[number].tokens[start : start + length] for number, start, length in spans]
    ends = np.cumsum([0, *map(len, tokens)])
    words = csr_matrix((np.ones(ends[-1]), np.concatenate(tokens), ends), shape=(len(table), 2**15))
    assert gain(words, table["label"], SGDClassifier("log_loss", alpha=1e-4, random_state=0)) < 0.01
    for corpus, pairs in ((text, table), (books, table_of(books, "sop", 64))):
        spans = pairs[["second_block", "second_start", "second_length"]].tolist()
        whole = [start + length in corpus.blocks[number].sentences for number, start, length in spans]
        shares = [np.mean(whole, where=pairs["label"] == label) for label in (0, 1)]
        assert abs(shares[0] - shares[1]) < 0.03


def gain(features, labels, classifier=None) -> float:
    """Accuracy of a classifier above the accuracy of always predicting the more frequent label."""
    classifier = classifier or HistGradientBoostingClassifier(max_iter=40, early_stopping=False)
    return cross_val_score(classifier, features, labels, cv=3).mean() - max(labels.mean(), 1 - labels.mean())


@pytest.mark.slow
def test_short_documents(table_of):
    sentence = [1000, 1001, 1002, 1003]
    for objective in ("nsp", "sop"):
        halves = table_of(make_corpus([[[sentence]] * 20]), objective)  # a single sentence is split
        assert len(halves) == 20 and (halves["length"] == 2).all() and (halves["second_length"] == 2).all()
        assert len(table_of(make_corpus([[[[7]], [sentence]]]), objective)) == 1  # a single token cannot be split
    # One document has almost all of the text. Its random pairs repeat the text of the others, so some of it is not
    # shown: at most the second segments of half of the pairs.
    corpus = make_corpus([[[sentence] * 500, [sentence] * 2]])
    table = table_of(corpus, "nsp", 16)
    assert table["label"].mean() == pytest.approx(0.5, abs=0.01)
    documents = document_of(corpus, table["second_block"], numbers(table, "second_start"))
    assert (documents[1:] != document_of(corpus, table["block"], numbers(table, "start"))[1:])[
        table["label"][1:] == 1
    ].all()
    assert (showings(corpus, table) > 0).mean() > 0.7
    assert (table_of(make_corpus([[[sentence] * 500]]), "nsp", 16)["label"] == 0).all()  # there is no other document
