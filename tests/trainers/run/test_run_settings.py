"""A run resumes with its settings. An error names a changed setting. A different number of steps is reported."""

import logging

import pytest
from synthetic import make_trainer

from snugbert.errors import InputError
from snugbert.trainers.run.run_settings import read_settings

RUN = {"max_steps": 4, "save_steps": 2, "dropout": 0.1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    """After 2 of 4 steps."""
    folder = tmp_path_factory.mktemp("run")
    make_trainer(folder, **RUN).train()
    return str(folder / "checkpoint-2")


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"learning_rate": 5e-4}, "--learning_rate 0.001 0.0005"),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, '--lr_scheduler_kwargs - {"num_cycles": 2}'),
        ({"warmup_steps": 1}, "--warmup_steps 0 1"),
        ({"optim": "muon"}, '--optim "adamw_torch_fused" "muon"'),
        ({"bf16": True}, "--bf16 false true"),
        ({"seed": 1}, "--seed 42 1"),
        ({"dropout": 0}, "hidden_dropout_prob 0.1 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_changed_setting_is_refused_by_name(checkpoint, tmp_path, changes, row):
    trainer = make_trainer(tmp_path, **RUN | changes)
    with pytest.raises(InputError) as error:
        trainer.train(resume_from_checkpoint=checkpoint)
    first, _, *rows, last = str(error.value).splitlines()
    assert first == f"--resume_from_checkpoint: {checkpoint} has other settings."
    assert row in [" ".join(each.split()) for each in rows]
    assert f"--model_name_or_path {checkpoint}" in last and not list(tmp_path.iterdir())


def test_other_runs_are_refused(checkpoint, tmp_path):
    """Of another kind, and with fewer steps than the checkpoint has."""
    trainer = make_trainer(tmp_path, **RUN)
    trainer.run_settings.kind = "fine-tuning"
    with pytest.raises(InputError, match="checkpoint-2 contains pretraining, not fine-tuning"):
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer = make_trainer(tmp_path, **RUN | {"max_steps": 1})
    with pytest.raises(InputError, match=r"^--max_steps: .*checkpoint-2 has taken 2 steps, more than the 1 step of"):
        trainer.train(resume_from_checkpoint=checkpoint)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_settings_that_do_not_change_the_outcome_may_change(checkpoint, tmp_path, caplog, monkeypatch):
    changes = {"logging_steps": 0.5, "save_steps": 3, "save_total_limit": 5, "dataloader_num_workers": 1}
    changes |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = make_trainer(tmp_path, **RUN | changes)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.run_settings.changes == [] and "changed" not in caplog.text
    # Trainer would keep the earlier intervals.
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-4"}
    assert [line["step"] for line in trainer.state.log_history if "loss" in line] == [1, 2, 4]


@pytest.mark.slow
def test_more_steps_are_applied_and_reported(checkpoint, tmp_path, caplog):
    """The rate follows the new schedule at once. Later checkpoints keep the history."""
    trainer = make_trainer(tmp_path, **RUN | {"max_steps": 10})
    trainer.train(resume_from_checkpoint=checkpoint)
    change = "after step 2: 10 steps instead of 4"
    assert f"changed {change}" in caplog.text and trainer.run_settings.changes == [change]
    rates = [line["learning_rate"] for line in trainer.state.log_history if "learning_rate" in line]
    expected = [1e-3, 0.75e-3] + [1e-3 * (10 - step) / 10 for step in range(2, 10)]
    assert rates == pytest.approx(expected)
    assert read_settings(str(tmp_path / "checkpoint-10"))["changes"] == [change]

    trainer = make_trainer(tmp_path, **RUN | {"max_steps": 12, "warmup_steps": 0})
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert trainer.run_settings.changes == [change, "after step 10: 12 steps instead of 10"]
