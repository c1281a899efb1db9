"""Model FLOPs utilization (MFU): the FLOPs that training needs, and the FLOPs per second that the device reaches.

MFU (Chowdhery et al., 2022, "PaLM", appendix B) is

    FLOPs that the steps need / (seconds x processes x FLOPs per second of large matrix products)

Needed FLOPs exclude waste: padding, logits of unlabeled tokens, recomputation. The rate is not from a datasheet. It is
measured on the same accelerator, in the precision of training, when the run starts. At 100 % the device would do
nothing but large matrix products. Runs on a CPU report no MFU, because other programs use its cores, too: the rate at
the start says little about the rest of the run.

    rate = peak_flops(args.device, torch.bfloat16)          # takes half a second, once
    flops += training_flops(model.config, batch)            # for every batch; a tensor, so nothing waits for a GPU
    mfu = flops.item() / (seconds * processes * rate)       # for every log line, `flops` summed over processes

Shapes: N sequences of T tokens in total.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig

from snugbert.modeling_snugbert import IGNORE_INDEX

TRAINING_COST = 3  # the backward pass needs two matrix products for each one of the forward pass
# Rows of the square matrices in `peak_flops`. Larger matrices are not faster.
ROWS_ON_CPU = 1024
ROWS_ON_ACCELERATOR = 8192
RUN_SECONDS = 0.05  # per measurement, so that the clock and kernel launches do not matter
RUNS = 10


def count_tokens(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts the tokens of each sequence, and the labeled ones among them.

    Args:
        batch: packed, with `cu_seq_lens_q` (N + 1,) and `labels` (1, T); or padded, with `labels` (N, L) and, unless
            there is no padding, `attention_mask` (N, L).

    Returns:
        Two tensors of integers, on the device of the batch, without the padding of a filled row. *Shape:* (N,) each
    """
    is_labeled = batch["labels"] != IGNORE_INDEX
    if "cu_seq_lens_q" in batch:
        starts, number = batch["cu_seq_lens_q"].long(), batch.get("num_sequences")
        labeled_before = F.pad(is_labeled[0].cumsum(-1), (1, 0))
        return starts.diff()[:number], labeled_before[starts].diff()[:number]
    mask = batch.get("attention_mask")
    lengths = torch.ones_like(batch["labels"]) if mask is None else (mask != 0)
    return lengths.sum(-1), is_labeled.sum(-1)


def training_flops(
    config: PreTrainedConfig,
    batch: Mapping[str, Any],
    generator: PreTrainedConfig | None = None,
    teacher: PreTrainedConfig | None = None,
) -> torch.Tensor:
    """FLOPs of the forward and backward pass on a pretraining batch, and of the forward pass of a teacher.

    Args:
        config: configuration of the model. With a `generator`, of ELECTRA's discriminator.
        batch: packed or padded, see [`count_tokens`], with `next_sentence_label` if the model has that head.
        generator: configuration of ELECTRA's generator.
        teacher: configuration of the teacher. If it has the hidden size of the model, the last hidden states of all
            tokens are compared.

    Returns:
        A float64 scalar (float32 on a device without float64) on the device of the batch. *Shape:* ()
    """
    lengths, labeled = count_tokens(batch)
    reads_all = teacher is not None and teacher.hidden_size == config.hidden_size
    if generator is None:
        next_sentence = "next_sentence_label" in batch
        flops = TRAINING_COST * pretraining_flops(config, lengths, labeled, next_sentence, reads_all)
    else:
        flops = pretraining_flops(generator, lengths, labeled, next_sentence=False)
        flops = TRAINING_COST * (flops + discriminator_flops(config, lengths))
    if teacher is not None:
        flops = flops + pretraining_flops(teacher, lengths, labeled, False, reads_all)
    return flops.to(torch.float32 if flops.device.type == "mps" else torch.float64)


def pretraining_flops(
    config: PreTrainedConfig,
    lengths: torch.Tensor,
    labeled: torch.Tensor,
    next_sentence: bool = True,
    reads_all: bool = False,
) -> torch.Tensor:
    """FLOPs of a forward pass with the masked token head.

    Args:
        config: configuration of the model.
        lengths: number of tokens in each sequence. *Shape:* (N,)
        labeled: number of labeled tokens in each sequence. [CLS] is never labeled. *Shape:* (N,)
        next_sentence: whether the next-sentence head is used. It reads [CLS].
        reads_all: whether the last hidden states of all tokens are used, as in distillation.

    Returns:
        An integer scalar. *Shape:* ()
    """
    H, E = config.hidden_size, _embedding_size(config)
    flops = encoder_flops(config, lengths, lengths if reads_all else labeled + next_sentence)
    flops = flops + labeled.sum() * 2 * (H * E + E * config.vocab_size)
    return flops + next_sentence * len(lengths) * 2 * (H * H + H * 2)


def discriminator_flops(config: PreTrainedConfig, lengths: torch.Tensor) -> torch.Tensor:
    """FLOPs of a forward pass of ELECTRA's discriminator, whose head reads all tokens.

    Args:
        config: its configuration.
        lengths: number of tokens in each sequence. *Shape:* (N,)

    Returns:
        An integer scalar. *Shape:* ()
    """
    H = config.hidden_size
    return encoder_flops(config, lengths, lengths) + lengths.sum() * 2 * (H * H + H)


def encoder_flops(config: PreTrainedConfig, lengths: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """FLOPs of a forward pass of the encoder that computes only what the heads read.

    A matrix product of m x k and k x n counts 2mkn. Nothing else counts. The last layer computes keys and values for
    all tokens, but queries, output and feed-forward only for tokens that a head reads. DeBERTa's relative positions
    add two scores for each pair of tokens, and in each layer the keys and queries of the distances in the batch.

    Args:
        config: configuration of the model.
        lengths: number of tokens in each sequence, in int64. *Shape:* (N,)
        read: number of tokens in each sequence that a head reads. *Shape:* (N,)

    Returns:
        An integer scalar. *Shape:* ()
    """
    H, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    E = _embedding_size(config)
    buckets = config.position_buckets if getattr(config, "position_embedding_type", None) == "relative" else 0
    products = 4 if buckets else 2  # for each pair of tokens

    def rest_of_layer(queries: torch.Tensor) -> torch.Tensor:
        # Query and output projections, both feed-forward layers, attention scores and weighted sums.
        return queries.sum() * 2 * (2 * H * H + 2 * H * inner) + products * 2 * H * (queries * lengths).sum()

    distances = 2 * lengths.max().clamp(max=buckets)
    keys_and_values = (lengths.sum() + distances) * 2 * 2 * H * H
    projection = 0 if E == H else lengths.sum() * 2 * E * H
    return projection + layers * keys_and_values + (layers - 1) * rest_of_layer(lengths) + rest_of_layer(read)


def _embedding_size(config: PreTrainedConfig) -> int:
    return getattr(config, "embedding_size", None) or config.hidden_size


def peak_flops(device: torch.device | str, dtype: torch.dtype) -> float:
    """Measures the FLOPs per second of `device` in large matrix products of `dtype`. Takes half a second.

    The matrices are square, with 1,024 rows on a CPU and 8,192 on other devices.
    """
    rows = ROWS_ON_CPU if torch.device(device).type == "cpu" else ROWS_ON_ACCELERATOR
    return matmul_rate(rows, rows, rows, device, dtype)


def matmul_rate(rows: int, inner: int, columns: int, device: torch.device | str, dtype: torch.dtype) -> float:
    """Measures the FLOPs per second of a linear layer from `inner` to `columns` features on `rows` rows.

    Takes the best of ten short runs. Does not change the random state of torch.
    """
    # Random values: multiplying constants takes less power, which makes a GPU faster than in real use.
    generator = torch.Generator(device).manual_seed(0)
    inputs = torch.rand(rows, inner, generator=generator, device=device).to(dtype)
    weight = torch.rand(columns, inner, generator=generator, device=device).to(dtype)
    flops, best, repeats = 2 * rows * weight.numel(), 0.0, 1
    with torch.inference_mode():
        for _ in range(1 + RUNS):  # the first run warms up and determines the number of products per run
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
