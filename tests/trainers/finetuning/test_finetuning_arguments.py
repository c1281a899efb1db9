"""The arguments of fine-tuning, and the default learning rate."""

import logging

import pytest
from finetuning_examples import arguments

from snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.settled_arguments import choose_learning_rate


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"eval_strategy": "steps"}, (500, 500)),
        ({"eval_strategy": "steps", "logging_steps": 100, "early_stopping_patience": 1}, (100, 100)),
        ({"eval_strategy": "steps", "eval_steps": 30, "early_stopping_patience": 1}, (30, 30)),
    ],
)
def test_evaluation_and_checkpoint_steps(settings, expected, tmp_path):
    args = arguments(tmp_path, **settings)
    assert (args.eval_steps, args.save_steps) == expected


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


def test_the_logits_of_all_examples_are_kept(tmp_path):
    """The metrics need them."""
    args = arguments(tmp_path, prediction_loss_only=True, batch_eval_metrics=True, eval_do_concat_batches=False)
    assert (args.prediction_loss_only, args.batch_eval_metrics, args.eval_do_concat_batches) == (False, False, True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (3, 1, False)),
        ({"sweep": "fixed"}, (3, 1, True)),
        ({"sweep": "stable"}, (20, 5, True)),
        ({"sweep": "stable", "num_train_epochs": 3.0, "seeds": 1}, (3, 1, True)),  # given values win
    ],
)
def test_stable_runs_have_more_epochs_and_seeds(settings, expected, tmp_path):
    args = arguments(tmp_path, **settings)
    assert (args.num_train_epochs, args.seeds, args.sweeps) == expected
    assert args.warmup_steps == 0.1 and args.optim.startswith("adamw_torch")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sweep": "papr"}, r"papr is neither a YAML file nor one of paper, fixed, stable\. Did you mean paper\?"),
        ({"sweep": "./serch.yaml"}, r"serch.yaml is neither a YAML file .* Did you mean .*search.yaml"),
        ({"unfreeze_after_steps": 3}, "--unfreeze_after_steps needs --freeze_layers or --freeze_embeddings"),
        ({"deepspeed": "nofile.json"}, "--deepspeed is not supported. Remove the flag: "),
    ],
)
def test_unsupported_arguments_are_refused(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.yaml").touch()
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
