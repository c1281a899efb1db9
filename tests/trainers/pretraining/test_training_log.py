"""The counts of the log, their state, its FLOPs, and `metrics.jsonl`."""

import json

import numpy as np
import pytest
import torch
from synthetic import RandomExamples, make_pair, packed, tiny_model
from torch.utils.flop_counter import FlopCounterMode

from snugbert import SnugBertConfig, SnugBertForMaskedLM
from snugbert.data.packed_batches import pack
from snugbert.trainers.pretraining.training_log import (
    TrainingLog,
    count_batch,
    find_peak_flops,
)


def make_log() -> TrainingLog:
    log = TrainingLog(torch.device("cpu"), is_main_process=True, reduce=lambda tensor: tensor)
    log.peak_flops = 1e12
    return log


def add_step(log: TrainingLog, first: int, has_pairs: bool = True) -> tuple[int, torch.Tensor]:
    """Returns the tokens of the step and its next-sentence loss."""
    model, dataset = tiny_model(), RandomExamples(8)
    batch = packed([dataset[index] for index in range(first, first + 2)])
    if not has_pairs:
        del batch["next_sentence_label"]
    log.start_step()
    counts = count_batch(batch, model.config)
    pairs = 2 * has_pairs
    assert counts[:3].tolist() == [(batch["labels"] >= 0).sum(), pairs, batch["input_ids"].numel()]
    log.add_batches([counts], has_pairs)
    log.add_outputs(outputs := model(**batch), batch)
    return batch["input_ids"].numel(), outputs.nsp_loss


def test_a_restored_log_continues_its_line():
    """Two of the three steps have sentence pairs."""
    log = make_log()
    steps = [add_step(log, 0, has_pairs=False), add_step(log, 2)]
    restored = make_log()
    restored.load_state_dict(json.loads(json.dumps(log.state_dict())))
    steps += [add_step(each, 4) for each in (log, restored)][:1]
    lines = [each.next_line() for each in (log, restored)]
    tokens, (_, *nsp_losses) = zip(*steps, strict=True)
    assert lines[0]["nsp_loss"] == pytest.approx(sum(nsp_losses).item() / 2)
    for name in ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "tokens"):
        assert lines[0][name] == lines[1][name]
    assert lines[0]["tokens"] == log.tokens_seen == sum(tokens)
    assert log.summarize(steps=3)["train_loss"] == pytest.approx(lines[0]["loss"])


def test_flops_of_a_batch_equal_what_torch_counts():
    # Every token except [CLS] has a label, so the last layer computes all tokens. No sequence is padded.
    config = SnugBertConfig.from_size("tiny", vocab_size=50, attn_implementation="eager")
    model = SnugBertForMaskedLM(config)
    batch = pack({"input_ids": [np.arange(1, 8)] * 4, "labels": [np.array([-100, *range(2, 8)])] * 4})
    with FlopCounterMode(display=False) as counter:
        model(**batch)
    assert count_batch(batch, config)[3] == 3 * counter.get_total_flops()
    assert count_batch(batch, config, teacher=config)[3] == 4 * counter.get_total_flops()


def test_flops_of_electra_equal_what_torch_counts():
    config = SnugBertConfig.from_size("tiny", vocab_size=50, embedding_size=48, attn_implementation="eager")
    pair = make_pair(config)
    batch = pack({"input_ids": [np.arange(1, 8)] * 4, "labels": [np.array([-100, *range(2, 8)])] * 4})
    with FlopCounterMode(display=False) as counter:
        pair(**batch, replacement_keys=torch.arange(24))
    head = 28 * 2 * (config.hidden_size**2 + config.hidden_size)  # of the discriminator, which is left out
    assert count_batch(batch, config, pair.generator.config)[3] == 3 * (counter.get_total_flops() - head)


def test_the_peak_is_of_the_datasheet():
    assert find_peak_flops("NVIDIA H100 80GB HBM3") == 989e12 and find_peak_flops("NVIDIA H100 PCIe") == 756e12
    assert find_peak_flops("NVIDIA A100-SXM4-80GB") == 312e12 and find_peak_flops("NVIDIA L4") == 121e12
    assert find_peak_flops("NVIDIA A10G") is None
