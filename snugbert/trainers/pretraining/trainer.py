"""Trainer for masked tokens and next sentences.

The loss has two exact denominators, labelled tokens and sentence pairs of the whole batch, over gradient accumulation
and processes. Whatever is logged comes from the same forward pass; evaluation keeps five numbers a pair, no logits.

Shapes: a packed batch has N sentence pairs.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import EvalPrediction, Trainer, TrainingArguments

from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.command_line import InputError


@dataclass
class PretrainingArguments(TrainingArguments):
    """`TrainingArguments` with the paper's pretraining settings as defaults.

    Devlin et al. (2018), appendix A.2: learning rate 1e-4 with warmup over the first 1 % of the steps and linear
    decay, AdamW with weight decay 0.01; epsilon 1e-6 is the original release's. The paper's batch is 256 sequences:
    `per_device_train_batch_size` x `gradient_accumulation_steps` x processes.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "The peak learning rate."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay, not on biases and LayerNorm."})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "Epsilon of AdamW."})
    warmup_steps: float = field(
        default=0.01, metadata={"help": "Steps of linear warmup; a number below 1 is a share of all steps."}
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Sequences of a device's batch."})
    logging_steps: float = field(default=100, metadata={"help": "Steps between two lines of the log."})

    def __post_init__(self):
        # The dataset is shuffled already, and a sampler's own state could not be resumed exactly. The collator needs
        # what the model does not. Evaluation gives sums of pairs, to be added up over all batches.
        self.train_sampling_strategy = "sequential"
        self.remove_unused_columns = False
        self.eval_do_concat_batches, self.batch_eval_metrics = True, False
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # both losses together use all
        if self.label_smoothing_factor:
            raise InputError("--label_smoothing_factor is not for pretraining, which has two losses.")
        super().__post_init__()


class PretrainingTrainer(Trainer):
    """Trainer for [`SnugBertForPreTraining`] on examples of [`SentencePairDataset`].

    It normalizes the next-sentence loss as exactly as Trainer does the masked token loss, logs both losses, both
    accuracies and tokens per second, and evaluates without keeping logits.

    Args:
        epoch_length: examples of an epoch, so that the logged `epoch` counts passes over the corpus, not over a
            dataset that holds them all; None: the length of `train_dataset`.
        kwargs: as in `Trainer`.
    """

    def __init__(self, *, epoch_length: int | None = None, **kwargs: Any):
        super().__init__(**kwargs, compute_metrics=_metrics_of_evaluation)
        self.epoch_length = epoch_length
        # What the next line of the log is about: sums (see `_training_sums`), number of steps and start of the first.
        self._sums = torch.zeros(7, device=self.args.device)
        self._steps = 0
        self._window_start = 0.0

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The batches of a step, as in Trainer; counts their sentence pairs over all processes."""
        if self._steps == 0:
            self._window_start = time.perf_counter()
        self._steps += 1
        samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        pairs = torch.full((), sum(len(sample["next_sentence_label"]) for sample in samples), device=device)
        # Without this Trainer's own count is this process's too.
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            pairs = self.accelerator.gather(pairs).sum()
        self._num_sequences_in_batch = pairs
        return samples, num_items

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """As in Trainer, with the count of sentence pairs; adds to the figures of the next log line."""
        inputs = {**inputs, "num_sequences_in_batch": self._num_sequences_in_batch}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self._sums += _training_sums(outputs, inputs)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in Trainer; a line of training gains the losses, accuracies and tokens per second since the last."""
        if "loss" in logs:
            sums = self.accelerator.reduce(self._sums).tolist()
            mlm_loss, mlm_correct, mlm_tokens, nsp_loss, nsp_correct, pairs, tokens = sums
            # A process has its share of the global mean, unless each was told to take a mean of its own.
            shares = self._steps * (1 if self.args.average_tokens_across_devices else self.args.world_size)
            logs["mlm_loss"] = mlm_loss / shares
            logs["mlm_accuracy"] = mlm_correct / mlm_tokens
            logs["nsp_loss"] = nsp_loss / shares
            logs["nsp_accuracy"] = nsp_correct / pairs
            logs["tokens_per_second"] = round(tokens / (time.perf_counter() - self._window_start))
            self._sums.zero_()
            self._steps = 0
        trainer_epoch = self.state.epoch
        if self.epoch_length is not None and trainer_epoch is not None:
            batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            self.state.epoch = self.state.global_step * batch / self.epoch_length
        super().log(logs, start_time)
        self.state.epoch = trainer_epoch

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in Trainer; the time it takes does not count in tokens per second."""
        start = time.perf_counter()
        metrics = super().evaluate(*args, **kwargs)
        self._window_start += time.perf_counter() - start
        return metrics

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Five sums for each pair instead of its logits: (None, (N, 5), next-sentence labels (N,))."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs, sparse_prediction=True)
        return None, _sums_of_pairs(outputs, inputs), inputs["next_sentence_label"]


def _training_sums(outputs: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Masked token loss, correct, number; next-sentence loss, correct, number; word pieces. *Shape:* (7,).

    The losses are this micro-batch's share of its step's.
    """
    with torch.no_grad():
        targets = inputs["labels"][inputs["labels"] != IGNORE_INDEX]
        nsp_labels = inputs["next_sentence_label"]
        sums = [  # new_full: a number that is copied to a GPU waits for it, one that is filled in there does not
            outputs["mlm_loss"],
            (outputs["prediction_logits"].argmax(-1) == targets).sum(),
            targets.new_full((), len(targets)),
            outputs["nsp_loss"],
            (outputs["seq_relationship_logits"].argmax(-1) == nsp_labels).sum(),
            targets.new_full((), len(nsp_labels)),
            targets.new_full((), inputs["input_ids"].numel()),
        ]
        return torch.stack([term.float() for term in sums])


def _sums_of_pairs(outputs: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """For each pair: masked token loss, correct and number, next-sentence loss and correct. *Shape:* (N, 5)."""
    labels = inputs["labels"][0]
    tokens = (labels != IGNORE_INDEX).nonzero().squeeze(-1)
    targets = labels[tokens]
    # A token belongs to the last sequence that begins at or before it.
    pair_of_token = torch.searchsorted(inputs["cu_seq_lens_q"].long(), tokens, right=True) - 1
    logits, nsp_logits = outputs["prediction_logits"].float(), outputs["seq_relationship_logits"].float()
    nsp_labels = inputs["next_sentence_label"]
    of_tokens = torch.stack(
        [
            F.cross_entropy(logits, targets, reduction="none"),
            (logits.argmax(-1) == targets).float(),
            torch.ones_like(targets, dtype=torch.float32),
        ],
        dim=-1,
    )
    of_pairs = torch.stack(
        [F.cross_entropy(nsp_logits, nsp_labels, reduction="none"), (nsp_logits.argmax(-1) == nsp_labels).float()],
        dim=-1,
    )
    sums = torch.zeros(len(nsp_labels), of_tokens.shape[1], device=logits.device)
    sums.index_add_(0, pair_of_token, of_tokens)
    return torch.cat([sums, of_pairs], dim=-1)


def _metrics_of_evaluation(prediction: EvalPrediction) -> dict[str, float]:
    sums_of_pairs = np.asarray(prediction.predictions)
    mlm_loss, mlm_correct, mlm_tokens, nsp_loss, nsp_correct = sums_of_pairs.sum(axis=0, dtype=np.float64)
    pairs = len(sums_of_pairs)
    metrics = {
        "mlm_loss": mlm_loss / mlm_tokens,
        "mlm_accuracy": mlm_correct / mlm_tokens,
        "nsp_loss": nsp_loss / pairs,
        "nsp_accuracy": nsp_correct / pairs,
    }
    return {"loss": metrics["mlm_loss"] + metrics["nsp_loss"], **{name: float(x) for name, x in metrics.items()}}
