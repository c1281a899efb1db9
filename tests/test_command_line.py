"""What all commands share: arguments from YAML, JSON and long lines in data, output that nobody reads."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from datasets import Dataset

from snugbert.command_line import parse_arguments
from snugbert.errors import InputError
from snugbert.json_files import parse_json
from snugbert.models import TokenizerArguments
from snugbert.trainers.glue.data import GlueSplit
from snugbert.trainers.glue.labels import choose_labels, encode_labels
from snugbert.trainers.rows import LONGEST_LINE, read_rows, read_text_lines
from snugbert.trainers.squad.data import check_answers, read_questions


@dataclass
class Arguments:
    """Two of the kinds that TrainingArguments has."""

    optim_args: str | None = None
    train_file: list[str] = field(default_factory=list)


def parse(text: str, file: Path) -> Arguments:
    file.write_text(text)
    return parse_arguments((Arguments,), ["--config", str(file)], "snugbert test", "A test.")[0]


def test_values_of_yaml_are_words_and_dictionaries_json(tmp_path):
    text = "train_file: [no, 1e-3, null]\noptim_args: {yes: 1, rate: 1.0e-3, name: no}\n"
    arguments = parse(text, tmp_path / "run.yaml")
    assert arguments.train_file == ["no", "1e-3", "null"]
    # As YAML 1.1 reads them, of which `yes` and `no` are truth values.
    assert json.loads(arguments.optim_args) == {"true": 1, "rate": 0.001, "name": False}
    assert parse("", tmp_path / "empty.yaml") == parse("# nothing\n", tmp_path / "empty.yaml") == Arguments()


@pytest.mark.parametrize(("value", "warns"), [("true", True), ("True", True), ("false", False), ("no", False)])
@pytest.mark.parametrize("name", ["trust_remote_code", "trust-remote-code"])
def test_a_file_that_trusts_remote_code_is_no_surprise(name, value, warns, tmp_path, caplog):
    (tmp_path / "run.yaml").write_text(f"{name}: {value}\ntokenizer_name: x\n")
    argv = ["--config", str(tmp_path / "run.yaml")]
    (arguments,) = parse_arguments((TokenizerArguments,), argv, "snugbert test", "A test.")
    assert arguments.trust_remote_code == warns
    assert ("run.yaml sets trust_remote_code: code from the tokenizer's repository will run" in caplog.text) == warns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train_file: &a [x]\noptim_args: *a", r"run.yaml has aliases \(\*name\). Write the values out"),
        ("train_file: [x, --trust_remote_code]", "a value of train_file begins with --"),
        ("trust_remote_code=true: []", "run.yaml must hold `name: value` lines"),
        ("yes: {a: 1}", "unknown arguments: --yes"),
        ("- a", "run.yaml must hold `name: value` lines"),
        ("? [a]\n: 1", "run.yaml must hold `name: value` lines"),
        ("optim_args: {a: " + "9" * 5000 + "}", "run.yaml, line 1: invalid value"),
        ("train_file: a\noptim_args: {a: 2020-01-01}", "run.yaml, line 2: invalid value"),
        ("optim_args: " + "[" * 5000 + "]" * 5000, "run.yaml is nested too deeply"),
        ("optim_args: {a", "run.yaml is not a YAML file"),
    ],
)
def test_what_yaml_cannot_be(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        parse(text, tmp_path / "run.yaml")


HOSTILE_JSON = {
    "[" * 100_000 + "]" * 100_000: "nested too deeply",
    '{"a": ' * 100_000 + "1" + "}" * 100_000: "nested too deeply",
    "9" * 5000: "a number has too many digits",
}


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=["lists", "objects", "digits"])
def test_hostile_json_is_one_sentence(text, tmp_path):
    message = HOSTILE_JSON[text]
    with pytest.raises(ValueError, match=f"^{message}$"):
        parse_json(text)
    for name, content in (("rows.jsonl", '{"a": 1}\n{"a": ' + text + "}"), ("list.json", '[{"a": ' + text + "}]")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=f"{name}.*: not JSON \\({message}\\)"):
            list(read_rows(tmp_path / name))
    with pytest.raises(InputError, match=f"list.json: not JSON \\({message}\\)"):
        read_questions(tmp_path / "list.json", "list.json")


def test_numbers_of_any_length_are_labels_answers_or_one_sentence(tmp_path):
    """JSON takes up to 4,300 digits, and tables any number of them."""
    integers, number = GlueSplit("train.csv", Dataset.from_dict({"label": ["1", "9" * 5000, "20"]})), "9" * 4000
    assert choose_labels(None, {"train": integers}, known=[]) == ["1", "20", "9" * 5000]
    floats = GlueSplit("train.csv", Dataset.from_dict({"label": ["1.5", "9" * 5000], "row": [2, 3]}))
    with pytest.raises(InputError, match=r"train\.csv, row 3: '9{50}' is not a finite number"):
        encode_labels(floats, None)
    row = f'{{"id": 1, "context": "a b", "question": "q", "answers": {{"text": ["a"], "answer_start": [{number}]}}}}'
    (tmp_path / "train.json").write_text(row)
    questions = read_questions(tmp_path / "train.json", "train.json")
    with pytest.raises(InputError, match="1 answers are not in their context at their place"):
        check_answers(questions, "train.json", training=True, version_2=False, skip=False)


def test_a_huge_line_in_a_small_file_takes_no_gigabytes(tmp_path):
    """600 MB of text in 600 KB of gzip are refused in 100 MB of memory."""
    files = [tmp_path / name for name in ("line.txt.gz", "line.jsonl.gz", "line.csv.gz")]
    content = gzip.compress(b"a" * 10**6)  # members of a gzip file follow each other
    for file in files:
        file.write_bytes(gzip.compress(b"fine\n") + content * 600)
    assert files[0].stat().st_size < 10**6
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom snugbert.trainers.rows import read_text_lines\n"
        "def peak():\n    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "for file in sys.argv[1:]:\n"
        "    try:\n        list(read_text_lines(Path(file)))\n    except ValueError as error:\n        print(error)\n"
        "print(peak() - before)"
    )
    process = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True, check=True)
    *messages, megabytes = process.stdout.splitlines()
    assert messages == [
        f"{file}, line 2: longer than 16 MiB. Split it; in JSON, write one object per line." for file in files
    ]
    assert int(megabytes) < 100


def test_a_line_may_be_as_long_as_the_limit(tmp_path):
    line = "a" * (LONGEST_LINE - 1) + "\n"
    (tmp_path / "long.txt").write_text(f"{line}b")
    assert [len(line) for line in read_text_lines(tmp_path / "long.txt")] == [LONGEST_LINE, 1]


@pytest.mark.parametrize(("end", "status"), [(">&-", 0), ("> /dev/full", 2)])
def test_output_that_goes_nowhere(end, status):
    """A command that a service starts may have no standard output, or one that is full."""
    command = f"{sys.executable} -m snugbert --version {end}"
    process = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    assert process.returncode == status and "Traceback" not in process.stderr


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["glue", "--help"]])
def test_output_that_nobody_reads_is_no_error(command):
    """As with `| head`, which closes its end when it has enough."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "snugbert", *command], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert process.stderr == "" and process.returncode in (0, 141)
