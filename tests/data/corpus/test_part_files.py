"""The index of a part: its counts, and what happens when it is damaged."""

import numpy as np
import pytest
from prepared import content, prepare
from safetensors.numpy import load, save

from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.part_files import count_block, join_counts, make_index, parse_index
from snugbert.errors import InputError


def test_an_index_counts_what_the_blocks_contain(data_dir, tmp_path, tokenizer, small_blocks):
    corpus = prepare(tmp_path, tokenizer, data_dir / "wikitext2/valid.docs.txt.gz", num_workers=1)
    documents, counts = content(corpus), corpus.counts
    sentences = [sentence for document in documents for sentence in document]
    assert len(counts.tokens) == len(corpus.blocks) > 5
    assert [corpus.num_documents, corpus.num_sentences] == [len(documents), len(sentences)]
    assert counts.sentence_lengths.tolist() == np.bincount([*map(len, sentences)]).tolist()
    assert counts.token_ids.tolist() == np.bincount(np.concatenate(sentences)).tolist()
    for name, values in vars(join_counts([*map(count_block, corpus.blocks)])).items():
        np.testing.assert_array_equal(getattr(counts, name), values)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokens", lambda tokens: tokens[:-1]),  # a block less
        ("tokens", lambda tokens: tokens * 0),
        ("offsets", lambda offsets: offsets[::-1].copy()),
        ("lengths", lambda lengths: lengths - 100),
        ("offsets", None),
    ],
)
def test_an_inconsistent_index_is_a_clear_error(small, words_tokenizer, name, change):
    index = small.file.with_suffix(".index")
    data = index.read_bytes()
    arrays = load(data)
    values = arrays.pop(name)
    index.write_bytes(save(arrays | ({name: change(values)} if change else {})))
    with pytest.raises(InputError, match=r"part-00000-of-00001\.index is damaged .* Remove this file and prepare"):
        open_corpus(small.folder, words_tokenizer)
    assert parse_index(data, "x").file_size == small.file.stat().st_size == make_index(small.file).file_size
