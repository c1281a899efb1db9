"""Documents are split into the same tokens as the tokenizer gives for whole sentences."""

import pickle
from itertools import chain, islice, pairwise

import numpy as np
import pytest
from family_checkpoints import write_tokenizer
from prepared import content, prepare

import snugbert
from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.documents import read_documents, read_lines, split_sentences
from snugbert.data.tokenizing import DocumentTokenizer, hash_tokenizer
from snugbert.families.loading import load_tokenizer


@pytest.mark.parametrize("cased", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tokens_equal_the_tokenizers_in_any_number_of_processes(data_dir, tmp_path, small_blocks, cased):
    """Compared with the tokenizer on whole sentences. One and two processes write the same bytes."""
    vocabulary = data_dir / f"vocab/bert-base-{'cased' if cased else 'uncased'}-vocab.txt"
    tokenizer = snugbert.SnugBertTokenizer(vocab=str(vocabulary), do_lower_case=not cased)
    documents = islice(read_documents([data_dir / "wiki_en/validation.txt.gz"]), 6)
    (tmp_path / "text.txt").write_text("\n\n".join(map("\n".join, documents)), encoding="utf-8")
    corpus = prepare(tmp_path / "2", tokenizer, tmp_path / "text.txt", num_workers=2)
    sentences = [split_sentences(document, "en") for document in read_documents([tmp_path / "text.txt"])]
    expected = [tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"] for document in sentences]
    assert content(corpus) == expected
    assert len(corpus.blocks) > 1
    assert (corpus.num_documents, corpus.num_sentences) == (6, sum(map(len, expected)))
    again = prepare(tmp_path / "1", tokenizer, tmp_path / "text.txt", num_workers=1)
    assert again.digest == corpus.digest
    (name,) = (file.name for file in (tmp_path / "1").glob("*.arrow"))
    assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_a_tokenizer_that_looks_across_spaces_gets_whole_sentences(tmp_path, tokenizer):
    """With a token that contains a space, the tokens of a word depend on its neighbor."""
    tokenizer = snugbert.SnugBertTokenizer(tokenizer.get_vocab())
    tokenizer.add_tokens(["new york"])
    (tmp_path / "text.txt").write_text("from new york to new jersey\n")
    expected = tokenizer("from new york to new jersey", add_special_tokens=False)["input_ids"]
    assert len(expected) == 5
    assert content(prepare(tmp_path / "corpus", tokenizer, tmp_path / "text.txt")) == [[expected]]


def test_sentences_of_roberta_have_the_tokens_of_their_line(data_dir, tmp_path):
    """The tokens of a sentence depend on the space before it."""
    lines = [" ".join(line.split()) for line in islice(read_lines([data_dir / "wiki_en/validation.txt.gz"]), 100)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    write_tokenizer(tmp_path / "tokenizer", "roberta")
    (tmp_path / "tokenizer/config.json").write_text('{"model_type": "roberta"}')
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=str(tmp_path / "tokenizer")))
    documents = content(prepare(tmp_path / "corpus", tokenizer, tmp_path / "text.txt", store_words=True))
    encoded = tokenizer(lines, add_special_tokens=False, verbose=False)
    assert [list(chain.from_iterable(sentences)) for sentences in documents] == encoded["input_ids"]
    assert sum(map(len, documents)) > 3 * len(lines)
    # Words are transformers' `word_ids`. A sentence begins a word.
    (block,) = open_corpus(tmp_path / "corpus", tokenizer).blocks
    words = [(line, word) for line in range(len(lines)) for word in encoded.word_ids(line)]
    continues = np.array([False, *(word == before for before, word in pairwise(words))])
    continues[block.sentences[:-1]] = False
    assert 0.2 < continues.mean() < 0.9
    np.testing.assert_array_equal(block.read_continuations(0, len(block.tokens)), continues)
    for start, length in ((0, 1), (3, 21), (9, 7), (len(continues) - 5, 5)):
        np.testing.assert_array_equal(block.read_continuations(start, length), continues[start : start + length])


def test_padding_and_truncation_do_not_matter_but_tokens_and_case_do(words_tokenizer):
    vocabulary = words_tokenizer.get_vocab()
    digest = hash_tokenizer(snugbert.SnugBertTokenizer(vocabulary))
    padding = snugbert.SnugBertTokenizer(vocabulary)
    padding("w1", padding="max_length", truncation=True, max_length=8)
    assert padding.backend_tokenizer.padding is not None
    assert hash_tokenizer(padding) == digest
    others = [
        snugbert.SnugBertTokenizer(vocabulary | {"new": len(vocabulary)}),
        snugbert.SnugBertTokenizer(vocabulary, do_lower_case=False),
    ]
    assert digest not in [hash_tokenizer(other) for other in others]


def test_a_pickled_tokenizer_splits_text_alike(words_tokenizer):
    """On macOS and Windows, processes get their arguments pickled."""
    worker = DocumentTokenizer(words_tokenizer, None)
    again = pickle.loads(pickle.dumps(worker))
    for batch in ([(0, ["w1 [MASK] w2", "w3"])], [(1, ["w2"])]):
        np.testing.assert_equal(vars(again(batch)), vars(worker(batch)))
