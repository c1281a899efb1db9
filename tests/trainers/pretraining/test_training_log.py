"""The counts of the log, their state, and `metrics.jsonl`."""

import json

import pytest
import torch
from synthetic import RandomExamples, packed, tiny_model

from snugbert.trainers.pretraining.training_log import MetricsFile, TrainingLog, count_batch


def make_log() -> TrainingLog:
    log = TrainingLog(torch.device("cpu"), is_main_process=True, reduce=lambda tensor: tensor)
    log.peak_flops = 1e12
    return log


def add_step(log: TrainingLog, first: int) -> int:
    model, dataset = tiny_model(), RandomExamples(8)
    batch = packed([dataset[index] for index in range(first, first + 2)])
    log.start_step()
    counts = count_batch(batch, 20, model.config)
    assert counts[:4].tolist() == [(batch["labels"] >= 0).sum(), 2, batch["input_ids"].numel(), 2 * 20]
    log.add_batch(counts)
    log.add_outputs(model(**batch), batch)
    return batch["input_ids"].numel()


def test_a_restored_log_continues_its_line():
    log = make_log()
    tokens = [add_step(log, first) for first in (0, 2)]
    restored = make_log()
    restored.load_state_dict(json.loads(json.dumps(log.state_dict())))
    for each in (log, restored):
        tokens_of_third = add_step(each, 4)
    lines = [each.next_line() for each in (log, restored)]
    for name in ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "tokens", "padding"):
        assert lines[0][name] == lines[1][name]
    assert lines[0]["tokens"] == log.tokens_seen == sum(tokens) + tokens_of_third
    assert lines[0]["padding"] == pytest.approx(1 - lines[0]["tokens"] / (3 * 2 * 20))
    assert log.summarize(steps=3)["train_loss"] == pytest.approx(lines[0]["loss"])


def test_padding_of_a_padded_batch():
    log = make_log()
    log.start_step()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    labels = torch.tensor([[-100, 5, 6, -100], [-100, 7, -100, -100]])
    batch = {"input_ids": mask, "attention_mask": mask, "labels": labels}
    counts = count_batch(batch, None, tiny_model().config)
    assert counts[:4].tolist() == [3, 0, 6, 8]
    log.add_batch(counts)
    assert log.next_line()["padding"] == pytest.approx(2 / 8)


@pytest.mark.parametrize(("predictions", "correct"), [([5, 0, 7], 2), ([0, 0, 7], 1), ([5, 6, 7], 3), ([], 0)])
def test_correct_predictions(predictions, correct):
    """Only labeled tokens have logits."""
    labels = torch.tensor([[-100, 5, 6, -100], [-100, -100, 7, -100]])
    labels = labels if predictions else torch.full_like(labels, -100)
    log = make_log()
    logits = torch.eye(8)[torch.tensor(predictions, dtype=torch.long)]
    log.add_outputs({"loss": torch.tensor(1.0), "logits": logits}, {"labels": labels})
    assert log.state_dict()["sums"]["mlm_correct"] == correct


def test_metrics_after_the_checkpoint_are_dropped_with_the_first_new_line(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    metrics = MetricsFile(file, [{"step": 1}])
    assert "2" in file.read_text()  # a run that fails before its first line changes nothing
    metrics.append({"step": 2, "loss": 3.0})
    metrics.append({"step": 3})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2, "loss": 3.0},
        {"step": 3},
    ]
