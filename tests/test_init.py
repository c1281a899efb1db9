"""`import snugbert`: the packages it needs, and what the Auto classes save and open."""

import ast
import json
import os
import re
import site
import subprocess
import venv
from pathlib import Path

import pytest
from parity import ours_and_stock

import snugbert

# By their names in site-packages up to the first dash.
HEAVY = """accelerate datasets evaluate gradio joblib matplotlib pandas peft psutil pyarrow scikit_learn scipy
    sentence_transformers sentencex seqeval sklearn""".split()
MODEL = ("--config_name", "tiny", "--tokenizer_name", "x")
COMMANDS = {
    "glue": ["glue", *MODEL],
    "pretrain": ["pretrain", *MODEL],
    "vocabulary": ["vocabulary", "--train_file", __file__, "--output_dir", "x"],
    "demo": ["demo", "--model", "."],
}
# Reads the help of all commands. Prints the modules that this imported, logits, and refusals.
USE = f"""
import contextlib, io, sys
from snugbert_cli import COMMANDS, main
for command in COMMANDS:
    sys.argv = ["snugbert", command, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as text:
        main()
    assert "--" in text.getvalue()
print(*sys.modules)
import snugbert, snugbert.registration, torch
config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=9)
print(snugbert.SnugBertForMaskedLM(config)(torch.tensor([[2, 5, 4, 3]])).logits.shape)
from snugbert.families.conversion import convert_model
try:
    snugbert.PretrainingTrainer
except ImportError as error:
    print(error)
for argv in {[*COMMANDS.values()]}:
    assert main(argv) == 2
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """What `USE` prints in an environment without the packages for training: links to the others."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for source in filter(os.path.isdir, site.getsitepackages()):
        for entry in Path(source).iterdir():
            is_left_out = entry.name.partition("-")[0] in HEAVY or entry.suffix == ".pth"  # of editable installations
            if not is_left_out and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    environment = os.environ | {"PYTHONPATH": str(Path(snugbert.__file__).parents[1])}
    process = subprocess.run([folder / "bin/python", "-c", USE], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return process


@pytest.mark.slow
def test_help_imports_no_model_and_a_model_needs_no_training_packages(light):
    """Heavy packages are not there. `--help` takes as long as importing `TrainingArguments`."""
    imported, shape, refusal = light.stdout.splitlines()
    modules = set(imported.split())
    assert {"snugbert.trainers.pretraining.pretraining_arguments", "snugbert.demo"} <= modules
    models = {"snugbert.modeling_snugbert", "snugbert.configuration_snugbert", "transformers.modeling_utils"}
    assert not modules & {*models, "transformers.trainer"}
    assert shape == "torch.Size([1, 4, 9])"
    assert refusal.endswith(". Run: pip install 'snugbert[train]'")
    lines = [line for line in light.stderr.splitlines() if "error" in line]
    for command, line in zip(COMMANDS, lines, strict=True):
        extra = "demo" if command == "demo" else "train"
        message = rf"the package \w+ is not installed\. Run: pip install 'snugbert\[{extra}\]'"
        assert re.fullmatch(f"snugbert {command}: error: {message}", line)


def test_type_checkers_see_the_lazy_names():
    tree = ast.parse(Path(snugbert.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {alias.name: node.module for node in block.body for alias in node.names}
    assert imported == {name: f"snugbert.{module}" for name, module in snugbert.LAZY_NAMES.items()}
    for name in snugbert.__all__:
        assert getattr(snugbert, name).__name__ == name


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
    foreign = {
        "AutoModelForCausalLM": "evil/repo--modeling_evil.Evil",
        "AutoModelForImageToText": "evil/repo--modeling_snugbert.SnugBertModel",
        "AutoProcessor": "modeling_evil.Evil",
    }
    for file, values in before.items():
        (tmp_path / file).write_text(json.dumps({**values, "auto_map": {**values["auto_map"], **foreign}}))
    for part in parts:
        saved = tmp_path / type(part).__name__
        type(part).from_pretrained(tmp_path).save_pretrained(saved)
        for file in saved.glob("*config.json"):
            assert json.loads(file.read_text())["auto_map"] == before[file.name]["auto_map"], (part, file)
            assert "evil" not in file.read_text()
