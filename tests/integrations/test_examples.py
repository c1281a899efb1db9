"""The examples of docs/how-to/integrate.md, unchanged, on SnugBERT and on stock BERT with the same weights."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import load_dataset
from torch._dynamo.utils import counters
from torch.testing import assert_close

import snugbert

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PEFT reads an attribute that transformers 5.23 renamed. torch warns when it copies an exported program.
    pytest.mark.filterwarnings(
        "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
        "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
    ),
]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "integrate.md"
ROWS = 24
TSV = {"delimiter": "\t", "quoting": 3, "keep_default_na": False}  # GLUE has unpaired quotes, and the word "None"


@pytest.fixture(scope="module")
def checkpoints(minilm, data_dir, tmp_path_factory) -> dict[str, Path]:
    """Folders with the files that the examples open, for "stock" BERT and "ours". Both have the same real weights.

    `my-snugbert` is a classifier with two classes and three of MiniLM's layers. Ours is sharded. There is no dropout,
    so that training runs can be compared. `texts.csv` and `pairs.csv` contain the first rows of the training sets of
    SST-2 and STS-B.
    """
    folders = {side: tmp_path_factory.mktemp(side) for side in ("stock", "ours")}
    torch.manual_seed(0)
    stock = transformers.BertForSequenceClassification.from_pretrained(
        minilm, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    # After the first layers alone, [CLS] is the same for all texts.
    stock.bert.encoder.layer = torch.nn.ModuleList([stock.bert.encoder.layer[index] for index in (0, 4, 5)])
    stock.config.num_hidden_layers = 3
    for layer in (stock.bert.pooler.dense, stock.classifier):  # an untrained head would give all texts the same scores
        torch.nn.init.normal_(layer.weight, std=0.2)
    stock.save_pretrained(folders["stock"] / "my-snugbert")
    transformers.BertTokenizer.from_pretrained(minilm).save_pretrained(folders["stock"] / "my-snugbert")
    ours = snugbert.SnugBertForSequenceClassification.from_pretrained(folders["stock"] / "my-snugbert")
    ours.save_pretrained(folders["ours"] / "my-snugbert", max_shard_size="25MB")
    snugbert.SnugBertTokenizer.from_pretrained(minilm).save_pretrained(folders["ours"] / "my-snugbert")
    texts = load_dataset("csv", data_files=str(data_dir / "glue/SST-2/train.tsv.gz"), split="train", **TSV)
    pairs = load_dataset("csv", data_files=str(data_dir / "glue/STS-B/train.tsv"), split="train", **TSV)
    pairs = pairs.select_columns(["sentence1", "sentence2", "score"]).select(range(ROWS))
    pairs = pairs.map(lambda row: {"score": row["score"] / 5})
    for folder in folders.values():
        texts.select(range(ROWS)).to_csv(folder / "texts.csv")
        pairs.to_csv(folder / "pairs.csv")
    return folders


@pytest.fixture
def run_example(checkpoints, monkeypatch) -> Callable[[str, str], dict[str, Any]]:
    """Returns a function that runs the first example of a section on "stock" or "ours", and returns its variables."""
    text = PAGE.read_text("utf-8")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))

    def run(section: str, side: str) -> dict[str, Any]:
        code = re.search(r"^```python\n(.*?)^```$", sections[section], flags=re.DOTALL | re.MULTILINE)[1]
        monkeypatch.chdir(checkpoints[side])
        script = ModuleType("script")
        monkeypatch.setitem(sys.modules, "script", script)  # child processes must find its functions
        transformers.set_seed(0)
        exec(code, vars(script))
        return vars(script)

    return run


@torch.inference_mode()
def run(model, inputs) -> torch.Tensor:
    return model.eval()(**inputs)[0]


def losses(names: dict[str, Any]) -> list[float]:
    return [line["loss"] for line in names["trainer"].state.log_history if "loss" in line]


@pytest.mark.slow
def test_peft_trains_an_adapter_like_stock_bert(run_example, checkpoints):
    stock, ours = (run_example("PEFT", side) for side in ("stock", "ours"))
    assert losses(ours) == pytest.approx(losses(stock), rel=1e-3)
    base = snugbert.SnugBertForSequenceClassification.from_pretrained(checkpoints["ours"] / "my-snugbert")
    inputs = ours["tokenizer"](ours["texts"]["sentence"][:8], padding=True, return_tensors="pt")
    expected = run(ours["model"], inputs)
    assert type(ours["classifier"]) is type(base)
    assert_close(run(ours["classifier"], inputs), expected, atol=1e-5, rtol=0)
    assert_close(run(stock["classifier"], inputs), expected, atol=1e-3, rtol=0)
    assert (expected - run(base, inputs)).abs().max() > 0.1


@pytest.mark.slow
def test_sentence_transformers_trains_an_encoder(run_example):
    """test_search.py compares such a training with stock BERT's."""
    ours = run_example("sentence-transformers", "ours")
    assert type(ours["model"][0].model) is snugbert.SnugBertModel
    assert np.mean(losses(ours)[-3:]) < 0.7 * np.mean(losses(ours)[:3])


@pytest.mark.slow
def test_models_larger_than_memory(run_example, checkpoints):
    names = run_example("accelerate: models larger than memory", "ours")
    whole = snugbert.SnugBertForSequenceClassification.from_pretrained(checkpoints["ours"] / "my-snugbert")
    inputs = {"input_ids": torch.arange(100, 120).view(2, 10)}
    for model in (names["model"], names["same"]):
        assert model.hf_device_map["bert.encoder.layer.0"] == "cpu" and model.hf_device_map["classifier"] == "disk"
        assert torch.equal(run(model, inputs), run(whole, inputs))


@pytest.mark.slow
def test_attributions_equal_stock_bert(run_example, capsys):
    pytest.importorskip("captum.attr", reason="captum is not installed (`make test` installs it)")
    stock, ours = (run_example("captum: which words decide", side) for side in ("stock", "ours"))
    tokens = ours["inputs"]["attention_mask"].bool()
    assert not ours["attributions"][~tokens].any() and ours["attributions"].abs().max() > 0.01
    assert_close(ours["attributions"][tokens], stock["attributions"][tokens], atol=1e-5, rtol=1e-4)
    assert "gripping" in capsys.readouterr().out


@pytest.mark.slow
def test_an_exported_program_computes_what_the_model_does(run_example):
    names = run_example("torch.export", "ours")
    assert_close(names["states"], run(names["model"], names["inputs"]), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_compile_example_compiles_once(run_example, monkeypatch):
    """Padded batches are compiled once, and once more for a single text. Packed batches are compiled once."""
    torch._dynamo.reset()
    # Inductor needs a C++ compiler and half a minute. The graphs do not depend on the backend.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    names = run_example("torch.compile", "ours")
    del names["model"].bert.encoder.layer[1:]  # compiling each layer takes as long as the first
    texts = ["A short one.", "And one that is a little longer than it is short.", "Four words are here."]

    def new_graphs(classify, texts):
        before = counters["stats"]["unique_graphs"]
        logits = classify(texts)
        inputs = names["tokenizer"](texts, padding=True, return_tensors="pt")
        assert_close(logits, run(names["model"], inputs), atol=1e-5, rtol=0)
        return counters["stats"]["unique_graphs"] - before

    batches = [texts[:2], texts, 2 * texts[::2], texts[:1], texts[1:2]]
    assert [new_graphs(names["classify_padded"], batch) for batch in batches] == [1, 0, 0, 1, 0]
    assert [new_graphs(names["classify_packed"], batch) for batch in batches[:3]] == [1, 0, 0]
