"""The FLOPs in the log."""

import numpy as np
import torch
from synthetic import make_pair
from torch.utils.flop_counter import FlopCounterMode

from snugbert import SnugBertConfig, SnugBertForMaskedLM, SnugBertForPreTraining
from snugbert.data.packed_batches import pack
from snugbert.trainers.pretraining.throughput import peak_flops, training_flops


def test_flops_of_a_batch_equal_what_torch_counts():
    # Every token except [CLS] has a label, so the last layer computes all tokens. No sequence is padded.
    config = SnugBertConfig.from_size("tiny", vocab_size=50, attn_implementation="eager")
    model = SnugBertForPreTraining(config)
    batch = pack({"input_ids": [np.arange(1, 8)] * 4, "labels": [np.array([-100, *range(2, 8)])] * 4})
    batch["next_sentence_label"] = torch.tensor([0, 1, 0, 1])
    with FlopCounterMode(display=False) as counter:
        model(**batch)
    assert training_flops(config, batch).item() == 3 * counter.get_total_flops()

    # The next-sentence head: [CLS] through the last layer, pooler and classifier.
    H, inner, length = config.hidden_size, config.intermediate_size, 7
    cls_flops = 2 * (2 * H * H + 2 * H * inner) + 4 * H * length + 2 * (H * H + H * 2)
    with_head = training_flops(config, batch)
    del batch["next_sentence_label"]
    assert with_head - training_flops(config, batch) == 3 * 4 * cls_flops


def test_flops_of_electra_equal_what_torch_counts():
    config = SnugBertConfig.from_size("tiny", vocab_size=50, embedding_size=48, attn_implementation="eager")
    pair = make_pair(config)
    generator = pair.generator.config
    batch = pack({"input_ids": [np.arange(1, 8)] * 4, "labels": [np.array([-100, *range(2, 8)])] * 4})
    with FlopCounterMode(display=False) as counter:
        pair(**batch, replacement_keys=torch.arange(24))
    # The generator's last layer also computes [CLS], which nothing reads.
    H, inner, length = generator.hidden_size, generator.intermediate_size, 7
    unread = 4 * (2 * (2 * H * H + 2 * H * inner) + 4 * H * length)
    assert training_flops(config, batch, generator).item() == 3 * (counter.get_total_flops() - unread)


def test_flops_of_relative_positions_equal_what_torch_counts():
    config = SnugBertConfig.from_size(
        "tiny", vocab_size=50, position_embedding_type="relative", attn_implementation="eager"
    )
    model = SnugBertForMaskedLM(config)
    batch = pack({"input_ids": [np.arange(1, 8)] * 4, "labels": [np.arange(1, 8)] * 4})
    with FlopCounterMode(display=False) as counter:
        model(**batch)
    # Each token is multiplied by all 14 distances of the batch, but needs only the 7 to its own sequence's tokens.
    unneeded = config.num_hidden_layers * 4 * 7 * 2 * (2 * config.hidden_size * 7)
    assert training_flops(config, batch).item() == 3 * (counter.get_total_flops() - unneeded)


def test_measuring_peak_flops_keeps_the_random_state():
    state = torch.get_rng_state()
    assert 1e8 < peak_flops("cpu", torch.float32) < 1e15
    assert torch.equal(torch.get_rng_state(), state)
