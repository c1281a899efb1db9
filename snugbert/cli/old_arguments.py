"""Arguments that transformers 4.40 to 4.57 or its scripts had and 5.23 lacks: their new names, or what to do."""

from collections.abc import Container, Mapping
from typing import Any

# Renamed arguments, which take the same values as before. A `warmup_steps` below 1 is a share of the steps.
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
REMEDIES = {
    ("logging_dir",): "Set the environment variable TENSORBOARD_LOGGING_DIR instead.",
    ("save_safetensors",): "Weights are always saved as safetensors. Remove it.",
    ("use_fast_tokenizer",): "Tokenizers are always fast. Remove it.",
    ("low_cpu_mem_usage", "use_mps_device"): "This is the default. Remove it.",
    ("use_auth_token",): "The token of `hf auth login` is used. Remove it, or set token.",
    ("overwrite_cache",): "Changed data are always read again. Remove it.",
    ("preprocessing_num_workers",): "Fine-tuning data are tokenized in seconds. Remove it.",
    ("fp16_opt_level", "half_precision_backend", "fp16_backend"): "torch trains in 16 bits by itself. Remove it.",
    ("jit_mode_eval", "use_ipex"): "For prediction on CPUs, use `snugbert export`. Remove it.",
    ("fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"): "FSDP is not supported. Remove it.",
    ("dispatch_batches", "split_batches"): "Set it in accelerator_config instead.",
    ("push_to_hub_organization",): "Write ORGANIZATION/NAME in hub_model_id instead.",
    ("train_split_name", "validation_split_name", "test_split_name", "remove_splits"): "Rename the splits instead.",
    ("remove_columns", "text_column_delimiter"): "Name one or two columns in text_column_names instead.",
    ("shuffle_train_dataset", "shuffle_seed"): "Data are always shuffled. Set data_seed instead.",
    ("metric_name",): "The task has its metrics. Set metric_for_best_model to choose one.",
    ("model_type",): "Set config_name to a size, such as base, instead.",
    ("validation_split_percentage",): "Put a part of the text into a file, and pass it as validation_file.",
    ("line_by_line",): "Separate documents by blank lines instead.",
    ("include_inputs_for_metrics", "include_tokens_per_second", "past_index", "ray_scope"): "Remove it.",
    ("tpu_num_cores", "tpu_metrics_debug", "use_legacy_prediction_loop", "mp_parameters"): "Remove it.",
}
REMOVED = {name: remedy for names, remedy in REMEDIES.items() for name in names}


def translate(arguments: Mapping[str, Any], line: Container[str] = ()) -> dict[str, Any]:
    """Returns the arguments with new names. An old argument is used if the new one is missing, 0 or false.

    `line`: names on the command line, which take precedence over names from a file.
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
