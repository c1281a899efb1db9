"""During training, uploads a run to the Hub, and its checkpoints to a bucket."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils import PushInProgress

from snugbert.storage.uploads import RemoteOutput, find_output

logger = logging.getLogger(__name__)

# Predictions for the user's examples, including the formats of run_glue.py, gluebenchmark.com (.tsv) and SQuAD v2.0.
PREDICTIONS = ["*predictions.*", "*predict_results.txt", "*.tsv", "*null_odds.json"]
LOGS = ["*.tfevents.*"]  # of TensorBoard. They contain paths of this machine
# Trainer also omits the first two: unfinished files and checkpoints. The third file contains the training arguments.
NOT_UPLOADED = ["_*", f"{PREFIX_CHECKPOINT_DIR}-*", TRAINING_ARGS_NAME, *PREDICTIONS, *LOGS]


class HubUploads(TrainerCallback):
    """Uploads the output folder when Trainer would, except for `NOT_UPLOADED`."""

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after a checkpoint. Applies `hub_strategy`. Also uploads the card and the model's code.

        Trainer itself would upload before the checkpoint has its final name.
        """
        trainer = self.trainer
        if not (args.push_to_hub and state.is_world_process_zero) or args.hub_strategy == HubStrategy.END:
            return
        busy = trainer.push_in_progress is not None and not trainer.push_in_progress.is_done()
        if busy and not args.hub_always_push:
            return
        trainer.callback_handler.on_push_begin(args, state, control)
        output_dir = Path(args.output_dir or "")
        checkpoint = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        trainer.save_model(_internal_call=True)
        trainer.write_card()
        hub = HfApi(token=args.hub_token)
        repository = {"repo_id": trainer.hub_model_id, "revision": args.hub_revision}
        upload: Any = partial(hub.upload_folder, **repository, run_as_future=True)
        message = f"Training in progress, step {state.global_step}"
        jobs: Any = [upload(folder_path=output_dir, commit_message=message, ignore_patterns=NOT_UPLOADED)]
        if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            folder = "last-checkpoint" if args.hub_strategy == HubStrategy.CHECKPOINT else checkpoint.name
            message += ", checkpoint"
            jobs.append(upload(folder_path=checkpoint, path_in_repo=folder, commit_message=message))
        if busy:
            trainer.push_in_progress.jobs.extend(jobs)
        else:
            trainer.push_in_progress = PushInProgress(jobs)

    def push(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Saves the model and the card, and uploads the output folder. See `Trainer.push_to_hub`."""
        trainer, args = self.trainer, self.trainer.args
        trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
        if trainer.hub_model_id is None:  # without `args.push_to_hub`
            args.hub_private_repo = args.hub_private_repo if private is None else private
            trainer.init_hf_repo(token=token)
        trainer.save_model(_internal_call=True)
        trainer.create_model_card()
        return self.upload_output_dir(
            token, commit_message=commit_message, revision=revision or args.hub_revision, run_as_future=not blocking
        )

    def upload_output_dir(self, token: str | None = None, **options: Any) -> Any:
        """Uploads the output folder as it is, with `options` of `HfApi.upload_folder`."""
        trainer, args = self.trainer, self.trainer.args
        if not trainer.is_world_process_zero():
            return None
        trainer._finish_current_push()
        options = {"commit_message": "End of training", "revision": args.hub_revision} | options
        return HfApi(token=token or args.hub_token).upload_folder(
            repo_id=str(trainer.hub_model_id),
            folder_path=str(args.output_dir),
            ignore_patterns=NOT_UPLOADED,
            **options,
        )


class CheckpointUploads(TrainerCallback):
    """In a thread, uploads each checkpoint of a run to the store that the output folder belongs to, if any.

    A failed upload only causes a warning. It is retried at the next checkpoint.
    """

    def __init__(self) -> None:
        self._output: RemoteOutput | None = None
        self._next: Future[None] = Future()

    @contextmanager
    def watch(self, args: TrainingArguments) -> Iterator[None]:
        """Uploads during the block, and waits for the last upload. The run must hold the lock of the output folder."""
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
            self._next.cancel()  # if it has not begun. The next upload includes the same files
            self._next = self._pool.submit(self._upload, self._output)

    def _upload(self, output: RemoteOutput) -> None:
        try:
            output.upload_checkpoints()
        except Exception as error:  # training goes on
            logger.warning("%s The upload will be retried at the next checkpoint.", error)
