"""The Trainer of fine-tuning: prepares a task, packs batches, computes exact losses, and scores.

Shapes in comments: N examples in a batch, T tokens in total, L tokens in the longest example, C labels.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput, has_length

from snugbert.configuration_snugbert import get_windows
from snugbert.data.packed_batches import count_tokens
from snugbert.data.tables import make_source
from snugbert.errors import InputError
from snugbert.families.loading import forget_decisions
from snugbert.gpu.row_sizes import FillRows, choose_fine_tuning_multiple
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.intervals import Interval
from snugbert.reports.results import RunResults
from snugbert.reports.score_tables import DecisionFacts
from snugbert.tasks.base import Task
from snugbert.tasks.decisions import Decisions
from snugbert.tasks.evaluation_set import EvaluationSet, make_evaluation_set
from snugbert.tasks.outputs import PADDING
from snugbert.trainers.finetuning.finetuning_arguments import COMPARED_SETTINGS, FineTuningArguments
from snugbert.trainers.finetuning.layers import find_depths, prepare_layers
from snugbert.trainers.finetuning.losses import class_weights, weighted_loss
from snugbert.trainers.finetuning.prepare_task import PreparedTask, connect_data, name_model, prepare_task
from snugbert.trainers.finetuning.run_records import collect_results, compared_settings
from snugbert.trainers.finetuning.settled_arguments import EarlyStopping, settle_arguments
from snugbert.trainers.run.folder import ClearOutputDir, check_disk_space
from snugbert.trainers.run.stopping import REMEDY, DivergedError
from snugbert.trainers.trainer import RunTrainer


class FineTuningTrainer(RunTrainer):
    """Fine-tunes a model for a task. A `Trainer` of transformers.

        args = FineTuningArguments("output")
        trainer = FineTuningTrainer("bert-base-uncased", args, train_dataset="train.csv", eval_dataset="dev.csv")
        trainer.train()
        trainer.save_model()

    The task reads the rows, finds the labels, encodes the rows and computes the metrics. The configuration of the
    model stores labels and text columns.

    - Batches are packed or padded. Both give the same predictions: in the order of the dataset, with the shapes of
      padded batches and -100 as padding. Sequence heads return [N, C], token heads [N, L, C], and question answering
      two arrays [N, L].
    - The loss is divided by the number of labels in all accumulated batches of all processes. Token heads count
      labeled tokens, question answering counts windows. `eval_loss` is the mean over all labels, not over batches.
    - At the end of training, the task may choose thresholds or a temperature on the validation examples, for the model
      that is kept. The weights of the classifier are divided by the temperature.
    - Saving the model after training also writes a model card with settings and metrics.

    Args:
        model: a Hub name or folder of a checkpoint of the BERT family, a size such as "tiny" for random weights, or a
            SnugBERT model with the task's head, which is trained in place.
        args: the settings. The trainer uses a copy, unless `task` is a [`PreparedTask`]. Default: the paper's
            settings, in the folder "trainer_output".
        task: such as [`Tagging`]. Default: [`TextClassification`]. The trainer does not change it. Commands pass a
            [`PreparedTask`], which includes model and data.
        train_dataset: rows with the columns of the task: the path of a file, a `datasets.Dataset` (its format is
            ignored), a streamed dataset (read to its end), a pandas DataFrame, or dicts. None: the model is only
            scored.
        eval_dataset: labeled rows. They are scored after each epoch, unless `args` says otherwise. A dict of datasets
            prefixes the metrics with its keys, and the first dataset selects the best model.
        processing_class: the tokenizer. Default: the checkpoint's.
        callbacks: further callbacks.
        compute_metrics: returns metrics in addition to the task's, as in `Trainer`. They do not select the best model.
        optimizers: an optimizer and a scheduler, as in `Trainer`. Default: `args` chooses them.

    Attributes:
        prepared: the task, connected with its model, and its data.
        output: the form of the task's logits.
        decisions: thresholds and temperature of the trained model. None if the task chooses neither.
        results: what the model card shows. None: the current results.
    """

    kind = "fine-tuning"
    checks_output_dir = True
    compared_names: tuple[str, ...] = COMPARED_SETTINGS
    results: RunResults | None = None
    args: FineTuningArguments

    def __init__(
        self,
        model: str | Path | PreTrainedModel | None = None,
        args: FineTuningArguments | None = None,
        task: Task[Any, Any, Any] | PreparedTask | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ):
        if not isinstance(args, FineTuningArguments) or not isinstance(task, PreparedTask):
            args = FineTuningArguments() if args is None else FineTuningArguments.copy_of(args)
        first, *others = eval_dataset.items() if isinstance(eval_dataset, Mapping) else [("", eval_dataset)]
        self._eval_prefix = f"eval_{first[0]}_" if first[0] else "eval_"
        if not isinstance(task, PreparedTask):
            task, sources = connect_data(task, train_dataset=train_dataset, eval_dataset=first[1])
            model_args = name_model(model, processing_class)
            task = prepare_task(task, model_args, sources)
        if args.sweeps or (args.folds and not args.dry_run):
            raise InputError("--sweep, --seeds, --folds: a trainer trains once. Train in a loop, or run the command.")
        settle_arguments(task, args)
        if args.early_stopping_patience is not None:
            callbacks = [EarlyStopping(args.early_stopping_patience, args.early_stopping_threshold), *callbacks]
        self.prepared, self.output = task, task.task.output
        self._more_metrics = compute_metrics
        if compute_metrics is not None and len(self.output.label_columns) > 1:
            raise InputError(f"compute_metrics: {task.task.name} has no label ids. Score the result of `predict`.")
        self.evaluation_sets = list(task.evaluation_sets)
        self._scored: EvaluationSet[Any] | None = None  # the set that the current evaluation scores
        self._predicted: dict[str, tuple[EvaluationSet[Any], Any]] = {}  # prefix -> the last answers to score
        self.decisions: Decisions | None = None
        self._training: dict[str, float] = {}  # metrics of the training, once it is complete
        self._order: np.ndarray = np.arange(0)  # dataset indices in the order of the current evaluation
        # Sum of the losses, and number of labels, in each batch of the current evaluation. None between evaluations.
        self._losses: list[torch.Tensor] | None = None
        self._last_evaluation: tuple[int, EvalLoopOutput] | None = None  # step of the evaluated model, and result
        self._scores: dict[int, dict[str, float]] = {}  # step of the model -> its metrics on the validation examples
        features: Any = None if task.validation_set is None else task.validation_set.features.inputs
        if isinstance(eval_dataset, Mapping):
            make = self._make_evaluation_set
            sets = {name: make(make_source(data, "eval_dataset"), "validation", task.config) for name, data in others}
            self.evaluation_sets += sets.values()
            features = {first[0]: features} | {name: each.features.inputs for name, each in sets.items()}
            args.metric_for_best_model = f"{first[0]}_{args.metric_for_best_model}"
        loss = None
        if args.class_weights is not None:
            loss = weighted_loss(class_weights(args.class_weights, task).to(args.device))
        set_seed(args.seed)
        network = task.make_model()
        if task.trains:
            prepare_layers(network, args)
        super().__init__(
            model=network,
            args=args,
            data_collator=task.make_collator(args.pad_to_max_length),
            train_dataset=task.train_features,
            eval_dataset=features,
            processing_class=task.task.tokenizer,
            compute_metrics=lambda prediction: {},  # never called (no labels), but makes Trainer keep logits
            compute_loss_func=loss,
            callbacks=[*callbacks, ClearOutputDir()],
            optimizers=optimizers,
        )
        self.run_settings.keeps_checkpoints = args.keeps_checkpoints

    # --- training -----------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Extends Trainer's method: lets the task choose thresholds and a temperature after training.

        `resume_from_checkpoint` is a folder, or True for the newest checkpoint in `output_dir`. Default: see `args`.
        """
        check_disk_space(self.args, self.model.parameters())
        # Earlier training, or an earlier run of a sweep, may have chosen thresholds and a temperature.
        self.decisions = None
        self._use_thresholds({})
        forget_decisions(self.model.config)  # type: ignore[union-attr]
        result = super().train(resume_from_checkpoint, *args, **kwargs)
        if not self.interrupted:
            samples = len(self.train_dataset)  # type: ignore[arg-type]
            result.metrics.update(train_samples=samples, train_steps=self.state.global_step)
            self._training = result.metrics
            if self.prepared.task.chooses_decisions and not self.args.dry_run:
                self._choose_decisions()
        return result

    def _use_thresholds(self, thresholds: dict[int, float]) -> None:
        for each in self.evaluation_sets:
            each.task.thresholds = thresholds

    def _choose_decisions(self) -> None:
        """Lets the task choose thresholds and a temperature, and stores them in the model."""
        task: Any = self.prepared.task
        examples: Any = self.prepared.validation_set
        logits = self.predict_once(examples.features.inputs, metric_key_prefix="eval").predictions
        self.decisions = task.choose_decisions(examples.split, logits)
        model: Any = self.model
        temperature, thresholds = self.decisions.rule
        self._use_thresholds(thresholds)
        if thresholds:
            model.config.thresholds = {task.labels[label]: threshold for label, threshold in thresholds.items()}
        if task.args.calibrate:
            model.config.calibration = self.decisions.describe_calibration()
            with torch.no_grad():  # so that every library returns calibrated probabilities
                model.classifier.weight.div_(temperature)
                model.classifier.bias.div_(temperature)
        self._last_evaluation = None  # it used no thresholds and no temperature
        self._scores[self.model_step] = examples.score(self.decisions.fitted)

    def _describe_decisions(self) -> DecisionFacts | None:
        """Returns the thresholds, the temperature, and scores without thresholds. None if the task chooses neither."""
        if self.decisions is None:
            return None
        examples: Any = self.prepared.validation_set
        plain = self.decisions.plain
        config: Any = self.model.config
        return {
            "set": examples.name,
            "metric": self.prepared.task.args.tune_thresholds,
            "thresholds": getattr(config, "thresholds", {}),
            "scores_without": examples.score(plain),
            "intervals_without": examples.estimate_intervals(plain),
            "calibration": getattr(config, "calibration", None),
        }

    def _begin(self, state: Any) -> None:
        super()._begin(state)
        names = {metric: f"{self._eval_prefix}{metric}" for metric in self.prepared.task.metrics}
        scored = [line for line in state.log_history if any(name in line for name in names.values())]
        self._scores = {
            line["step"]: {metric: line[name] for metric, name in names.items() if name in line} for line in scored
        }
        self._last_evaluation = None

    def compare_settings(self, checkpoint: str | None, finished: bool = False) -> None:
        """Extends the base class: also compares model, batch and data (if `finished`, all that affects results)."""
        self.run_settings.command_settings = compared_settings(self.prepared, self.args, finished)
        super().compare_settings(checkpoint)

    def _can_fill_rows(self) -> bool:
        has_windows = get_windows(self.model_config) is not None  # their number differs from document to document
        return not (self.args.pad_to_max_length or has_windows) and super()._can_fill_rows()

    def _suggest_multiple(self, dataset: Any, batch_size: int) -> int:
        if dataset is self.train_dataset and self.args.train_sampling_strategy == "group_by_length":
            return 0  # rows of similar examples have many sizes
        has_tokens = has_length(dataset) and len(dataset) > 0 and "input_ids" in dataset[0]  # type: ignore[index]
        return choose_fine_tuning_multiple(batch_size, count_tokens(dataset)) if has_tokens else 0

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """Extends Trainer's method, which counts the column `labels`. The task's output names the column to count."""
        batches, count = super().get_batch_samples(*args, **kwargs)
        name = self.output.counted_labels
        if name != "labels" and batches and name in batches[0]:
            counted = [{"labels": batch[name]} for batch in batches]
            count = self._get_num_items_in_batch(counted, self.args.device)
        return batches, count

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Extends Trainer's method: in evaluation, the loss of a batch is the mean over its own labels."""
        count = None if self._losses is not None else num_items_in_batch
        return super().compute_loss(model, inputs, return_outputs, count)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Extends Trainer's method: a learning rate per layer if `layerwise_lr_decay` is below 1."""
        optimizer = super().create_optimizer(model)
        decay = self.args.layerwise_lr_decay
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

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Extends Trainer's method: also scores labeled rows. For features (with `input_ids`), only returns a loss.

        `eval_dataset`: rows as in the constructor, or the name of one of its evaluation sets.
        """
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str) and isinstance(self.eval_dataset, dict):
            dataset = self.eval_dataset.get(dataset, dataset)
        if isinstance(dataset, dict):  # Trainer calls this method for each dataset
            return super().evaluate(dataset, ignore_keys, metric_key_prefix)
        features, self._scored = (None, None) if dataset is None else self._encode(dataset)
        try:
            return super().evaluate(features, ignore_keys, metric_key_prefix)
        finally:
            self._scored = None

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Computes the logits of each window of the rows. Scores the rows if all have labels. Returns no labels."""
        features, encoded = self._encode(test_dataset, "test")
        output = super().predict(features, ignore_keys, metric_key_prefix)
        if encoded is None or encoded in self.evaluation_sets:
            return output
        scored = self._score(encoded, output.predictions, metric_key_prefix)
        return output._replace(metrics={**(output.metrics or {}), **scored})

    def _score(self, examples: EvaluationSet[Any], predictions: Any, prefix: str) -> dict[str, float]:
        """Returns the metrics of predictions, and keeps the answers for `intervals`."""
        answers, scores = examples.decode(predictions), examples.score_in_training(predictions)
        if examples is self.prepared.validation_set:
            if self.decisions is not None:  # the stored thresholds were chosen on these examples
                answers = self.decisions.fitted
                scores = examples.score(answers)
            self._scores[self.model_step] = scores
        self._predicted[prefix] = examples, answers
        scores = scores | self._compute_more_metrics(examples, predictions)
        return {f"{prefix}_{name}": value for name, value in scores.items()}

    @property
    def intervals(self) -> dict[str, Interval]:
        """95 % bootstrap intervals of the metrics of the last evaluations and predictions, such as "eval_accuracy"."""
        return {
            f"{prefix}_{name}": interval
            for prefix, (examples, answers) in self._predicted.items()
            for name, interval in examples.estimate_intervals(answers).items()
        }

    def _compute_more_metrics(self, examples: EvaluationSet[Any], predictions: Any) -> dict[str, float]:
        """Returns the metrics of the user's `compute_metrics`, called with predictions and label ids as in Trainer."""
        inputs = examples.features.inputs
        column = self.output.label_columns[0]
        if self._more_metrics is None or column not in inputs.column_names:
            return {}
        labels = inputs[column][:]
        if self.output.per_token:
            labels = [row + [IGNORE_INDEX] * (predictions.shape[1] - len(row)) for row in labels]
        return self._more_metrics(EvalPrediction(predictions, np.array(labels)))

    def _encode(self, dataset: Any, split: str = "validation") -> tuple[Dataset, EvaluationSet[Any] | None]:
        """Returns the features of rows, and how to score them. Features are returned unchanged."""
        known = next((each for each in self.evaluation_sets if each.features.inputs is dataset), None)
        is_torch_dataset = isinstance(dataset, torch.utils.data.Dataset) and not hasattr(dataset, "column_names")
        if known is not None or is_torch_dataset:
            return dataset, known
        source = make_source(dataset, "test_dataset" if split == "test" else "eval_dataset")
        if isinstance(source, Dataset) and "input_ids" in source.column_names:
            return source, None
        encoded = self._make_evaluation_set(source, split, self.model.config)
        return encoded.features.inputs, encoded

    def _make_evaluation_set(self, source: Path | Dataset, split: str, config: Any) -> EvaluationSet[Any]:
        prepared = self.prepared
        examples = make_evaluation_set(prepared.task, config, prepared.task.tokenizer, {split: [source]})
        prepared.copies.count(examples.task, {examples.split.name: examples.split})
        return examples

    def _get_eval_sampler(self, eval_dataset: Dataset) -> list[int]:  # type: ignore[override]
        # No public method chooses the order of an evaluation. In random order, filled rows have few sizes.
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
        """Extends Trainer's method: pads packed logits, drops the padding of rows, and returns no labels."""
        model = self.graphs.for_evaluation(model)
        loss, logits, _ = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        labels = inputs.get(self.output.counted_labels)
        if loss is not None and labels is not None and self._losses is not None:
            count = (labels != IGNORE_INDEX).sum()
            if labels.is_floating_point():  # -100 is a valid label
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
        """Extends Trainer's method: predictions are in the order of the dataset. The random state does not change."""
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
            remedy = "Try without --fp16. If that does not help, the weights may be damaged."
            raise DivergedError(f"{prefix}: the logits are NaN. {remedy}")
        places = np.argsort(self._order)
        predictions = tuple(p[places] for p in parts) if isinstance(predictions, tuple) else predictions[places]
        metrics = dict(output.metrics or {})
        if self._scored is not None and description == "Evaluation":  # not for `predict`
            metrics |= self._score(self._scored, predictions, prefix)
            if self._scored is self.prepared.validation_set:
                self._last_evaluation = self.model_step, output._replace(predictions=predictions, metrics=metrics)
        return output._replace(predictions=predictions, metrics=metrics)

    def predict_once(self, test_dataset: Dataset, metric_key_prefix: str) -> EvalLoopOutput | PredictionOutput:
        """Like `predict`, but returns the last evaluation if it used these examples, this prefix and these weights."""
        if self._last_evaluation is not None and test_dataset is self.eval_dataset and metric_key_prefix == "eval":
            evaluated, output = self._last_evaluation
            if evaluated == self.model_step:
                return output
        return self.predict(test_dataset, metric_key_prefix=metric_key_prefix)  # type: ignore[arg-type]

    # --- the model card -----------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Extends Trainer's method: after training, also writes the model card."""
        super().save_model(output_dir, _internal_call)
        if self._training and self.args.should_save and not _internal_call:
            self.write_card(output_dir)

    def save_state(self) -> None:
        """Extends the base class: adds the settings that [`find_start`] compares if the run is finished."""
        if self._training:
            self.run_settings.command_settings |= compared_settings(self.prepared, self.args, finished=True)
        super().save_state()

    def collect_results(self, metrics: dict[str, dict[str, float]]) -> RunResults:
        """Returns the content of `results.json`. During training, the settings include the steps done."""
        in_progress = self.train_dataset is not None and not self._training
        training = {"step": float(self.state.global_step)} if in_progress else self._training
        results = collect_results(self.prepared, self.args, training, metrics, self.run_settings.changes)
        if in_progress:
            results["settings"]["steps_done"] = f"{self.state.global_step:,} of {self.state.max_steps:,}"
        if (decisions := self._describe_decisions()) is not None:
            results["decisions"] = decisions
        return results

    def write_card(self, folder: str | None = None) -> None:
        """Writes the model card into a folder, with the model's scores if there are any."""
        prepared, results = self.prepared, self.results
        if results is None:
            metrics: dict[str, dict[str, float]] = {}
            if prepared.validation_set is not None:
                scores = self._scores.get(self.model_step, {})
                metrics = {prepared.validation_set.name: {m: scores[m] for m in prepared.task.metrics if m in scores}}
            results = self.collect_results(metrics)
        output_dir = Path(folder or str(self.args.output_dir))
        output_dir.mkdir(parents=True, exist_ok=True)
        hub_name = self.hub_model_id or self.args.hub_model_id
        write_finetuning_card(output_dir, prepared.facts, results, hub_name)


def _pad(logits: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Splits one packed row into padded sequences. *Shape:* (1, T, ...) -> (N, L, ...)"""
    parts = logits[0, : sum(lengths)].split(lengths)
    return nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=PADDING)
