"""How much of the machine training uses: the FLOPs that a step needs, and the rate that the device reaches.

MFU (model FLOPs utilization; Chowdhery et al., 2022, "PaLM", appendix B) is here

    FLOPs that the steps need / (seconds x processes x rate of large matrix products)

What is needed is counted as if nothing were wasted: no padding, no logits of tokens without a label, no recomputation.
The rate is no figure of a datasheet, it is measured on this very device in the precision of training, as the run
starts: 100 % is a device that does nothing but large matrix products.

    rate = peak_flops(args.device, torch.bfloat16)              # half a second, once
    flops += training_flops(model.config, batch)                # every micro-batch, a tensor: nothing waits for a GPU
    mfu = flops.item() / (seconds * processes * rate)           # every line of the log, `flops` summed over processes

Shapes: N sequences of T tokens together.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig

from snugbert.modeling_snugbert import IGNORE_INDEX

TRAINING_COST = 3  # a backward pass takes two matrix products for each one of the forward pass
# Rows of the square matrices of `peak_flops`: large enough that a larger product is no faster.
ROWS_ON_CPU = 1024
ROWS_ON_ACCELERATOR = 8192
RUN_SECONDS = 0.05  # of a measurement: the clock, and launching a kernel, then weigh nothing
RUNS = 10


def count_tokens(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts the tokens of each sequence, and the labeled ones among them.

    Args:
        batch: packed, with `cu_seq_lens_q` (N + 1,) and `labels` (1, T); or padded, with `labels` (N, L) and, unless
            there is no padding, `attention_mask` (N, L).

    Returns:
        Two tensors of integers, on the device of the batch. *Shape:* (N,) each
    """
    is_labeled = batch["labels"] != IGNORE_INDEX
    if "cu_seq_lens_q" in batch:
        starts = batch["cu_seq_lens_q"].long()
        labeled_before = F.pad(is_labeled[0].cumsum(-1), (1, 0))
        return starts.diff(), labeled_before[starts].diff()
    mask = batch.get("attention_mask")
    lengths = torch.ones_like(batch["labels"]) if mask is None else (mask != 0)
    return lengths.sum(-1), is_labeled.sum(-1)


def training_flops(config: PreTrainedConfig, batch: Mapping[str, Any]) -> torch.Tensor:
    """FLOPs of the forward and backward pass on a pretraining batch.

    Args:
        config: of the model.
        batch: packed or padded, see [`count_tokens`], with `next_sentence_label` if the model has that head.

    Returns:
        A float64 scalar (float32 on a device without float64) on the device of the batch. *Shape:* ()
    """
    lengths, labeled = count_tokens(batch)
    flops = pretraining_flops(config, lengths, labeled, next_sentence="next_sentence_label" in batch)
    return (TRAINING_COST * flops).to(torch.float32 if flops.device.type == "mps" else torch.float64)


def pretraining_flops(
    config: PreTrainedConfig, lengths: torch.Tensor, labelled: torch.Tensor, next_sentence: bool = True
) -> torch.Tensor:
    """FLOPs of a forward pass with the masked token head.

    Args:
        config: of the model.
        lengths: tokens of each sequence. *Shape:* (N,)
        labelled: tokens of each sequence that have a label; never [CLS]. *Shape:* (N,)
        next_sentence: whether there is the next-sentence head, which reads [CLS].

    Returns:
        An integer. *Shape:* ()
    """
    H = config.hidden_size
    flops = encoder_flops(config, lengths, labelled + next_sentence)
    flops = flops + labelled.sum() * 2 * (H * H + H * config.vocab_size)
    return flops + next_sentence * len(lengths) * 2 * (H * H + H * 2)


def encoder_flops(config: PreTrainedConfig, lengths: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """FLOPs of a forward pass of the encoder that computes nothing but what a head reads.

    A matrix product of m x k and k x n counts 2mkn; nothing else counts. The last layer has keys and values of every
    token, but queries, output and feed-forward only of tokens that are read.

    Args:
        config: of the model.
        lengths: tokens of each sequence, in int64. *Shape:* (N,)
        read: tokens of each sequence that the head reads. *Shape:* (N,)

    Returns:
        An integer. *Shape:* ()
    """
    H, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers

    def rest_of_layer(queries: torch.Tensor) -> torch.Tensor:
        # Query and output projections, both halves of the feed-forward; scores and weighted sums of the attention.
        return queries.sum() * 2 * (2 * H * H + 2 * H * inner) + 4 * H * (queries * lengths).sum()

    keys_and_values = lengths.sum() * 2 * 2 * H * H
    return layers * keys_and_values + (layers - 1) * rest_of_layer(lengths) + rest_of_layer(read)


def peak_flops(device: torch.device | str, dtype: torch.dtype) -> float:
    """FLOPs a second that `device` reaches in a large matrix product of `dtype`; takes half a second.

    A product is of square matrices of 1,024 rows on a CPU and 8,192 elsewhere.
    """
    rows = ROWS_ON_CPU if torch.device(device).type == "cpu" else ROWS_ON_ACCELERATOR
    return matmul_rate(rows, rows, rows, device, dtype)


def matmul_rate(rows: int, inner: int, columns: int, device: torch.device | str, dtype: torch.dtype) -> float:
    """FLOPs a second of a linear layer from `inner` to `columns` features on so many rows; the best of ten short runs.

    The state of torch's generators stays as it is.
    """
    # Random numbers, as a GPU that multiplies constants draws less power and is faster than it will ever be again.
    generator = torch.Generator(device).manual_seed(0)
    inputs = torch.rand(rows, inner, generator=generator, device=device).to(dtype)
    weight = torch.rand(columns, inner, generator=generator, device=device).to(dtype)
    flops, best, repeats = 2 * rows * weight.numel(), 0.0, 1
    with torch.inference_mode():
        for _ in range(1 + RUNS):  # the first warms up and tells how many products make a run
            _wait_for(device)
            start = time.perf_counter()
            for _ in range(repeats):
                F.linear(inputs, weight)
            _wait_for(device)
            best = max(best, repeats * flops / (time.perf_counter() - start))
            repeats = max(1, round(RUN_SECONDS * best / flops))
    return best


def _wait_for(device: torch.device | str) -> None:
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)
