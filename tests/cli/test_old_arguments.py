"""Command lines and Python calls that were written for transformers 4."""

from dataclasses import fields

import pytest
from transformers import TrainingArguments

from snugbert import FineTuningArguments
from snugbert.cli.old_arguments import NEW_NAMES, REMOVED, SWITCHES
from snugbert.cli.parser import ArgumentParser, parse_arguments
from snugbert.errors import InputError

# Fields of `TrainingArguments` in transformers 4.40.0 and 4.57.6 that 5.23.0 lacks, read from the sources.
GONE = """overwrite_output_dir evaluation_strategy per_gpu_train_batch_size per_gpu_eval_batch_size warmup_ratio
logging_dir save_safetensors no_cuda use_mps_device jit_mode_eval use_ipex fp16_opt_level half_precision_backend
tpu_num_cores tpu_metrics_debug past_index fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap adafactor
group_by_length use_legacy_prediction_loop include_inputs_for_metrics fp16_backend push_to_hub_model_id
push_to_hub_organization push_to_hub_token mp_parameters torchdynamo ray_scope dispatch_batches split_batches
include_tokens_per_second""".split()
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


def test_every_argument_that_transformers_dropped_is_mapped_or_explained():
    assert not FIELDS & {*NEW_NAMES, *SWITCHES, *REMOVED}
    assert {*NEW_NAMES.values(), *(new for new, _ in SWITCHES.values())} <= FIELDS
    assert not {*GONE} - {*NEW_NAMES, *SWITCHES, *REMOVED} - {each.name for each in fields(FineTuningArguments)}


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


@pytest.mark.parametrize("name", REMOVED)
def test_arguments_without_a_meaning_are_explained(name):
    with pytest.raises(InputError) as error:
        parse(f"--{name}", "1")
    assert f"--{name} was an argument of transformers 4. {REMOVED[name]}" in str(error.value)
    with pytest.raises(TypeError) as error:
        FineTuningArguments(**{name: 1})
    assert str(error.value).endswith(f"no argument {name!r}. {REMOVED[name]}")
