"""The captum example of docs/how-to/integrate.md."""

import pytest
import torch

pytest.importorskip("captum", reason="captum is not installed (`make test` installs it)")


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
