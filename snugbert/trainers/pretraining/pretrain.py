"""A run of `snugbert pretrain`, from its arguments to the model, its metrics, its plot and its card."""

import copy
import functools
import logging
import shutil
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from torch.utils.data import Subset
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.trainer_utils import IntervalStrategy

from snugbert.card_snugbert import find_base_model
from snugbert.cli.parser import changed_flags, format_command
from snugbert.configuration_snugbert import SnugBertConfig, compute_max_length
from snugbert.data.corpus.corpus import Corpus, read_corpus_language
from snugbert.data.languages import Stored, choose_language, store_language, stored_in_model
from snugbert.errors import InputError, format_count
from snugbert.families.loading import GENERATOR_FOLDER, check_ids, load_config, load_model, load_tokenizer
from snugbert.families.students import hash_model
from snugbert.progress import format_duration
from snugbert.reports.pretrained_card import format_comparison
from snugbert.reports.pretraining_plots import TRAINING_PLOT
from snugbert.storage.urls import hide_credentials
from snugbert.trainers.dry_run import (
    EVALUATED_BATCHES,
    as_dry_run,
    as_steps,
    describe_peak,
    describe_seconds,
    describe_steps,
    print_plan,
    seconds_since_start,
    shared_folder,
    time_steps,
)
from snugbert.trainers.pretraining.batches import (
    Phase,
    choose_batch_sizes,
    describe_phases,
    plan_phases,
)
from snugbert.trainers.pretraining.bigrams import check_bigram_config, initialize_from_bigrams
from snugbert.trainers.pretraining.block_windows import Window
from snugbert.trainers.pretraining.collator import ELECTRA_LEGEND, LEGEND, SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import VALIDATION_SEED, collect_example_settings, load_corpora, make_dataset
from snugbert.trainers.pretraining.electra import ELECTRA_HEADS, ElectraPair, load_pair
from snugbert.trainers.pretraining.examples import LONGEST_EXAMPLE, SHORTEST_EXAMPLE, PretrainingDataset
from snugbert.trainers.pretraining.masked_distillation import (
    list_student_layers,
    load_student,
    load_teacher_config,
)
from snugbert.trainers.pretraining.pretraining_arguments import (
    PAIR_TASKS,
    PretrainingArguments,
    PretrainingDataArguments,
    PretrainingModelArguments,
)
from snugbert.trainers.pretraining.pretraining_guidance import log_recipe
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.pretraining.scores import compute_baselines, detection_baseline
from snugbert.trainers.run.checkpoints import step_of
from snugbert.trainers.run.folder import check_disk_space, check_output_dir, lock_output_dir
from snugbert.trainers.run.processes import raise_together, set_up, wait_for_all
from snugbert.trainers.run.run_settings import (
    check_data_settings,
    check_max_steps,
    check_run_settings,
    collect_training_settings,
)
from snugbert.trainers.run.stopping import raise_if_interrupted

logger = logging.getLogger(__name__)

FINE_TUNING_FILES = {"train_file": "train.csv", "validation_file": "dev.csv"}  # in the suggested next command


class _Setup(NamedTuple):
    """What is known before the text is read. `teacher_config` is None without a teacher."""

    model_args: PretrainingModelArguments
    data_args: PretrainingDataArguments
    training_args: PretrainingArguments
    tokenizer: PreTrainedTokenizerBase
    config: SnugBertConfig
    teacher_config: SnugBertConfig | None


def pretrain(
    model_args: PretrainingModelArguments,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
) -> None:
    """Trains, evaluates, or both, and prints a summary."""
    # --do_eval alone means: evaluate only. But --eval_strategy also sets do_eval, and such a run trains.
    training_args.do_train |= not training_args.do_eval or training_args.eval_strategy != "no"
    training_args.do_eval |= bool(data_args.validation_file)
    set_up(training_args)
    _check_arguments(model_args, data_args)
    tokenizer = load_tokenizer(model_args)
    check_ids(tokenizer, str(model_args.tokenizer_source))
    config = load_config(model_args, tokenizer)
    if data_args.objective == "electra" and model_args.model_name_or_path is None:
        given = model_args.config_overrides or ""
        config.update({name: value for name, value in ELECTRA_HEADS.items() if f"{name}=" not in given})
    teacher_config = None
    if model_args.teacher_name_or_path is not None:
        teacher_config = load_teacher_config(model_args, config, tokenizer)
        if model_args.num_student_layers is not None:
            config.num_hidden_layers = len(list_student_layers(model_args, teacher_config.num_hidden_layers))
        _check_config(data_args, teacher_config, model_args.teacher_name_or_path)
    _check_config(data_args, config, str(model_args.model_name_or_path or model_args.config_name))
    if data_args.bigram_init:
        check_bigram_config(config)
    choose_batch_sizes([phase.max_seq_length for phase in data_args.parsed_phases], training_args)
    _choose_language(model_args, data_args, tokenizer, config)
    collator = SnugBertDataCollatorForPretraining(
        tokenizer,
        data_args.mlm_probability,
        data_args.mask_replace_prob,
        data_args.random_replace_prob,
        replacement_keys=data_args.objective == "electra",
        masking=data_args.masking,
    )
    setup = _Setup(model_args, data_args, training_args, tokenizer, config, teacher_config)
    if data_args.show:
        _show_examples(setup, collator)
        return
    epochs = shared_folder() if training_args.dry_run else nullcontext(Path(training_args.output_dir or "") / "epochs")
    with lock_output_dir(training_args), epochs as epochs_dir:
        _train_and_evaluate(setup, collator, epochs_dir)


def _check_arguments(model_args: PretrainingModelArguments, data_args: PretrainingDataArguments) -> None:
    """Checks that the arguments of the model and of the data can be combined."""
    objective, teacher = data_args.objective, model_args.teacher_name_or_path
    if teacher is not None and objective == "electra":
        raise InputError(
            "--teacher_name_or_path does not support --objective electra. Distill the generator of an ELECTRA with "
            "--objective mlm."
        )
    if not data_args.bigram_init:
        return
    if objective == "electra":
        raise InputError("--bigram_init does not support --objective electra. Remove one of these flags.")
    for flag, value in (("teacher_name_or_path", teacher), ("model_name_or_path", model_args.model_name_or_path)):
        if value is not None:
            raise InputError(f"--bigram_init cannot be combined with --{flag}. Use --config_name instead.")
    if not (data_args.train_file or data_args.dataset_name or data_args.corpus):
        raise InputError("--bigram_init needs training text. Pass --train_file, --dataset_name or --corpus.")


def _check_config(data_args: PretrainingDataArguments, config: SnugBertConfig, name: str) -> None:
    """Checks that a model with this `config` can learn from the examples."""
    limit = min(LONGEST_EXAMPLE, compute_max_length(config))
    for length in (data_args.max_seq_length, *(phase.max_seq_length for phase in data_args.parsed_phases)):
        if not SHORTEST_EXAMPLE <= length <= limit:
            flag = "--max_seq_length" if length == data_args.max_seq_length else "--phases: length"
            raise InputError(f"{flag} {length} must be between {SHORTEST_EXAMPLE} and the limit of {name} ({limit}).")
    if data_args.dataset_objective in PAIR_TASKS and config.type_vocab_size < 2:
        raise InputError(
            f"--objective {data_args.objective}: sentence pairs need two token types, but {name} has "
            f"{config.type_vocab_size}. Use --objective mlm."
        )


def _choose_language(
    model_args: PretrainingModelArguments,
    data_args: PretrainingDataArguments,
    tokenizer: PreTrainedTokenizerBase,
    config: SnugBertConfig,
) -> None:
    """Sets the language of the text, and stores it in the model and the tokenizer that the run saves."""
    start = model_args.teacher_name_or_path if model_args.model_name_or_path is None else model_args.model_name_or_path
    if start is None:
        vars(config).pop("language", None)  # --config_name may be a trained model
    stored = stored_in_model(config, tokenizer, start, model_args.tokenizer_name)
    if (folder := data_args.corpus) is not None:
        stored = [
            Stored(f"the corpus {hide_credentials(folder)}", read_corpus_language(folder), "prepare the text again"),
            *stored,
        ]
    data_args.language = choose_language(data_args.language, stored)
    store_language(data_args.language, config, tokenizer)


def _show_examples(setup: _Setup, collator: SnugBertDataCollatorForPretraining) -> None:
    """Prints the first training examples with their masks, as the model sees them."""
    data_args, tokenizer = setup.data_args, setup.tokenizer
    data_args.validation_file = []
    length, _, objective = data_args.parsed_phases[0]
    seed = setup.training_args.examples_seed
    with tempfile.TemporaryDirectory() as folder:
        epochs_dir = Path(folder)
        blocks_dir = epochs_dir / "blocks"
        corpus, _ = load_corpora(data_args, True, False, setup.model_args.cache_dir, tokenizer, blocks_dir)
        assert corpus is not None  # load_corpora raised an error if there is no text to train on
        logger.info("training text: making the examples of epoch 0")
        dataset = make_dataset(corpus, "training text", length, data_args, tokenizer, epochs_dir, seed, objective)
        legend = ELECTRA_LEGEND if data_args.objective == "electra" else LEGEND
        print(f"\n{textwrap.fill(legend, shutil.get_terminal_size().columns)}")
        for index in range(min(data_args.show, len(dataset))):
            shown = dataset[index] | {"mlm_probability": collator.mask_rates[0]}
            example = collator.describe(shown, dataset.objective)
            print(f"\n{index + 1}. {example}")


def _train_and_evaluate(setup: _Setup, collator: SnugBertDataCollatorForPretraining, epochs_dir: Path) -> None:
    """Checks everything that needs no text, prepares the text, trains, evaluates and reports."""
    model_args, data_args, training_args, tokenizer, config, teacher_config = setup
    do_train, output_dir = training_args.do_train, Path(training_args.output_dir or "")
    teacher = None
    if teacher_config is not None and do_train:
        teacher_args, own_config = model_args.as_teacher(), copy.deepcopy(teacher_config)
        teacher = load_model(AutoModelForMaskedLM, teacher_args, own_config, trained=True)
        logger.info("teacher: %s parameters, not trained", f"{teacher.num_parameters():,}")
    initial_weights = _collect_initial_weights(model_args, data_args, teacher)
    checkpoint = check_output_dir(training_args, training_args.overwrite_output_dir) if do_train else None
    if checkpoint is not None:  # now, before text is prepared. The trainer compares again
        settings = initial_weights | collect_training_settings(training_args, config)
        check_run_settings(checkpoint, PretrainingTrainer.kind, settings)
        check_max_steps(checkpoint, training_args)
    model = _load_model(setup)
    data = _prepare_data(setup, epochs_dir, checkpoint)
    if model_args.model_name_or_path is None and data_args.objective != "electra":
        log_recipe(data.phases, model)
    if data_args.bigram_init and data.train_corpus is not None and checkpoint is None:
        logger.info("initial weights: computing them from the bigrams of the training text")
        dataset: Any = data.phases[0].dataset
        first_window = dataset.windows.list_blocks(Window(0, 0))  # the text may be larger than the disk
        initialize_from_bigrams(model, data.train_corpus, tokenizer, training_args.seed, first_window)
        wait_for_all()  # this takes long. DDP then sends the weights of the first process to all
    validation = data.validation
    make_trainer = functools.partial(
        _make_trainer,
        model=model,
        eval_dataset=validation and Subset(validation, range(len(validation))[: data_args.max_eval_samples]),
        data_collator=collator,
        processing_class=tokenizer,
        data_settings=data.settings,
        teacher=teacher,
    )
    if training_args.dry_run:
        _run_dry(make_trainer, training_args, data.phases, data.train_corpus, checkpoint)
        return
    trainer = make_trainer(args=training_args, phases=data.phases)
    trainer.run_settings.command_settings = initial_weights
    trainer.command_arguments = model_args, data_args
    seconds = _train(trainer, checkpoint) if do_train else 0.0
    metrics, baselines = _evaluate(trainer, data)
    if training_args.local_process_index == 0:
        shutil.rmtree(epochs_dir, ignore_errors=True)
    if training_args.should_save:
        if do_train:
            trainer.report(metrics, baselines)
        after = f". The steps after {Path(checkpoint).name} took" if checkpoint is not None else " in"
        if do_train:
            print(f"\nTrained {trainer.state.global_step:,} steps{after} {format_duration(seconds)}.")
        if metrics:
            print(f"\n{format_comparison(metrics, baselines, PAIR_TASKS.get(data_args.dataset_objective))}")
        _print_files(output_dir, do_train, bool(metrics), changed_flags(model_args, ["cache_dir"]))
    if do_train and training_args.push_to_hub:
        trainer.push_to_hub()


def _collect_initial_weights(
    model_args: PretrainingModelArguments, data_args: PretrainingDataArguments, teacher: PreTrainedModel | None
) -> dict[str, Any]:
    """Collects the arguments that determine the initial weights, for comparison when a run is resumed."""
    initial_weights: dict[str, Any] = {
        "--objective": data_args.objective,
        "--model_name_or_path": find_base_model(model_args.model_name_or_path)[1],
        "--bigram_init": data_args.bigram_init,
        "--teacher_name_or_path": None if teacher is None else f"weights {hash_model(teacher)}",
    }
    if teacher is not None and model_args.num_student_layers is not None:
        # The teacher's weights are compared, not its name.
        initial_weights["--model_name_or_path"] = "layers of the teacher"
        initial_weights["--student_layers"] = list_student_layers(model_args, teacher.config.num_hidden_layers)
    if data_args.objective == "electra":
        initial_weights["--generator_size"] = data_args.generator_size
    return initial_weights


def _load_model(setup: _Setup) -> PreTrainedModel:
    """Loads the model. If the run trains, checks the free space and the training arguments with this model."""
    model_args, data_args, training_args, tokenizer, config, teacher_config = setup
    set_seed(training_args.seed)
    model: PreTrainedModel
    if data_args.objective == "electra":
        model = load_pair(model_args, config, tokenizer, data_args.generator_size)
        logger.info(
            "model: %s parameters (discriminator: %s, generator: %s, embeddings are shared)",
            *(f"{each.num_parameters():,}" for each in (model, model.discriminator, model.generator)),
        )
    else:
        config.architectures = []  # an ELECTRA class would select ELECTRA's head
        auto_class = AutoModelForMaskedLM if data_args.objective == "mlm" else AutoModelForPreTraining
        if teacher_config is not None and model_args.num_student_layers is not None:
            model = load_student(auto_class, model_args, config, teacher_config)
        else:
            model = load_model(auto_class, model_args, config)
        logger.info("model: %s parameters", f"{model.num_parameters():,}")
    if training_args.do_train:
        # Both files of ELECTRA contain the shared embeddings.
        models = (model.discriminator, model.generator) if isinstance(model, ElectraPair) else (model,)
        check_disk_space(training_args, [parameter for each in models for parameter in each.parameters()])
        # Creates an optimizer and a schedule without data, so that invalid arguments fail before long work.
        args = copy.copy(training_args)
        args.push_to_hub, args.eval_strategy = False, IntervalStrategy.NO
        args.output_dir = tempfile.gettempdir()  # Trainer creates the folder
        steps = args.max_steps if args.max_steps > 0 else 10**9
        _make_trainer(model=model, args=args).create_optimizer_and_scheduler(steps)
    return model


def _make_trainer(**arguments: Any) -> PretrainingTrainer:
    try:
        return PretrainingTrainer(**arguments)
    except (ValueError, RuntimeError, ImportError) as error:  # Trainer rejects an argument, such as a reporter
        raise InputError(str(error)) from error


class _Data(NamedTuple):
    """The text of a run and its examples. Without training, `phases` and `settings` are empty."""

    train_corpus: Corpus | None
    phases: list[Phase]
    settings: dict[str, Any]
    validation: PretrainingDataset | None


def _prepare_data(setup: _Setup, epochs_dir: Path, checkpoint: str | None) -> _Data:
    """Prepares the text, plans the phases of the run, and compares its data settings with the checkpoint."""
    data_args, training_args, tokenizer = setup.data_args, setup.training_args, setup.tokenizer
    do_train, do_eval, blocks_dir = training_args.do_train, training_args.do_eval, epochs_dir / "blocks"
    train_corpus, validation_corpus = raise_together(  # machines may prepare the text for hours
        lambda: load_corpora(data_args, do_train, do_eval, setup.model_args.cache_dir, tokenizer, blocks_dir)
    )
    make_examples = functools.partial(make_dataset, data_args=data_args, tokenizer=tokenizer, epochs_dir=epochs_dir)
    data = _Data(train_corpus, [], {}, None)
    if training_args.do_train and train_corpus is not None:
        logger.info("training text: making the examples of epoch 0")
        seed, parsed = training_args.examples_seed, data_args.parsed_phases
        datasets = [
            make_examples(train_corpus, "training text", length, seed=seed, objective=objective)
            for length, _, objective in parsed
        ]
        phases = plan_phases(datasets, [phase.share for phase in parsed], training_args)
        for text in describe_phases(phases):
            logger.info("training: %s", text)
        settings = collect_example_settings(train_corpus, phases, data_args, training_args)
        if checkpoint is not None and not data_args.allow_changed_data:
            check_data_settings(checkpoint, PretrainingTrainer.kind, settings)
        data = data._replace(phases=phases, settings=settings)
    if validation_corpus is not None:
        logger.info("validation text: making the examples of epoch 0")
        length = data_args.max_seq_length
        validation = make_examples(validation_corpus, "validation text", length, seed=VALIDATION_SEED)
        data = data._replace(validation=validation)
    return data


def _train(trainer: PretrainingTrainer, checkpoint: str | None) -> float:
    """Trains, and saves the model, the metrics and the state. Returns the seconds of training."""
    trainer.checks_output_dir = False  # the folder was checked before the text was prepared
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    raise_if_interrupted(trainer)
    trainer.save_model(_internal_call=True)  # an external call would push before the card is written
    trainer.save_metrics("train", metrics)
    trainer.save_state()
    return metrics["train_runtime"]


def _evaluate(trainer: PretrainingTrainer, data: _Data) -> tuple[dict[str, float], dict[str, float]]:
    """Saves and returns the metrics on the validation text, and returns the metrics of trivial predictions.

    Both are empty without validation text.
    """
    if data.validation is None:
        return {}, {}
    baselines = compute_baselines(data.validation, data.train_corpus)
    metrics = trainer.evaluate()
    if "eval_replaced" in metrics:
        baselines |= detection_baseline(metrics["eval_replaced"])
    metrics |= {f"eval_unigram_{name}": value for name, value in baselines.items()}
    trainer.save_metrics("eval", metrics)
    return {name.removeprefix("eval_"): value for name, value in metrics.items()}, baselines


def _print_files(output_dir: Path, trained: bool, evaluated: bool, hub_flags: dict[str, Any]) -> None:
    files = {"model": "", "generator": GENERATOR_FOLDER, "plot": TRAINING_PLOT, "model card": "README.md"}
    files = files if trained else {}
    if evaluated:
        files["metrics"] = "eval_results.json"
    print()
    for name, file in files.items():
        if (output_dir / file).exists():  # only ELECTRA has a generator, and a short run has no plot
            print(f"{name:<12}{output_dir / file}")
    if trained:
        flags = {"model_name_or_path": output_dir, **hub_flags, **FINE_TUNING_FILES, "output_dir": "classifier"}
        print(f"\nNext, fine-tune the model on texts with labels:\n  {format_command('glue', flags)}")


def _run_dry(
    make_trainer: Callable[..., PretrainingTrainer],
    args: PretrainingArguments,
    phases: Sequence[Phase],
    corpus: Corpus | None,
    checkpoint: str | None,
) -> None:
    """Takes the first steps of each phase in memory, and prints the plan of the run. Every process must call this.

    `phases` is empty if the run only evaluates. `checkpoint` is the folder to resume from.
    """
    start, steps, rows = seconds_since_start(), sum(phase.steps for phase in phases), dict[str, str]()
    skipped = 0 if checkpoint is None else step_of(Path(checkpoint))
    training, watches = 0.0, []
    if corpus is not None:
        rows["text"] = str(corpus)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(args=as_dry_run(args, folder), phases=phases)
        rows["model"] = f"{sum(parameter.numel() for parameter in trainer.model.parameters()):,} parameters"
        interval = as_steps(trainer.args.eval_steps or 1, steps)  # of the whole run
        evaluations = 1 + (steps // interval if trainer.args.eval_strategy == "steps" else 0)
        for number, (phase, text) in enumerate(zip(phases, describe_phases(phases), strict=True)):
            trainer = make_trainer(args=as_dry_run(args, f"{folder}/{number}"), phases=[phase])
            watches.append(time_steps(trainer))
            left = max(phase.steps - skipped, 0)
            skipped = max(skipped - phase.steps, 0)
            training += left * mean(watches[-1].seconds)
            rows["training" if len(phases) == 1 else f"phase {number + 1}"] = text + (
                "" if checkpoint is None else f", {left:,} left after {checkpoint}"
            )
        rows |= describe_steps(args, steps) if phases else {"memory": describe_peak(args.device)}
        evaluation = 0.0
        dataset: Any = trainer.eval_dataset
        if dataset is not None:
            rows["evaluation"] = f"{evaluations} x {format_count(len(dataset), 'example')}"
            number = min(len(dataset), EVALUATED_BATCHES * trainer.args.eval_batch_size * trainer.args.world_size)
            begin = time.perf_counter()
            trainer.evaluate(Subset(dataset, range(number)))
            evaluation = evaluations * (time.perf_counter() - begin) * len(dataset) / number
    rows["time"] = describe_seconds(start, training, evaluation, watches)
    print_plan(str(args.output_dir), rows)
