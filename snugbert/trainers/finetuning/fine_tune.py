"""One fine-tuning run: train, score, predict, and write the results into the output folder."""

import functools
import hashlib
import logging
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import IntervalStrategy

from snugbert.card_snugbert import find_base_model
from snugbert.errors import InputError
from snugbert.reports.cards import package_versions
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.intervals import Interval
from snugbert.reports.results import RunResults, contains_model, write_results
from snugbert.reports.score_plots import draw_learning_curve, remove_plots
from snugbert.reports.score_tables import set_title
from snugbert.tasks.base import EvaluationSet
from snugbert.trainers.finetuning.finetuning_arguments import (
    MAIN_METRIC,
    FineTuningArguments,
)
from snugbert.trainers.finetuning.finetuning_guidance import (
    LOWER_IS_BETTER,
    describe_overfitting,
    describe_perfect_scores,
    describe_shortfalls,
    describe_wide_intervals,
)
from snugbert.trainers.finetuning.finetuning_trainer import (
    EarlyStopping,
    FewerEvaluations,
    FineTuningTrainer,
    reinitialize_layers,
)
from snugbert.trainers.finetuning.prepare_task import (
    PreparedTask,
    describe_initial_weights,
    list_student_settings,
    read_finished_run,
)
from snugbert.trainers.finetuning.soft_targets import DistillationTrainer
from snugbert.trainers.output_folder import check_disk_space, check_output_dir, clear_output_dir
from snugbert.trainers.processes import raise_together
from snugbert.trainers.run_checkpoints import list_checkpoints, remove_checkpoints, step_of
from snugbert.trainers.run_settings import (
    BEST_MODEL_SETTINGS,
    TRAINING_SETTINGS,
)
from snugbert.trainers.stopping import raise_if_interrupted

logger = logging.getLogger(__name__)

# The training settings in results.json and in the model card.
SETTINGS = (
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    "reinit_layers",
    "layerwise_lr_decay",
    "freeze_embeddings",
    "freeze_layers",
    "unfreeze_after_steps",
    "class_weights",
    "early_stopping_patience",
    "label_smoothing_factor",
    "optim",
    "precision",
    "seed",
)
# All settings that affect the outcome. They must not change when a sweep continues.
OUTCOME_SETTINGS = (
    *SETTINGS,
    *TRAINING_SETTINGS,
    *BEST_MODEL_SETTINGS,
    *FineTuningTrainer.compared_names,
    "do_train",
    "do_eval",
    "do_predict",
    "sweep",
    "pad_to_max_length",
)


def _check_finished_run(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Checks that the settings have not changed since the run finished. With `push_to_hub`, uploads its folder again.

    Raises:
        InputError: a setting changed.
    """
    trainer = make_trainer(prepared, args)
    trainer.run_settings.command_settings = _finished_settings(prepared, args)

    def compare() -> None:
        if args.process_index == 0:  # machines may share no disk
            trainer.compare_settings(str(args.output_dir))

    try:
        raise_together(compare)
    except InputError as error:
        raise InputError(f"{error} The run in {args.output_dir} is finished and has no checkpoints.") from error
    logger.info("%s contains this run, and it is finished. Nothing was computed.", args.output_dir)
    if args.push_to_hub:  # an earlier upload may have failed
        trainer.uploads.upload_output_dir()


def choose_metric(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Sets `metric_for_best_model` to the task's main metric unless the user chose one, and sets `greater_is_better`.

    Unless the user chose `eval_strategy`, a run with labeled validation examples evaluates after each epoch.

    Raises:
        InputError: the task has no such metric, or there are no validation examples to select the best model by.
    """
    if args.chooses_evaluation:
        is_scored = prepared.validation_set is not None and prepared.validation_set.labeled
        evaluates = is_scored and prepared.train_features is not None
        args.eval_strategy = IntervalStrategy.EPOCH if evaluates else IntervalStrategy.NO
    chosen = str(args.metric_for_best_model).removeprefix("eval_")
    if chosen == MAIN_METRIC:
        chosen = prepared.task.main_metric
    if chosen not in (*prepared.task.metrics, "loss"):
        known = ", ".join(prepared.task.metrics)
        raise InputError(
            f"--metric_for_best_model: {prepared.task.name} has no metric {chosen!r}. Choose one of {known}."
        )
    args.metric_for_best_model, args.greater_is_better = chosen, chosen not in LOWER_IS_BETTER
    if prepared.validation_set is None and (args.eval_strategy != "no" or args.sweeps):
        raise InputError(
            "--validation_file is missing. Evaluation during training and sweeps need validation examples."
        )


def fine_tune(prepared: PreparedTask, args: FineTuningArguments) -> RunResults:
    """Trains if there are training examples, then scores and predicts.

    Writes into the output folder: the model, `<set>_results.json` as Trainer does, the predictions and plots of each
    evaluation set, `learning_curve.png`, `results.md`, `results.json` and the model card. With `push_to_hub`, uploads
    the folder at the end. Then removes the checkpoints, unless the user asked for them in this command or in the one
    that it resumes. If the run is already finished, returns its results.

    Args:
        prepared: the task, its examples and its checkpoint.
        args: settings and output folder.

    Returns:
        The content of `results.json`.

    Raises:
        InputError: the output folder contains another run, the settings do not fit the model, or the loss is not
            finite.
        RunStopped: SIGTERM or SIGINT ended the training.
    """
    choose_metric(prepared, args)
    finished = read_finished_run(args) if prepared.train_features is not None else None
    if finished is not None:
        _check_finished_run(prepared, args)
        return finished
    checkpoint = check_output_dir(args, args.overwrite_output_dir) if prepared.train_features is not None else None
    set_seed(args.seed)
    trainer = make_trainer(prepared, args)
    if prepared.train_features is not None:
        check_disk_space(args, trainer.model.parameters())  # type: ignore[union-attr]
    output_dir, base_model = Path(str(args.output_dir)), prepared.model_args.model_name_or_path
    training: dict[str, float] = {}
    if prepared.train_features is not None:
        if checkpoint is None:
            if args.overwrite_output_dir:
                clear_output_dir(args)
            if args.should_save:
                remove_plots(output_dir)
        trainer.run_settings.command_settings = _compared_settings(prepared, args)
        trainer.write_card = lambda: _write_interim_card(prepared, trainer)
        training = train(trainer, checkpoint, _finished_settings(prepared, args))
    metrics, intervals, losses = {}, {}, {}
    for evaluation_set in prepared.evaluation_sets:
        name = evaluation_set.name
        metrics[name], intervals[name], losses[name] = evaluate(trainer, evaluation_set)
    results = collect_results(prepared, args, training, metrics, trainer.run_settings.changes)
    results["intervals"] = intervals
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
            write_finetuning_card(output_dir, prepared.facts, results, base_model, _hub_name(trainer))
        write_results(output_dir, results)  # last: it marks the run as complete
    if args.push_to_hub:
        trainer.push_to_hub()
    if training and args.should_save and not trainer.run_settings.keeps_checkpoints:
        # Last, so that a run that is stopped before this can be resumed. As in training, later steps stay, and so does
        # a checkpoint that the user names.
        reached = [folder for folder in list_checkpoints(output_dir) if step_of(folder) <= trainer.state.global_step]
        named = Path(str(args.resume_from_checkpoint)).resolve()
        remove_checkpoints([folder for folder in reached if folder.resolve() != named])
    return results


def make_trainer(prepared: PreparedTask, args: FineTuningArguments) -> FineTuningTrainer:
    """Returns a trainer with a new model.

    Raises:
        InputError: see [`FineTuningTrainer`], [`class_weights`] and [`reinitialize_layers`]; Trainer rejects an
            argument, such as a reporter that is not installed; or label smoothing does not fit the labels.
    """
    if args.label_smoothing_factor and (not _has_classes(prepared) or args.class_weights is not None):
        raise InputError(
            "--label_smoothing_factor needs one label per example and cannot be combined with --class_weights."
        )
    callbacks: list[TrainerCallback] = [FewerEvaluations()] if args.chooses_evaluation else []
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(args.early_stopping_patience, args.early_stopping_threshold))
    weights = None if args.class_weights is None else class_weights(args.class_weights, prepared)
    model = prepared.make_model()
    if prepared.train_features is not None:
        reinitialize_layers(model, args.reinit_layers)
    validation_set = prepared.validation_set
    make: Any = FineTuningTrainer
    if prepared.distillation is not None and prepared.distillation.soft_targets is not None:
        make = functools.partial(DistillationTrainer, targets=prepared.distillation.soft_targets)
    try:
        return make(
            model=model,
            args=args,
            data_collator=prepared.make_collator(args.pad_to_max_length),
            output=prepared.task.output,
            class_weights=weights,
            train_dataset=prepared.train_features,
            eval_dataset=None if validation_set is None else validation_set.features.inputs,
            compute_metrics=(
                None
                if validation_set is None
                else lambda prediction: validation_set.score_in_training(prediction.predictions)
            ),
            processing_class=prepared.task.tokenizer,
            callbacks=callbacks,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(str(error)) from error


def _has_classes(prepared: PreparedTask) -> bool:
    """Whether each item has exactly one class."""
    return prepared.task.labels is not None and prepared.task.problem == "single_label_classification"


def class_weights(text: str, prepared: PreparedTask) -> torch.Tensor:
    """Returns the weight of each class in the loss.

    Args:
        text: "balanced": labels / (classes * labels of the class), as in scikit-learn. Or weights such as
            "positive=2,negative=0.5"; other classes get 1.
        prepared: a task with classes, and its training examples.

    Returns:
        *Shape:* (classes,)

    Raises:
        InputError: the task has no classes, a label is unknown, or a weight is not a positive number.
    """
    labels = prepared.task.labels
    if labels is None or not _has_classes(prepared) or prepared.train_features is None:
        raise InputError(f"--class_weights: {prepared.task.name} needs training examples with exactly one class each.")
    if text == "balanced":
        (column,) = prepared.task.output.label_columns
        ids = np.concatenate([np.atleast_1d(value) for value in prepared.train_features[column][:]])
        counts = np.bincount(ids[ids >= 0], minlength=len(labels))
        return torch.tensor(counts.sum() / (np.count_nonzero(counts) * counts.clip(1)), dtype=torch.float32)
    weights = dict.fromkeys(labels, 1.0)
    for part in text.split(","):
        label, _, weight = part.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = -1
        if label not in weights or not 0 < value < float("inf"):
            known = ", ".join(labels)
            raise InputError(
                f"--class_weights: expected LABEL=WEIGHT with a positive weight, not {part!r}. Labels: {known}."
            )
        weights[label] = value
    return torch.tensor(list(weights.values()))


def train(trainer: FineTuningTrainer, checkpoint: str | None, finished: dict[str, Any]) -> dict[str, float]:
    """Trains from `checkpoint` or from the start, saves model, tokenizer and metrics, and returns the metrics.

    The settings `finished` are stored with the others, for [`read_finished_run`].
    """
    result = trainer.train(resume_from_checkpoint=checkpoint)
    raise_if_interrupted(trainer)
    trainer.save_model(_internal_call=True)  # an external call would push before the card is written
    samples = len(trainer.train_dataset)  # type: ignore[arg-type]
    metrics = {**result.metrics, "train_samples": samples, "train_steps": trainer.state.global_step}
    trainer.save_metrics("train", metrics)
    trainer.run_settings.command_settings |= finished
    trainer.save_state()
    return metrics


def evaluate(
    trainer: FineTuningTrainer, evaluation_set: EvaluationSet[Any]
) -> tuple[dict[str, float], dict[str, Interval], float | None]:
    """Predicts, writes predictions and plots, and saves the metrics next to the baseline's.

    If training ended with an evaluation of the same examples, its predictions are used.

    Returns:
        The metrics, their intervals, and the loss. Without labels, there are no metrics, and the loss is None.
    """
    name = evaluation_set.name
    output = trainer.predict_once(evaluation_set.features.inputs, metric_key_prefix=name)
    answers = evaluation_set.decode(output.predictions)  # type: ignore[arg-type]
    metrics, intervals = evaluation_set.score(answers), evaluation_set.estimate_intervals(answers)
    if trainer.is_world_process_zero():
        folder = Path(str(trainer.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        evaluation_set.write(answers, folder)
    if metrics:
        saved = {**(output.metrics or {}), **{f"{name}_{metric}": value for metric, value in metrics.items()}}
        saved[f"{name}_samples"] = evaluation_set.num_examples
        if evaluation_set.baseline is not None:
            # The correlation of a constant is NaN, so there is nothing to compare with.
            baseline = {m: value for m, value in evaluation_set.baseline.metrics.items() if np.isfinite(value)}
            saved.update({f"{name}_baseline_{metric}": value for metric, value in baseline.items()})
        trainer.save_metrics(name, saved)
    return metrics, intervals, (output.metrics or {}).get(f"{name}_loss")


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
        # With load_best_model_at_end, the final model is the best one.
        final["step"] = (args.load_best_model_at_end and state.best_global_step) or state.global_step
        if prepared.validation_set.baseline is not None:
            baseline = prepared.validation_set.baseline.metrics.get(metric)
    file = Path(str(args.output_dir)) / "learning_curve.png"
    draw_learning_curve(state.log_history, metric, prepared.task.perfect_score, final, baseline, file)


def collect_settings(args: FineTuningArguments, names: tuple[str, ...] = SETTINGS) -> dict[str, Any]:
    """Returns the settings `names` and the number of processes, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    del values["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # max_steps overrides the epochs
    return {**values, "processes": args.world_size}


def collect_results(
    prepared: PreparedTask,
    args: FineTuningArguments,
    training: dict[str, float],
    metrics: dict[str, dict[str, float]],
    changes: Sequence[str] = (),
) -> RunResults:
    """Returns the content of `results.json`. `training` is empty if the run did not train.

    `changes` lists what changed when the run resumed.
    """
    config_name = prepared.model_args.config_name
    baselines = {s.name: s.baseline for s in prepared.evaluation_sets if s.baseline is not None}
    return {
        "task": prepared.task.name,
        "model": find_base_model(prepared.model_args.model_name_or_path)[1],
        "config": find_base_model(config_name)[1] if config_name else None,
        "metrics": metrics,
        "perfect_score": prepared.task.perfect_score,
        "baselines": {name: {"answer": answer, **scores} for name, (answer, scores) in baselines.items()},
        "examples": {s.name: s.num_examples for s in prepared.evaluation_sets},
        "data": {name: [source._asdict() for source in sources] for name, sources in prepared.data.items()},
        "training": training,
        "settings": {
            **list_student_settings(prepared.model_args),
            **prepared.settings,
            **(collect_settings(args) if training else {}),
            **({"changed_on_resume": "; ".join(changes)} if changes else {}),
        },
        "versions": package_versions(),
    }


def _compared_settings(prepared: PreparedTask, args: FineTuningArguments) -> dict[str, Any]:
    """Returns further settings that must not change on resume."""
    data = {"the training data": prepared.train_features}
    if args.load_best_model_at_end and prepared.validation_set is not None:
        data["the validation data"] = prepared.validation_set.features.inputs
    return {
        **describe_initial_weights(prepared.model_args),
        "batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "data": {
            **{name: digest_features(features) for name, features in data.items() if features is not None},
            **({} if prepared.distillation is None else {"the teacher": prepared.distillation.teacher}),
        },
    }


def _finished_settings(prepared: PreparedTask, args: FineTuningArguments) -> dict[str, Any]:
    """Returns the settings that must not change once a run is finished. They also determine its results."""
    settings = _compared_settings(prepared, args)
    for each in prepared.evaluation_sets:
        settings["data"][f"the {set_title(each.name)} data"] = digest_features(each.features.inputs)
    steps = {"--num_train_epochs": args.num_train_epochs, "--max_steps": args.max_steps}
    return {**settings, **steps, **prepared.settings}


def digest_features(dataset: Dataset) -> str:
    """Returns a digest of the numeric columns. It detects changed examples."""
    table = dataset.with_format("arrow")[:]
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        column = table[name].combine_chunks()
        while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            digest.update(pc.list_value_length(column).to_numpy(zero_copy_only=False).tobytes())
            column = pc.list_flatten(column)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            digest.update(name.encode() + column.to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()[:16]


def _write_interim_card(prepared: PreparedTask, trainer: FineTuningTrainer) -> None:
    """Writes the card of a model in training, with the metrics of the last evaluation."""
    args: FineTuningArguments = trainer.args  # type: ignore[assignment]
    state, last = trainer.state, trainer.last_metrics()
    metrics = {name: last[name] for name in prepared.task.metrics if name in last}
    by_set = {} if prepared.validation_set is None else {prepared.validation_set.name: metrics}
    changes = trainer.run_settings.changes
    results = collect_results(prepared, args, {"step": state.global_step}, by_set, changes)
    results["settings"]["steps_done"] = f"{state.global_step:,} of {state.max_steps:,}"
    folder = Path(str(args.output_dir))
    base_model = prepared.model_args.model_name_or_path
    write_finetuning_card(folder, prepared.facts, results, base_model, _hub_name(trainer))


def _hub_name(trainer: FineTuningTrainer) -> str | None:
    """Returns the repository that the model is pushed to. None: it is not pushed."""
    return trainer.hub_model_id or trainer.args.hub_model_id
