"""Checks that the disk has room for the checkpoints of a run."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from torch import nn
from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.trainers.output_folder import list_run_files
from snugbert.trainers.processes import raise_together

logger = logging.getLogger(__name__)

TWO_MOMENTS = ("adamw_torch", "lamb")  # optimizers that store two float32 numbers per parameter


def check_disk_space(args: TrainingArguments, parameters: Iterable[nn.Parameter]) -> None:
    """Compares the free space with the size of the checkpoints, and warns if they will not all fit.

    Files of an earlier run in the output folder count as free, because the run replaces them. Every process must call
    this. Only processes that write check their disk.

    Args:
        args: the arguments of the run.
        parameters: the parameters of each file with weights. Two files can have the same one.

    Raises:
        InputError: in all processes: not even one checkpoint fits.
    """
    raise_together(lambda: _check(args, parameters))


def _check(args: TrainingArguments, parameters: Iterable[nn.Parameter]) -> None:
    output_dir = Path(args.output_dir or "").absolute()
    folder = next(parent for parent in (output_dir, *output_dir.parents) if parent.is_dir())
    disk = shutil.disk_usage(folder)
    if not args.should_save or not disk.total:  # some network file systems report no sizes
        return
    free = disk.free + sum(_size(path) for path in [*list_run_files(output_dir), *output_dir.glob("*.safetensors")])
    parameters = list(parameters)
    weights = sum(parameter.nbytes for parameter in parameters)
    checkpoint = weights
    if args.optim.startswith(TWO_MOMENTS) and not args.save_only_model:
        checkpoint += 2 * sum(parameter.nbytes for parameter in set(parameters) if parameter.requires_grad)
    if args.save_strategy == "no":
        checkpoint = 0
    needed = max(weights, checkpoint)
    if free < needed:
        what = "a checkpoint takes" if checkpoint else "the model takes"
        raise InputError(
            f"--output_dir: {folder} has {_format(free)} free, but {what} {_format(needed)}. Free some space, or "
            "choose another folder."
        )
    # A new checkpoint is written before an old one is removed. The model follows at the end.
    kept = max(args.save_total_limit or 1, 1)
    total = (kept + 1) * checkpoint + weights
    if free < total:
        logger.warning(
            "%s has %s free. The run needs up to %s for %d checkpoints and the model (--save_total_limit).",
            folder,
            _format(free),
            _format(total),
            kept + 1,
        )


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files)


def _format(number: int) -> str:
    return f"{number / 1e9:,.2f} GB"
