"""The arguments of `snugbert prepare`."""

import pytest

from snugbert.data.corpus_arguments import OutputArguments
from snugbert.errors import InputError


def test_a_shard_is_read():
    arguments = OutputArguments(shard="2/16")
    assert (arguments.shard_number, arguments.num_shards) == (2, 16)


@pytest.mark.parametrize("shard", ["0/4", "5/4", "4", "1/2/3", "-1/4", "a/b"])
def test_a_wrong_shard_is_refused(shard):
    with pytest.raises(InputError, match=f"--shard '{shard}' must be i/n with i from 1 to n, such as 1/4"):
        OutputArguments(shard=shard)
