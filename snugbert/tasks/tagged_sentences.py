"""Reads the sentences of a split, checks the scheme of their tags, and converts tags to entities and back.

Sentences are kept in memory. CoNLL-2003 has 14,041 training sentences.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset
from seqeval.metrics.sequence_labeling import get_entities
from transformers import PreTrainedTokenizerBase

from snugbert.data.conll import (
    DOCUMENT_START,
    ONLY_IDS,
    Sentence,
    has_only_ids,
    parse_column_number,
    read_conll,
    read_records,
)
from snugbert.data.sources import uncompressed_name
from snugbert.data.text_lines import find_encoding, read_text_lines
from snugbert.errors import InputError, format_count
from snugbert.tasks.entity_spans import Text, contains_texts, read_annotated_texts
from snugbert.tasks.task_arguments import DOCUMENT_COLUMNS

if TYPE_CHECKING:
    from snugbert.tasks.task_arguments import NerDataArguments

logger = logging.getLogger(__name__)


TAG = re.compile(r"O|[BIMELSU]-.+")
BARE_TAG = re.compile(r"[OBIMELSU]")  # tags without a type
BARE_TYPE = "ENTITY"  # the type of entities whose tags have no type
BARE = " without types"  # follows the name of the scheme if tags have no types
# Scheme -> prefixes of the first, inner, last and only word of an entity. BIO is also called IOB2. IOB1, the scheme of
# CoNLL-2003's original files, uses B- only if an entity directly follows another entity of the same type.
SCHEMES = {
    "bio": ("B", "I", "I", "B"),
    "iob1": ("I", "I", "I", "I"),
    "iobes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
    "bmes": ("B", "M", "E", "S"),
}


@dataclass
class TagSplit:
    """The sentences of a split."""

    name: str
    source: str
    sentences: list[Sentence]  # after `check_tags`, their entity tags are in BIO
    one_word_per_line: bool = False  # whether the source is a CoNLL file
    types: frozenset[str] = frozenset()  # entity types, or other tags, even of sentences beyond the limit on examples
    suffix: str = ".jsonl"  # suffix of the source, without .gz and .zst
    lines: Sequence[str] = ()  # lines of the source. Empty for training and unlabeled sentences
    encoding: str = "utf-8"  # "utf-8-sig" if the source begins with a byte order mark
    limited: bool = False  # whether a limit on examples left out sentences at the end of the source
    texts: Sequence[Text | None] = ()  # the texts of the sentences. Empty if the source contains words
    has_entities: bool = True  # False for other tags, such as parts of speech

    @property
    def labeled(self) -> bool:
        """Whether every sentence has tags."""
        return all(sentence.tags is not None for sentence in self.sentences)

    @property
    def num_examples(self) -> int:
        """The number of sentences."""
        return len(self.sentences)

    def describe_word(self, sentence: Sentence, word: int) -> str:
        """Returns the source and the line or row of a word, for messages."""
        if self.one_word_per_line:
            return f"{self.source}, line {sentence.row + word}"
        return f"{self.source}, row {sentence.row}, word {word + 1}"


# --- reading ----------------------------------------------------------------------------------------------------


def read_tagged_sentences(
    data: Path | Dataset,
    name: str,
    source: str,
    args: "NerDataArguments",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TagSplit:
    """Reads the sentences of a split, with their original tags. The `tokenizer` finds the words of texts."""
    file_name = uncompressed_name(data) if isinstance(data, Path) else "dataset.jsonl"
    one_word_per_line = not file_name.endswith((".json", ".jsonl"))
    labeled, is_written = name not in ("unlabeled", "test"), name in ("validation", "test")
    lines: list[str] = []
    texts: Sequence[Text | None] = ()
    if one_word_per_line or is_written:
        lines = list(_read_lines(data))
    if one_word_per_line:
        word_column = parse_column_number("text_column_name", args.text_column_name)
        tag_column = parse_column_number("label_column_name", args.label_column_name)
        sentences = list(read_conll(lines, source, word_column, tag_column, labeled))
        if word_column is None and has_only_ids(sentences):
            logger.warning(ONLY_IDS, source, "--text_column_name")
    elif tokenizer is not None and contains_texts(data, args):
        sentences, texts = read_annotated_texts(data, name, source, args, tokenizer)
    else:
        given = args.document_column_name
        columns = () if name == "unlabeled" else args.tag_columns
        documents = (given,) if given else DOCUMENT_COLUMNS
        records = read_records(data, source, args.text_column_name, columns, documents, labeled, given is not None)
        sentences = list(records)
    if name == "unlabeled":
        sentences = [sentence._replace(tags=None) for sentence in sentences]
    empty = [sentence.row for sentence in sentences if not sentence.words]
    if empty:
        logger.warning("%s: skipped sentences without words: %d, the first in row %d.", source, len(empty), empty[0])
        texts = [text for text in texts if text is not None and text.words]
        sentences = [sentence for sentence in sentences if sentence.words]
    used = sentences[: args.max_samples.get(name)]
    _check_sentences(used, source, args.document_context, one_word_per_line)
    return TagSplit(
        name,
        source,
        used,
        one_word_per_line,
        types=frozenset(tag for sentence in sentences for tag in sentence.tags or ()),
        suffix=Path(file_name).suffix or ".txt",
        lines=lines if is_written else (),
        encoding=find_encoding(data) if isinstance(data, Path) else "utf-8",
        limited=len(used) < len(sentences),
        texts=texts[: len(used)],
    )


def _read_lines(data: Path | Dataset) -> Iterator[str]:
    """Yields the lines of a file, or a line of JSON for each row of a dataset."""
    if isinstance(data, Path):
        return read_text_lines(data)
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in data)


def _check_sentences(sentences: list[Sentence], source: str, in_documents: bool, one_word_per_line: bool) -> None:
    if not sentences:
        raise InputError(f"{source}: no sentences.")
    untagged = [sentence.row for sentence in sentences if sentence.tags is None]
    if 0 < len(untagged) < len(sentences):
        message = "%s: %d of %d sentences have no tags, the first in row %d. The split is predicted, but not scored."
        logger.warning(message, source, len(untagged), len(sentences), untagged[0])
    if in_documents and any(sentence.document is None for sentence in sentences):
        advice = f"Add {DOCUMENT_START} lines" if one_word_per_line else "Set --document_column_name"
        raise InputError(f"--document_context: {source} does not mark its documents. {advice}.")


# --- checks -----------------------------------------------------------------------------------------------------


def check_tags(splits: Mapping[str, TagSplit], scheme: str, on_bad_tag: str) -> str | None:
    """Converts the tags of all splits to BIO, and returns their scheme, such as "bio without types".

    Returns None, and keeps the tags, if they mark no entities.

    Whether tags mark entities is decided on the training data or, if there are none, on all splits. If some sentences
    of a split have no tags, its other tags are dropped.

    `scheme` is the scheme of all splits, or "auto": the scheme with the fewest invalid tags, see
    [`find_invalid_tags`]. `on_bad_tag`: "stop", or "repair" invalid tags as `conlleval` reads them, with a warning.
    """
    labeled = [(split, s, s.tags) for split in splits.values() if split.labeled for s in split.sentences if s.tags]
    decisive = [tags for split, _, tags in labeled if split.name == "train"] or [tags for _, _, tags in labeled]
    counts = Counter(tag for tags in decisive for tag in tags)
    has_entities, bare = are_entity_tags(counts), BARE if are_bare(counts) else ""
    for split, sentence, tags in labeled:
        for word, tag in enumerate(tags):
            if not (TAG.fullmatch(add_type(tag) if bare else tag) if has_entities else tag):
                raise InputError(
                    f"{split.describe_word(sentence, word)}: {tag!r} is not an entity tag. Expected O, or a type "
                    "after B-, I-, E-, S-, L-, U- or M-, such as B-PER. Check --label_column_name."
                )
    for split in splits.values():
        split.has_entities = has_entities
        split.types = frozenset(list_types(split.types)) if has_entities else split.types
    if not has_entities:
        examples = ", ".join(repr(tag) for tag, _ in counts.most_common(3))
        message = "%s: the tags mark no entities (such as %s), so the metric is accuracy. Check --label_column_name."
        logger.warning(message, labeled[0][0].source, examples)
        return None
    invalid: dict[str, list[tuple[int, int, str]]] = {}  # scheme -> sentence, word and expected tag
    for candidate in (name + bare for name in (SCHEMES if scheme == "auto" else (scheme,))):
        invalid[candidate] = [
            (index, *found)
            for index, (_, _, tags) in enumerate(labeled)
            for found in find_invalid_tags(tags, candidate)
        ]
        if not invalid[candidate]:  # no other scheme fits, unless all tags are O
            break
    scheme = min(invalid, key=lambda candidate: len(invalid[candidate]))
    shown = scheme.partition(" ")[0].upper() + bare
    if invalid[scheme]:
        index, word, expected = invalid[scheme][0]
        split, sentence, tags = labeled[index]
        number = format_count(len(invalid[scheme]), "such tag")
        message = (
            f"{split.describe_word(sentence, word)}: tag {tags[word]!r} is invalid in {shown} here. conlleval reads "
            f"it as {expected!r} ({number})."
        )
        if on_bad_tag == "stop":
            raise InputError(f"{message} Fix the tags, or set --on_bad_tag repair.")
        logger.warning("%s All invalid tags are repaired.", message)
    elif labeled:
        iob1 = ": entities begin with I-, or B- right after an entity of the same type" if scheme == "iob1" else ""
        logger.info("tagging scheme: %s%s%s", shown, iob1, f". The type is called {BARE_TYPE}." if bare else "")
    for split in splits.values():
        has_tags = split.labeled
        split.sentences = [
            sentence._replace(tags=convert_tags(sentence.tags or (), "bio") if has_tags else None)
            for sentence in split.sentences
        ]
    return scheme


def check_types(split: TagSplit, types: set[str], origin: str) -> None:
    """Checks the entity types of a split. If the tags mark no entities, rare unknown tags only get a warning."""
    if not split.has_entities:
        unknown = [tag for sentence in split.sentences for tag in sentence.tags or () if tag not in types]
        if unknown:
            count = format_count(len(unknown), "word")
            problem = f"{split.source}: {count} with a tag that is not in {origin}, such as {unknown[0]!r}."
            if 2 * len(unknown) > sum(len(sentence.tags or ()) for sentence in split.sentences):
                raise InputError(f"{problem} Check --label_column_name.")
            logger.warning("%s Such words count as errors.", problem)
        return
    for sentence in split.sentences:
        for word, tag in enumerate(sentence.tags or ()):
            if tag != "O" and tag[2:] not in types:
                place = split.describe_word(sentence, word)
                expected = f"Expected a type in {origin}: {', '.join(sorted(types))}"
                raise InputError(f"{place}: unknown entity type {tag[2:]!r}. {expected}.")


# --- tags and entities ------------------------------------------------------------------------------------------


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Whether most of the different tags are entity tags. Otherwise they are other tags, such as parts of speech."""
    others = {*tags} - {"O"}
    return 2 * sum(tag[:1] in "BIMELSU" and tag[1:2] in ("", "-") for tag in others) >= len(others)


def are_bare(tags: Iterable[str]) -> bool:
    """Whether tags are B, I and so on, without types."""
    others = {*tags} - {"O"}
    return bool(others) and all(map(BARE_TAG.fullmatch, others))


def add_type(tag: str) -> str:
    """Returns B-ENTITY for B. Does not change O and tags with a type."""
    return f"{tag}-{BARE_TYPE}" if BARE_TAG.fullmatch(tag) and tag != "O" else tag


def list_types(tags: Iterable[str]) -> set[str]:
    """Returns the entity types of tags, such as LOC of B-LOC. Labels that are not tags have no type."""
    return {tag[2:] for tag in map(add_type, tags) if TAG.fullmatch(tag)} - {""}


def decode_tags(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the entities of a sentence as (type, first word, last word), for tags of any scheme.

    Invalid tags are read as in `conlleval`: an I- that does not continue an entity begins a new entity.
    """
    iobes_prefixes = {"L-": "E-", "U-": "S-", "M-": "I-"}  # from BILOU and BMES
    return get_entities([iobes_prefixes.get(tag[:2], tag[:2]) + tag[2:] for tag in map(add_type, tags)])


def encode_tags(entities: Iterable[tuple[str, int, int]], num_words: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence. Reverses [`decode_tags`]."""
    tags = ["O"] * num_words
    scheme, bare, _ = scheme.partition(BARE)
    for kind, first, last in entities:
        begin, inside, end, single = SCHEMES[scheme]
        if scheme == "iob1" and first and tags[first - 1][2:] == kind:
            begin = single = "B"
        prefixes = [single] if first == last else [begin, *[inside] * (last - first - 1), end]
        tags[first : last + 1] = [f"{prefix}-{kind}" for prefix in prefixes]
    return [tag[0] if bare and tag[2:] == BARE_TYPE else tag for tag in tags]


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """Returns the tags of a sentence in another scheme. [`decode_tags`] decides how invalid tags are read."""
    return encode_tags(decode_tags(tags), len(tags), scheme)


def find_invalid_tags(tags: Sequence[str], scheme: str) -> list[tuple[int, str]]:
    """Returns the words of a sentence whose tags are invalid in a scheme, each with the tag that `conlleval` reads.

    A tag is invalid in a scheme if [`convert_tags`] changes it.
    """
    pairs = zip(tags, convert_tags(tags, scheme), strict=True)
    return [(word, expected) for word, (tag, expected) in enumerate(pairs) if tag != expected]
