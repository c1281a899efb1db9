"""The recipes contain valid arguments, and their comments contain valid commands."""

import re
import shlex
from pathlib import Path

import pytest

from snugbert.cli.model_arguments import ModelArguments
from snugbert.cli.parser import parse_arguments
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments
from snugbert_cli import main

ROOT = Path(__file__).parents[2]
# Not the job of Kubernetes, which tests/repository/test_schedulers.py runs.
RECIPES = sorted({*(ROOT / "examples").glob("pretrain_*.yaml")} - {ROOT / "examples/pretrain_kubernetes.yaml"})


# Sequences per step, number of GPUs, and the first phase's share of the steps, from the comments.
STEPS = {
    "small_corpus": (128, 1, 0.8),
    "small_corpus_1_gpu": (320, 1, 0.5),
    "electra_small_corpus": (64, 1, 0.9),
    "base_1_gpu": (256, 1, 0.9),
    "base_8_gpus": (1024, 8, 0.9),
    "large": (32768, 64, 0.9),
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipes_and_their_comments_have_valid_arguments(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for name in ("corpus/text.txt.gz", "validation.txt.gz"):
        Path(name).touch()
    types = (ModelArguments, PretrainingDataArguments, PretrainingArguments)
    argv = ["--config", str(recipe), "--use_cpu", "true"]  # parsing must work without a GPU
    _, data_args, training_args = parse_arguments(types, argv, "snugbert pretrain", "")
    sequences, processes, share = STEPS[recipe.stem.removeprefix("pretrain_")]
    per_process = training_args.per_device_train_batch_size * training_args.gradient_accumulation_steps
    assert per_process * processes == sequences
    assert data_args.parsed_phases[0].share == pytest.approx(share)

    comment = "\n".join(re.findall(r"^#   (.*)", recipe.read_text(), flags=re.MULTILINE)).replace("\\\n", " ")
    assert f"snugbert pretrain --config examples/{recipe.name}" in comment
    for command, arguments in re.findall(r"snugbert (vocabulary|prepare|pretrain) (.*)", comment):
        with pytest.raises(SystemExit):
            main([command, "--help-all"])
        known = set(re.findall(r"--\w+", capsys.readouterr().out))
        assert {word for word in shlex.split(arguments) if word.startswith("--")} <= known
