"""The checkpoints of a run in a store, see [`RemoteOutput`].

A thread uploads each checkpoint while training continues. The manifest is uploaded last. If a checkpoint is replaced
or removed, its manifest is removed first. So a checkpoint in a store is complete if it has a manifest.

While a checkpoint waits for its upload, hard links keep its files, even if the run removes it.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from snugbert.errors import InputError
from snugbert.files import CHECKPOINT_NAME, MANIFEST_NAME, read_json, replacing
from snugbert.storage.inputs import check_names, link_file
from snugbert.storage.uploads import RemoteOutput, find_output
from snugbert.storage.urls import download, join, list_files, read_bytes, remove, upload

WAITING = "_uploading"  # in the output folder: the checkpoints that are not in the store yet

logger = logging.getLogger(__name__)


def download_checkpoint(checkpoint: Path) -> None:
    """Downloads the files of a checkpoint that are missing on this machine. Without a store, changes nothing.

    The content is not checked, and files that are missing in the store stay missing, see [`check_checkpoint`].

    Args:
        checkpoint: the local folder. If it has a manifest, it may be newer than the copy in the store.

    Raises:
        InputError: the store does not answer or refuses access.
    """
    output = find_output(checkpoint)
    if output is None:
        return
    url, manifest = output.url_of(checkpoint), checkpoint / MANIFEST_NAME
    stored = _read_manifest(url)
    if stored is None:
        return
    if manifest.exists() and manifest.read_bytes() != stored:
        return
    for name in _list_names(stored, url):
        if not (checkpoint / name).exists():
            with suppress(FileNotFoundError):
                download(join(url, name), checkpoint / name)
    if not manifest.exists():
        checkpoint.mkdir(exist_ok=True)
        with replacing(manifest) as unfinished:
            unfinished.write_bytes(stored)


def upload_checkpoint(checkpoint: Path, output: RemoteOutput, url: str) -> None:
    """Uploads a checkpoint, unless the store has it.

    Args:
        checkpoint: a local folder with a manifest and all its files.
        output: the output of the run.
        url: the checkpoint in the store.

    Raises:
        InputError: the store does not answer or refuses access, or another run holds the lock.
    """
    manifest = (checkpoint / MANIFEST_NAME).read_bytes()
    if _read_manifest(url) == manifest:
        return
    output.check()
    remove(join(url, MANIFEST_NAME))
    for name in json.loads(manifest):
        upload(checkpoint / name, join(url, name))
    output.check()
    upload(checkpoint / MANIFEST_NAME, join(url, MANIFEST_NAME))


def _read_manifest(url: str) -> bytes | None:
    try:
        return read_bytes(join(url, MANIFEST_NAME))
    except FileNotFoundError:
        return None


def _list_names(manifest: bytes, url: str) -> list[str]:
    """Returns the names of a checkpoint's files from its manifest, or an empty list if the manifest is damaged."""
    try:
        names = list(json.loads(manifest))
        check_names(names, url)
    except (ValueError, AttributeError, TypeError):  # an InputError is a ValueError
        return []
    return names


def _is_whole(checkpoint: Path) -> bool:
    """Whether the local files of a checkpoint have the sizes in its manifest. Checksums would take long."""
    try:
        entries = read_json(checkpoint / MANIFEST_NAME)
        check_names(entries, str(checkpoint))
        return all((checkpoint / name).stat().st_size == entry["bytes"] for name, entry in entries.items())
    except (InputError, OSError, LookupError, TypeError):
        return False


def remove_checkpoint_copies(folder: Path, output: RemoteOutput) -> None:
    """Removes the checkpoints in the store that are not in the local folder of the run, manifests first.

    Raises:
        InputError: the store does not answer, or another run holds the lock.
    """
    url = output.url_of(folder)
    names = [name for name in list_files(url) if CHECKPOINT_NAME.fullmatch(name.partition("/")[0])]
    gone = [name for name in names if not (folder / name.partition("/")[0]).is_dir()]
    if gone:
        output.check()
    for name in sorted(gone, key=lambda name: not name.endswith(f"/{MANIFEST_NAME}")):
        remove(join(url, name))


def upload_waiting(folder: Path, output: RemoteOutput) -> None:
    """Uploads waiting checkpoints, newest first. Removes checkpoints from the store that the run has removed.

    Damaged checkpoints are skipped.

    Args:
        folder: the output folder of the run.
        output: the output that the folder belongs to.

    Raises:
        InputError: see [`upload_checkpoint`]. The next call uploads the rest.
    """
    waiting = [path for path in (folder / WAITING).glob("*") if CHECKPOINT_NAME.fullmatch(path.name)]
    for copy in sorted(waiting, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        is_whole = _is_whole(copy)
        if is_whole and (folder / copy.name).is_dir():  # otherwise, the run has removed it
            upload_checkpoint(copy, output, output.url_of(folder / copy.name))
        elif not is_whole:
            logger.warning("%s is damaged, and is not uploaded.", folder / copy.name)
        shutil.rmtree(copy)
    remove_checkpoint_copies(folder, output)


class CheckpointUploads(TrainerCallback):
    """Uploads each checkpoint of a run to the store that the output folder belongs to, if any.

    A failed upload is only a warning. It is retried at the next checkpoint.
    """

    def __init__(self) -> None:
        self._output: RemoteOutput | None = None

    @contextmanager
    def watch(self, args: TrainingArguments) -> Iterator[None]:
        """Uploads during the block, and waits for the last upload. The run must hold the lock of the output folder."""
        self._folder, self._output = Path(args.output_dir or ""), None
        if args.should_save:
            self._output = find_output(args.output_dir)
        with ThreadPoolExecutor(1) as self._pool:  # waits at the end
            yield

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step. Uploads what an earlier process of this run could not upload."""
        if self._output is not None:
            self._output.claim()
            for checkpoint in filter(_is_whole, self._folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")):
                self._enqueue(checkpoint)
            self._pool.submit(self._upload)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after a checkpoint."""
        if self._output is not None:
            self._enqueue(self._folder / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self._pool.submit(self._upload)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each step. Stops a run that lost the lock of its folder."""
        if self._output is not None and self._output.loss:
            raise InputError(self._output.loss)

    def _enqueue(self, checkpoint: Path) -> None:
        """Links the files of a checkpoint, so that they stay until they are uploaded."""
        copy = self._folder / WAITING / checkpoint.name
        if copy.exists():  # an earlier checkpoint of this step, which may be uploading
            self._pool.submit(shutil.rmtree, copy, ignore_errors=True).result()
        unfinished = copy.with_name(f"_{copy.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        for file in checkpoint.rglob("*"):
            if file.is_file():
                link_file(file, unfinished / file.relative_to(checkpoint))
        unfinished.rename(copy)

    def _upload(self) -> None:
        assert self._output is not None
        try:
            upload_waiting(self._folder, self._output)
        except Exception as error:  # training goes on
            logger.warning("%s The upload will be retried at the next checkpoint.", error)
