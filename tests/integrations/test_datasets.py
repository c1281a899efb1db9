"""datasets: the example of docs/how-to/integrate.md equals stock BERT, single rows and the pipeline."""

import pytest
import torch
from datasets import Dataset, load_dataset
from transformers import pipeline
from transformers.pipelines.pt_utils import KeyDataset

import snugbert

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def ours(run_example):
    return run_example("datasets: inference over a table", "ours")


def columns(table: Dataset) -> tuple[list[str], torch.Tensor]:
    return table["class"][:], torch.tensor(table["score"][:])


def test_the_example_equals_stock_bert_single_rows_and_the_pipeline(run_example, checkpoints, ours):
    assert type(ours["model"]) is snugbert.SnugBertForSequenceClassification
    texts = load_dataset("csv", data_files=str(checkpoints["ours"] / "texts.csv"), split="train")
    table = load_dataset("parquet", data_files=str(checkpoints["ours"] / "classified.parquet"), split="train")
    assert table.column_names == ["sentence", "label", "class", "score"]
    assert table["sentence"][:] == texts["sentence"][:]  # in order
    classes, scores = columns(table)
    assert set(classes) == {"LABEL_0", "LABEL_1"} and scores.std() > 0.01

    stock = run_example("datasets: inference over a table", "stock")["table"]
    singly = texts.map(ours["classify"], batched=True, batch_size=1)
    classifier = pipeline("text-classification", str(checkpoints["ours"] / "my-snugbert"))
    answers = list(classifier(KeyDataset(texts, "sentence"), batch_size=8))
    piped = [answer["label"] for answer in answers], torch.tensor([answer["score"] for answer in answers])
    for other in (columns(stock), columns(singly), piped):
        assert other[0] == classes
        torch.testing.assert_close(other[1], scores, atol=1e-5, rtol=0)


def test_several_processes_with_one_thread_each(ours):
    in_one_process = ours["classify"]

    def classify(rows):
        torch.set_num_threads(1)
        return in_one_process(rows)

    texts = ours["table"].remove_columns(["class", "score"])
    table = texts.map(classify, batched=True, batch_size=8, num_proc=2)
    assert columns(table)[0] == columns(ours["table"])[0]
    torch.testing.assert_close(columns(table)[1], columns(ours["table"])[1], atol=1e-5, rtol=0)
