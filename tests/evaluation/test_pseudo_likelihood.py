"""Scores equal the definition and minicons, in any batch."""

import numpy as np
import pytest
import torch
from masked_models import ARCHITECTURES, TEXTS, make_model

from snugbert.evaluation import pseudo_likelihood
from snugbert.evaluation.pseudo_likelihood import VARIANTS, encode_sentences, score_sentences


@torch.no_grad()
def score_by_definition(model, tokenizer, text: str, variant: str) -> float:
    """One pass for each token, alone."""
    encoding = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    ids, words = encoding["input_ids"][0], encoding.word_ids()
    total = 0.0
    for position in (encoding["special_tokens_mask"][0] == 0).nonzero().flatten().tolist():
        masked = ids.clone()
        masked[position] = tokenizer.mask_token_id
        for later in range(position + 1, len(ids)):
            if variant == "within_word_l2r" and words[later] == words[position]:
                masked[later] = tokenizer.mask_token_id
        logits = model(input_ids=masked[None], attention_mask=torch.ones_like(ids)[None]).logits[0, position]
        total += logits.log_softmax(-1)[ids[position]].item()
    return total


def score_with_minicons(model, tokenizer, text: str, variant: str) -> float:
    # `make test` installs minicons, but not `make test-lowest`.
    scorer = pytest.importorskip("minicons.scorer").MaskedLMScorer(model, "cpu", tokenizer=tokenizer)
    # minicons tokenizes with a method that transformers 5 does not have. It also accepts encoded text.
    encoding = tokenizer([text], return_tensors="pt")
    (score,) = scorer.sequence_score(encoding, reduction=lambda scores: scores.sum().item(), PLL_metric=variant)
    return score


@pytest.mark.parametrize("reference", [score_by_definition, score_with_minicons])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_equal_a_reference(architecture, reference):
    model, tokenizer = make_model(architecture)
    scores = score_sentences(model, list(encode_sentences(TEXTS, tokenizer)), tokenizer.mask_token_id)
    if architecture == "snugbert":  # stock BERT with our weights is the reference
        weights = model.state_dict()
        model = make_model("bert")[0]
        model.load_state_dict(weights)
    for variant in VARIANTS:
        expected = [reference(model, tokenizer, text, variant) for text in TEXTS]
        np.testing.assert_allclose(scores[variant], expected, rtol=3e-6)
    differ = scores["original"] != scores["within_word_l2r"]
    assert differ[0] and scores["original"][3] == scores["original"][5]  # "a cat." is repeated
    assert len(set(scores["original"])) == 5


def test_scores_do_not_depend_on_the_batch(monkeypatch):
    model, tokenizer = make_model("bert")
    sentences = list(encode_sentences(TEXTS, tokenizer))
    expected = score_sentences(model, sentences, tokenizer.mask_token_id)
    monkeypatch.setattr(pseudo_likelihood, "TOKENS_PER_BATCH", 1)
    monkeypatch.setattr(pseudo_likelihood, "SENTENCES_PER_CALL", 1)
    monkeypatch.setattr(pseudo_likelihood, "INPUT_TOKENS_AT_ONCE", 1)
    found = score_sentences(model, sentences[::-1], tokenizer.mask_token_id)
    for variant in VARIANTS:
        np.testing.assert_allclose(found[variant][::-1], expected[variant], rtol=3e-6)
