"""The base of pretraining and fine-tuning: a Trainer that can be killed, stopped and resumed at any time.

[`RunTrainer`] delegates checkpoints, settings, uploads, stopping and CUDA graphs to one object each.
"""

import functools
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Any

import torch
from accelerate.utils import AutocastKwargs, TorchDynamoPlugin
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerState
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from transformers.utils import CONFIG_NAME

from snugbert.cli.device_arguments import apply_tf32
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.packed_batches import IgnorePadding
from snugbert.errors import InputError
from snugbert.files import explaining_failed_writes, read_json, step_of, write_atomically
from snugbert.gpu.compilation import COMPILE_PASSES, Compilation
from snugbert.gpu.row_sizes import OWN_MODELS, FillRows, pads_in_attention
from snugbert.storage.uploads import download_checkpoint
from snugbert.storage.urls import hide_credentials, is_url
from snugbert.trainers.run.checkpoints import RESUME, RunCheckpoints, check_checkpoint
from snugbert.trainers.run.folder import check_output_dir, find_checkpoint, lock_output_dir
from snugbert.trainers.run.log import LogLines, ProgressBar, Reports
from snugbert.trainers.run.processes import move_hub_token, raise_together, send_weights, use_one_gpu, wait_for_all
from snugbert.trainers.run.run_graphs import RunGraphs
from snugbert.trainers.run.run_settings import (
    BEST_MODEL_SETTINGS,
    RunSettings,
    collect_training_settings,
    read_state,
)
from snugbert.trainers.run.run_uploads import CheckpointUploads, HubUploads
from snugbert.trainers.run.stopping import StopSignal, raise_if_interrupted, start_worker

logger = logging.getLogger(__name__)


class RunTrainer(Trainer):
    """A Trainer that prints readable log lines, pushes the model card of the command, and writes no secrets.

    - A checkpoint is complete or absent, even if the run is killed, see [`RunCheckpoints`].
    - A run resumes with its original settings, see [`RunSettings`]. Only the number of steps may change.
    - A run can be stopped at any time, and stops if the loss or the gradient norm is not finite, see [`StopSignal`].
    - `hub_token` moves to the environment, and `training_args.bin` is not written.
    - Labels at padding are ignored, as in the models.
    """

    kind = "training"  # what checkpoints contain, see [`RunSettings`]
    compared_names: tuple[str, ...] = ()  # further training arguments that must not change on resume
    checks_output_dir = False  # whether the next call of `train` refuses an output folder with another run
    passes_to_repay_compiling = COMPILE_PASSES  # see [`Compilation`]
    _best_step: int | None = None  # step of the best model, after it was loaded at the end
    _verified: str | None = None  # the checkpoint that a command has checked
    model: Any
    data_collator: Any
    lr_scheduler: Any
    push_in_progress: Any
    _tr_loss: torch.Tensor

    def __init__(self, *args: Any, **kwargs: Any):
        try:
            super().__init__(*args, **kwargs)
        except (ValueError, RuntimeError, ImportError) as error:  # such as an invalid argument
            raise InputError(str(error)) from error
        self.model_config: Any = getattr(self.model, "config", None)
        self.graphs = RunGraphs(self)
        # In training, rows are filled up to a multiple of this number of tokens. 0: rows are not filled.
        self.pad_to_multiple_of = self._choose_multiple(self.train_dataset, self.args.train_batch_size)
        if getattr(self.args, "pad_to_multiple_of", 0) and not self.pad_to_multiple_of:
            logger.warning("--pad_to_multiple_of has no effect: rows of this run cannot be filled.")
        self.data_collator = IgnorePadding(self.data_collator)
        move_hub_token(self.args)
        self.checkpoints, self.run_settings, self.uploads = RunCheckpoints(), RunSettings(self.kind), HubUploads(self)
        self.stop_signal, self.reports = StopSignal(self), Reports(self)
        self.checkpoint_uploads = CheckpointUploads()
        self.remove_callback(PrinterCallback)
        compilation = Compilation(self.passes_to_repay_compiling)
        callbacks: list[Any] = [compilation, self.checkpoints, self.run_settings, LogLines()]
        if self.pop_callback(ProgressCallback) is not None:
            callbacks.append(ProgressBar())
        for callback in callbacks:  # `train` adds three callbacks that come last
            self.add_callback(callback)

    @property
    def interrupted(self) -> Signals | None:
        """The signal that ended the last call of `train`. None if training is complete."""
        return self.stop_signal.interrupted

    def create_accelerator_and_postprocess(self) -> None:
        """Extends Trainer's method, the first that its constructor calls: checks `output_dir`, and sets up the device.

        Under DDP, gradients are views of the exchanged buffers, which saves a copy. Autocast caches no copies of
        weights, because a CUDA graph would read them after they were freed.
        """
        if is_url(self.args.output_dir or ""):  # Trainer would make a local folder `s3:`
            place = hide_credentials(self.args.output_dir or "")
            raise InputError(f"output_dir: {place} is a URL. Pass a local folder, or use the command line.")
        use_one_gpu(self.args)  # type: ignore[arg-type]
        super().create_accelerator_and_postprocess()
        apply_tf32(self.args)
        if self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        self.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)
        if self.args.torch_compile:
            self.accelerator.state.dynamo_plugin = TorchDynamoPlugin(backend="no")

    # --- a run --------------------------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Extends Trainer's method: locks the output folder, verifies the checkpoint, and stops on a signal."""
        check_weights(self.model)
        if torch.is_autocast_enabled(self.args.device.type):
            raise InputError("Training in torch.autocast would use old copies of the weights. Set bf16=True instead.")
        if self.checks_output_dir and not resume_from_checkpoint:
            resume_from_checkpoint = check_output_dir(self.args)
        self.checks_output_dir = False  # from now on, the folder contains this run
        self._best_step = None
        self.graphs.restart()
        # These come last: an upload contains what other callbacks wrote, and a signal may cancel what they requested.
        for callback in (self.uploads, self.checkpoint_uploads, self.stop_signal):
            self.pop_callback(callback)
            self.add_callback(callback)
        with lock_output_dir(self.args):
            checkpoint = self._verified
            if resume_from_checkpoint != checkpoint:
                checkpoint = find_checkpoint(self.args, resume_from_checkpoint)
            if resume_from_checkpoint and checkpoint is None:
                raise InputError(
                    f"resume_from_checkpoint: {self.args.output_dir} contains no complete checkpoint. To start a new "
                    "run, omit the argument."
                )
            state = TrainerState() if checkpoint is None else read_state(checkpoint)
            if checkpoint is not None:
                logger.info("resuming from %s", Path(checkpoint).name)
            self._begin(state)
            wait_for_all()  # the first process may still be counting the tokens of the examples
            self.compare_settings(checkpoint)
            self.reports.begin(state)
            if self.pad_to_multiple_of:
                logger.info("rows are filled up to a multiple of %d tokens", self.pad_to_multiple_of)
            limit = self.args.save_total_limit
            self.checkpoints.limit = max(limit or 0, 0)
            # Trainer would also remove other folders that begin with "checkpoint-".
            self.args.save_total_limit = None
            try:
                if self.args.world_size > 1:  # after an evaluation, accelerate would leave DDP out
                    self.model._is_accelerate_prepared = False
                if self.graphs.replaces_ddp:
                    self.model_wrapped = self.model
                    prepare = functools.partial(self.accelerator.prepare_model, evaluation_mode=True)  # without DDP
                    self.accelerator.prepare_model = prepare  # type: ignore[method-assign]
                    send_weights(self.model)
                with self.stop_signal.watch(), self.checkpoint_uploads.watch(self.args):
                    return super().train(checkpoint, trial, ignore_keys_for_eval)
            finally:
                self.args.save_total_limit = limit
                vars(self.accelerator).pop("prepare_model", None)
                self.graphs.restart()

    def _begin(self, state: TrainerState) -> None:
        """Called before training, with the `state` of the checkpoint or of a new run."""

    def check_optimizer(self, steps: int) -> None:
        """Makes the optimizer and the schedule, before the data are read. Invalid options raise an [`InputError`]."""
        try:
            self.create_optimizer_and_scheduler(steps)
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, ImportError) as error:
            raise InputError(f"--optim, --optim_args, --lr_scheduler_kwargs: {error}") from error

    def compare_settings(self, checkpoint: str | None) -> None:
        """Collects the settings of this run, and compares them with the settings in the checkpoint."""
        best = BEST_MODEL_SETTINGS if self.args.load_best_model_at_end else ()
        settings = collect_training_settings(self.args, self.model_config, (*self.compared_names, *best))
        self.run_settings.compare(checkpoint, settings)

    def train_and_save(self, checkpoint: str | None) -> dict[str, float]:
        """Trains for a command, and saves the model, the metrics and the state. Returns the metrics."""
        self._verified, self.checks_output_dir = checkpoint, False
        metrics = self.train(resume_from_checkpoint=checkpoint).metrics
        raise_if_interrupted(self)
        self.save_model(_internal_call=True)  # an external call would push before the card is written
        self.save_metrics("train", metrics)
        self.save_state()
        return metrics

    @property
    def model_step(self) -> int:
        """The step at which the model reached its current weights."""
        return self.state.global_step if self._best_step is None else self._best_step

    # --- a step -------------------------------------------------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """Extends Trainer's method: a run that resumes after its last step takes no further step."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Extends Trainer's method: with `cuda_graphs`, a CUDA graph runs batches whose size has occurred before."""
        if not self.graphs.are_used():
            return super().training_step(model, inputs, num_items_in_batch)
        loss = self.graphs.train(super().training_step, model, inputs, num_items_in_batch)
        if self.graphs.replaces_ddp and self.accelerator.sync_gradients:
            self.stop_signal.status = self.graphs.average_gradients(self.stop_signal.describe(self._tr_loss + loss))
        return loss

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        # Trainer's hook before the optimizer step does not get the norm.
        norm = super()._get_grad_norm(*args, **kwargs)
        self.stop_signal.check_step(norm)
        return norm

    # --- batches ------------------------------------------------------------------------------------------------

    def _get_dataloader(self, dataset: Any, description: str, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        # Trainer makes all loaders here. This method fills rows, and keeps signals from ending data workers.
        collate = self.data_collator
        self.data_collator = self._fill_rows(dataset, batch_size, kwargs.get("is_training", False))
        try:
            loader = super()._get_dataloader(dataset, description, batch_size, *args, **kwargs)
        finally:
            self.data_collator = collate
        getattr(loader, "base_dataloader", loader).worker_init_fn = self.worker_init_fn
        return loader

    @property
    def worker_init_fn(self) -> Callable[[int], None]:
        """The function that each data worker calls first, to seed itself and to ignore signals."""
        arguments = {"num_workers": self.args.dataloader_num_workers, "rank": self.args.process_index}
        return functools.partial(start_worker, **arguments)

    def keep_column(self, name: str) -> None:
        """Passes a column of the dataset to the data collator, even with `remove_unused_columns`."""
        self._set_signature_columns_if_needed()
        columns: Any = self._signature_columns
        columns.append(name)

    def _choose_multiple(self, dataset: Any, batch_size: int) -> int:
        """Returns the multiple (in tokens) to which rows of `dataset` are filled. 0: rows are not filled."""
        wanted = getattr(self.args, "pad_to_multiple_of", 0)
        by_default = wanted is None and self.args.uses_cuda and type(self.model) in OWN_MODELS  # type: ignore[attr-defined]
        if not (wanted or by_default) or not self._can_fill_rows():
            return 0
        return wanted or self._suggest_multiple(dataset, batch_size)

    def _can_fill_rows(self) -> bool:
        """Whether rows can be filled: padding must not change losses, and attention must not pad sequences again."""
        is_own = isinstance(self.model_config, SnugBertConfig)
        return is_own and not pads_in_attention(self.model_config, self.args.device)

    def _suggest_multiple(self, dataset: Any, batch_size: int) -> int:
        """Returns the default `pad_to_multiple_of` for rows of `batch_size` examples of `dataset`. 0: unknown."""
        return 0

    def _fill_rows(self, dataset: Any, batch_size: int, is_training: bool) -> Any:
        """Returns a data collator that fills rows of `dataset`. Evaluation has its own row sizes."""
        multiple = self.pad_to_multiple_of if is_training else self._choose_multiple(dataset, batch_size)
        return FillRows(self.data_collator, multiple) if multiple else self.data_collator

    # --- checkpoints --------------------------------------------------------------------------------------------

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Extends Trainer's method: writes each file completely or not at all, and adds to `all_results.json`."""
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir or "")
        contents = {folder / f"{split}_results.json": metrics}
        if combined:
            file = folder / "all_results.json"
            contents[file] = (read_json(file) if file.exists() else {}) | metrics
        for file, values in contents.items():
            write_atomically(file, json.dumps(values, indent=4, sort_keys=True))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model without `training_args.bin`. Modes follow the umask. A full disk raises [`InputError`]."""
        folder = Path(output_dir or self.args.output_dir or "")
        with explaining_failed_writes(folder, RESUME):
            super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            # This file is a pickle of all arguments, which contain local paths.
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            for file in folder.glob("*.safetensors"):
                shutil.copymode(folder / CONFIG_NAME, file)  # safetensors ignores the umask

    def store_in_state(self) -> None:
        """Adds what is needed on resume to the state that is about to be saved."""
        self.run_settings.store(self.state)
        self.reports.store(self.state)

    def save_state(self) -> None:
        """Extends Trainer's method: adds the settings of the run, and keeps only the name of the best checkpoint."""
        self.run_settings.store(self.state)
        best = self.state.best_model_checkpoint
        self.state.best_model_checkpoint = best and Path(best).name
        super().save_state()
        self.state.best_model_checkpoint = best

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Trainer's only hook, `on_save`, runs after the last file is written. That is too late to change what Trainer
        # writes, and where.
        self.store_in_state()
        checkpoint = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with self.checkpoints.write(self.args, self.state, checkpoint, self.stop_signal.writes_whole_checkpoint):
            super()._save_checkpoint(model, None)  # the folder of the trial is in the arguments

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Checkpoints store tied weights once, so they are not missing.
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def _load_best_model(self) -> None:
        # After a signal, the model keeps its weights. Trainer has no hook for this.
        if self.interrupted:
            return
        # With a bucket, only the first machine has the checkpoint, so one process reads the weights and sends them.
        with raise_together():
            if self.args.process_index == 0:
                best = Path(str(self.state.best_model_checkpoint))
                download_checkpoint(best)
                try:
                    check_checkpoint(best, needs_optimizer=False)
                except InputError as error:
                    remedy = "Remove this folder and resume. The run then ends with its last weights."
                    raise InputError(f"{error} {remedy}") from error
                self._load_from_checkpoint(str(best))
        send_weights(self.model)
        self._best_step = step_of(str(self.state.best_model_checkpoint))

    # --- the Hub ------------------------------------------------------------------------------------------------

    def write_card(self) -> None:
        """Writes a model card with the current metrics into the output folder. By default, writes Trainer's card."""
        super().create_model_card()

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes the card of [`write_card`]. Trainer's arguments are ignored."""
        if self.args.should_save:
            self.write_card()

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Uploads fewer files than Trainer, see [`HubUploads.push`]."""
        return self.uploads.push(*args, **kwargs)


def check_weights(model: torch.nn.Module) -> None:
    """Checks that the weights to train have at least 32 bits. In 16 bits, rounding would lose AdamW's small steps."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype in (torch.bfloat16, torch.float16):
            dtype = str(weight.dtype).removeprefix("torch.")
            raise InputError(
                f"{name} is {dtype}, but 16-bit weights would lose the small steps of training. Call model.float() "
                "first. To compute in 16 bits, set bf16=True or fp16=True in the arguments."
            )
