"""Checkpoints that are complete or absent."""

import shutil
from pathlib import Path

import pytest
from damage import damage
from synthetic import make_trainer
from transformers import TrainerControl, TrainerState, TrainingArguments

from snugbert.errors import InputError
from snugbert.trainers.checkpoint_trainer import LocateBestCheckpoint


@pytest.mark.parametrize("damaged", [False, True])
def test_a_damaged_best_checkpoint_is_ignored(damaged, tmp_path, caplog):
    """Otherwise its weights would be the final model."""
    make_trainer(tmp_path / "before", max_steps=1, save_steps=1).train()
    shutil.move(tmp_path / "before", tmp_path / "now")
    best = tmp_path / "now/checkpoint-1"
    if damaged:
        damage(best / "model.safetensors", "six bytes")
    options = {"load_best_model_at_end": True, "eval_strategy": "steps", "use_cpu": True}
    args = TrainingArguments(str(tmp_path / "now"), **options)
    state = TrainerState(best_global_step=1, best_metric=0.5)
    LocateBestCheckpoint().on_train_begin(args, state, TrainerControl())
    assert f"ignoring the best checkpoint: {best / 'model.safetensors'} is damaged" in caplog.text or not damaged
    found = (state.best_model_checkpoint, state.best_global_step, state.best_metric)
    assert found == ((None, None, None) if damaged else (str(best), 1, 0.5))


def test_an_unsupported_option_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="--save_on_each_node is not supported"):
        make_trainer(tmp_path, save_on_each_node=True)
