"""`snugbert pretrain`: masked tokens and next sentences, from documents to a checkpoint.

Order, pairs and masks are functions of the seed and the example's number, so a resumed run sees what the straight one
would have seen.
"""

import logging
import math
import os
import shutil
import tempfile
import textwrap
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from snugbert.card_snugbert import find_base_model
from snugbert.command_line import parse_arguments
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.models import ModelArguments, load_config, load_model, load_tokenizer
from snugbert.trainers.output_folder import check_output_dir, clear_output_dir
from snugbert.trainers.pretraining.batches import Phase, parse_phases, plan_phases
from snugbert.trainers.pretraining.cache import prepare_in_cache
from snugbert.trainers.pretraining.card import write_pretraining_card
from snugbert.trainers.pretraining.collator import LEGEND, SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpus import Corpus, open_corpus
from snugbert.trainers.pretraining.examples import RECIPE_VERSION, SHORTEST_EXAMPLE, Objective, PretrainingDataset
from snugbert.trainers.pretraining.plot import PICTURE, draw_training
from snugbert.trainers.pretraining.preparation_arguments import PreparationArguments
from snugbert.trainers.pretraining.trainer import (
    METRICS_NAME,
    PretrainingArguments,
    PretrainingTrainer,
    check_data_settings,
)
from snugbert.trainers.run_setup import set_up
from snugbert.trainers.splits import describe_dataset, hub_id
from snugbert.trainers.text_arguments import TextArguments

logger = logging.getLogger(__name__)

# What the label of a pair tells, in the words of the report.
SECOND_TASK = {"nsp": "next sentence", "sop": "sentence order"}


@dataclass(kw_only=True)
class PretrainingDataArguments(PreparationArguments):
    """Which text the model is pretrained on, how it is cut into examples, and how these are masked."""

    corpus: str | None = field(
        default=None, metadata={"help": "A folder that `snugbert prepare` made, instead of text."}
    )
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "Text to evaluate on, as --train_file."}
    )
    validation_split_percentage: int = field(
        default=5, metadata={"help": "With --do_eval and no --validation_file: share of documents held out."}
    )
    max_seq_length: int = field(
        default=128, metadata={"help": "Longest example, in tokens; with --phases, of the validation text."}
    )
    phases: str | None = field(
        default=None,
        metadata={"help": "Lengths and shares of the steps, such as 128:90%%,512:10%%; a batch keeps its tokens."},
    )
    short_seq_prob: float = field(default=0.1, metadata={"help": "Share of pairs that aim at a shorter length."})
    no_nsp: bool = field(
        default=False, metadata={"help": "Full sentences instead of pairs, masked tokens alone (RoBERTa)."}
    )
    sentence_order: bool = field(
        default=False, metadata={"help": "Tell the order of two segments instead of next from random (ALBERT)."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens to predict."})
    mask_replace_prob: float = field(default=0.8, metadata={"help": "Share of these that is shown as [MASK]."})
    random_replace_prob: float = field(default=0.1, metadata={"help": "Share of these shown as a random word piece."})
    whole_word_mask: bool = field(default=False, metadata={"help": "Predict all pieces of a word, or none."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many examples at most."})
    show: int = field(default=0, metadata={"help": "Print so many examples with their masks, and stop."})
    allow_changed_data: bool = field(
        default=False, metadata={"help": "Resume although text or settings changed that decide what a step sees."}
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace the run that --output_dir holds already."}
    )

    def __post_init__(self):
        super().__post_init__()
        if self.corpus is not None and (self.train_file or self.dataset_name is not None):
            raise InputError("give either a prepared corpus (--corpus) or text, not both.")
        if self.no_nsp and self.sentence_order:
            raise InputError("--no_nsp and --sentence_order exclude each other.")
        for name, least, most in (
            ("validation_split_percentage", 1, 99),
            ("short_seq_prob", 0, 1),
        ):
            if not least <= getattr(self, name) <= most:
                raise InputError(f"--{name} {getattr(self, name)} must be between {least} and {most}.")
        for name, least in (("max_eval_samples", 1), ("show", 0)):
            if (getattr(self, name) or least) < least:
                raise InputError(f"--{name} {getattr(self, name)} must be at least {least}.")
        # Length and share of the steps, for each phase.
        self.lengths_and_shares = parse_phases(self.phases or f"{self.max_seq_length}:100%")

    @property
    def objective(self) -> Objective:
        """What is learned beside, or without, masked tokens; see [`PretrainingDataset`]."""
        return "mlm" if self.no_nsp else "sop" if self.sentence_order else "nsp"

    @property
    def sentence_language(self) -> str | None:
        """The language whose sentences are to be found; None if the lines are sentences."""
        return None if self.lines_are_sentences else self.language


def main(argv: list[str]) -> None:
    """Runs `snugbert pretrain` with the arguments `argv`.

    Raises:
        InputError: what the user gave cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, PretrainingDataArguments, PretrainingArguments),
        argv,
        prog="snugbert pretrain",
        description="Pretrains on documents with masked tokens and next sentences.",
    )
    # --do_eval alone evaluates alone. With --eval_strategy it means during training; TrainingArguments sets it then.
    training_args.do_train |= not training_args.do_eval or training_args.eval_strategy != "no"
    training_args.do_eval |= bool(data_args.validation_file)
    set_up(training_args)
    do_train = training_args.do_train
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    _check_lengths(data_args, config)
    collator = SnugBertDataCollatorForPretraining(
        tokenizer,
        data_args.mlm_probability,
        data_args.mask_replace_prob,
        data_args.random_replace_prob,
        data_args.whole_word_mask,
    )
    if data_args.show:
        _show(data_args, training_args, model_args.cache_dir, tokenizer, collator)
        return

    checkpoint = check_output_dir(training_args, data_args.overwrite_output_dir) if do_train else None
    set_seed(training_args.seed)
    auto_class = AutoModelForMaskedLM if data_args.no_nsp else AutoModelForPreTraining
    model = load_model(auto_class, model_args, config)
    logger.info("model: %s parameters", f"{model.num_parameters():,}")
    train_corpus, validation_corpus = _load_corpora(data_args, training_args, model_args.cache_dir, tokenizer)

    epochs_dir = Path(training_args.output_dir or "") / "epochs"
    phases: list[Phase] = []
    eval_dataset = None
    data_settings: dict[str, Any] = {}
    if do_train and train_corpus is not None:
        phases = _plan(train_corpus, data_args, training_args, tokenizer, epochs_dir)
        data_settings = _data_settings(train_corpus, phases, data_args, training_args)
        if checkpoint is not None and not data_args.allow_changed_data:
            check_data_settings(checkpoint, data_settings)
    if validation_corpus is not None:
        # Seed 0 whatever the run's, so that runs compare.
        length = data_args.max_seq_length
        eval_dataset = _dataset(validation_corpus, "validation text", length, data_args, tokenizer, epochs_dir, seed=0)
        eval_dataset.num_examples = min(len(eval_dataset), data_args.max_eval_samples or len(eval_dataset))
    try:
        trainer = PretrainingTrainer(
            model=model,
            args=training_args,
            phases=phases,
            eval_dataset=eval_dataset,
            data_collator=collator,
            processing_class=tokenizer,
            data_settings=data_settings,
        )
    except (ValueError, RuntimeError) as error:  # arguments that Trainer refuses, such as a reporter not installed
        raise InputError(str(error)) from error
    write_card = partial(_write_card, trainer, model_args, data_args, train_corpus, validation_corpus)
    if do_train:
        trainer.write_card = lambda: write_card(trainer.last_figures(), {})
        if checkpoint is None:
            trainer.add_callback(ClearOutputDir())
        result = trainer.train(resume_from_checkpoint=checkpoint)
        if trainer.interrupted:
            return
        trainer.save_model(_internal_call=True)  # otherwise it would be pushed before there is a card
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    figures: dict[str, float] = {}
    baselines: dict[str, float] = {}
    if validation_corpus is not None and eval_dataset is not None:
        baselines = _baselines(eval_dataset, train_corpus, validation_corpus, len(tokenizer))
        figures = _evaluate(trainer, data_args.objective, baselines)
    if training_args.local_process_index == 0:
        shutil.rmtree(epochs_dir, ignore_errors=True)
    if do_train and train_corpus is not None and training_args.should_save:
        output_dir = Path(training_args.output_dir or "")
        draw_training(output_dir / METRICS_NAME, output_dir / PICTURE, baselines)
        write_card(figures, baselines)
        print(
            f"\nThe model is in {output_dir}, with its curves ({PICTURE}) and a model card (README.md).\n"
            f"Next, fine-tune it:\n  snugbert glue --model_name_or_path {output_dir} --task_name sst2 ..."
        )
    if do_train and training_args.push_to_hub:
        trainer.push_to_hub()


class ClearOutputDir(TrainerCallback):
    """Removes the run that is replaced as late as can be: optimizer and schedule have been made, too."""

    def on_train_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step."""
        clear_output_dir(args)


def _data_seed(training_args: TrainingArguments) -> int:
    return training_args.seed if training_args.data_seed is None else training_args.data_seed


def _check_lengths(data_args: PretrainingDataArguments, config: PreTrainedConfig) -> None:
    if not isinstance(config, SnugBertConfig):
        raise InputError(f"the model is of type {config.model_type}; only snugbert and bert can be pretrained.")
    for length in (data_args.max_seq_length, *(length for length, _ in data_args.lengths_and_shares)):
        if not SHORTEST_EXAMPLE <= length <= config.max_position_embeddings:
            flag = "--max_seq_length" if length == data_args.max_seq_length else "--phases: length"
            raise InputError(
                f"{flag} {length} must be at least {SHORTEST_EXAMPLE} and at most the model's max_position_embeddings "
                f"{config.max_position_embeddings}."
            )


# --- text -------------------------------------------------------------------------------------------------------


def _load_corpora(
    data_args: PretrainingDataArguments,
    training_args: TrainingArguments,
    cache_dir: str | None,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Corpus | None, Corpus | None]:
    """The corpora that are wanted, prepared; evaluation alone can do without training text."""
    has_text = bool(data_args.train_file) or data_args.dataset_name is not None
    if not has_text and data_args.corpus is None and (training_args.do_train or not data_args.validation_file):
        raise InputError("there is no text; name it with --train_file, --dataset_name or --corpus.")
    share = data_args.validation_split_percentage
    hold_out = training_args.do_eval and not data_args.validation_file
    if hold_out and data_args.corpus is not None:
        raise InputError("nothing can be held out of a prepared corpus; name text to evaluate on (--validation_file).")

    def held_out(number: int) -> bool:
        # Evenly spread over the corpus, and the same documents in every run.
        return number * share // 100 != (number + 1) * share // 100

    def prepare(text: TextArguments, name: str, **documents: Any) -> Corpus:
        folder, corpus = prepare_in_cache(
            text,
            tokenizer,
            data_args.sentence_language,
            cache_dir,
            data_args.preprocessing_num_workers,
            show_progress=training_args.should_log,
            **documents,
        )
        logger.info("%s: %s (%s)", name, corpus, folder)
        _check_corpus(corpus, name, data_args.objective)
        return corpus

    train = validation = None
    if data_args.corpus is not None:
        train = open_corpus(Path(data_args.corpus), tokenizer)
        logger.info("training text: %s", train)
        _check_corpus(train, "training text", data_args.objective)
    elif hold_out:
        train = prepare(
            data_args, "training text", documents=f"all but {share} %", keeps=lambda number: not held_out(number)
        )
        name = f"held-out text ({share} % of the documents, --validation_split_percentage)"
        validation = prepare(data_args, name, documents=f"{share} %", keeps=held_out)
    elif has_text:
        train = prepare(data_args, "training text")
    if data_args.validation_file:
        text = TextArguments(train_file=data_args.validation_file, text_column_name=data_args.text_column_name)
        validation = prepare(text, "validation text")
    return train, validation


def _check_corpus(corpus: Corpus, name: str, objective: Objective) -> None:
    documents, sentences = corpus.num_documents, corpus.num_sentences
    if documents == 0:
        raise InputError(f"the {name} is empty.")
    if objective != "nsp":
        return
    if documents == 1:
        raise InputError(
            f"the {name} is a single document of {sentences:,} sentences, but a random next sentence comes from "
            "another document; separate documents by blank lines, or do without next sentences (--no_nsp)."
        )
    if sentences == documents:
        raise InputError(
            f"every document of the {name} is a single sentence, so none has a next sentence; put the sentences of a "
            "document on adjacent lines, with a blank line between documents, or do without (--no_nsp)."
        )


def _dataset(
    corpus: Corpus,
    name: str,
    max_seq_length: int,
    data_args: PretrainingDataArguments,
    tokenizer: PreTrainedTokenizerBase,
    epochs_dir: Path,
    seed: int,
) -> PretrainingDataset:
    try:
        dataset = PretrainingDataset(
            corpus,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            epochs_dir,
            data_args.objective,
            max_seq_length,
            data_args.short_seq_prob,
            seed,
        )
    except ValueError as error:
        raise InputError(f"the {name} cannot be used: {error}") from error
    share = "" if dataset.share_next is None else f", {dataset.share_next:.1%} of them labelled 0 (next, in order)"
    logger.info("%s: %s examples of %s tokens%s", name, f"{len(dataset):,}", max_seq_length, share)
    if dataset.share_next in (0, 1):
        raise InputError(
            f"the {name} gives no pair of {'random' if dataset.share_next else 'next'} sentences, so there is nothing "
            "to tell apart; give more text, or do without next sentences (--no_nsp)."
        )
    return dataset


def _show(
    data_args: PretrainingDataArguments,
    training_args: TrainingArguments,
    cache_dir: str | None,
    tokenizer: PreTrainedTokenizerBase,
    collator: SnugBertDataCollatorForPretraining,
) -> None:
    """Prints the first examples of training as the model will see them."""
    data_args.validation_file, training_args.do_eval = [], False
    corpus, _ = _load_corpora(data_args, training_args, cache_dir, tokenizer)
    if corpus is None:
        raise InputError("--show is for training text; name it with --train_file, --dataset_name or --corpus.")
    (length, _), *_ = data_args.lengths_and_shares
    with tempfile.TemporaryDirectory() as epochs_dir:
        dataset = _dataset(
            corpus, "training text", length, data_args, tokenizer, Path(epochs_dir), _data_seed(training_args)
        )
        print(f"\n{textwrap.fill(LEGEND, shutil.get_terminal_size().columns)}")
        for index in range(min(data_args.show, len(dataset))):
            print(f"\n{index + 1}. {collator.describe(dataset[index], data_args.objective)}")


# --- the plan of a run ------------------------------------------------------------------------------------------


def _plan(
    corpus: Corpus,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    epochs_dir: Path,
) -> list[Phase]:
    """Steps and batches of each phase; epochs become steps."""
    seed = _data_seed(training_args)
    datasets = [
        _dataset(corpus, "training text", length, data_args, tokenizer, epochs_dir, seed)
        for length, _ in data_args.lengths_and_shares
    ]
    phases = plan_phases(datasets, [share for _, share in data_args.lengths_and_shares], training_args)
    # To Trainer all of it is one epoch.
    for what in ("logging", "eval", "save"):
        if getattr(training_args, f"{what}_strategy") == "epoch":
            strategy = SaveStrategy.STEPS if what == "save" else IntervalStrategy.STEPS
            setattr(training_args, f"{what}_strategy", strategy)
            setattr(training_args, f"{what}_steps", max(1, round(datasets[0].epoch_length / phases[0].batch)))
    for phase in phases:
        logger.info(
            "training: %s steps of %s examples of %s tokens, %.2f epochs",
            f"{phase.steps:,}",
            f"{phase.batch:,}",
            phase.dataset.max_seq_length,
            phase.steps * phase.batch / phase.dataset.epoch_length,
        )
    return phases


def _data_settings(
    corpus: Corpus, phases: list[Phase], data_args: PretrainingDataArguments, training_args: PretrainingArguments
) -> dict[str, Any]:
    """All that decides which examples a step sees, as a checkpoint remembers it."""
    names = ("short_seq_prob", "mlm_probability", "mask_replace_prob", "random_replace_prob", "whole_word_mask")
    settings: dict[str, Any] = {
        "text": _without_folders(corpus.sources),
        **corpus.settings,
        "objective": data_args.objective,
        "recipe": RECIPE_VERSION,
        "seed": _data_seed(training_args),
        **{name: getattr(data_args, name) for name in names},
        "lengths": [phase.dataset.max_seq_length for phase in phases],
        "batch": phases[0].batch,
    }
    if len(phases) > 1:  # where one phase ends; a single one may go on for longer
        settings["steps"] = [phase.steps for phase in phases]
    return settings


def _without_folders(sources: dict[str, str]) -> dict[str, str]:
    """Makes paths relative to their common folder, because a checkpoint may be published."""
    if not all(map(os.path.isabs, sources)):  # a dataset
        return {describe_dataset(name.removeprefix("dataset ")): digest for name, digest in sources.items()}
    folder = os.path.commonpath([os.path.dirname(name) for name in sources])
    return {os.path.relpath(name, folder): digest for name, digest in sources.items()}


# --- evaluation and report --------------------------------------------------------------------------------------


def _baselines(
    dataset: PretrainingDataset, train: Corpus | None, validation: Corpus, vocab_size: int
) -> dict[str, float]:
    """What a model scores that knows frequencies alone."""
    baselines: dict[str, float] = {}
    if dataset.share_next is not None:
        baselines["nsp_accuracy"] = max(dataset.share_next, 1 - dataset.share_next)
    if train is not None:
        baselines |= unigram_baseline(train, validation, vocab_size)
    return baselines


def _evaluate(trainer: PretrainingTrainer, objective: Objective, baselines: dict[str, float]) -> dict[str, float]:
    """Saves, prints and returns the figures on the validation text, beside the baselines."""
    metrics = trainer.evaluate()
    metrics |= {f"eval_unigram_{name}": value for name, value in baselines.items()}
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    if trainer.is_world_process_zero():
        lines = [f"{'on the validation text':<26}{'this model':>12}{'without context':>18}"]
        for name, text, form in (
            ("mlm_loss", "masked token loss", ".3f"),
            ("mlm_accuracy", "masked token accuracy", ".1%"),
            ("nsp_accuracy", f"{SECOND_TASK.get(objective)} accuracy", ".1%"),
        ):
            if f"eval_{name}" in metrics:
                without = format(baselines[name], form) if name in baselines else ""
                lines.append(f"{text:<26}{format(metrics[f'eval_{name}'], form):>12}{without:>18}")
        print("\n" + "\n".join(lines))
    return {name.removeprefix("eval_"): value for name, value in metrics.items()}


def unigram_baseline(train: Corpus, validation: Corpus, vocab_size: int) -> dict[str, float]:
    """What a model scores that knows the frequency of word pieces and nothing else.

    Args:
        train: its word pieces are counted, each once more than it occurs (Laplace smoothing).
        validation: its word pieces are predicted.
        vocab_size: number of word pieces.

    Returns:
        `mlm_loss` in nats and `mlm_accuracy`, that of always saying the most frequent word piece.
    """
    train_counts, counts = _counts(train, vocab_size), _counts(validation, vocab_size)
    logarithms = np.log(train_counts + 1) - math.log(train_counts.sum() + vocab_size)
    return {
        "mlm_loss": float(-(counts * logarithms).sum() / counts.sum()),
        "mlm_accuracy": float(counts[train_counts.argmax()] / counts.sum()),
    }


def _counts(corpus: Corpus, vocab_size: int) -> np.ndarray:
    counts = np.zeros(vocab_size, dtype=np.int64)
    for block in corpus.blocks:
        # By the million: bincount takes 8 bytes for each number it is given.
        for tokens in np.array_split(block.tokens, len(block.tokens) // 10**6 + 1):
            counts += np.bincount(tokens, minlength=vocab_size)
    return counts


def _write_card(
    trainer: PretrainingTrainer,
    model_args: ModelArguments,
    data_args: PretrainingDataArguments,
    train: Corpus | None,
    validation: Corpus | None,
    figures: dict[str, float],
    baselines: dict[str, float],
) -> None:
    """Writes the model card, of a model that may still be in training."""
    output_dir = Path(trainer.args.output_dir or "")
    write_pretraining_card(
        output_dir,
        name=trainer.hub_model_id or trainer.args.hub_model_id or output_dir.resolve().name,
        language=data_args.sentence_language,
        data=_describe_text(data_args, train, validation),
        settings=_describe_training(trainer, model_args, data_args),
        figures=figures,
        baselines=baselines,
        validation_name=_validation_name(data_args, validation),
        dataset_name=hub_id(data_args.dataset_name),
        base_model=model_args.model_name_or_path,
        next_sentences=not data_args.no_nsp,
    )


def _validation_name(data_args: PretrainingDataArguments, validation: Corpus | None) -> str:
    if validation is None:
        return "validation text"
    if data_args.dataset_name is not None and not data_args.validation_file:
        return f"{describe_dataset(data_args.dataset_name)}, held out"
    return _names(validation)


def _describe_text(
    data_args: PretrainingDataArguments, train: Corpus | None, validation: Corpus | None
) -> dict[str, Any]:
    """What the model card says of the text."""
    facts = {}
    if train is not None:
        facts["training text"] = f"{_names(train)}: {train}"
    if validation is not None:
        facts["validation text"] = f"{_names(validation)}: {validation}"
    return facts


def _names(corpus: Corpus) -> str:
    names = sorted(describe_dataset(name.removeprefix("dataset ")) for name in corpus.sources)
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _describe_training(
    trainer: PretrainingTrainer, model_args: ModelArguments, data_args: PretrainingDataArguments
) -> dict[str, Any]:
    """What the model card says of the settings."""
    training_args: Any = trainer.args
    model: Any = trainer.model
    config, state = model.config, trainer.state
    size = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {config.num_attention_heads} heads"
    words = "words" if data_args.whole_word_mask else "word pieces"
    return {
        "start": find_base_model(model_args.model_name_or_path)[1],
        "model": f"{size}; {model.num_parameters():,} parameters, vocabulary {config.vocab_size:,}",
        "objective": "masked tokens" + (f", {SECOND_TASK[data_args.objective]}" if not data_args.no_nsp else ""),
        "masking": f"{data_args.mlm_probability:.0%} of the {words}; {data_args.mask_replace_prob:.0%} [MASK], "
        f"{data_args.random_replace_prob:.0%} random",
        "steps": "; ".join(
            f"{phase.steps:,} of {phase.batch:,} examples of at most {phase.dataset.max_seq_length} tokens"
            for phase in trainer.phases
        ),
        "steps done": f"{state.global_step:,} of {state.max_steps:,}",
        "word pieces seen": f"{state.num_input_tokens_seen:,}",
        "optimizer": f"{_name(training_args.optim)}, learning rate {training_args.learning_rate:g}, weight decay "
        f"{training_args.weight_decay:g}",
        "schedule": f"{_name(training_args.lr_scheduler_type)}, warmup {training_args.warmup_steps:g}",
        "dropout": f"{config.hidden_dropout_prob:g}, attention {config.attention_probs_dropout_prob:g}",
        "precision": "bfloat16" if training_args.bf16 else "float16" if training_args.fp16 else "float32",
        "seed": training_args.seed,
        "processes": training_args.world_size,
    }


def _name(choice: Any) -> str:
    return getattr(choice, "value", choice)
