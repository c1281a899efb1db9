"""The Trainer that pretraining and fine-tuning share: its log lines."""

import json
import logging

import pytest
import torch
from parity import CONFIG
from torch.utils.data import TensorDataset
from transformers import TrainingArguments

import snugbert
from snugbert.trainers.shared_trainer import SharedTrainer, format_log_line


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        (
            {"loss": 6.521, "grad_norm": 1.31917, "learning_rate": 9e-05, "epoch": 0.609, "tokens": 12},
            "step  200/1000  epoch 0.61  loss 6.5210  grad norm 1.3192  learning rate 9.0e-05",
        ),
        (
            {"loss": float("nan"), "mlm_loss": 10.3421, "tokens_per_second": 123456, "mfu": 0.5},
            "step  200/1000  loss    nan  MLM loss  10.34  tokens/s 123,456  MFU 0.5000",
        ),
        (
            {
                "eval_loss": 0.5,
                "eval_exact_match": 81.25,
                "eval_runtime": 2.1,
                "eval_samples_per_second": 7,
                "epoch": 1,
            },
            "eval  200/1000  epoch 1.00  loss 0.5000  exact match  81.25",
        ),
        (
            {"eval_a_mlm_loss": 0.5, "eval_a_runtime": 2.1, "eval_a_samples_per_second": 7, "epoch": 1},
            "eval  200/1000  epoch 1.00  a MLM loss 0.5000",
        ),
    ],
    ids=["step", "pretraining", "evaluation", "evaluation set"],
)
def test_log_lines_are_short_and_aligned(logs, line):
    assert format_log_line(logs, 200, 1000) == line


def test_a_resumed_run_prints_lines_and_no_false_warnings(tmp_path, capsys, caplog, monkeypatch):
    """Tied weights are stored once. Trainer reports the other name as missing."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    torch.manual_seed(0)
    ids = torch.randint(5, CONFIG["vocab_size"], (8, 6))

    def train(max_steps: int, resume: bool) -> SharedTrainer:
        options = {"max_steps": max_steps, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 2}
        trainer = SharedTrainer(
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

    train(2, resume=False)
    first = capsys.readouterr()
    assert [line.split("  ")[0] for line in first.err.splitlines() if "loss" in line] == ["step 1/2", "step 2/2"]
    assert "{" not in first.out + first.err
    trainer = train(4, resume=True)
    assert "missing keys" not in caplog.text
    # Log files keep all values.
    assert {"loss", "grad_norm", "learning_rate", "epoch", "step"} <= trainer.state.log_history[-2].keys()
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert [line["step"] for line in state["log_history"]] == [1, 2, 3, 4]
