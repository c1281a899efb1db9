"""One fine-tuning run of a command: train, score, predict, and write the results into the output folder."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from snugbert.errors import InputError
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.intervals import Interval
from snugbert.reports.label_tables import LabelScores
from snugbert.reports.results import RunResults, contains_model, write_results
from snugbert.reports.score_plots import draw_learning_curve, draw_reliability, list_plots
from snugbert.reports.score_tables import set_title
from snugbert.storage.uploads import find_output
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_guidance import (
    describe_overfitting,
    describe_perfect_scores,
    describe_shortfalls,
    describe_wide_intervals,
)
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.prepare_task import PreparedTask, read_finished_run
from snugbert.trainers.finetuning.run_facts import collect_results, compared_settings, digest_features
from snugbert.trainers.run.checkpoint_copies import upload_run
from snugbert.trainers.run.checkpoints import list_checkpoints, remove_checkpoints, step_of
from snugbert.trainers.run.folder import check_output_dir
from snugbert.trainers.run.processes import raise_together
from snugbert.trainers.run.stopping import raise_if_interrupted

logger = logging.getLogger(__name__)


def _check_finished_run(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Checks that the settings have not changed since the run finished. With `push_to_hub`, uploads its folder again.

    Raises:
        InputError: a setting changed.
    """
    trainer = make_trainer(prepared, args)
    trainer.run_settings.command_settings = _finished_settings(prepared, args)

    def compare() -> None:
        if args.process_index == 0:  # machines may not share a disk
            trainer.compare_settings(str(args.output_dir))

    try:
        raise_together(compare)
    except InputError as error:
        raise InputError(f"{error} The run in {args.output_dir} is finished and has no checkpoints.") from error
    logger.info("%s contains this run, which is finished. Nothing was computed.", args.output_dir)
    if args.push_to_hub:  # an earlier upload may have failed
        trainer.uploads.upload_output_dir()


def fine_tune(
    prepared: PreparedTask, args: FineTuningArguments, callbacks: Sequence[TrainerCallback] = ()
) -> RunResults:
    """Trains if there are training examples, then scores and predicts.

    Writes into the output folder: the model, Trainer's `<set>_results.json`, the predictions and plots of each
    evaluation set, `learning_curve.png`, `results.md`, `results.json` and the model card. With `push_to_hub`, uploads
    the folder at the end. Then removes the checkpoints, unless the user asked for them in this command or in the
    command that it resumes. If the run is already finished, returns its results.

    Args:
        prepared: the task, its examples and its checkpoint.
        args: settings and output folder.
        callbacks: further callbacks of the trainer. Their exceptions end the run.

    Returns:
        The content of `results.json`.

    Raises:
        InputError: the output folder contains another run, the settings do not fit the model, or the loss is not
            finite.
        RunStopped: SIGTERM or SIGINT ended the training.
    """
    finished = read_finished_run(args) if prepared.train_features is not None else None
    if finished is not None:
        _check_finished_run(prepared, args)
        return finished
    checkpoint = check_output_dir(args, args.overwrite_output_dir) if prepared.train_features is not None else None
    trainer = make_trainer(prepared, args, callbacks)
    trainer.checks_output_dir = False
    output_dir, base_model = Path(str(args.output_dir)), prepared.model_args.model_name_or_path
    training: dict[str, float] = {}
    if prepared.train_features is not None:
        training = train(trainer, checkpoint, _finished_settings(prepared, args))
    metrics, intervals, losses, labels = {}, {}, {}, {}
    for evaluation_set in prepared.evaluation_sets:
        name = evaluation_set.name
        metrics[name], intervals[name], losses[name], labels[name] = evaluate(trainer, evaluation_set)
    results = collect_results(prepared, args, training, metrics, trainer.run_settings.changes)
    results["intervals"] = intervals
    if uneven := {name: scores for name, scores in labels.items() if scores is not None}:
        results["labels"] = uneven
    if (decisions := trainer.describe_decisions()) is not None:
        results["decisions"] = decisions
    wide = describe_wide_intervals(prepared, intervals, "Evaluate on more examples.")
    for sentence in [*wide, *describe_perfect_scores(prepared, intervals)]:
        logger.warning(sentence)
    if training and (overfitting := describe_overfitting(trainer.state.log_history, args)):
        logger.warning(overfitting)
    if prepared.distillation is not None and prepared.distillation.compare is not None and training:
        compare = prepared.distillation.compare()
        if trainer.is_world_process_zero():
            results["comparison"] = compare(results)
    results["shortfalls"] = describe_shortfalls(prepared, metrics, args, trained=bool(training))
    if trainer.is_world_process_zero() and (training or not contains_model(output_dir)):
        if training:
            _draw_learning_curve(prepared, trainer, metrics, losses)
            trainer.write_card = functools.partial(
                write_finetuning_card, output_dir, prepared.facts, results, base_model, trainer.hub_name
            )
            trainer.write_card()
        write_results(output_dir, results)  # last: it marks the run as complete
    # Trainer's reports group names by "eval_" and "test_".
    sets = {name.replace("predict", "test"): values for name, values in metrics.items()}
    scores = {f"{name}_{metric}": value for name, values in sets.items() for metric, value in values.items()}
    trainer.reports.send(list_plots(output_dir), scores, trainer.model_step)
    if args.push_to_hub:
        trainer.write_card = trainer.write_card if training else None
        trainer.push_to_hub()
    if training and args.should_save and not trainer.run_settings.keeps_checkpoints:
        # This comes last, so that a run that is stopped earlier can be resumed. As in training, checkpoints of later
        # steps stay, and so does a checkpoint that the user names.
        reached = [folder for folder in list_checkpoints(output_dir) if step_of(folder) <= trainer.state.global_step]
        named = Path(str(args.resume_from_checkpoint)).resolve()
        remove_checkpoints([folder for folder in reached if folder.resolve() != named])
    output = find_output(output_dir)
    if output is not None and args.should_save and output.folder != output_dir:  # one of several runs
        upload_run(output)
    return results


def make_trainer(
    prepared: PreparedTask, args: FineTuningArguments, callbacks: Sequence[TrainerCallback] = ()
) -> FineTuningTrainer:
    """Returns a trainer with a new model. With soft targets, the trainer distills.

    Raises:
        InputError: see [`FineTuningTrainer`].
    """
    distills = prepared.distillation is not None and prepared.distillation.soft_targets is not None
    return (DistillationTrainer if distills else FineTuningTrainer)(task=prepared, args=args, callbacks=callbacks)


def train(trainer: FineTuningTrainer, checkpoint: str | None, finished: dict[str, Any]) -> dict[str, float]:
    """Trains from `checkpoint` or from the start, saves model, tokenizer and metrics, and returns the metrics.

    Also stores the settings `finished`, for [`read_finished_run`].
    """
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    raise_if_interrupted(trainer)
    trainer.save_model(_internal_call=True)  # an external call would push before the card is written
    trainer.save_metrics("train", metrics)
    trainer.run_settings.command_settings |= finished
    trainer.save_state()
    return metrics


def evaluate(
    trainer: FineTuningTrainer, evaluation_set: EvaluationSet[Any]
) -> tuple[dict[str, float], dict[str, Interval], float | None, LabelScores | None]:
    """Predicts, writes predictions and plots, and saves the metrics of the model and of the baseline.

    If training ended with an evaluation of the same examples, its predictions are used.

    Returns:
        The metrics, their intervals, the loss, and the scores of each label if these are uneven. Without labels, there
        are no metrics, and the loss is None. With thresholds, validation metrics are cross-fitted.
    """
    name = evaluation_set.name
    output = trainer.predict_once(evaluation_set.features.inputs, metric_key_prefix=name)
    answers = evaluation_set.decode(output.predictions)  # type: ignore[arg-type]
    decisions = trainer.decisions if evaluation_set is trainer.prepared.validation_set else None
    scored = answers if decisions is None else decisions.fitted
    metrics, intervals = evaluation_set.score(scored), evaluation_set.estimate_intervals(scored)
    if trainer.is_world_process_zero():
        folder = Path(str(trainer.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        evaluation_set.write(answers, folder)
        if decisions is not None and trainer.prepared.task.args.calibrate:
            curves = {"before": decisions.plain, "after": decisions.fitted}
            bins = {name: decisions.list_bins(each) for name, each in curves.items()}
            draw_reliability(bins, folder / "reliability.png")
    if metrics:
        saved = {**(output.metrics or {}), **{f"{name}_{metric}": value for metric, value in metrics.items()}}
        saved[f"{name}_samples"] = evaluation_set.num_examples
        if evaluation_set.baseline is not None:
            # The correlation of a constant is NaN, so there is nothing to compare with.
            baseline = {m: value for m, value in evaluation_set.baseline.metrics.items() if np.isfinite(value)}
            saved.update({f"{name}_baseline_{metric}": value for metric, value in baseline.items()})
        trainer.save_metrics(name, saved)
    return metrics, intervals, (output.metrics or {}).get(f"{name}_loss"), evaluation_set.score_labels(scored)


def _draw_learning_curve(
    prepared: PreparedTask,
    trainer: FineTuningTrainer,
    metrics: dict[str, dict[str, float]],
    losses: dict[str, float | None],
) -> None:
    """Draws `learning_curve.png`, with the loss and the main metric of the final model on the validation examples."""
    args, state, chosen = trainer.args, trainer.state, str(trainer.args.metric_for_best_model)
    metric = prepared.task.main_metric if chosen == "loss" else chosen
    final: dict[str, float] = {}
    baseline = None
    if prepared.validation_set is not None:
        name = prepared.validation_set.name
        values = {"loss": losses[name], metric: metrics[name].get(metric)}
        final = {key: value for key, value in values.items() if value is not None}
        final["step"] = trainer.model_step
        if prepared.validation_set.baseline is not None:
            baseline = prepared.validation_set.baseline.metrics.get(metric)
    file = Path(str(args.output_dir)) / "learning_curve.png"
    draw_learning_curve(state.log_history, metric, prepared.task.perfect_score, final, baseline, file)


def _finished_settings(prepared: PreparedTask, args: FineTuningArguments) -> dict[str, Any]:
    """Returns the settings that must not change once a run is finished. They also determine its results."""
    settings = compared_settings(prepared, args)
    for each in prepared.evaluation_sets:
        settings["data"][f"the {set_title(each.name)} data"] = digest_features(each.features.inputs)
    steps = {"--num_train_epochs": args.num_train_epochs, "--max_steps": args.max_steps}
    return {**settings, **steps, **prepared.settings}
