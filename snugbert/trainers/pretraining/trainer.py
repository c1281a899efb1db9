"""Trainer for masked tokens and next sentences, or masked tokens alone.

The loss has two exact denominators, labelled tokens and sentence pairs of the whole batch, over gradient accumulation
and processes. Whatever is logged comes from the same forward pass; evaluation keeps a few numbers a sequence, no
logits. A checkpoint holds what the log has still to say, so that a run that is killed and resumed ends with the
weights and the log of the run that was not.

Shapes: a packed batch has N sequences.
"""

import functools
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils import send_to_device
from transformers import EvalPrediction, PreTrainedConfig, TrainerState, TrainingArguments, get_wsd_schedule
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, seed_worker

from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.output_folder import newest_checkpoint
from snugbert.trainers.pretraining.batches import BatchSampler, Phase, find_phase, passes_over_corpus, plan_phases
from snugbert.trainers.pretraining.optimizers import OPTIMIZERS, make_optimizer, wsd_arguments
from snugbert.trainers.pretraining.processes import ProcessesTrainer
from snugbert.trainers.pretraining.throughput import peak_flops, training_flops
from snugbert.trainers.shared_trainer import CardTrainer

logger = logging.getLogger(__name__)

METRICS_NAME = "metrics.jsonl"  # in the output folder: the log, a line of JSON for each of its lines
RECORD_NAME = "PretrainingTrainer"  # in a checkpoint's state: what is there beside Trainer's own

# Sums over the steps since the last line of the log. Those of the model stay where it is until they are wanted.
MODEL_SUMS = ("mlm_loss", "mlm_correct", "nsp_loss", "nsp_correct")
DATA_SUMS = ("labelled", "pairs", "tokens", "positions", "flops")

SIGTERM_SECONDS = 30  # after which launchers and schedulers kill
LISTED_CHANGES = 5  # entries of one setting that a message names

_peak_flops = functools.cache(peak_flops)  # once a process


@dataclass
class PretrainingArguments(TrainingArguments):
    """`TrainingArguments` with the paper's pretraining settings as defaults.

    Devlin et al. (2018), appendix A.2: learning rate 1e-4 with warmup over the first 1 % of the steps and linear
    decay, AdamW with weight decay 0.01; epsilon 1e-6 is the original release's. The paper's batch is 256 sequences:
    `per_device_train_batch_size` x `gradient_accumulation_steps` x processes.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "The peak learning rate."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay, not on biases and LayerNorm."})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "Epsilon of AdamW."})
    warmup_steps: float = field(
        default=0.01, metadata={"help": "Steps of linear warmup; a number below 1 is a share of all steps."}
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Sequences of a device's batch."})
    optim: str = field(
        default="adamw_torch_fused",
        metadata={"help": "lamb (large batches), muon, or any optimizer that transformers knows."},
    )
    logging_steps: float = field(default=100, metadata={"help": "Steps between two lines of the log."})
    save_total_limit: int | None = field(
        default=3,
        metadata={"help": "How many checkpoints to keep: the newest, and the best if there is one. 0 keeps all."},
    )

    def __post_init__(self):
        # The collator needs what the model does not. Evaluation gives sums of sequences, to be added up over all
        # batches. A resumed run's sampler begins with the right step, so there is nothing to skip. Losses are divided
        # by what the batches of all processes have. The log's loss is our own; Trainer's filter for its own would wait
        # for the device at every batch.
        self.remove_unused_columns = False
        self.eval_do_concat_batches, self.batch_eval_metrics = True, False
        self.ignore_data_skip = True
        self.average_tokens_across_devices = True
        self.logging_nan_inf_filter = False
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # the losses use all
        if self.label_smoothing_factor:
            raise InputError("--label_smoothing_factor is not for pretraining, which has two losses.")
        if self.auto_find_batch_size:
            raise InputError("--auto_find_batch_size is not for pretraining, whose batch is a setting of the run.")
        if str(self.fsdp).lower() in ("true", "false"):  # the words, in a YAML file; `--fsdp` alone is True
            self.fsdp = str(self.fsdp).lower() == "true"  # type: ignore[assignment]
        optim = self.optim
        if optim in OPTIMIZERS:
            self.optim = "adamw_torch_fused"  # TrainingArguments refuses what it does not know
        super().__post_init__()
        if optim in OPTIMIZERS:
            self.optim = optim


class PretrainingTrainer(CardTrainer, ProcessesTrainer):
    """Trainer for [`SnugBertForPreTraining`] or [`SnugBertForMaskedLM`] on examples of [`PretrainingDataset`].

    It normalizes the next-sentence loss as exactly as Trainer does the masked token loss, logs both losses and
    accuracies beside tokens, padding and speed, and evaluates without keeping logits. Examples without
    `next_sentence_label` have the masked token loss alone.

    The log is also in `metrics.jsonl` of the output folder. SIGTERM, by which a machine is taken away, ends training
    with a checkpoint at the end of the step.

    Args:
        args: the arguments; `max_steps` is set to the steps of all phases.
        train_dataset: the examples of a run of one phase; its `num_examples` is set.
        phases: instead of `train_dataset`: lengths, steps and batches, see [`plan_phases`].
        data_settings: names and JSON values on which the examples depend. A checkpoint holds them for
            [`check_data_settings`].
        kwargs: as in `Trainer`.

    Attributes:
        phases: of the run.
        interrupted: whether SIGTERM ended the last call of `train` before its last step.
    """

    def __init__(
        self,
        *,
        args: PretrainingArguments,
        train_dataset: Any = None,
        phases: list[Phase] | None = None,
        data_settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        if phases is None:
            phases = [] if train_dataset is None else plan_phases([train_dataset], [1.0], args)
        if phases:
            train_dataset = torch.utils.data.ConcatDataset([phase.dataset for phase in phases])
            args.max_steps = sum(phase.steps for phase in phases)
        super().__init__(args=args, train_dataset=train_dataset, compute_metrics=_compute_metrics, **kwargs)
        self.phases = phases
        self.data_settings = data_settings or {}
        self.interrupted = False
        self._model_config: Any = self.model.config  # type: ignore[union-attr]
        self._metrics_file: Path | None = None
        self._metrics_before: str | None = None
        self._begin(TrainerState())

    # --- a run's beginning and end ------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in Trainer; SIGTERM writes a checkpoint and stops, see `interrupted`."""
        checkpoint = str(resume_from_checkpoint) if resume_from_checkpoint else None
        if resume_from_checkpoint is True:
            newest = newest_checkpoint(Path(self.args.output_dir or ""))
            if newest is None:
                raise ValueError(f"There is no whole checkpoint in {self.args.output_dir} to resume from.")
            checkpoint = str(newest)
        state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME)) if checkpoint else None
        self._begin(state or TrainerState())
        if self.is_world_process_zero():
            # What was logged after the checkpoint goes, and so does a line that was not written to its end; when there
            # is something to log, so that a run which fails at once leaves the file as it was.
            self._metrics_file = Path(self.args.output_dir or "") / METRICS_NAME
            self._metrics_before = "".join(map(_to_json_line, state.log_history if state else []))
        precisions = {"bf16": torch.bfloat16, "fp16": torch.float16}
        precision = precisions.get(self.accelerator.mixed_precision, torch.float32)
        self._peak_flops = self.args.world_size * _peak_flops(self.args.device, precision)
        with self._catch_sigterm():
            result = super().train(checkpoint, *args, **kwargs)
        if self.interrupted:
            logger.warning(
                "stopped by SIGTERM after step %d of %d; --resume_from_checkpoint true goes on from there",
                self.state.global_step,
                self.state.max_steps,
            )
        return result

    def _begin(self, state: TrainerState) -> None:
        """Sets the figures of the log to where a checkpoint's `state` left them, or to zero."""
        record = _record(state)
        # Float64 adds up numbers of float32 without rounding, so it does not matter in which order, or where.
        exact = torch.float32 if self.args.device.type == "mps" else torch.float64
        sums = record.get("sums", {}) if self.is_world_process_zero() else {}
        self._model_sums = torch.tensor(
            [sums.get(name, 0.0) for name in MODEL_SUMS], dtype=exact, device=self.args.device
        )
        self._data_sums = np.array([sums.get(name, 0.0) for name in DATA_SUMS])
        self._steps = record.get("steps", 0)
        self._seconds = record.get("seconds", 0.0)
        self._totals = {"loss": 0.0, "tokens": 0.0, "flops": 0.0} | record.get("totals", {})
        self._window_start: float | None = None
        self._first_step = self._saved_step = state.global_step
        self._stop_requested = self.interrupted = False

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As in Trainer; with what the log has still to say, and the settings of the data."""
        if self.args.should_save:
            # Should this be cut short, what is there must not pass for a whole checkpoint. The sums are collected
            # behind it, for which all processes wait.
            checkpoint = Path(self.args.output_dir or "") / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            (checkpoint / TRAINER_STATE_NAME).unlink(missing_ok=True)
        self.state.epoch = passes_over_corpus(self.phases, self.state.global_step)
        callbacks: Any = self.state.stateful_callbacks
        callbacks[RECORD_NAME] = {
            "sums": self._collect_sums(),
            "steps": self._steps,
            "seconds": self._elapsed_seconds(),
            "totals": self._totals,
            "data_settings": self.data_settings,
        }
        super()._save_checkpoint(model, trial)
        self._saved_step = self.state.global_step

    @contextmanager
    def _catch_sigterm(self) -> Iterator[None]:
        def request_stop(*_: Any) -> None:
            self._stop_requested = True

        if threading.current_thread() is not threading.main_thread():  # signals are none of its business
            yield
            return
        previous = signal.signal(signal.SIGTERM, request_stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """As in Trainer, and LAMB and Muon."""
        if self.optimizer is None and self.args.optim in OPTIMIZERS:
            model = model or self.model
            self.optimizer = make_optimizer(self.args, model, self.get_decay_parameter_names(model))
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """As in Trainer; warmup-stable-decay needs no number of steps."""
        if self.lr_scheduler is None and self.args.lr_scheduler_type == "warmup_stable_decay":
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            kwargs = wsd_arguments(self.args.lr_scheduler_kwargs, warmup_steps, num_training_steps)
            self.lr_scheduler = get_wsd_schedule(optimizer or self.optimizer, warmup_steps, **kwargs)  # type: ignore[arg-type]
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    # --- a step -------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """This process's batches from the step that training begins with; not for accelerate to share out again."""
        if self.train_dataset is None:
            raise ValueError("PretrainingTrainer: training requires a `train_dataset` or `phases`.")
        return torch.utils.data.DataLoader(
            self.train_dataset,
            batch_sampler=BatchSampler(
                self.phases,
                self.args.gradient_accumulation_steps,
                self.args.world_size,
                self.args.process_index,
                self._first_step,
            ),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=self._start_worker,
            # Of its own: a resumed run, which makes a loader more, has the straight run's dropout.
            generator=torch.Generator().manual_seed(self.args.seed),
        )

    @property
    def _start_worker(self) -> Any:
        arguments = {"num_workers": self.args.dataloader_num_workers, "rank": self.args.process_index}
        return functools.partial(_start_worker, **arguments)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> torch.utils.data.DataLoader:
        """As in Trainer, with workers that outlive SIGTERM as those of training do."""
        loader = super().get_eval_dataloader(eval_dataset)
        getattr(loader, "base_dataloader", loader).worker_init_fn = self._start_worker
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The batches of a step, as in Trainer; none if a process got SIGTERM, which ends training."""
        if self._agree_to_stop(device):
            self.interrupted = True
            self.control.should_training_stop = True
            self.control.should_save = self.state.global_step != self._saved_step
            return [], None
        if self._window_start is None:
            self._window_start = time.perf_counter()
        self._steps += 1
        batches = list(islice(epoch_iterator, num_batches))
        self._phase = find_phase(self.phases, self.state.global_step)
        for batch in batches:
            self._data_sums += _data_sums(self._model_config, batch, self._phase.dataset.max_seq_length)
        batches = [send_to_device(batch, device, non_blocking=True) for batch in batches]
        return super().get_batch_samples(iter(batches), num_batches, device)

    def _agree_to_stop(self, device: torch.device) -> bool:
        """Whether SIGTERM came, to whichever process: all must stop after the same step."""
        if self.args.world_size == 1:
            return self._stop_requested
        requests = self.accelerator.reduce(torch.full((), float(self._stop_requested), device=device))
        return requests.item() > 0

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's loss with the denominators of the whole batch; adds to the figures of the next log line."""
        # As an integer: FSDP2 would round a float to 16 bits.
        labelled = num_items_in_batch.long() if isinstance(num_items_in_batch, torch.Tensor) else num_items_in_batch
        denominators = {"num_items_in_batch": labelled}
        if "next_sentence_label" in inputs:
            denominators["num_sequences_in_batch"] = self._phase.batch
        outputs = model(**inputs, **denominators)
        self._model_sums += _model_sums(outputs, inputs)
        loss = outputs["loss"] * self.args.world_size  # gradients are the mean over processes
        return (loss, outputs) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Zero: Trainer's estimate ignores attention and what a head reads; the log has its own count."""
        return 0

    # --- the log ------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in Trainer; a line of training has the figures since the last, and every line goes to `metrics.jsonl`."""
        self.state.epoch = passes_over_corpus(self.phases, self.state.global_step)
        if "loss" in logs:
            logs.update(self._figures_since_last_line())
        elif "train_loss" in logs:  # of the whole run, not of what came after it was resumed
            sums = self._collect_sums()
            loss = self._totals["loss"] + sums["mlm_loss"] + sums["nsp_loss"]
            logs["train_loss"] = loss / max(self.state.global_step, 1)
            logs["total_flos"] = self._totals["flops"] + sums["flops"]
            if self.interrupted:
                # Trainer would now load the best checkpoint and, with a limit of one, remove the one to resume from.
                self.state.best_model_checkpoint = None
        super().log(logs, start_time)
        if self._metrics_file is not None:
            if self._metrics_before is not None:
                self._metrics_file.write_text(self._metrics_before)
                self._metrics_before = None
            with self._metrics_file.open("a") as file:
                file.write(_to_json_line(self.state.log_history[-1]))

    def _figures_since_last_line(self) -> dict[str, float]:
        sums, seconds, steps = self._collect_sums(), self._elapsed_seconds(), self._steps
        loss = sums["mlm_loss"] + sums["nsp_loss"]
        self._totals["loss"] += loss
        self._totals["tokens"] += sums["tokens"]
        self._totals["flops"] += sums["flops"]
        self._model_sums.zero_()
        self._data_sums[:] = 0
        self._steps, self._seconds, self._window_start = 0, 0.0, None
        figures = {
            "loss": loss / steps,
            "mlm_loss": sums["mlm_loss"] / steps,
            "mlm_accuracy": sums["mlm_correct"] / sums["labelled"],
        }
        if sums["pairs"]:
            figures["nsp_loss"] = sums["nsp_loss"] / steps
            figures["nsp_accuracy"] = sums["nsp_correct"] / sums["pairs"]
        return figures | {
            "tokens": self.state.num_input_tokens_seen,
            "tokens_per_second": round(sums["tokens"] / seconds),
            "padding": 1 - sums["tokens"] / sums["positions"],
            "mfu": sums["flops"] / seconds / self._peak_flops,
        }

    def _collect_sums(self) -> dict[str, float]:
        """The sums since the last line, over all processes; from here on the main process has them."""
        sums = self.accelerator.reduce(torch.cat([self._model_sums, self._model_sums.new_tensor(self._data_sums)]))
        mine = sums if self.is_world_process_zero() else torch.zeros_like(sums)
        self._model_sums, data_sums = mine.split([len(MODEL_SUMS), len(DATA_SUMS)])
        self._data_sums = data_sums.cpu().double().numpy()
        named = dict(zip(MODEL_SUMS + DATA_SUMS, sums.tolist(), strict=True))
        self.state.num_input_tokens_seen = int(self._totals["tokens"] + named["tokens"])
        return named

    def _elapsed_seconds(self) -> float:
        """Since the last line of the log, those before a resumed run was stopped included."""
        return self._seconds + (0.0 if self._window_start is None else time.perf_counter() - self._window_start)

    # --- evaluation ---------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in Trainer; the time it takes does not count in tokens per second, and what it draws not in training."""
        start = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            metrics = super().evaluate(*args, **kwargs)
        if self._window_start is not None:
            self._window_start += time.perf_counter() - start
        return metrics

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, torch.Tensor, torch.Tensor]:
        """A few sums for each sequence instead of its logits, and its number of labels: (None, (N, 3 or 5), (N,))."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs, sparse_prediction=True)
        sums = _sum_per_sequence(outputs, inputs)
        return None, sums, sums[:, 2]


def check_data_settings(checkpoint: str, settings: dict[str, Any]) -> None:
    """Makes sure that a resumed run goes on with the examples of the run that wrote `checkpoint`.

    Args:
        checkpoint: the folder.
        settings: as `data_settings` of [`PretrainingTrainer`]; a value may be a dictionary of parts and digests.

    Raises:
        InputError: naming each setting that changed and each entry of a dictionary. A checkpoint without settings, of
            another trainer, is not compared.
    """
    state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
    before = _record(state).get("data_settings")
    if not before:
        return
    now = json.loads(json.dumps(settings))
    changes = []
    for name in before | now:
        changes += _changes(name, before.get(name), now.get(name))
    if changes:
        raise InputError(
            f"the examples would not be those of {checkpoint}: {'; '.join(changes)}; go back to what was, or go on "
            "all the same with --allow_changed_data."
        )


def _changes(name: str, before: Any, now: Any) -> list[str]:
    if before == now:
        return []
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return [f"{name} was {json.dumps(before)} and is {json.dumps(now)}"]
    if list(before.values()) == list(now.values()):  # the same in another place
        return []
    changes = [f"{entry} is missing" for entry in before.keys() - now.keys()]
    changes += [f"{entry} has changed" for entry in before.keys() & now.keys() if before[entry] != now[entry]]
    changes += [f"{entry} is new" for entry in now.keys() - before.keys()]
    changes.sort()
    if len(changes) > LISTED_CHANGES:
        changes[LISTED_CHANGES:] = [f"{len(changes) - LISTED_CHANGES} more of {name} likewise"]
    return changes


def _record(state: Any) -> dict[str, Any]:
    return state.stateful_callbacks.get(RECORD_NAME, {})


def _to_json_line(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"


def _start_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seeds a data worker as Trainer does. It outlives SIGTERM to all processes, which the trainer answers."""
    seed_worker(worker_id, num_workers, rank)
    first: list[float] = []

    def outlive(*_: Any) -> None:
        # Launcher and scheduler may both send one. Not for ever: with the same signal multiprocessing ends what is
        # left when the interpreter exits.
        first.append(time.monotonic())
        if first[-1] - first[0] > SIGTERM_SECONDS:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, outlive)


def _data_sums(config: PreTrainedConfig, batch: dict[str, Any], max_seq_length: int) -> np.ndarray:
    """The `DATA_SUMS` of a batch that is not on the device yet. *Shape:* (5,)"""
    sums = [
        int((batch["labels"] != IGNORE_INDEX).sum()),
        len(batch.get("next_sentence_label", ())),
        batch["input_ids"].numel(),
        (len(batch["cu_seq_lens_q"]) - 1) * max_seq_length,
        training_flops(config, batch).item(),
    ]
    return np.array(sums, dtype=np.float64)


def _model_sums(outputs: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The `MODEL_SUMS` of a batch; its losses are its share of its step's. *Shape:* (4,)"""
    with torch.no_grad():
        targets = inputs["labels"][inputs["labels"] != IGNORE_INDEX]
        mlm_correct = (_mlm_logits(outputs).argmax(-1) == targets).sum()
        if "next_sentence_label" in inputs:
            nsp_correct = (outputs["seq_relationship_logits"].argmax(-1) == inputs["next_sentence_label"]).sum()
            sums = [outputs["mlm_loss"], mlm_correct, outputs["nsp_loss"], nsp_correct]
        else:
            nothing = torch.zeros_like(mlm_correct)
            sums = [outputs["loss"], mlm_correct, nothing, nothing]
        return torch.stack([term.float() for term in sums])


def _mlm_logits(outputs: Any) -> torch.Tensor:
    return outputs["prediction_logits"] if "prediction_logits" in outputs else outputs["logits"]


def _sum_per_sequence(outputs: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """For each sequence: masked token loss, correct and number; next-sentence loss and correct, if there is a label.

    *Shape:* (N, 3) or (N, 5)
    """
    labels = inputs["labels"][0]
    tokens = (labels != IGNORE_INDEX).nonzero().squeeze(-1)
    targets = labels[tokens]
    # A token belongs to the last sequence that begins at or before it.
    boundaries = inputs["cu_seq_lens_q"].long()
    sequence_of_token = torch.searchsorted(boundaries, tokens, right=True) - 1
    logits = _mlm_logits(outputs).float()
    of_tokens = torch.stack(
        [
            F.cross_entropy(logits, targets, reduction="none"),
            (logits.argmax(-1) == targets).float(),
            torch.ones_like(targets, dtype=torch.float32),
        ],
        dim=-1,
    )
    sums = torch.zeros(len(boundaries) - 1, of_tokens.shape[1], device=logits.device)
    sums.index_add_(0, sequence_of_token, of_tokens)
    if "next_sentence_label" not in inputs:
        return sums
    nsp_labels, nsp_logits = inputs["next_sentence_label"], outputs["seq_relationship_logits"].float()
    of_sequences = torch.stack(
        [F.cross_entropy(nsp_logits, nsp_labels, reduction="none"), (nsp_logits.argmax(-1) == nsp_labels).float()],
        dim=-1,
    )
    return torch.cat([sums, of_sequences], dim=-1)


def _compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    sums_of_sequences = np.asarray(prediction.predictions)
    mlm_loss, mlm_correct, mlm_tokens, *of_sequences = sums_of_sequences.sum(axis=0, dtype=np.float64).tolist()
    metrics = {"mlm_loss": mlm_loss / mlm_tokens, "mlm_accuracy": mlm_correct / mlm_tokens}
    if of_sequences:
        metrics["nsp_loss"], metrics["nsp_accuracy"] = (total / len(sums_of_sequences) for total in of_sequences)
    return {"loss": metrics["mlm_loss"] + metrics.get("nsp_loss", 0.0), **metrics}
