"""The arguments of `snugbert vocabulary`."""

from dataclasses import dataclass
from typing import Any

from snugbert.cli.arguments import COUNT, OverwriteArguments, argument
from snugbert.data.data_arguments import TextArguments
from snugbert.errors import InputError
from snugbert.vocabulary.learning import KINDS

CASING = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")


@dataclass(kw_only=True)
class VocabularyArguments(TextArguments, OverwriteArguments):
    """The text, the settings of the vocabulary, and the folder to write."""

    output_dir: str = argument(help="Folder for the tokenizer, and for the model of --init.")
    language: str | None = argument(
        None, "Language code of the text. Case and accents are kept, except for en. Default: not given."
    )
    model: str | None = argument(None, "Kind of tokenizer. Default: wordpiece, or the kind of --init.", choices=KINDS)
    init: str | None = argument(
        None, "Tokenizer to add tokens to (folder or Hub name). A model in its folder is extended, too."
    )
    vocab_size: int = argument(
        30522, "Number of tokens, including special tokens and the tokens of --init.", range=COUNT
    )
    min_frequency: int = argument(2, "Minimum occurrences of a new token, except single characters.", range=COUNT)
    do_lower_case: bool | None = argument(
        None, "Lowercase all text. Default: --init's setting, or true for English (byte-bpe: false)."
    )
    strip_accents: bool | None = argument(
        None, "Remove accents. Default: as --do_lower_case for English, otherwise false."
    )
    tokenize_chinese_chars: bool | None = argument(None, "Make each Chinese character a word. Default: true.")

    def __post_init__(self):
        super().__post_init__()
        if not self.train_file and self.dataset_name is None:
            raise InputError("no text. Pass --train_file or --dataset_name.")

    @property
    def casing(self) -> dict[str, Any]:
        """The given settings for case, accents and Chinese characters."""
        return {name: getattr(self, name) for name in CASING if getattr(self, name) is not None}
