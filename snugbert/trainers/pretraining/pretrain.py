"""A run of `snugbert pretrain`, from its arguments to the model, its metrics, its plot and its card."""

import copy
import functools
import logging
import shutil
import tempfile
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from snugbert.configuration_snugbert import SnugBertConfig, compute_max_length
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.languages import choose_language, store_language, stored_in_model
from snugbert.errors import InputError, format_count
from snugbert.families.loading import GENERATOR_FOLDER, check_ids, load_config, load_model, load_tokenizer
from snugbert.families.students import choose_student_layers, hash_model, make_student
from snugbert.gpu.compilation import start_compiler
from snugbert.progress import format_duration
from snugbert.reports.pretrained_card import format_results
from snugbert.reports.pretraining_plots import TRAINING_PLOT
from snugbert.storage.urls import hide_credentials
from snugbert.trainers.dry_run import as_temporary, run_dry, shared_folder
from snugbert.trainers.pretraining.batches import (
    Phase,
    choose_batch_sizes,
    describe_phases,
    plan_phases,
)
from snugbert.trainers.pretraining.bigrams import check_bigram_config, initialize_from_bigrams
from snugbert.trainers.pretraining.block_windows import Window
from snugbert.trainers.pretraining.collator import ELECTRA_LEGEND, LEGEND, SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import (
    VALIDATION_SEED,
    collect_example_settings,
    load_corpora,
    make_dataset,
    open_prepared,
)
from snugbert.trainers.pretraining.electra import ELECTRA_HEADS, ElectraPair, load_pair
from snugbert.trainers.pretraining.examples import LONGEST_EXAMPLE, SHORTEST_EXAMPLE, PretrainingDataset
from snugbert.trainers.pretraining.masked_distillation import load_teacher_config
from snugbert.trainers.pretraining.pretraining_arguments import (
    PAIR_TASKS,
    PretrainingArguments,
    PretrainingDataArguments,
    PretrainingModelArguments,
)
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.pretraining.scores import compute_baselines, detection_baseline
from snugbert.trainers.run.folder import check_disk_space, check_output_dir, lock_output_dir
from snugbert.trainers.run.processes import raise_together, set_up, wait_for_all
from snugbert.trainers.run.run_settings import check_steps, collect_training_settings, read_state

logger = logging.getLogger(__name__)

# Files that a run writes, and lists at its end. Only ELECTRA has a generator, and a short run has no plot.
WRITTEN = {"model": "", "generator": GENERATOR_FOLDER, "plot": TRAINING_PLOT, "model card": "README.md"}


def pretrain(
    model_args: PretrainingModelArguments,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
) -> None:
    """Trains, evaluates, or both, and prints a summary."""
    # --do_eval alone means: evaluate only. But --eval_strategy also sets do_eval, and such a run trains.
    training_args.do_train |= not training_args.do_eval or training_args.eval_strategy != "no"
    training_args.do_eval |= bool(data_args.validation_file)
    if data_args.show:
        training_args.do_train, training_args.do_eval, data_args.validation_file = True, False, []
        data_args.parsed_phases = [data_args.parsed_phases[0]._replace(share=1.0)]
    set_up(training_args)
    start_compiler(training_args)
    _check_arguments(model_args, data_args)
    tokenizer = load_tokenizer(model_args)
    check_ids(tokenizer, str(model_args.tokenizer_source))
    config = load_config(model_args, tokenizer)
    has_teacher = model_args.teacher_name_or_path is not None
    teacher_config = load_teacher_config(model_args, config, tokenizer) if has_teacher else None
    layers = _adapt_config(config, teacher_config, model_args, data_args)
    choose_batch_sizes([phase.max_seq_length for phase in data_args.parsed_phases], training_args)
    collator = SnugBertDataCollatorForPretraining(
        tokenizer,
        data_args.mlm_probability,
        data_args.mask_replace_prob,
        data_args.random_replace_prob,
        replacement_keys=data_args.objective == "electra",
        masking=data_args.masking,
    )
    is_temporary = training_args.dry_run or data_args.show
    epochs = shared_folder() if is_temporary else nullcontext(Path(training_args.output_dir or "") / "epochs")
    with epochs as epochs_dir, ExitStack() as stack:
        with raise_together():
            prepared = open_prepared(data_args, tokenizer, epochs_dir / "blocks")
        data_args.language = _choose_language(model_args, data_args.language, prepared, tokenizer, config)
        prepare_data = functools.partial(
            _prepare_data, data_args, training_args, tokenizer, model_args.cache_dir, prepared, epochs_dir
        )
        if data_args.show:
            _show_examples(prepare_data().phases[0].dataset, collator, data_args.show)
            return
        stack.enter_context(lock_output_dir(training_args))  # creates the folder
        checkpoint = check_output_dir(training_args) if training_args.do_train else None
        teacher = None
        if teacher_config is not None and training_args.do_train:
            teacher_args, own_config = model_args.as_teacher(), copy.deepcopy(teacher_config)
            teacher = load_model(AutoModelForMaskedLM, teacher_args, own_config, trained=True)
        initial_weights = _collect_initial_weights(model_args, data_args, teacher, layers)
        set_seed(training_args.seed)
        model = _load_model(model_args, data_args, config, tokenizer, teacher_config, layers)
        swaps = data_args.dataset_objective == "sop"
        if swaps or getattr(model.config, "sentence_order", False):
            model.config.sentence_order = swaps  # for `snugbert evaluate`
        logger.info("model: %s parameters", f"{model.num_parameters():,}")
        if training_args.do_train:
            _check_training(model, training_args, initial_weights, checkpoint)
        data = prepare_data()
        if data_args.bigram_init and checkpoint is None and data.phases and data.train_corpus is not None:
            logger.info("initial weights: computing them from the bigrams of the training text")
            # Only the first window, because the text may be larger than the disk.
            numbers = data.phases[0].dataset.windows.list_blocks(Window(0, 0))
            blocks = (data.train_corpus.blocks[number] for number in numbers)
            initialize_from_bigrams(model, data.train_corpus, tokenizer, training_args.seed, blocks)
            wait_for_all()  # computing takes long. DDP then sends the weights of the first process to all
        validation: Any = data.validation
        if validation is not None:
            validation = Subset(validation, range(len(validation))[: data_args.max_eval_samples])
        make_trainer = functools.partial(
            PretrainingTrainer,
            model=model,
            eval_dataset=validation,
            data_collator=collator,
            processing_class=tokenizer,
            data_settings=data.settings,
            allow_changed_data=data_args.allow_changed_data,
            command_settings=initial_weights,
            teacher=teacher,
        )
        if training_args.dry_run:
            parts = {"training": functools.partial(make_trainer, phases=data.phases)}
            if len(data.phases) > 1:
                each = [functools.partial(make_trainer, phases=[phase]) for phase in data.phases]
                parts = {f"phase {number}": make for number, make in enumerate(each, start=1)}
            run_dry(parts, training_args, checkpoint, [] if validation is None else [validation])
            return
        trainer = make_trainer(args=training_args, phases=data.phases)
        trainer.base_model = model_args.model_name_or_path
        _run(trainer, data, checkpoint, epochs_dir)


def _check_arguments(model_args: PretrainingModelArguments, data_args: PretrainingDataArguments) -> None:
    """Checks that a model has only one kind of initial weights and one objective."""
    given = {
        "--bigram_init": data_args.bigram_init,
        "--teacher_name_or_path": model_args.teacher_name_or_path is not None,
        "--objective electra": data_args.objective == "electra",
        "--model_name_or_path": model_args.model_name_or_path is not None and data_args.bigram_init,
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    if len(flags) > 1:
        raise InputError(f"{flags[0]} cannot be combined with {flags[1]}. Remove one of these flags.")


def _adapt_config(
    config: SnugBertConfig,
    teacher_config: SnugBertConfig | None,
    model_args: PretrainingModelArguments,
    data_args: PretrainingDataArguments,
) -> list[int] | None:
    """Adapts a configuration to the arguments, and checks it. Returns the teacher's layers that a student keeps."""
    layers = None
    configs: dict[str, Any] = {str(model_args.model_name_or_path or model_args.config_name): config}
    if data_args.objective == "electra" and model_args.model_name_or_path is None:
        given = model_args.config_overrides or ""
        config.update({name: value for name, value in ELECTRA_HEADS.items() if f"{name}=" not in given})
    if teacher_config is not None:
        configs = {str(model_args.teacher_name_or_path): teacher_config} | configs
        if model_args.num_student_layers is not None:
            number, which = model_args.num_student_layers, model_args.student_layers
            layers = choose_student_layers(teacher_config.num_hidden_layers, number, which)
            config.num_hidden_layers = number
    if data_args.bigram_init:
        check_bigram_config(config)
    for name, each in configs.items():
        limit = min(LONGEST_EXAMPLE, compute_max_length(each))
        for length in (data_args.max_seq_length, *(phase.max_seq_length for phase in data_args.parsed_phases)):
            if not SHORTEST_EXAMPLE <= length <= limit:
                flag = "--max_seq_length" if length == data_args.max_seq_length else "--phases: length"
                raise InputError(
                    f"{flag} {length} must be between {SHORTEST_EXAMPLE} and the limit of {name} ({limit})."
                )
        if data_args.dataset_objective in PAIR_TASKS and each.type_vocab_size < 2:
            raise InputError(
                f"--objective {data_args.objective}: sentence pairs need two token types, but {name} has "
                f"{each.type_vocab_size}. Use --objective mlm."
            )
    return layers


def _choose_language(
    model_args: PretrainingModelArguments,
    given: str | None,
    corpus: Corpus | None,
    tokenizer: PreTrainedTokenizerBase,
    config: SnugBertConfig,
) -> str | None:
    """Returns the language of the text, and stores it in the model and the tokenizer that the run saves."""
    start = model_args.teacher_name_or_path if model_args.model_name_or_path is None else model_args.model_name_or_path
    if start is None:
        vars(config).pop("language", None)  # --config_name may be a trained model
    stored = stored_in_model(config, tokenizer, start, model_args.tokenizer_name)
    if corpus is not None:
        place = f"the corpus {hide_credentials(str(corpus.folder))}"
        stored = [(place, corpus.language), *stored]
    language = choose_language(given, stored)
    store_language(language, config, tokenizer)
    return language


def _show_examples(dataset: Any, collator: SnugBertDataCollatorForPretraining, number: int) -> None:
    """Prints the first training examples with their masks, as the model sees them."""
    print(f"\n{ELECTRA_LEGEND if collator.replacement_keys else LEGEND}")
    for index in range(min(number, len(dataset))):
        shown = dataset[index] | {"mlm_probability": collator.mask_rates[0]}
        print(f"\n{index + 1}. {collator.describe(shown, dataset.objective)}")


def _collect_initial_weights(
    model_args: PretrainingModelArguments,
    data_args: PretrainingDataArguments,
    teacher: PreTrainedModel | None,
    layers: list[int] | None,
) -> dict[str, Any]:
    """Collects the arguments that determine the initial weights, for comparison when a run is resumed."""
    initial_weights: dict[str, Any] = {
        "--objective": data_args.objective,
        "--model_name_or_path": find_base_model(model_args.model_name_or_path)[1],
        "--bigram_init": data_args.bigram_init,
        "--teacher_name_or_path": None if teacher is None else f"weights {hash_model(teacher)}",
    }
    if layers is not None:  # the teacher's weights are compared, not its name
        initial_weights |= {"--model_name_or_path": "layers of the teacher", "--student_layers": layers}
    if data_args.objective == "electra":
        initial_weights["--generator_size"] = data_args.generator_size
    return initial_weights


def _load_model(
    model_args: PretrainingModelArguments,
    data_args: PretrainingDataArguments,
    config: SnugBertConfig,
    tokenizer: PreTrainedTokenizerBase,
    teacher_config: SnugBertConfig | None,
    layers: list[int] | None,
) -> PreTrainedModel:
    """Loads the model. A student starts from `layers` of the teacher. Other heads start from random weights."""
    if data_args.objective == "electra":
        return load_pair(model_args, config, tokenizer, data_args.generator_size)
    config.architectures = []  # an ELECTRA class would select ELECTRA's head
    auto_class = AutoModelForMaskedLM if data_args.objective == "mlm" else AutoModelForPreTraining
    if teacher_config is not None and layers is not None:
        logger.info("student: layers %s of the teacher's %d", layers, teacher_config.num_hidden_layers)
        config = copy.deepcopy(config)
        config.num_hidden_layers = teacher_config.num_hidden_layers
        return make_student(load_model(auto_class, model_args.as_teacher(), config), layers)
    return load_model(auto_class, model_args, config)


def _check_training(
    model: PreTrainedModel,
    training_args: PretrainingArguments,
    initial_weights: dict[str, Any],
    checkpoint: str | None,
) -> None:
    """Checks the free space, the training arguments and the settings of a resumed run before text is prepared."""
    # Both files of ELECTRA contain the shared embeddings.
    models = (model.discriminator, model.generator) if isinstance(model, ElectraPair) else (model,)
    check_disk_space(training_args, [parameter for each in models for parameter in each.parameters()])
    # Creates an optimizer and a schedule without data.
    args = as_temporary(training_args, tempfile.gettempdir())
    args.report_to, args.eval_strategy = training_args.report_to, IntervalStrategy.NO
    steps = args.max_steps if args.max_steps > 0 else 10**9
    trainer = PretrainingTrainer(model=model, args=args, command_settings=initial_weights)
    trainer.check_optimizer(steps)
    if checkpoint is not None:  # the run compares again, with its data
        trainer.run_settings.compare(checkpoint, collect_training_settings(trainer.args, trainer.model_config, ()))
        if args.max_steps > 0:
            check_steps(checkpoint, args, args.max_steps, read_state(checkpoint).global_step)


@dataclass
class _Data:
    """The text of a run and its examples. Without training, it has no phases and no settings."""

    train_corpus: Corpus | None
    phases: list[Phase] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    validation: PretrainingDataset | None = None


def _prepare_data(
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | None,
    prepared: Corpus | None,
    epochs_dir: Path,
) -> _Data:
    """Prepares the text, makes its examples, and plans the phases of the run."""
    do_train, do_eval = training_args.do_train, training_args.do_eval
    with raise_together():  # machines may take hours to prepare the text
        train_corpus, validation_corpus = load_corpora(data_args, do_train, do_eval, cache_dir, tokenizer, prepared)
    make_examples = functools.partial(make_dataset, data_args=data_args, tokenizer=tokenizer, epochs_dir=epochs_dir)
    data = _Data(train_corpus)
    if do_train and train_corpus is not None:
        seed = training_args.examples_seed
        datasets = [
            make_examples(train_corpus, "training text", length, seed=seed, objective=objective)
            for length, _, objective in data_args.parsed_phases
        ]
        data.phases = plan_phases(datasets, [phase.share for phase in data_args.parsed_phases], training_args)
        for text in describe_phases(data.phases):
            logger.info("training: %s", text)
        data.settings = collect_example_settings(train_corpus, data.phases, data_args, training_args)
    if validation_corpus is not None:
        length = data_args.max_seq_length
        data.validation = make_examples(validation_corpus, "validation text", length, seed=VALIDATION_SEED)
    return data


def _run(trainer: PretrainingTrainer, data: _Data, checkpoint: str | None, epochs_dir: Path) -> None:
    """Trains, evaluates and reports."""
    args, output_dir = trainer.args, Path(trainer.args.output_dir or "")
    if args.do_train:
        trained = trainer.train_and_save(checkpoint)
    metrics: dict[str, float] = {}
    baselines: dict[str, float] = {}  # the metrics of trivial predictions
    if data.validation is not None:
        baselines = compute_baselines(data.validation, data.train_corpus)
        evaluated = trainer.evaluate()
        if "eval_replaced" in evaluated:
            baselines |= detection_baseline(evaluated["eval_replaced"])
        evaluated |= {f"eval_unigram_{name}": value for name, value in baselines.items()}
        trainer.save_metrics("eval", evaluated)
        metrics = {name.removeprefix("eval_"): value for name, value in evaluated.items()}
    if args.local_process_index == 0:
        shutil.rmtree(epochs_dir, ignore_errors=True)
    if args.should_save:
        if args.do_train:
            trainer.report(metrics, baselines)
            after = " in" if checkpoint is None else f". The steps after {Path(checkpoint).name} took"
            duration = format_duration(trained["train_runtime"])
            steps = format_count(trainer.state.global_step, "step")
            print(f"\nTrained {steps}{after} {duration}.")
        if data.validation is not None:
            print(f"\n{format_results(metrics, baselines)}")
        results = {"metrics": "eval_results.json"} if metrics else {}  # ignores an earlier run's results
        files = {name: output_dir / file for name, file in ((WRITTEN if args.do_train else {}) | results).items()}
        print("", *(f"{name:<12}{file}" for name, file in files.items() if file.exists()), sep="\n")
    if args.do_train and args.push_to_hub:
        trainer.push_to_hub()
