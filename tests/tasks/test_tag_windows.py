"""Windows of sentences: every word is labeled once, with context on both sides."""

import json

import numpy as np
import pytest
from conll import WAYS, join_documents, make_tagging
from family_checkpoints import write_tokenizer
from transformers import AutoTokenizer

from snugbert.data.conll import Sentence
from snugbert.families_snugbert import FAMILY_TYPES
from snugbert.tasks.tag_windows import make_tag_windows, put_space_before_words
from snugbert.tasks.tagged_sentences import TagSplit


@pytest.mark.parametrize("family", FAMILY_TYPES)
def test_words_of_every_family_are_encoded_as_in_the_stock_script(family, labels, part, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    write_tokenizer(tmp_path, family)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    put_space_before_words(tokenizer)
    options = {"add_prefix_space": True} if family == "roberta" else {}  # as in run_ner.py
    stock = AutoTokenizer.from_pretrained(tmp_path, **options)
    inputs = make_tagging(labels, tokenizer, 512).encode(part).inputs
    for sentence, row in zip(part.sentences, inputs, strict=True):
        encoded = stock(sentence.words, is_split_into_words=True)
        words = encoded.word_ids()
        expected = [
            -100 if word is None or word == before else labels.index(sentence.tags[word])
            for before, word in zip([None, *words], words, strict=False)
        ]
        assert row == {**encoded, "labels": expected}
    tokenizer.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved/config.json").write_text(json.dumps({"model_type": "snugbert"}))
    saved, text = AutoTokenizer.from_pretrained(tmp_path / "saved"), "Who said it?"
    options = {"return_offsets_mapping": True}
    assert saved(text, **options) == tokenizer(text, **options) == stock(text, **options)


@pytest.mark.parametrize("way", WAYS)
def test_every_word_is_labeled_once(way, labels, part, tokenizer):
    change, limit, document_context = WAYS[way]
    split = change(part)
    words = [word for sentence in split.sentences for word in sentence.words]
    tags = [tag for sentence in split.sentences for tag in sentence.tags]
    tokens = {word: tokenizer(word, add_special_tokens=False)["input_ids"][: limit - 2] for word in set(words)}

    tagging = make_tagging(labels, tokenizer, limit, document_context=document_context)
    windows = tagging.encode(split)
    inputs, targets = windows.inputs["input_ids"][:], windows.inputs["labels"][:]
    assert max(map(len, inputs)) <= limit
    # In the order of the words, the first sub-token of each word is labeled, at its position in `windows`.
    labeled = [(i, j) for i, row in enumerate(targets) for j, label in enumerate(row) if label != -100]
    assert labeled == list(zip(windows.window_indices, windows.token_indices, strict=True))
    assert [labels[targets[i][j]] for i, j in labeled] == tags
    assert [inputs[i][j] for i, j in labeled] == [tokens[word][0] for word in words]

    tagging.args.label_all_tokens = True
    every = tagging.encode(split).inputs
    assert every["input_ids"][:] == inputs
    # All sub-tokens of a word have its tag, with B- only on the first.
    expected = [
        label
        for word, tag in zip(words, tags, strict=True)
        for label in [tag] + [tag.replace("B-", "I-")] * (len(tokens[word]) - 1)
    ]
    assert [labels[label] for row in every["labels"] for label in row if label != -100] == expected


def test_words_have_context_on_both_sides(part, tokenizer):
    split = join_documents(part)
    windows = make_tag_windows(split.sentences, tokenizer, 128)
    window_lengths = np.array([len(ids) - 2 for ids in windows.inputs["input_ids"]])
    assert (window_lengths == 126).mean() > 0.5
    word = 0
    for sentence in split.sentences:
        words = slice(word, word := word + len(sentence.words))
        lengths = np.array([len(tokenizer.tokenize(word)) for word in sentence.words])
        quarter = 126 // 4 - lengths.max()  # windows contain whole words
        at = np.cumsum(lengths) - lengths
        before = windows.token_indices[words] - 1
        after = window_lengths[windows.window_indices[words]] - before - lengths
        assert (before >= np.minimum(quarter, at)).all()
        assert (after >= np.minimum(quarter, lengths.sum() - at - lengths)).all()


def test_words_without_tokens_keep_their_tags(tokenizer):
    words = ["Jo", "\u200b", "\u0001", "", "Li", "a-" * 40]
    sentence = Sentence(words, ["B-PER", "I-PER", "B-LOC", "O", "B-PER", "O"], 1)
    labels = ["O", "B-LOC", "B-PER", "I-PER"]
    inputs = make_tagging(labels, tokenizer, 20).encode(TagSplit("train", "s", [sentence])).inputs
    assert tokenizer.convert_ids_to_tokens(inputs[0]["input_ids"][:6]) == ["[CLS]", "jo", *["[UNK]"] * 3, "li"]
    assert [labels[i] for row in inputs["labels"] for i in row if i != -100] == sentence.tags
    assert list(map(len, inputs["input_ids"])) == [7, 20]  # a word longer than a window is truncated
