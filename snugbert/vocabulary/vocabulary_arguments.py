"""`snugbert vocabulary`: learns a tokenizer from text, or adds tokens to an existing tokenizer.

    snugbert vocabulary --train_file 'corpus/*.txt.gz' --output_dir tokenizer
    snugbert vocabulary --init bert-base-uncased --train_file law.txt --vocab_size 34000 --output_dir law-bert

`--help` imports this module, so it does not import Trainer or datasets, which take seconds.
"""

from dataclasses import dataclass, field
from typing import Any

from snugbert.cli.ranges import check_ranges
from snugbert.data.data_arguments import TextArguments
from snugbert.data.languages import check_language
from snugbert.errors import InputError
from snugbert.vocabulary.learning import KINDS

CASING = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")


@dataclass(kw_only=True)
class VocabularyArguments(TextArguments):
    """The text, the settings of the vocabulary, and the folder to write."""

    output_dir: str = field(metadata={"help": "Folder for the tokenizer, and for the model of --init."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the tokenizer in --output_dir."})
    language: str | None = field(
        default=None, metadata={"help": "Language code of the text. Case and accents are kept, except for en."}
    )
    model: str | None = field(
        default=None,
        metadata={"choices": KINDS, "help": "Kind of tokenizer. Default: wordpiece, or the kind of --init."},
    )
    init: str | None = field(
        default=None,
        metadata={"help": "Tokenizer to add tokens to (folder or Hub name). A model in its folder is extended, too."},
    )
    vocab_size: int = field(
        default=30522, metadata={"help": "Number of tokens, including special tokens and the tokens of --init."}
    )
    min_frequency: int = field(
        default=2, metadata={"help": "Minimum occurrences of a new token, except single characters."}
    )
    do_lower_case: bool | None = field(
        default=None,
        metadata={
            "nargs": "?",
            "const": True,
            "help": "Lowercase all text. Default: --init's setting, or true for English (byte-bpe: false).",
        },
    )
    strip_accents: bool | None = field(
        default=None,
        metadata={
            "nargs": "?",
            "const": True,
            "help": "Remove accents. Default: as --do_lower_case for English, otherwise false.",
        },
    )
    tokenize_chinese_chars: bool | None = field(
        default=None,
        metadata={"nargs": "?", "const": True, "help": "Make each Chinese character a word. Default: true."},
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.train_file and self.dataset_name is None:
            raise InputError("no text. Pass --train_file or --dataset_name.")
        check_ranges(self)
        if self.language is not None:
            check_language(self.language)

    @property
    def casing(self) -> dict[str, Any]:
        """The given settings for case, accents and Chinese characters."""
        return {name: getattr(self, name) for name in CASING if getattr(self, name) is not None}
