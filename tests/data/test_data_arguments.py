"""The arguments that select a text, and say where to write the corpus."""

import pytest

from snugbert.data.data_arguments import OutputArguments, TextArguments
from snugbert.errors import InputError


def test_a_shard_is_read():
    arguments = OutputArguments(shard="2/16")
    assert (arguments.shard_number, arguments.num_shards) == (2, 16)


@pytest.mark.parametrize("shard", ["0/4", "5/4", "4", "1/2/3", "-1/4", "a/b"])
def test_a_wrong_shard_is_refused(shard):
    with pytest.raises(InputError, match=f"--shard '{shard}' must be i/n with i from 1 to n, such as 1/4"):
        OutputArguments(shard=shard)


def test_files_and_a_dataset_cannot_be_combined():
    with pytest.raises(InputError, match=r"--train_file and --dataset_name cannot be combined\. Remove one"):
        TextArguments(train_file=["text.txt"], dataset_name="wikitext")
    assert TextArguments().dataset_split == "train"
