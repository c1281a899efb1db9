"""Arguments of every fine-tuning command: which model, and the paper's settings as defaults."""

from dataclasses import dataclass, field

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from snugbert.errors import InputError
from snugbert.models import ModelArguments

SWEEPS = ("paper", "fixed")
MAIN_METRIC = "main"  # stands for the task's own, until the task is known


@dataclass
class FineTunedModelArguments(ModelArguments):
    """Which model to fine-tune."""

    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Replace a head that was made for another number of labels."}
    )


@dataclass
class ExampleLimits:
    """How many examples to use: what the arguments of data of every task have in common."""

    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Score the first so many examples."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many examples."})

    def check_least(self, **least: int) -> None:
        """Makes sure that these arguments are at least so much, and limits at least 1.

        Raises:
            InputError: one is less.
        """
        limits = ("max_train_samples", "max_eval_samples", "max_predict_samples")
        for name, smallest in {**least, **dict.fromkeys(limits, 1)}.items():
            number = getattr(self, name)
            if number is not None and number < smallest:
                raise InputError(f"--{name} must be at least {smallest}, not {number}.")

    @property
    def max_samples(self) -> dict[str, int | None]:
        """How many examples of training, validation and test to use; None: all."""
        return {"train": self.max_train_samples, "validation": self.max_eval_samples, "test": self.max_predict_samples}


@dataclass
class FineTuningArguments(TrainingArguments):
    """`TrainingArguments` with the paper's fine-tuning settings as defaults.

    Devlin et al. (2018), section 4.1: 3 epochs in batches of 32, learning rate the best of 5e-5, 4e-5, 3e-5, 2e-5 on
    the development set. The original release (`run_classifier.py`, `optimization.py`) adds warmup over the first 10 %
    of the steps, linear decay, and weight decay 0.01. The paper's batch is that of all devices together.

    Raises:
        InputError: a value out of range, or settings that exclude each other.
    """

    learning_rate: float = field(default=3e-5, metadata={"help": "The peak learning rate."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training examples."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Examples of a device's batch."})
    per_device_eval_batch_size: int = field(default=32, metadata={"help": "Examples of a batch in evaluation."})
    # A short training has a learning curve, too.
    logging_steps: float = field(
        default=0.02, metadata={"help": "Log the loss after so many steps; a number below 1 is a share of all steps."}
    )
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Steps of linear warmup; a number below 1 is a share of all steps."}
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay, not on biases and LayerNorm."})
    save_total_limit: int | None = field(
        default=3,
        metadata={"help": "How many checkpoints to keep: the newest, and the best if there is one. 0 keeps all."},
    )
    layerwise_lr_decay: float = field(
        default=1.0, metadata={"help": "Learning rate of a layer: so many times that of the layer above it."}
    )
    freeze_embeddings: bool = field(default=False, metadata={"help": "Keep the embeddings as they are."})
    freeze_layers: int = field(
        default=0, metadata={"help": "Keep the first so many layers as they are, and the embeddings with them."}
    )
    unfreeze_after_steps: int | None = field(
        default=None, metadata={"help": "Train what was frozen, too, after so many steps; default: never."}
    )
    class_weights: str | None = field(
        default=None,
        metadata={"help": "Weights of the classes in the loss: balanced, or such as positive=2,negative=1."},
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after so many evaluations without a better one, and keep the best model."},
    )
    early_stopping_threshold: float = field(default=0.0, metadata={"help": "What counts as better, at least."})
    sweep: str | None = field(
        default=None,
        metadata={
            "help": "paper: batch 16 and 32, learning rate 5e-5 to 2e-5, 2 to 4 epochs, and the best by the "
            "validation examples; fixed: the settings given."
        },
    )
    seeds: int = field(default=1, metadata={"help": "Run so many seeds, from --seed on; mean and deviation."})
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Padded batches of max_seq_length instead of packed ones."}
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace the run that --output_dir holds already."}
    )

    def __post_init__(self):
        for name, low, high in (
            ("layerwise_lr_decay", 0, 1),
            ("freeze_layers", 0, None),
            ("unfreeze_after_steps", 1, None),
            ("early_stopping_patience", 1, None),
            ("early_stopping_threshold", 0, None),
            ("seeds", 1, None),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= (value if high is None else high):
                most = "" if high is None else f" and at most {high}"
                raise InputError(f"--{name} {value} must be at least {low}{most}.")
        if self.sweep not in (None, *SWEEPS):
            raise InputError(f"--sweep: there is no sweep {self.sweep!r}; there are {', '.join(SWEEPS)}.")
        if self.unfreeze_after_steps is not None and not self.freezes:
            raise InputError("--unfreeze_after_steps: nothing is frozen; give --freeze_layers or --freeze_embeddings.")
        if self.early_stopping_patience is not None and self.eval_strategy == IntervalStrategy.NO:
            self.eval_strategy = IntervalStrategy.EPOCH
        if self.eval_strategy == IntervalStrategy.STEPS and self.eval_steps is None:
            # As in Trainer, but where --logging_steps is a share: evaluation costs more than a line in the log.
            self.eval_steps = self.logging_steps if self.logging_steps >= 1 else 500
        if self.early_stopping_patience is not None:
            # A checkpoint after each evaluation, or the best of them could not be kept.
            self.save_strategy, self.save_steps = SaveStrategy(self.eval_strategy), self.eval_steps or self.save_steps
            self.load_best_model_at_end = True
        self.metric_for_best_model = self.metric_for_best_model or MAIN_METRIC
        # With none of the three, all that the data allow is done. To choose the best, something has to be scored.
        if self.do_train and (self.eval_strategy != IntervalStrategy.NO or self.sweeps):
            self.do_eval = True
        asked = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        self.wanted_splits = tuple(split for split in asked if asked[split]) or None
        # A loss that is no number ends the run instead of being passed over.
        self.logging_nan_inf_filter = False
        super().__post_init__()

    @property
    def freezes(self) -> bool:
        """Whether a part of the model is kept as it is, from the start at least."""
        return self.freeze_embeddings or self.freeze_layers > 0

    @property
    def sweeps(self) -> bool:
        """Whether more than one run was asked for."""
        return self.sweep is not None or self.seeds > 1
