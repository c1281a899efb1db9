"""The Trainer that pretraining and fine-tuning share."""

import json
import logging
import os
import re
import stat
from pathlib import Path

import pytest
import torch
from parity import CONFIG
from synthetic import make_trainer
from transformers import Trainer, TrainingArguments

import snugbert
from snugbert.data.packed_batches import IgnorePadding
from snugbert.errors import InputError
from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.trainer import RunTrainer

PAGE = Path(__file__).parents[2] / "docs/decisions/layout.md"


def test_a_resumed_run_prints_no_false_warnings_and_files_have_the_umask(tmp_path, caplog, monkeypatch):
    """Tied weights are stored once. Trainer reports the other name as missing."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    trainer, umask = make_trainer(tmp_path, max_steps=2, save_steps=2), os.umask(0o027)
    trainer.train()
    trainer.save_model()
    os.umask(umask)
    for folder in (tmp_path, tmp_path / "checkpoint-2"):
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()} == {0o640}
    trainer = make_trainer(tmp_path, max_steps=4, save_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert "missing keys" not in caplog.text
    assert [line["step"] for line in trainer.state.log_history if "loss" in line] == [1, 2, 3, 4]


def test_training_within_autocast_is_refused(tmp_path):
    """autocast would keep the copies of weights that it made in the first step."""
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="old copies of the weights"):
        make_trainer(tmp_path, max_steps=1).train()


def test_metrics_are_written_completely_or_not_at_all(tmp_path, monkeypatch):
    """A kill while `all_results.json` is written once left an empty file, and the next run could not read it."""
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    trainer = RunTrainer(snugbert.SnugBertForMaskedLM(snugbert.SnugBertConfig(**CONFIG)), args)
    trainer.save_metrics("train", {"train_loss": 1.0})

    def fail(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(KeyboardInterrupt):
            trainer.save_metrics("train", {"train_loss": 2.0})
    for loss in (4.0, 3.0):  # the second replaces the first
        trainer.save_metrics("eval", {"eval_loss": loss})
    files = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert files == {
        "train_results.json": {"train_loss": 1.0},
        "eval_results.json": {"eval_loss": 3.0},
        "all_results.json": {"train_loss": 1.0, "eval_loss": 3.0},
    }


def test_labels_at_padding_are_ignored_and_other_batches_stay_as_they_are():
    mask = torch.tensor([[1, 0]])
    batch = {"labels": torch.tensor([[2, 2]]), "attention_mask": mask}
    assert IgnorePadding(lambda rows: rows)(batch)["labels"].tolist() == [[2, -100]]
    for batch in ([torch.ones(2)], {"labels": [[1, 2]], "attention_mask": mask}, {"labels": torch.ones(1, 2).long()}):
        assert IgnorePadding(lambda rows: rows)(batch) is batch


def test_few_private_methods_of_trainer_are_overridden():
    """Each of them once, with a reason in the documentation. One that Trainer no longer has would be missing."""
    bases = set(Trainer.__mro__)
    private = {name for base in bases for name in vars(base) if name.startswith("_") and not name.endswith("__")}
    own = {base for trainer in (PretrainingTrainer, DistillationTrainer) for base in trainer.__mro__} - bases
    overridden = sorted(name for base in own for name in vars(base) if name in private)
    table = PAGE.read_text(encoding="utf-8").split("| no longer overridden")[0]
    assert overridden == sorted(re.findall(r"^\| `(_\w+)` ", table, flags=re.MULTILINE)) and len(overridden) == 7
