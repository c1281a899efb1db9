"""Fixtures for the tests of docs/how-to/integrate.md, which run its examples unchanged."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from datasets import load_dataset

import snugbert

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "integrate.md"
ROWS = 24
TSV = {"delimiter": "\t", "quoting": 3, "keep_default_na": False}  # GLUE has unpaired quotes, and the word "None"


@pytest.fixture(scope="session")
def example() -> Callable[[str], str]:
    """Returns a function: title of a `##` section of the page -> the code of its first ```python block.

    Run the code with `exec(example("PEFT"), names)`. `names` must contain the variables that the section assumes. The
    example adds its own.
    """
    text = PAGE.read_text("utf-8")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))

    def code(section: str) -> str:
        return re.search(r"^```python\n(.*?)^```$", sections[section], flags=re.DOTALL | re.MULTILINE).group(1)

    return code


@pytest.fixture(scope="session")
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
def run_example(example, checkpoints, monkeypatch) -> Callable[[str, str], dict[str, Any]]:
    """Returns a function that runs the example of a section on "stock" or "ours", and returns its variables."""

    def run(section: str, side: str) -> dict[str, Any]:
        monkeypatch.chdir(checkpoints[side])
        script = ModuleType("script")
        monkeypatch.setitem(sys.modules, "script", script)  # child processes must find its functions
        transformers.set_seed(0)
        exec(example(section), vars(script))
        return vars(script)

    return run
