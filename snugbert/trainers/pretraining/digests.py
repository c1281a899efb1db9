"""Digests of tokenizers and settings."""

import hashlib
import json
from typing import Any


def hash_tokenizer(tokenizer: Any) -> str:
    """A digest of all that decides how a fast tokenizer cuts text; padding and truncation do not."""
    return hash_json(tokenizer_definition(tokenizer))


def tokenizer_definition(tokenizer: Any) -> dict[str, Any]:
    """The definition of a fast tokenizer, as in `tokenizer.json`, without padding and truncation."""
    return json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}


def hash_json(value: Any) -> str:
    """A digest of what can be written as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
