"""The recipes of docs/how-to/recipes.md, unchanged and in their order, on models/mini-en."""

import csv
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from setfit import SetFitModel

from snugbert import Predictor
from snugbert.data.glue import GLUE_ON_THE_HUB
from snugbert_cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/how-to/recipes.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the files that the recipes open."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "models").symlink_to(ROOT / "models")
    with (ROOT / "examples/authors_train.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    (folder / "sentences.txt").write_text("\n".join(" ".join(row["text"].split()) for row in rows))
    with (folder / "few.csv").open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, ["text", "label"])
        writer.writeheader()
        writer.writerows({name: row[name] for name in ("text", "label")} for row in rows[::20])
    relations = []
    for name, place in (("Ada", "Bonn"), ("Otto", "Rome"), ("Jane", "Bath")) * 8:
        for text, label in ((f"{name} lives in {place}.", "lives in"), (f"In {place}, {name} was born.", "born in")):
            spans = [[text.index(each), text.index(each) + len(each)] for each in (name, place)]
            relations.append({"text": text, "head": spans[0], "tail": spans[1], "label": label})
    (folder / "relations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in relations))
    return folder


def run(section: str, folder: Path, monkeypatch) -> dict:
    """Runs the code of a section, and returns its variables."""
    monkeypatch.chdir(folder)
    variables: dict = {}
    for language, code in re.findall(r"^```(python|bash)\n(.*?)^```$", SECTIONS[section], re.DOTALL | re.MULTILINE):
        if language == "python":
            torch.manual_seed(0)
            exec(code, variables)
        else:
            program, *arguments = shlex.split(code)
            assert program == "snugbert" and main(arguments) == 0
    return variables


def test_relations(folder, monkeypatch):
    run("Relations between two entities", folder, monkeypatch)
    marked = [json.loads(line) for line in (folder / "marked.jsonl").read_text().splitlines()]
    assert [row["text"] for row in marked[:2]] == ["@ Ada @ lives in # Bonn #.", "In # Bonn #, @ Ada @ was born."]
    predictor = Predictor(folder / "relations")
    assert {*predictor("@ Ada @ lives in # Bonn #.")["probabilities"]} == {"lives in", "born in"}


def test_sentence_vectors_and_setfit(folder, monkeypatch, capsys):
    trained = run("Sentence vectors without labels", folder, monkeypatch)["trainer"]
    assert trained.state.global_step == 2 and trained.state.log_history[-1]["train_loss"] < np.log(64)
    texts = ["I picked up the stick.", "The school opened."]
    before, after = (
        SentenceTransformer(name, trust_remote_code=True) for name in ("models/mini-en", "sentence-encoder")
    )
    assert np.abs(before.encode(texts) - after.encode(texts)).max() > 0.01
    model = run("SetFit", folder, monkeypatch)["model"]
    again = SetFitModel.from_pretrained("setfit")
    assert again.predict(texts).tolist() == model.predict(texts).tolist()
    assert {*model.labels} == {"Brontë", "Doyle", "Sternberg", "Washington"}


def test_lora_with_its_head(folder, monkeypatch):
    variables = run("LoRA with the head saved", folder, monkeypatch)
    adapter = load_file(folder / "adapter/adapter_model.safetensors")
    assert any("classifier.weight" in name for name in adapter)
    head = variables["model"].base_model.model.classifier.modules_to_save["default"].weight
    assert torch.equal(variables["tagger"].classifier.weight, head)


def test_probabilities_from_onnx(folder, monkeypatch):
    monkeypatch.chdir(folder)
    train = ["--train_file", str(ROOT / "examples/authors_train.csv"), "--max_steps", "2"]
    assert main(["glue", "--model_name_or_path", "models/mini-en", *train, "--output_dir", "classifier"]) == 0
    classify = run("Probabilities from ONNX, without torch", folder, monkeypatch)["classify"]
    texts = ["I picked up the stick.", "The school opened in a small church " * 100]
    for found, expected in zip(classify(texts), Predictor("classifier")(texts), strict=True):
        assert found == pytest.approx(expected["probabilities"], abs=1e-4)


def test_every_recipe_is_tested_and_the_data_have_their_names():
    run_here = {name for name, text in SECTIONS.items() if "```" in text}
    source = Path(__file__).read_text("utf-8")
    assert all(f'"{name}"' in source for name in run_here)
    assert f"huggingface.co/datasets/{GLUE_ON_THE_HUB}" in SECTIONS["Where the data are"]
    assert os.path.exists(ROOT / "tests/vocabulary/test_learning.py")  # compares tokens with the tokenizers library's
