"""`import snugbert`: the packages it needs, and what the Auto classes save and open."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from environments import environment_without
from parity import HEADS, ours_and_stock

import snugbert

HEAVY = ("accelerate", "datasets", "evaluate", "matplotlib", "pyarrow", "scipy", "sentencex", "seqeval", "sklearn")
AUTO_CLASSES = ["AutoModel", *(f"AutoModel{head}" for head in HEADS[1:])]
# Prints the modules that the package imports in addition to transformers' own.
IMPORTS = """
import sys
import transformers as t
t.PreTrainedModel, t.AutoModel, t.TokenizersBackend
before = set(sys.modules)
import snugbert
print(*set(sys.modules) - before)
"""
# Prints the modules that the help of all commands imports.
HELP = """
import contextlib, io, sys
from snugbert_cli import COMMANDS, main
for command in COMMANDS:
    sys.argv = ["snugbert", command, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
print(*sys.modules)
"""
MODEL = ("--config_name", "tiny", "--tokenizer_name", "x")
COMMANDS = {
    "glue": ["glue", *MODEL],
    "pretrain": ["pretrain", *MODEL],
    "vocabulary": ["vocabulary", "--train_file", __file__, "--output_dir", "x"],
    "demo": ["demo", "--model", "."],
}
# Prints the shape of logits, a refusal, and the help of a command.
USE = f"""
import snugbert, torch
config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=9)
print(snugbert.SnugBertForMaskedLM(config)(torch.tensor([[2, 5, 4, 3]])).logits.shape)
from snugbert.families.conversion import convert_model
try:
    snugbert.PretrainingTrainer
except ImportError as error:
    print(error)
from snugbert_cli import main
for argv in {[*COMMANDS.values()]}:
    assert main(argv) == 2
main(["glue", "--help"])
"""


def run(python: Path | str, code: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(Path(snugbert.__file__).parents[1])}
    return subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """Returns what `USE` prints in an environment without the packages for training."""
    folder = tmp_path_factory.mktemp("light")
    names = ("scikit_learn", "joblib", "psutil", "gradio", "peft", "sentence_transformers")
    process = run(environment_without(folder, *HEAVY, *names), USE)
    assert process.returncode == 0, process.stderr
    return process


def test_a_model_needs_no_training_packages(light):
    shape, refusal, *_ = light.stdout.splitlines()
    assert shape == "torch.Size([1, 4, 9])"
    assert refusal.startswith("snugbert.PretrainingTrainer needs the package ")
    assert refusal.endswith(". Run: pip install 'snugbert[train]'")


def test_a_command_names_the_extra_that_it_needs(light):
    """Its help needs no extra."""
    assert "--task_name" in light.stdout
    lines = [line for line in light.stderr.splitlines() if "error" in line]
    for command, line in zip(COMMANDS, lines, strict=True):
        extra = "demo" if command == "demo" else "train"
        message = rf"the package \w+ is not installed\. Run: pip install 'snugbert\[{extra}\]'"
        assert re.fullmatch(f"snugbert {command}: error: {message}", line)


def test_importing_imports_nothing_heavy():
    """The package adds nothing heavy to transformers.

    transformers itself imports accelerate and SciPy where they are installed. Older versions also import scikit-learn.
    """
    process = run(sys.executable, IMPORTS)
    assert process.returncode == 0, process.stderr
    package = set(process.stdout.split())
    # No further parts of heavy packages either.
    assert "snugbert" in package and not {name.partition(".")[0] for name in package} & {*HEAVY, "pandas"}


def test_help_imports_no_model(tmp_path):
    """`snugbert <command> --help` takes as long as importing `TrainingArguments`, which imports peft if it can."""
    process = run(environment_without(tmp_path, "peft"), HELP)
    assert process.returncode == 0, process.stderr
    modules = set(process.stdout.split())
    assert {"snugbert.trainers.pretraining.pretraining_arguments", "snugbert.demo"} <= modules
    models = {"snugbert.modeling_snugbert", "snugbert.configuration_snugbert", "transformers.modeling_utils"}
    libraries = {*HEAVY, "joblib", "pandas", "peft.utils"} - {"accelerate", "scipy", "sklearn"}  # transformers' own
    assert not modules & {*models, *libraries, "transformers.trainer"}


def test_type_checkers_see_the_lazy_names():
    tree = ast.parse(Path(snugbert.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {alias.name: node.module for node in block.body for alias in node.names}
    assert imported == {name: f"snugbert.{module}" for name, module in snugbert.LAZY_NAMES.items()}
    for name in snugbert.__all__:
        assert getattr(snugbert, name).__name__ == name


@pytest.mark.parametrize("head", HEADS)
def test_saved_models_have_our_model_type_and_open_in_stock_bert(head, tmp_path):
    ours, stock = ours_and_stock(head)
    ours.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "snugbert"
    assert config["architectures"] == [f"SnugBert{head}"]
    assert sorted(config["auto_map"]) == sorted(["AutoConfig", *AUTO_CLASSES])
    auto_class = getattr(transformers, f"Auto{head}" if head == "Model" else f"AutoModel{head}")
    again = auto_class.from_pretrained(tmp_path)
    assert type(again) is type(ours)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name

    del config["auto_map"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    back = type(stock).from_pretrained(tmp_path)
    for name, tensor in stock.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_a_foreign_auto_map_is_not_saved(tmp_path):
    """With other Auto classes, it would load code from another repository."""
    ours, _ = ours_and_stock("ForMaskedLM")
    ours.config.custom_pipelines = {"mine": {"impl": "evil/repo--pipe.Evil"}}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    parts = (ours, ours.config, snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)}))
    for part in parts:
        part.save_pretrained(tmp_path)
    ours.save_pretrained(tmp_path)
    before = {file: json.loads((tmp_path / file).read_text()) for file in ("config.json", "tokenizer_config.json")}
    foreign = {"AutoModelForCausalLM": "evil/repo--modeling_evil.Evil", "AutoProcessor": "modeling_evil.Evil"}
    for file, values in before.items():
        (tmp_path / file).write_text(json.dumps({**values, "auto_map": {**values["auto_map"], **foreign}}))
    for part in parts:
        saved = tmp_path / type(part).__name__
        type(part).from_pretrained(tmp_path).save_pretrained(saved)
        for file in saved.glob("*config.json"):
            assert json.loads(file.read_text())["auto_map"] == before[file.name]["auto_map"], (part, file)
            assert "evil" not in file.read_text()
