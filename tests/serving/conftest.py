"""Exports for the tests of docs/how-to/serve.md, under the names on that page."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from serving_page import TEXTS

import snugbert
from snugbert.export.export import export_model


@pytest.fixture(scope="session")
def models(minilm, tmp_path_factory) -> Path:
    """A folder with an embedding model (`encoder`), a classifier (`sst2`) and a reranker, made with SnugBERT.

    They have one of MiniLM's layers. sentence-transformers saved the first and the last.
    """
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    tokenizer = snugbert.SnugBertTokenizer.from_pretrained(minilm)
    for name, model_class, options in (
        ("plain", snugbert.SnugBertModel, {}),
        ("sst2", snugbert.SnugBertForSequenceClassification, {"num_labels": 2}),
        ("one-label", snugbert.SnugBertForSequenceClassification, {"num_labels": 1}),
    ):
        model = model_class.from_pretrained(minilm, num_hidden_layers=1, **options)
        if options:  # an untrained head would give all texts nearly the same scores
            for layer in (model.bert.pooler.dense, model.classifier):
                torch.nn.init.normal_(layer.weight, std=0.2)
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    encoder = Transformer(str(root / "plain"), max_seq_length=128)
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    prompts = {"query": "question: ", "document": ""}
    SentenceTransformer(modules=[encoder, pooling, Normalize()], prompts=prompts).save_pretrained(
        str(root / "encoder")
    )
    CrossEncoder(str(root / "one-label"), max_length=128).save_pretrained(str(root / "reranker"))
    return root


@pytest.fixture(scope="session")
def exports(models) -> Path:
    """The same folder with `encoder-onnx`, `encoder-openvino`, `sst2-bert` and so on."""
    for name in ("encoder", "sst2", "reranker"):
        for to in ("onnx", "openvino", "bert"):
            if name == "encoder" or to in ("onnx", "bert"):
                export_model(models / name, models / f"{name}-{to}", to)
    return models


@pytest.fixture(scope="session")
def embeddings(models) -> np.ndarray:
    """What SnugBERT's embedding model returns for `TEXTS`."""
    return SentenceTransformer(str(models / "encoder")).encode(TEXTS)
