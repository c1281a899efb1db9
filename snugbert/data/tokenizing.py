"""Documents -> sentences -> token ids, in several processes."""

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerBase

from snugbert.data.documents import split_sentences
from snugbert.files import hash_json

Item = TypeVar("Item")
Result = TypeVar("Result")

# Each process caches the tokens of words with up to this many characters in total, in about 100 MB. The distinct
# words of 80 books have 2 million characters.
CACHED_CHARACTERS = 2**22
PATIENCE = 5  # seconds between two checks that all processes are alive


@dataclass
class TokenizedDocuments:
    """A batch of tokenized documents. Documents and sentences without tokens are left out."""

    documents_read: int  # including empty documents
    numbers: np.ndarray  # indices of the documents that are kept. Shape: (documents,)
    document_lengths: np.ndarray  # in sentences. Shape: (documents,)
    sentence_lengths: np.ndarray  # in tokens. Shape: (sentences,)
    tokens: np.ndarray  # token ids. Shape: (tokens,)
    continues_word: np.ndarray | None  # see `_find_continuations`. None: not requested. Shape: (tokens,)


class DocumentTokenizer:
    """Splits documents into sentences, and sentences into token ids. It can be pickled.

    The tokenizers library does the work. BERT's tokenizer gets each distinct word between two spaces once, because
    its normalizer, its pre-tokenizer and WordPiece never look across a space. Other tokenizers get whole sentences.
    RoBERTa's tokenizer also gets the space before a sentence, because the tokens of the first word depend on it.

    `language` is the ISO 639-1 code whose rules split lines into sentences. None: each line is a sentence.
    `store_words`: whether to return which tokens continue a word. This takes 15 to 32 % more time.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, language: str | None, store_words: bool = False):
        self.language = language
        self.vocab_size = len(tokenizer)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)  # of token ids
        definition = tokenizer_definition(tokenizer)
        self.stores_words = store_words
        self._backend = _make_backend(json.dumps(definition))
        kinds = [(definition[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
        self._by_word = kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"] and all(
            token["special"] for token in definition["added_tokens"]
        )
        self._keep_spaces = tokenizer.tokenize("a") != tokenizer.tokenize(" a")
        self._cache: dict[str, bytes] = {}
        self._cached_characters = 0

    def __getstate__(self) -> dict[str, Any]:
        # For processes that are not forked. A pickled Tokenizer loses `encode_special_tokens`.
        return self.__dict__ | {"_backend": self._backend.to_str(), "_cache": {}, "_cached_characters": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"_backend": _make_backend(state["_backend"])}

    def __call__(self, batch: Sequence[tuple[int, list[str]]]) -> TokenizedDocuments:
        """Tokenizes documents, each with its index and its lines."""
        documents = [
            document if self.language is None else split_sentences(document, self.language, self._keep_spaces)
            for _, document in batch
        ]
        texts = list(chain.from_iterable(documents))
        continues_word = None
        if self.stores_words:
            encodings = self._backend.encode_batch(texts, add_special_tokens=False)
            sentences = self._join_ids(encodings)
            continues_word = np.concatenate([np.zeros(0, bool), *map(_find_continuations, encodings)])
        else:
            sentences = self._tokenize(texts)
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64) // self.dtype.itemsize
        ends = np.cumsum([len(document) for document in documents])
        sentences_before = np.concatenate([[0], np.cumsum(lengths > 0)])
        document_lengths = np.diff(sentences_before[ends], prepend=0)
        return TokenizedDocuments(
            documents_read=len(batch),
            numbers=np.array([number for number, _ in batch])[document_lengths > 0],
            document_lengths=document_lengths[document_lengths > 0],
            sentence_lengths=lengths[lengths > 0],
            tokens=np.frombuffer(b"".join(sentences), self.dtype),
            continues_word=continues_word,
        )

    def _tokenize(self, sentences: list[str]) -> list[bytes]:
        """Returns the token ids of each sentence, as the bytes of an array."""
        if not self._by_word:
            return self._encode(sentences)
        if self._cached_characters > CACHED_CHARACTERS:
            self._cache.clear()
            self._cached_characters = 0
        words = [sentence.split(" ") for sentence in sentences]
        new = [word for word in dict.fromkeys(chain.from_iterable(words)) if word not in self._cache]
        self._cache.update(zip(new, self._encode(new), strict=True))
        self._cached_characters += sum(map(len, new))
        return [b"".join([self._cache[word] for word in sentence]) for sentence in words]

    def _encode(self, texts: list[str]) -> list[bytes]:
        return self._join_ids(self._backend.encode_batch_fast(texts, add_special_tokens=False))

    def _join_ids(self, encodings: list[Encoding]) -> list[bytes]:
        return [np.array(encoding.ids, self.dtype).tobytes() for encoding in encodings]


def _find_continuations(encoding: Encoding) -> np.ndarray:
    """Returns whether each token continues the word of the token before it. *Shape:* (tokens,)"""
    words = np.array(encoding.word_ids, dtype=np.int64)
    return np.diff(words, prepend=-1) == 0


def _make_backend(definition: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.encode_special_tokens = True  # "[MASK]" in a text becomes three tokens, not the special token
    return tokenizer


def needs_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether masks of whole words need a corpus that stores which tokens continue a word.

    WordPiece does not need such a corpus, because its vocabulary marks these tokens. Other vocabularies do not mark
    them: byte-level BPE splits "don't" into "don" and "'t", two words without a space between them. If a tokenizer
    does not split text into words, whole words cannot be masked.
    """
    return not isinstance(tokenizer.backend_tokenizer.model, WordPiece) and splits_words(tokenizer)


def splits_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer splits text into words before it splits words into tokens."""
    backend = tokenizer.backend_tokenizer
    text = "a b" if backend.normalizer is None else backend.normalizer.normalize_str("a b")
    return backend.pre_tokenizer is not None and len(backend.pre_tokenizer.pre_tokenize_str(text)) > 1


def hash_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a digest of everything that affects how a fast tokenizer splits text, without padding and truncation."""
    return hash_json(tokenizer_definition(tokenizer))


def tokenizer_definition(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the definition of a fast tokenizer, as in `tokenizer.json`, without padding and truncation."""
    return json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}


def map_in_order(function: Callable[[Item], Result], items: Iterator[Item], num_workers: int) -> Iterator[Result]:
    """Like `map`, in several processes. A single item, or a call inside a data worker, starts no process.

    `items` are read only a little ahead of the results, so they need not fit into memory. Outside of Linux, `function`
    must be picklable, because processes are not forked.
    """
    first = list(islice(items, 2))
    items = chain(first, items)
    if len(first) < 2 or num_workers == 1 or multiprocessing.current_process().daemon:
        yield from map(function, items)
        return
    # Forking is fast and shares memory, but on macOS system libraries can crash in the child.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(function,)) as executor:
        try:
            pending: deque[Future[Result]] = deque()
            for item in items:
                pending.append(executor.submit(_call_function, item))
                if len(pending) > 2 * num_workers:  # enough to keep all processes busy
                    yield _receive(pending.popleft(), executor)
            while pending:
                yield _receive(pending.popleft(), executor)
        except BaseException:
            _kill_workers(executor)  # after Ctrl-C, they may need minutes for their items
            raise


def _receive(future: Future[Result], executor: ProcessPoolExecutor) -> Result:
    while not wait([future], PATIENCE).done:
        # Without this check, a process that is killed while it sends a result would be awaited forever.
        if any(process.exitcode is not None for process in list(executor._processes.values())):
            _kill_workers(executor)
    return future.result()


def _kill_workers(executor: ProcessPoolExecutor) -> None:
    for process in list(executor._processes.values()):
        process.kill()
    executor._result_queue._writer.close()  # type: ignore[attr-defined]  # ends the wait for the rest of a result


_function: Callable[[Any], Any]


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already run in parallel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    # Without this thread, workers would wait forever after the main process was killed.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call_function(item: Any) -> Any:
    return _function(item)
