"""The metrics of a training run: counts over the steps since the last log line, and totals of the run.

Losses and accuracies come from the forward passes of training itself. The counts are part of a checkpoint, so the log
of a resumed run equals the log of an uninterrupted run.

Model FLOPs utilization (MFU: Chowdhery et al., 2022, "PaLM", appendix B) is

    FLOPs that the steps need / (seconds x processes x FLOPs per second of large matrix products)

Needed FLOPs exclude waste: padding, logits of unlabeled tokens, recomputation. The rate is not from a datasheet. It is
measured on the same accelerator, in the precision of training, when the run starts. At 100 % the device would do
nothing but large matrix products. Runs on a CPU report no MFU. Other programs may use the CPU, too, so the rate at the
start may not hold for the whole run.

Shapes: N sequences of T tokens in total.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig
from transformers.utils import ModelOutput

from snugbert.files import writing
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.pretraining.pretraining_arguments import (
    COSINE_WEIGHT,
    DISCRIMINATOR_WEIGHT,
    LABEL_WEIGHT,
    SOFT_WEIGHT,
)
from snugbert.trainers.pretraining.scores import get_mlm_logits
from snugbert.trainers.run.checkpoints import RESUME

# Sums since the last log line. The sums of the model stay on its device until they are needed.
MODEL_SUMS = (
    *("mlm_loss", "mlm_correct", "nsp_loss", "nsp_correct"),
    *("disc_loss", "disc_correct", "replaced"),
    *("soft_loss", "cos_loss"),
)
DATA_SUMS = ("labeled", "pairs", "tokens", "positions", "flops")

TRAINING_COST = 3  # the backward pass needs two matrix products for each one of the forward pass
# Rows of the square matrices in `peak_flops`. Larger matrices are not faster.
ROWS_ON_CPU = 1024
ROWS_ON_ACCELERATOR = 8192
RUN_SECONDS = 0.05  # per measurement, so that the clock and kernel launches do not matter
RUNS = 10


def count_batch(
    batch: Mapping[str, Any],
    max_seq_length: int | None,
    config: PreTrainedConfig,
    generator: PreTrainedConfig | None = None,
    teacher: PreTrainedConfig | None = None,
) -> torch.Tensor:
    """Counts what the log needs of a batch. Data workers call this function, so it does not slow down training.

    Args:
        batch: packed or padded, on the CPU, see [`count_sequence_tokens`].
        max_seq_length: the length to which a packed batch would be padded, for `padding`. None: the longest sequence
            of the batch.
        config, generator, teacher: configurations of the models, see [`training_flops`].

    Returns:
        The numbers of `DATA_SUMS`: labeled tokens, labeled sentence pairs, tokens, positions with padding, and FLOPs.
        *Shape:* (5,), int64
    """
    lengths, labeled = count_sequence_tokens(batch)
    pairs = (torch.as_tensor(batch.get("next_sentence_label", [])) != IGNORE_INDEX).sum()
    positions = batch["input_ids"].numel()
    if "cu_seq_lens_q" in batch:
        positions = len(lengths) * (max_seq_length or int(lengths.max()))
    flops = training_flops(config, batch, generator, teacher)
    counts = [labeled.sum().item(), pairs.item(), lengths.sum().item(), positions, flops.item()]
    return torch.tensor(counts, dtype=torch.int64)


class TrainingLog:
    """Counts what a training run logs.

    Args:
        device: device of this process.
        is_main_process: whether this process keeps the sums of all processes after they are collected.
        reduce: adds up a tensor over all processes.

    Attributes:
        peak_flops: FLOPs per second that the devices of all processes reach together. None: unknown, so there is no
            `mfu`.
        frequency_loss: masked token loss of predicting tokens by their frequency, for `mlm_gain`. None if the training
            dataset has no text to count.
        has_teacher: whether the outputs have the losses of distillation.
    """

    def __init__(
        self,
        device: torch.device,
        is_main_process: bool,
        reduce: Callable[[torch.Tensor], torch.Tensor],
    ):
        self._is_main_process = is_main_process
        self._reduce = reduce
        self.peak_flops: float | None = None
        self.frequency_loss: float | None = None
        self.has_teacher = False
        # Float64 adds up float32 values without rounding, so their order and their process do not matter.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._model_sums = torch.zeros(len(MODEL_SUMS), dtype=dtype, device=device)
        self._data_sums = np.zeros(len(DATA_SUMS))
        self._steps = self._pair_steps = 0
        self._seconds = 0.0
        self._window_start: float | None = None
        self._totals = {"loss": 0.0, "tokens": 0.0, "flops": 0.0}

    # --- counting -----------------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """Counts a step and starts the clock of the next log line."""
        if self._window_start is None:
            self._window_start = time.perf_counter()
        self._steps += 1

    def count_pair_step(self) -> None:
        """Counts a step with sentence pairs. Other steps do not count in `nsp_loss`."""
        self._pair_steps += 1

    def exclude_time(self, seconds: float) -> None:
        """Excludes time that was not spent on training."""
        if self._window_start is not None:
            self._window_start += seconds

    def add_batch(self, counts: torch.Tensor) -> None:
        """Adds the result of [`count_batch`], on the CPU. *Shape:* (5,)"""
        self._data_sums += counts.numpy()

    def add_outputs(self, outputs: ModelOutput, inputs: Mapping[str, torch.Tensor]) -> None:
        """Adds the losses and correct predictions of a batch. Each loss is the batch's share of the step's loss."""
        with torch.no_grad():
            labels = inputs["labels"].flatten()
            is_labeled = labels != IGNORE_INDEX
            # Only labeled tokens have logits. To select their labels, the host would have to wait for their number.
            # So each token looks up the prediction of the last labeled token up to it.
            predicted = F.pad(get_mlm_logits(outputs).argmax(-1), (1, 0))
            mlm_correct = ((predicted[is_labeled.cumsum(0)] == labels) & is_labeled).sum()
            sums = {"mlm_loss": outputs.get("mlm_loss", outputs["loss"]), "mlm_correct": mlm_correct}
            if "next_sentence_label" in inputs:
                predicted = outputs["seq_relationship_logits"].argmax(-1)
                nsp_correct = (predicted == inputs["next_sentence_label"].flatten()).sum()
                sums |= {"nsp_loss": outputs["nsp_loss"], "nsp_correct": nsp_correct}
            if "is_replaced" in outputs:
                is_replaced = outputs["is_replaced"]
                disc_correct = ((outputs["discriminator_logits"] > 0).long() == is_replaced).sum()
                sums |= {"disc_loss": outputs["disc_loss"], "disc_correct": disc_correct}
                sums["replaced"] = (is_replaced == 1).sum()
            sums |= {name: outputs[name] for name in ("soft_loss", "cos_loss") if name in outputs}
            zero = torch.zeros_like(mlm_correct)
            self._model_sums += torch.stack([sums.get(name, zero).float() for name in MODEL_SUMS])

    # --- reporting ----------------------------------------------------------------------------------------------

    @property
    def tokens_seen(self) -> int:
        """Number of tokens up to the last log line or checkpoint. Valid in the main process."""
        return int(self._totals["tokens"] + self._data_sums[DATA_SUMS.index("tokens")])

    def next_line(self) -> dict[str, float]:
        """Returns the metrics of the steps since the last line. All processes must call it.

        Returns:
            `loss`, `mlm_loss` and `mlm_accuracy`; with sentence pairs `nsp_loss` and `nsp_accuracy`, over the steps
            that have them; with ELECTRA's discriminator `disc_loss` (not yet multiplied by its weight of 50),
            `disc_accuracy` over all tokens, and `replaced`, the share of tokens that the generator replaced; with a
            teacher `soft_loss` and `cos_loss`, not yet multiplied by their weights; with a `frequency_loss`,
            `mlm_gain` = `frequency_loss` - `mlm_loss`; `tokens` of the run so far; `tokens_per_second`; `padding`, the
            share of padding in padded batches, or the share that packing saves; with `peak_flops`, `mfu`, the model's
            FLOPs per second divided by `peak_flops`.
        """
        sums, seconds = self._collect(), self._elapsed_seconds()
        steps, pair_steps = self._steps, self._pair_steps
        loss = self._add_losses(sums)
        for name, value in (("loss", loss), ("tokens", sums["tokens"]), ("flops", sums["flops"])):
            self._totals[name] += value
        self._model_sums.zero_()
        self._data_sums[:] = 0
        self._steps = self._pair_steps = 0
        self._seconds, self._window_start = 0.0, None
        line = {
            "loss": loss / steps,
            "mlm_loss": sums["mlm_loss"] / steps,
            "mlm_accuracy": sums["mlm_correct"] / max(sums["labeled"], 1),
        }
        if sums["pairs"]:
            line["nsp_loss"] = sums["nsp_loss"] / pair_steps
            line["nsp_accuracy"] = sums["nsp_correct"] / sums["pairs"]
        if sums["disc_loss"]:
            line["disc_loss"] = sums["disc_loss"] / steps
            line["disc_accuracy"] = sums["disc_correct"] / sums["tokens"]
            line["replaced"] = sums["replaced"] / sums["tokens"]
        if self.has_teacher:
            line["soft_loss"] = sums["soft_loss"] / steps
            if sums["cos_loss"]:  # 0 if the hidden sizes differ
                line["cos_loss"] = sums["cos_loss"] / steps
        if self.frequency_loss is not None:
            line["mlm_gain"] = self.frequency_loss - line["mlm_loss"]
        line |= {
            "tokens": int(self._totals["tokens"]),
            "tokens_per_second": round(sums["tokens"] / seconds),
            "padding": 1 - sums["tokens"] / sums["positions"],
        }
        if self.peak_flops is not None:
            line["mfu"] = sums["flops"] / seconds / self.peak_flops
        return line

    def summarize(self, steps: int) -> dict[str, float]:
        """Returns the mean loss over all `steps` of the run, and its FLOPs. All processes must call it."""
        sums = self._collect()
        loss = self._totals["loss"] + self._add_losses(sums)
        return {"train_loss": loss / max(steps, 1), "total_flos": self._totals["flops"] + sums["flops"]}

    # --- checkpoints --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns counts and totals as JSON values. All processes must call it."""
        return {
            "sums": self._collect(),
            "steps": self._steps,
            "pair_steps": self._pair_steps,
            "seconds": self._elapsed_seconds(),
            "totals": dict(self._totals),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of [`state_dict`]. The main process takes the sums of all processes."""
        sums = state["sums"] if self._is_main_process else {}
        self._model_sums.copy_(self._model_sums.new_tensor([sums.get(name, 0.0) for name in MODEL_SUMS]))
        self._data_sums = np.array([sums.get(name, 0.0) for name in DATA_SUMS], dtype=np.float64)
        self._steps = int(state["steps"])
        self._pair_steps = int(state.get("pair_steps", self._steps))  # before `:mlm`, all steps or none had pairs
        self._seconds = float(state["seconds"])
        self._window_start = None
        self._totals = {name: float(state["totals"].get(name, 0.0)) for name in self._totals}

    def _collect(self) -> dict[str, float]:
        """Adds up the sums over all processes. Afterwards, the main process holds them. Other processes hold zeros."""
        sums = self._reduce(torch.cat([self._model_sums, self._model_sums.new_tensor(self._data_sums)]))
        kept = sums if self._is_main_process else torch.zeros_like(sums)
        model_sums, data_sums = kept.split([len(MODEL_SUMS), len(DATA_SUMS)])
        self._model_sums.copy_(model_sums)  # in place, because CUDA graphs add to this tensor
        self._data_sums = data_sums.cpu().double().numpy()
        return dict(zip(MODEL_SUMS + DATA_SUMS, sums.tolist(), strict=True))

    def _elapsed_seconds(self) -> float:
        """Training time since the last log line, including the time before a run was stopped and resumed."""
        return self._seconds + (0.0 if self._window_start is None else time.perf_counter() - self._window_start)

    def _add_losses(self, sums: Mapping[str, float]) -> float:
        loss = sums["mlm_loss"] + sums["nsp_loss"] + DISCRIMINATOR_WEIGHT * sums["disc_loss"]
        if self.has_teacher:
            loss = LABEL_WEIGHT * loss + SOFT_WEIGHT * sums["soft_loss"] + COSINE_WEIGHT * sums["cos_loss"]
        return loss


class MetricsFile:
    """`metrics.jsonl`: the log of a run, one JSON object per line.

    The first call of `append` rewrites the file, starting with `log_history`. So a run that fails early does not
    change the file. A resumed run drops the lines after its checkpoint, and an incomplete line.

    Args:
        file: the path.
        log_history: the lines up to the checkpoint. Empty for a new run.
    """

    def __init__(self, file: Path, log_history: Sequence[Mapping[str, Any]]):
        self._file = file
        self._lines_before: str | None = "".join(map(_to_json_line, log_history))

    def append(self, line: Mapping[str, Any]) -> None:
        """Writes a line.

        Raises:
            InputError: the file cannot be written.
        """
        with writing(self._file, RESUME):
            if self._lines_before is not None:
                self._file.write_text(self._lines_before)
                self._lines_before = None
            with self._file.open("a") as file:
                file.write(_to_json_line(line))


def _to_json_line(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"


# --- FLOPs of a batch, and of the device -----------------------------------------------------------------------------


def count_sequence_tokens(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts the tokens of each sequence, and the labeled tokens among them.

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
        batch: packed or padded, see [`count_sequence_tokens`], with `next_sentence_label` if the model has that head.
        generator: configuration of ELECTRA's generator.
        teacher: configuration of the teacher. If it has the hidden size of the model, the last hidden states of all
            tokens are compared.

    Returns:
        A float64 scalar (float32 on a device without float64) on the device of the batch. *Shape:* ()
    """
    lengths, labeled = count_sequence_tokens(batch)
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
        config: configuration of the discriminator.
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
