"""Chooses the checkpoint that the machines of a run resume from, and copies it to all of them.

Only the first process writes checkpoints. After a restart, it may run on another machine, whose disk may be empty. So
every machine looks for checkpoints, and the newest complete checkpoint is chosen. It is copied to all machines that
lack it. On a shared disk, nothing is copied.

The newest checkpoint is right whichever machine wrote it: the settings of a run determine its steps, and a checkpoint
with other settings is refused.
"""

import logging
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.files import MANIFEST_NAME, writing
from snugbert.storage.uploads import find_output
from snugbert.trainers.run.checkpoint_files import (
    RESUME,
    UNFINISHED,
    check_checkpoint,
    has_manifest,
    rename_checkpoint,
)
from snugbert.trainers.run.lost_processes import wait_for_all
from snugbert.trainers.run.processes import raise_together
from snugbert.trainers.run.run_settings import read_state

CHUNK = 2**26  # bytes of a file in one message

logger = logging.getLogger(__name__)


class NoCheckpointError(InputError):
    """No machine has a complete checkpoint."""


class Offer(NamedTuple):
    """A complete checkpoint on a machine. The largest offer is chosen.

    Attributes:
        step: its step.
        priority: decides between equal steps. The first process has the highest priority.
        folder: the checkpoint.
        manifest: the checksums of its files. Empty: Trainer itself wrote the checkpoint.
        host: the name of the machine.
    """

    step: int
    priority: int
    folder: Path
    manifest: bytes
    host: str

    @property
    def content(self) -> tuple[str, bytes]:
        """Name and manifest, which are equal for all copies of a checkpoint."""
        return self.folder.name, self.manifest


def agree_on_checkpoint(
    args: TrainingArguments,
    output_dir: Path,
    find: Callable[[], Path | None],
    keeps: bool = True,
    only_first: bool = False,
) -> Path | None:
    """Finds the newest checkpoint on any machine, and copies it to machines without it. Every process must call this.

    If the output folder belongs to a store, the first process offers a checkpoint from the store. Another machine
    offers its local checkpoint only if it was the last to write to the store. Otherwise, that checkpoint may be from
    an earlier run.

    Args:
        args: the arguments of the run.
        output_dir: the output folder on this machine.
        find: returns a complete checkpoint on this machine. The first process of each machine calls this function.
        keeps: whether the checkpoint belongs to `output_dir`, so that a copy for the first process stays there. Other
            copies are temporary: the next checkpoint removes them.
        only_first: whether only the first process needs the checkpoint.

    Returns:
        The checkpoint on this machine. None: no machine has a checkpoint.

    Raises:
        NoCheckpointError: in all processes: no machine has a checkpoint, and `find` raised this error.
        InputError: in all processes: a copy cannot be written.
    """
    offer, problem = None, None
    is_first = args.local_process_index == 0  # of the processes on this machine
    try:
        if is_first:
            offer = _make_offer(args, output_dir, find, keeps)
    except (InputError, OSError) as error:
        problem = str(error)
    wait_for_all()
    answers: list[tuple[bool, Offer | None, str | None]] = gather_object([(is_first, offer, problem)])
    chosen = max((each for _, each, _ in answers if each is not None), default=None)
    if chosen is None:
        if problems := [each for _, _, each in answers if each is not None]:
            raise NoCheckpointError(problems[0])
        return None
    machine = args.process_index - args.local_process_index
    _, own, _ = answers[machine]
    lacking = [
        first and (rank == 0 or not only_first) and (each is None or each.content != chosen.content)
        for rank, (first, each, _) in enumerate(answers)
    ]
    if not any(lacking):
        return own and own.folder
    logger.info("copying %s from %s to machines that lack it", chosen.folder.name, chosen.host)
    keeps &= machine == 0
    copy = output_dir / UNFINISHED / ("kept" if keeps else str(machine)) / chosen.folder.name
    failure = _copy(chosen, copy if lacking[args.process_index] else None)
    target = output_dir / chosen.folder.name if keeps else copy
    raise_together(lambda: _accept(copy, target, failure) if lacking[args.process_index] else None)
    return target if lacking[machine] or own is None else own.folder


def _make_offer(
    args: TrainingArguments, output_dir: Path, find: Callable[[], Path | None], is_local: bool
) -> Offer | None:
    output = find_output(output_dir) if is_local else None
    if output is not None and args.process_index > 0 and not output.was_last_writer():
        return None
    folder = find()
    if folder is None:
        return None
    manifest = (folder / MANIFEST_NAME).read_bytes() if has_manifest(folder) else b""
    return Offer(read_state(folder).global_step, -args.process_index, folder, manifest, platform.node())


def _copy(chosen: Offer, copy: Path | None) -> InputError | None:
    """Sends the files of a checkpoint from its machine to all others. Every process must call this.

    Args:
        chosen: the checkpoint.
        copy: the folder for a copy on this machine. None: this process writes no copy.

    Returns:
        The error if the copy cannot be written, otherwise None. After an error, this process still receives the
        remaining files, because other processes would wait for it.
    """
    source, problem = -chosen.priority, None
    chunks = _read_chunks(chosen.folder) if PartialState().process_index == source else None
    if copy is not None:
        shutil.rmtree(copy, ignore_errors=True)
    while True:
        message: list[Any] = [next(chunks, None) if chunks is not None else None]
        broadcast_object_list(message, from_process=source)
        if message[0] is None:
            return problem
        if copy is None or problem is not None:
            continue
        name, data = message[0]
        try:
            with writing(copy, RESUME):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                with (copy / name).open("ab") as stream:
                    stream.write(data)
        except InputError as error:
            problem = error


def _read_chunks(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the names of the files in a folder, with their content in parts."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                name, data = path.relative_to(folder).as_posix(), stream.read(CHUNK)
                yield name, data
                while data := stream.read(CHUNK):
                    yield name, data


def _accept(copy: Path, target: Path, failure: InputError | None) -> None:
    """Checks a copy, and gives it its final name.

    Raises:
        InputError: the copy could not be written, or is damaged.
    """
    if failure is not None:
        raise failure
    check_checkpoint(copy, needs_optimizer=False)
    if target != copy:
        rename_checkpoint(copy, target)
