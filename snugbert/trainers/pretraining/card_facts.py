"""The facts of a run that its model card reports: text, settings and progress."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugbert.card_snugbert import find_base_model
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import DATASET
from snugbert.data.languages import primary_language, read_language
from snugbert.data.sources import name_dataset
from snugbert.errors import format_count
from snugbert.families.loading import GENERATOR_FOLDER
from snugbert.reports.pretrained_card import write_pretraining_card
from snugbert.trainers.pretraining.batches import describe_phases
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import list_sources
from snugbert.trainers.pretraining.electra import ElectraPair
from snugbert.trainers.pretraining.examples import unwrap_subset
from snugbert.trainers.pretraining.masking import LONGEST_SPAN
from snugbert.trainers.pretraining.pretraining_arguments import (
    COSINE_WEIGHT,
    DISCRIMINATOR_WEIGHT,
    LABEL_WEIGHT,
    PAIR_TASKS,
    SOFT_WEIGHT,
    TEMPERATURE,
)

if TYPE_CHECKING:
    from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer


def write_run_card(
    trainer: "PretrainingTrainer", metrics: Mapping[str, float], baselines: Mapping[str, float]
) -> None:
    """Writes the model card of a run, finished or not, into its output folder.

    `metrics` are the metrics on the validation text, without a prefix. `baselines` are the metrics of trivial
    predictions.
    """
    output_dir = Path(trainer.args.output_dir or "")
    train, validation = find_corpus(trainer.phases[0].dataset), find_corpus(trainer.eval_dataset)
    corpora = {"training text": train, "validation text": validation}
    # None: lines are sentences, and no language is given or stored.
    language = read_language(trainer.model_config) or (None if train is None else train.language)
    dataset_name = None if train is None else _find_dataset(train)
    validation_name = "validation text" if validation is None else list_sources(validation)
    if validation is not None and _find_dataset(validation) is not None:  # validation files are never a dataset
        validation_name += ", held out"
    write_pretraining_card(
        output_dir,
        name=trainer.hub_model_id or trainer.args.hub_model_id or output_dir.resolve().name,
        language=language and primary_language(language),
        data={text: f"{list_sources(corpus)}: {corpus}" for text, corpus in corpora.items() if corpus is not None},
        settings=_describe_training(trainer),
        metrics=metrics,
        baselines=baselines,
        validation_name=validation_name,
        dataset_name=name_dataset(dataset_name)[0],
        base_model=trainer.base_model,
        # A configuration has a name even if the weights are new.
        start_is_known=trainer.is_command or not trainer.model.config.name_or_path,
        head_name=_find_head(trainer.model),
        generator_folder=GENERATOR_FOLDER if isinstance(trainer.model, ElectraPair) else None,
    )


def find_corpus(dataset: Any) -> Corpus | None:
    """Returns the corpus of a dataset. None if the dataset has no corpus."""
    return getattr(unwrap_subset(dataset), "corpus", None)


def _find_head(model: Any) -> str:
    """Returns the key of the model's head in `HEADS`. Compilation prefixes the name of the class."""
    if isinstance(model, ElectraPair):
        return "ForReplacedTokenDetection"
    return "ForMaskedLM" if type(model).__name__.endswith("ForMaskedLM") else "ForPreTraining"


def _find_dataset(corpus: Corpus) -> str | None:
    """Returns the name of the dataset that the corpus was prepared from. None: text files."""
    return next((name.removeprefix(DATASET) for name in corpus.sources if name.startswith(DATASET)), None)


def _describe_training(trainer: "PretrainingTrainer") -> dict[str, str | int]:
    args, state = trainer.args, trainer.state
    model: Any = trainer.model
    sizes = {"model": _describe_model(model)}
    if isinstance(model, ElectraPair):
        sizes = {"model": _describe_model(model.discriminator), "generator": _describe_model(model.generator)}
    if trainer.teacher is not None:
        name = trainer.teacher.config.name_or_path
        known = f"{find_base_model(name)[1]}: " if name else ""
        sizes["teacher"] = f"{known}{_describe_model(trainer.teacher)}"
    optimizer, schedule = (getattr(choice, "value", choice) for choice in (args.optim, args.lr_scheduler_type))
    changes = {"changed on resume": "; ".join(trainer.run_settings.changes)} if trainer.run_settings.changes else {}
    return {
        **_describe_start(trainer),
        **sizes,
        "objective": _describe_objective(trainer),
        **_describe_masks(getattr(trainer.data_collator, "collate", None)),
        "steps": "; ".join(describe_phases(trainer.phases)),
        "steps done": f"{state.global_step:,} of {state.max_steps:,}",
        "tokens seen": f"{state.num_input_tokens_seen:,}",
        "optimizer": f"{optimizer}, learning rate {args.learning_rate:g}, weight decay {args.weight_decay:g}",
        "schedule": schedule,
        "warmup steps": args.get_warmup_steps(state.max_steps),
        "dropout": f"hidden {model.config.hidden_dropout_prob:g}, "
        f"attention {model.config.attention_probs_dropout_prob:g}",
        "precision": args.precision,
        "seed": args.seed,
        "processes": args.world_size,
        **changes,
    }


def _describe_start(trainer: "PretrainingTrainer") -> dict[str, str]:
    """Describes the initial weights. Empty if unknown."""
    model: Any = trainer.model
    settings = trainer.run_settings.command_settings
    if not trainer.is_command:
        return {} if model.config.name_or_path else {"initial weights": "random weights"}
    start = settings["--model_name_or_path"]
    if layers := settings.get("--student_layers"):
        start = f"layers {', '.join(map(str, layers))} of the teacher, counted from 0"
    if settings["--bigram_init"]:
        start = "bigrams of the training text"
    return {"initial weights": start}


def _describe_objective(trainer: "PretrainingTrainer") -> str:
    model: Any = trainer.model
    if isinstance(model, ElectraPair):
        return f"ELECTRA: masked tokens (generator), {DISCRIMINATOR_WEIGHT:g} x replaced tokens (discriminator)"
    objective = "masked tokens"
    if _find_head(model) == "ForPreTraining":
        tasks = {PAIR_TASKS[phase.objective] for phase in trainer.phases if phase.objective in PAIR_TASKS}
        objective += f", {' and '.join(sorted(tasks)) or 'sentence pairs'}"
    if trainer.teacher is not None:
        objective = f"{LABEL_WEIGHT:g} x ({objective}), {SOFT_WEIGHT:g} x predictions of the teacher at temperature "
        objective += f"{TEMPERATURE:g}"
        if trainer.teacher.config.hidden_size == model.config.hidden_size:
            objective += f", {COSINE_WEIGHT:g} x last hidden states of the teacher"
    return objective


def _describe_masks(collator: Any) -> dict[str, str]:
    if not isinstance(collator, SnugBertDataCollatorForPretraining):
        return {}
    first, last = collator.mask_rates
    rate = f"{first:.0%}" if first == last else f"{first:.0%} (first step) to {last:.0%} (last step)"
    units = {"spans": f"tokens, in spans of 1 to {LONGEST_SPAN} words"}.get(str(collator.masking), collator.masking)
    return {
        "masking": f"{rate} of the {units}: {collator.mask_replace_prob:.0%} replaced by "
        f"[MASK], {collator.random_replace_prob:.0%} by random tokens, the rest unchanged"
    }


def _describe_model(model: Any) -> str:
    config = model.config
    heads = format_count(config.num_attention_heads, "attention head")
    return (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {heads}, {model.num_parameters():,} "
        f"parameters, vocabulary of {config.vocab_size:,} tokens"
    )
