"""`snugbert vocabulary --init`: adds tokens for a domain to a tokenizer, and to its model.

Old tokens keep their ids, and new tokens follow them. Words of the domain text are split into old tokens, and the most
frequent pair of neighbors is merged repeatedly. So each new token is a sequence of old tokens. In the model, the
embedding and the output bias of a new token start as the mean over these old tokens. Nothing else changes. In
WordPiece, the old tokenizer splits a new token into exactly these tokens, because any part of a longest-match
segmentation is itself a longest-match segmentation.
"""

import json
from collections import Counter
from itertools import product
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TokenizersBackend
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from snugbert.errors import InputError
from snugbert.families.loading import SPECIAL_TOKEN_NAMES
from snugbert.families.reading import CLASSES, build_model, fetch_checkpoint, read_checkpoint
from snugbert.tokenization_snugbert import MODEL_MAX_LENGTH, SnugBertTokenizer
from snugbert.vocabulary.learning import KINDS, Merge, TokenizerKind, make_tokenizer, merge_pairs

# While merging, the old token with id `i` is the character `chr(FIRST_CHARACTER + i)`. No such character is a space.
FIRST_CHARACTER = 0x10000


class Extension(NamedTuple):
    """New tokens for a tokenizer."""

    tokens: dict[str, list[int]]  # new token -> ids of the old tokens in it. Sorted by the ids of the new tokens
    first_id: int
    num_words: int  # words that the tokens were learned from. Words with unknown characters were left out
    merges: list[Merge]  # new merges of BPE, to apply in this order after the old merges


def read_tokenizer_settings(tokenizer: PreTrainedTokenizerBase, name: str) -> tuple[TokenizerKind, dict[str, Any]]:
    """Finds the arguments of [`make_tokenizer`] that split text into the same words as `tokenizer` does.

    Exception: RoBERTa's tokenizer puts no space before the first word of a text.
    """
    definition = _read_definition(tokenizer)
    if _is_byte_level(definition):
        return "byte-bpe", {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False}
    normalizer = definition["normalizer"] or {"lowercase": False, "strip_accents": False}
    for kind, chinese in product(KINDS, (True, False)):
        settings: dict[str, Any] = {
            "do_lower_case": normalizer.get("lowercase"),
            "strip_accents": normalizer.get("strip_accents"),
            "tokenize_chinese_chars": chinese,
        }
        ours = _read_definition(make_tokenizer(kind, **settings))
        same_words = all(definition[part] == ours[part] for part in ("normalizer", "pre_tokenizer"))
        names = ("type", "continuing_subword_prefix")
        if same_words and all(definition["model"].get(name) == ours["model"].get(name) for name in names):
            return kind, settings
    # SentencePiece's unigram tokens need probabilities, which merging does not compute.
    raise InputError(
        f"--init: the tokenizer of {name} cannot be extended. Use a tokenizer of BERT, ELECTRA or RoBERTa, or one "
        "from `snugbert vocabulary`."
    )


def _is_byte_level(definition: dict[str, Any]) -> bool:
    """Whether a tokenizer is a byte-level BPE tokenizer that splits words like GPT-2, such as RoBERTa's."""
    pre_tokenizer, model = definition["pre_tokenizer"] or {}, definition["model"]
    is_split_as_gpt2 = pre_tokenizer.get("type") == "ByteLevel" and pre_tokenizer["use_regex"]
    is_plain = not model.get("continuing_subword_prefix") and definition["normalizer"] is None
    return is_split_as_gpt2 and model["type"] == "BPE" and is_plain


def _read_definition(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str())


def learn_extension(
    words: Counter[str],
    tokenizer: PreTrainedTokenizerBase,
    num_tokens: int,
    min_frequency: int = 2,
) -> Extension:
    """Learns new tokens for `words`. The ids of the old tokenizer must have no gaps."""
    model, sequences = tokenizer.backend_tokenizer.model, Counter[str]()
    for word, count in words.items():
        ids = [token.id for token in model.tokenize(word)]
        if tokenizer.unk_token_id not in ids:  # words with an unknown character are left out
            sequences["".join(chr(FIRST_CHARACTER + index) for index in ids)] = count
    alphabet = sorted(set().union(*sequences))
    learned, merges = merge_pairs(sequences, alphabet, len(alphabet) + num_tokens, min_frequency)
    old = {index: token for token, index in tokenizer.get_vocab().items()}
    prefix = model.continuing_subword_prefix or ""

    def spell(characters: str) -> str:
        first, *rest = (old[index] for index in _decode_ids(characters))
        return first + "".join(token.removeprefix(prefix) for token in rest)

    # In BPE, different sequences of old tokens can spell the same new token. The most frequent sequence was merged
    # first.
    tokens: dict[str, list[int]] = {}
    for characters in learned[len(alphabet) :]:
        tokens.setdefault(spell(characters), _decode_ids(characters))
    known = set(old.values())
    return Extension(
        tokens={token: ids for token, ids in tokens.items() if token not in known},
        first_id=len(old),
        num_words=sequences.total(),
        merges=[(spell(left), spell(right)) for left, right in merges],
    )


def _decode_ids(characters: str) -> list[int]:
    return [ord(character) - FIRST_CHARACTER for character in characters]


def extend_tokenizer(tokenizer: PreTrainedTokenizerBase, extension: Extension, name: str) -> TokenizersBackend:
    """Makes a tokenizer with the old and the new tokens. BERT's tokenizer becomes a [`SnugBertTokenizer`].

    All old tokens keep their ids, including added tokens. `name` names the old tokenizer in messages.
    """
    kind, settings = read_tokenizer_settings(tokenizer, name)
    new = {token: index for index, token in enumerate(extension.tokens, start=extension.first_id)}
    vocabulary = tokenizer.get_vocab() | new
    options: dict[str, Any] = {token_name: getattr(tokenizer, token_name) for token_name in SPECIAL_TOKEN_NAMES}
    options["added_tokens_decoder"] = tokenizer.added_tokens_decoder
    unlimited = tokenizer.model_max_length >= VERY_LARGE_INTEGER  # the old tokenizer stores no length
    options["model_max_length"] = MODEL_MAX_LENGTH if unlimited else tokenizer.model_max_length
    if kind == "wordpiece":
        return SnugBertTokenizer(vocabulary, **settings, **options)
    definition = _read_definition(tokenizer)
    definition["model"]["vocab"] = vocabulary
    definition["model"]["merges"] += extension.merges
    return TokenizersBackend(
        tokenizer_object=Tokenizer.from_str(json.dumps(definition)),
        model_input_names=tokenizer.model_input_names,
        clean_up_tokenization_spaces=False,
        **options,
    )


def load_init_model(name: str) -> PreTrainedModel | None:
    """Loads the model in a tokenizer's folder as SnugBERT with the same head, in float32. None without a model."""
    folder = fetch_checkpoint(name)
    if folder.is_dir() and not (folder / "config.json").exists() and not any(folder.glob("*.ckpt*.index")):
        return None
    checkpoint = read_checkpoint(folder)
    model_class = CLASSES["snugbert"][checkpoint.head]
    return build_model(
        model_class, checkpoint.config, checkpoint.weights, torch.float32, checkpoint.options("snugbert")
    )


@torch.no_grad()
def extend_model(model: PreTrainedModel, extension: Extension) -> None:
    """Adds an embedding and an output bias for each new token, in place: the means over its old tokens.

    `model` is a SnugBERT model with any head. It may have more embeddings than the old tokenizer has tokens.
    """
    vocab_size = extension.first_id + len(extension.tokens)
    if vocab_size > model.config.vocab_size:
        model.resize_token_embeddings(vocab_size, mean_resizing=False)
    embeddings: Any = model.get_input_embeddings()
    output: Any = model.get_output_embeddings()
    tables = [embeddings.weight]
    if output is not None:
        tables.append(output.bias)
        if output.weight is not embeddings.weight:  # not tied
            tables.append(output.weight)
    for table in tables:
        for index, ids in enumerate(extension.tokens.values(), start=extension.first_id):
            table[index] = table[ids].mean(dim=0)


def tokens_per_word(words: Counter[str], tokenizer: PreTrainedTokenizerBase) -> float:
    """Returns the mean number of tokens per word, weighted by the words' counts."""
    model = tokenizer.backend_tokenizer.model
    return sum(count * len(model.tokenize(word)) for word, count in words.items()) / words.total()
