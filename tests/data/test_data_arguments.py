"""The arguments that select a text, and say where to write the corpus."""

from dataclasses import fields

import pytest
from transformers import TrainingArguments

from snugbert.cli.main import _import
from snugbert.data.data_arguments import OutputArguments
from snugbert.errors import InputError
from snugbert_cli import COMMANDS

CLASSES = sorted({_import(name) for command in COMMANDS.values() for name in command.arguments}, key=str)
OWN = [each for each in CLASSES if not issubclass(each, TrainingArguments)]
LISTS = [(each, field.name) for each in OWN for field in fields(each) if "list[str]" in str(field.type)]


@pytest.mark.parametrize(("arguments", "name"), LISTS)
def test_an_argument_that_takes_a_list_takes_one_path(arguments, name, tmp_path):
    file = tmp_path / "text.json"
    file.touch()
    names = {field.name for field in fields(arguments)}
    needed = {"output_dir": "out", "train_file": [file], "validation_file": [file]}
    needed = {each: value for each, value in needed.items() if each in names}
    for given in (file, str(file), [file], (str(file),)):
        assert getattr(arguments(**needed | {name: given}), name) == [str(file)]


def test_a_shard_is_one_of_several():
    arguments = OutputArguments(shard="2/16")
    assert (arguments.shard_number, arguments.num_shards) == (2, 16)
    for shard in ("0/4", "5/4", "4", "1/2/3", "a/b"):
        with pytest.raises(InputError, match=f"--shard '{shard}' must be i/n with i from 1 to n, such as 1/4"):
            OutputArguments(shard=shard)
