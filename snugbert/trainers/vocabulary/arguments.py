"""The arguments of `snugbert vocabulary`. This module imports nothing heavy, so that `--help` is fast."""

from dataclasses import dataclass, field
from typing import Any

from snugbert.errors import InputError
from snugbert.models import check_folder
from snugbert.trainers.text_arguments import TextArguments
from snugbert.trainers.vocabulary.learning import KINDS

CASING = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")


@dataclass(kw_only=True)
class VocabularyArguments(TextArguments):
    """The arguments of `snugbert vocabulary`; text comes either from files or from a dataset.

    Raises:
        InputError: neither or both of the two sources, a count that is not positive, a flag and its opposite, or a
            folder that does not exist.
    """

    output_dir: str = field(metadata={"help": "Folder for the tokenizer, and the model of --init."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the tokenizer that is there."})
    model: str | None = field(
        default=None,
        metadata={"choices": KINDS, "help": "How to cut words into pieces. Default: wordpiece, or that of --init."},
    )
    init: str | None = field(
        default=None,
        metadata={
            "help": "Add pieces to the tokenizer, and to the model if there is one, of this folder or Hub name."
        },
    )
    vocab_size: int = field(
        default=30522, metadata={"help": "Number of pieces, special tokens and those of --init included."}
    )
    min_frequency: int = field(default=2, metadata={"help": "Fewest occurrences of a piece, characters aside."})
    do_lower_case: bool | None = field(
        default=None,
        metadata={
            "nargs": "?",
            "const": True,
            "help": "Lower-case all text. Default: as --init does; without it true, but false for byte-bpe.",
        },
    )
    no_do_lower_case: bool = field(default=False, metadata={"help": "Keep the case of letters."})
    strip_accents: bool | None = field(default=None, metadata={"help": "Remove accents. Default: as do_lower_case."})
    tokenize_chinese_chars: bool | None = field(
        default=None,
        metadata={"nargs": "?", "const": True, "help": "Make each Chinese character a word. Default: true."},
    )
    no_tokenize_chinese_chars: bool = field(
        default=False, metadata={"help": "Let words have several Chinese characters."}
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.train_file and self.dataset_name is None:
            raise InputError("there is no text; name it with --train_file or --dataset_name.")
        for name in ("vocab_size", "min_frequency"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("do_lower_case", "tokenize_chinese_chars"):
            if getattr(self, f"no_{name}"):
                if getattr(self, name):
                    raise InputError(f"--{name} and --no_{name} contradict each other; give one of them.")
                setattr(self, name, False)
        check_folder("init", self.init)

    @property
    def casing(self) -> dict[str, Any]:
        """What was said about letters, accents and Chinese characters."""
        return {name: getattr(self, name) for name in CASING if getattr(self, name) is not None}
