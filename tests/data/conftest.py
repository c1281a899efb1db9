"""Fixtures of text and corpora."""

from conll import conll  # noqa: F401
from text_fixtures import books, corpus, small, small_blocks, tokenizer, words_tokenizer  # noqa: F401
