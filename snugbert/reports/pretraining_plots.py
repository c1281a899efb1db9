"""The plot of pretraining: `training.png`, the curves of a run.

The curves come from the trainer's log. A training line has `step`, `mlm_loss` and `mlm_accuracy`. Sentence pairs add
`nsp_loss` and `nsp_accuracy`. ELECTRA's discriminator adds `disc_loss` and `disc_accuracy`. An evaluation line has
`step` and the same metrics with the prefix `eval_`. Losses are in nats, accuracies between 0 and 1.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from snugbert.reports.plots import TITLE, Curve, draw_curves, new_figure, save_figure, tidy

logger = logging.getLogger(__name__)

TRAINING_PLOT = "training.png"  # in the output folder
TASK_TITLES = {"mlm": "Masked tokens", "nsp": "Sentence pairs", "disc": "Replaced tokens"}
MEASURES = {"loss": "loss (nats)", "accuracy": "accuracy"}
FORMATS = {"loss": ".3f", "accuracy": ".1%"}


class DrawTraining(TrainerCallback):
    """Draws `training.png` when a checkpoint is saved, in about a second. The end of the run draws it again."""

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Called by Trainer after a checkpoint was saved."""
        if state.is_world_process_zero and state.log_history and state.global_step < state.max_steps:
            draw_log(state.log_history, Path(args.output_dir or "") / TRAINING_PLOT)


def draw_log(log: list[dict[str, Any]], image_file: Path, baselines: Mapping[str, float] | None = None) -> None:
    """Draws the log of a run. A plot that cannot be drawn does not stop the run."""
    try:
        draw_training(log, image_file, baselines)
    except Exception as error:
        logger.warning("%s was not drawn (%s: %s)", image_file, type(error).__name__, error)


def draw_training(log: list[dict[str, Any]], image_file: Path, baselines: Mapping[str, float] | None = None) -> None:
    """Draws losses and accuracies over the steps. There is a column for each task."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    tasks = [task for task in TASK_TITLES if any(f"{task}_loss" in name for line in log for name in line)]
    if not tasks:
        image_file.unlink(missing_ok=True)
        return
    figure = new_figure(6 * len(tasks) + 0.5, 7)
    panels = figure.subplots(len(MEASURES), len(tasks), sharex=True, squeeze=False)
    for row, (measure, label) in zip(panels, MEASURES.items(), strict=True):
        for panel, task in zip(row, tasks, strict=True):
            name = f"{task}_{measure}"
            curves = _curve(log, name), _curve(log, f"eval_{name}")
            draw_curves(panel, *curves, FORMATS[measure], (baselines or {}).get(name))
            panel.legend(frameon=False)
            panel.set_ylabel(label)
            tidy(panel)
    for above, below, task in zip(*panels, tasks, strict=True):
        above.set_title(TASK_TITLES[task], **TITLE)
        below.set(xlabel="step", xlim=(0, None))
        below.xaxis.set_major_formatter(EngFormatter())
        below.yaxis.set_major_formatter(PercentFormatter(1))
    save_figure(figure, image_file)


def _curve(lines: list[dict[str, Any]], name: str) -> Curve:
    points = [(line["step"], line[name]) for line in lines if name in line]
    return [x for x, _ in points], [y for _, y in points]
