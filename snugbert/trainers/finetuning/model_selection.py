"""When a run evaluates, which metric selects its best model, and when it stops early."""

import math
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from snugbert.errors import InputError, shorten
from snugbert.trainers.finetuning.finetuning_arguments import MAIN_METRIC, FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask

LOWER_IS_BETTER = ("loss", "mse")
MOST_EVALUATIONS = 20  # during a run, unless the user chooses when to evaluate


def choose_metric(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Sets `metric_for_best_model`, by default to the task's main metric, and sets `greater_is_better`.

    Adds a metric of a label, such as "PER_f1", to the metrics of the task.
    Unless the user chose `eval_strategy`, a run with labeled validation examples evaluates after each epoch.
    """
    if args.chooses_evaluation:
        is_scored = prepared.validation_set is not None and prepared.validation_set.labeled
        evaluates = is_scored and prepared.train_features is not None
        args.eval_strategy = IntervalStrategy.EPOCH if evaluates else IntervalStrategy.NO
    chosen = str(args.metric_for_best_model).removeprefix("eval_")
    if chosen == MAIN_METRIC:
        chosen = prepared.task.main_metric
    task, examples = prepared.task, prepared.validation_set
    if chosen not in (*task.metrics, "loss"):
        of_labels = () if examples is None else task.list_label_metrics(examples.split)
        if chosen not in of_labels:
            known = shorten([*task.metrics, *of_labels])
            raise InputError(f"--metric_for_best_model: {task.name} has no metric {chosen!r}. Choose one of {known}.")
        task.metrics += (chosen,)
        task.training_metrics = task.training_metrics and (*task.training_metrics, chosen)
    args.metric_for_best_model, args.greater_is_better = chosen, chosen not in LOWER_IS_BETTER
    if prepared.validation_set is None and (args.eval_strategy != "no" or args.sweeps):
        raise InputError(
            "no validation examples. Evaluation during training and sweeps need them (--validation_file)."
        )


def list_evaluation_callbacks(args: FineTuningArguments) -> list[TrainerCallback]:
    """Returns the callbacks that decide when to evaluate and when to stop early."""
    callbacks: list[TrainerCallback] = [FewerEvaluations()] if args.chooses_evaluation else []
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(args.early_stopping_patience, args.early_stopping_threshold))
    return callbacks


class FewerEvaluations(TrainerCallback):
    """Evaluates about `MOST_EVALUATIONS` times at most: in longer runs, after every second epoch, or more rarely.

    With 16 labeled examples, an epoch is one step, and evaluating after each would take most of the time.
    """

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each epoch. Keeps the last evaluation, because it scores the final model."""
        every = math.ceil(state.num_train_epochs / MOST_EVALUATIONS)
        if round(state.epoch) % every and state.global_step < state.max_steps:
            control.should_evaluate = False


class EarlyStopping(EarlyStoppingCallback):
    """Early stopping that keeps its count on resume. Trainer would start again with the full patience."""

    def on_evaluate(  # type: ignore[override]  # the base class has this signature
        self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any
    ) -> None:
        """Called by Trainer after each evaluation. Of several datasets, only the first has the metric.

        The base class would warn about all other datasets.
        """
        if f"eval_{args.metric_for_best_model}" in metrics:
            super().on_evaluate(args, state, control, metrics, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step. The `state` contains the count at the checkpoint."""
        super().on_train_begin(args, state, control, **kwargs)
        stored = state.stateful_callbacks.get(type(self).__name__, {"attributes": {}})
        vars(self).update(stored["attributes"])
