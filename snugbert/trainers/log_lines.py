"""What a run prints: one line per log entry, a progress bar, and durations."""

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback

# Metrics that log lines omit. Log files have them.
NOT_PRINTED = (
    "epoch",
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "model_preparation_time",
    "tokens",
    "padding",
)
LOG_NAMES = {
    "mlm_loss": "MLM loss",
    "mlm_accuracy": "MLM accuracy",
    "mlm_gain": "MLM gain",
    "nsp_loss": "NSP loss",
    "nsp_accuracy": "NSP accuracy",
    "tokens_per_second": "tokens/s",
    "mfu": "MFU",
}


class LogLines(TrainerCallback):
    """Prints the metrics of a step or an evaluation as one line on standard error."""

    last_line = ""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Called by Trainer with the metrics. A summary follows the run, so the run's totals are not printed."""
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            line = format_log_line(logs, state.global_step, state.max_steps)
            # The last evaluation is often repeated after training. Without training, the caller prints the metrics.
            if line != self.last_line and state.max_steps > 0:
                tqdm.write(line, file=sys.stderr)
            self.last_line = line


class ProgressBar(ProgressCallback):
    """The progress bar of transformers without its log lines."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Prints nothing. [`LogLines`] does."""


def format_log_line(logs: Mapping[str, float], step: int, max_steps: int) -> str:
    """Formats the metrics of a step, or of an evaluation, whose names begin with `eval_`.

    step  200/1000  epoch 0.61  loss 6.5210  learning rate 9.0e-05
    eval  200/1000  epoch 0.61  loss 6.3021  accuracy 0.1250
    """
    kind = "eval" if any(name.startswith("eval_") for name in logs) else "step"
    width = len(str(max_steps))
    parts = [f"{kind} {step:>{width}}/{max_steps}"]
    if "epoch" in logs:
        parts.append(f"epoch {logs['epoch']:.2f}")
    for name, value in logs.items():
        name = name.removeprefix("eval_")
        if not f"_{name}".endswith(tuple(f"_{omitted}" for omitted in NOT_PRINTED)):
            parts.append(f"{_format_name(name)} {_format_metric(name, value)}")
    return "  ".join(parts)


def format_duration(seconds: float) -> str:
    """Returns a duration for people: "45 s", "12 min 5 s" or "3 h 7 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _format_name(name: str) -> str:
    """Returns the printed name of a metric. It may begin with the name of an evaluation set."""
    for metric, printed in LOG_NAMES.items():
        if f"_{name}".endswith(f"_{metric}"):
            return name.removesuffix(metric).replace("_", " ") + printed
    return name.replace("_", " ")


def _format_metric(name: str, value: float) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name == "learning_rate":
        return f"{value:.1e}"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:6.4f}" if abs(value) < 10 else f"{value:6.2f}"
