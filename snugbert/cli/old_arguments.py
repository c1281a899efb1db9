"""Arguments of transformers 4.40 to 4.57 that 5.23 lacks, but that have one meaning left: their new names."""

from collections.abc import Container, Mapping
from typing import Any

# Arguments with the same values. A `warmup_steps` below 1 is a share of the steps.
NEW_NAMES = {
    "warmup_ratio": "warmup_steps",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_token": "hub_token",
    "push_to_hub_model_id": "hub_model_id",
    "torchdynamo": "torch_compile_backend",
}
# Switches that became values of other arguments.
SWITCHES = {"group_by_length": ("train_sampling_strategy", "group_by_length"), "adafactor": ("optim", "adafactor")}
RENAMED = NEW_NAMES | {old: new for old, (new, _) in SWITCHES.items()}


def translate(arguments: Mapping[str, Any], line: Container[str] = ()) -> dict[str, Any]:
    """Returns arguments with new names. An old name counts if the new name is missing, or has a value such as 0.

    `line`: names on a command line. They count before names from a file.
    """
    old = [name for name in arguments if name in RENAMED]
    translated = {name: value for name, value in arguments.items() if name not in old}
    for name in old:
        new = RENAMED[name]
        precedence = (name in line) - (new in line)
        is_given = arguments[name] is not None and arguments[name] is not False
        if is_given and (precedence > 0 or (precedence == 0 and not translated.get(new))):
            translated[new] = SWITCHES[name][1] if name in SWITCHES else arguments[name]
    return translated
