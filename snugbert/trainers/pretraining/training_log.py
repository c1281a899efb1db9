"""The metrics of a training run: counts over the steps since the last log line, and totals of the run.

Losses and accuracies come from the forward passes of training itself. The counts are part of a checkpoint, so the log
of a resumed run equals the log of an uninterrupted run.

Model FLOPs utilization (MFU: Chowdhery et al., 2022, "PaLM", appendix B) is

    FLOPs that the steps need / (seconds x processes x peak FLOPs per second of the datasheet)

Needed FLOPs exclude waste: padding, logits of unlabeled tokens, recomputation.

Shapes: N sequences of T tokens in total.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig
from transformers.utils import ModelOutput

from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.pretraining.pretraining_arguments import (
    COSINE_WEIGHT,
    DISCRIMINATOR_WEIGHT,
    LABEL_WEIGHT,
    SOFT_WEIGHT,
)
from snugbert.trainers.pretraining.scores import get_mlm_logits

# Sums since the last log line. The sums of the model stay on its device until they are needed.
MODEL_SUMS = (
    *("mlm_loss", "mlm_correct", "nsp_loss", "nsp_correct"),
    *("disc_loss", "disc_correct", "replaced"),
    *("soft_loss", "cos_loss"),
)
DATA_SUMS = ("labeled", "pairs", "tokens", "flops")

TRAINING_COST = 3  # the backward pass needs two matrix products for each product of the forward pass
# FLOPs per second of dense 16-bit matrix products, from NVIDIA's datasheets. Keys are words of the GPU's name.
PEAK_FLOPS = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,  # float16
    "T4": 65e12,  # float16
}


def count_batch(
    batch: Mapping[str, Any],
    config: PreTrainedConfig,
    generator: PreTrainedConfig | None = None,
    teacher: PreTrainedConfig | None = None,
) -> torch.Tensor:
    """Returns the numbers of `DATA_SUMS` of a batch on the CPU. *Shape:* (4,), int64

    The first three are denominators of losses. Data workers call this function, so it does not slow down training.

    The FLOPs include the forward and backward pass of the model, and the forward pass of a teacher. With a
    `generator`, `config` belongs to ELECTRA's discriminator.
    """
    lengths, labeled = count_sequence_tokens(batch)
    pairs = (torch.as_tensor(batch.get("next_sentence_label", [])) != IGNORE_INDEX).sum()
    flops = pretraining_flops(config if generator is None else generator, lengths, labeled)
    if generator is not None:
        flops += encoder_flops(config, lengths, lengths)
    flops *= TRAINING_COST
    if teacher is not None:
        flops += pretraining_flops(teacher, lengths, labeled)
    return torch.tensor([labeled.sum().item(), pairs.item(), lengths.sum().item(), flops], dtype=torch.int64)


class TrainingLog:
    """Adds up the metrics of a training run. `reduce` adds up the sums of all processes for the main process."""

    def __init__(self, device: torch.device, is_main_process: bool, reduce: Callable[[torch.Tensor], torch.Tensor]):
        self._is_main_process = is_main_process
        self._reduce = reduce
        # FLOPs per second of the devices of all processes together. None: unknown, so there is no `mfu`.
        self.peak_flops: float | None = None
        # Masked token loss of predicting tokens by their frequency, for `mlm_gain`. None: no text to count.
        self.frequency_loss: float | None = None
        self.has_teacher = False  # whether the outputs have the losses of distillation
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

    def exclude_time(self, seconds: float) -> None:
        """Excludes time that was not spent on training."""
        if self._window_start is not None:
            self._window_start += seconds

    def add_batches(self, counts: Sequence[torch.Tensor], has_pairs: bool) -> None:
        """Adds the results of [`count_batch`] for a step. Steps without sentence pairs do not count in `nsp_loss`."""
        self._data_sums += sum(each.numpy() for each in counts)
        self._pair_steps += has_pairs

    def add_outputs(self, outputs: ModelOutput, inputs: Mapping[str, torch.Tensor]) -> None:
        """Adds the losses and correct predictions of a batch. Each loss is the batch's share of the step's loss."""
        with torch.no_grad():
            mlm_correct = get_mlm_logits(outputs)
            if mlm_correct.dim() > 0:  # logits instead of a number, from other models or with a teacher
                labels = inputs["labels"].flatten()
                is_labeled = labels != IGNORE_INDEX
                # Only labeled tokens have logits. To select these tokens, the host would have to wait for their
                # number. So each token looks up the prediction of the last labeled token up to it.
                predicted = F.pad(mlm_correct.argmax(-1), (1, 0))
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

        The reference page on output folders describes the metrics. `disc_loss`, `soft_loss` and `cos_loss` are not yet
        multiplied by their weights.
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
        line |= {"tokens": int(self._totals["tokens"]), "tokens_per_second": round(sums["tokens"] / seconds)}
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
        self._steps, self._pair_steps = state["steps"], state["pair_steps"]
        self._seconds, self._window_start = state["seconds"], None
        self._totals = dict(state["totals"])

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


# --- FLOPs of a batch, and of the device -----------------------------------------------------------------------------


def count_sequence_tokens(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts the tokens of each sequence, and the labeled tokens among them, without padding. *Shape:* (N,) each

    A packed batch has `cu_seq_lens_q` (N + 1,) and `labels` (1, T). A padded batch has `labels` (N, L) and, unless
    there is no padding, `attention_mask` (N, L).
    """
    is_labeled = batch["labels"] != IGNORE_INDEX
    if "cu_seq_lens_q" in batch:
        starts, number = batch["cu_seq_lens_q"].long(), batch.get("num_sequences")
        labeled_before = F.pad(is_labeled[0].cumsum(-1), (1, 0))
        return starts.diff()[:number], labeled_before[starts].diff()[:number]
    mask = batch.get("attention_mask")
    lengths = torch.ones_like(batch["labels"]) if mask is None else (mask != 0)
    return lengths.sum(-1), is_labeled.sum(-1)


def pretraining_flops(config: PreTrainedConfig, lengths: torch.Tensor, labeled: torch.Tensor) -> int:
    """Counts the FLOPs of a forward pass with the masked token head, see [`encoder_flops`]. *Shape:* (N,) each"""
    H, E = config.hidden_size, getattr(config, "embedding_size", None) or config.hidden_size
    head = int(labeled.sum()) * 2 * (H * E + E * config.vocab_size)
    return encoder_flops(config, lengths, labeled + 1) + head


def encoder_flops(config: PreTrainedConfig, lengths: torch.Tensor, read: torch.Tensor) -> int:
    """Counts the FLOPs of matrix products in a forward pass of the encoder. A product of m x k and k x n counts 2mkn.

    The last layer computes keys and values for all tokens, but queries, output and feed-forward only for tokens that a
    head reads. `lengths` counts the tokens of each sequence, and `read` the tokens that a head reads. *Shape:* (N,)
    """
    H, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    E = getattr(config, "embedding_size", None) or H
    queries = (layers - 1) * lengths + read
    per_token = layers * 4 * H * H + (2 * E * H if E != H else 0)  # keys and values, projection of the embeddings
    per_query = 4 * H * H + 4 * H * inner  # queries, output, feed-forward
    attention = 4 * H * int((queries * lengths).sum())
    return int(lengths.sum()) * per_token + int(queries.sum()) * per_query + attention


def find_peak_flops(device_name: str) -> float | None:
    """Returns the FLOPs per second of a GPU in 16-bit matrix products, from `PEAK_FLOPS`. None: not in the table."""
    words = f" {device_name.replace('-', ' ')} "
    return next((flops for name, flops in PEAK_FLOPS.items() if f" {name} " in words), None)
