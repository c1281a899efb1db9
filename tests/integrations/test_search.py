"""The scripts of docs/how-to/search.md, in their order, on SnugBERT and on stock BERT with the same weights."""

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

import snugbert

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "search.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
START, PUBLISHED, RETRIEVER, SEARCH, RERANKER, RERANK = BLOCKS
ROWS = 40


@pytest.fixture(scope="module")
def checkpoint(minilm, tmp_path_factory) -> Path:
    """MiniLM's first layer as stock BERT. There is no dropout, so that training runs can be compared."""
    folder = tmp_path_factory.mktemp("checkpoint")
    options = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertModel.from_pretrained(minilm, **options)
    model.save_pretrained(folder)
    transformers.BertTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def files(data_dir) -> dict[str, str]:
    """Name -> text of the files that the scripts read: a question for each of SQuAD's first short paragraphs."""
    texts = {}
    for name, source in (("train.jsonl", "train-v1.1-first44"), ("dev.jsonl", "dev-v1.1")):
        with gzip.open(data_dir / f"squad/{source}.jsonl.gz", "rt", encoding="utf-8") as lines:
            by_paragraph = {json.loads(line)["context"]: line for line in lines}
        short = [line for paragraph, line in by_paragraph.items() if len(paragraph) < 200]
        texts[name] = "".join(short[:ROWS])
    return texts


@pytest.fixture(scope="module")
def sides(checkpoint, files, tmp_path_factory) -> dict[str, SimpleNamespace]:
    """For each side, its folder and what the scripts computed."""
    results = {}
    for side in ("stock", "ours"):
        folder = tmp_path_factory.mktemp(side)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            variables: dict = {}
            if side == "ours":
                exec(START.replace("google-bert/bert-base-uncased", str(checkpoint)), variables)
            else:
                (folder / "my-snugbert").symlink_to(checkpoint)
            losses = []
            for block in (RETRIEVER, SEARCH, RERANKER, RERANK):
                transformers.set_seed(0)
                exec(block, variables)
                if block in (RETRIEVER, RERANKER):
                    losses.append(variables["trainer"].state.log_history[-1]["train_loss"])
                if block == RETRIEVER:
                    retrieval = variables["scores"]
        results[side] = SimpleNamespace(folder=folder, losses=losses, retrieval=retrieval, **variables)
    return results


def test_training_and_scores_equal_stock_bert(sides):
    ours, stock = sides["ours"], sides["stock"]
    assert type(ours.retriever[0].model) is snugbert.SnugBertModel
    assert type(ours.reranker[0].model) is snugbert.SnugBertForSequenceClassification
    assert type(stock.retriever[0].model) is transformers.BertModel
    assert len(ours.losses) == 2 and ours.losses == pytest.approx(stock.losses, rel=1e-4)
    torch.testing.assert_close(ours.paragraph_embeddings, stock.paragraph_embeddings, atol=1e-4, rtol=0)
    assert [hit["corpus_id"] for hit in ours.best] == [hit["corpus_id"] for hit in stock.best]
    pairs = list(zip(ours.dev["question"], ours.dev["context"], strict=True))
    predicted = ours.reranker.predict(pairs)
    np.testing.assert_allclose(predicted, stock.reranker.predict(pairs), atol=1e-4)
    for name in ("retrieval", "scores"):
        mine, theirs = vars(ours)[name], vars(stock)[name]
        assert mine == pytest.approx(theirs, abs=1.5 / ROWS)  # rounding may swap two paragraphs
    assert 0.5 < ours.retrieval["cosine_recall@1"] <= ours.retrieval["cosine_recall@10"] <= 1
    # Training changed both models.
    before = SentenceTransformer(str(ours.folder / "my-snugbert")).encode(ours.paragraphs, convert_to_tensor=True)
    assert (before - ours.paragraph_embeddings).abs().max() > 1e-2
    ours.reranker[0].model.bert = snugbert.SnugBertModel.from_pretrained(ours.folder / "my-snugbert")
    assert np.abs(predicted - ours.reranker.predict(pairs)).max() > 1e-3


def test_a_published_encoder_keeps_its_settings(minilm, sides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(PUBLISHED.replace("sentence-transformers/all-MiniLM-L6-v2", str(minilm)), {})
    ours, stock = SentenceTransformer("my-encoder"), SentenceTransformer(str(minilm))
    assert type(ours[0].model) is snugbert.SnugBertModel
    assert [type(module) for module in ours] == [type(module) for module in stock]
    assert ours.max_seq_length == stock.max_seq_length == 256
    texts = sides["ours"].paragraphs
    np.testing.assert_allclose(ours.encode(texts), stock.encode(texts), atol=1e-5)
