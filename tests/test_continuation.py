"""Whether a command may continue: one record, one comparison, one message."""

import pytest

import snugbert
from snugbert.continuation import check_continuation, make_record
from snugbert.errors import InputError

SETTINGS = {"--learning_rate": 3e-5, "--seed": 1, "text": {"a.txt": "12", "b.txt": "34"}}


def check(record, **changed):
    check_continuation(record, "run", SETTINGS | changed, "--output_dir: out", "Choose another folder.")


def test_a_difference_is_shown_in_two_columns():
    check(make_record("run", SETTINGS))
    before = SETTINGS | {"--learning_rate": 5e-5, "text": {"a.txt": "12", "c.txt": "56"}}
    before |= {"--sweep": {"settings": {"weight_decay": [0, 1]}}}
    with pytest.raises(InputError) as error:
        check(make_record("run", before), **{"--sweep": {"settings": {"reinit_layers": [0, 1]}}})
    assert [line.split() for line in str(error.value).splitlines()] == [
        ["--output_dir:", "out", "has", "other", "settings."],
        ["before", "now"],
        ["--learning_rate", "5e-05", "3e-05"],
        ["text", "c.txt", '"56"', "-"],
        ["text", "b.txt", "-", '"34"'],
        ["--sweep", "settings", "weight_decay", "[0,", "1]", "-"],
        ["--sweep", "settings", "reinit_layers", "-", "[0,", "1]"],
        ["Choose", "another", "folder."],
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "99.0"}, "was written by SnugBERT 99.0. Upgrade SnugBERT."),
        ({"version": None}, "is damaged"),
        ({"settings": 3}, "is damaged"),
        ({"kind": "sweep"}, "contains sweep, not run"),
    ],
)
def test_other_records_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        check(make_record("run", SETTINGS) | change)
    assert snugbert.__version__ == make_record("run", {})["version"]
