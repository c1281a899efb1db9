"""One fine-tuning run: train, score, predict, and leave everything about it in the output folder."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from snugbert.card_snugbert import find_base_model
from snugbert.errors import InputError
from snugbert.models import load_model
from snugbert.trainers.card import versions
from snugbert.trainers.finetuning.arguments import MAIN_METRIC, FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.card import write_finetuning_card
from snugbert.trainers.finetuning.plots import draw_learning_curve, remove_plots
from snugbert.trainers.finetuning.results import write_results
from snugbert.trainers.finetuning.trainer import FineTuningTrainer
from snugbert.trainers.output_folder import check_output_dir, clear_output_dir
from snugbert.trainers.splits import describe_dataset

LOWER_IS_BETTER = ("loss", "mse")
# What the card and results.json say of the settings of training.
SETTINGS = (
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    "layerwise_lr_decay",
    "freeze_embeddings",
    "freeze_layers",
    "unfreeze_after_steps",
    "class_weights",
    "early_stopping_patience",
    "label_smoothing_factor",
    "optim",
    "bf16",
    "fp16",
    "seed",
)
# What else decides about the outcome of a run: two runs of one sweep must not differ in it.
DECIDES = (
    *SETTINGS,
    "do_train",
    "do_eval",
    "do_predict",
    "sweep",
    "metric_for_best_model",
    "load_best_model_at_end",
    "eval_strategy",
    "eval_steps",
    "early_stopping_threshold",
    "pad_to_max_length",
    "data_seed",
    "train_sampling_strategy",
    "max_grad_norm",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "optim_args",
    "lr_scheduler_kwargs",
    "neftune_noise_alpha",
)

Figures = dict[str, dict[str, float]]


@dataclass
class EvaluationSet:
    """Examples to score or to predict.

    Attributes:
        name: prefix of figures and files; "eval" and what begins with it is scored, "predict" is predicted, too.
        features: what the model reads; columns that it does not know are left out.
        judge: predictions for `features`, as [`FineTuningTrainer`] gives them, and a folder -> figures without prefix,
            none if the labels are not told. With a folder it writes predictions and pictures there.
        num_examples: sentences or questions.
        baseline: what a simple answer would score, and in words which: ("always 'positive'", its figures).
    """

    name: str
    features: Dataset
    judge: Callable[[Any, Path | None], dict[str, float]]
    num_examples: int
    baseline: tuple[str, dict[str, float]] | None = None


@dataclass
class FineTuningTask:
    """What is learned, from what, and how it is scored.

    Attributes:
        name: as people write it: "SST-2".
        make_model: a new model with a head; the head is a function of the seed.
        tokenizer: of the model.
        train_features: what the model learns from; None: nothing is learned.
        evaluation_sets: the first of those that begin with "eval" is the one scored during training.
        main_metric: the figure that chooses the best model or setting.
        metrics: the names of all figures.
        pipeline_tag: of the Hub: "text-classification", "token-classification" or "question-answering".
        padding_collator: makes padded batches, where packed ones are not wanted.
        labels: in the order of their ids; None: no classes.
        multi_label: whether an example may have several of them.
        dataset: name of the data; their id on the Hub, and the name of their configuration there, if they have one.
        settings: how the data were read, by the names of the arguments, as JSON values.
    """

    name: str
    make_model: Callable[[], PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    train_features: Dataset | None
    evaluation_sets: list[EvaluationSet]
    main_metric: str
    metrics: tuple[str, ...]
    pipeline_tag: str
    padding_collator: Any
    labels: list[str] | None = None
    multi_label: bool = False
    dataset: tuple[str, str | None, str | None] = ("one's own data", None, None)
    settings: dict[str, Any] = field(default_factory=dict)


def model_maker(
    auto_class: Any, model_args: FineTunedModelArguments, config: PreTrainedConfig, trained: bool
) -> Callable[[], PreTrainedModel]:
    """A function that makes a new model with a head, each with a configuration of its own, as [`load_model`] does.

    Args:
        auto_class: of the head.
        model_args: which model.
        config: from [`load_config`], with the labels of the task.
        trained: a checkpoint must have all weights, because nothing will train them.
    """

    def make_model() -> PreTrainedModel:
        return load_model(
            auto_class,
            model_args,
            copy.deepcopy(config),
            trained=trained,
            ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
        )

    return make_model


def choose_metric(task: FineTuningTask, args: FineTuningArguments) -> None:
    """Makes `metric_for_best_model` that of the task, unless the user has chosen, and `greater_is_better` its own.

    Raises:
        InputError: the user's choice is no figure of the task; or a choice is to be made and nothing can be scored.
    """
    chosen = str(args.metric_for_best_model).removeprefix("eval_")
    if chosen == MAIN_METRIC:
        chosen = task.main_metric
    if chosen not in (*task.metrics, "loss"):
        known = ", ".join(task.metrics)
        raise InputError(f"--metric_for_best_model: there is no metric {chosen!r}; those of {task.name} are {known}.")
    args.metric_for_best_model, args.greater_is_better = chosen, chosen not in LOWER_IS_BETTER
    if scored(task) is None and (args.eval_strategy != "no" or args.sweeps):
        raise InputError("there are no validation examples to choose by; name a file of them with --validation_file.")


def scored(task: FineTuningTask) -> EvaluationSet | None:
    """The examples that are scored during training, and by which the best is chosen."""
    return next((s for s in task.evaluation_sets if s.name.startswith("eval")), None)


def fine_tune(task: FineTuningTask, model_args: FineTunedModelArguments, args: FineTuningArguments) -> Figures:
    """Trains, if there is something to train on, then scores and predicts.

    In the output folder: the model, `<set>_results.json` as Trainer's, what the judges write, `learning_curve.png`,
    `results.json` and `results.md` with everything, and the model card, which is pushed with `push_to_hub`.

    Args:
        task: what to learn.
        model_args: the model that `task.make_model` makes, for the card.
        args: settings and output folder.

    Returns:
        The figures of each evaluation set.

    Raises:
        InputError: the output folder holds another run, the settings do not fit the model, or the loss is no number.
    """
    choose_metric(task, args)
    checkpoint = check_output_dir(args, args.overwrite_output_dir) if task.train_features is not None else None
    set_seed(args.seed)
    trainer = make_trainer(task, args)
    training: dict[str, float] = {}
    if task.train_features is not None:
        if checkpoint is None:
            clear_output_dir(args)
            if args.should_save:
                remove_plots(Path(str(args.output_dir)))
        trainer.write_card = lambda: write_interim_card(task, model_args, trainer)
        training = train(trainer, checkpoint)
    figures = {s.name: evaluate(trainer, s, task.metrics) for s in task.evaluation_sets}
    # A run that only scores does not replace the report on the training of the model in that folder.
    if trainer.is_world_process_zero() and (training or not (Path(str(args.output_dir)) / "config.json").exists()):
        write_report(task, model_args, trainer, training, figures)
    if args.push_to_hub:
        trainer.push_to_hub()
    return figures


def make_trainer(task: FineTuningTask, args: FineTuningArguments) -> FineTuningTrainer:
    """A trainer with a new model.

    Raises:
        InputError: as in [`FineTuningTrainer`] and [`class_weights`]; what Trainer refuses, such as a reporter that is
            not installed; or label smoothing where there is no one right label, or with weights.
    """
    if args.label_smoothing_factor and (task.labels is None or task.multi_label or args.class_weights is not None):
        raise InputError("--label_smoothing_factor is for examples that have one label each, without --class_weights.")
    during_training = scored(task)
    callbacks = []
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(args.early_stopping_patience, args.early_stopping_threshold))
    weights = None if args.class_weights is None else class_weights(args.class_weights, task)
    model = task.make_model()
    try:
        trainer = FineTuningTrainer(
            model=model,
            args=args,
            padding_collator=task.padding_collator,
            of_tokens=task.pipeline_tag != "text-classification",
            class_weights=weights,
            train_dataset=task.train_features,
            eval_dataset=None if during_training is None else during_training.features,
            processing_class=task.tokenizer,
            callbacks=callbacks,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(str(error)) from error
    if during_training is not None:
        trainer.compute_metrics = lambda prediction: during_training.judge(prediction.predictions, None)
    return trainer


def class_weights(text: str, task: FineTuningTask) -> torch.Tensor:
    """The weight of each class.

    Args:
        text: "balanced": the number of labels over the number of classes and of the class's own labels, as
            scikit-learn has it; or such as "positive=2,negative=0.5", the others 1.
        task: with classes, and features to learn from for "balanced".

    Returns:
        *Shape:* (classes,)

    Raises:
        InputError: there are no classes, a label that is not one, or a weight that is no positive number.
    """
    if task.labels is None or task.multi_label or task.train_features is None:
        raise InputError(f"--class_weights: {task.name} has no classes, each example just one, to weigh in training.")
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
            number = float(weight)
        except ValueError:
            number = -1
        if label not in weights or not 0 < number < float("inf"):
            known = ", ".join(task.labels)
            raise InputError(f"--class_weights: {part!r} must be LABEL=NUMBER above 0, the label one of {known}.")
        weights[label] = number
    return torch.tensor(list(weights.values()))


def train(trainer: FineTuningTrainer, checkpoint: str | None) -> dict[str, float]:
    """Trains on, from `checkpoint` or from the start; saves model, tokenizer and figures; returns the figures."""
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(_internal_call=True)  # otherwise it would be pushed before there is a card
    metrics = {**result.metrics, "train_samples": len(trainer.train_dataset)}  # type: ignore[arg-type]
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    return metrics


def evaluate(trainer: FineTuningTrainer, evaluation_set: EvaluationSet, printed: tuple[str, ...]) -> dict[str, float]:
    """Predicts, writes what there is to write, saves the figures beside the baseline's, and prints some of them."""
    name = evaluation_set.name
    folder = Path(str(trainer.args.output_dir)) if trainer.is_world_process_zero() else None
    figures: dict[str, float] = {}

    def judge(prediction: Any) -> dict[str, float]:
        figures.update(evaluation_set.judge(prediction.predictions, folder))
        return figures

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    during_training, trainer.compute_metrics = trainer.compute_metrics, judge
    metrics = trainer.predict(evaluation_set.features, metric_key_prefix=name).metrics or {}
    trainer.compute_metrics = during_training
    if figures:
        description, baseline = evaluation_set.baseline or ("", {})
        # A constant has no correlation: NaN, which is no figure to compare with.
        baseline = {name: value for name, value in baseline.items() if np.isfinite(value)}
        metrics[f"{name}_samples"] = evaluation_set.num_examples
        metrics.update({f"{name}_baseline_{metric}": value for metric, value in baseline.items()})
        trainer.log_metrics(name, metrics)
        trainer.save_metrics(name, metrics)
        worth = f"; {description}: {_in_words(baseline)}" if baseline else ""
        if folder is not None:
            shown = {metric: value for metric, value in figures.items() if metric in printed} or figures
            print(f"{name}: {_in_words(shown)} on {evaluation_set.num_examples} examples{worth}", flush=True)
    return figures


def _in_words(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())


def collect_settings(args: FineTuningArguments, names: tuple[str, ...] = SETTINGS) -> dict[str, Any]:
    """The settings of these `names`, and the number of processes, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    del values["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # the one that does not count
    return {**values, "processes": args.world_size}


def collect_data_settings(data_args: Any) -> dict[str, Any]:
    """How data are read, as JSON values; of files the names alone, as results may be published."""

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
    figures: Figures,
) -> dict[str, Any]:
    """All that is known of a run, as JSON values; `training` is empty if nothing was learned."""
    baselines = {s.name: s.baseline for s in task.evaluation_sets if s.baseline is not None}
    return {
        "task": task.name,
        "dataset": task.dataset[0],
        "model": find_base_model(model_args.model_name_or_path)[1],
        "config": find_base_model(model_args.config_name)[1] if model_args.config_name else None,
        "figures": figures,
        "baselines": {name: {"answer": answer, **scores} for name, (answer, scores) in baselines.items()},
        "examples": {s.name: s.num_examples for s in task.evaluation_sets},
        "training": training,
        "settings": {**task.settings, **(collect_settings(args) if training else {})},
        "versions": versions(),
    }


def write_report(
    task: FineTuningTask,
    model_args: FineTunedModelArguments,
    trainer: FineTuningTrainer,
    training: dict[str, float],
    figures: Figures,
) -> None:
    """Writes pictures, card, and last of all the results, which say that a run was done to its end."""
    args: FineTuningArguments = trainer.args  # type: ignore[assignment]
    output_dir = Path(str(args.output_dir))
    results = collect_results(task, model_args, args, training, figures)
    if training:
        draw_learning_curve(
            trainer.state.log_history, str(args.metric_for_best_model), output_dir / "learning_curve.png"
        )
        write_card(task, model_args, output_dir, results, trainer.hub_model_id or args.hub_model_id)
    write_results(output_dir, results)


def write_interim_card(task: FineTuningTask, model_args: FineTunedModelArguments, trainer: FineTuningTrainer) -> None:
    """Writes the card of a model that is still in training, with the figures of the last evaluation."""
    args: FineTuningArguments = trainer.args  # type: ignore[assignment]
    during_training, last = scored(task), trainer.last_figures()
    figures = {name: last[name] for name in task.metrics if name in last}
    of_sets = {} if during_training is None else {during_training.name: figures}
    results = collect_results(task, model_args, args, {"step": trainer.state.global_step}, of_sets)
    results["settings"]["steps_done"] = f"{trainer.state.global_step:,} of {trainer.state.max_steps:,}"
    write_card(task, model_args, Path(str(args.output_dir)), results, trainer.hub_model_id or args.hub_model_id)


def write_card(
    task: FineTuningTask,
    model_args: FineTunedModelArguments,
    output_dir: Path,
    results: dict[str, Any],
    name: str | None,
    sweep: str | None = None,
) -> None:
    """Writes the model card.

    Args:
        task: what was learned.
        model_args: the checkpoint that training began from.
        output_dir: the folder of the model and its pictures.
        results: of the run that made the model, see [`collect_results`].
        name: on the Hub; None: that of the folder.
        sweep: tables of the sweep in which the model was the best.
    """
    write_finetuning_card(
        output_dir,
        name=name or output_dir.resolve().name,
        task=task.name,
        pipeline_tag=task.pipeline_tag,
        dataset=task.dataset,
        language=None,
        base_model=model_args.model_name_or_path,
        labels=task.labels,
        examples=results["examples"],
        settings=results["settings"],
        figures=results["figures"],
        baselines={s.name: s.baseline for s in task.evaluation_sets if s.baseline is not None},
        sweep=sweep,
    )
