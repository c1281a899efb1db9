"""Fixtures of text and corpora."""

from text_fixtures import corpora, corpus, small, small_blocks, tokenizer, words_tokenizer  # noqa: F401
