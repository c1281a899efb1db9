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


CHANGES = {
    "a block less": lambda arrays: arrays | {"tokens": arrays["tokens"][:-1]},
    "an offset back": lambda arrays: arrays | {"offsets": arrays["offsets"][::-1].copy()},
    "no tokens": lambda arrays: arrays | {"tokens": arrays["tokens"] * 0},
    "a negative length": lambda arrays: arrays | {"lengths": arrays["lengths"] - 100},
    "no offsets": lambda arrays: {name: array for name, array in arrays.items() if name != "offsets"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_inconsistent_index_is_a_clear_error(small, words_tokenizer, change):
    index = small.file.with_suffix(".index")
    data = index.read_bytes()
    index.write_bytes(save(change(load(data))))
    with pytest.raises(InputError, match=r"part-00000-of-00001\.index is damaged .* Remove this file and prepare"):
        open_corpus(small.folder, words_tokenizer)
    assert parse_index(data, "x").file_size == small.file.stat().st_size == make_index(small.file).file_size
