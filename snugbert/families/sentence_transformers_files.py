"""The files that sentence-transformers adds to a model folder: modules, pooling, prompts, and a reranker's activation.

The files are copied in the format of sentence-transformers 3 to 5.3. Later versions can also read this format. Some
servers support only this format: text-embeddings-inference 1.9, infinity 0.0.78 and vLLM up to 0.21. With the format
of version 5.4, some of these servers fail, and other servers use the wrong pooling.
"""

import shutil
from pathlib import Path
from typing import Any

from snugbert.errors import InputError
from snugbert.files import parse_json, read_json, write_json

MODULES = "modules.json"
SETTINGS_FILE = "config_sentence_transformers.json"  # prompts, similarity, and the activation of a CrossEncoder
TRANSFORMER = "sentence_bert_config.json"
ANY_TRANSFORMER = "sentence_*_config.json"  # in old folders, the name contains the family
SENTENCE_TRANSFORMERS_FILES = (MODULES, SETTINGS_FILE, ANY_TRANSFORMER)
# Modules that exist in all versions. Folders with other modules are copied unchanged.
OLD_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout", "WeightedLayerPooling")
# Pooling mode -> its name in the old format. Several modes are concatenated in this order.
POOLING_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
DENSE_SETTINGS = ("in_features", "out_features", "bias", "activation_function")  # the settings that version 3 accepts
# Entries of config.json in which versions before 5.4 and servers look for the activation of a CrossEncoder.
ACTIVATION = "sbert_ce_default_activation_function"
ACTIVATIONS = "sentence_transformers"


def read_modules(folder: Path) -> list[dict[str, str]]:
    """Reads the modules of an embedding model: `type` and `path` of each. Empty if the folder has none."""
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        modules = parse_json(file.read_text(encoding="utf-8"))
        # Absolute paths and ".." could write or delete files outside the output folder.
        is_valid = _name(modules[0]).endswith("Transformer") and all(
            _name(module) and not Path(module["path"]).is_absolute() and ".." not in Path(module["path"]).parts
            for module in modules
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise InputError(
            f"{file}: expected a list of modules, each with a `type` and the `path` of its folder. The first module "
            "must be a Transformer."
        )
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
    settings, config = (_read_if_present(folder / name) for name in (SETTINGS_FILE, "config.json"))
    is_declared = settings.get("model_type") == "CrossEncoder" or ACTIVATION in config
    return is_declared or "activation_fn" in (config.get(ACTIVATIONS) or {})


def _read_if_present(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def copy_files(source: Path, written: Path, max_length: int | None = None) -> None:
    """Copies modules, pooling, normalization, prompts and the activation to a converted model.

    `written` is the folder of the converted model and has its config.json. `max_length` is the new maximum number of
    tokens. None: as in the source.
    """
    modules, settings = read_modules(source), _read_if_present(source / SETTINGS_FILE)
    if not modules and not settings:
        return
    if settings:
        write_json(written / SETTINGS_FILE, settings)
    if (activation := settings.get("activation_fn")) is not None:
        config = read_json(written / "config.json")
        activations = {**(config.get(ACTIVATIONS) or {}), "activation_fn": activation}
        write_json(written / "config.json", {**config, ACTIVATIONS: activations, ACTIVATION: activation})
    becomes_old = all(
        module["type"].startswith("sentence_transformers.") and _name(module) in OLD_MODULES for module in modules
    )
    values = next(map(read_json, find_model_folder(source).glob(ANY_TRANSFORMER)), {})
    if becomes_old:
        # From 5.4 on, sentence-transformers saves the maximum length with the tokenizer.
        limit = values.get("max_seq_length") or read_json(written / "tokenizer_config.json").get("model_max_length")
        is_limited = isinstance(limit, int) and limit < 10**9
        lowercase = {"do_lower_case": bool(values.get("do_lower_case", False))}
        values = {"max_seq_length": limit, **lowercase} if is_limited else {}
    if values:
        write_json(written / TRANSFORMER, values if max_length is None else {**values, "max_seq_length": max_length})
    for module in modules[1:]:
        _copy_module(module, source, written, becomes_old)
    if modules and not (is_cross_encoder(source) and len(modules) == 1):  # old CrossEncoders list no modules
        modules[0]["path"] = ""
        for module in modules if becomes_old else []:
            module["type"] = f"sentence_transformers.models.{_name(module)}"
        write_json(written / MODULES, modules)


def _copy_module(module: dict[str, str], source: Path, written: Path, becomes_old: bool) -> None:
    root = source.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root  # files in the Hub's cache are links

    def leave_out(place: str, names: list[str]) -> list[str]:
        """Returns the files to leave out: code, and links out of the model, which may be untrusted."""
        is_inside = {name: Path(place, name).resolve().is_relative_to(root) for name in names}
        return [name for name in names if name.endswith((".py", ".pyc", ".so")) or not is_inside[name]]

    folder, copy = source / module["path"], written / module["path"]
    if folder.is_dir() or _name(module) != "Normalize":  # which has no files, so Hub downloads lack its folder
        shutil.copytree(folder, copy, ignore=leave_out)
    copy.mkdir(parents=True, exist_ok=True)
    config = copy / "config.json"
    if becomes_old and _name(module) == "Pooling":
        write_json(config, _convert_pooling(read_json(config)))
    elif becomes_old and _name(module) == "Dense":
        write_json(config, {name: value for name, value in read_json(config).items() if name in DENSE_SETTINGS})


def _convert_pooling(values: dict[str, Any]) -> dict[str, Any]:
    """Converts the settings of Pooling to the old format. If modes are in another order, nothing changes."""
    modes = values.get("pooling_mode", [])
    modes = modes if isinstance(modes, list) else [modes]
    if not modes or modes != [mode for mode in POOLING_MODES if mode in modes]:
        return values
    return {
        "word_embedding_dimension": values.get("embedding_dimension", values.get("word_embedding_dimension")),
        **{name: mode in modes for mode, name in POOLING_MODES.items()},
        "include_prompt": values.get("include_prompt", True),
    }
