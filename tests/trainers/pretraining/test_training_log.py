"""The FLOPs of a batch, and the peak of a GPU."""

import numpy as np
import torch
from synthetic import make_pair
from torch.utils.flop_counter import FlopCounterMode

from snugbert import SnugBertConfig, SnugBertForMaskedLM
from snugbert.data.packed_batches import pack
from snugbert.trainers.pretraining.training_log import count_batch, find_peak_flops

# Every token except [CLS] has a label, so the last layer computes all tokens. No sequence is padded.
BATCH = pack({"input_ids": [np.arange(1, 8)] * 4, "labels": [np.array([-100, *range(2, 8)])] * 4})


def test_flops_of_a_batch_equal_what_torch_counts():
    config = SnugBertConfig.from_size("tiny", vocab_size=50, attn_implementation="eager")
    model = SnugBertForMaskedLM(config)
    with FlopCounterMode(display=False) as counter:
        model(**BATCH)
    assert count_batch(BATCH, config)[3] == 3 * counter.get_total_flops()
    assert count_batch(BATCH, config, teacher=config)[3] == 4 * counter.get_total_flops()


def test_flops_of_electra_equal_what_torch_counts():
    config = SnugBertConfig.from_size("tiny", vocab_size=50, embedding_size=48, attn_implementation="eager")
    pair = make_pair(config)
    with FlopCounterMode(display=False) as counter:
        pair(**BATCH, replacement_keys=torch.arange(24))
    head = 28 * 2 * (config.hidden_size**2 + config.hidden_size)  # of the discriminator, which is left out
    assert count_batch(BATCH, config, pair.generator.config)[3] == 3 * (counter.get_total_flops() - head)


def test_the_peak_is_of_the_datasheet():
    assert find_peak_flops("NVIDIA H100 80GB HBM3") == 989e12 and find_peak_flops("NVIDIA H100 PCIe") == 756e12
    assert find_peak_flops("NVIDIA A100-SXM4-80GB") == 312e12 and find_peak_flops("NVIDIA L4") == 121e12
    assert find_peak_flops("NVIDIA A10G") is None
