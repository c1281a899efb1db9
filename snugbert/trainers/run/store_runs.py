"""Downloads and uploads the files of a run whose output folder is in a store.

A run writes into a local folder. At its start, the store's folder replaces the local folder, unless this machine was
the last to write to the store. The local folder may then be newer. Checkpoints are uploaded during training, and all
other files at the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from snugbert.files import MANIFEST_NAME
from snugbert.storage.uploads import RemoteOutput, hold_store_lock, is_checkpoint_manifest
from snugbert.trainers.run.checkpoint_copies import WAITING, upload_waiting


@contextmanager
def run_in_store(output: RemoteOutput) -> Iterator[None]:
    """Locks the folder in the store, downloads its files, and uploads everything after the block.

    After an error in the block, only the checkpoints are in the store. All other files stay in the local folder, for
    the next start, unless the run had written nothing. The first process calls this.

    Raises:
        InputError: another run holds the lock, or the store does not answer.
    """
    with hold_store_lock(output):
        was_fetched = fetch_run(output)
        before = output.list_versions(is_checkpoint_manifest)
        try:
            yield
        except BaseException:
            if was_fetched and output.list_versions(is_checkpoint_manifest) == before:
                output.clear()
            raise
        upload_run(output)
        output.clear()


def fetch_run(output: RemoteOutput) -> bool:
    """Replaces the local folder of a run with the folder in the store, unless the local folder may be newer.

    Returns:
        Whether the local folder was replaced.
    """
    if output.was_last_writer():
        return False
    output.download()
    return True


def upload_run(output: RemoteOutput) -> None:
    """Uploads the files of a finished run, and checkpoints whose upload failed before.

    Raises:
        InputError: the store does not answer, or another run holds the lock.
    """
    output.claim()
    waiting = {path.parent for path in output.folder.rglob(WAITING)}
    listed = {path.parents[1] for path in output.folder.rglob(f"checkpoint-*/{MANIFEST_NAME}")}
    for folder in {output.folder, *waiting, *listed}:
        upload_waiting(folder, output)
    output.upload()
