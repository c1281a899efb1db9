"""Arguments from the command line and from YAML."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snugbert.cli.model_arguments import ConversionArguments, HubArguments, TokenizerArguments
from snugbert.cli.parser import parse_arguments
from snugbert.errors import InputError


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
    return parse_arguments((ConversionArguments,), ["in", *argv, "out"], "snugbert convert", "A test.")[0]


def test_positional_arguments_switches_and_a_config_file(tmp_path):
    """A switch does not take the next positional argument as its value."""
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
