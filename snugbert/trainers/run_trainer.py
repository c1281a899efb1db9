"""The Trainer that pretraining and fine-tuning share: log lines, checkpoints, resuming and pushing to the Hub."""

import logging
import shutil
import textwrap
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, TorchDynamoPlugin
from huggingface_hub import HfApi
from torch._dynamo.exc import TorchDynamoException
from transformers import PrinterCallback, ProgressCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import nested_gather
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, SaveStrategy, TrainOutput
from transformers.training_args import OptimizerNames
from transformers.utils import PushInProgress

from snugbert import cuda_graphs
from snugbert.checkpoints.weight_files import read_torch_file, read_weights
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.packed_batches import TokenBudgetDataset
from snugbert.data.row_sizes import OWN_MODELS, FillRows, pads_in_attention
from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.packing_snugbert import warn_of_padding
from snugbert.trainers.checkpoint_trainer import CheckpointTrainer, locate_best
from snugbert.trainers.compilation import (
    COMPILE_PASSES,
    Compilation,
    compile_model,
    find_compiler_problem,
    shorten_error,
)
from snugbert.trainers.device_arguments import apply_tf32
from snugbert.trainers.log_lines import LogLines, ProgressBar
from snugbert.trainers.manifest import MANIFEST_NAME
from snugbert.trainers.output_folder import (
    WITHOUT_TEACHER,
    find_checkpoint,
    list_checkpoints,
    remove_checkpoints,
    step_of,
)
from snugbert.trainers.run_lock import lock_output_dir
from snugbert.trainers.run_settings import (
    BEST_MODEL_SETTINGS,
    SETTINGS_NAME,
    ApplyIntervals,
    apply_new_steps,
    check_training_settings,
    collect_training_settings,
    hide_trainer_comparison,
    read_settings,
    read_state,
)
from snugbert.trainers.run_setup import move_hub_token
from snugbert.trainers.stopping import StoppableTrainer

logger = logging.getLogger(__name__)

# The files of a model: weights, configuration, tokenizer and code.
MODEL_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".py")
# As in Trainer: unfinished files and checkpoints. And predictions, which contain the texts of the user's examples, and
# the run that a distilled model is compared with.
NOT_UPLOADED = ["_*", f"{PREFIX_CHECKPOINT_DIR}-*", TRAINING_ARGS_NAME, "*predictions.*", f"{WITHOUT_TEACHER}/*"]

# Their code computes losses from the batch, the weights and random numbers only.
KNOWN_PACKAGES = ("snugbert", "transformers", "torch", "peft")
NUM_ITEMS, NUM_BATCHES = "num_items_in_batch", "num_batches_in_step"


class SharedTrainer(StoppableTrainer, CheckpointTrainer):
    """A Trainer that prints readable log lines, pushes the model card of the command, and writes no secrets.

    `hub_token` moves to the environment, and `training_args.bin` is not written. `save_total_limit` counts and removes
    only folders named `checkpoint-<step>`, up to the current step. A run resumes with its original settings. Only the
    number of steps may change. Labels at padding are ignored, as in the models.

    Attributes:
        write_card: writes a model card with the current metrics into the output folder.
        command_settings: further settings that must not change on resume.
        changes: what changed when the run resumed, for the model card.
        keeps_checkpoints: whether the checkpoints stay when the run is finished. Stays true on resume.
        pad_to_multiple_of: in training, rows are filled up to a multiple of this number of tokens. 0: they are not
            filled.
        passes_to_repay_compiling: see [`Compilation`].
    """

    write_card: Callable[[], None] | None = None
    compared_names: tuple[str, ...] = ()  # further training arguments that must not change on resume
    keeps_checkpoints = True
    passes_to_repay_compiling = COMPILE_PASSES
    push_in_progress: Any

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._model_config: Any = getattr(self.model, "config", None)  # a sharded model may not have it
        if self.args.torch_compile:
            self._compile_as_requested()
        self.add_callback(Compilation(self.passes_to_repay_compiling))
        self.pad_to_multiple_of = self._choose_multiple(self.train_dataset, self.args.train_batch_size)
        self.data_collator = IgnorePadding(self.data_collator)
        self.command_settings: dict[str, Any] = {}
        self._settings: dict[str, Any] = {}
        self.changes: list[str] = []
        self._uses_graphs: bool | None = None  # None: not decided
        self._graphs: cuda_graphs.CudaGraphs | None = None  # of training
        self._evaluation_graphs: cuda_graphs.CudaGraphs | None = None
        move_hub_token(self.args)
        self.add_callback(ApplyIntervals)
        self.remove_callback(PrinterCallback)
        self.add_callback(LogLines(self._read_loss))
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBar)

    def create_accelerator_and_postprocess(self) -> None:
        """As in Trainer. TF32 is on or off as the arguments say. accelerate does not compile the model.

        Under DDP, gradients are views of the buffers that the processes exchange, which saves a copy of them.
        """
        super().create_accelerator_and_postprocess()
        apply_tf32(self.args)
        if self.accelerator.ddp_handler is not None:
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        if self.args.torch_compile:
            self.accelerator.state.dynamo_plugin = TorchDynamoPlugin(backend="no")

    def _compile_as_requested(self) -> None:
        """Compiles the model also for evaluation without training.

        Raises:
            InputError: torch's compiler does not work.
        """
        args, device = self.args, self.args.device
        if device.type == "cuda" and args.torch_compile_backend == "inductor":
            if problem := find_compiler_problem(device):
                raise InputError(f"--torch_compile: {problem} To train without it, add --torch_compile false.")
        compile_model(self.model, str(args.torch_compile_backend), args.torch_compile_mode, device)  # type: ignore[arg-type]

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in Trainer. Locks the output folder, verifies the checkpoint, and logs how many are kept.

        Raises:
            InputError: weights to train have 16 bits; a setting changed since the checkpoint, or one of its files is
                damaged, contains objects that could run code, or does not fit the run; `resume_from_checkpoint` is
                True and there is no whole checkpoint; or another process runs in the output folder.
        """
        check_weights(self.model)  # type: ignore[arg-type]
        self._uses_graphs = self._graphs = self._evaluation_graphs = None
        with lock_output_dir(self.args):
            checkpoint = find_checkpoint(self.args, resume_from_checkpoint)
            self._begin(TrainerState() if checkpoint is None else read_state(checkpoint))
            self.compare_settings(checkpoint)
            self._log_rows()
            limit = self.args.save_total_limit
            self._checkpoints_kept = max(limit or 0, 0)  # 0: all
            if self.args.save_strategy != SaveStrategy.NO:
                logger.info(
                    "checkpoints kept during training: %s (--save_total_limit)", self._checkpoints_kept or "all"
                )
            # Trainer would also remove other folders that begin with "checkpoint-".
            self.args.save_total_limit = None
            try:
                with hide_trainer_comparison():
                    return super().train(checkpoint, *args, **kwargs)
            finally:
                self.args.save_total_limit = limit
                self._graphs = self._evaluation_graphs = None  # frees their memory

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """As in Trainer. With `cuda_graphs`, a CUDA graph runs batches whose size has occurred before.

        Raises:
            InputError: torch's compiler failed, or a graph cannot be recorded.
        """
        try:
            if not self._use_graphs():
                return super().training_step(model, inputs, num_items_in_batch)
            model.train()  # a graph does not, nor does it prepare the optimizer
            if callable(train_optimizer := getattr(self.optimizer, "train", None)):
                train_optimizer()
            batch = dict(self._prepare_inputs(inputs))
            if not self._reads_num_sequences(batch):  # it varies with a token budget, and each number is a size
                batch.pop("num_sequences", None)
            # A graph keeps the number of batches, by which Trainer divides the loss of some models.
            batches = getattr(self, "current_gradient_accumulation_steps", 1)
            batch |= {NUM_ITEMS: num_items_in_batch, NUM_BATCHES: batches}
            return self._get_graphs(model)(batch)
        except TorchDynamoException as error:
            raise InputError(
                f"torch's compiler failed ({shorten_error(error)}). Run the command again with --torch_compile false."
            ) from error

    def _get_graphs(self, model: Any) -> cuda_graphs.CudaGraphs:
        """Returns the CUDA graphs of training steps."""
        if self._graphs is None or self._graphs.model is not self.model:

            def step(batch: dict[str, Any]) -> torch.Tensor:
                del batch[NUM_BATCHES]
                return super(SharedTrainer, self).training_step(model, batch, batch.pop(NUM_ITEMS))

            self._graphs = cuda_graphs.CudaGraphs(step, self.model)  # type: ignore[arg-type]
        return self._graphs

    def _with_graphs(self, model: Any) -> Any:
        """Returns `model` for evaluation, or a function that runs it with CUDA graphs."""
        if not self._use_graphs() or self.label_smoother is not None:  # label smoothing needs the model itself
            return model
        if self._evaluation_graphs is None or self._evaluation_graphs.model is not self.model:
            self._evaluation_graphs = cuda_graphs.CudaGraphs(lambda batch: model(**batch), self.model)  # type: ignore[arg-type]
        graphs = self._evaluation_graphs
        return lambda **inputs: graphs(inputs)

    def _use_graphs(self) -> bool:
        """Whether training and evaluation use CUDA graphs. Decided once in each run, with a log line."""
        if self._uses_graphs is None:
            wanted = getattr(self.args, "cuda_graphs", False)
            self._uses_graphs = self.args.uses_cuda if wanted is None else wanted  # type: ignore[attr-defined]
            if self._uses_graphs and (reason := self._find_reason_against_graphs()):
                logger.info("CUDA graphs: off, because %s.", reason)
                self._uses_graphs = False
        return bool(self._uses_graphs)

    def _find_reason_against_graphs(self) -> str | None:
        args: Any = self.args
        if not cuda_graphs.are_on_gpu([torch.empty(0, device=args.device)]):
            return "they need a CUDA GPU"
        if self.accelerator.distributed_type != DistributedType.NO or args.n_gpu > 1:
            # Nobody has tested it. Gradients would arrive all at once, so sending them could not overlap.
            return "several GPUs share the work"
        if self.accelerator.scaler is not None:
            return "float16 scales the loss (--bf16 does not)"
        if any(getattr(module, "gradient_checkpointing", False) for module in self.model.modules()):  # type: ignore[union-attr]
            return "gradient checkpointing reads the random state, which a graph cannot do"
        if args.torch_empty_cache_steps is not None:
            return "--torch_empty_cache_steps frees memory within a step"
        if args.optim in (OptimizerNames.LOMO, OptimizerNames.ADALOMO):
            return f"--optim {args.optim.value} updates the weights within the backward pass"
        if args.cuda_graphs is None and (name := self._find_own_code()) is not None:
            return f"{name} may depend on more than the batch. If it does not, set cuda_graphs=True"
        return None

    def _find_own_code(self) -> str | None:
        """Returns the name of a user's code that computes the loss. A graph would not run it again."""
        parts = [getattr(type(self), name) for name in ("training_step", "compute_loss")]
        parts += [] if self.compute_loss_func is None else [self.compute_loss_func]
        parts += map(type, self.model.modules())  # type: ignore[union-attr]
        own = (part for part in parts if part.__module__.split(".")[0] not in KNOWN_PACKAGES)
        return next((getattr(part, "__qualname__", str(part)) for part in own), None)

    def _reads_num_sequences(self, batch: dict[str, Any]) -> bool:
        """Whether the model is trained on numbers or on several labels per example. -100 is a number there."""
        labels, config = batch.get("labels"), self._model_config
        if labels is None or labels.is_floating_point():
            return labels is not None
        numbers = ("regression", "multi_label_classification")
        return getattr(config, "problem_type", None) in numbers or getattr(config, "num_labels", None) == 1

    def _choose_multiple(self, dataset: Any, batch_size: int) -> int:
        """Returns the multiple of tokens to fill rows of `dataset` up to. 0: they are not filled."""
        wanted = getattr(self.args, "pad_to_multiple_of", 0)
        by_default = wanted is None and self.args.uses_cuda and type(self.model) in OWN_MODELS  # type: ignore[attr-defined]
        if not (wanted or by_default) or self._explain_unfilled_rows() is not None:
            return 0
        return wanted or self._suggest_multiple(dataset, batch_size)

    def _explain_unfilled_rows(self) -> str | None:
        """Returns why rows cannot be filled. None: they can."""
        if not isinstance(self._model_config, SnugBertConfig):
            return "the model is not a SnugBERT model"
        if pads_in_attention(self._model_config, self.args.device):
            return "on a GPU, attention pads the sequences"
        return None

    def _suggest_multiple(self, dataset: Any, batch_size: int) -> int:
        """Returns the multiple for rows of `batch_size` examples of `dataset`. 0: it is unknown."""
        return 0

    def _fill_rows(self, dataset: Any, batch_size: int, is_training: bool) -> Any:
        """Returns the data collator for `dataset`. It fills rows, in evaluation to sizes of their own."""
        multiple = self.pad_to_multiple_of if is_training else self._choose_multiple(dataset, batch_size)
        if not multiple:
            return self.data_collator
        has_budget = isinstance(dataset, TokenBudgetDataset)
        return FillRows(self.data_collator, multiple, dataset.max_examples * batch_size if has_budget else None)

    def _get_dataloader(self, dataset: Any, description: str, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        collate = self.data_collator
        self.data_collator = self._fill_rows(dataset, batch_size, description == "Training")
        try:
            return super()._get_dataloader(dataset, description, batch_size, *args, **kwargs)
        finally:
            self.data_collator = collate

    def _log_rows(self) -> None:
        if self.pad_to_multiple_of:
            logger.info("rows are filled up to a multiple of %d tokens", self.pad_to_multiple_of)
        elif getattr(self.args, "pad_to_multiple_of", 0):
            logger.warning("--pad_to_multiple_of has no effect: %s.", self._explain_unfilled_rows())

    def _read_loss(self) -> float:
        """Returns the loss since the last log entry, averaged over all processes. Waits for the device.

        Raises:
            DivergedError: the loss or the gradient norm is not finite.
        """
        self._read_report()
        return nested_gather(self._tr_loss, self.args.parallel_mode).mean().item()

    def _begin(self, state: TrainerState) -> None:
        """Called before training with the `state` of the checkpoint, or of a new run."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """As in Trainer. An invalid option is a short error."""
        optim = getattr(self.args.optim, "value", self.args.optim)
        with _naming(f"--optim {optim}" + (f" --optim_args {self.args.optim_args}" if self.args.optim_args else "")):
            return super().create_optimizer(model)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """As in Trainer. An invalid option is a short error."""
        with _naming(f"--lr_scheduler_kwargs {self.args.lr_scheduler_kwargs}"):
            return super().create_scheduler(num_training_steps, optimizer)

    def compare_settings(self, checkpoint: str | None) -> None:
        """Collects the settings of this run, and compares them with the settings in the checkpoint.

        Raises:
            InputError: a setting changed.
        """
        best = BEST_MODEL_SETTINGS if self.args.load_best_model_at_end else ()
        settings = collect_training_settings(self.args, self._model_config, (*self.compared_names, *best))
        self._settings = settings | self.command_settings
        self.changes = []
        if checkpoint is not None:
            check_training_settings(checkpoint, self._settings)
            record = read_settings(checkpoint)
            self.changes = record.get("changes", [])
            self.keeps_checkpoints |= record.get("keeps_checkpoints", True)
            if not record:
                logger.warning("%s stores no settings, so none were compared.", checkpoint)

    def _report_change(self, change: str) -> None:
        logger.warning("changed %s", change)
        self.changes.append(change)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with _resuming_from(resume_from_checkpoint, "the model"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As in Trainer, but tied weights, which checkpoints store once, are not reported as missing."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _resuming_from(checkpoint, "optimizer.pt or scheduler.pt"):
            before = set(vars(self.lr_scheduler))
            super()._load_optimizer_and_scheduler(checkpoint)
            _check_optimizer(self.optimizer)
            # Loading a schedule can set any attribute, and so replace its methods.
            if replaced := (vars(self.lr_scheduler).keys() - before) & set(dir(type(self.lr_scheduler))):
                raise ValueError(f"unknown schedule state {min(replaced)}")
            if checkpoint is not None and (change := apply_new_steps(self, checkpoint)):
                self._report_change(change)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _resuming_from(checkpoint, "rng_state.pth"):
            super()._load_rng_state(checkpoint)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """As in Trainer, unless the command writes the card itself."""
        if self.write_card is None:
            super().create_model_card(*args, **kwargs)

    def save_state(self) -> None:
        """As in Trainer, with the settings of the run, and only the name of the best checkpoint."""
        self._store_settings()
        best = self.state.best_model_checkpoint
        self.state.best_model_checkpoint = best and Path(best).name
        super().save_state()
        self.state.best_model_checkpoint = best

    def _store_settings(self) -> None:
        # The command may have added settings during the run.
        self.state.stateful_callbacks |= {  # type: ignore[operator]
            SETTINGS_NAME: {
                "settings": self._settings | self.command_settings,
                "changes": self.changes,
                "keeps_checkpoints": self.keeps_checkpoints,
            }
        }

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        output_dir = Path(self._get_output_dir(trial))
        self._store_settings()
        super()._save_checkpoint(model, trial)
        locate_best(self.state, output_dir)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(output_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"))
        if self.args.should_save and self._checkpoints_kept:
            self._remove_old_checkpoints(output_dir)

    def _remove_old_checkpoints(self, output_dir: Path) -> None:
        """Keeps `save_total_limit` checkpoints: the last, the best, and the newest of the others.

        Checkpoints of later steps also stay. If they are damaged, and this run started again, their weights may be
        more valuable than its own.
        """
        best = Path(self.state.best_model_checkpoint or "").name
        last = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"

        def rank(folder: Path) -> tuple[bool, float, int]:
            # Some file systems give equal times. Then the step decides.
            return folder.name in (last, best), folder.stat().st_mtime, step_of(folder)

        reached = [folder for folder in list_checkpoints(output_dir) if step_of(folder) <= self.state.global_step]
        ranked = sorted(reached, key=rank, reverse=True)
        protected = sum(folder.name in (last, best) for folder in ranked)
        remove_checkpoints(ranked[max(self._checkpoints_kept, protected) :])

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """As in Trainer, without `training_args.bin`, a pickle of all arguments that contains local paths."""
        super()._save(output_dir, state_dict)
        (Path(output_dir or str(self.args.output_dir)) / TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Pushes as Trainer does (`hub_strategy`), with the card and the model's code, without `training_args.bin`."""
        if self.writes_checkpoint:  # Trainer calls this before the checkpoint has its name
            return
        args, checkpoint, output_dir = self.args, Path(checkpoint_folder), Path(str(self.args.output_dir))
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        if busy and not args.hub_always_push:
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        for file in checkpoint.rglob("*"):  # ELECTRA's generator has a folder of its own
            if file.suffix in MODEL_SUFFIXES and file.name not in (TRAINER_STATE_NAME, MANIFEST_NAME):
                copy = output_dir / file.relative_to(checkpoint)
                copy.parent.mkdir(exist_ok=True)
                shutil.copy(file, copy)
        if self.write_card is not None:
            self.write_card()
        hub = HfApi(token=args.hub_token)
        upload = partial(hub.upload_folder, repo_id=self.hub_model_id, revision=args.hub_revision, run_as_future=True)
        by_epoch = args.save_strategy == SaveStrategy.EPOCH
        done = f"epoch {int(self.state.epoch or 0)}" if by_epoch else f"step {self.state.global_step}"
        message = f"Training in progress, {done}"
        jobs: Any = [upload(folder_path=output_dir, commit_message=message, ignore_patterns=NOT_UPLOADED)]
        if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            folder = "last-checkpoint" if args.hub_strategy == HubStrategy.CHECKPOINT else checkpoint.name
            message += ", checkpoint"
            jobs.append(upload(folder_path=checkpoint, path_in_repo=folder, commit_message=message))
        if busy:
            self.push_in_progress.jobs.extend(jobs)
        else:
            self.push_in_progress = PushInProgress(jobs)

    def last_metrics(self) -> dict[str, float]:
        """Returns the metrics of the last evaluation during training, without their prefix. Empty before the first."""
        lines = [line for line in self.state.log_history if any(name.startswith("eval_") for name in line)]
        return {name.removeprefix("eval_"): value for name, value in lines[-1].items()} if lines else {}


class IgnorePadding:
    """Sets token labels at padding to -100, so that Trainer does not count them in the denominator of the loss.

    Args:
        collate: the data collator.
    """

    def __init__(self, collate: Callable[[Any], Any]):
        self.collate = collate
        self.tokenizer = getattr(collate, "tokenizer", None)  # Trainer saves it

    def __call__(self, features: Any) -> Any:
        """Returns the batch of `collate`. Warns once about labels at padding. Other types stay unchanged."""
        batch = self.collate(features)
        if not isinstance(batch, MutableMapping):
            return batch
        labels, mask = batch.get("labels"), batch.get("attention_mask")
        if not isinstance(labels, torch.Tensor) or not isinstance(mask, torch.Tensor):
            return batch
        if labels.shape == mask.shape and not labels.is_floating_point():
            at_padding = (labels != IGNORE_INDEX) & (mask == 0)
            warn_of_padding("labels", int(at_padding.sum()))
            batch["labels"] = labels.masked_fill(at_padding, IGNORE_INDEX)
        return batch


def check_weights(model: torch.nn.Module) -> None:
    """Checks that the weights to train have at least 32 bits. 16 bits would lose AdamW's small steps to rounding.

    Raises:
        InputError: a weight has 16 bits.
    """
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype in (torch.bfloat16, torch.float16):
            dtype = str(weight.dtype).removeprefix("torch.")
            raise InputError(
                f"{name} is {dtype}, but 16-bit weights would lose the small steps of training. Call model.float() "
                "first. To compute in 16 bits, set bf16=True or fp16=True in the arguments."
            )


def _check_optimizer(optimizer: Any) -> None:
    """Checks the shapes of a loaded optimizer state. torch's fused kernels would access memory out of bounds.

    Raises:
        ValueError: a state and its parameter differ in shape, or the learning rate is not a number.
    """
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], int | float | torch.Tensor):
            raise ValueError("the learning rate is not a number")
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.numel() != 1 and value.shape != parameter.shape:
                    raise ValueError(
                        f"{name} has shape {list(value.shape)}, but its parameter has shape {list(parameter.shape)}"
                    )


@contextmanager
def _naming(flags: str) -> Iterator[None]:
    """Turns an error about the options of an optimizer or a schedule into an [`InputError`] that names the flags."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        raise InputError(f"{flags}: {error}") from error


@contextmanager
def _resuming_from(checkpoint: str | None, files: str) -> Iterator[None]:
    """Turns an error about the content of a checkpoint's `files` into an [`InputError`]."""
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # If a file is damaged, these raise an error with its name.
        for file in sorted(Path(str(checkpoint)).glob("*.pt*")):
            read_torch_file(file)
        read_weights(Path(str(checkpoint)))
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")
        raise InputError(
            f"{checkpoint}: {files} does not fit this run ({reason}). Resume from another checkpoint, or start a new "
            f"run from its weights with --model_name_or_path {checkpoint}."
        ) from error
