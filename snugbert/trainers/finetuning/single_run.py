"""One fine-tuning run of a command: train, score, predict, and write the results into the output folder."""

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.intervals import Interval
from snugbert.reports.label_tables import LabelScores
from snugbert.reports.plots import draw_learning_curve, draw_reliability, list_plots
from snugbert.reports.results import RESULTS, RunResults, contains_model, read_results, write_results
from snugbert.reports.score_tables import format_metric, is_perfect, set_title
from snugbert.storage.uploads import find_output
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.model_selection import LOWER_IS_BETTER
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import collect_results, compared_settings, digest_features
from snugbert.trainers.run.checkpoints import list_checkpoints, remove_checkpoints, step_of
from snugbert.trainers.run.folder import check_output_dir
from snugbert.trainers.run.processes import raise_together
from snugbert.trainers.run.stopping import raise_if_interrupted

logger = logging.getLogger(__name__)


class SetScores(NamedTuple):
    """The scores of a set. Without labels, there are no metrics, and the loss is None."""

    metrics: dict[str, float]  # with thresholds, validation metrics are cross-fitted
    intervals: dict[str, Interval]
    loss: float | None
    labels: LabelScores | None  # the scores of each label if these are uneven


class Start(NamedTuple):
    """Where a run that trains starts."""

    finished: RunResults | None  # the results, if the run that the command would resume is finished
    checkpoint: str | None  # None: step 0


def find_start(args: FineTuningArguments) -> Start:
    """Checks the output folder, and finds where the run starts. Every process must call this.

    A finished run has results and no checkpoints. So a job can always use the same command, even after its run is
    finished.
    """
    output_dir = Path(str(args.output_dir))

    def read() -> Any:
        resumes = str(args.resume_from_checkpoint).lower() == "true" and not args.overwrite_output_dir
        if args.process_index == 0 and resumes and not list_checkpoints(output_dir):
            results = read_results(output_dir / RESULTS) if (output_dir / RESULTS).exists() else {}
            return results if results.get("training") else None  # a run that only scores has no training
        return None

    (finished,) = broadcast_object_list([raise_together(read)])
    return Start(finished, None if finished else check_output_dir(args, args.overwrite_output_dir))


def fine_tune(
    prepared: PreparedTask,
    args: FineTuningArguments,
    callbacks: Sequence[TrainerCallback] = (),
    start: Start | None = None,
) -> RunResults:
    """Trains if there are training examples, then scores and predicts. Returns the content of `results.json`.

    Writes into the output folder: the model, Trainer's `<set>_results.json`, the predictions and plots of each
    evaluation set, `learning_curve.png`, `results.md`, `results.json` and the model card. With `push_to_hub`, uploads
    the folder at the end. Then removes the checkpoints, unless the user asked for them in this command or in the
    command that it resumes. If the run is already finished, returns its results. Exceptions of callbacks end the run.
    """
    trains = prepared.train_features is not None
    start = (start or find_start(args)) if trains else Start(None, None)
    if start.finished is not None:
        _check_finished_run(prepared, args)
        return start.finished
    trainer = make_trainer(prepared, args, callbacks)
    trainer.checks_output_dir = False
    training = train(trainer, start.checkpoint, _finished_settings(prepared, args)) if trains else {}
    scores = {each.name: evaluate(trainer, each) for each in prepared.evaluation_sets}
    results = _collect(prepared, args, trainer, training, scores)
    output_dir = Path(str(args.output_dir))
    if trainer.is_world_process_zero() and (training or not contains_model(output_dir)):
        if training:
            _draw_learning_curve(prepared, trainer, scores)
            base_model = prepared.model_args.model_name_or_path
            trainer.write_card = functools.partial(
                write_finetuning_card, output_dir, prepared.facts, results, base_model, trainer.hub_name
            )
            trainer.write_card()
        write_results(output_dir, results)  # last: it marks the run as complete
    # Trainer's reports group names by "eval_" and "test_".
    sets = {name.replace("predict", "test"): values for name, values in results["metrics"].items()}
    reported = {f"{name}_{metric}": value for name, values in sets.items() for metric, value in values.items()}
    trainer.reports.send(list_plots(output_dir), reported, trainer.model_step)
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
        output.upload_run()
    return results


def _check_finished_run(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Checks that the settings have not changed since the run finished. `push_to_hub` uploads its folder again."""
    trainer = make_trainer(prepared, args)
    trainer.run_settings.command_settings = _finished_settings(prepared, args)
    raise_together(lambda: trainer.compare_settings(str(args.output_dir)) if args.process_index == 0 else None)
    logger.info("%s contains this run, which is finished. Nothing was computed.", args.output_dir)
    if args.push_to_hub:  # an earlier upload may have failed
        trainer.uploads.upload_output_dir()


def _collect(
    prepared: PreparedTask,
    args: FineTuningArguments,
    trainer: FineTuningTrainer,
    training: dict[str, float],
    scores: Mapping[str, SetScores],
) -> RunResults:
    """Returns the content of `results.json`."""
    metrics = {name: each.metrics for name, each in scores.items()}
    results = collect_results(prepared, args, training, metrics, trainer.run_settings.changes)
    results["intervals"] = {name: each.intervals for name, each in scores.items()}
    if uneven := {name: each.labels for name, each in scores.items() if each.labels is not None}:
        results["labels"] = uneven
    if (decisions := trainer.describe_decisions()) is not None:
        results["decisions"] = decisions
    results["shortfalls"] = describe_shortfalls(prepared, metrics, args, trained=bool(training))
    return results


def make_trainer(
    prepared: PreparedTask, args: FineTuningArguments, callbacks: Sequence[TrainerCallback] = ()
) -> FineTuningTrainer:
    """Returns a trainer with a new model. With soft targets, the trainer distills."""
    trainer_class = FineTuningTrainer if prepared.soft_targets is None else DistillationTrainer
    return trainer_class(task=prepared, args=args, callbacks=callbacks)


def train(trainer: FineTuningTrainer, checkpoint: str | None, finished: dict[str, Any]) -> dict[str, float]:
    """Trains from `checkpoint` or from the start, saves model, tokenizer and metrics, and returns the metrics.

    Also stores the settings `finished`, for [`find_start`].
    """
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    raise_if_interrupted(trainer)
    trainer.save_model(_internal_call=True)  # an external call would push before the card is written
    trainer.save_metrics("train", metrics)
    trainer.run_settings.command_settings |= finished
    trainer.save_state()
    return metrics


def evaluate(trainer: FineTuningTrainer, evaluation_set: EvaluationSet[Any]) -> SetScores:
    """Predicts, writes predictions and plots, and saves the metrics of the model and of the baseline.

    If training ended with an evaluation of the same examples, its predictions are used.
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
    loss = (output.metrics or {}).get(f"{name}_loss")
    return SetScores(metrics, intervals, loss, evaluation_set.score_labels(scored))


def _draw_learning_curve(prepared: PreparedTask, trainer: FineTuningTrainer, scores: Mapping[str, SetScores]) -> None:
    """Draws `learning_curve.png`, with the loss and the main metric of the final model on the validation examples."""
    args, state, chosen = trainer.args, trainer.state, str(trainer.args.metric_for_best_model)
    metric = prepared.task.main_metric if chosen == "loss" else chosen
    final: dict[str, float] = {}
    baseline = None
    if prepared.validation_set is not None:
        validation = scores[prepared.validation_set.name]
        values = {"loss": validation.loss, metric: validation.metrics.get(metric)}
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


def describe_shortfalls(
    prepared: PreparedTask, metrics: Mapping[str, Mapping[str, float]], args: FineTuningArguments, trained: bool
) -> list[str]:
    """Returns a sentence for each set whose main metric does not beat its baseline, and what to try.

    Sets without labels or without a baseline are skipped. `metrics`: evaluation set -> metric -> value.
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


def _suggest(args: FineTuningArguments, trained: bool) -> str:
    if not trained:
        return "Check that the checkpoint was fine-tuned for this task and for the same labels."
    steps, epochs, rate = args.max_steps, args.num_train_epochs, args.learning_rate
    longer = f"--max_steps {3 * steps}" if steps > 0 else f"--num_train_epochs {3 * epochs:g}"
    return (
        f"Try longer training ({longer}), another learning rate (--learning_rate {rate / 3:.0e} or {3 * rate:.0e}), "
        "more examples, or a larger pretrained checkpoint."
    )
