"""The arguments that select a text."""

import pytest

from snugbert.data.text_arguments import TextArguments
from snugbert.errors import InputError


def test_files_and_a_dataset_exclude_each_other():
    with pytest.raises(InputError, match=r"--train_file and --dataset_name exclude each other\. Give one of them\."):
        TextArguments(train_file=["text.txt"], dataset_name="wikitext")
    assert TextArguments().dataset_split == "train"
