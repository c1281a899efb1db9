"""The ranges of numeric arguments, shards, and arguments that take a list."""

import math
from dataclasses import fields

import pytest
from transformers import TrainingArguments

from snugbert.cli.arguments import TRAINING_RANGES, check_ranges
from snugbert.cli.main import _import
from snugbert.data.data_arguments import OutputArguments
from snugbert.data.sources import ExampleArguments
from snugbert.errors import InputError
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments
from snugbert_cli import COMMANDS

CLASSES = sorted({_import(name) for command in COMMANDS.values() for name in command.arguments}, key=str)


@pytest.mark.parametrize(
    ("arguments", "name", "value", "message"),
    [
        (FineTuningArguments, "gradient_accumulation_steps", 0, "0 must be at least 1"),
        (PretrainingArguments, "max_grad_norm", -1, "-1 must be at least 0"),
        (FineTuningArguments, "label_smoothing_factor", 1, "1 must be at least 0 and below 1"),
        (PretrainingArguments, "learning_rate", math.inf, "inf must be a finite number"),
        (PretrainingArguments, "adam_epsilon", math.nan, "nan must be a finite number"),
        (PretrainingArguments, "seed", 2**32, "4294967296 must be at least 0 and at most 4294967295"),
        (PretrainingDataArguments, "validation_split_percentage", 100, "100 must be at least 1 and at most 99"),
    ],
)
def test_numbers_out_of_range(arguments, name, value, message, tmp_path):
    needed = {"output_dir": str(tmp_path), "use_cpu": True}
    needed = {"train_file": ["text.txt"]} if arguments is PretrainingDataArguments else needed
    with pytest.raises(InputError, match=f"^--{name} {message}\\.$"):
        arguments(**needed, **{name: value})


def test_every_numeric_argument_has_a_range():
    """A new argument of SnugBERT needs one, unless it is checked elsewhere or every number is valid."""
    numbers = (int, float, int | None, float | None)
    numeric = [field for dtype in CLASSES for field in fields(dtype) if field.type in numbers]
    stock = {field.name for field in fields(TrainingArguments)}
    unchecked = {field.name for field in numeric if not field.metadata.get("range")} - stock
    elsewhere = {"max_position_embeddings", "max_seq_length", "null_score_diff_threshold"}
    elsewhere |= {"num_student_layers", "port"}
    assert unchecked == elsewhere and TRAINING_RANGES.keys() <= stock


def test_values_with_a_meaning_of_their_own_are_allowed(tmp_path):
    """The number of steps overrides the epochs, and an infinite norm never clips. Defaults are allowed."""
    args = FineTuningArguments(str(tmp_path), use_cpu=True, num_train_epochs=0, max_steps=1, max_grad_norm=math.inf)
    assert args.num_train_epochs == 0
    check_ranges(PretrainingArguments(str(tmp_path), use_cpu=True, max_steps=-1))
    check_ranges(ExampleArguments(max_eval_samples=None))


def test_a_shard_is_one_of_several():
    for shard in ("0/4", "5/4", "4", "1/2/3", "a/b"):
        with pytest.raises(InputError, match=f"--shard '{shard}' must be i/n with i from 1 to n, such as 1/4"):
            OutputArguments(shard=shard)


def test_an_argument_that_takes_a_list_takes_one_path(tmp_path):
    file = tmp_path / "text.json"
    file.touch()
    for arguments in CLASSES:
        needed = {"output_dir": "out", "train_file": [file], "validation_file": [file]}
        needed = {each.name: needed[each.name] for each in fields(arguments) if each.name in needed}
        for name in [each.name for each in fields(arguments) if "list[str]" in str(each.type)]:
            if not issubclass(arguments, TrainingArguments):
                for given in (file, str(file), [file], (str(file),)):
                    assert getattr(arguments(**needed | {name: given}), name) == [str(file)]
