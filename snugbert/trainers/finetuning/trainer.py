"""Trainer for fine-tuning: packed batches, a loss that is exact for every head, layers that learn at their own pace.

Shapes in comments: N examples of a batch, T tokens of all of them, L tokens of the longest, C labels.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn
from transformers import EvalPrediction, PreTrainedModel, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.packed_batches import SnugBertDataCollatorWithPacking, count_tokens
from snugbert.trainers.finetuning.arguments import FineTuningArguments
from snugbert.trainers.shared_trainer import CardTrainer

WHAT_TO_TRY = "try a lower --learning_rate, more --warmup_steps, or --bf16 or float32 instead of --fp16."
PADDING = -100  # of predictions where a sequence has no token, as in Trainer
LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")
EMBEDDINGS = re.compile(r"(?:^|\.)embeddings\.")

Loss = Callable[..., torch.Tensor]


class DivergedError(InputError):
    """The loss, or a score of the model, is no number any more."""


class FineTuningTrainer(CardTrainer):
    """Trainer for a head on top of the encoder.

    - SnugBERT gets packed batches, in training and in evaluation, unless the arguments ask for padding. Evaluation
      reads examples of similar length together. Predictions come in the order of the dataset and in stock shapes all
      the same: [N, C] of sequences; of tokens [N, L, C] or, of question answering, twice [N, L], -100 where a sequence
      has none.
    - The loss is divided by what the accumulated batches of all processes hold: labels, labelled tokens, or windows of
      questions, which Trainer does not count.
    - A loss that is no number ends the run.

    Args:
        model: with a head.
        args: the arguments.
        padding_collator: makes a padded batch of features, where no packed one is wanted.
        of_tokens: whether the head has outputs for every token.
        class_weights: weights of the classes in the loss, see [`weighted_loss`]. *Shape:* (C,)
        kwargs: as in `Trainer`. `compute_metrics` needs no labels: it is called with the predictions alone.

    Raises:
        InputError: more layers to freeze than there are, or a model whose layers are not known.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        args: FineTuningArguments,
        padding_collator: Any,
        of_tokens: bool,
        class_weights: torch.Tensor | None = None,
        **kwargs: Any,
    ):
        packs = isinstance(model.config, SnugBertConfig) and not args.pad_to_max_length
        self._of_tokens = of_tokens
        self._order: np.ndarray = np.arange(0)  # of the examples of the evaluation that is going on
        if args.freezes:
            frozen = _frozen_parameters(model, args)
            if args.unfreeze_after_steps is None:
                for parameter in frozen:
                    parameter.requires_grad_(False)
            else:
                # DDP has to know what is trained before it is, and to bear with parameters that are not used yet.
                args.ddp_find_unused_parameters = True
                kwargs["callbacks"] = [*kwargs.get("callbacks", []), Unfreezing(frozen, args.unfreeze_after_steps)]
        super().__init__(
            model=model,
            args=args,
            data_collator=SnugBertDataCollatorWithPacking() if packs else padding_collator,
            compute_loss_func=None if class_weights is None else weighted_loss(class_weights),
            **kwargs,
        )
        if not isinstance(model.config, SnugBertConfig):
            # Others take the number of labels of the whole batch and ignore it; Trainer then has to divide.
            self.model_accepts_loss_kwargs = False

    # --- training -----------------------------------------------------------------------------------------------

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | int | None:
        # A window of a question has two labels, neither of them called so.
        if batch_samples and "start_positions" in batch_samples[0]:
            batch_samples = [{"labels": batch["start_positions"]} for batch in batch_samples]
        return super()._get_num_items_in_batch(batch_samples, device)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As in `Trainer`, but a loss that is no number is an error.

        Raises:
            DivergedError: the loss is NaN or infinite.
        """
        loss = super().training_step(*args, **kwargs)
        if not torch.isfinite(loss):
            raise DivergedError(f"the loss is {loss.item()} in step {self.state.global_step + 1}; {WHAT_TO_TRY}")
        return loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As in `Trainer`, with a learning rate for each layer if `layerwise_lr_decay` is below 1."""
        optimizer = super().create_optimizer(model)
        decay = self.args.layerwise_lr_decay  # type: ignore[attr-defined]
        if decay < 1:
            depths = find_depths(model or self.model)  # type: ignore[arg-type]
            top = max(depths.values())
            optimizer.param_groups[:] = [
                {**group, "params": parameters, "lr": group["lr"] * decay ** (top - depth)}
                for depth in range(top, -1, -1)  # the head first: the log shows the rate of the first group
                for group in optimizer.param_groups
                if (parameters := [parameter for parameter in group["params"] if depths[parameter] == depth])
            ]
        return optimizer

    # --- evaluation ---------------------------------------------------------------------------------------------

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Any:
        # Long ones first: what does not fit into memory shows at once.
        self._order = np.argsort(-count_tokens(eval_dataset), kind="stable")
        return self._order.tolist()

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, None]:
        """As in `Trainer`, but with a row for each sequence of a packed batch, and without labels."""
        loss, predictions, _ = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        if predictions is not None and self._of_tokens and "cu_seq_lens_q" in inputs:
            lengths = inputs["cu_seq_lens_q"].diff().tolist()
            if isinstance(predictions, tuple):
                predictions = tuple(_rows(scores, lengths) for scores in predictions)
            else:
                predictions = _rows(predictions, lengths)
        return loss, predictions, None

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in `Trainer`; predictions and score are in the order of the dataset."""
        prefix = kwargs.get("metric_key_prefix", "eval")
        score, self.compute_metrics = self.compute_metrics, None
        try:
            output = super().evaluation_loop(*args, **kwargs)
        finally:
            self.compute_metrics = score
        if output.predictions is None:
            return output
        places = np.argsort(self._order)
        predictions: Any = output.predictions
        if any(
            np.isnan(scores).any() for scores in (predictions if isinstance(predictions, tuple) else [predictions])
        ):
            message = f"{prefix}: scores of the model are no numbers"
            if self.state.global_step:
                raise DivergedError(f"{message} after step {self.state.global_step}; {WHAT_TO_TRY}")
            raise DivergedError(f"{message}; are its weights whole? Try without --fp16.")
        predictions = tuple(p[places] for p in predictions) if isinstance(predictions, tuple) else predictions[places]
        metrics = dict(output.metrics or {})
        if score is not None:
            figures = score(EvalPrediction(predictions=predictions, label_ids=None))  # type: ignore[arg-type]
            metrics.update({f"{prefix}_{name}": value for name, value in figures.items()})
        return output._replace(predictions=predictions, metrics=metrics)


class Unfreezing(TrainerCallback):
    """Parameters that learn nothing for the first steps."""

    def __init__(self, parameters: list[nn.Parameter], after_steps: int):
        self.parameters, self.after_steps = parameters, after_steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Freezes before the first step, or the first after resuming; unfreezes after `after_steps`."""
        learns = state.global_step >= self.after_steps
        if self.parameters[0].requires_grad != learns:
            for parameter in self.parameters:
                parameter.requires_grad_(learns)


def weighted_loss(weights: torch.Tensor) -> Loss:
    """Cross entropy in which a label of class c counts `weights[c]` times: a `compute_loss_func` for Trainer.

    The sum is divided by the number of labels, not of their weights, so that it is exact under accumulation.
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"].float()
        if num_items_in_batch is None:
            num_items_in_batch = (labels != IGNORE_INDEX).sum()
        # Packed sentences may have no label at all.
        number = torch.as_tensor(num_items_in_batch, device=logits.device).clamp(min=1)
        total = F.cross_entropy(
            logits.view(-1, logits.shape[-1]),
            labels.view(-1),
            weights.to(logits.device),
            ignore_index=IGNORE_INDEX,
            reduction="sum",
        )
        return total / number

    return loss


def find_depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """How far above the input each parameter is: 0 the embeddings, 1 the first layer, and above the last the head.

    As in Clark et al. (2020), "ELECTRA", whose layer-wise rates begin at the head.

    Raises:
        InputError: the parameters are not named as BERT's.
    """
    layers = {name: int(found[1]) for name, _ in model.named_parameters() if (found := LAYER.search(name))}
    if not layers:
        raise InputError(
            "--layerwise_lr_decay and freezing need BERT's layers, and this model has none of their name."
        )
    head = max(layers.values()) + 2
    return {
        parameter: 0 if EMBEDDINGS.search(name) else layers.get(name, head - 1) + 1
        for name, parameter in model.named_parameters()
    }


def _frozen_parameters(model: nn.Module, args: FineTuningArguments) -> list[nn.Parameter]:
    depths = find_depths(model)
    layers = max(depths.values()) - 1
    if args.freeze_layers > layers:
        raise InputError(f"--freeze_layers {args.freeze_layers}: the model has {layers} layers.")
    return [parameter for parameter, depth in depths.items() if depth <= args.freeze_layers]


def _rows(scores: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """[1, T, ...] -> [N, L, ...]."""
    return nn.utils.rnn.pad_sequence(list(scores[0].split(lengths)), batch_first=True, padding_value=PADDING)
