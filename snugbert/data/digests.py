"""Digests: short keys that change when a tokenizer or a setting changes."""

import hashlib
import json
from typing import Any

from transformers import PreTrainedTokenizerBase


def hash_json(value: object) -> str:
    """Returns a digest of a JSON value, as 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a digest of everything that affects how a fast tokenizer splits text, without padding and truncation."""
    return hash_json(tokenizer_definition(tokenizer))


def tokenizer_definition(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the definition of a fast tokenizer, as in `tokenizer.json`, without padding and truncation."""
    return json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
