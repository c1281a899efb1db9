"""Trainer for masked tokens and sentence pairs, masked tokens alone, or ELECTRA, with or without a teacher.

Evaluation keeps a few sums per sequence instead of logits. Checkpoints include the state of the log, so a run that was
killed and resumed ends with the weights and the log of an uninterrupted run.

Shapes: a batch has N sequences.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from transformers import PreTrainedModel, TrainerState
from transformers.trainer_utils import EvalLoopOutput, TrainOutput
from transformers.utils import ModelOutput

from snugbert.data.languages import DEFAULT, store_language
from snugbert.errors import InputError
from snugbert.families.loading import GENERATOR_FOLDER
from snugbert.files import explaining_failed_writes
from snugbert.gpu.row_sizes import choose_pretraining_multiple
from snugbert.modeling_snugbert import SnugBertForMaskedLM, SnugBertForPreTraining
from snugbert.reports.pretraining_plots import TRAINING_PLOT, DrawTraining, draw_log
from snugbert.trainers.pretraining.batches import (
    BATCH_COUNTS,
    PREFETCH_FACTOR,
    Batch,
    BatchSampler,
    Phase,
    RunBatches,
    as_one_epoch,
    check_processes,
    count_epochs,
    interpolate_rate,
    plan_phases,
    seed_random_state,
)
from snugbert.trainers.pretraining.card_facts import find_corpus, write_run_card
from snugbert.trainers.pretraining.electra import ElectraPair
from snugbert.trainers.pretraining.examples import PretrainingDataset, unwrap_subset
from snugbert.trainers.pretraining.masked_distillation import distill, prepare_teacher
from snugbert.trainers.pretraining.optimizers import make_optimizer
from snugbert.trainers.pretraining.pretraining_arguments import OPTIMIZERS, PretrainingArguments
from snugbert.trainers.pretraining.scores import (
    compute_metrics,
    count_dataset,
    frequency_loss,
    sum_per_sequence,
)
from snugbert.trainers.pretraining.training_log import TrainingLog, find_peak_flops
from snugbert.trainers.run.checkpoints import RESUME
from snugbert.trainers.run.folder import ClearOutputDir
from snugbert.trainers.trainer import RunTrainer

logger = logging.getLogger(__name__)

RECORD_NAME = "PretrainingTrainer"  # key in a checkpoint's `trainer_state.json`, for the state of the log


class PretrainingTrainer(RunTrainer):
    """Trainer for [`SnugBertForPreTraining`] and [`SnugBertForMaskedLM`].

    Like `Trainer`, it works on any map-style dataset of features. The data collator must return `labels`, and for
    `SnugBertForPreTraining` also `next_sentence_label`, except in phases whose `PretrainingDataset` has the objective
    `"mlm"`. Batches may be packed or padded. A [`PretrainingDataset`] with [`SnugBertDataCollatorForPretraining`] has
    new examples and masks in every epoch.

    - All losses are exact: their denominators are the labeled tokens, the sentence pairs and the tokens of the whole
      batch, over all accumulated batches and processes.
    - The examples of a step depend only on `data_seed` (or `seed`) and the step. So a run can resume at any step.
    - Every step has a full batch, which may cross the end of an epoch. `num_train_epochs` is rounded to whole steps.
    - The output folder gets the log (`metrics.jsonl`), its plot (`training.png`) and the model card (`README.md`). A
      folder with another run is refused, unless `overwrite_output_dir` is set.

    Args:
        args: the settings. The trainer uses a copy.
        train_dataset: the features of an epoch: a list, a torch `Dataset` with a length, or a `datasets.Dataset`.
        phases: instead of `train_dataset`: several datasets one after the other, see [`plan_phases`].
        data_settings: names and JSON values that determine the examples. Checkpoints store them, and a resumed run
            compares them.
        allow_changed_data: whether a resumed run only reports changed `data_settings`. Otherwise, it refuses them.
        command_settings: further settings that a resumed run compares. Only `snugbert pretrain` passes them. It calls
            [`report`] itself, after its evaluation.
        teacher: a masked language model to distill, with the vocabulary of the model, see [`distill`]. It moves to the
            device of the model, and is neither trained nor saved.
        kwargs: as in `Trainer`, except `compute_metrics`, which is fixed.

    Attributes:
        phases: phases of the run.
        interrupted: SIGTERM or SIGINT if it ended the last call of `train`. Otherwise None.
    """

    kind = "pretraining"
    checks_output_dir = True
    args: PretrainingArguments
    # The metrics on the validation text, and the metrics of trivial predictions. None: the last evaluation in the log.
    _metrics: tuple[Mapping[str, float] | None, Mapping[str, float]]
    passes_to_repay_compiling = 0  # compiles the model in runs of any length

    def __init__(
        self,
        *,
        args: PretrainingArguments,
        train_dataset: Any = None,
        phases: Sequence[Phase] | None = None,
        data_settings: dict[str, Any] | None = None,
        allow_changed_data: bool = False,
        command_settings: dict[str, Any] | None = None,
        teacher: PreTrainedModel | None = None,
        **kwargs: Any,
    ):
        args = PretrainingArguments.copy_of(args)
        if phases is None:
            phases = [] if train_dataset is None else plan_phases([train_dataset], [1.0], args)
        self.phases = list(phases)
        # The teacher is not a submodule, so DDP, torch.compile, the optimizer and checkpoints ignore it.
        self.teacher = teacher
        args = as_one_epoch(args, self.phases)
        lacks_pairs = any(phase.objective == "mlm" for phase in self.phases)
        if lacks_pairs and isinstance(kwargs.get("model"), SnugBertForPreTraining):
            args.ddp_find_unused_parameters = True  # without pairs, the pooler and its head have no gradient
        train_dataset = self.phases[0].dataset if self.phases else None
        super().__init__(args=args, train_dataset=train_dataset, compute_metrics=compute_metrics, **kwargs)
        self.keep_column("mask_seed")
        self.keep_column("mlm_probability")
        if getattr(self.data_collator.collate, "masking", "tokens") != "tokens":
            self.keep_column("continues_word")  # stock collators cannot pad this column
        self.run_settings.data_settings = data_settings or {}
        self.run_settings.allows_changed_data = allow_changed_data
        self.run_settings.command_settings = command_settings or {}
        self.is_command = command_settings is not None
        if teacher is not None:
            prepare_teacher(teacher, self.model_config, self.args.device)
        self.base_model: str | None = None  # the model that the command started from
        for callback in (ClearOutputDir, DrawTraining):
            self.add_callback(callback)
        self._train_counts: np.ndarray | None = None
        self._wrote_log: bool | None = None  # whether this run has written `metrics.jsonl`. None: no run
        self._load_log(TrainerState())

    # --- start and end of a run ---------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Extends Trainer's method: also draws `training.png` and writes the model card."""
        try:
            output = super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            for phase in self.phases:
                if isinstance(phase.dataset, PretrainingDataset):
                    phase.dataset.end_download()
        if not (self.interrupted or self.is_command):
            self.report()
        return output

    def report(self, metrics: Mapping[str, float] | None = None, baselines: Mapping[str, float] | None = None) -> None:
        """Draws `training.png`, and writes the model card.

        Without `metrics` on the validation text, the card shows the last evaluation up to the step of the model.
        """
        self._metrics = metrics, baselines or {}
        if self.args.should_save:
            draw_log(self.state.log_history, Path(self.args.output_dir or "") / TRAINING_PLOT, baselines)
            try:
                self.write_card()
            except InputError:
                raise
            except Exception as error:  # for example, with another library's model. The run is complete
                logger.warning("the model card was not written (%s: %s)", type(error).__name__, error)

    def write_card(self) -> None:
        """Writes the model card into the output folder, with the metrics of [`report`]."""
        metrics, baselines = self._metrics
        if not self.phases:  # nothing was trained
            return
        if metrics is None:
            done = [line for line in self.state.log_history if line["step"] <= self.model_step]
            lines = [line for line in done if any(name.startswith("eval_") for name in line)]
            metrics = {name.removeprefix("eval_"): value for name, value in lines[-1].items()} if lines else {}
        write_run_card(self, metrics, baselines)

    def _begin(self, state: TrainerState) -> None:
        self._load_log(state)
        corpus = find_corpus(self.phases[0].dataset)
        # Text in an unknown language is prepared as English.
        if corpus is not None and corpus.language != DEFAULT and self.model_config is not None:
            store_language(corpus.language, self.model_config)
        if self.args.device.type == "cuda" and self.accelerator.mixed_precision in ("bf16", "fp16"):
            peak = find_peak_flops(torch.cuda.get_device_name(self.args.device))
            self.training_log.peak_flops = peak and self.args.world_size * peak
        check_processes(self.phases)
        self._train_counts = count_dataset(self.phases[0].dataset)
        if self._train_counts is not None:
            self.training_log.frequency_loss = frequency_loss(self._train_counts, self._train_counts)
        self._wrote_log = False

    def _load_log(self, state: TrainerState) -> None:
        """Sets the log to the `state` of a checkpoint, or of a new run."""
        self._metrics = None, {}
        self.training_log = TrainingLog(self.args.device, self.is_world_process_zero(), self.accelerator.reduce)
        self.training_log.has_teacher = self.teacher is not None
        callbacks: Any = state.stateful_callbacks or {}
        if record := callbacks.get(RECORD_NAME):
            self.training_log.load_state_dict(record)
        self._first_step = state.global_step

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Extends Trainer's method: saves the generator of an [`ElectraPair`] in a subfolder of the discriminator."""
        for part, model in self._list_models():
            folder = str(Path(output_dir or self.args.output_dir or "") / part)
            with self._as_model(model):
                super().save_model(folder, _internal_call or bool(part))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        # Loads each model that `save_model` writes.
        for part, each in self._list_models():
            with self._as_model(each):
                super()._load_from_checkpoint(str(Path(resume_from_checkpoint) / part))

    def _list_models(self) -> list[tuple[str, Any]]:
        """Returns the models that are saved separately, with their folders in the output folder."""
        if isinstance(self.model, ElectraPair):
            return [(GENERATOR_FOLDER, self.model.generator), ("", self.model.discriminator)]
        return [("", self.model)]

    @contextmanager
    def _as_model(self, model: Any) -> Iterator[None]:
        """Saves or loads `model` instead of the trainer's model."""
        own, self.model = self.model, model
        try:
            yield
        finally:
            self.model = own

    def store_in_state(self) -> None:
        """Extends the base class: also stores the state of the training log."""
        super().store_in_state()
        self.state.epoch = count_epochs(self.phases, self.state.global_step)
        self.state.num_input_tokens_seen = self.training_log.tokens_seen
        self.state.stateful_callbacks |= {RECORD_NAME: self.training_log.state_dict()}  # type: ignore[operator]

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Extends Trainer's method: adds LAMB and Muon."""
        if self.optimizer is None and self.args.optim in OPTIMIZERS:
            model = model or self.model
            self.optimizer = make_optimizer(self.args, model, self.get_decay_parameter_names(model))
        return super().create_optimizer(model)

    # --- a step -------------------------------------------------------------------------------------------------

    def _can_fill_rows(self) -> bool:
        # The generator has a random number for each labeled token. The losses of a teacher include all tokens.
        return not isinstance(self.model, ElectraPair) and self.teacher is None and super()._can_fill_rows()

    def _suggest_multiple(self, dataset: Any, batch_size: int) -> int:
        rows = [(float(batch_size), unwrap_subset(dataset))]
        if dataset is self.train_dataset:
            parts = self.args.world_size * self.args.gradient_accumulation_steps
            rows = [(phase.batch_size / parts, phase.dataset) for phase in self.phases]
        multiples = [
            choose_pretraining_multiple(size, examples)
            for size, examples in rows
            if hasattr(examples, "max_seq_length") and "input_ids" in examples[0]
        ]
        return max(multiples, default=0)

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Returns the batches of this process, from the first step of this call. accelerate must not split them."""
        sampler = BatchSampler(
            self.phases,
            self.args.gradient_accumulation_steps,
            self.args.world_size,
            self.args.process_index,
            self._first_step,
            self.args.dataloader_num_workers * (self.args.dataloader_prefetch_factor or PREFETCH_FACTOR),
        )
        batches = RunBatches(
            self.phases,
            self._get_collator_with_removed_columns(self._fill_rows(None, 0, is_training=True)),
            self.args.examples_seed,
            self.model_config,
            self.model.generator.config if isinstance(self.model, ElectraPair) else None,
            None if self.teacher is None else self.teacher.config,
            self._mask_rates,
        )
        return torch.utils.data.DataLoader(
            batches,
            sampler=sampler,
            batch_size=None,  # an item is a batch already
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=self.worker_init_fn,
            # The loader has its own generator, so that the additional loader of a resumed run does not change dropout.
            generator=torch.Generator().manual_seed(self.args.seed),
        )

    @property
    def _mask_rates(self) -> tuple[float, float] | None:
        """The first and the last share of tokens to mask. None: the share does not change."""
        first, last = getattr(self.data_collator.collate, "mask_rates", (0, 0))
        return None if first == last else (first, last)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], torch.Tensor | None]:
        """Returns the batches of a step, and its number of labeled tokens over all processes."""
        self.training_log.start_step()
        batches = list(islice(epoch_iterator, num_batches))
        if not all("labels" in batch for batch in batches):
            raise InputError("data_collator: its batches have no `labels`. Use a collator that masks tokens.")
        has_pairs = any("next_sentence_label" in batch for batch in batches)
        self.training_log.add_batches([batch[BATCH_COUNTS] for batch in batches], has_pairs)
        # The counts are part of the batch. The data loader pins its memory, so copying does not wait.
        batches = [send_to_device(batch, device, non_blocking=True) for batch in batches]
        # Integers, so that the sums are exact.
        in_step = torch.stack([batch.pop(BATCH_COUNTS) for batch in batches]).sum(0)
        if self.args.world_size > 1:
            in_step = self.accelerator.reduce(in_step)
        labeled, pairs, tokens = in_step[:3].unbind()
        for batch in batches:
            if "next_sentence_label" in batch:
                batch["num_sequences_in_batch"] = pairs
            if "replacement_keys" in batch or self.teacher is not None:
                batch["num_tokens_in_batch"] = tokens
        return batches, labeled

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ModelOutput]:
        """Returns the loss of the model, divided by the counts of the whole batch. Also updates the log."""
        inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        if self.teacher is None:
            # Only `return_outputs` needs logits. accelerate would copy them to float32: 574 MB at 256 x 128 tokens.
            counts = not return_outputs and type(self.model) in (SnugBertForPreTraining, SnugBertForMaskedLM)
            options = {"count_correct": True} if counts else {}
            outputs: Any = model(**inputs, **options)
        else:
            same_size = self.teacher.config.hidden_size == self.model_config.hidden_size
            with self.accelerator.autocast():  # for the teacher
                outputs = distill(model, self.teacher, inputs, same_size)
        self.training_log.add_outputs(outputs, inputs)
        loss = outputs["loss"] * self.args.world_size  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss

    def floating_point_ops(self, inputs: Batch) -> int:
        """Returns 0. Trainer's estimate omits attention and heads, so the log counts FLOPs itself."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Extends Trainer's method: adds the metrics of [`TrainingLog`], and writes every line to `metrics.jsonl`."""
        self.state.epoch = count_epochs(self.phases, self.state.global_step)
        if "loss" in logs:
            logs.update(self.training_log.next_line())
            if (rates := self._mask_rates) is not None:
                step, steps = self.state.global_step - 1, self.state.max_steps
                logs["mlm_probability"] = interpolate_rate(rates, step, steps)
        elif "train_loss" in logs:  # over the whole run. Trainer's value covers only the steps since resuming
            logs.update(self.training_log.summarize(self.state.global_step))
        if "loss" in logs or "train_loss" in logs:
            self.state.num_input_tokens_seen = self.training_log.tokens_seen
        super().log(logs, start_time)
        if self.is_world_process_zero() and self._wrote_log is not None:
            self._write_log()

    def _write_log(self) -> None:
        # The first line rewrites the file, so a run that fails early does not change it. A resumed run drops the lines
        # after its checkpoint.
        file = Path(self.args.output_dir or "") / "metrics.jsonl"
        lines = self.state.log_history[-1:] if self._wrote_log else self.state.log_history
        with explaining_failed_writes(file, RESUME), file.open("a" if self._wrote_log else "w") as stream:
            stream.writelines(f"{json.dumps(line)}\n" for line in lines)
        self._wrote_log = True

    # --- evaluation ---------------------------------------------------------------------------------------------

    def evaluation_loop(self, dataloader: torch.utils.data.DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Extends Trainer's method: adds `mlm_gain`. Every evaluation uses the same random masks.

        Evaluation does not change the random state of training, and its time does not count in tokens per second.
        """
        start = time.perf_counter()
        with seed_random_state(str(self.args.seed)):
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        metrics, counts = output.metrics or {}, count_dataset(dataloader.dataset)
        if self._train_counts is not None and counts is not None:
            baseline = frequency_loss(self._train_counts, counts)
            for name in [name for name in metrics if name.endswith("_mlm_loss")]:
                metrics[f"{name.removesuffix('loss')}gain"] = baseline - metrics[name]
        self.training_log.exclude_time(time.perf_counter() - start)
        return output

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Returns sums per sequence instead of logits, and labeled tokens per sequence.

        *Shape:* None, (N, K), (N,). K is 3, 6 or 10, see [`sum_per_sequence`].
        """
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = self.graphs.for_evaluation(model)(**inputs, sparse_prediction=True)
        sums = sum_per_sequence(outputs, inputs)[: inputs.get("num_sequences")]
        return None, sums, sums[:, 2]
