"""Sets up each process of a run, waits for the other processes, and shares an error with all of them."""

import ctypes
import logging
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import HfApi
from huggingface_hub.utils import httpx
from safetensors import SafetensorError
from torch.distributed.distributed_c10d import _get_default_store
from transformers import TrainingArguments
from transformers.utils import logging as transformers_logging

from snugbert.cli.device_arguments import PRECISIONS, DeviceArguments
from snugbert.errors import InputError, join_lines
from snugbert.shared_cores import share_cores

# Phrases in torch's errors about a lost process. Other errors, such as a wrong interface, keep their traceback.
LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed out|timeout|failed to recv|monitoredBarrier|ncclRemoteError|"
    r"remote process exited",
    re.IGNORECASE,
)
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # glibc's malloc.h
# gloo's errors begin with a source file or a rank: "[/src/gloo/transport/tcp/pair.cc:538] ...", "[Rank 0]: ...".
PLACE = re.compile(r"^\[[^]]*\]:?\s*")


def set_up(training_args: DeviceArguments) -> None:
    """Sets up logging and one GPU per process, and checks the login to the Hub.

    The main process logs to standard error. Other processes log only errors.
    """
    from snugbert.trainers.run.log import set_up_logging  # only here, because `--help` works without Trainer

    set_up_logging(logging.INFO if training_args.should_log else logging.ERROR)
    # Our log lines replace Trainer's INFO lines. Its warnings are still printed.
    transformers_logging.set_verbosity(logging.WARNING if training_args.should_log else logging.ERROR)
    transformers_logging.disable_progress_bar()  # for reading and writing weights
    use_one_gpu(training_args)
    share_cores()
    logging.getLogger(__name__).info("precision: %s", PRECISIONS[training_args.precision])
    move_hub_token(training_args)
    if training_args.push_to_hub and training_args.should_save:
        hub = HfApi(token=training_args.hub_token)
        try:
            hub.whoami()  # otherwise, a wrong token would be noticed only after training
        except (OSError, httpx.HTTPError) as error:
            raise InputError(f"--push_to_hub: cannot log in to {hub.endpoint}: {join_lines(error)}") from error


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next step, unless the user has set a variable of its `malloc`.

    Otherwise Linux clears each page again, 8 % of a fine-tuning step. Larger batches, as in pretraining, gain nothing.
    """
    is_chosen = any(name.startswith("MALLOC_") for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not (is_chosen or torch.accelerator.is_available()):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_TOP_PAD, 2**26)


def use_one_gpu(training_args: DeviceArguments) -> None:
    """Makes a process use one GPU. Trainer would split batches over all GPUs, which is slow and inexact."""
    if training_args.n_gpu > 1:
        logging.getLogger(__name__).warning(
            "using one of %d GPUs. To use all GPUs, start with `accelerate launch`.", training_args.n_gpu
        )
        training_args._n_gpu = 1


def move_hub_token(training_args: TrainingArguments) -> None:
    """Moves `hub_token` from the arguments, which Trainer writes and uploads, to the environment variable HF_TOKEN."""
    if isinstance(training_args.hub_token, str):
        os.environ["HF_TOKEN"] = training_args.hub_token
        # True: use HF_TOKEN even if HF_HUB_DISABLE_IMPLICIT_TOKEN is set.
        training_args.hub_token = True  # type: ignore[assignment]


def wait_for_all() -> None:
    """Waits until every process has called this function, for at most `--ddp_timeout` seconds.

    gloo's error names the missing process. accelerate's `wait_for_everyone` does not, and asks torch for a GPU per
    process, even if the processes run on the CPU.
    """
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return
    if dist.get_backend() == "gloo":
        dist.monitored_barrier(timeout=_get_default_store().timeout)  # type: ignore[attr-defined]
    else:
        from accelerate import PartialState  # only here, because `--help` works without it

        PartialState().wait_for_everyone()


def send_weights(model: Any) -> None:
    """Gives all processes the weights and buffers of the first process. Every process must call this."""
    wait_for_all()
    if dist.is_initialized() and dist.get_world_size() > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


@contextmanager
def raise_together() -> Iterator[None]:
    """If one process raises an InputError in the block, all processes raise it. Every process must enter the block.

    The block must not communicate. An OSError becomes an InputError. The message names the machine of the process.
    """
    from accelerate.utils import gather_object  # only here, because `--help` works without it

    error: InputError | None = None
    try:
        yield
    except InputError as raised:
        error = raised
    except (OSError, SafetensorError) as raised:  # such as a full disk
        error = InputError(str(raised))
        error.__cause__ = raised
    wait_for_all()
    answers = gather_object([None if error is None else (platform.node(), str(error))])
    for host, message in filter(None, answers):
        raise error or InputError(message if host == platform.node() else f"{host}: {message}")


def ask_first_process(ask: Callable[[], Any]) -> Any:
    """Returns what `ask` returns in the first process, or raises its InputError. Every process must call this."""
    from accelerate import PartialState  # only here, because `--help` works without it
    from accelerate.utils import broadcast_object_list

    answer = None
    with raise_together():
        if PartialState().is_main_process:
            answer = ask()
    return broadcast_object_list([answer])[0]


def explain_lost_process(error: RuntimeError) -> str | None:
    """Returns a sentence about an error of torch.distributed that another process caused. None for other errors."""
    text = str(error)
    is_distributed = isinstance(error, dist.DistError) or any(
        phrase in text for phrase in ("/gloo/", "pair closure", "monitoredBarrier")
    )
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not is_distributed or not LOST.search(text):
        return None
    line = next(line for line in text.splitlines() if LOST.search(line))
    reason = PLACE.sub("", line).partition(". ")[0].rstrip(".")
    rank = os.environ.get("RANK", "?")
    return (
        f"process {rank} on {platform.node()} lost another process ({reason}). That process ended, or did not answer "
        "for --ddp_timeout seconds. Start all processes again with --resume_from_checkpoint true."
    )
