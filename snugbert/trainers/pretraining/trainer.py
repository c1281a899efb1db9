"""`snugbert pretrain`: masked tokens and next sentences, from documents to a checkpoint.

Order, pairs and masks are functions of the seed and the example's number, so a resumed run sees what the straight one
would have seen. The loss has two exact denominators: labelled tokens and sentence pairs of the whole batch, over
gradient accumulation and processes.
"""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForPreTraining,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.trainers.command_line import InputError, claim_output_dir, parse_arguments, set_up
from snugbert.trainers.models import ModelArguments, load_config, load_model, load_tokenizer
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPreTraining
from snugbert.trainers.pretraining.documents import (
    Corpus,
    find_files,
    read_dataset_documents,
    read_documents,
    tokenize_corpus,
)
from snugbert.trainers.pretraining.masking import IGNORE_INDEX
from snugbert.trainers.pretraining.sentence_pairs import SentencePairDataset

logger = logging.getLogger(__name__)


# --- arguments --------------------------------------------------------------------------------------------------


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
    logging_steps: float = field(default=100, metadata={"help": "Steps between two lines of the log."})
    # Trainer would drop what the collator needs and the model does not.
    remove_unused_columns: bool = field(default=False, metadata={"help": "Leave as it is."})
    # The dataset is shuffled already; a sampler's own state could not be resumed exactly.
    train_sampling_strategy: str = field(default="sequential", metadata={"help": "Leave as it is."})


@dataclass
class DataArguments:
    """Which text the model is pretrained on, and how it is cut."""

    train_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Text: .txt, .jsonl (also .gz), .parquet; several files or glob patterns."},
    )
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "Text to evaluate on, as --train_file."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "A dataset, instead of files; a row a document."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the dataset."})
    text_column_name: str = field(
        default="text", metadata={"help": "Column of .jsonl, .parquet and datasets that holds the text."}
    )
    validation_split_percentage: int = field(
        default=5, metadata={"help": "With --do_eval and no --validation_file: share of documents held out."}
    )
    lines_are_sentences: bool = field(
        default=False, metadata={"help": "Each line is one sentence; otherwise lines are split into sentences."}
    )
    language: str = field(default="en", metadata={"help": "Language code, for splitting into sentences."})
    max_seq_length: int = field(default=128, metadata={"help": "Longest pair, in tokens."})
    short_seq_prob: float = field(default=0.1, metadata={"help": "Share of pairs that aim at a shorter length."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens to predict."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many pairs at most."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace the run that --output_dir holds already."}
    )


# --- the trainer ------------------------------------------------------------------------------------------------


class PretrainingTrainer(Trainer):
    """Trainer for [`SnugBertForPreTraining`] on examples of [`SentencePairDataset`].

    It normalizes the next-sentence loss as exactly as Trainer does the masked token loss, logs both losses, both
    accuracies and tokens per second, and evaluates without keeping logits.

    Args:
        epoch_length: examples of an epoch, so that the logged `epoch` counts passes over the corpus, not over a
            dataset that holds them all; None: the length of `train_dataset`.
        kwargs: as in `Trainer`.
    """

    def __init__(self, *, epoch_length: int | None = None, **kwargs: Any):
        super().__init__(**kwargs, compute_metrics=_metrics_of_evaluation)
        self.epoch_length = epoch_length
        # What the next line of the log is about: sums (see `_training_sums`), number of steps and start of the first.
        self._sums = torch.zeros(7, dtype=torch.float64)
        self._steps = 0
        self._window_start = 0.0

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The batches of a step, as in Trainer; counts their sentence pairs over all processes."""
        if self._steps == 0:
            self._window_start = time.perf_counter()
        self._steps += 1
        samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        pairs = torch.tensor(sum(len(sample["next_sentence_label"]) for sample in samples), device=device)
        # Without this Trainer's own count is this process's too.
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            pairs = self.accelerator.gather(pairs).sum()
        self._num_sequences_in_batch = pairs
        return samples, num_items

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """As in Trainer, with the count of sentence pairs; adds to the figures of the next log line."""
        inputs = {**inputs, "num_sequences_in_batch": self._num_sequences_in_batch}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self._sums += _training_sums(outputs, inputs).cpu()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in Trainer; a line of training gains the losses, accuracies and tokens per second since the last."""
        if "loss" in logs:
            sums = self.accelerator.reduce(self._sums.to(self.args.device, torch.float32)).tolist()
            mlm_loss, mlm_correct, mlm_tokens, nsp_loss, nsp_correct, pairs, tokens = sums
            logs["mlm_loss"] = mlm_loss / self._steps
            logs["mlm_accuracy"] = mlm_correct / mlm_tokens
            logs["nsp_loss"] = nsp_loss / self._steps
            logs["nsp_accuracy"] = nsp_correct / pairs
            logs["tokens_per_second"] = round(tokens / (time.perf_counter() - self._window_start))
            self._sums.zero_()
            self._steps = 0
        trainer_epoch = self.state.epoch
        if self.epoch_length is not None and trainer_epoch is not None:
            batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            self.state.epoch = self.state.global_step * batch / self.epoch_length
        super().log(logs, start_time)
        self.state.epoch = trainer_epoch

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in Trainer; the time it takes does not count in tokens per second."""
        start = time.perf_counter()
        metrics = super().evaluate(*args, **kwargs)
        self._window_start += time.perf_counter() - start
        return metrics

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, torch.Tensor, torch.Tensor]:
        """Five sums for each pair instead of its logits: (None, (B, 5), next-sentence labels (B,))."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs, sparse_prediction=True)
        return None, _sums_of_pairs(outputs, inputs), inputs["next_sentence_label"]


def _training_sums(outputs: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Masked token loss, correct, number; next-sentence loss, correct, number; word pieces. *Shape:* (7,).

    The losses are this micro-batch's share of its step's.
    """
    with torch.no_grad():
        targets = inputs["labels"][inputs["labels"] != IGNORE_INDEX]
        nsp_labels = inputs["next_sentence_label"]
        sums = [
            outputs["mlm_loss"],
            (outputs["prediction_logits"].argmax(-1) == targets).sum(),
            torch.tensor(len(targets), device=targets.device),
            outputs["nsp_loss"],
            (outputs["seq_relationship_logits"].argmax(-1) == nsp_labels).sum(),
            torch.tensor(len(nsp_labels), device=targets.device),
            inputs["attention_mask"].sum(),
        ]
        return torch.stack([term.double() for term in sums])


def _sums_of_pairs(outputs: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """For each pair: masked token loss, correct and number, next-sentence loss and correct. *Shape:* (B, 5)."""
    rows, columns = (inputs["labels"] != IGNORE_INDEX).nonzero(as_tuple=True)
    targets = inputs["labels"][rows, columns]
    logits, nsp_logits = outputs["prediction_logits"].float(), outputs["seq_relationship_logits"].float()
    nsp_labels = inputs["next_sentence_label"]
    of_tokens = torch.stack(
        [
            F.cross_entropy(logits, targets, reduction="none"),
            (logits.argmax(-1) == targets).float(),
            torch.ones_like(targets, dtype=torch.float32),
        ],
        dim=-1,
    )
    of_pairs = torch.stack(
        [F.cross_entropy(nsp_logits, nsp_labels, reduction="none"), (nsp_logits.argmax(-1) == nsp_labels).float()],
        dim=-1,
    )
    sums = torch.zeros(len(nsp_labels), of_tokens.shape[1], device=logits.device).index_add_(0, rows, of_tokens)
    return torch.cat([sums, of_pairs], dim=-1)


def _metrics_of_evaluation(prediction: EvalPrediction) -> dict[str, float]:
    sums_of_pairs = np.asarray(prediction.predictions)
    mlm_loss, mlm_correct, mlm_tokens, nsp_loss, nsp_correct = sums_of_pairs.sum(axis=0, dtype=np.float64)
    pairs = len(sums_of_pairs)
    metrics = {
        "mlm_loss": mlm_loss / mlm_tokens,
        "mlm_accuracy": mlm_correct / mlm_tokens,
        "nsp_loss": nsp_loss / pairs,
        "nsp_accuracy": nsp_correct / pairs,
    }
    return {"loss": metrics["mlm_loss"] + metrics["nsp_loss"], **{name: float(x) for name, x in metrics.items()}}


def unigram_baseline(train: Corpus, validation: Corpus, vocab_size: int) -> dict[str, float]:
    """What a model scores that knows the frequency of word pieces and nothing else.

    Args:
        train: its word pieces are counted, each once more than it occurs (Laplace smoothing).
        validation: its word pieces are predicted.
        vocab_size: number of word pieces.

    Returns:
        `mlm_loss` in nats and `mlm_accuracy`, that of always saying the most frequent word piece.
    """
    train_counts = np.bincount(train.tokens, minlength=vocab_size)
    counts = np.bincount(validation.tokens, minlength=vocab_size)
    logarithms = np.log(train_counts + 1) - math.log(len(train.tokens) + vocab_size)
    return {
        "mlm_loss": float(-(counts * logarithms).sum() / counts.sum()),
        "mlm_accuracy": float(counts[train_counts.argmax()] / counts.sum()),
    }


# --- the command ------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    """Runs `snugbert pretrain` with the arguments `argv`.

    Raises:
        InputError: what the user gave cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, PretrainingArguments),
        argv,
        prog="snugbert pretrain",
        description="Pretrains on documents with masked tokens and next sentences.",
    )
    # --do_eval alone evaluates alone. With --eval_strategy it means during training; TrainingArguments sets it then.
    training_args.do_train |= not training_args.do_eval or training_args.eval_strategy != "no"
    training_args.do_eval |= bool(data_args.validation_file)
    if training_args.label_smoothing_factor:
        raise InputError("--label_smoothing_factor is not for pretraining, which has two losses.")
    set_up(training_args)
    checkpoint = claim_output_dir(training_args, data_args.overwrite_output_dir)
    set_seed(training_args.seed)

    tokenizer = load_tokenizer(model_args)
    model = _load_model(model_args, tokenizer, data_args.max_seq_length)
    logger.info("model: %s parameters", f"{model.num_parameters():,}")
    train_corpus, validation_corpus = _load_corpora(data_args, training_args, tokenizer)

    def pairs(corpus: Corpus, seed: int) -> SentencePairDataset:
        return SentencePairDataset(
            corpus,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            data_args.max_seq_length,
            data_args.short_seq_prob,
            seed,
        )

    train_dataset = pairs(train_corpus, training_args.seed)
    _fix_number_of_steps(training_args, train_dataset)
    eval_dataset = None
    if validation_corpus is not None:
        eval_dataset = pairs(validation_corpus, seed=0)  # the same for every run, so that runs compare
        eval_dataset.num_examples = min(eval_dataset.epoch_length, data_args.max_eval_samples or len(eval_dataset))

    trainer = PretrainingTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        data_collator=SnugBertDataCollatorForPreTraining(tokenizer, data_args.mlm_probability),
        processing_class=tokenizer,
        epoch_length=train_dataset.epoch_length,
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if validation_corpus is not None:
        metrics = trainer.evaluate()
        baseline = unigram_baseline(train_corpus, validation_corpus, len(tokenizer))
        metrics |= {f"eval_unigram_{name}": value for name, value in baseline.items()}
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        if training_args.should_save:
            print(_summary(metrics, baseline))
    if training_args.do_train and training_args.should_save:
        print(
            f"\nThe model is in {training_args.output_dir}. Next, fine-tune it:\n"
            f"  snugbert glue --model_name_or_path {training_args.output_dir} --task_name sst2 ..."
        )


def _load_model(
    model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> PreTrainedModel:
    config = load_config(model_args, tokenizer)
    if not isinstance(config, SnugBertConfig):
        raise InputError(f"the model is of type {config.model_type}; only snugbert and bert can be pretrained.")
    model = load_model(AutoModelForPreTraining, model_args, config)
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} word pieces, the model only {config.vocab_size}; "
            "they do not belong together."
        )
    if not 5 <= max_seq_length <= config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {max_seq_length} must be at least 5 and at most the model's "
            f"max_position_embeddings {config.max_position_embeddings}."
        )
    return model


def _load_corpora(
    data_args: DataArguments, training_args: TrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[Corpus, Corpus | None]:
    """The training corpus and, where it is wanted, the validation corpus, tokenized."""
    if bool(data_args.train_file) == (data_args.dataset_name is not None):
        raise InputError("exactly one of --train_file and --dataset_name is needed.")
    if not 0 < data_args.validation_split_percentage < 100:
        raise InputError(
            f"--validation_split_percentage {data_args.validation_split_percentage} must be between 1 and 99."
        )
    files = find_files(data_args.train_file)
    validation_files = find_files(data_args.validation_file)
    hold_out = training_args.do_eval and not validation_files

    def documents() -> Iterator[list[str]]:
        if data_args.dataset_name is None:
            return read_documents(files, data_args.text_column_name)
        return read_dataset_documents(
            data_args.dataset_name, data_args.dataset_config_name, text_column=data_args.text_column_name
        )

    def tokenize(documents: Iterator[list[str]], name: str) -> Corpus:
        language = None if data_args.lines_are_sentences else data_args.language
        corpus = tokenize_corpus(documents, tokenizer, language, show_progress=training_args.should_log)
        logger.info("%s: %s", name, corpus)
        _check_corpus(corpus, name)
        return corpus

    def held_out(number: int) -> bool:
        # Evenly spread over the corpus, and the same documents in every run.
        share = data_args.validation_split_percentage
        return number * share // 100 != (number + 1) * share // 100

    if hold_out:
        return (
            tokenize((text for n, text in enumerate(documents()) if not held_out(n)), "training text"),
            tokenize((text for n, text in enumerate(documents()) if held_out(n)), "held-out text"),
        )
    train = tokenize(documents(), "training text")
    if not validation_files:
        return train, None
    return train, tokenize(read_documents(validation_files, data_args.text_column_name), "validation text")


def _check_corpus(corpus: Corpus, name: str) -> None:
    documents = len(corpus.documents) - 1
    if documents == 0:
        raise InputError(f"the {name} is empty.")
    if documents == 1:
        raise InputError(
            f"the {name} is a single document of {len(corpus.sentences) - 1:,} sentences, but a random next sentence "
            "comes from another document; separate documents by blank lines."
        )
    if len(corpus.sentences) - 1 == documents:
        raise InputError(
            f"every document of the {name} is a single sentence, so none has a next sentence; put the sentences of a "
            "document on adjacent lines, with a blank line between documents."
        )


def _fix_number_of_steps(training_args: TrainingArguments, dataset: SentencePairDataset) -> None:
    """Turns epochs into steps, and lets the dataset hold exactly the examples of all steps, epoch after epoch."""
    batch = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    if training_args.max_steps <= 0:
        training_args.max_steps = max(1, round(training_args.num_train_epochs * dataset.epoch_length / batch))
    dataset.num_examples = training_args.max_steps * batch
    logger.info(
        "training: %s steps of %s pairs, %.2f epochs of %s pairs",
        f"{training_args.max_steps:,}",
        f"{batch:,}",
        dataset.num_examples / dataset.epoch_length,
        f"{dataset.epoch_length:,}",
    )


def _summary(metrics: dict[str, float], baseline: dict[str, float]) -> str:
    return "\n".join(
        [
            "",
            f"{'on the validation text':<26}{'this model':>12}{'without context':>18}",
            f"{'masked token loss':<26}{metrics['eval_mlm_loss']:>12.3f}{baseline['mlm_loss']:>18.3f}",
            f"{'masked token accuracy':<26}{metrics['eval_mlm_accuracy']:>12.1%}{baseline['mlm_accuracy']:>18.1%}",
            f"{'next sentence accuracy':<26}{metrics['eval_nsp_accuracy']:>12.1%}{0.5:>18.1%}",
        ]
    )
