"""The splits of a task are chosen from files or a dataset, and named in cards."""

from pathlib import Path

import pytest

from snugbert.data.sources import ExampleArguments, choose_splits, describe_source, name_dataset
from snugbert.errors import InputError


@pytest.mark.parametrize(
    ("available", "from_files", "expected"),
    [
        (("train", "validation", "test"), True, ("train", "validation", "test")),
        (("train", "validation", "test"), False, ("train", "validation")),
        (("test",), True, ("test",)),
        (("validation", "diagnostic"), False, ("validation",)),
    ],
)
def test_splits_are_chosen_by_default(available, from_files, expected):
    assert choose_splits(None, available, from_files, "examples") == expected


def test_requested_splits_must_exist():
    assert choose_splits(("test",), ("train", "test"), False, "examples") == ("test",)
    with pytest.raises(InputError, match=r"no validation questions\. Pass --validation_file"):
        choose_splits(("validation",), ("train", "test"), False, "questions")
    with pytest.raises(InputError, match=r"no data to train or evaluate on\. Pass --train_file"):
        choose_splits(None, ("test",), False, "examples")


def test_sources_are_files_or_a_dataset():
    assert ExampleArguments(train_file="a.csv").files == {"train": [Path("a.csv")]}
    assert ExampleArguments(dataset_name="conll2003").files == {}
    with pytest.raises(InputError, match="--dataset_name cannot be combined with files"):
        ExampleArguments(train_file="a.csv", dataset_name="conll2003")


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
