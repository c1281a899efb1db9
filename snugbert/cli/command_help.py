"""The text of `snugbert <command> --help`: arguments in groups, one line each. `--help-all` lists all of them."""

import textwrap
from argparse import Action
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum

from transformers import TrainingArguments

WIDTH = 119

# Fields of `TrainingArguments` that `--help` lists, in addition to our own arguments. `--help-all` lists all fields.
TRAINING_HELP = {
    "output_dir": "Folder for the model, its results and its checkpoints. Default: trainer_output.",
    "per_device_train_batch_size": "Training examples per device and batch.",
    "per_device_eval_batch_size": "Examples per device and batch for evaluation and prediction.",
    "num_train_epochs": "Number of passes over the training examples.",
    "max_steps": "Optimizer steps, instead of --num_train_epochs. Default: not set.",
    "learning_rate": "Peak learning rate.",
    "lr_scheduler_type": "Schedule after warmup: linear, cosine, constant_with_warmup, ...",
    "gradient_accumulation_steps": "Batches per optimizer step.",
    "eval_strategy": "When to evaluate during training: no, steps or epoch.",
    "eval_steps": "Steps between evaluations. Default: --logging_steps (fine-tuning: 500 if below 1).",
    "seed": "Random seed.",
    "use_cpu": "Train on the CPU even if there is a GPU.",
    "logging_steps": "Steps between log lines. A value below 1 is a share of all steps.",
    "save_strategy": "When to save a checkpoint: no, steps, epoch or best.",
    "save_steps": "Steps between checkpoints. A value below 1 is a share of all steps.",
    "resume_from_checkpoint": "Checkpoint folder, or true for the newest in --output_dir. Default: new run.",
    "push_to_hub": "Upload the model and its card to the Hub.",
}
OUTPUT = (
    "output_dir",
    "overwrite_output_dir",
    "logging_steps",
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "report_to",
    "resume_from_checkpoint",
    "push_to_hub",
    "hub_model_id",
)
GROUPS = ("data", "tokenizer", "model", "training", "output", "more")


def format_help(
    usage: str,
    description: str,
    example: str,
    actions: Iterable[Action],
    dataclass_types: Iterable[type],
    advanced: set[str],
    everything: bool,
) -> str:
    """Formats the help of a command, in which each argument appears once, by its first name.

    `help_group` of a dataclass is the title of its group. The default is "training" for `TrainingArguments` and "data"
    for other classes. Without `everything`, `advanced` arguments are left out, and long texts are cut to a line.
    """
    groups = {field.name: _get_group(dtype) for dtype in dataclass_types for field in fields(dtype)}  # type: ignore[arg-type]
    stock_help = {field.name: field.metadata.get("help") for field in fields(TrainingArguments)}
    rows: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
    for action in actions:
        if action.option_strings and action.option_strings[0].startswith("--no_"):
            if action.dest != action.option_strings[0].removeprefix("--"):
                continue  # the opposite of another argument, which takes true or false
        text = action.help or ""
        stock = text == stock_help.get(action.dest)
        if stock and action.dest in TRAINING_HELP:
            stock, text = False, TRAINING_HELP[action.dest]
        if everything or not (stock or action.dest in advanced):
            group = "output" if action.dest in OUTPUT else groups.get(action.dest, "more")
            name = action.option_strings[-1] if action.dest == "help" else (action.option_strings or [action.dest])[0]
            rows[group].append((name, _complete(text, action, everything)))
    width = max(len(name) for group in rows.values() for name, _ in group) + 4
    lines = [f"usage: {usage}", "", *textwrap.wrap(description, WIDTH)]
    for group, arguments in rows.items():
        if arguments:
            lines += ["", f"{group}:"]
        for name, text in arguments:
            start = f"  {name}".ljust(width)
            lines += textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * width) or [start]
    lines += ["", *textwrap.wrap(f"example: {example}", WIDTH, subsequent_indent="    "), ""]
    if not everything:
        lines += ["--config FILE.yaml reads the same arguments from a YAML file. --help-all lists all arguments."]
    return "\n".join(lines).rstrip() + "\n"


def _get_group(dataclass_type: type) -> str:
    default = "training" if issubclass(dataclass_type, TrainingArguments) else "data"
    return getattr(dataclass_type, "help_group", default)


def _complete(text: str, action: Action, everything: bool) -> str:
    """Adds the choices and the default if the help text does not name them."""
    text = " ".join(text.replace("%%", "%").split())
    if text and text[-1] not in ".!?)":
        text += "."
    if everything and action.choices and not all(str(choice) in text for choice in action.choices):
        text += f" Choices: {', '.join(map(str, action.choices))}."
    value = action.default.value if isinstance(action.default, Enum) else action.default
    if action.required and action.option_strings:
        text += " Required."
    elif value not in (None, "", [], {}, "==SUPPRESS==") and "default" not in text.lower():
        text += f" Default: {_format_default(value)}."
    return text


def _format_default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
