"""Arguments from the command line and from YAML."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snugbert.cli.model_arguments import ConversionArguments
from snugbert.cli.parser import parse_arguments
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
    ("text", "message"),
    [
        ("train_files: [x, --trust_remote_code]", "a value of train_files begins with --"),
        ("yes: {a: 1}", "run.yaml: unknown argument --yes"),
        ("trian-files: b", r"run.yaml: unknown argument --trian-files\. Did you mean --train_files\?"),
        ("config: a", "run.yaml: config files cannot be nested"),
        ("- a", "run.yaml must contain only `name: value` lines"),
    ],
)
def test_unsupported_yaml_is_refused(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        parse(text, tmp_path / "run.yaml")


def test_positional_arguments_switches_and_a_config_file(tmp_path):
    argv = ["in", "out", "--do_lower_case", "--overwrite_output_dir", "--to", "bert"]
    (args,) = parse_arguments((ConversionArguments,), argv, "snugbert convert", "A test.")
    assert (args.input, args.output, args.do_lower_case, args.overwrite_output_dir) == ("in", "out", True, True)
    (tmp_path / "run.yaml").write_text("to: roberta\ndo_lower_case: true\nmax_shard_size: 1GB\n")
    for flags in (["--no_do_lower_case"], ["--do_lower_case", "false"]):
        argv = ["in", "out", *flags, "--config", str(tmp_path / "run.yaml")]
        (args,) = parse_arguments((ConversionArguments,), argv, "snugbert convert", "A test.")
        assert (args.output, args.to, args.do_lower_case, args.max_shard_size) == ("out", "roberta", False, "1GB")
