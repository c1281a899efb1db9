"""The output folder of a run: its files, the checkpoint to resume from, removing an earlier run, and free space."""

import logging
import math
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from snugbert.errors import InputError
from snugbert.families.loading import GENERATOR_FOLDER
from snugbert.files import MANIFEST_NAME
from snugbert.progress import format_bytes
from snugbert.storage.uploads import find_output
from snugbert.trainers.run.checkpoint_choice import agree_on_checkpoint
from snugbert.trainers.run.checkpoint_copies import download_checkpoint
from snugbert.trainers.run.checkpoint_files import (
    UNFINISHED,
    check_checkpoint,
    find_newest_checkpoint,
    has_manifest,
    has_undamaged_weights,
    lacks_optimizer,
    list_checkpoints,
    remove_checkpoints,
)
from snugbert.trainers.run.lost_processes import wait_for_all
from snugbert.trainers.run.processes import raise_together

logger = logging.getLogger(__name__)

# The files that a run writes next to its model. All other files in an output folder belong to the user.
WRITTEN_BY_A_RUN = re.compile(
    r"checkpoint-\d+|((train|all|(eval|predict)(_(mm|ax))?)_)?results\.json|results\.md|"
    r"(trainer_state|config|plan)\.json",
    re.ASCII,
)
TWO_MOMENTS = ("adamw_torch", "lamb")  # optimizers that store two float32 numbers per parameter


def check_output_dir(training_args: TrainingArguments, overwrite: bool) -> str | None:
    """Checks that a run does not overwrite another run by accident, and finds the checkpoint to resume from.

    Changes no files, except that it undoes an interrupted replacement of a checkpoint, and copies the checkpoint to
    machines that lack it. Every process must call this.

    Args:
        training_args: `resume_from_checkpoint` is a folder, or "true" for the newest complete checkpoint in the
            `output_dir` of any machine. With "true" and no complete checkpoint, the run starts at step 0. So a
            job that may be stopped at any time can always use the same command.
        overwrite: allow replacing a run in `output_dir`, see [`clear_output_dir`].

    Returns:
        The checkpoint to resume from, as a folder on this machine. None: start from the beginning.

    Raises:
        InputError: `output_dir` contains a run that is neither resumed nor overwritten; it contains a model or results
            but no complete checkpoint; its checkpoints contain only weights (`--save_only_model`); or the checkpoint
            to resume from is missing or damaged.
    """
    resume = str(training_args.resume_from_checkpoint or "")
    resume = "" if resume.lower() == "false" else resume
    checkpoint = _agree(training_args, resume) if resume else None
    raise_together(lambda: _check_run_files(training_args, resume, checkpoint, overwrite))
    return None if checkpoint is None else str(checkpoint)


def find_checkpoint(training_args: TrainingArguments, resume: str | bool | None) -> str | None:
    """Finds and checks the checkpoint for `Trainer.train(resume_from_checkpoint=...)`. Every process must call this.

    Raises:
        InputError: there is no complete checkpoint.
    """
    if not resume:
        return None
    checkpoint = _agree(training_args, str(resume))
    if checkpoint is None:
        raise InputError(
            f"resume_from_checkpoint: {training_args.output_dir} contains no complete checkpoint. To start a new run, "
            "omit the argument."
        )
    if not has_manifest(checkpoint):
        logger.warning("%s cannot be verified, because %s is missing.", checkpoint, MANIFEST_NAME)
    return str(checkpoint)


def _agree(args: TrainingArguments, resume: str) -> Path | None:
    """Chooses the checkpoint of all machines, see [`agree_on_checkpoint`]."""
    output_dir = Path(args.output_dir or "")
    if resume.lower() == "true":
        return agree_on_checkpoint(args, output_dir, lambda: find_newest_checkpoint(output_dir))
    return agree_on_checkpoint(args, output_dir, lambda: _check_explicit(resume), keeps=False)


def _check_run_files(args: TrainingArguments, resume: str, checkpoint: Path | None, overwrite: bool) -> None:
    """Checks on this machine that the run may write into the output folder, next to the files of an earlier run."""
    output_dir = Path(args.output_dir or "")
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file. Choose a folder.")
    if args.local_process_index > 0 or (args.process_index > 0 and find_output(output_dir) is not None):
        return  # the first process of the machine, or of the run, checks the same folder
    run_files = list_run_files(output_dir)
    resumes_here = bool(checkpoint) and Path(resume).resolve().parent == output_dir.resolve()
    if resume.lower() != "true":
        if run_files and not resumes_here and not overwrite:
            raise InputError(
                f"--output_dir: {output_dir} already contains a run. Choose another folder, resume the run "
                "(--resume_from_checkpoint true), or replace the run (--overwrite_output_dir)."
            )
    elif checkpoint is None:
        if not (overwrite or all(path.name.startswith("checkpoint-") for path in run_files)):
            raise InputError(
                f"--resume_from_checkpoint true: {output_dir} contains a model or results, but no complete "
                "checkpoint. Choose another folder, or replace these files (--overwrite_output_dir)."
            )
        if run_files or (output_dir / UNFINISHED).exists():
            advice = "" if overwrite else _describe_weights(output_dir)
            logger.warning("%s contains no complete checkpoint. Training starts at step 0.%s", output_dir, advice)


def _describe_weights(output_dir: Path) -> str:
    """Returns advice about the newest checkpoint with undamaged weights. Empty if there is none.

    Raises:
        InputError: the checkpoint contains only weights, because of `--save_only_model`.
    """
    weights = next(filter(has_undamaged_weights, reversed(list_checkpoints(output_dir))), None)
    if weights is None:
        return ""
    advice = f"To train from these weights, use --model_name_or_path {weights} and another --output_dir."
    if lacks_optimizer(weights):
        raise InputError(
            f"--resume_from_checkpoint true: {weights.name} contains only weights (--save_only_model), so the run "
            f"cannot be resumed. {advice} To replace the run, use --overwrite_output_dir."
        )
    return f" The weights of {weights.name} are undamaged. {advice}"


def _check_explicit(checkpoint: str) -> Path:
    try:
        download_checkpoint(Path(checkpoint))
        check_checkpoint(Path(checkpoint))
    except InputError as error:
        raise InputError(f"--resume_from_checkpoint: {error} Resume from another checkpoint.") from error
    return Path(checkpoint)


def clear_output_dir(training_args: TrainingArguments) -> None:
    """Removes the checkpoints and results of an earlier run. Call it in every process, after all steps that can fail.

    Other machines may have checkpoints of that run, if its first process once ran there.
    """
    output_dir = Path(training_args.output_dir or "")
    if training_args.should_save:
        remove_run(output_dir)
    wait_for_all()
    if training_args.local_process_index == 0 and not training_args.should_save:
        remove_checkpoints(list_checkpoints(output_dir))
    wait_for_all()


class ClearOutputDir(TrainerCallback):
    """Removes the earlier run in the output folder as late as possible, after optimizer and schedule are created."""

    def on_train_begin(self, args: Any, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step, with the state of the checkpoint."""
        if args.overwrite_output_dir and state.global_step == 0:
            clear_output_dir(args)


def remove_generator(output_dir: Path) -> None:
    """Removes ELECTRA's generator. A folder of that name without a model next to it belongs to the user, and stays."""
    if all((output_dir / folder / "config.json").exists() for folder in ("", GENERATOR_FOLDER)):
        shutil.rmtree(output_dir / GENERATOR_FOLDER, ignore_errors=True)


def remove_run(output_dir: Path) -> None:
    """Removes the checkpoints and results of a run. Its model stays until a new model replaces it.

    ELECTRA's generator is removed, too, because a model of another kind would not replace it.
    """
    shutil.rmtree(output_dir / UNFINISHED, ignore_errors=True)
    remove_generator(output_dir)
    for path in list_run_files(output_dir):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()


def list_run_files(output_dir: Path) -> list[Path]:
    """Lists the checkpoints, results and configuration of the run in `output_dir`. Empty if there is no run."""
    if not output_dir.is_dir():
        return []
    return sorted(path for path in output_dir.iterdir() if WRITTEN_BY_A_RUN.fullmatch(path.name))


def check_disk_space(args: TrainingArguments, parameters: Iterable[nn.Parameter], steps: float = math.inf) -> None:
    """Compares the free space with the size of the checkpoints, and warns if they will not all fit.

    Files of an earlier run in the output folder count as free, because the run replaces them. Every process must call
    this. Only processes that write check their disk.

    Args:
        args: the arguments of the run.
        parameters: the parameters of each file with weights. Two files can share parameters.
        steps: number of steps, if `args.max_steps` is not set. Infinite: unknown.

    Raises:
        InputError: in all processes: not even one checkpoint fits.
    """
    raise_together(lambda: _compare_with_free_space(args, parameters, steps))


def _compare_with_free_space(args: TrainingArguments, parameters: Iterable[nn.Parameter], steps: float) -> None:
    output_dir = Path(args.output_dir or "").absolute()
    folder = next(parent for parent in (output_dir, *output_dir.parents) if parent.is_dir())
    disk = shutil.disk_usage(folder)
    if not args.should_save or not disk.total:  # some network file systems report no sizes
        return
    free = disk.free + sum(
        _count_bytes(path) for path in [*list_run_files(output_dir), *output_dir.glob("*.safetensors")]
    )
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
            f"--output_dir: {folder} has {format_bytes(free)} free, but {what} {format_bytes(needed)}. Free some "
            "space, or choose another folder."
        )
    checkpoints = _count_checkpoints(args, args.max_steps if args.max_steps > 0 else steps)
    total = checkpoints * checkpoint + weights  # the model follows at the end
    if free < total:
        logger.warning(
            "%s has %s free. The run needs up to %s for %d checkpoints and the model (--save_total_limit).",
            folder,
            format_bytes(free),
            format_bytes(total),
            checkpoints,
        )


def _count_checkpoints(args: TrainingArguments, steps: float) -> int:
    """Returns the most checkpoints that a run of `steps` steps has at once. If this is unknown, returns 2."""
    most = math.inf
    if args.save_strategy == "steps":
        most = 1 / args.save_steps if args.save_steps < 1 else steps / args.save_steps
    elif args.save_strategy == "epoch" and args.max_steps <= 0:
        most = args.num_train_epochs
    if args.save_total_limit is not None and args.save_total_limit > 0:  # otherwise, all are kept
        keeps_best = args.metric_for_best_model is not None and args.eval_strategy != "no"
        # A new checkpoint is written before an old one is removed. The last and the best always stay.
        most = min(most, 1 + max(args.save_total_limit, 1 + keeps_best))
    return 2 if math.isinf(most) else math.ceil(most)


def _count_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files)
