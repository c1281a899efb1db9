"""One fine-tuning run: train, score, predict, and write the results into the output folder."""

import functools
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import IntervalStrategy

from snugbert.card_snugbert import find_base_model
from snugbert.data.sources import describe_dataset
from snugbert.errors import InputError
from snugbert.files import read_json
from snugbert.reports.cards import package_versions
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.intervals import Interval
from snugbert.reports.results import RESULTS, RunResults, contains_model, write_results
from snugbert.reports.score_plots import draw_learning_curve, remove_plots
from snugbert.reports.score_tables import set_title
from snugbert.tasks.base import EvaluationSet, FineTuningTask
from snugbert.trainers.finetuning.finetuning_arguments import (
    MAIN_METRIC,
    ExampleLimits,
    FineTunedModelArguments,
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
from snugbert.trainers.finetuning.soft_targets import DistillationTrainer
from snugbert.trainers.output_folder import check_disk_space, check_output_dir, clear_output_dir
from snugbert.trainers.processes import raise_together
from snugbert.trainers.run_checkpoints import list_checkpoints, remove_checkpoints, step_of
from snugbert.trainers.run_settings import (
    BEST_MODEL_SETTINGS,
    TRAINING_SETTINGS,
    check_max_steps,
    check_training_settings,
    collect_training_settings,
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


def check_early(model_args: FineTunedModelArguments, args: FineTuningArguments) -> None:
    """Checks the output folder and the settings of a run that trains, before its examples are tokenized.

    [`fine_tune`] checks them again, with the model and the examples. A sweep compares its plan instead.

    Raises:
        InputError: the output folder contains another run, or settings changed since the checkpoint.
    """
    if args.sweeps or read_finished_run(args) is not None:
        return
    checkpoint = check_output_dir(args, args.overwrite_output_dir)
    if checkpoint is not None:
        settings = collect_training_settings(args, None, FineTuningTrainer.compared_names)
        check_training_settings(checkpoint, settings | _initial_weights(model_args))
        check_max_steps(checkpoint, args)


def read_finished_run(args: FineTuningArguments) -> RunResults | None:
    """Returns the results of a finished run that the command would resume. None: there is none, or it can be resumed.

    So a job can always use the same command, even after its run is finished. Every process must call this. The first
    one reads, because machines may share no disk.
    """
    output_dir = Path(str(args.output_dir))

    def read() -> Any:
        resumes = str(args.resume_from_checkpoint).lower() == "true" and not args.overwrite_output_dir
        if args.process_index == 0 and resumes and not list_checkpoints(output_dir):
            results = read_json(output_dir / RESULTS) if (output_dir / RESULTS).exists() else {}
            return results if results.get("training") else None  # a run that only scores has no training
        return None

    (results,) = broadcast_object_list([raise_together(read)])
    return results


def _check_finished_run(task: FineTuningTask, model_args: FineTunedModelArguments, args: FineTuningArguments) -> None:
    """Checks that the settings have not changed since the run finished. With `push_to_hub`, uploads its folder again.

    Raises:
        InputError: a setting changed.
    """
    trainer = make_trainer(task, args)
    trainer.run_settings.command_settings = _finished_settings(task, model_args, args)

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


def choose_metric(task: FineTuningTask, args: FineTuningArguments) -> None:
    """Sets `metric_for_best_model` to the task's main metric unless the user chose one, and sets `greater_is_better`.

    Unless the user chose `eval_strategy`, a run with labeled validation examples evaluates after each epoch.

    Raises:
        InputError: the task has no such metric, or there are no validation examples to select the best model by.
    """
    if args.chooses_evaluation:
        is_scored = task.validation_set is not None and task.validation_set.score is not None
        evaluates = is_scored and task.train_features is not None
        args.eval_strategy = IntervalStrategy.EPOCH if evaluates else IntervalStrategy.NO
    chosen = str(args.metric_for_best_model).removeprefix("eval_")
    if chosen == MAIN_METRIC:
        chosen = task.main_metric
    if chosen not in (*task.metrics, "loss"):
        known = ", ".join(task.metrics)
        raise InputError(f"--metric_for_best_model: {task.name} has no metric {chosen!r}. Choose one of {known}.")
    args.metric_for_best_model, args.greater_is_better = chosen, chosen not in LOWER_IS_BETTER
    if task.validation_set is None and (args.eval_strategy != "no" or args.sweeps):
        raise InputError(
            "--validation_file is missing. Evaluation during training and sweeps need validation examples."
        )


def fine_tune(task: FineTuningTask, model_args: FineTunedModelArguments, args: FineTuningArguments) -> RunResults:
    """Trains if there are training examples, then scores and predicts.

    Writes into the output folder: the model, `<set>_results.json` as Trainer does, the predictions and plots of each
    evaluation set, `learning_curve.png`, `results.md`, `results.json` and the model card. With `push_to_hub`, uploads
    the folder at the end. Then removes the checkpoints, unless the user asked for them in this command or in the one
    that it resumes. If the run is already finished, returns its results.

    Args:
        task: the task.
        model_args: the model that `task.make_model` returns, for the card.
        args: settings and output folder.

    Returns:
        The content of `results.json`.

    Raises:
        InputError: the output folder contains another run, the settings do not fit the model, or the loss is not
            finite.
        RunStopped: SIGTERM or SIGINT ended the training.
    """
    choose_metric(task, args)
    finished = read_finished_run(args) if task.train_features is not None else None
    if finished is not None:
        _check_finished_run(task, model_args, args)
        return finished
    checkpoint = check_output_dir(args, args.overwrite_output_dir) if task.train_features is not None else None
    set_seed(args.seed)
    trainer = make_trainer(task, args)
    if task.train_features is not None:
        check_disk_space(args, trainer.model.parameters())  # type: ignore[union-attr]
    output_dir = Path(str(args.output_dir))
    training: dict[str, float] = {}
    if task.train_features is not None:
        if checkpoint is None:
            if args.overwrite_output_dir:
                clear_output_dir(args)
            if args.should_save:
                remove_plots(output_dir)
        trainer.run_settings.command_settings = _compared_settings(task, model_args, args)
        trainer.write_card = lambda: _write_interim_card(task, model_args, trainer)
        training = train(trainer, checkpoint, _finished_settings(task, model_args, args))
    metrics, intervals, losses = {}, {}, {}
    for evaluation_set in task.evaluation_sets:
        name = evaluation_set.name
        metrics[name], intervals[name], losses[name] = evaluate(trainer, evaluation_set)
    results = collect_results(task, model_args, args, training, metrics, trainer.run_settings.changes)
    results["intervals"] = intervals
    wide = describe_wide_intervals(task, intervals, "Evaluate on more examples.")
    for sentence in [*wide, *describe_perfect_scores(task, intervals)]:
        logger.warning(sentence)
    if training and (overfitting := describe_overfitting(trainer.state.log_history, args)):
        logger.warning(overfitting)
    if task.compare is not None and training:
        compare = task.compare()
        if trainer.is_world_process_zero():
            results["comparison"] = compare(results)
    results["shortfalls"] = describe_shortfalls(task, metrics, args, trained=bool(training))
    if trainer.is_world_process_zero() and (training or not contains_model(output_dir)):
        if training:
            _draw_learning_curve(task, trainer, metrics, losses)
            write_finetuning_card(output_dir, task, results, model_args.model_name_or_path, _hub_name(trainer))
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


def make_trainer(task: FineTuningTask, args: FineTuningArguments) -> FineTuningTrainer:
    """Returns a trainer with a new model.

    Raises:
        InputError: see [`FineTuningTrainer`], [`class_weights`] and [`reinitialize_layers`]; Trainer rejects an
            argument, such as a reporter that is not installed; or label smoothing does not fit the labels.
    """
    if args.label_smoothing_factor and (task.labels is None or task.multi_label or args.class_weights is not None):
        raise InputError(
            "--label_smoothing_factor needs one label per example and cannot be combined with --class_weights."
        )
    callbacks: list[TrainerCallback] = [FewerEvaluations()] if args.chooses_evaluation else []
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(args.early_stopping_patience, args.early_stopping_threshold))
    weights = None if args.class_weights is None else class_weights(args.class_weights, task)
    model = task.make_model()
    if task.train_features is not None:
        reinitialize_layers(model, args.reinit_layers)
    validation_set = task.validation_set
    make: Any = FineTuningTrainer
    if task.soft_targets is not None:
        make = functools.partial(DistillationTrainer, targets=task.soft_targets)
    try:
        return make(
            model=model,
            args=args,
            data_collator=task.data_collator,
            token_outputs=task.pipeline_tag != "text-classification",
            class_weights=weights,
            train_dataset=task.train_features,
            eval_dataset=None if validation_set is None else validation_set.features,
            compute_metrics=(
                None
                if validation_set is None
                else lambda prediction: validation_set.score_in_training(prediction.predictions)
            ),
            processing_class=task.tokenizer,
            callbacks=callbacks,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(str(error)) from error


def class_weights(text: str, task: FineTuningTask) -> torch.Tensor:
    """Returns the weight of each class in the loss.

    Args:
        text: "balanced": labels / (classes * labels of the class), as in scikit-learn. Or weights such as
            "positive=2,negative=0.5"; other classes get 1.
        task: a task with classes. "balanced" needs training examples.

    Returns:
        *Shape:* (classes,)

    Raises:
        InputError: the task has no classes, a label is unknown, or a weight is not a positive number.
    """
    if task.labels is None or task.multi_label or task.train_features is None:
        raise InputError(f"--class_weights: {task.name} needs training examples with exactly one class each.")
    column = "label" if "label" in task.train_features.column_names else "labels"
    values = task.train_features[column][:]
    if text == "balanced":
        ids = np.concatenate([np.atleast_1d(value) for value in values])
        counts = np.bincount(ids[ids >= 0], minlength=len(task.labels))
        return torch.tensor(counts.sum() / (np.count_nonzero(counts) * counts.clip(1)), dtype=torch.float32)
    weights = dict.fromkeys(task.labels, 1.0)
    for part in text.split(","):
        label, _, weight = part.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = -1
        if label not in weights or not 0 < value < float("inf"):
            known = ", ".join(task.labels)
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
    output = trainer.predict_once(evaluation_set.features, metric_key_prefix=name)
    predictions = evaluation_set.decode_once(output.predictions)
    metrics = {} if evaluation_set.score is None else evaluation_set.score(predictions)
    intervals = {} if evaluation_set.estimate_intervals is None else evaluation_set.estimate_intervals(predictions)
    if trainer.is_world_process_zero():
        folder = Path(str(trainer.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        evaluation_set.write(predictions, folder)
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
    task: FineTuningTask,
    trainer: FineTuningTrainer,
    metrics: dict[str, dict[str, float]],
    losses: dict[str, float | None],
) -> None:
    """Draws `learning_curve.png`, with the loss and the main metric of the final model on the validation examples."""
    args, state, chosen = trainer.args, trainer.state, str(trainer.args.metric_for_best_model)
    metric = task.main_metric if chosen == "loss" else chosen
    final: dict[str, float] = {}
    baseline = None
    if task.validation_set is not None:
        name = task.validation_set.name
        values = {"loss": losses[name], metric: metrics[name].get(metric)}
        final = {key: value for key, value in values.items() if value is not None}
        # With load_best_model_at_end, the final model is the best one.
        final["step"] = (args.load_best_model_at_end and state.best_global_step) or state.global_step
        if task.validation_set.baseline is not None:
            baseline = task.validation_set.baseline.metrics.get(metric)
    file = Path(str(args.output_dir)) / "learning_curve.png"
    draw_learning_curve(state.log_history, metric, task.perfect_score, final, baseline, file)


def collect_settings(args: FineTuningArguments, names: tuple[str, ...] = SETTINGS) -> dict[str, Any]:
    """Returns the settings `names` and the number of processes, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    del values["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # max_steps overrides the epochs
    return {**values, "processes": args.world_size}


def collect_data_settings(data_args: ExampleLimits) -> dict[str, Any]:
    """Returns the data settings as JSON values. Paths are cut to file names, because results may be published.

    Args:
        data_args: the data arguments of the task.
    """

    def value(name: str, given: Any) -> Any:
        if given is not None and name == "dataset_name":
            return describe_dataset(given)
        if given is None or not name.endswith(("_file", "_dir")):
            return given
        return [Path(file).name for file in given] if isinstance(given, list) else Path(given).name

    return {name: value(name, given) for name, given in asdict(data_args).items()}


def collect_results(
    task: FineTuningTask,
    model_args: FineTunedModelArguments,
    args: FineTuningArguments,
    training: dict[str, float],
    metrics: dict[str, dict[str, float]],
    changes: Sequence[str] = (),
) -> RunResults:
    """Returns the content of `results.json`. `training` is empty if the run did not train.

    `changes` lists what changed when the run resumed.
    """
    baselines = {s.name: s.baseline for s in task.evaluation_sets if s.baseline is not None}
    return {
        "task": task.name,
        "model": find_base_model(model_args.model_name_or_path)[1],
        "config": find_base_model(model_args.config_name)[1] if model_args.config_name else None,
        "metrics": metrics,
        "perfect_score": task.perfect_score,
        "baselines": {name: {"answer": answer, **scores} for name, (answer, scores) in baselines.items()},
        "examples": {s.name: s.num_examples for s in task.evaluation_sets},
        "data": {name: [source._asdict() for source in sources] for name, sources in task.data.items()},
        "training": training,
        "settings": {
            **_student_settings(model_args),
            **task.settings,
            **(collect_settings(args) if training else {}),
            **({"changed_on_resume": "; ".join(changes)} if changes else {}),
        },
        "versions": package_versions(),
    }


def _initial_weights(model_args: FineTunedModelArguments) -> dict[str, Any]:
    weights: dict[str, Any] = {"--model_name_or_path": find_base_model(model_args.model_name_or_path)[1]}
    return weights | {f"--{name}": value for name, value in _student_settings(model_args).items()}


def _student_settings(model_args: FineTunedModelArguments) -> dict[str, Any]:
    """Returns which layers of the checkpoint the model starts from. Empty: all."""
    if model_args.num_student_layers is None:
        return {}
    return {"num_student_layers": model_args.num_student_layers, "student_layers": model_args.student_layers}


def _compared_settings(
    task: FineTuningTask, model_args: FineTunedModelArguments, args: FineTuningArguments
) -> dict[str, Any]:
    """Returns further settings that must not change on resume."""
    data = {"the training data": task.train_features}
    if args.load_best_model_at_end and task.validation_set is not None:
        data["the validation data"] = task.validation_set.features
    return {
        **_initial_weights(model_args),
        "batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "data": {
            **{name: digest_features(features) for name, features in data.items() if features is not None},
            **({} if task.teacher_digest is None else {"the teacher": task.teacher_digest}),
        },
    }


def _finished_settings(
    task: FineTuningTask, model_args: FineTunedModelArguments, args: FineTuningArguments
) -> dict[str, Any]:
    """Returns the settings that must not change once a run is finished. They also determine its results."""
    settings = _compared_settings(task, model_args, args)
    settings["data"] |= {f"the {set_title(s.name)} data": digest_features(s.features) for s in task.evaluation_sets}
    steps = {"--num_train_epochs": args.num_train_epochs, "--max_steps": args.max_steps}
    return {**settings, **steps, **task.settings}


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


def _write_interim_card(task: FineTuningTask, model_args: FineTunedModelArguments, trainer: FineTuningTrainer) -> None:
    """Writes the card of a model in training, with the metrics of the last evaluation."""
    args: FineTuningArguments = trainer.args  # type: ignore[assignment]
    state, last = trainer.state, trainer.last_metrics()
    metrics = {name: last[name] for name in task.metrics if name in last}
    by_set = {} if task.validation_set is None else {task.validation_set.name: metrics}
    results = collect_results(
        task, model_args, args, {"step": state.global_step}, by_set, trainer.run_settings.changes
    )
    results["settings"]["steps_done"] = f"{state.global_step:,} of {state.max_steps:,}"
    folder = Path(str(args.output_dir))
    write_finetuning_card(folder, task, results, model_args.model_name_or_path, _hub_name(trainer))


def _hub_name(trainer: FineTuningTrainer) -> str | None:
    """Returns the repository that the model is pushed to. None: it is not pushed."""
    return trainer.hub_model_id or trainer.args.hub_model_id
