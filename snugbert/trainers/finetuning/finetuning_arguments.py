"""Arguments of all fine-tuning commands: the model, and the paper's settings as defaults."""

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from snugbert.cli.arguments import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, OverwriteArguments, argument, check_ranges
from snugbert.cli.device_arguments import DeviceArguments
from snugbert.cli.model_arguments import StudentArguments
from snugbert.errors import InputError
from snugbert.trainers.finetuning.sweep_file import EXCLUSIVE, OWN_FLAGS, SweepFile, read_sweep_file

MAIN_METRIC = "main"  # replaced by the main metric of the task
# Settings that must not change on resume, in addition to the settings that every run compares.
COMPARED_SETTINGS = (
    *OWN_FLAGS,
    "early_stopping_patience",
    "early_stopping_threshold",
    "data_seed",
    "train_sampling_strategy",
)


@dataclass
class FineTunedModelArguments(StudentArguments):
    """Which model to fine-tune."""

    ignore_mismatched_sizes: bool = argument(False, "Replace a classifier that was trained for other labels.")
    # On CoNLL-2003, F1 was 90.4 with the first layers and 89.2 with `spread`. On MRPC, the scores were equal.
    student_layers: str = argument(
        "first", "Layers to keep: first, spread, last, or numbers from 0 such as 0,2,5.", advanced=True
    )

    # These fields are set from Python only. None: model and tokenizer are loaded.
    model: ClassVar[Any] = None  # a PreTrainedModel
    tokenizer: ClassVar[Any] = None


@dataclass
class FineTuningArguments(DeviceArguments, OverwriteArguments):
    """`TrainingArguments` with the paper's fine-tuning settings as defaults.

    Devlin et al. (2018), section 4.1: 3 epochs, batches of 32, and the best learning rate of 5e-5, 4e-5, 3e-5 and 2e-5
    on the development set. The default is 3e-5, and higher for narrow encoders (see `choose_learning_rate`). The
    original release (`run_classifier.py`, `optimization.py`) adds warmup over the first 10 % of the steps, linear
    decay, and weight decay 0.01. The paper's batch size counts all devices together.

    `sweep="stable"` changes the defaults to 20 epochs, at least 100 steps, and 5 seeds, after Mosbach et al. (2021),
    "On the Stability of Fine-tuning BERT", section 7. Their other settings are already the defaults. The learning rate
    still depends on the width.
    """

    do_train: bool = argument(False, "Train. Default: train, evaluate and predict on the data that you pass.")
    do_eval: bool = argument(False, "Evaluate on the validation examples. Default: see --do_train.")
    do_predict: bool = argument(False, "Predict the test examples. Default: see --do_train.")
    # In this and the following arguments, None means that the user did not choose a value.
    learning_rate: float = argument(None, "Peak learning rate. Default: depends on the model's size.")
    num_train_epochs: float = argument(None, "Number of passes over the training examples. Default: 3.")
    per_device_train_batch_size: int = argument(32, "Training examples per device and batch.")
    per_device_eval_batch_size: int = argument(32, "Examples per device and batch for evaluation and prediction.")
    # A share of all steps, so that even short runs have a learning curve.
    logging_steps: float = argument(0.02, "Steps between log lines. A value below 1 is a share of all steps.")
    warmup_steps: float = argument(0.1, "Steps of linear warmup. A value below 1 is a share of all steps.")
    weight_decay: float = argument(0.01, "Weight decay, except on biases and LayerNorm.")
    eval_strategy: str | None = argument(  # type: ignore[assignment]
        None, "When to evaluate: no, steps or epoch. Default: epoch."
    )
    save_strategy: str | None = argument(  # type: ignore[assignment]
        None, "When to save a checkpoint: no, steps, epoch or best. Default: steps."
    )
    save_steps: float | None = argument(  # type: ignore[assignment]
        None, "Steps between checkpoints. A value below 1 is a share of all steps. Default: 500."
    )
    save_total_limit: int | None = argument(
        None, "Number of checkpoints to keep. 0 keeps all. Default: 3, removed when the run is done."
    )
    reinit_layers: int = argument(
        0, "Start the top N layers and the pooler from random weights.", range=NOT_NEGATIVE, advanced=True
    )
    layerwise_lr_decay: float = argument(
        1.0, "Learning rate of a layer relative to the layer above it.", range=SHARE, advanced=True
    )
    freeze_embeddings: bool = argument(False, "Do not train the embeddings.", advanced=True)
    freeze_layers: int = argument(0, "Do not train the embeddings and the first N layers.", range=NOT_NEGATIVE)
    distillation_temperature: float = argument(
        2.0, "Temperature of the teacher's soft targets.", range=POSITIVE, advanced=True
    )
    distillation_weight: float = argument(
        0.5, "Weight of the soft targets in the loss. The labels get 1 minus this.", range=SHARE, advanced=True
    )
    class_weights: dict | str | None = argument(  # a dict in Python: label -> weight
        None, "Class weights in the loss: balanced, or for example positive=2,negative=1. Default: none."
    )
    early_stopping_patience: int | None = argument(
        None, "Stop after N evaluations without improvement, and keep the best model. Default: never.", range=COUNT
    )
    early_stopping_threshold: float = argument(
        0.0, "Early stopping: smallest change that counts as an improvement.", range=NOT_NEGATIVE, advanced=True
    )
    sweep: str | None = argument(
        None, "Do several runs: a YAML file of settings to search, paper (BERT's grid), fixed or stable."
    )
    seeds: int = argument(
        None, "Number of runs to average. Their seeds count up from --seed. Default: 1.", range=COUNT
    )
    folds: int | None = argument(
        None, "Find wrong labels: predict each of N folds with a model trained on the others.", range=COUNT
    )
    pad_to_max_length: bool = argument(
        False, "Pad all examples to --max_seq_length instead of packing batches.", advanced=True
    )

    def __post_init__(self):
        self._read_sweep()
        check_ranges(self)
        if isinstance(self.class_weights, dict):  # text keys as in JSON, which a resumed run compares
            self.class_weights = {str(label): weight for label, weight in self.class_weights.items()}
        asks = self.save_strategy not in (None, "no") or self.save_steps is not None or self.save_only_model
        # Otherwise, checkpoints only serve to resume until the run is finished.
        self.keeps_checkpoints = asks or self.save_total_limit is not None
        stops_early = self.early_stopping_patience is not None
        keeps_best = self.load_best_model_at_end or stops_early
        self.chooses_evaluation = self.eval_strategy is None and not keeps_best
        if self.save_strategy is None:
            # Keeping the best model requires a checkpoint after each evaluation.
            by_epoch = keeps_best and self.save_steps is None and self.eval_strategy in (None, IntervalStrategy.EPOCH)
            self.save_strategy = "epoch" if by_epoch else "steps"
        if self.eval_strategy is None or (stops_early and self.eval_strategy == IntervalStrategy.NO):
            self.eval_strategy = IntervalStrategy.EPOCH if keeps_best else IntervalStrategy.NO
        self.save_steps = 500 if self.save_steps is None else self.save_steps
        self.save_total_limit = 3 if self.save_total_limit is None else self.save_total_limit
        if self.eval_strategy == IntervalStrategy.STEPS and self.eval_steps is None:
            # As in Trainer, unless --logging_steps is a share. Evaluation costs more than a log line.
            self.eval_steps = self.logging_steps if self.logging_steps >= 1 else 500
        if stops_early:
            self.save_strategy, self.save_steps = SaveStrategy(self.eval_strategy), self.eval_steps or self.save_steps
            self.load_best_model_at_end = True
        self.metric_for_best_model = self.metric_for_best_model or MAIN_METRIC
        # Without --do_train, --do_eval and --do_predict, the run uses every split. Evaluation during training needs
        # the validation split, and so do sweeps.
        if self.do_train and (self.eval_strategy != IntervalStrategy.NO or self.sweeps):
            self.do_eval = True
        asked = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        self.wanted_splits = tuple(split for split in asked if asked[split]) or None
        # The tasks compute metrics from the logits of all examples.
        self.prediction_loss_only, self.batch_eval_metrics, self.eval_do_concat_batches = False, False, True
        super().__post_init__()

    def _read_sweep(self) -> None:
        """Reads the sweep file that `sweep` names, or `fixed` if only `seeds` is set.

        Single values in this file replace defaults, but not the user's values.
        """
        self.search: SweepFile | None = None
        self.min_steps, epochs, seeds = 0, 3.0, 1
        if self.sweep is not None or self.seeds not in (None, 1):
            self.search = read_sweep_file(self.sweep or "fixed", type(self))
            seeds = self.search.seeds
            if self.num_train_epochs is None and self.max_steps <= 0:
                self.min_steps = self.search.min_steps
            for name in self.given:
                for other in self.search.settings:
                    if other == name or {other, name} in EXCLUSIVE:
                        raise InputError(f"--{name}: --sweep {self.sweep} sets {other}. Remove --{name} or --sweep.")
            # `max_steps` would override the number of epochs that the user chose.
            for name, value in self.search.defaults.items():
                if name not in self.given and not (name == "max_steps" and "num_train_epochs" in self.given):
                    setattr(self, name, value)
        self.num_train_epochs = epochs if self.num_train_epochs is None else self.num_train_epochs
        self.seeds = seeds if self.seeds is None else self.seeds

    def varies(self, name: str) -> bool:
        """Whether the runs of a sweep have different values of the flag `name`."""
        return self.search is not None and name in self.search.settings

    @property
    def sweeps(self) -> bool:
        """Whether there is more than one run."""
        return self.sweep is not None or self.seeds > 1
