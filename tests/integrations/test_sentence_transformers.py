"""sentence-transformers: the example of docs/how-to/integrate.md, and its own packed batches. See test_search.py."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
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
