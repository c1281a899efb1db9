"""The data arguments of `snugbert glue`."""

import pytest

from snugbert.cli.parser import parse_arguments
from snugbert.tasks.classification_arguments import GlueDataArguments


@pytest.mark.parametrize(
    ("flags", "value"), [([], None), (["--do_regression"], True), (["--do_regression", "no"], False)]
)
def test_do_regression_is_true_false_or_inferred(flags, value):
    argv = [*flags, "--dataset_name", "imdb"]
    assert parse_arguments((GlueDataArguments,), argv, "snugbert glue", "")[0].do_regression is value
