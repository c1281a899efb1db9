"""`snugbert pretrain`: masked tokens and next sentences, from documents to a checkpoint.

Order, pairs and masks are functions of the seed and the example's number, so a resumed run sees what the straight one
would have seen.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from transformers import (
    AutoModelForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.trainers.command_line import (
    InputError,
    claim_output_dir,
    clear_output_dir,
    parse_arguments,
    set_up,
)
from snugbert.trainers.models import ModelArguments, load_config, load_model, load_tokenizer
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPreTraining
from snugbert.trainers.pretraining.documents import (
    Corpus,
    find_files,
    read_dataset_documents,
    read_documents,
    tokenize_corpus,
)
from snugbert.trainers.pretraining.sentence_pairs import SentencePairDataset
from snugbert.trainers.pretraining.trainer import PretrainingArguments, PretrainingTrainer

logger = logging.getLogger(__name__)


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
    dataset_split: str = field(default="train", metadata={"help": "Split of the dataset."})
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

    def __post_init__(self):
        if self.train_file and self.dataset_name is not None:
            raise InputError("give the text either with --train_file or with --dataset_name.")
        for name, least, most in (
            ("validation_split_percentage", 1, 99),
            ("short_seq_prob", 0, 1),
            ("mlm_probability", 0, 1),
        ):
            if not least <= getattr(self, name) <= most:
                raise InputError(f"--{name} {getattr(self, name)} must be between {least} and {most}.")
        if self.max_eval_samples is not None and self.max_eval_samples < 1:
            raise InputError(f"--max_eval_samples {self.max_eval_samples} must be at least 1.")


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
    set_up(training_args)
    do_train = training_args.do_train
    checkpoint = claim_output_dir(training_args, data_args.overwrite_output_dir) if do_train else None
    set_seed(training_args.seed)

    tokenizer = load_tokenizer(model_args)
    model = _load_model(model_args, tokenizer, data_args.max_seq_length)
    logger.info("model: %s parameters", f"{model.num_parameters():,}")
    train_corpus, validation_corpus = _load_corpora(data_args, training_args, tokenizer)

    train_dataset = eval_dataset = None
    if do_train and train_corpus is not None:
        train_dataset = _pairs_of(train_corpus, "training text", tokenizer, data_args, training_args.seed)
        _fix_number_of_steps(training_args, train_dataset)
    if validation_corpus is not None:
        # Seed 0 whatever the run's, so that runs compare.
        eval_dataset = _pairs_of(validation_corpus, "validation text", tokenizer, data_args, seed=0)
        eval_dataset.num_examples = min(len(eval_dataset), data_args.max_eval_samples or len(eval_dataset))
    try:
        trainer = PretrainingTrainer(
            model=model,
            args=training_args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            data_collator=SnugBertDataCollatorForPreTraining(tokenizer, data_args.mlm_probability),
            processing_class=tokenizer,
            epoch_length=None if train_dataset is None else train_dataset.epoch_length,
        )
    except (ValueError, RuntimeError) as error:  # arguments that Trainer refuses, such as a reporter not installed
        raise InputError(str(error)) from error
    if do_train:
        if checkpoint is None:
            clear_output_dir(training_args)
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if validation_corpus is not None and eval_dataset is not None:
        _evaluate(trainer, eval_dataset, train_corpus, validation_corpus, len(tokenizer))
    if do_train and training_args.should_save:
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
    if not 5 <= max_seq_length <= config.max_position_embeddings:
        raise InputError(
            f"--max_seq_length {max_seq_length} must be at least 5 and at most the model's "
            f"max_position_embeddings {config.max_position_embeddings}."
        )
    return model


def _load_corpora(
    data_args: DataArguments, training_args: TrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[Corpus | None, Corpus | None]:
    """The corpora that are wanted, tokenized; evaluation alone can do without training text."""
    has_text = bool(data_args.train_file) or data_args.dataset_name is not None
    if not has_text and (training_args.do_train or not data_args.validation_file):
        raise InputError("there is no text; name it with --train_file or --dataset_name.")
    files = find_files(data_args.train_file)
    validation_files = find_files(data_args.validation_file)
    hold_out = training_args.do_eval and not validation_files

    def documents() -> Iterator[list[str]]:
        if data_args.dataset_name is None:
            return read_documents(files, data_args.text_column_name)
        return read_dataset_documents(
            data_args.dataset_name,
            data_args.dataset_config_name,
            data_args.dataset_split,
            data_args.text_column_name,
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
            tokenize(
                (text for n, text in enumerate(documents()) if held_out(n)),
                f"held-out text ({data_args.validation_split_percentage} % of the documents, "
                "--validation_split_percentage)",
            ),
        )
    train = tokenize(documents(), "training text") if has_text else None
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


def _pairs_of(
    corpus: Corpus, name: str, tokenizer: PreTrainedTokenizerBase, data_args: DataArguments, seed: int
) -> SentencePairDataset:
    dataset = SentencePairDataset(
        corpus,
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        data_args.max_seq_length,
        data_args.short_seq_prob,
        seed,
    )
    logger.info("%s: %s pairs, %.1f %% of them next sentences", name, f"{len(dataset):,}", 100 * dataset.share_next)
    if dataset.share_next in (0, 1):
        raise InputError(
            f"the {name} gives no pair of {'random' if dataset.share_next else 'next'} sentences; with sentences of "
            f"{data_args.max_seq_length} tokens (--max_seq_length) and more there is nothing to predict."
        )
    return dataset


def _fix_number_of_steps(training_args: TrainingArguments, dataset: SentencePairDataset) -> None:
    """Turns epochs into steps, and lets the dataset hold exactly the examples of all steps, epoch after epoch."""
    batch = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    steps_of_epoch = max(1, round(dataset.epoch_length / batch))
    if training_args.max_steps <= 0:
        training_args.max_steps = max(1, round(training_args.num_train_epochs * dataset.epoch_length / batch))
    dataset.num_examples = training_args.max_steps * batch
    # To Trainer all of it is one epoch.
    for what in ("logging", "eval", "save"):
        if getattr(training_args, f"{what}_strategy") == "epoch":
            strategy = SaveStrategy.STEPS if what == "save" else IntervalStrategy.STEPS
            setattr(training_args, f"{what}_strategy", strategy)
            setattr(training_args, f"{what}_steps", steps_of_epoch)
    logger.info(
        "training: %s steps of %s pairs, %.2f epochs",
        f"{training_args.max_steps:,}",
        f"{batch:,}",
        dataset.num_examples / dataset.epoch_length,
    )


def _evaluate(
    trainer: PretrainingTrainer,
    dataset: SentencePairDataset,
    train_corpus: Corpus | None,
    validation_corpus: Corpus,
    vocab_size: int,
) -> None:
    """Saves and prints the figures, beside those of a model that knows frequencies alone."""
    metrics = trainer.evaluate()
    baseline = {"nsp_accuracy": max(dataset.share_next, 1 - dataset.share_next)}
    if train_corpus is not None:
        baseline |= unigram_baseline(train_corpus, validation_corpus, vocab_size)
    metrics |= {f"eval_unigram_{name}": value for name, value in baseline.items()}
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    if trainer.is_world_process_zero():
        lines = [f"{'on the validation text':<26}{'this model':>12}{'without context':>18}"]
        for name, text, form in (
            ("mlm_loss", "masked token loss", ".3f"),
            ("mlm_accuracy", "masked token accuracy", ".1%"),
            ("nsp_accuracy", "next sentence accuracy", ".1%"),
        ):
            without = format(baseline[name], form) if name in baseline else ""
            lines.append(f"{text:<26}{format(metrics[f'eval_{name}'], form):>12}{without:>18}")
        print("\n" + "\n".join(lines))


def unigram_baseline(train: Corpus, validation: Corpus, vocab_size: int) -> dict[str, float]:
    """What a model scores that knows the frequency of word pieces and nothing else.

    Args:
        train: its word pieces are counted, each once more than it occurs (Laplace smoothing).
        validation: its word pieces are predicted.
        vocab_size: number of word pieces.

    Returns:
        `mlm_loss` in nats and `mlm_accuracy`, that of always saying the most frequent word piece.
    """
    train_counts, counts = _counts(train.tokens, vocab_size), _counts(validation.tokens, vocab_size)
    logarithms = np.log(train_counts + 1) - math.log(len(train.tokens) + vocab_size)
    return {
        "mlm_loss": float(-(counts * logarithms).sum() / counts.sum()),
        "mlm_accuracy": float(counts[train_counts.argmax()] / counts.sum()),
    }


def _counts(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    # By the million: bincount takes 8 bytes for each number it is given.
    chunks = np.array_split(tokens, len(tokens) // 10**6 + 1)
    return np.sum([np.bincount(chunk, minlength=vocab_size) for chunk in chunks], axis=0)
