"""What the tests of docs/how-to/integrate.md share: its examples, which they run as they are printed."""

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
TSV = {"delimiter": "\t", "quoting": 3, "keep_default_na": False}  # GLUE has bare quotes, and the word "None"


@pytest.fixture(scope="session")
def example() -> Callable[[str], str]:
    """A function: title of a `##` section of the page -> the code of its first ```python block.

    Run it as `exec(example("PEFT"), names)`: `names` has the folders and data that the text of the section takes for
    granted, and afterwards what the example made.
    """
    text = PAGE.read_text("utf-8")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))

    def code(section: str) -> str:
        return re.search(r"^```python\n(.*?)^```$", sections[section], flags=re.DOTALL | re.MULTILINE).group(1)

    return code


@pytest.fixture(scope="session")
def checkpoints(minilm, data_dir, tmp_path_factory) -> dict[str, Path]:
    """Real weights as "stock" BERT and as "ours": folders in which the examples find all that they open.

    `my-snugbert` is a classifier of two classes on three of MiniLM's layers, ours in shards; without dropout, so that
    trainings can be compared.
    `texts.csv` and `pairs.csv` are the first rows of SST-2's and of STS-B's training set.
    """
    folders = {side: tmp_path_factory.mktemp(side) for side in ("stock", "ours")}
    torch.manual_seed(0)
    stock = transformers.BertForSequenceClassification.from_pretrained(
        minilm, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    stock.bert.encoder.layer = torch.nn.ModuleList([stock.bert.encoder.layer[index] for index in (0, 4, 5)])
    stock.config.num_hidden_layers = 3
    for layer in (stock.bert.pooler.dense, stock.classifier):  # an untrained head would say the same of all texts
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
    """A function: section of the page, "stock" or "ours" -> the names that its example made with that checkpoint."""

    def run(section: str, side: str) -> dict[str, Any]:
        monkeypatch.chdir(checkpoints[side])
        script = ModuleType("script")
        monkeypatch.setitem(sys.modules, "script", script)  # processes have to find its functions
        transformers.set_seed(0)
        exec(example(section), vars(script))
        return vars(script)

    return run


@pytest.fixture(scope="session")
def encoder_in_onnx(example, minilm, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """What the example of torch.export and ONNX makes of the whole of MiniLM: the folder, and its names."""
    folder = tmp_path_factory.mktemp("onnx")
    snugbert.SnugBertModel.from_pretrained(minilm).save_pretrained(folder / "my-snugbert")
    snugbert.SnugBertTokenizer.from_pretrained(minilm).save_pretrained(folder / "my-snugbert")
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(example("torch.export and ONNX"), names)
    return folder, names
