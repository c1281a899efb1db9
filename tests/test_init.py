"""`import snugbert` alone: the packages it needs, and the error when the training packages are missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from environments import environment_without

import snugbert

HEAVY = ("accelerate", "datasets", "evaluate", "matplotlib", "pyarrow", "scipy", "sentencex", "seqeval", "sklearn")
USE = """
import snugbert, torch
config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=9)
print(snugbert.SnugBertForMaskedLM(config)(torch.tensor([[2, 5, 4, 3]])).logits.shape)
from snugbert.convert import convert
try:
    snugbert.PretrainingTrainer
except ImportError as error:
    print(error)
"""


def run(python: Path | str, code: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(Path(snugbert.__file__).parents[1])}
    return subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def light_python(tmp_path_factory):
    """The Python of an environment without the packages of training."""
    folder = tmp_path_factory.mktemp("light")
    return environment_without(folder, *HEAVY, "scikit_learn", "joblib", "gradio", "peft", "sentence_transformers")


def test_a_model_needs_no_package_of_training(light_python):
    process = run(light_python, USE)
    assert process.returncode == 0, process.stderr
    shape, refusal = process.stdout.splitlines()
    assert shape == "torch.Size([1, 4, 9])"
    assert refusal.startswith("snugbert.PretrainingTrainer needs the package ")
    assert refusal.endswith(". Run: pip install 'snugbert[train]'")


def test_importing_adds_nothing_heavy_to_transformers():
    """transformers itself imports SciPy, and older versions scikit-learn, where they are installed."""
    before = "import sys, transformers as t; t.PreTrainedModel, t.AutoModel, t.TokenizersBackend; "
    process = run(sys.executable, f"{before}had = set(sys.modules); import snugbert; print(*(set(sys.modules) - had))")
    added = {name.partition(".")[0] for name in process.stdout.split()}
    assert "snugbert" in added and not added & {*HEAVY, "pandas"}, process.stderr


@pytest.mark.parametrize(("command", "extra"), [("glue", "train"), ("vocabulary", "train"), ("demo", "demo")])
def test_a_command_names_the_extra_that_it_needs(command, extra, light_python):
    process = run(light_python, f"import sys; from snugbert.cli import main; sys.exit(main(['{command}', '--help']))")
    assert process.returncode == 2
    *_, line = process.stderr.splitlines()
    assert line.startswith(f"snugbert {command}: error: the package ")
    assert line.endswith(f" is not installed. Run: pip install 'snugbert[{extra}]'")
