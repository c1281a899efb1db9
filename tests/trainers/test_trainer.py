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
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments

import snugbert
from snugbert.data.packed_batches import IgnorePadding
from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.trainer import RunTrainer

PAGE = Path(__file__).parents[2] / "docs/decisions/private-methods-of-trainer.md"


def test_a_resumed_run_prints_lines_and_no_false_warnings(tmp_path, capsys, caplog, monkeypatch):
    """Tied weights are stored once. Trainer reports the other name as missing."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    torch.manual_seed(0)
    ids = torch.randint(5, CONFIG["vocab_size"], (8, 6))

    def train(max_steps: int, resume: bool) -> RunTrainer:
        options = {"max_steps": max_steps, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2}
        trainer = RunTrainer(
            model=snugbert.SnugBertForMaskedLM(snugbert.SnugBertConfig(**CONFIG)),
            args=TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, seed=1, **options),
            train_dataset=TensorDataset(ids),
            data_collator=lambda rows: {
                "input_ids": torch.stack([row[0] for row in rows]),
                "labels": ids[: len(rows)],
            },
        )
        trainer.train(resume_from_checkpoint=resume or None)
        return trainer

    umask = os.umask(0o027)
    train(2, resume=False).save_model()
    os.umask(umask)
    for folder in (tmp_path, tmp_path / "checkpoint-2"):
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()} == {0o640}
    first = capsys.readouterr()
    assert [line.split("  ")[0] for line in first.err.splitlines() if "loss" in line] == ["step 1/2", "step 2/2"]
    assert "{" not in first.out + first.err
    trainer = train(4, resume=True)
    assert "missing keys" not in caplog.text
    # Log files keep all values.
    assert {"loss", "grad_norm", "learning_rate", "epoch", "step"} <= trainer.state.log_history[-2].keys()
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert [line["step"] for line in state["log_history"]] == [1, 2, 3, 4]


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
    trainer.save_metrics("eval", {"eval_loss": 3.0})
    files = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert files == {
        "train_results.json": {"train_loss": 1.0},
        "eval_results.json": {"eval_loss": 3.0},
        "all_results.json": {"train_loss": 1.0, "eval_loss": 3.0},
    }


def test_batches_without_token_labels_stay_as_they_are():
    mask = torch.ones(1, 2)
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
