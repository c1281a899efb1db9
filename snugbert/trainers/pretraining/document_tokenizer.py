"""Sentences and tokens."""

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from snugbert.trainers.documents import (
    split_sentences,
)
from snugbert.trainers.pretraining.digests import tokenizer_definition

REMEMBERED_CHARACTERS = 2**22  # of words whose pieces a process remembers, some 100 MB; 80 books have 2 million


@dataclass
class TokenizedDocuments:
    """A batch of documents as word pieces; without documents and sentences that have none.

    Attributes:
        documents_read: number of documents of the batch, empty ones included.
        numbers: of the documents that are left. *Shape:* (documents,)
        document_lengths: in sentences. *Shape:* (documents,)
        sentence_lengths: in word pieces. *Shape:* (sentences,)
        tokens: word piece ids. *Shape:* (tokens,)
    """

    documents_read: int
    numbers: np.ndarray
    document_lengths: np.ndarray
    sentence_lengths: np.ndarray
    tokens: np.ndarray


class DocumentTokenizer:
    """Cuts batches of documents into sentences and word pieces.

    The library's tokenizer does the work, but only once for each run of characters between spaces: BERT's normalizer,
    its pre-tokenizer and WordPiece never look across a space. With any other tokenizer whole sentences are tokenized.
    """

    def __init__(self, tokenizer: Any, language: str | None):
        self.language = language
        self.vocab_size = len(tokenizer)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)
        definition = tokenizer_definition(tokenizer)
        self.backend = _backend(json.dumps(definition))
        kinds = [(definition[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
        self.by_word = kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and all(
            token["special"] for token in definition["added_tokens"]
        )
        self.known: dict[str, bytes] = {}
        self.known_characters = 0

    def __getstate__(self) -> dict[str, Any]:
        # For a process that is not forked. A pickled tokenizer loses `encode_special_tokens`.
        return self.__dict__ | {"backend": self.backend.to_str(), "known": {}, "known_characters": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"backend": _backend(state["backend"])}

    def __call__(self, batch: list[tuple[int, list[str]]]) -> TokenizedDocuments:
        """Tokenizes a batch of numbered documents."""
        documents = [
            document if self.language is None else split_sentences(document, self.language) for _, document in batch
        ]
        pieces = self._tokenize(list(chain.from_iterable(documents)))
        lengths = np.array([len(sentence) for sentence in pieces], dtype=np.int64) // self.dtype.itemsize
        ends = np.cumsum([len(document) for document in documents])
        sentences_before = np.concatenate([[0], np.cumsum(lengths > 0)])
        document_lengths = np.diff(sentences_before[ends], prepend=0)
        return TokenizedDocuments(
            documents_read=len(batch),
            numbers=np.array([number for number, _ in batch])[document_lengths > 0],
            document_lengths=document_lengths[document_lengths > 0],
            sentence_lengths=lengths[lengths > 0],
            tokens=np.frombuffer(b"".join(pieces), self.dtype),
        )

    def _tokenize(self, sentences: list[str]) -> list[bytes]:
        if not self.by_word:
            return self._encode(sentences)
        if self.known_characters > REMEMBERED_CHARACTERS:
            self.known.clear()
            self.known_characters = 0
        split = [sentence.split(" ") for sentence in sentences]
        new = [word for word in dict.fromkeys(chain.from_iterable(split)) if word not in self.known]
        self.known.update(zip(new, self._encode(new), strict=True))
        self.known_characters += sum(map(len, new))
        return [b"".join([self.known[word] for word in words]) for words in split]

    def _encode(self, texts: list[str]) -> list[bytes]:
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, self.dtype).tobytes() for encoding in encodings]


def _backend(definition: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.encode_special_tokens = True  # "[MASK]" in a text is three pieces, not the token
    return tokenizer
