"""Runs whose output folder is in a store: what they find there, and what they leave there.

A run writes into a local folder. At its start, the local folder becomes like the folder in the store, unless it was
the last to write there. Then it may be newer. Checkpoints are uploaded during training, the other files at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainingArguments

from snugbert.remote_files import join, read_bytes, write_bytes
from snugbert.remote_outputs import CHECKPOINT_MANIFEST, RemoteOutput, find_output
from snugbert.trainers.checkpoint_copies import (
    MANIFEST_NAME,
    WAITING,
    download_checkpoint,
    remove_checkpoint_copies,
    upload_checkpoint,
    upload_waiting,
)
from snugbert.trainers.processes import raise_together, wait_for_all
from snugbert.trainers.store_lock import hold_store_lock

WRITER = "_writer"  # in the store: the owner of the local folder that wrote last


@contextmanager
def run_in_store(output: RemoteOutput) -> Iterator[None]:
    """Locks the folder in the store, fetches what it contains, and uploads everything after the block.

    After an error in the block, only the checkpoints are in the store. The other local files stay for the next start,
    unless the run had written nothing. The first process calls this.

    Raises:
        InputError: another run holds the lock, or the store does not answer.
    """
    with hold_store_lock(output):
        was_fetched = fetch_run(output)
        write_bytes(join(output.url, WRITER), output.owner.encode())
        before = output.list_versions(CHECKPOINT_MANIFEST)
        try:
            yield
        except BaseException:
            if was_fetched and output.list_versions(CHECKPOINT_MANIFEST) == before:
                output.clear()
            raise
        upload_run(output)
        output.clear()


def fetch_run(output: RemoteOutput) -> bool:
    """Makes the local folder of a run like the folder in the store, unless the local one may be newer.

    Returns:
        Whether the local folder was the older one.
    """
    try:
        writer = read_bytes(join(output.url, WRITER)).decode()
    except FileNotFoundError:
        writer = ""
    is_older = writer != output.owner
    if is_older:
        output.download()
    return is_older


def upload_run(output: RemoteOutput) -> None:
    """Uploads what a finished run wrote, and checkpoints whose upload failed before."""
    waiting = {path.parent for path in output.folder.rglob(WAITING)}
    listed = {path.parents[1] for path in output.folder.rglob(f"checkpoint-*/{MANIFEST_NAME}")}
    for folder in waiting:
        upload_waiting(folder, output)
    for folder in {output.folder, *listed} - waiting:
        remove_checkpoint_copies(folder, output)
    output.upload()


def share_checkpoint(args: TrainingArguments, checkpoint: Path) -> None:
    """Gives every machine the checkpoint that the first process resumes from. Every process must call this.

    Raises:
        InputError: in all processes: the store does not answer, or refuses access.
    """
    output = find_output(checkpoint)
    if output is None or args.world_size == 1:
        return

    def put() -> None:
        if args.process_index == 0 and (checkpoint / MANIFEST_NAME).exists():
            upload_checkpoint(checkpoint, output, output.url_of(checkpoint))

    def get() -> None:
        if args.process_index > 0 and args.local_process_index == 0:
            download_checkpoint(checkpoint, replace=True)

    raise_together(put)
    raise_together(get)
    wait_for_all()
