"""Sets up each process of a run. If one process fails, all processes fail with its error."""

import logging
import os
import platform
import sys
from collections.abc import Callable
from typing import TypeVar

from huggingface_hub import HfApi
from huggingface_hub.utils import httpx
from safetensors import SafetensorError
from transformers import TrainingArguments
from transformers.utils import logging as transformers_logging

from snugbert.cli.device_arguments import PRECISIONS, DeviceArguments
from snugbert.errors import InputError, join_lines
from snugbert.shared_cores import share_cores
from snugbert.trainers.run.lost_processes import show_signs_of_life, wait_for_all

T = TypeVar("T")


def set_up(training_args: DeviceArguments) -> None:
    """Sets up logging and one GPU per process, and checks the login to the Hub.

    The main process logs to standard error. Other processes log only errors.

    Raises:
        InputError: with `--push_to_hub`, the Hub cannot be reached or rejects the token.
    """
    from snugbert.trainers.run.log_lines import set_up_logging  # only here, because `--help` works without Trainer

    set_up_logging(logging.INFO if training_args.should_log else logging.ERROR)
    # Our log lines replace Trainer's INFO lines. Its warnings stay.
    transformers_logging.set_verbosity(logging.WARNING if training_args.should_log else logging.ERROR)
    transformers_logging.disable_progress_bar()  # for reading and writing weights
    if training_args.world_size > 1:
        show_signs_of_life()
        logging.getLogger(__name__).info(
            "%d processes. If a process does not answer for %d seconds, all processes stop (--ddp_timeout).",
            training_args.world_size,
            training_args.ddp_timeout,
        )
    use_one_gpu(training_args)
    share_cores()
    logging.getLogger(__name__).info("precision: %s", PRECISIONS[training_args.precision])
    move_hub_token(training_args)
    if training_args.push_to_hub and training_args.should_save:
        _check_hub(training_args.hub_token)


def use_one_gpu(training_args: DeviceArguments) -> None:
    """Makes a process use one GPU.

    With several GPUs, Trainer would split every batch in one process. That is slow, and losses would be inexact.
    """
    if training_args.n_gpu > 1:
        logging.getLogger(__name__).warning(
            "using one of %d GPUs. To use all GPUs, start with `accelerate launch`.", training_args.n_gpu
        )
        training_args._n_gpu = 1


def is_terminal() -> bool:
    """Whether standard error is a terminal. In a log file, progress bars would be noise."""
    return sys.stderr is not None and sys.stderr.isatty()


def move_hub_token(training_args: TrainingArguments) -> None:
    """Moves `hub_token` from the arguments to the environment variable `HF_TOKEN`, which huggingface_hub reads.

    Trainer writes its arguments to output folders and uploads them. A token in them would be published.
    """
    if isinstance(training_args.hub_token, str):
        os.environ["HF_TOKEN"] = training_args.hub_token
        # True: use HF_TOKEN even if HF_HUB_DISABLE_IMPLICIT_TOKEN is set.
        training_args.hub_token = True  # type: ignore[assignment]


def _check_hub(token: bool | str | None) -> None:
    # Without this check, a wrong token would be noticed only after training.
    hub = HfApi(token=token)
    try:
        hub.whoami()
    except (OSError, httpx.HTTPError) as error:
        raise InputError(f"--push_to_hub: cannot log in to {hub.endpoint}: {join_lines(error)}") from error


def raise_together(function: Callable[[], T]) -> T:
    """Calls `function` in every process. If one process raises an InputError, all processes raise it.

    `function` may take any time, and must not communicate. An OSError becomes an InputError.

    Raises:
        InputError: the error of this process, or of the first process that failed. The message names its machine.
    """
    from accelerate.utils import gather_object  # only here, because `--help` works without it

    show_signs_of_life()
    error: InputError | None = None
    try:
        result = function()
    except InputError as raised:
        error = raised
    except (OSError, SafetensorError) as raised:  # such as a full disk
        error = InputError(str(raised))
        error.__cause__ = raised
    wait_for_all()
    answers = gather_object([None if error is None else (platform.node(), str(error))])
    for host, message in filter(None, answers):
        raise error or InputError(message if host == platform.node() else f"{host}: {message}")
    return result
