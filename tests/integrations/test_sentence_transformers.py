"""sentence-transformers: the example of docs/how-to/integrate.md, cross-encoders, and its own packed batches."""

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, util
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import DataCollatorWithFlattening

import snugbert

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def sentences(data_dir) -> list[str]:
    """Lines of real text, short and long."""
    lines = (data_dir / "sample_text/sample_text.txt").read_text("utf-8").splitlines()
    return [*[line for line in lines if line][:22], "Hi.", " ".join(lines)[:800]]


def test_the_example_trains_an_encoder_like_stock_bert(run_example, checkpoints, sentences):
    stock, ours = (run_example("sentence-transformers", side) for side in ("stock", "ours"))
    assert type(ours["model"][0].model) is snugbert.SnugBertModel
    losses = {
        side: [line["loss"] for line in names["trainer"].state.log_history if "loss" in line]
        for side, names in (("stock", stock), ("ours", ours))
    }
    assert losses["ours"] == pytest.approx(losses["stock"], rel=1e-3)
    assert np.mean(losses["ours"][-3:]) < 0.7 * np.mean(losses["ours"][:3])
    np.testing.assert_allclose(ours["embeddings"], stock["embeddings"], atol=1e-4)

    again = SentenceTransformer(str(checkpoints["ours"] / "sentence-encoder"))
    np.testing.assert_array_equal(again.encode(sentences), ours["model"].encode(sentences))


def test_embeddings_are_token_means_and_similarities_equal_stock_bert(minilm, tmp_path, sentences):
    snugbert.SnugBertModel.from_pretrained(minilm).save_pretrained(tmp_path)
    snugbert.SnugBertTokenizer.from_pretrained(minilm).save_pretrained(tmp_path)
    encoder = Transformer(str(tmp_path), max_seq_length=256)
    ours = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), "mean")])
    embeddings = ours.encode(sentences, batch_size=8, convert_to_tensor=True)

    for sentence, embedding in zip(sentences, embeddings, strict=True):
        inputs = ours.tokenizer(sentence, truncation=True, max_length=256, return_tensors="pt")
        with torch.inference_mode():
            torch.testing.assert_close(
                embedding, encoder.model(**inputs).last_hidden_state[0].mean(dim=0), atol=2e-6, rtol=0
            )

    # The published encoder, with sentence-transformers' own files.
    stock = SentenceTransformer(str(minilm)).encode(sentences, convert_to_tensor=True)
    similarities = util.cos_sim(stock, stock)
    assert similarities.fill_diagonal_(0).abs().max() > 0.2
    torch.testing.assert_close(util.cos_sim(embeddings, embeddings).fill_diagonal_(0), similarities, atol=1e-5, rtol=0)


def test_batches_packed_by_sentence_transformers(checkpoints, sentences):
    """With flash attention, sentence-transformers packs batches. Here the test turns this on."""
    model = SentenceTransformer(str(checkpoints["ours"] / "my-snugbert"))
    expected = model.encode(sentences, batch_size=8)
    encoder = model[0]
    encoder.data_collator = DataCollatorWithFlattening(
        return_seq_idx=True, return_flash_attn_kwargs=True, return_position_ids=True
    )
    encoder._flatten_position_offset = encoder._infer_flatten_position_offset()
    encoder.can_flatten_inputs = True
    features = model.preprocess(sentences[:8])
    assert len(features["cu_seq_lens_q"]) == 9 and "attention_mask" not in features
    np.testing.assert_allclose(model.encode(sentences, batch_size=8), expected, atol=2e-6)


def test_packing_in_preprocess_changes_nothing(checkpoints, sentences, monkeypatch):
    """docs/decisions/unpad-once.md: it works, but saves no time."""
    pairs = list(zip(sentences, reversed(sentences), strict=True))
    path = str(checkpoints["ours"] / "my-snugbert")
    encoder, classifier = SentenceTransformer(path), CrossEncoder(path)
    expected = encoder.encode(sentences, batch_size=8), classifier.predict(pairs, batch_size=8)

    preprocess = Transformer.preprocess
    pack = snugbert.SnugBertDataCollatorWithPacking()

    def preprocess_and_pack(self, *args, **kwargs):
        features = preprocess(self, *args, **kwargs)
        columns = ("input_ids", "token_type_ids", "attention_mask")
        rows = zip(*(features.pop(name).numpy() for name in columns), strict=True)
        return dict(features) | pack([dict(zip(columns, row, strict=True)) for row in rows])

    monkeypatch.setattr(Transformer, "preprocess", preprocess_and_pack)
    assert "attention_mask" not in classifier.preprocess(pairs[:8])
    np.testing.assert_allclose(encoder.encode(sentences, batch_size=8), expected[0], atol=2e-6)
    np.testing.assert_allclose(classifier.predict(pairs, batch_size=8), expected[1], atol=2e-6)


def test_a_cross_encoder_scores_pairs_like_stock_bert(checkpoints, sentences):
    pairs = list(zip(sentences, reversed(sentences), strict=True))
    ours, stock = (CrossEncoder(str(checkpoints[side] / "my-snugbert")) for side in ("ours", "stock"))
    assert type(ours[0].model) is snugbert.SnugBertForSequenceClassification
    scores = ours.predict(pairs)
    assert scores.shape == (len(pairs), 2) and scores.std(axis=0).min() > 1e-3
    np.testing.assert_allclose(scores, stock.predict(pairs), atol=1e-5)
