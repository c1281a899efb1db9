"""The captum example of docs/how-to/integrate.md, and the calls of captum's tutorial on BERT."""

import pytest
import torch
from parity import ours_and_stock, ragged_batch

captum = pytest.importorskip("captum.attr", reason="captum is not installed (`make test` installs it)")


def test_attributions_equal_stock_bert(run_example, capsys):
    stock, ours = (run_example("captum: which words decide", side) for side in ("stock", "ours"))
    tokens = ours["inputs"]["attention_mask"].bool()
    contributions = ours["attributions"].sum(dim=-1)
    assert not contributions[~tokens].any()
    torch.testing.assert_close(ours["attributions"][tokens], stock["attributions"][tokens], atol=1e-5, rtol=1e-4)
    # Integrated gradients add up to the difference from the baseline (Sundararajan et al., 2017, proposition 1).
    mask, classes = ours["inputs"]["attention_mask"], ours["model"](**ours["inputs"]).logits.argmax(dim=-1)
    ends = [
        ours["score"](ids, mask).gather(1, classes[:, None])[:, 0]
        for ids in (ours["inputs"]["input_ids"], ours["baseline"])
    ]
    torch.testing.assert_close(contributions.sum(dim=1), ends[0] - ends[1], atol=0.02, rtol=0.02)
    assert "gripping" in capsys.readouterr().out


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification"])
def test_attributions_with_constant_positions_equal_stock_bert(head):
    """Segments and positions of 0 are the baseline, as in the tutorial and in transformers-interpret."""
    inputs = ragged_batch(head, batch=1, length=9, ragged=False)
    ids, segments = inputs["input_ids"], inputs["token_type_ids"]
    positions, zeros = torch.arange(9)[None], torch.zeros_like(ids)

    def explain(model):
        def score(input_ids, token_type_ids, position_ids, attention_mask):
            names = {"token_type_ids": token_type_ids, "position_ids": position_ids, "attention_mask": attention_mask}
            return model(input_ids, **names)[0].flatten(1).amax(1)

        words = captum.LayerIntegratedGradients(score, model.bert.embeddings)
        yield words.attribute(ids, zeros, additional_forward_args=(segments, positions, inputs["attention_mask"]))
        layers = ("word_embeddings", "token_type_embeddings", "position_embeddings")
        parts = captum.LayerIntegratedGradients(score, [getattr(model.bert.embeddings, layer) for layer in layers])
        mask = (inputs["attention_mask"],)
        yield from parts.attribute((ids, segments, positions), (zeros, zeros, zeros), additional_forward_args=mask)
        yield model(ids, token_type_ids=segments, position_ids=zeros)[0]  # without a mask

    for mine, theirs in zip(*(explain(model) for model in ours_and_stock(head, num_hidden_layers=1)), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
