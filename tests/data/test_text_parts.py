"""A dataset is divided into parts."""

import os

import datasets
import pytest
from prepared import content

from snugbert.data.cache import prepare_in_cache
from snugbert.data.corpus import open_corpus
from snugbert.data.documents import read_dataset_documents
from snugbert.data.preparation import prepare_parts
from snugbert.data.text_arguments import TextArguments
from snugbert.data.text_lines import ReadingLog
from snugbert.data.text_parts import plan_parts
from snugbert.errors import InputError


def test_rows_of_a_dataset_are_documents_and_a_change_is_noticed(tmp_path, tokenizer):
    rows = [f"Row {number}. It has two sentences." for number in range(10)]
    data = tmp_path / "data"
    datasets.Dataset.from_dict({"body": rows}).to_parquet(data / "train.parquet")
    text = TextArguments(dataset_name=str(data), text_column_name="body")
    _, corpus = prepare_in_cache(text, tokenizer, "en", str(tmp_path / "cache"), show_progress=False)
    assert [tokenizer.decode(document[0]) for document in content(corpus)] == [
        f"row {number}." for number in range(10)
    ]
    for part in plan_parts(text, num_shards=3):
        prepare_parts(tmp_path / "shards", [part], tokenizer, show_progress=False)
    shards = content(open_corpus(tmp_path / "shards", tokenizer))
    assert sorted(shards) == sorted(content(corpus))
    assert open_corpus(tmp_path / "shards", tokenizer).num_documents == 10
    title = TextArguments(dataset_name=str(data), text_column_name="title")
    with pytest.raises(InputError, match="with a different text"):
        prepare_parts(tmp_path / "shards", plan_parts(title, num_shards=3), tokenizer, show_progress=False)
    datasets.Dataset.from_dict({"body": rows[:5]}).to_parquet(data / "train.parquet")
    os.utime(data / "train.parquet", (1, 1))
    _, changed = prepare_in_cache(text, tokenizer, "en", str(tmp_path / "cache"), show_progress=False)
    assert changed.num_documents == 5


@pytest.mark.parametrize("row", [b'{"text": "b\xffd"}', b'{"te'])
def test_bad_rows_of_a_dataset_are_one_error(tmp_path, row):
    """The datasets library cannot skip them."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.jsonl").write_bytes(b'{"text": "fine"}\n' + row + b"\n")
    text = TextArguments(dataset_name=str(tmp_path / "data"), on_bad_text="skip")
    with pytest.raises(
        InputError, match=r"dataset .*data, after row [01]: .* use --train_file with --on_bad_text skip\."
    ):
        list(read_dataset_documents(text, ReadingLog("skip")))
    (tmp_path / "data/train.jsonl").write_bytes(b'{"text": 5}\n{"text": 6}\n')
    log = ReadingLog("skip")
    assert list(read_dataset_documents(text, log)) == []
    assert (log.left_out, log.position) == (2, 2)
