"""What to try if the scores of a run do not beat the baseline, or are uncertain."""

import math
from collections.abc import Iterator, Mapping, Sequence

from snugbert.errors import format_count
from snugbert.reports.intervals import Interval
from snugbert.reports.score_tables import format_metric, is_perfect, is_score, set_title
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask

LOWER_IS_BETTER = ("loss", "mse")
# Overfitting: the last validation loss relative to the lowest, and the last training loss relative to the first.
RISE, REST = 1.1, 0.1
# A 95 % interval wider than this many points of 100 gets a warning.
WIDE = 10


def describe_shortfalls(
    prepared: PreparedTask, metrics: Mapping[str, Mapping[str, float]], args: FineTuningArguments, trained: bool
) -> list[str]:
    """Returns a sentence for each set whose main metric does not beat its baseline, and what to try.

    Args:
        prepared: the task. Sets without labels or without a baseline are skipped.
        metrics: evaluation set -> metric -> value.
        args: the settings of the run.
        trained: whether the run trained the model.

    Returns:
        Sentences. Empty: every set beats its baseline.
    """
    task = prepared.task
    metric, sentences, same = task.main_metric, [], []
    for evaluation_set in prepared.evaluation_sets:
        score, baseline = metrics[evaluation_set.name].get(metric), evaluation_set.baseline
        if score is None or baseline is None:
            continue
        title = f"{set_title(evaluation_set.name).capitalize()}: {metric.replace('_', ' ')}"
        to_beat, answer = baseline.metrics[metric], baseline.answer
        if math.isnan(to_beat):  # the correlation of a constant
            to_beat, answer = 0.0, "the correlation of unrelated numbers"
        if math.isnan(score):
            sentences.append(f"{title} is undefined, because all predictions or all correct values are the same.")
        elif (score >= to_beat) if metric in LOWER_IS_BETTER else (score <= to_beat):
            ours, theirs = (format_metric(metric, value, task.perfect_score) for value in (score, to_beat))
            if ours != theirs:
                side = "above" if metric in LOWER_IS_BETTER else "below"
                sentences.append(f"{title} {ours} is {side} the baseline, {theirs} ({answer}).")
            elif is_perfect(metric, to_beat, task.perfect_score):
                same.append(f"{title} {ours} equals the baseline ({answer}). All examples have the same answer.")
            else:
                sentences.append(f"{title} {ours} equals the baseline ({answer}).")
    advice = [_suggest(args, trained)] if sentences else []
    if same:
        advice.append("To compare models, evaluate on examples with different answers.")
    return [*sentences, *same, *advice]


def describe_wide_intervals(
    prepared: PreparedTask, intervals: Mapping[str, Mapping[str, Interval | None]], remedy: str
) -> list[str]:
    """Returns a sentence for each set whose main metric has an interval wider than `WIDE` points, and what to do.

    Args:
        prepared: the task. Metrics that are not scores, such as the mean squared error, are skipped.
        intervals: evaluation set -> metric -> low and high.
        remedy: what to do.
    """
    return [
        f"{title}: the 95 % interval is {width:.0f} points wide. {remedy}"
        for title, _, (low, high) in _list_intervals(prepared, intervals)
        if (width := 100 * (high - low) / prepared.task.perfect_score) > WIDE
    ]


def describe_perfect_scores(
    prepared: PreparedTask, intervals: Mapping[str, Mapping[str, Interval | None]]
) -> list[str]:
    """Returns a sentence for each set on which the main metric is perfect in every resample.

    The bootstrap then finds no uncertainty. Arguments: as in [`describe_wide_intervals`].
    """
    return [
        f"{title}: perfect on all {format_count(number, 'example')}, so the interval shows no uncertainty. Other "
        "examples may score lower."
        for title, number, (low, high) in _list_intervals(prepared, intervals)
        if low == high == prepared.task.perfect_score
    ]


def _list_intervals(
    prepared: PreparedTask, intervals: Mapping[str, Mapping[str, Interval | None]]
) -> Iterator[tuple[str, int, Interval]]:
    """Yields the title, the number of examples and the interval of the main metric of each set, if it is a score."""
    metric = prepared.task.main_metric
    if not is_score(metric):
        return
    for evaluation_set in prepared.evaluation_sets:
        interval = intervals.get(evaluation_set.name, {}).get(metric)
        if interval is not None:
            title = f"{set_title(evaluation_set.name)} {metric.replace('_', ' ')}"
            yield title, evaluation_set.num_examples, interval


def describe_overfitting(log_history: Sequence[Mapping[str, float]], args: FineTuningArguments) -> str | None:
    """Returns a sentence if the validation loss rose while the training loss fell to almost zero. Otherwise None.

    Args:
        log_history: `trainer.state.log_history`.
        args: the settings of the run. With `load_best_model_at_end`, the function returns None.
    """
    training = [line["loss"] for line in log_history if "loss" in line]
    validation = [(line["eval_loss"], line["epoch"]) for line in log_history if "eval_loss" in line]
    if args.load_best_model_at_end or len(validation) < 2:
        return None
    (lowest, epoch), (last, _) = min(validation), validation[-1]
    ending = training[-math.ceil(len(training) / 10) :]  # the loss of one line is noisy
    loss = sum(ending) / max(len(ending), 1)
    if not ending or last < RISE * lowest or loss > REST * training[0]:
        return None
    return (
        f"The validation loss rose from {lowest:.4f} (epoch {epoch:.3g}) to {last:.4f}, while the training loss fell "
        f"to {loss:.4f}. To keep the model with the best {str(args.metric_for_best_model).replace('_', ' ')}, add "
        "--load_best_model_at_end true."
    )


def _suggest(args: FineTuningArguments, trained: bool) -> str:
    if not trained:
        return "Check that the checkpoint was fine-tuned for this task and for the same labels."
    steps, epochs, rate = args.max_steps, args.num_train_epochs, args.learning_rate
    longer = f"--max_steps {3 * steps}" if steps > 0 else f"--num_train_epochs {3 * epochs:g}"
    return (
        f"Try longer training ({longer}), another learning rate (--learning_rate {rate / 3:.0e} or {3 * rate:.0e}), "
        "more examples, or a larger pretrained checkpoint."
    )
