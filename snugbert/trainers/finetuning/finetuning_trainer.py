"""The Trainer of fine-tuning: packed batches, exact losses, per-layer learning rates, freezing.

Shapes in comments: N examples in a batch, T tokens in total, L tokens in the longest example, C labels.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedModel, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, has_length

from snugbert.data.packed_batches import TokenBudgetDataset, count_tokens
from snugbert.data.row_sizes import FillRows, choose_fine_tuning_multiple
from snugbert.errors import InputError, format_count
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.tasks.outputs import PADDING, Output
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.run_trainer import RunTrainer
from snugbert.trainers.stopping import REMEDY, DivergedError

MOST_EVALUATIONS = 20  # during a run, unless the user chooses when to evaluate
LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")
# ELECTRA projects its embeddings. The embeddings of DeBERTa's relative positions are in the encoder.
EMBEDDINGS = re.compile(r"(?:^|\.)(?:embeddings|embeddings_project|encoder\.rel_embeddings|encoder\.LayerNorm)\.")

Loss = Callable[..., torch.Tensor]


class FineTuningTrainer(RunTrainer):
    """Trainer for a head on top of the encoder.

    - The data collator packs or pads batches. Predictions are the same: in the order of the dataset, with the shapes
      of padded batches and -100 as padding. Sequence heads return [N, C], token heads [N, L, C], and question
      answering two arrays [N, L].
    - Evaluation batches contain examples of similar length. If rows are filled, they contain random examples instead,
      so that they have a few sizes.
    - The loss is divided by the number of labels in all accumulated batches of all processes. Token heads count
      labeled tokens. Question answering counts windows, which Trainer does not do.
    - `eval_loss` is the mean over all labels. In Trainer it is the mean over batches. Examples that several processes
      repeat to fill the last batch count twice.
    - A loss or gradient norm that is not finite ends the run.

    Args:
        model: a model with a head.
        args: the arguments.
        output: the form of the logits.
        class_weights: weights of the classes in the loss, see [`weighted_loss`]. *Shape:* (C,)
        kwargs: as in `Trainer`. `compute_metrics` scores `eval_dataset` during training. It gets predictions without
            labels. [`predict`] does not call it.

    Raises:
        InputError: `freeze_layers` is more than the model's number of layers, or includes re-initialized layers.
    """

    compared_names: tuple[str, ...] = (
        "reinit_layers",
        "layerwise_lr_decay",
        "freeze_embeddings",
        "freeze_layers",
        "unfreeze_after_steps",
        "class_weights",
        "early_stopping_patience",
        "early_stopping_threshold",
        "data_seed",
        "train_sampling_strategy",
    )

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        args: FineTuningArguments,
        output: Output,
        class_weights: torch.Tensor | None = None,
        **kwargs: Any,
    ):
        self.output = output
        self._order: np.ndarray = np.arange(0)  # dataset indices in the order of the current evaluation
        # Sum of the losses, and number of labels, in each batch of the current evaluation. None outside of it.
        self._losses: list[torch.Tensor] | None = None
        self._last_evaluation: tuple[int, EvalLoopOutput] | None = None  # step and result
        if args.freezes:
            frozen = _frozen_parameters(model, args)
            if args.unfreeze_after_steps is None:
                for parameter in frozen:
                    parameter.requires_grad_(False)
            else:
                # DDP registers trained parameters once, before training. These are unused at first.
                args.ddp_find_unused_parameters = True
                kwargs["callbacks"] = [*kwargs.get("callbacks", []), Unfreezing(frozen, args.unfreeze_after_steps)]
        super().__init__(
            model=model,
            args=args,
            compute_loss_func=None if class_weights is None else weighted_loss(class_weights.to(args.device)),
            **kwargs,
        )
        self.run_settings.keeps_checkpoints = args.keeps_checkpoints

    # --- training -----------------------------------------------------------------------------------------------

    def _explain_unfilled_rows(self) -> str | None:
        if self.args.pad_to_max_length:  # type: ignore[attr-defined]
            return "--pad_to_max_length pads each example"
        return super()._explain_unfilled_rows()

    def _suggest_multiple(self, dataset: Any, batch_size: int) -> int:
        if isinstance(dataset, TokenBudgetDataset):
            return batch_size * dataset.max_tokens
        if dataset is self.train_dataset and self.args.train_sampling_strategy == "group_by_length":
            return 0  # rows of similar examples have many sizes
        has_tokens = has_length(dataset) and len(dataset) > 0 and "input_ids" in dataset[0]  # type: ignore[index]
        return choose_fine_tuning_multiple(batch_size, count_tokens(dataset)) if has_tokens else 0

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """As in Trainer, which counts the column `labels`. The form of the logits names the column to count."""
        batches, count = super().get_batch_samples(*args, **kwargs)
        name = self.output.counted_labels
        if name != "labels" and batches and name in batches[0]:
            counted = [{"labels": batch[name]} for batch in batches]
            count = self._get_num_items_in_batch(counted, self.args.device)
        return batches, count

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """As in Trainer. In evaluation, the loss of a batch is the mean over its own labels."""
        count = None if self._losses is not None else num_items_in_batch
        return super().compute_loss(model, inputs, return_outputs, count)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As in `Trainer`, with a learning rate per layer if `layerwise_lr_decay` is below 1."""
        optimizer = super().create_optimizer(model)
        decay = self.args.layerwise_lr_decay  # type: ignore[attr-defined]
        if decay < 1:
            depths = find_depths(model or self.model)  # type: ignore[arg-type]
            top = max(depths.values())
            optimizer.param_groups[:] = [
                {**group, "params": parameters, "lr": group["lr"] * decay ** (top - depth)}
                for depth in range(top, -1, -1)  # the head first: Trainer logs the rate of the first group
                for group in optimizer.param_groups
                if (parameters := [parameter for parameter in group["params"] if depths[parameter] == depth])
            ]
        return optimizer

    # --- evaluation ---------------------------------------------------------------------------------------------

    def _get_eval_sampler(self, eval_dataset: Dataset) -> list[int]:  # type: ignore[override]
        # No public method chooses the order of an evaluation.
        if isinstance(self.data_collator, FillRows):
            self._order = np.random.default_rng(0).permutation(len(eval_dataset))  # type: ignore[arg-type]
        else:
            # Long examples first, so that a batch that does not fit into memory fails at once.
            self._order = np.argsort(-count_tokens(eval_dataset), kind="stable")
        return self._order.tolist()

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, None]:
        """As in `Trainer`, but pads the logits of packed batches, and returns no labels.

        The logits of padding in filled rows are dropped.
        """
        model = self.graphs.for_evaluation(model)
        loss, logits, _ = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        labels = inputs.get(self.output.counted_labels)
        if loss is not None and labels is not None and self._losses is not None:
            count = (labels != IGNORE_INDEX).sum()
            if labels.is_floating_point():  # -100 is a number
                count = torch.full_like(count, labels[: inputs.get("num_sequences")].numel())
            self._losses.append(torch.stack([(loss * count).masked_fill(count == 0, 0), count]))
        number = inputs.get("num_sequences")  # None: the row is not filled
        if logits is not None and self.output.per_token and "cu_seq_lens_q" in inputs:
            lengths = inputs["cu_seq_lens_q"].diff()[:number].tolist()
            if isinstance(logits, tuple):
                logits = tuple(_pad(part, lengths) for part in logits)
            else:
                logits = _pad(logits, lengths)
        elif logits is not None and number is not None:
            logits = logits[: number // inputs.get("num_choices", 1)]
        return loss, logits, None

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in `Trainer`, with predictions in the order of the dataset. Does not change the random state of training.

        Raises:
            DivergedError: a logit is NaN.
        """
        prefix = kwargs.get("metric_key_prefix", "eval")
        self._losses = []
        try:
            with torch.random.fork_rng(devices=[]):  # the data loader draws a seed
                output = super().evaluation_loop(dataloader, description, *args, **kwargs)
            losses = self._losses
        finally:
            self._losses = None
        if losses:
            total, count = self.accelerator.reduce(torch.stack(losses).sum(0)).tolist()
            (output.metrics or {})[f"{prefix}_loss"] = total / max(count, 1)
        if output.predictions is None:
            return output
        predictions: Any = output.predictions
        parts = predictions if isinstance(predictions, tuple) else (predictions,)
        if any(np.isnan(part).any() for part in parts):
            if self.state.global_step:
                raise DivergedError(f"{prefix}: the logits are NaN after step {self.state.global_step}. {REMEDY}")
            raise DivergedError(
                f"{prefix}: the logits are NaN. Try without --fp16. Otherwise, the weights may be damaged."
            )
        places = np.argsort(self._order)
        predictions = tuple(p[places] for p in parts) if isinstance(predictions, tuple) else predictions[places]
        metrics = dict(output.metrics or {})
        if self.compute_metrics is not None and description == "Evaluation":  # not for `predict`
            scores = self.compute_metrics(EvalPrediction(predictions=predictions, label_ids=None))  # type: ignore[arg-type]
            metrics.update({f"{prefix}_{name}": value for name, value in scores.items()})
        output = output._replace(predictions=predictions, metrics=metrics)
        if description == "Evaluation":
            self._last_evaluation = self.state.global_step, output
        return output

    def predict_once(self, test_dataset: Dataset, metric_key_prefix: str) -> EvalLoopOutput | PredictionOutput:
        """As `predict`, but returns the last evaluation if it had these examples, this prefix and the same weights."""
        step = self.state.global_step
        if self.args.load_best_model_at_end:
            step = self.state.best_global_step or step
        if self._last_evaluation is not None and test_dataset is self.eval_dataset and metric_key_prefix == "eval":
            evaluated, output = self._last_evaluation
            if evaluated == step:
                return output
        return self.predict(test_dataset, metric_key_prefix=metric_key_prefix)  # type: ignore[arg-type]


class FewerEvaluations(TrainerCallback):
    """Evaluates `MOST_EVALUATIONS` times in a run of more epochs: after every second epoch, or more rarely.

    With 16 labels, an epoch is one step, and evaluating after each would take most of the time.
    """

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after it set what is due. The last evaluation stays, because it scores the model."""
        every = math.ceil(state.num_train_epochs / MOST_EVALUATIONS)
        if round(state.epoch) % every and state.global_step < state.max_steps:
            control.should_evaluate = False


class EarlyStopping(EarlyStoppingCallback):
    """Early stopping that keeps its count on resume. Trainer would start again with the full patience."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step. The `state` contains the count at the checkpoint."""
        super().on_train_begin(args, state, control, **kwargs)
        stored = state.stateful_callbacks.get(type(self).__name__, {"attributes": {}})
        vars(self).update(stored["attributes"])


class Unfreezing(TrainerCallback):
    """Keeps parameters frozen for the first steps."""

    def __init__(self, parameters: list[nn.Parameter], after_steps: int):
        self.parameters, self.after_steps = parameters, after_steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Freezes before the first step, also in a resumed run, and unfreezes after `after_steps`."""
        trained = state.global_step >= self.after_steps
        if self.parameters[0].requires_grad != trained:
            for parameter in self.parameters:
                parameter.requires_grad_(trained)


def weighted_loss(weights: torch.Tensor) -> Loss:
    """Returns a `compute_loss_func` for Trainer: cross entropy in which a label of class c counts `weights[c]` times.

    The sum is divided by the number of labels, not by the sum of their weights. So the loss is exact under gradient
    accumulation. `weights` are on the device of the model.
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"].float()
        if num_items_in_batch is None:
            num_items_in_batch = (labels != IGNORE_INDEX).sum()
        # A batch may have no labels.
        count = torch.as_tensor(num_items_in_batch, device=logits.device).clamp(min=1)
        total = F.cross_entropy(
            logits.view(-1, logits.shape[-1]),
            labels.view(-1),
            weights,
            ignore_index=IGNORE_INDEX,
            reduction="sum",
        )
        return total / count

    return loss


def find_depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """Returns the depth of each parameter: 0 for the embeddings, 1 for the first layer, the largest for the head.

    As in Clark et al. (2020), "ELECTRA", where layer-wise rates start at the head.
    """
    layers = {name: int(found[1]) for name, _ in model.named_parameters() if (found := LAYER.search(name))}
    head = max(layers.values()) + 2
    return {
        parameter: 0 if EMBEDDINGS.search(name) else layers.get(name, head - 1) + 1
        for name, parameter in model.named_parameters()
    }


def reinitialize_layers(model: PreTrainedModel, number: int) -> None:
    """Gives the top `number` encoder layers and the pooler new random weights, as in pretraining. 0 changes nothing.

    As in Zhang et al. (2021), "Revisiting Few-sample BERT Fine-tuning", section 5: the top layers are specialized in
    pretraining, and can be a poor start for few labels. The weights come from torch's global generator.

    Args:
        model: a model with a head.
        number: number of layers.

    Raises:
        InputError: the model has fewer layers.
    """
    encoder: Any = model.base_model
    layers = encoder.encoder.layer
    if number > len(layers):
        raise InputError(f"--reinit_layers {number} is too large. The model has {format_count(len(layers), 'layer')}.")
    if number == 0:
        return
    parts = [*layers[-number:], encoder.pooler] if encoder.pooler is not None else layers[-number:]
    for module in (module for part in parts for module in part.modules()):
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]  # transformers protects loaded weights
        model._init_weights(module)


def _frozen_parameters(model: nn.Module, args: FineTuningArguments) -> list[nn.Parameter]:
    depths = find_depths(model)
    layers = max(depths.values()) - 1
    if args.freeze_layers > layers:
        raise InputError(
            f"--freeze_layers {args.freeze_layers} is too large. The model has {format_count(layers, 'layer')}."
        )
    if args.freeze_layers + args.reinit_layers > layers:
        raise InputError(
            f"--freeze_layers {args.freeze_layers} and --reinit_layers {args.reinit_layers} overlap. The model has "
            f"{format_count(layers, 'layer')}."
        )
    return [parameter for parameter, depth in depths.items() if depth <= args.freeze_layers]


def _pad(logits: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """[1, T, ...] -> [N, L, ...]."""
    parts = logits[0, : sum(lengths)].split(lengths)
    return nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=PADDING)
