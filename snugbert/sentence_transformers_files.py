"""The files that sentence-transformers adds to a model folder: modules, pooling, prompts, and a reranker's activation.

They are copied in the format of sentence-transformers 3 to 5.3. All later versions read it too, and so do the servers
that know only this format: text-embeddings-inference 1.9, infinity 0.0.78 and vLLM up to 0.21. Versions from 5.4 on
write another format, which stops some of these servers and makes others use the wrong pooling.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from snugbert.errors import InputError
from snugbert.json_files import parse_json, read_json

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"  # prompts, similarity, and the activation of a CrossEncoder
TRANSFORMER = "sentence_bert_config.json"
# The names of TRANSFORMER in old folders, as sentence-transformers and servers look for them.
TRANSFORMER_NAMES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
FILES = (MODULES, SETTINGS, *TRANSFORMER_NAMES)
# Pooling mode -> its name in the old format, where each mode is true or false.
POOLING_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# Settings that sentence-transformers 3 accepts.
DENSE_SETTINGS = ("in_features", "out_features", "bias", "activation_function")


def read_modules(folder: Path) -> list[dict[str, str]]:
    """Reads the modules of an embedding model: `type` and `path` of each. Empty if the folder has none.

    Raises:
        InputError: modules.json is damaged.
    """
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        modules = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}).") from error
    valid = isinstance(modules, list) and all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and isinstance(module.get("path"), str)
        for module in modules
    )
    if not valid or not modules or _name(modules[0]) != "Transformer":
        raise InputError(f"{file}: expected a list of modules with `type` and `path`, a Transformer first.")
    for module in modules:
        path = Path(module["path"])
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{file}: the path {module['path']!r} is outside the folder.")
    return modules


def _name(module: dict[str, str]) -> str:
    return module["type"].rpartition(".")[2]


def find_model_folder(source: Path) -> Path:
    """Returns the folder of weights and tokenizer. Old embedding models have them in a folder such as 0_Transformer.

    Args:
        source: the model's folder, or a prefix of TensorFlow files.
    """
    modules = read_modules(source)
    return source / modules[0]["path"] if modules else source


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers saved the folder from a CrossEncoder."""
    return (folder / SETTINGS).is_file() and read_json(folder / SETTINGS).get("model_type") == "CrossEncoder"


def copy_files(source: Path, written: Path) -> list[str]:
    """Copies modules, pooling, normalization, prompts and the activation to a converted model.

    Args:
        source: folder of the original model.
        written: folder of the converted model, which has its config.json.

    Returns:
        Notes to show to the user. Empty if everything was copied, or if there is nothing to copy.

    Raises:
        InputError: a file is missing or damaged.
    """
    modules = read_modules(source)
    if (source / SETTINGS).is_file():
        shutil.copyfile(source / SETTINGS, written / SETTINGS)
    if not modules and not (source / SETTINGS).is_file():
        return []
    max_length = _read_max_length(find_model_folder(source), written)
    if max_length is not None:
        _write_json(written / TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    if is_cross_encoder(source):
        _write_activation(source, written)
        return []
    foreign = [module["type"] for module in modules if not module["type"].startswith("sentence_transformers.")]
    for module in modules[1:]:
        _copy_module(module, source, written)
    if modules:
        listed = [
            {
                "idx": index,
                "name": str(index),
                "path": module["path"] if index else "",
                "type": module["type"]
                if module["type"] in foreign
                else f"sentence_transformers.models.{_name(module)}",
            }
            for index, module in enumerate(modules)
        ]
        _write_json(written / MODULES, listed)
    return [f"modules.json names {name}. Its code was not copied." for name in foreign]


def _read_max_length(folder: Path, written: Path) -> int | None:
    """Returns the maximum number of tokens; None if there is no limit."""
    for name in TRANSFORMER_NAMES:
        if (folder / name).is_file():
            given = read_json(folder / name).get("max_seq_length")
            if isinstance(given, int):
                return given
    # From 5.4 on, sentence-transformers saves it with the tokenizer.
    limit = read_json(written / "tokenizer_config.json").get("model_max_length")
    return limit if isinstance(limit, int) and limit < 10**9 else None


def _write_activation(source: Path, written: Path) -> None:
    """Writes the activation of a reranker where versions before 5.4 and servers read it: in config.json."""
    activation = read_json(source / SETTINGS).get("activation_fn")
    if activation is not None:
        config = read_json(written / "config.json")
        config["sentence_transformers"] = {**config.get("sentence_transformers", {}), "activation_fn": activation}
        config["sbert_ce_default_activation_function"] = activation
        _write_json(written / "config.json", config)


def _copy_module(module: dict[str, str], source: Path, written: Path) -> None:
    folder, copy = source / module["path"], written / module["path"]
    config = folder / "config.json"
    if folder.is_dir():
        shutil.copytree(folder, copy)
    elif _name(module) != "Normalize":  # which needs no files
        raise InputError(f"{folder}: the folder of the module {module['type']} is missing.")
    copy.mkdir(parents=True, exist_ok=True)  # Hub downloads have no empty folders
    if _name(module) == "Pooling":
        _write_json(copy / "config.json", _old_pooling(read_json(config), config))
    elif _name(module) == "Dense":
        values = read_json(config)
        _write_json(copy / "config.json", {name: values[name] for name in DENSE_SETTINGS if name in values})


def _old_pooling(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """Converts the settings of Pooling to the old format. Settings in the old format get what they lack."""
    modes = values.get("pooling_mode", [mode for mode, name in POOLING_MODES.items() if values.get(name)])
    modes = [modes] if isinstance(modes, str) else modes
    size = values.get("embedding_dimension", values.get("word_embedding_dimension"))
    if not modes or not set(modes) <= set(POOLING_MODES) or not isinstance(size, int):
        raise InputError(f"{file}: unknown pooling. Expected one or more of {', '.join(POOLING_MODES)}.")
    return {
        "word_embedding_dimension": size,
        **{name: mode in modes for mode, name in POOLING_MODES.items()},
        "include_prompt": values.get("include_prompt", True),
    }


def _write_json(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
