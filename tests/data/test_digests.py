"""Digests change with what affects the tokens, and with nothing else."""

import snugbert
from snugbert.data.digests import hash_json, hash_tokenizer


def test_the_order_of_keys_does_not_matter():
    assert hash_json({"a": 1, "b": [2]}) == hash_json({"b": [2], "a": 1}) != hash_json({"a": 1, "b": [3]})


def test_padding_and_truncation_do_not_matter_but_tokens_and_case_do(words_tokenizer):
    vocabulary = words_tokenizer.get_vocab()
    digest = hash_tokenizer(snugbert.SnugBertTokenizer(vocabulary))
    padding = snugbert.SnugBertTokenizer(vocabulary)
    padding("w1", padding="max_length", truncation=True, max_length=8)
    assert padding.backend_tokenizer.padding is not None
    assert hash_tokenizer(padding) == digest
    others = [
        snugbert.SnugBertTokenizer(vocabulary | {"new": len(vocabulary)}),
        snugbert.SnugBertTokenizer(vocabulary, do_lower_case=False),
    ]
    assert digest not in [hash_tokenizer(other) for other in others]
