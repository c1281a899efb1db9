"""The files that sentence-transformers adds to a model folder: modules, pooling, prompts, and a reranker's activation.

The files are copied in the format of sentence-transformers 3 to 5.3. Later versions read this format, too. Some
servers support only this format: text-embeddings-inference 1.9, infinity 0.0.78 and vLLM up to 0.21. Versions from 5.4
on write a different format. With it, some of these servers fail, and other servers use the wrong pooling.
"""

import shutil
from pathlib import Path
from typing import Any

from snugbert.errors import InputError
from snugbert.files import parse_json, read_json, write_json

MODULES = "modules.json"
SETTINGS_FILE = "config_sentence_transformers.json"  # prompts, similarity, and the activation of a CrossEncoder
TRANSFORMER = "sentence_bert_config.json"
# Names of that file in old folders. sentence-transformers and servers look for all of these names.
TRANSFORMER_NAMES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SENTENCE_TRANSFORMERS_FILES = (MODULES, SETTINGS_FILE, *TRANSFORMER_NAMES)
# Modules that exist in all versions. Folders with other modules are copied unchanged.
OLD_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout", "WeightedLayerPooling")
# Pooling mode -> its name in the old format, where each mode is true or false. Several modes are concatenated in this
# order.
POOLING_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
CODE_SUFFIXES = (".py", ".so", ".pyc")  # files of modules that are not copied
# Settings that sentence-transformers 3 accepts.
DENSE_SETTINGS = ("in_features", "out_features", "bias", "activation_function")
# Where versions before 5.4 and servers look for the activation of a CrossEncoder in config.json.
ACTIVATION = "sbert_ce_default_activation_function"
ACTIVATIONS = "sentence_transformers"


def read_modules(folder: Path) -> list[dict[str, str]]:
    """Reads the modules of an embedding model: `type` and `path` of each. Empty if the folder has none."""
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        text = file.read_text(encoding="utf-8")
        modules = parse_json(text)
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}).") from error
    is_list = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    if (
        not (modules and is_list)
        or not all(isinstance(module.get(name), str) for module in modules for name in ("path", "type"))
        or not _name(modules[0]).endswith("Transformer")
    ):
        raise InputError(
            f"{file}: expected a list of modules with `type` and `path`. The first module must be a Transformer."
        )
    for module in modules:
        path = Path(module["path"])
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{file}: the path {module['path']!r} is outside the folder.")
    return modules


def _name(module: dict[str, str]) -> str:
    return module["type"].rpartition(".")[2]


def find_model_folder(source: Path) -> Path:
    """Returns the folder of weights and tokenizer. Old embedding models have them in 0_Transformer."""
    modules = read_modules(source)
    return source / modules[0]["path"] if modules else source


def has_pooling(source: Path) -> bool:
    """Whether the folder is an embedding model that pools hidden states.

    Its config.json may declare a head, such as ForMaskedLM, but only the encoder is used.
    """
    names = [_name(module) for module in read_modules(source)]
    return names[:1] == ["Transformer"] and "Pooling" in names


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers saved the folder from a CrossEncoder."""
    if (folder / SETTINGS_FILE).is_file() and read_json(folder / SETTINGS_FILE).get("model_type") == "CrossEncoder":
        return True
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return ACTIVATION in config or "activation_fn" in (config.get(ACTIVATIONS) or {})


def copy_files(source: Path, written: Path) -> list[str]:
    """Copies modules, pooling, normalization, prompts and the activation to a converted model.

    `written` is the folder of the converted model and has its config.json. Returns notes to show to the user.
    """
    modules = read_modules(source)
    if (source / SETTINGS_FILE).is_file() and _is_data(source / SETTINGS_FILE, source):
        shutil.copyfile(source / SETTINGS_FILE, written / SETTINGS_FILE)
        _write_activation(source, written)
    elif not modules:
        return []
    model_folder = find_model_folder(source)
    others = [each["type"] for each in modules if not _is_old(each)]
    if others or not _has_old_pooling(modules, source) or (is_cross_encoder(source) and len(modules) > 1):
        for name in TRANSFORMER_NAMES:
            if (model_folder / name).is_file() and _is_data(model_folder / name, source):
                shutil.copyfile(model_folder / name, written / name)
        for module in modules[1:]:
            _copy_folder(module, source, written)
        modules[0]["path"] = ""
        write_json(written / MODULES, modules)
        reason = f"has {', '.join(others)}" if others else "has modules that old versions cannot express"
        return [f"modules.json {reason}, so its format was not changed. Older servers may not read this file."]
    _write_transformer(model_folder, written)
    if is_cross_encoder(source):  # old versions write no modules.json for a CrossEncoder
        return []
    for module in modules[1:]:
        _copy_module(module, source, written)
    if modules:
        listed = [
            {
                "idx": index,
                "name": str(index),
                "path": module["path"] if index else "",
                "type": f"sentence_transformers.models.{_name(module)}",
            }
            for index, module in enumerate(modules)
        ]
        write_json(written / MODULES, listed)
    return []


def _is_old(module: dict[str, str]) -> bool:
    return module["type"].startswith("sentence_transformers.") and _name(module) in OLD_MODULES


def _write_transformer(folder: Path, written: Path) -> None:
    """Writes the maximum number of tokens and whether text is lowercased."""
    values = next((read_json(folder / name) for name in TRANSFORMER_NAMES if (folder / name).is_file()), {})
    # From 5.4 on, sentence-transformers saves the maximum with the tokenizer.
    limit = values.get("max_seq_length") or read_json(written / "tokenizer_config.json").get("model_max_length")
    if isinstance(limit, int) and limit < 10**9:
        lowercase = bool(values.get("do_lower_case", False))
        write_json(written / TRANSFORMER, {"max_seq_length": limit, "do_lower_case": lowercase})


def set_max_length(folder: Path, max_length: int) -> None:
    """Sets the maximum number of tokens of a converted model, if sentence-transformers stores this number."""
    for file in (folder / name for name in TRANSFORMER_NAMES):
        if file.is_file():
            write_json(file, {**read_json(file), "max_seq_length": max_length})


def _write_activation(source: Path, written: Path) -> None:
    """Writes the activation of a reranker where versions before 5.4 and servers read it."""
    activation = read_json(source / SETTINGS_FILE).get("activation_fn")
    if activation is not None:
        config = read_json(written / "config.json")
        config[ACTIVATIONS] = {**(config.get(ACTIVATIONS) or {}), "activation_fn": activation}
        config[ACTIVATION] = activation
        write_json(written / "config.json", config)


def _is_data(path: Path, source: Path) -> bool:
    """Whether a file or folder of a model may be copied. Code may not be copied.

    Links out of the folder are refused: an untrusted model could link to any file of this machine. In the cache of the
    Hub, every file is a link into the folder of its repository.
    """
    root = source.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root
    if not path.resolve().is_relative_to(root):
        raise InputError(f"{path} is a link to a file outside the model. Replace the link with the file.")
    return path.suffix not in CODE_SUFFIXES


def _copy_folder(module: dict[str, str], source: Path, written: Path) -> Path:
    folder, copy = source / module["path"], written / module["path"]
    if folder.is_dir():

        def ignore(place: str, names: list[str]) -> list[str]:
            return [name for name in names if not _is_data(Path(place, name), source)]

        shutil.copytree(folder, copy, ignore=ignore)
    elif _name(module) != "Normalize":  # which needs no files
        raise InputError(f"{folder}: the folder of the module {module['type']} is missing.")
    copy.mkdir(parents=True, exist_ok=True)  # Hub downloads have no empty folders
    return copy


def _copy_module(module: dict[str, str], source: Path, written: Path) -> None:
    config = _copy_folder(module, source, written) / "config.json"
    if _name(module) == "Pooling":
        write_json(config, _convert_pooling(read_json(config)))
    elif _name(module) == "Dense":
        values = read_json(config)
        write_json(config, {name: values[name] for name in DENSE_SETTINGS if name in values})


def _has_old_pooling(modules: list[dict[str, str]], source: Path) -> bool:
    """Whether the old format can express the pooling: it concatenates several modes in a fixed order."""
    for module in modules:
        if _name(module) == "Pooling":
            file = source / module["path"] / "config.json"
            values = read_json(file)
            modes, size = _read_modes(values), _read_size(values)
            if not modes or not all(mode in list(POOLING_MODES) for mode in modes) or not isinstance(size, int):
                raise InputError(f"{file}: unknown pooling. Expected one or more of {', '.join(POOLING_MODES)}.")
            if modes != [mode for mode in POOLING_MODES if mode in modes]:
                return False
    return True


def _read_modes(values: dict[str, Any]) -> list[str]:
    modes = values.get("pooling_mode", [mode for mode, name in POOLING_MODES.items() if values.get(name)])
    return modes if isinstance(modes, list) else [modes]


def _read_size(values: dict[str, Any]) -> Any:
    return values.get("embedding_dimension", values.get("word_embedding_dimension"))


def _convert_pooling(values: dict[str, Any]) -> dict[str, Any]:
    """Converts the settings of Pooling to the old format, or adds missing settings to it."""
    modes = _read_modes(values)
    return {
        "word_embedding_dimension": _read_size(values),
        **{name: mode in modes for mode, name in POOLING_MODES.items()},
        "include_prompt": values.get("include_prompt", True),
    }
