"""Arguments of `snugbert glue`."""

import pytest

from snugbert.command_line import parse_arguments
from snugbert.trainers.glue.arguments import GlueDataArguments


@pytest.mark.parametrize(
    ("flags", "value"), [([], None), (["--do_regression"], True), (["--do_regression", "no"], False)]
)
def test_regression_is_told_or_inferred(flags, value):
    assert parse_arguments((GlueDataArguments,), flags, "snugbert glue", "")[0].do_regression is value
