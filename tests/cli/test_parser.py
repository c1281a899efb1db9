"""Arguments from the command line and from YAML, their ranges, and the help of every command."""

import json
import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest
from transformers import TrainingArguments

from snugbert.cli.arguments import TRAINING_RANGES, check_ranges
from snugbert.cli.main import _import
from snugbert.cli.model_arguments import ConversionArguments, HubArguments, TokenizerArguments
from snugbert.cli.parser import parse_arguments
from snugbert.data.data_arguments import OutputArguments
from snugbert.data.sources import ExampleArguments
from snugbert.errors import InputError
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments
from snugbert_cli import COMMANDS, main


@dataclass
class Arguments:
    """Two kinds of fields that TrainingArguments also has."""

    optim_args: str | None = None
    train_files: list[str] = field(default_factory=list)


def parse(text: str | bytes, file: Path) -> Arguments:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return parse_arguments((Arguments,), ["--config", str(file)], "snugbert test", "A test.")[0]


def test_yaml_values_stay_text_and_dictionaries_become_json(tmp_path):
    text = "train_files: [no, 1e-3, null]\noptim_args: {yes: 1, rate: 1.0e-3, name: no}\n"
    arguments = parse(text, tmp_path / "run.yaml")
    assert arguments.train_files == ["no", "1e-3", "null"]
    # In YAML 1.1, `yes` and `no` are booleans.
    assert json.loads(arguments.optim_args) == {"true": 1, "rate": 0.001, "name": False}
    assert parse("", tmp_path / "empty.yaml") == parse("# nothing\n", tmp_path / "empty.yaml") == Arguments()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train_files: [x, --trust_remote_code]", "a value of train_files begins with --"),
        ("yes: {a: 1}", "run.yaml: unknown argument --yes"),
        ("trian-files: b", r"run.yaml: unknown argument --trian-files\. Did you mean --train_files\?"),
        ("optim_args: {a", "run.yaml: while parsing a flow mapping"),
        ("train_files: [{a: b}]", "run.yaml: a value of train_files is neither text nor a number"),
        ("optim_args: {a: " + "9" * 5000 + "}", "run.yaml: Exceeds the limit"),
        ("- a", "run.yaml must contain only `name: value` lines"),
        (b"train_files: \xff", "^--config: .*run.yaml: .*'utf-8' codec can't decode"),
    ],
)
def test_unsupported_yaml_is_refused(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        parse(text, tmp_path / "run.yaml")


def test_a_file_that_trusts_remote_code_gives_a_warning(tmp_path, caplog):
    file = tmp_path / "run.yaml"
    for line, warns in (("trust_remote_code: no", False), ("trust-remote-code: True", True)):
        file.write_text(f"{line}\ntokenizer_name: x\n")
        (arguments,) = parse_arguments((TokenizerArguments,), ["--config", str(file)], "snugbert test", "A test.")
        assert arguments.trust_remote_code == warns
        assert ("run.yaml sets trust_remote_code: code from the Hub will run" in caplog.text) == warns


def test_a_url_where_only_a_local_folder_works_is_refused():
    argv = ["in", "out", "--to", "bert", "--cache_dir", "s3://key:secret@bucket/cache"]
    message = r"^--cache_dir: s3://bucket/cache is a URL\. Use a local folder\.$"
    with pytest.raises(InputError, match=message):
        parse_arguments((ConversionArguments, HubArguments), argv, "snugbert convert", "A test.")


def convert(*argv: str) -> ConversionArguments:
    return parse_arguments((ConversionArguments,), ["in", "out", *argv], "snugbert convert", "A test.")[0]


def test_positional_arguments_switches_and_a_config_file(tmp_path):
    args = convert("--overwrite_output_dir", "--to", "bert", "--do_lower_case")
    assert (args.input, args.output, args.do_lower_case, args.overwrite_output_dir) == ("in", "out", True, True)
    file = tmp_path / "run.yaml"
    file.write_text("to: roberta\ndo_lower_case: true\nmax_shard_size: 1GB\n")
    for flags in (["--no_do_lower_case"], ["--do_lower_case", "false"]):
        args = convert("--config", str(file), *flags)
        assert (args.output, args.to, args.do_lower_case, args.max_shard_size) == ("out", "roberta", False, "1GB")
    for line, expected in {"no_do_lower_case: true": False, "no_do_lower_case: no": True}.items():
        file.write_text(f"to: bert\n{line}\n")
        assert convert("--config", str(file)).do_lower_case is expected


# --- ranges of numbers, shards, and lists ---


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


# --- help ---


def print_help(command: str, flag: str, capsys) -> list[str]:
    with pytest.raises(SystemExit) as exit:
        main([command, flag])
    assert exit.value.code in (0, None)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_lists_each_argument_once(command, capsys):
    lines = print_help(command, "--help", capsys)
    assert len(lines) <= 75 and max(map(len, lines)) <= 119
    assert lines[0].startswith(f"usage: snugbert {command} ")
    example = next(line for line in lines if line.startswith("example: "))
    assert example.startswith(f"example: snugbert {command} ")
    assert "--help-all" in lines[-1]
    names = [line.split()[0] for line in lines if re.match(r"  [-\w]", line)]
    assert len(set(names)) == len(names) and not any(name.startswith("--no_") for name in names if name != "--no_nsp")

    everything = print_help(command, "--help-all", capsys)
    listed = [line.split()[0] for line in everything if re.match(r"  [-\w]", line)]
    assert len(set(listed)) == len(listed) and set(names) <= set(listed)
    assert {"--config", "--help", "--help-all", *re.findall(r"--\w+", COMMANDS[command].example)} <= set(listed)
    assert "SUPPRESS" not in "\n".join(everything)


def test_effective_defaults(capsys):
    text = {line.split()[0]: line for line in print_help("glue", "--help", capsys) if line.startswith("  --")}
    assert text["--num_train_epochs"].endswith("Default: 3.") and "--adam_beta1" not in text
    assert text["--bf16"].endswith("Default: true where supported.")
