"""Command lines and Python calls that were written for transformers 4."""

from dataclasses import fields

from transformers import TrainingArguments

from snugbert import FineTuningArguments
from snugbert.cli.old_arguments import NEW_NAMES, SWITCHES
from snugbert.cli.parser import ArgumentParser, parse_arguments

FIELDS = {each.name for each in fields(TrainingArguments)}
OLD = {
    "evaluation_strategy": "no",
    "no_cuda": True,
    "per_gpu_train_batch_size": 3,
    "per_gpu_eval_batch_size": 5,
    "warmup_ratio": 0.25,
    "group_by_length": True,
    "adafactor": True,
    "push_to_hub_model_id": "name",
    "overwrite_output_dir": True,
}
NEW = {
    "eval_strategy": "no",
    "use_cpu": True,
    "per_device_train_batch_size": 3,
    "per_device_eval_batch_size": 5,
    "warmup_steps": 0.25,
    "train_sampling_strategy": "group_by_length",
    "optim": "adafactor",
    "hub_model_id": "name",
    "overwrite_output_dir": True,
}


def parse(*argv: str) -> FineTuningArguments:
    return parse_arguments([FineTuningArguments], [*argv], "snugbert glue")[0]


def test_only_names_that_transformers_dropped_are_mapped():
    assert not FIELDS & {*NEW_NAMES, *SWITCHES}
    assert {*NEW_NAMES.values(), *(new for new, _ in SWITCHES.values())} <= FIELDS


def test_old_names_give_the_same_settings_in_python_and_on_the_command_line(tmp_path):
    expected = FineTuningArguments("out", **NEW)
    lines = [word for name, value in OLD.items() for word in (f"--{name}", str(value))]
    (tmp_path / "old.yaml").write_text("".join(f"{name}: {value}\n" for name, value in OLD.items()))
    for found in (
        FineTuningArguments("out", **OLD),
        parse("--output_dir", "out", *lines),
        parse("--output_dir", "out", "--config", str(tmp_path / "old.yaml")),
    ):
        assert {name: getattr(found, name) for name in NEW} == {name: getattr(expected, name) for name in NEW}
        assert {*found.given} >= {*NEW}
    off = parse("--optim", "sgd", "--adafactor", "false", "--group-by-length", "no")
    assert (off.optim, off.train_sampling_strategy) == ("sgd", "random")
    assert parse("--adafactor").optim == "adafactor"
    both = {"warmup_ratio": 0.1, "warmup_steps": 0}  # as in a dump of all arguments
    words = [word for name, value in both.items() for word in (f"--{name}", str(value))]
    assert parse(*words).warmup_steps == FineTuningArguments(**both).warmup_steps == 0.1
    assert parse("--warmup_ratio", "0").warmup_steps == FineTuningArguments(warmup_ratio=0.0).warmup_steps == 0
    (tmp_path / "new.yaml").write_text("warmup_steps: 100\nno_cuda: true\n")  # the command line comes first
    line = ["--config", str(tmp_path / "new.yaml"), "--warmup_ratio", "0.3", "--use_cpu", "false"]
    parser = ArgumentParser([FineTuningArguments], "snugbert glue")
    assert parser.parse_given(line) == {"warmup_steps": 0.3, "use_cpu": False}
    assert FineTuningArguments(per_gpu_train_batch_size=None).per_device_train_batch_size == 32
