"""Which recipe the log names."""

import pytest

import snugbert
from snugbert.trainers.pretraining.pretraining_guidance import GPU_RECIPE, describe_recipe
from snugbert.trainers.pretraining.pretraining_guidance import SMALL_RECIPE as RECIPE

NONE = "none was measured for such a model, vocabulary or text. The defaults are the BERT paper's settings."
FITS = (
    f"{RECIPE} (in SnugBERT's repository) fits the text and the model. With it, expect an MLM gain of 1.5 or more "
    "after 2,000,000 training tokens."
)


@pytest.mark.parametrize(
    ("size", "vocab_size", "corpus_tokens", "told"),
    [
        ("mini", 8_192, 11_987_654, FITS),
        ("tiny", 30_522, 200_000_000, FITS),
        ("12x384", 16_384, 11_987_654, FITS.replace(RECIPE, GPU_RECIPE)),
        ("tiny", 8_192, 200_000_001, NONE),
        ("mini", 30, 12_000_000, NONE),
        ("large", 30_522, 3_300_000_000, NONE),
    ],
    ids=["fits", "largest text", "one GPU", "too much text", "letters", "large"],
)
def test_the_recipe_fits_the_text_and_the_model(size, vocab_size, corpus_tokens, told):
    if size == "12x384":
        config = snugbert.SnugBertConfig(
            vocab_size=vocab_size, hidden_size=384, num_attention_heads=6, intermediate_size=1536
        )
    else:
        config = snugbert.SnugBertConfig.from_size(size, vocab_size=vocab_size)
    assert describe_recipe(config, corpus_tokens) == told
