"""What every run does first: check arguments, set up logging, find the Hub."""

import logging
import os
import sys
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.utils import httpx
from transformers import TrainingArguments
from transformers.utils import logging as transformers_logging

from snugbert.errors import InputError


def set_up(training_args: TrainingArguments) -> None:
    """What every run wants: log lines on standard error, from the main process only, one GPU a process.

    Raises:
        InputError: a negative learning rate or seed, or the result is to be pushed to a Hub that cannot be reached or
            does not know the token.
    """
    for name in ("learning_rate", "seed", "data_seed"):
        if (getattr(training_args, name) or 0) < 0:
            raise InputError(f"--{name} {getattr(training_args, name)} must not be negative.")
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    level = logging.INFO if training_args.should_log else logging.ERROR
    logging.getLogger("snugbert").setLevel(level)
    # Trainer's own INFO lines repeat what we print; its warnings matter.
    transformers_logging.set_verbosity(logging.WARNING if training_args.should_log else logging.ERROR)
    transformers_logging.disable_progress_bar()  # of reading and writing weights; training keeps its own
    if training_args.n_gpu > 1:
        # Trainer would split every batch over them within one process, which is slow and cannot divide a loss exactly.
        logging.getLogger(__name__).warning(
            "one of %d GPUs is used; for all of them: accelerate launch -m snugbert ...", training_args.n_gpu
        )
        training_args._n_gpu = 1
    if not torch.accelerator.is_available():
        training_args.dataloader_pin_memory = False  # torch warns at every epoch that there is nothing to pin for
    move_hub_token(training_args)
    if training_args.push_to_hub and training_args.should_save:
        _check_hub(training_args.hub_token)


def move_hub_token(training_args: TrainingArguments) -> None:
    """Moves `hub_token` from the arguments to the environment (`HF_TOKEN`), where huggingface_hub looks for it.

    Trainer pickles its arguments into output folders and uploads them. A token among them would be published.
    """
    if isinstance(training_args.hub_token, str):
        os.environ["HF_TOKEN"] = training_args.hub_token
        # Asks huggingface_hub for it even where HF_HUB_DISABLE_IMPLICIT_TOKEN is set.
        training_args.hub_token = True  # type: ignore[assignment]


def _check_hub(token: Any) -> None:
    # The training would be done, or all runs of a sweep, before a push fails.
    hub = HfApi(token=token)
    try:
        hub.whoami()
    except (OSError, httpx.HTTPError) as error:
        raise InputError(f"--push_to_hub: {hub.endpoint} cannot be used: {' '.join(str(error).split())}") from error
