"""`snugbert vocabulary --init`: a tokenizer, a model and domain text -> both with more pieces.

Old pieces keep their ids. New ones go on from where the old tokenizer stops: words, cut into old pieces, are merged
further, the most frequent pair of neighbours first, so every new piece is a run of old ones. In the model a new piece
starts from the mean of these, as an embedding and as a prediction; everything else stays as it is.
"""

import json
from collections import Counter
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TokenizersBackend
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from snugbert.checkpoints import CLASSES, build_model, fetch_checkpoint, read_checkpoint
from snugbert.errors import InputError
from snugbert.models import SPECIAL_TOKEN_NAMES
from snugbert.tokenization_snugbert import MODEL_MAX_LENGTH, SnugBertTokenizer
from snugbert.trainers.vocabulary.learning import KINDS, Kind, Merge, make_tokenizer, merge_pairs

# While merging, an old piece is one character: this and its id. No character from here on is a space.
FIRST_CHARACTER = 0x10000


class Extension(NamedTuple):
    """What a tokenizer learned.

    Attributes:
        pieces: the new pieces, in the order of their ids, and the ids of the old ones that each is made of.
        first: id of the first new piece.
        learned_from: occurrences of words without an unknown character.
        merges: for BPE, in the order in which they are to be applied, behind the old ones.
    """

    pieces: dict[str, list[int]]
    first: int
    learned_from: int
    merges: list[Merge]


def read_settings(tokenizer: PreTrainedTokenizerBase, name: str) -> tuple[Kind, dict[str, Any]]:
    """The kind of a tokenizer and the other arguments that [`make_tokenizer`] makes one like it of.

    Args:
        tokenizer: a fast one.
        name: of it, for the message.

    Raises:
        InputError: it makes words of text in another way than BERT and this package do.
    """
    parts = _definition(tokenizer)
    normalizer = parts["normalizer"] or {"lowercase": False, "strip_accents": False}
    for kind in KINDS:
        for chinese in (True, False):
            settings: dict[str, Any] = {
                "do_lower_case": normalizer.get("lowercase"),
                "strip_accents": normalizer.get("strip_accents"),
                "tokenize_chinese_chars": chinese,
            }
            like = _definition(make_tokenizer(kind, **settings))
            same = all(parts[part] == like[part] for part in ("normalizer", "pre_tokenizer"))
            prefixes = [definition["model"].get("continuing_subword_prefix") for definition in (parts, like)]
            if same and parts["model"]["type"] == like["model"]["type"] and prefixes[0] == prefixes[1]:
                return kind, settings
    raise InputError(
        f"--init: the tokenizer of {name} is neither BERT's nor one that `snugbert vocabulary` made, and cannot be "
        "extended; name one that is."
    )


def _definition(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str())


def cut_words(words: Counter[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """The ids of the pieces of each word that holds no unknown character.

    Args:
        words: of [`count_words`] with this tokenizer.
        tokenizer: a fast one.
    """
    model, unknown = tokenizer.backend_tokenizer.model, tokenizer.unk_token_id
    cut = {word: [token.id for token in model.tokenize(word)] for word in words}
    return {word: ids for word, ids in cut.items() if unknown not in ids}


def learn_extension(
    words: Counter[str],
    tokenizer: PreTrainedTokenizerBase,
    number: int,
    min_frequency: int = 2,
    show_progress: bool = True,
) -> Extension:
    """New pieces for `words`: runs of old ones.

    Args:
        words: how often each word occurs, see [`count_words`].
        tokenizer: the old one; its ids have no holes.
        number: of new pieces, at most.
        min_frequency: the fewest occurrences that make a pair a piece.
        show_progress: whether to show progress bars, on a terminal.
    """
    runs = Counter({_as_characters(ids): words[word] for word, ids in cut_words(words, tokenizer).items()})
    given = sorted(set().union(*runs))
    learned, merges = merge_pairs(runs, given, len(given) + number, min_frequency, show_progress=show_progress)
    old = {index: piece for piece, index in tokenizer.get_vocab().items()}
    prefix = tokenizer.backend_tokenizer.model.continuing_subword_prefix or ""

    def text(characters: str) -> str:
        first, *rest = (old[index] for index in _as_ids(characters))
        return first + "".join(piece.removeprefix(prefix) for piece in rest)

    # WordPiece cuts the text of a run in one way; BPE may have others, of which the most frequent was merged first.
    pieces: dict[str, list[int]] = {}
    for characters in learned[len(given) :]:
        pieces.setdefault(text(characters), _as_ids(characters))
    known = set(old.values())
    return Extension(
        pieces={piece: ids for piece, ids in pieces.items() if piece not in known},
        first=len(old),
        learned_from=runs.total(),
        merges=[(text(left), text(right)) for left, right in merges],
    )


def _as_characters(ids: list[int]) -> str:
    return "".join(chr(FIRST_CHARACTER + index) for index in ids)


def _as_ids(characters: str) -> list[int]:
    return [ord(character) - FIRST_CHARACTER for character in characters]


def extend_tokenizer(tokenizer: PreTrainedTokenizerBase, extension: Extension, name: str) -> TokenizersBackend:
    """The tokenizer with the new pieces behind its last token; BERT's becomes SnugBERT's.

    Tokens that were added to the old one keep their ids, too.

    Args:
        tokenizer: the old one; it stays as it is.
        extension: from [`learn_extension`].
        name: of the old one, for messages.
    """
    kind, settings = read_settings(tokenizer, name)
    new = {piece: index for index, piece in enumerate(extension.pieces, start=extension.first)}
    vocabulary = tokenizer.get_vocab() | new
    options: dict[str, Any] = {name: getattr(tokenizer, name) for name in SPECIAL_TOKEN_NAMES}
    options["added_tokens_decoder"] = tokenizer.added_tokens_decoder
    unlimited = tokenizer.model_max_length >= VERY_LARGE_INTEGER  # it was not told
    options["model_max_length"] = MODEL_MAX_LENGTH if unlimited else tokenizer.model_max_length
    if kind == "wordpiece":
        return SnugBertTokenizer(vocabulary, **settings, **options)
    definition = _definition(tokenizer)
    definition["model"]["vocab"] = vocabulary
    definition["model"]["merges"] += extension.merges
    return TokenizersBackend(
        tokenizer_object=Tokenizer.from_str(json.dumps(definition)),
        model_input_names=tokenizer.model_input_names,
        clean_up_tokenization_spaces=False,
        **options,
    )


def load_init_model(name: str) -> PreTrainedModel | None:
    """The model that comes with a tokenizer, as SnugBERT with the head it has, in float32; None if there is none.

    Args:
        name: folder or Hub name.

    Raises:
        InputError: see [`read_checkpoint`].
    """
    folder = fetch_checkpoint(name)
    if folder.is_dir() and not (folder / "config.json").exists() and not any(folder.glob("*.ckpt*.index")):
        return None
    checkpoint = read_checkpoint(folder)
    model_class = CLASSES["snugbert"][checkpoint.head]
    return build_model(model_class, checkpoint.config, checkpoint.weights, torch.float32, checkpoint.options)


@torch.no_grad()
def extend_model(model: Any, extension: Extension) -> None:
    """Gives the model rows for the new pieces: each the mean of those of its old pieces, and likewise its bias.

    Args:
        model: a SnugBERT with any head; changed in place. It may have more rows than the old tokenizer has tokens.
        extension: from [`learn_extension`].
    """
    end = extension.first + len(extension.pieces)
    if end > model.config.vocab_size:
        model.resize_token_embeddings(end, mean_resizing=False)
    tables = [model.get_input_embeddings().weight]
    output = model.get_output_embeddings()
    if output is not None:
        tables.append(output.bias)
        if output.weight is not tables[0]:  # not tied
            tables.append(output.weight)
    for table in tables:
        for index, ids in enumerate(extension.pieces.values(), start=extension.first):
            table[index] = table[ids].mean(dim=0)


def pieces_per_word(words: Counter[str], tokenizer: PreTrainedTokenizerBase) -> float:
    """Into how many pieces a word of the text is cut on average."""
    model = tokenizer.backend_tokenizer.model
    return sum(count * len(model.tokenize(word)) for word, count in words.items()) / words.total()
