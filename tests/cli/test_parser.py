"""Arguments from the command line and from YAML."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snugbert.cli.model_arguments import ConversionArguments, TokenizerArguments
from snugbert.cli.parser import changed_flags, format_command, parse_arguments
from snugbert.data.data_arguments import PreparationArguments
from snugbert.errors import InputError


@dataclass
class Arguments:
    """Two kinds of fields that TrainingArguments also has."""

    optim_args: str | None = None
    train_files: list[str] = field(default_factory=list)


def parse(text: str, file: Path) -> Arguments:
    file.write_text(text)
    return parse_arguments((Arguments,), ["--config", str(file)], "snugbert test", "A test.")[0]


def test_yaml_values_stay_text_and_dictionaries_become_json(tmp_path):
    text = "train_files: [no, 1e-3, null]\noptim_args: {yes: 1, rate: 1.0e-3, name: no}\n"
    arguments = parse(text, tmp_path / "run.yaml")
    assert arguments.train_files == ["no", "1e-3", "null"]
    # In YAML 1.1, `yes` and `no` are booleans.
    assert json.loads(arguments.optim_args) == {"true": 1, "rate": 0.001, "name": False}
    assert parse("", tmp_path / "empty.yaml") == parse("# nothing\n", tmp_path / "empty.yaml") == Arguments()


@pytest.mark.parametrize(
    ("line", "warns"),
    [("trust_remote_code: true", True), ("trust-remote-code: True", True), ("trust_remote_code: no", False)],
)
def test_a_file_that_trusts_remote_code_gives_a_warning(line, warns, tmp_path, caplog):
    (tmp_path / "run.yaml").write_text(f"{line}\ntokenizer_name: x\n")
    argv = ["--config", str(tmp_path / "run.yaml")]
    (arguments,) = parse_arguments((TokenizerArguments,), argv, "snugbert test", "A test.")
    assert arguments.trust_remote_code == warns
    assert ("run.yaml sets trust_remote_code: code from the tokenizer's repository will run" in caplog.text) == warns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train_files: [x, --trust_remote_code]", "the value of train_files begins with --"),
        ("trust_remote_code=true: []", "run.yaml must contain only `name: value` lines"),
        ("yes: {a: 1}", "run.yaml, line 1: unknown argument yes.$"),
        ("optim_args: a\ntrian-files: b", "line 2: unknown argument trian-files. Did you mean train_files."),
        ("config: a", "run.yaml contains `config`, but config files cannot be nested"),
        ("- a", "run.yaml must contain only `name: value` lines"),
        ("optim_args: &a x\ntrain_files: *a", "run.yaml is not a YAML file: aliases are not supported"),
        ("optim_args: {a: " + "9" * 5000 + "}", "run.yaml, line 1: invalid value"),
        ("train_files: a\noptim_args: {a: 2020-01-01}", "run.yaml, line 2: invalid value"),
        ("optim_args: {a", "run.yaml is not a YAML file"),
    ],
)
def test_unsupported_yaml_is_refused(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        parse(text, tmp_path / "run.yaml")


def test_changed_flags_become_a_command_line():
    arguments = PreparationArguments(train_file=["my text/*.txt", "b.txt"], language="de", lines_are_sentences=True)
    names = ("train_file", "language", "text_column_name", "lines_are_sentences")
    line = format_command("pretrain", {"corpus": "my corpus", **changed_flags(arguments, names)})
    assert line == (
        "snugbert pretrain --corpus 'my corpus' --train_file 'my text/*.txt' b.txt --lines_are_sentences true "
        "--language de"
    )
    assert shlex.split(line)[5] == "my text/*.txt"


def test_positional_arguments_switches_and_a_config_file(tmp_path):
    """A switch does not take the next positional argument as its value."""
    argv = ["--do_lower_case", "in", "out", "--overwrite_output_dir", "--to", "bert"]
    (args,) = parse_arguments((ConversionArguments,), argv, "snugbert convert", "A test.")
    assert (args.input, args.output, args.do_lower_case, args.overwrite_output_dir) == ("in", "out", True, True)
    (tmp_path / "run.yaml").write_text("to: roberta\ndo_lower_case: true\nmax_shard_size: 1GB\n")
    for flags in (["--no_do_lower_case"], ["--do_lower_case", "false"]):
        argv = ["in", *flags, "out", "--config", str(tmp_path / "run.yaml")]
        (args,) = parse_arguments((ConversionArguments,), argv, "snugbert convert", "A test.")
        assert (args.output, args.to, args.do_lower_case, args.max_shard_size) == ("out", "roberta", False, "1GB")
    (tmp_path / "run.yaml").write_text("to: bert\nno_do_lower_case: true\n")
    argv = ["in", "out", "--config", str(tmp_path / "run.yaml")]
    (args,) = parse_arguments((ConversionArguments,), argv, "snugbert convert", "A test.")
    assert not args.do_lower_case
