"""Allowed values of the numeric arguments of all commands."""

import math
from dataclasses import fields
from typing import Any, NamedTuple

from snugbert.errors import InputError

LARGEST_SEED = 2**32 - 1  # of NumPy


class Range(NamedTuple):
    """Allowed values: from `least` to `most`. `open_below` and `open_above`: the bound itself is not allowed."""

    least: float
    most: float = math.inf
    open_below: bool = False
    open_above: bool = False

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int | float)
        above = self.least < number if self.open_below else self.least <= number
        return above and (number < self.most if self.open_above else number <= self.most)

    def __str__(self) -> str:
        least = f"{'above' if self.open_below else 'at least'} {self.least}"
        if self.most == math.inf:
            return least
        return f"{least} and {'below' if self.open_above else 'at most'} {self.most}"


COUNT, NOT_NEGATIVE, POSITIVE, SHARE = Range(1), Range(0), Range(0, open_below=True), Range(0, 1)

RANGES = {
    # TrainingArguments and DeviceArguments. torch and transformers refuse the others, such as betas above 1
    "adam_epsilon": POSITIVE,
    "dataloader_num_workers": NOT_NEGATIVE,
    "eval_accumulation_steps": COUNT,
    "eval_steps": POSITIVE,
    "gradient_accumulation_steps": COUNT,
    "label_smoothing_factor": Range(0, 1, open_above=True),
    "learning_rate": NOT_NEGATIVE,
    "logging_steps": POSITIVE,
    "max_grad_norm": NOT_NEGATIVE,
    "max_steps": COUNT,
    "neftune_noise_alpha": NOT_NEGATIVE,
    "num_train_epochs": POSITIVE,
    "pad_to_multiple_of": NOT_NEGATIVE,
    "per_device_eval_batch_size": COUNT,
    "per_device_train_batch_size": COUNT,
    "save_steps": POSITIVE,
    "seed": Range(0, LARGEST_SEED),
    "warmup_steps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    # pretraining
    "corpus_cache_gb": POSITIVE,
    "generator_size": Range(0, 1, open_below=True),
    "mask_replace_prob": SHARE,
    "preprocessing_num_workers": COUNT,
    "random_replace_prob": SHARE,
    "short_seq_prob": SHARE,
    "show": NOT_NEGATIVE,
    "validation_split_percentage": Range(1, 99),
    "window_blocks": COUNT,
    # fine-tuning and prediction
    "abstain_below": Range(0, 1, open_below=True),
    "distillation_temperature": POSITIVE,
    "distillation_weight": SHARE,
    "doc_stride": NOT_NEGATIVE,
    "early_stopping_patience": COUNT,
    "early_stopping_threshold": NOT_NEGATIVE,
    "freeze_layers": NOT_NEGATIVE,
    "reinit_layers": NOT_NEGATIVE,
    "layerwise_lr_decay": SHARE,
    "max_answer_length": COUNT,
    "max_eval_samples": COUNT,
    "max_predict_samples": COUNT,
    "max_query_length": COUNT,
    "max_train_samples": COUNT,
    "n_best_size": COUNT,
    "seeds": COUNT,
    "unfreeze_after_steps": COUNT,
    # vocabulary
    "min_frequency": COUNT,
    "vocab_size": COUNT,
}


def check_ranges(arguments: Any, **ranges: Range) -> None:
    """Checks that the numeric arguments are finite and in their ranges. Defaults are always allowed.

    With `max_steps`, `num_train_epochs` is not used and not checked. `max_grad_norm` may be infinite: no clipping.

    `ranges` are ranges by argument name, in addition to `RANGES`.
    """
    for field in fields(arguments):
        value = getattr(arguments, field.name, None)
        if not isinstance(value, int | float) or value == field.default:
            continue
        if field.name == "num_train_epochs" and arguments.max_steps > 0:
            continue
        if not math.isfinite(value) and (field.name, value) != ("max_grad_norm", math.inf):
            raise InputError(f"--{field.name} {value} must be a finite number.")
        allowed = {**RANGES, **ranges}.get(field.name)
        if allowed is not None and value not in allowed:
            raise InputError(f"--{field.name} {value} must be {allowed}.")
