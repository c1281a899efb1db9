"""The splits of a task are chosen from files or a dataset, and named in cards."""

from pathlib import Path

import pytest

from snugbert.data.sources import ExampleArguments, choose_splits, describe_source, name_dataset
from snugbert.errors import InputError

SPLITS = ("train", "validation", "test")


@pytest.mark.parametrize(
    ("wanted", "available", "from_files", "expected"),
    [
        (None, SPLITS, True, SPLITS),
        (None, SPLITS, False, SPLITS[:2]),
        (None, ("test",), True, ("test",)),
        (None, ("validation", "diagnostic"), False, ("validation",)),
        (("test",), ("train", "test"), False, ("test",)),
        (("validation",), ("train", "test"), False, r"no validation questions\. Pass --validation_file"),
        (None, ("test",), False, r"no data to train or evaluate on\. Pass --train_file"),
    ],
)
def test_splits(wanted, available, from_files, expected):
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            choose_splits(wanted, available, from_files, "questions")
    else:
        assert choose_splits(wanted, available, from_files, "questions") == expected


def test_data_have_short_names(tmp_path):
    (tmp_path / "reviews").mkdir()
    assert name_dataset("stanfordnlp/imdb") == ("stanfordnlp/imdb",) * 2 and name_dataset(None)[0] is None
    folders = (str(tmp_path / "reviews"), "/moved/reviews", "./reviews")
    assert all(name_dataset(folder) == (None, "reviews") for folder in folders)
    file = describe_source(Path("data/reviews.csv.gz"), None, "train", 3)
    assert file == ("reviews.csv.gz", "train", 3, None, None)
    assert describe_source(Path("data/reviews/train.jsonl"), None, "train", 3).name == "reviews/train.jsonl"
    dataset = describe_source("google/xquad", "xquad.en", "validation", 3)
    assert dataset == ("google/xquad (xquad.en)", "validation", 3, "google/xquad", "xquad.en")
    assert describe_source(str(tmp_path / "reviews"), None, "test", 3) == ("reviews", "test", 3, None, None)


def test_sources_are_files_or_a_dataset():
    with pytest.raises(InputError, match="--dataset_name cannot be combined with files"):
        ExampleArguments(train_file="a.csv", dataset_name="conll2003")
