"""The facts of a run that its model card reports: text, settings and progress."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugbert.card_snugbert import find_base_model
from snugbert.errors import format_count
from snugbert.languages import primary_language
from snugbert.trainers.corpus.corpus import Corpus
from snugbert.trainers.pretraining.arguments import PretrainingDataArguments, PretrainingModelArguments
from snugbert.trainers.pretraining.card import write_pretraining_card
from snugbert.trainers.pretraining.corpora import list_sources
from snugbert.trainers.pretraining.distillation import list_student_layers
from snugbert.trainers.pretraining.electra import ElectraPair
from snugbert.trainers.pretraining.objectives import (
    COSINE_WEIGHT,
    DISCRIMINATOR_WEIGHT,
    LABEL_WEIGHT,
    PAIR_TASKS,
    SOFT_WEIGHT,
    TEMPERATURE,
)
from snugbert.trainers.pretraining.trainer import PretrainingTrainer
from snugbert.trainers.splits import describe_dataset, hub_id

# The head of each objective, a key of `HEADS`.
HEAD_NAMES = {
    "mlm+nsp": "ForPreTraining",
    "mlm": "ForMaskedLM",
    "mlm+order": "ForPreTraining",
    "electra": "ForReplacedTokenDetection",
}


def write_run_card(
    trainer: PretrainingTrainer,
    model_args: PretrainingModelArguments,
    data_args: PretrainingDataArguments,
    train: Corpus | None,
    validation: Corpus | None,
    metrics: Mapping[str, float],
    baselines: Mapping[str, float],
) -> None:
    """Writes the model card of a run, finished or not, into its output folder."""
    output_dir = Path(trainer.args.output_dir or "")
    write_pretraining_card(
        output_dir,
        name=trainer.hub_model_id or trainer.args.hub_model_id or output_dir.resolve().name,
        language=_find_language(data_args, train),
        data=_describe_text(train, validation),
        settings=_describe_training(trainer, model_args, data_args),
        metrics=metrics,
        baselines=baselines,
        validation_name=_name_validation_text(data_args, validation),
        dataset_name=hub_id(data_args.dataset_name),
        base_model=model_args.model_name_or_path,
        head_name=HEAD_NAMES[str(data_args.objective)],
    )


def _find_language(data_args: PretrainingDataArguments, train: Corpus | None) -> str | None:
    """Returns the language of the text. None: lines are sentences, and no language is given or stored."""
    language = data_args.language or (None if train is None else train.language)
    return language and primary_language(language)


def _name_validation_text(data_args: PretrainingDataArguments, validation: Corpus | None) -> str:
    if validation is None:
        return "validation text"
    if data_args.dataset_name is not None and not data_args.validation_file:
        return f"{describe_dataset(data_args.dataset_name)}, held out"
    return list_sources(validation)


def _describe_text(train: Corpus | None, validation: Corpus | None) -> dict[str, str]:
    corpora = {"training text": train, "validation text": validation}
    return {name: f"{list_sources(corpus)}: {corpus}" for name, corpus in corpora.items() if corpus is not None}


def _describe_training(
    trainer: PretrainingTrainer, model_args: PretrainingModelArguments, data_args: PretrainingDataArguments
) -> dict[str, str | int]:
    args, model, state = trainer.args, trainer.model, trainer.state
    config = model.config
    sizes = {"model": _describe_model(model)}
    if isinstance(model, ElectraPair):
        sizes = {"model": _describe_model(model.discriminator), "generator": _describe_model(model.generator)}
    changes = {"changed on resume": "; ".join(trainer.changes)} if trainer.changes else {}
    pair_task = PAIR_TASKS.get(data_args.dataset_objective)
    objective = "masked tokens" + (f", {pair_task}" if pair_task else "")
    if data_args.objective == "electra":
        objective = f"ELECTRA: masked tokens (generator), {DISCRIMINATOR_WEIGHT:g} x replaced tokens (discriminator)"
    start = find_base_model(model_args.model_name_or_path)[1]
    if trainer.teacher is not None:
        teacher = trainer.teacher
        sizes["teacher"] = f"{find_base_model(model_args.teacher_name_or_path)[1]}: {_describe_model(teacher)}"
        objective = f"{LABEL_WEIGHT:g} x ({objective}), {SOFT_WEIGHT:g} x predictions of the teacher at temperature "
        objective += f"{TEMPERATURE:g}"
        if teacher.config.hidden_size == config.hidden_size:
            objective += f", {COSINE_WEIGHT:g} x last hidden states of the teacher"
        if model_args.num_student_layers is not None:
            layers = ", ".join(map(str, list_student_layers(model_args, teacher.config.num_hidden_layers)))
            start = f"layers {layers} of the teacher, counted from 0"
    units = "words" if data_args.whole_word_mask else "tokens"
    return {
        "initial weights": "bigrams of the training text" if data_args.bigram_init else start,
        **sizes,
        "objective": objective,
        "masking": f"{data_args.mlm_probability:.0%} of the {units}: {data_args.mask_replace_prob:.0%} replaced by "
        f"[MASK], {data_args.random_replace_prob:.0%} by random tokens, the rest unchanged",
        "steps": "; ".join(
            f"{phase.steps:,} with {phase.batch_size:,} examples of at most {phase.max_seq_length} tokens each"
            for phase in trainer.phases
        ),
        "steps done": f"{state.global_step:,} of {state.max_steps:,}",
        "tokens seen": f"{state.num_input_tokens_seen:,}",
        "optimizer": f"{_name(args.optim)}, learning rate {args.learning_rate:g}, weight decay {args.weight_decay:g}",
        "schedule": _name(args.lr_scheduler_type),
        "warmup steps": args.get_warmup_steps(state.max_steps),
        "dropout": f"hidden {config.hidden_dropout_prob:g}, attention {config.attention_probs_dropout_prob:g}",
        "precision": args.precision,
        "seed": args.seed,
        "processes": args.world_size,
        **changes,
    }


def _describe_model(model: Any) -> str:
    config = model.config
    heads = format_count(config.num_attention_heads, "attention head")
    return (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {heads}, {model.num_parameters():,} "
        f"parameters, vocabulary of {config.vocab_size:,} tokens"
    )


def _name(choice: object) -> str:
    return str(getattr(choice, "value", choice))
