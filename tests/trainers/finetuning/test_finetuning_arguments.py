"""The arguments of fine-tuning, the default learning rate, and files of sweeps."""

import logging

import pytest
from finetuning_examples import arguments
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from snugbert import SnugBertConfig
from snugbert.cli.parser import parse_arguments
from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.settled_arguments import choose_learning_rate
from snugbert.trainers.finetuning.sweep_file import read_sweep_file


def test_evaluation_and_checkpoint_steps(tmp_path):
    args = arguments(tmp_path, eval_strategy="steps")
    assert (args.eval_steps, args.save_steps) == (500, 500)
    for settings, steps in (({"logging_steps": 100}, 100), ({"eval_steps": 30}, 30)):
        args = arguments(tmp_path, eval_strategy="steps", early_stopping_patience=1, **settings)
        assert (args.eval_steps, args.save_steps) == (steps, steps)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, False),
        ({"load_best_model_at_end": True}, False),
        ({"save_strategy": "no"}, False),
        ({"save_strategy": "epoch"}, True),
        ({"save_steps": 500}, True),  # the default, but the user asks for it
        ({"save_total_limit": 3}, True),
        ({"save_only_model": True}, True),
    ],
)
def test_checkpoints_are_kept_if_the_user_asks(settings, kept, tmp_path):
    args = arguments(tmp_path, **settings)
    assert args.keeps_checkpoints == kept
    assert (args.save_steps, args.save_total_limit) == (500, 3)
    strategy = "epoch" if "load_best_model_at_end" in settings else "steps"
    assert args.save_strategy == settings.get("save_strategy", strategy)
    # The metrics need the logits of all examples.
    args = arguments(tmp_path, prediction_loss_only=True, batch_eval_metrics=True, eval_do_concat_batches=False)
    assert (args.prediction_loss_only, args.batch_eval_metrics, args.eval_do_concat_batches) == (False, False, True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sweep": "papr"}, r"papr is neither a YAML file nor one of paper, fixed, stable\. Did you mean paper\?"),
    ],
)
def test_unsupported_arguments_are_refused(settings, message, tmp_path):
    with pytest.raises(InputError, match=message):
        arguments(tmp_path, **settings)


@pytest.mark.parametrize(
    ("task", "size", "settings", "rate"),
    [
        (TextClassification, "large", {}, 3e-5),  # the paper's
        (TextClassification, "medium", {}, 6.8e-5),
        (TextClassification, "tiny", {}, 1.1e-3),
        (QuestionAnswering, "tiny", {}, 1.8e-3),  # the paper's for this task is 5e-5
        (TextClassification, "tiny", {"sweep": "stable"}, 1.1e-3),
        (TextClassification, "tiny", {"sweep": "stable", "learning_rate": 1e-5}, 1e-5),
        (TextClassification, "tiny", {"learning_rate": 0.0}, 0.0),
        (TextClassification, "base", {"sweep": "paper"}, None),  # the grid has its own
    ],
)
def test_narrow_encoders_get_a_higher_learning_rate(task, size, settings, rate, tmp_path, caplog):
    """Unless the user chose one."""
    args = FineTuningArguments(output_dir=str(tmp_path), **settings)
    with caplog.at_level(logging.INFO, logger="snugbert"):
        choose_learning_rate(SnugBertConfig.from_size(size), args, task.paper_learning_rate)
    assert args.learning_rate == rate
    is_chosen = rate is not None and "learning_rate" not in settings
    assert [message.startswith(f"learning rate: {rate:g} (") for message in caplog.messages] == [True] * is_chosen


def read_command(*flags: str) -> FineTuningArguments:
    (args,) = parse_arguments([FineTuningArguments], ["--output_dir", "out", "--use_cpu", *flags], "snugbert glue", "")
    return args


def test_values_are_read_as_on_the_command_line(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text(
        "method: random\nruns: 4\nsettings:\n"
        "  learning_rate: {low: 1e-5, high: 1e-4, log: true}\n"  # YAML reads 1e-5 as text
        "  num_train_epochs: {low: 2, high: 4, step: 0.5}\n"
        "  freeze_layers: {low: 0, high: 2}\n"
        "  lr_scheduler_type: [linear, cosine]\n"
        "  class_weights: [null, balanced]\n"
        "  freeze_embeddings: [true, false]\n"
        "  weight_decay: 0.2\n"
        "  warmup_steps: 0.2\n"
    )
    args = read_command("--sweep", str(file), "--warmup_steps", "0.1")
    assert args.search.settings == {
        "learning_rate": FloatDistribution(1e-5, 1e-4, log=True),
        "num_train_epochs": FloatDistribution(2.0, 4.0, step=0.5),
        "freeze_layers": IntDistribution(0, 2),
        "lr_scheduler_type": CategoricalDistribution(("linear", "cosine")),
        "class_weights": CategoricalDistribution((None, "balanced")),
        "freeze_embeddings": CategoricalDistribution((True, False)),
    }
    # The command line replaces single values, even with the default.
    assert (args.weight_decay, args.warmup_steps) == (0.2, 0.1)


def test_flags_replace_single_values_only(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text("settings: {num_train_epochs: [1, 2], batch_size: 16, learning_rate: [1e-4, 2e-4]}")
    (tmp_path / "config.yaml").write_text("learning_rate: 1e-4")
    for flag, value, varied in (
        ("--learning_rate", "1e-4", "learning_rate"),
        ("--config", str(tmp_path / "config.yaml"), "learning_rate"),
        ("--max_steps", "3", "num_train_epochs"),
        ("--per_device_train_batch_size", "32", "batch_size"),
    ):
        with pytest.raises(InputError, match=rf"^--\w+: --sweep {file} sets {varied}\. Remove --\w+ or --sweep\.$"):
            read_command("--sweep", str(file), flag, value)
    file.write_text("settings: {max_steps: 7}")
    args = read_command("--sweep", str(file), "--num_train_epochs", "1")
    assert (args.num_train_epochs, args.max_steps) == (1, -1)
    assert read_command("--sweep", str(file)).max_steps == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("settings: {learning_rat: [1]}", "learning_rat cannot vary. Did you mean learning_rate"),
        ("settings: {learning_rate: [1e-5, fast]}", "learning_rate.* invalid float value: 'fast'"),
        ("settings: {learning_rate: [-1]}", "learning_rate -1.0 must be at least 0"),
        ("settings: {lr_scheduler_type: [lineer]}", "lr_scheduler_type: unknown value 'lineer'. Did you mean linear"),
        ("method: tpe\nruns: 3\nsettings: {weight_decay: {low: 0, top: 1}}", "weight_decay: .*'top'"),
        ("settings: {weight_decay: {low: 0, high: 1}}", "weight_decay: write a list. Grids and batch_size have no"),
        ("settings: {batch_size: [8], per_device_train_batch_size: 8}", "cannot be combined"),
        ("setting: {}", "`settings` is missing. List the flags to vary"),
        ("{settings: {}, run: 3}", "unknown argument run. Did you mean runs?"),
        ("{settings: {}, method: bayes}", "method: unknown value 'bayes'. Choose one of grid, random, tpe"),
        ("{settings: {}, method: random}", "method random needs `runs`"),
        ("{settings: {}, hours: 0}", "hours 0.0 must be above 0"),
        ("runs: 3\nmethod: tpe\nsettings: {weight_decay: {low: 0, high: 1, log: 2}}", "`log` must be true or false"),
        ("settings: [", "expected the node content"),
    ],
)
def test_errors_name_the_file_and_the_key(text, message, tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_sweep_file(str(file), FineTuningArguments)
    assert str(error.value).startswith(f"--sweep: {file}") and "`snugbert" not in str(error.value)
