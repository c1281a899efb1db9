"""Windows that lose no word."""

import numpy as np
import pytest
from conll import WAYS, joined

from snugbert.trainers.ner.data import NerSplit, Sentence, choose_labels
from snugbert.trainers.ner.windows import make_windows, most_frequent_tags, score


def test_a_sentence_with_room_is_what_the_tokenizer_makes_of_it(conll, part, tokenizer):
    labels = choose_labels(conll, [])
    features = make_windows(part, labels, tokenizer, 512).features
    for sentence, row in zip(part.sentences, features, strict=True):
        encoded = tokenizer(sentence.words, is_split_into_words=True)
        words = encoded.word_ids()
        expected = [
            -100 if word is None or word == before else labels.index(sentence.tags[word])
            for before, word in zip([None, *words], words, strict=False)
        ]
        assert row == {**encoded, "labels": expected}


@pytest.mark.parametrize("way", WAYS)
def test_every_word_counts_once(way, conll, part, tokenizer):
    change, limit, document_context = WAYS[way]
    split, labels = change(part), choose_labels(conll, [])
    words = [word for sentence in split.sentences for word in sentence.words]
    tags = [tag for sentence in split.sentences for tag in sentence.tags]
    pieces = {word: tokenizer(word, add_special_tokens=False)["input_ids"][: limit - 2] for word in set(words)}

    windows = make_windows(split, labels, tokenizer, limit, document_context)
    inputs, targets = windows.features["input_ids"][:], windows.features["labels"][:]
    assert max(map(len, inputs)) <= limit
    # In the order of the words, what is counted is each word's first piece, in the place that is said to be its own.
    counted = [(i, j) for i, row in enumerate(targets) for j, label in enumerate(row) if label != -100]
    assert counted == list(zip(windows.window, windows.position, strict=True))
    assert [labels[targets[i][j]] for i, j in counted] == tags
    assert [inputs[i][j] for i, j in counted] == [pieces[word][0] for word in words]

    every = make_windows(split, labels, tokenizer, limit, document_context, label_all_tokens=True)
    assert every.features["input_ids"][:] == inputs
    # All pieces of a word have its tag; B- stands only on the first.
    expected = [
        label
        for word, tag in zip(words, tags, strict=True)
        for label in [tag] + [tag.replace("B-", "I-")] * (len(pieces[word]) - 1)
    ]
    assert [labels[label] for row in every.features["labels"] for label in row if label != -100] == expected


def test_words_have_context_on_both_sides(conll, part, tokenizer):
    split, labels = joined(part), choose_labels(conll, [])
    windows = make_windows(split, labels, tokenizer, 128)
    pieces_of_windows = np.array([len(ids) - 2 for ids in windows.features["input_ids"]])
    assert (pieces_of_windows == 126).mean() > 0.5
    word = 0
    for sentence in split.sentences:
        words = slice(word, word := word + len(sentence.words))
        lengths = np.array([len(tokenizer.tokenize(word)) for word in sentence.words])
        quarter = 126 // 4 - lengths.max()  # windows have whole words
        at = np.cumsum(lengths) - lengths
        before = windows.position[words] - 1
        behind = pieces_of_windows[windows.window[words]] - before - lengths
        assert (before >= np.minimum(quarter, at)).all()
        assert (behind >= np.minimum(quarter, lengths.sum() - at - lengths)).all()


def test_words_without_pieces_keep_their_tags(tokenizer):
    words = ["Jo", "\u200b", "\u0001", "", "Li", "a-" * 40]
    split = NerSplit("s", [Sentence(words, ["B-PER", "I-PER", "B-LOC", "O", "B-PER", "O"], 1)], True)
    labels = ["O", "B-LOC", "B-PER", "I-PER"]
    features = make_windows(split, labels, tokenizer, 20).features
    assert tokenizer.convert_ids_to_tokens(features[0]["input_ids"][:6]) == ["[CLS]", "jo", *["[UNK]"] * 3, "li"]
    assert [labels[i] for row in features["labels"] for i in row if i != -100] == split.sentences[0].tags
    assert list(map(len, features["input_ids"])) == [7, 20]  # the end of a word that fills a window is lost


def test_most_frequent_tags():
    train = NerSplit("s", [Sentence(["a", "b", "a", "a"], ["B-X", "O", "O", "B-X"], 1)], True)
    test = NerSplit("s", [Sentence(["a", "c"], ["B-X", "B-X"], 1)], True)
    assert most_frequent_tags(train, test) == [["B-X", "O"]]
    assert score(test, [["B-X", "O"]])["f1"] == pytest.approx(2 / 3)
