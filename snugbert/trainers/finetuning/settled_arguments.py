"""Arguments that depend on the task and the model: learning rate, metric, when to evaluate and stop."""

import logging
from typing import Any

from transformers import EarlyStoppingCallback
from transformers.trainer_utils import IntervalStrategy

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError, shorten
from snugbert.trainers.finetuning.finetuning_arguments import MAIN_METRIC, FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask

# Hidden sizes of BERT-base, and of the narrowest encoder that was measured (benchmarks/results/learning_rates_*).
WIDEST, NARROWEST = 768, 128
LOWER_IS_BETTER = ("loss", "mse")
MOST_EVALUATIONS = 20  # during a run, unless the user chooses when to evaluate

logger = logging.getLogger(__name__)


def settle_arguments(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Sets the arguments that the user left to the task, and refuses arguments that do not fit the examples.

    Unless the user chose `eval_strategy`, a run with labeled validation examples evaluates after each epoch, or about
    `MOST_EVALUATIONS` times if it has more epochs. With 16 labeled examples, an epoch is one step.
    """
    if prepared.trains:
        choose_learning_rate(prepared.config, args, prepared.task.paper_learning_rate)
    examples = prepared.validation_set
    if args.chooses_evaluation:
        args.eval_strategy = IntervalStrategy.NO
        if prepared.train_features is not None and examples is not None and examples.labeled:
            epochs = args.max_steps * total_batch_size(args) / len(prepared.train_features)
            many = (epochs if args.max_steps > 0 else args.num_train_epochs) > MOST_EVALUATIONS
            args.eval_strategy = IntervalStrategy.STEPS if many else IntervalStrategy.EPOCH
            args.eval_steps = 1 / MOST_EVALUATIONS if many else args.eval_steps  # a share of all steps
    if args.eval_strategy != "no" or args.sweeps:
        if examples is None or not examples.labeled:
            raise InputError(
                "--validation_file: no examples with reference answers. Sweeps and evaluation in training need them."
            )
    _choose_metric(prepared, args)
    if args.label_smoothing_factor and (not prepared.has_classes or args.class_weights is not None):
        raise InputError(
            "--label_smoothing_factor needs one label per example and cannot be combined with --class_weights."
        )


def total_batch_size(args: FineTuningArguments) -> int:
    """Returns the number of examples in a step, over all processes and accumulation steps."""
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def choose_learning_rate(config: SnugBertConfig, args: FineTuningArguments, paper: float) -> None:
    """Sets `args.learning_rate` for the encoder, unless the user chose one, and logs the reason.

    The rate is the paper's for BERT-base (`paper`) times (768 / hidden size) squared, for hidden sizes of 128 to 768.
    The rule is our own. benchmarks/results compares it with the paper's rate.
    """
    if args.learning_rate is not None or args.varies("learning_rate"):
        return
    factor = (WIDEST / min(max(config.hidden_size, NARROWEST), WIDEST)) ** 2
    args.learning_rate = float(f"{paper * factor:.1e}")
    reason = f"{factor:.3g} times the BERT paper's {paper:g}, for the hidden size {config.hidden_size}"
    logger.info("learning rate: %g (%s). Set --learning_rate to change it.", args.learning_rate, reason)


def _choose_metric(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Sets `metric_for_best_model` and `greater_is_better`.

    Adds a metric of a label, such as "PER_f1", to the metrics of the task.
    """
    task, examples = prepared.task, prepared.validation_set
    chosen = str(args.metric_for_best_model).removeprefix("eval_")
    if chosen == MAIN_METRIC:
        chosen = task.main_metric
    if chosen not in (*task.metrics, "loss"):
        of_labels = () if examples is None else task.list_label_metrics(examples.split)
        if chosen not in of_labels:
            known = shorten([*task.metrics, *of_labels])
            raise InputError(f"--metric_for_best_model: {task.name} has no metric {chosen!r}. Choose one of {known}.")
        task.metrics += (chosen,)
        task.training_metrics = task.training_metrics and (*task.training_metrics, chosen)
    args.metric_for_best_model, args.greater_is_better = chosen, chosen not in LOWER_IS_BETTER


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
