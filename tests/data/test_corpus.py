"""A prepared corpus opens in other processes and libraries."""

import pickle

import datasets
import pytest
from prepared import content, prepare

from snugbert.data.corpus import open_corpus
from snugbert.errors import InputError


def test_datasets_opens_the_parts(data_dir, tmp_path, tokenizer):
    corpus = prepare(tmp_path, tokenizer, data_dir / "wikitext2/valid.docs.txt.gz")
    rows = datasets.Dataset.from_file(str(tmp_path / "part-00000-of-00001.arrow"))
    assert rows["sentences"][:] == content(corpus)


def test_a_data_worker_does_not_validate_again(small, words_tokenizer):
    """A token id that was patched after opening is visible in the worker, and refused by the next `open_corpus`."""
    corpus = open_corpus(small.folder, words_tokenizer)
    last_token = corpus.blocks[-1].tokens[-1:].tobytes()
    at = small.bytes.rindex(last_token, 0, -8)
    with small.file.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\xff")
    assert pickle.loads(pickle.dumps(corpus)).blocks[-1].tokens[-1] == 2**16 - 1
    with pytest.raises(InputError, match="id 65535 is outside the vocabulary of 98"):
        open_corpus(small.folder, words_tokenizer)
