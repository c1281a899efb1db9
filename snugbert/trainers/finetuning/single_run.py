"""A single fine-tuning run of a command, or a dry run: trains, scores, predicts and writes the results."""

import functools
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import TrainerCallback

from snugbert.files import step_of
from snugbert.reports.plots import draw_learning_curve, draw_reliability
from snugbert.reports.results import RESULTS, RunResults, contains_model, read_results, write_results
from snugbert.reports.score_tables import format_metric, set_title
from snugbert.storage.uploads import find_output
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.trainers.dry_run import run_dry
from snugbert.trainers.finetuning.distillation_trainer import DistillationTrainer
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.settled_arguments import LOWER_IS_BETTER
from snugbert.trainers.run.checkpoints import list_checkpoints, remove_checkpoints
from snugbert.trainers.run.folder import check_output_dir
from snugbert.trainers.run.processes import ask_first_process, raise_together

ADVICE = "Try longer training, another learning rate, more examples, or a larger pretrained checkpoint."
ADVICE_WITHOUT_TRAINING = "Check that the checkpoint was fine-tuned for this task and for the same labels."

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """Where a run that trains starts."""

    finished: RunResults | None  # the results of the run to resume, if it is finished
    checkpoint: str | None  # None: step 0


def find_start(args: FineTuningArguments) -> Start:
    """Checks the output folder, and finds where the run starts. Every process must call this.

    A finished run has results and no checkpoints. So a job can always use the same command, even after its run is
    finished.
    """
    output_dir = Path(str(args.output_dir))
    resumes = str(args.resume_from_checkpoint).lower() == "true" and not args.overwrite_output_dir

    def read_finished() -> RunResults | None:
        has_results = resumes and (output_dir / RESULTS).exists() and not list_checkpoints(output_dir)
        results: Any = read_results(output_dir / RESULTS) if has_results else {}
        return results if results.get("training") else None  # a run that only scores has no training

    finished = ask_first_process(read_finished)
    return Start(finished, None if finished else check_output_dir(args))


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
    begin = time.monotonic()
    trains = prepared.train_features is not None
    start = (start or find_start(args)) if trains else Start(None, None)
    trainer = make_trainer(prepared, args, callbacks)
    if start.finished is not None:
        _check_finished_run(trainer)
        return start.finished
    if trains:
        trainer.train_and_save(start.checkpoint)
    results = trainer.collect_results({})
    results["intervals"] = {}
    for each in prepared.evaluation_sets:
        evaluate(trainer, each, results)
    results["shortfalls"] = describe_shortfalls(prepared, results["metrics"])
    results["seconds"] = round(time.monotonic() - begin, 1)
    output_dir = Path(str(args.output_dir))
    if trainer.is_world_process_zero() and (trains or not contains_model(output_dir)):
        if trains:
            _draw_learning_curve(trainer)
            trainer.results = results
            trainer.write_card()
        write_results(output_dir, results)  # last: it marks the run as complete
    # Trainer's reports group names by "eval_" and "test_".
    sets = {name.replace("predict", "test"): values for name, values in results["metrics"].items()}
    reported = {f"{name}_{metric}": value for name, values in sets.items() for metric, value in values.items()}
    trainer.reports.send(reported, trainer.model_step)
    if args.push_to_hub:
        trainer.push_to_hub()
    if trains and args.should_save and not trainer.run_settings.keeps_checkpoints:
        # Checkpoints are removed last, so that a run that is stopped earlier can be resumed. As in training,
        # checkpoints of later steps are kept, and so is a checkpoint that the user names.
        reached = [folder for folder in list_checkpoints(output_dir) if step_of(folder) <= trainer.state.global_step]
        named = Path(str(args.resume_from_checkpoint)).resolve()
        remove_checkpoints([folder for folder in reached if folder.resolve() != named])
    output = find_output(output_dir)
    if output is not None and args.should_save and output.folder != output_dir:  # one of several runs
        output.upload_run()
    return results


def _check_finished_run(trainer: FineTuningTrainer) -> None:
    """Checks that the settings have not changed since the run finished. `push_to_hub` uploads its folder again."""
    output_dir = str(trainer.args.output_dir)
    with raise_together():
        if trainer.is_world_process_zero():
            trainer.compare_settings(output_dir, finished=True)
    logger.info("%s contains this run, which is finished. Nothing was computed.", output_dir)
    if trainer.args.push_to_hub:  # an earlier upload may have failed
        trainer.uploads.upload_output_dir()


def make_trainer(
    prepared: PreparedTask, args: FineTuningArguments, callbacks: Sequence[TrainerCallback] = ()
) -> FineTuningTrainer:
    """Returns a trainer with a new model. With soft targets, the trainer distills."""
    trainer_class = FineTuningTrainer if prepared.soft_targets is None else DistillationTrainer
    return trainer_class(task=prepared, args=args, callbacks=callbacks)


def evaluate(trainer: FineTuningTrainer, evaluation_set: EvaluationSet[Any], results: RunResults) -> None:
    """Predicts, writes predictions and plots, and saves the metrics, which are also added to the `results`.

    If training ended with an evaluation of the same examples, its predictions are used.
    """
    name = evaluation_set.name
    output = trainer.predict_once(evaluation_set.features.inputs, metric_key_prefix=name)
    answers = evaluation_set.decode(output.predictions)  # type: ignore[arg-type]
    decisions = trainer.decisions if evaluation_set is trainer.prepared.validation_set else None
    scored = answers if decisions is None else decisions.fitted
    results["metrics"][name] = metrics = evaluation_set.score(scored)
    results["intervals"][name] = evaluation_set.estimate_intervals(scored)
    if (uneven := evaluation_set.score_labels(scored)) is not None:
        results["labels"] = results.get("labels", {}) | {name: uneven}
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
        saved[f"{name}_samples"] = evaluation_set.split.num_examples
        if evaluation_set.baseline is not None:
            # The correlation of a constant is NaN, which cannot serve as a baseline.
            baseline = {m: value for m, value in evaluation_set.baseline.metrics.items() if np.isfinite(value)}
            saved.update({f"{name}_baseline_{metric}": value for metric, value in baseline.items()})
        trainer.save_metrics(name, saved)


def _draw_learning_curve(trainer: FineTuningTrainer) -> None:
    """Draws `learning_curve.png`, with the main metric on the validation examples."""
    task, examples = trainer.prepared.task, trainer.prepared.validation_set
    chosen = trainer.args.metric_for_best_model
    metric = task.main_metric if chosen == "loss" else str(chosen)
    baseline = None
    if examples is not None and examples.baseline is not None:
        baseline = examples.baseline.metrics.get(metric)
    file = Path(str(trainer.args.output_dir)) / "learning_curve.png"
    draw_learning_curve(trainer.state.log_history, metric, task.perfect_score, baseline, file)


def describe_shortfalls(prepared: PreparedTask, metrics: dict[str, dict[str, float]]) -> list[str]:
    """Returns a sentence for each set whose main metric does not beat its baseline, and what to try.

    Sets without labels or without a baseline are skipped. `metrics`: evaluation set -> metric -> value.
    """
    task, metric = prepared.task, prepared.task.main_metric
    sentences = []
    for examples in prepared.evaluation_sets:
        score, baseline = metrics[examples.name].get(metric), examples.baseline
        if score is None or baseline is None:
            continue
        to_beat = float(np.nan_to_num(baseline.metrics[metric]))  # the correlation of a constant is NaN
        is_better = score < to_beat if metric in LOWER_IS_BETTER else score > to_beat
        title = f"{set_title(examples.name).capitalize()}: {metric.replace('_', ' ')}"
        ours, theirs = (format_metric(metric, value, task.perfect_score) for value in (score, to_beat))
        if np.isnan(score):
            sentences.append(f"{title} is undefined, because all predictions or all correct values are the same.")
        elif not is_better:
            sentences.append(f"{title} {ours} is not better than the baseline, {theirs} ({baseline.answer}).")
    if sentences:
        sentences.append(ADVICE_WITHOUT_TRAINING if prepared.train_features is None else ADVICE)
    return sentences


def run_dry_fine_tuning(
    prepared: PreparedTask,
    args: FineTuningArguments,
    checkpoint: str | None = None,
    number: int = 1,
    budget: float = math.inf,
) -> float:
    """Checks a run, and prints its plan, see [`run_dry`]. A sweep passes its first run, and the runs and time left."""
    if number == 0:
        logger.info("%s: everything is finished.", args.output_dir)
        return 0.0
    features = [each.features.inputs for each in prepared.evaluation_sets]
    parts = {"training": functools.partial(make_trainer, prepared)}
    return run_dry(parts, args, checkpoint, features, number, budget)
