"""Finds mistakes in the arguments of a command before torch and transformers are imported, which takes seconds.

Like `snugbert_cli`, this module is not part of the package, because importing the package imports both. The package
uses the same functions for arguments from `--config` files and from Python.
"""

import ast
import functools
import glob
import locale
import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

# Flags of transformers 4 that transformers 5 renamed. Command lines written for transformers 4 keep working.
RENAMED_FLAGS = {
    "--warmup_ratio": "--warmup_steps",  # a value below 1 is a share of the steps
    "--evaluation_strategy": "--eval_strategy",
    "--no_cuda": "--use_cpu",
}
HELP_FLAGS = {"-h", "--help", "--help-all"}
PARSER_FLAGS = ("--config", "--help", "--help-all")  # every command has them
MODEL_FLAGS = ("model", "model_name_or_path", "tokenizer_name", "teacher_name_or_path", "init")
# Reporters of transformers -> their modules, of which one must be installed, and their package on PyPI.
REPORTERS = {
    "azure_ml": (("azureml",), "azureml-sdk"),
    "clearml": (("clearml",), "clearml"),
    "codecarbon": (("codecarbon",), "codecarbon"),
    "comet_ml": (("comet_ml",), "comet-ml"),
    "dagshub": (("dagshub",), "dagshub"),
    "dvclive": (("dvclive",), "dvclive"),
    "flyte": (("flytekit",), "flytekit"),
    "kubeflow": ((), ""),  # needs no package
    "mlflow": (("mlflow",), "mlflow"),
    "neptune": (("neptune",), "neptune"),
    "swanlab": (("swanlab",), "swanlab"),
    "tensorboard": (("tensorboard", "tensorboardX"), "tensorboard"),
    "trackio": (("trackio",), "trackio"),
    "wandb": (("wandb",), "wandb"),
}
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")  # ISO 639, and the region, the script or the variety


def did_you_mean(word: str, choices: Iterable[str], prefix: str = "") -> str:
    """Returns " Did you mean X?" with the choices that contain the word, or else the most similar choice.

    Empty if no choice is similar.
    """
    choices = list(dict.fromkeys(choices))
    longer = [choice for choice in choices if len(word) > 3 and word in choice]
    close = sorted(longer, key=len)[:3] or get_close_matches(word, choices, n=1)
    return f" Did you mean {' or '.join(prefix + choice for choice in close)}?" if close else ""


def explain_flag(flag: str, flags: Iterable[str]) -> str:
    """Returns an error message for a flag that is not in `flags`."""
    return f"unknown argument {flag}.{did_you_mean(_name(flag), map(_name, flags), prefix='--')}"


def explain_choice(flag: str, value: str, choices: Iterable[str]) -> str:
    """Returns an error message for a value that is not in `choices`."""
    choices = list(choices)
    return f"{flag}: unknown value {value!r}.{did_you_mean(value, choices)} Choose one of {', '.join(choices)}."


def explain_files(pattern: str) -> str:
    """Returns an error message if no file matches a path or glob pattern. Empty if a file matches."""
    if not pattern:
        return "the name of the file is empty."
    if Path(pattern).is_file() or any(Path(match).is_file() for match in glob.iglob(pattern, recursive=True)):
        return ""
    if Path(pattern).is_dir():
        return f"{pattern} is a folder. Name its files, such as '{pattern}/*'."
    return f"{pattern}: no such file.{suggest_path(pattern)}"


def explain_folder(name: str) -> str:
    """Returns an error message if a model can only be a folder that does not exist. Empty otherwise.

    Hub names are `name` or `owner/name`. If a similar folder exists, `folder/name` is a mistyped path.
    """
    suggestion = suggest_path(name)
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1 or ("/" in name and suggestion)
    if not is_path or Path(name).exists() or Path(f"{name}.index").exists():  # .index: a TensorFlow checkpoint
        return ""
    return f"the folder {name} does not exist.{suggestion}"


def explain_language(code: str) -> str:
    """Returns an error message if a code does not have the form of a language code. Otherwise empty.

    Codes look like `de`, `nds`, `pt-br`, `zh-hans`.
    """
    if LANGUAGE.fullmatch(code):
        return ""
    lower = code.strip().lower()
    if LANGUAGE.fullmatch(lower):
        hint = f"Did you mean {lower}?"
    elif similar := get_close_matches(lower, names := _read_language_names(), n=1):
        hint = f"Did you mean {names[similar[0]]}?"
    else:
        hint = "Use an ISO 639 code, such as en, zh or pt-br. For a language without a code, use a similar language."
    return f"--language {code!r} is not a language code. {hint}"


def _read_language_names() -> dict[str, str]:
    """Returns the names of languages in Python's table of locales, and their codes."""
    names = {name: value for name, value in locale.locale_alias.items() if name.isalpha() and len(name) > 3}
    return {name: code.split("_")[0] for name, code in names.items() if "_" in code}


def explain_reporter(name: str) -> str:
    """Returns an error message if a reporter of `--report_to` is unknown or not installed. Otherwise empty."""
    if name in ("all", "none"):
        return ""
    if name not in REPORTERS:
        return explain_choice("--report_to", name, [*REPORTERS, "all", "none"])
    modules, package = REPORTERS[name]
    if not modules or any(find_spec(module) for module in modules):
        return ""
    return f"--report_to {name}: the package {package} is not installed. Run: pip install {package}"


def find_mistake(dataclass_names: Iterable[str], argv: list[str]) -> str:
    """Returns a message about the first mistake that shows without running the command. Empty if there is none.

    Finds unknown flags, files and folders that do not exist, unknown languages, and reporters that are not installed.

    Args:
        dataclass_names: the dataclasses of the arguments, see [`read_flags`].
        argv: the arguments after the name of the command.
    """
    if HELP_FLAGS & set(argv):
        return ""
    try:
        flags = read_flags(dataclass_names)
    except LookupError:  # a new version of transformers may have other files; the parser will find the mistakes
        return ""
    takes_several = {_name(flag): several for flag, several in flags.items()}
    given = _read_given(argv)
    known = takes_several.keys() | map(_name, RENAMED_FLAGS)
    unknown = [flag for flag, _ in given if not {_name(flag), _name(flag).removeprefix("no_")} & known]
    if unknown:
        return explain_flag(unknown[0], flags)
    for flag, values in given:
        name = _name(flag)
        for value in values if takes_several.get(name) else values[:1]:
            try:
                if mistake := _explain_value(name, value):
                    return mistake
            except OSError:  # for example, a folder that cannot be read; the command explains it
                return ""
    return ""


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _read_given(argv: list[str]) -> list[tuple[str, list[str]]]:
    """Returns the flags with their values. As in argparse, a value with spaces may begin with two hyphens."""
    given: list[tuple[str, list[str]]] = []
    for argument in argv:
        if match := re.fullmatch(r"(--\w[\w-]*)(?:=(.*))?", argument, re.DOTALL):
            given.append((match[1], [] if match[2] is None else [match[2]]))
        elif given:
            given[-1][1].append(argument)
    return given


def _explain_value(name: str, value: str) -> str:
    if name == "language":
        return explain_language(value)
    if name == "report_to":
        return explain_reporter(value)
    if "://" in value:  # only the command can ask a store
        return ""
    mistake = ""
    if name.endswith("_file") and not name.startswith(("output_", "overwrite_")):
        is_other = Path(value).exists() and not Path(value).is_dir()  # for example a pipe; the command decides
        mistake = "" if is_other else explain_files(value)
    elif name in MODEL_FLAGS:
        mistake = explain_folder(value)
    return f"--{name}: {mistake}" if mistake else ""


def suggest_path(path: str) -> str:
    """Suggests an entry of the last existing folder of a path. For a pattern, also patterns for the files there."""
    folder = Path(path)
    missing: list[str] = []
    while not folder.is_dir():
        missing.insert(0, folder.name)
        folder = folder.parent
    if not missing or not missing[0]:
        return ""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return ""
    if "*" in missing[0]:
        names += [f"*{''.join(Path(name).suffixes)}" for name in names]
    close = get_close_matches(missing[0], names, n=1, cutoff=0.75)  # file names share their endings
    return f" Did you mean {folder.joinpath(close[0], *missing[1:])}?" if close else ""


# --- flags from source files ------------------------------------------------------------------------------------


def read_flags(dataclass_names: Iterable[str]) -> dict[str, bool]:
    """Reads the flags of a command from its source files, without running them.

    Args:
        dataclass_names: the dataclasses whose fields are the arguments, each with the name of its module in the
            package: "demo.serve.DemoArguments".

    Returns:
        Flag -> whether it takes several values. Variants with hyphens and `--no_<flag>` are not included.

    Raises:
        LookupError: a module or a class is not where it is imported from.
    """
    flags = dict.fromkeys(PARSER_FLAGS, False)
    for dataclass_name in dataclass_names:
        module, _, name = dataclass_name.rpartition(".")
        flags |= _read_fields(f"snugbert.{module}", name)
    return flags


@functools.cache
def _parse(module: str) -> ast.Module:
    """Parses the file of a module."""
    package, *names = module.split(".")
    spec = find_spec(package)  # for a module in the package, find_spec would import the package
    if spec is None or spec.origin is None:
        raise LookupError(f"there is no package {package}")
    file = Path(spec.origin).parent.joinpath(*names).with_suffix(".py") if names else Path(spec.origin)
    if not file.is_file():
        raise LookupError(f"there is no file of the module {module}")
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def _read_fields(module: str, name: str) -> dict[str, bool]:
    """Reads the fields of a dataclass and of its base classes, as flags."""
    if (module, name) == ("transformers", "TrainingArguments"):
        module = "transformers.training_args"
    tree = _parse(module)
    definition = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if definition is None:
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        sources = [node.module for node in imports if name in [alias.name for alias in node.names]]
        if not sources:
            raise LookupError(f"there is no class {name} in {module}")
        return _read_fields(str(sources[0]), name)
    flags: dict[str, bool] = {}
    for base in definition.bases:
        flags |= _read_fields(module, ast.unparse(base))
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation, is_positional = ast.unparse(node.annotation), "'positional': True" in ast.unparse(node)
            if "ClassVar" not in annotation and not node.target.id.startswith("_") and not is_positional:
                flags[f"--{node.target.id}"] = annotation.startswith("list")
    return flags
