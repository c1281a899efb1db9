"""SnugBertConfig compared with BertConfig, and its checks."""

import pytest
from transformers import BertConfig

from snugbert import SnugBertConfig, SnugBertModel


def test_defaults_equal_bert():
    stock, ours = BertConfig().to_dict(), SnugBertConfig().to_dict()
    only_ours = {
        "position_embedding_type",
        "position_buckets",
        "pooler_act",
        "prediction_act",
        "classification_head",
        "embedding_size",
        "model_type",
        "architectures",  # [] instead of None
    }
    assert {name: ours[name] for name in ours.keys() - only_ours} == {
        name: stock[name] for name in ours.keys() - only_ours
    }
    # Only fields for decoders are missing.
    assert stock.keys() - ours.keys() == {"use_cache", "is_decoder", "add_cross_attention"}


def test_sizes():
    for size, expected in {
        "tiny": (2, 128, 2, 512),
        "mini": (4, 256, 4, 1024),
        "small": (4, 512, 8, 2048),
        "medium": (8, 512, 8, 2048),
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
    }.items():
        config = SnugBertConfig.from_size(size, vocab_size=100)
        fields = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
        assert fields == expected and config.vocab_size == 100


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_dropout_prob": 1.0}, "`hidden_dropout_prob` must be at least 0 and below 1, not 1.0"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` must be at least 1, not 0"),
        ({"hidden_act": "gulu"}, "Unknown `hidden_act` 'gulu'. Expected .*gelu"),
        ({"prediction_act": "gulu"}, "Unknown `prediction_act` 'gulu'. Expected .*gelu"),
        ({"embedding_size": 0}, "`embedding_size` must be at least 1, not 0"),
        ({"classification_head": "mlp"}, "Unknown `classification_head` 'mlp'. Expected pooler, dense"),
        ({"position_embedding_type": "after_padding", "pad_token_id": None}, "`pad_token_id` is missing"),
        ({"pooler_act": "rilu"}, "Unknown `pooler_act` 'rilu'. Expected .*relu"),
        ({"position_embedding_type": "relative_key"}, "Expected absolute, after_padding, relative, sinusoidal"),
        ({"pad_token_id": 30522}, "`pad_token_id` 30522 is outside the vocabulary of 30522"),
        ({"layer_norm_eps": -1}, "`layer_norm_eps` must be at least 0"),
        ({"problem_type": "regresion"}, "Unknown `problem_type` 'regresion'. Expected regression, single"),
        ({"model_type": "roberta"}, "Unsupported model type 'roberta'"),
        ({"is_decoder": True}, "SnugBERT is an encoder"),
        ({"add_cross_attention": True}, "`add_cross_attention` is true, but SnugBERT is an encoder"),
    ],
)
def test_values_out_of_range_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        SnugBertConfig(**fields)


def test_values_are_refused_after_construction_too():
    config = SnugBertConfig(hidden_size=32)  # stock BERT's tests build this with 12 heads
    with pytest.raises(ValueError, match="`hidden_size` 32 is not a multiple of `num_attention_heads` 12"):
        SnugBertModel(config)
    with pytest.raises(ValueError, match="`is_decoder` is true, but SnugBERT is an encoder"):
        config.is_decoder = True
    with pytest.raises(ValueError, match=r"Unknown size 'huge'\. Sizes: tiny, mini, small, medium, base, large"):
        SnugBertConfig.from_size("huge")
