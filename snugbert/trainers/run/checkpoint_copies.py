"""The checkpoints of a run in a store, see [`RemoteOutput`].

A thread uploads each checkpoint while training continues. The manifest is uploaded last. If a checkpoint is replaced
or removed, its manifest is removed first. So a checkpoint in a store is complete if it has a manifest.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from snugbert.files import CHECKPOINT_NAME, MANIFEST_NAME, replacing
from snugbert.storage.inputs import check_names
from snugbert.storage.uploads import RemoteOutput, find_output
from snugbert.storage.urls import download, join, list_files, read_bytes, remove, upload

UPLOADING = "_uploading"  # in the output folder: links to the files of a checkpoint while it is uploaded

logger = logging.getLogger(__name__)


def download_checkpoint(checkpoint: Path) -> None:
    """Downloads the files of a checkpoint that are missing on this machine. Without a store, changes nothing.

    The content is not checked, and files that are missing in the store stay missing, see [`check_checkpoint`].
    """
    output = find_output(checkpoint)
    if output is None:
        return
    url, manifest = output.url_of(checkpoint), checkpoint / MANIFEST_NAME
    stored = _read_manifest(url)
    if stored is None or (manifest.exists() and manifest.read_bytes() != stored):  # the local copy may be newer
        return
    for name in _list_names(stored, url):
        if not (checkpoint / name).exists():
            with suppress(FileNotFoundError):
                download(join(url, name), checkpoint / name)
    if not manifest.exists():
        checkpoint.mkdir(exist_ok=True)
        with replacing(manifest) as unfinished:
            unfinished.write_bytes(stored)


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


def upload_run(output: RemoteOutput) -> None:
    """Uploads the files of a finished run, and checkpoints whose upload failed before."""
    output.claim()
    used = {path.parent for path in output.folder.rglob(UPLOADING)}  # also by runs that removed all checkpoints
    listed = {path.parents[1] for path in output.folder.rglob(f"checkpoint-*/{MANIFEST_NAME}")}
    for folder in {path for path in (output.folder, *used, *listed) if path.name != UPLOADING}:
        upload_checkpoints(folder, output)
    output.upload()


def upload_checkpoints(folder: Path, output: RemoteOutput) -> None:
    """Makes the checkpoints in the store like the checkpoints in the folder of a run. Uploads the newest first.

    Skips damaged checkpoints, and checkpoints that the run removes meanwhile.
    """
    done: set[Path] = set()
    while left := {path for path in folder.glob("checkpoint-*") if CHECKPOINT_NAME.fullmatch(path.name)} - done:
        checkpoint = max(left, key=lambda path: int(path.name.rpartition("-")[2]))
        _upload_checkpoint(checkpoint, output.url_of(checkpoint))
        done.add(checkpoint)
    url = output.url_of(folder)
    names = [name for name in list_files(url) if CHECKPOINT_NAME.fullmatch(name.partition("/")[0])]
    gone = [name for name in names if not (folder / name.partition("/")[0]).is_dir()]
    for name in sorted(gone, key=lambda name: not name.endswith(f"/{MANIFEST_NAME}")):
        remove(join(url, name))


def _upload_checkpoint(checkpoint: Path, url: str) -> None:
    """Uploads a checkpoint, unless the store has it. Links keep its files if the run removes it meanwhile."""
    try:
        manifest = (checkpoint / MANIFEST_NAME).read_bytes()
        if _read_manifest(url) == manifest:
            return
        copy = checkpoint.parent / UPLOADING / checkpoint.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(checkpoint, copy, copy_function=_link)
    except (FileNotFoundError, shutil.Error):
        if checkpoint.is_dir():  # for example, the disk is full
            raise
        return  # the run has removed the checkpoint
    names = _list_names(manifest, url)
    if names and all((copy / name).exists() for name in names):
        remove(join(url, MANIFEST_NAME))
        for name in (*names, MANIFEST_NAME):
            upload(copy / name, join(url, name))
    else:
        logger.warning("%s is damaged, and is not uploaded.", checkpoint)
    shutil.rmtree(copy)


def _link(file: str, link: str) -> None:
    try:
        os.link(file, link)
    except OSError:  # a file system without hard links
        shutil.copy2(file, link)


class CheckpointUploads(TrainerCallback):
    """Uploads each checkpoint of a run to the store that the output folder belongs to, if any.

    A failed upload is only a warning. It is retried at the next checkpoint.
    """

    def __init__(self) -> None:
        self._output: RemoteOutput | None = None
        self._next: Future[None] = Future()

    @contextmanager
    def watch(self, args: TrainingArguments) -> Iterator[None]:
        """Uploads during the block, and waits for the last upload. The run must hold the lock of the output folder."""
        self._folder = Path(args.output_dir or "")
        self._output = find_output(args.output_dir) if args.should_save else None
        with ThreadPoolExecutor(1) as self._pool:  # waits at the end
            yield

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step. Uploads what an earlier process of this run could not upload."""
        if self._output is not None:
            self._output.claim()
        self.on_save(args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after a checkpoint."""
        if self._output is not None:
            self._next.cancel()  # has no effect after its begin. Before, the new upload includes its checkpoint
            self._next = self._pool.submit(self._try_to_upload, self._output)

    def _try_to_upload(self, output: RemoteOutput) -> None:
        try:
            upload_checkpoints(self._folder, output)
        except Exception as error:  # training goes on
            logger.warning("%s The upload will be retried at the next checkpoint.", error)
