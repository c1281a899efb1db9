"""Digests: short keys that change when a tokenizer or a setting changes."""

import hashlib
import json
from typing import Any

from transformers import PreTrainedTokenizerBase


def hash_json(value: object) -> str:
    """A digest of 32 hexadecimal digits of a value that JSON can represent."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of everything that affects how a fast tokenizer splits text. Padding and truncation do not count."""
    return hash_json(tokenizer_definition(tokenizer))


def tokenizer_definition(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The definition of a fast tokenizer, as in `tokenizer.json`, without padding and truncation."""
    return json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
