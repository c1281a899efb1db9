"""The arguments that name models and tokenizers, and the arguments of `snugbert convert`."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from snugbert.cli.arguments import ConvertedArguments, argument, check_ranges
from snugbert.errors import InputError
from snugbert.families_snugbert import FAMILY_TYPES

SIZE_NAMES = ("tiny", "mini", "small", "medium", "base", "large")  # the keys of configuration_snugbert.SIZES
CONVERTED_TYPES = ("snugbert", "bert", *FAMILY_TYPES)
CONVERTED_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(kw_only=True)
class HubArguments:
    """How to download from the Hub."""

    help_group: ClassVar[str] = "more"

    cache_dir: str | None = argument(
        None, "Folder for downloads and prepared text. Default: in HF_HOME.", advanced=True
    )
    model_revision: str = argument("main", "Branch, tag or commit on the Hub.", advanced=True)
    token: str | None = argument(None, "Token for the Hub. Default: the token of `hf auth login`.", advanced=True)

    @property
    def hub(self) -> dict[str, Any]:
        """The Hub arguments of `from_pretrained`."""
        return {"cache_dir": self.cache_dir, "revision": self.model_revision, "token": self.token}


@dataclass
class TokenizerArguments(HubArguments):
    """Which tokenizer to use, and how to reach the Hub."""

    help_group: ClassVar[str] = "tokenizer"

    tokenizer_name: str | None = argument(None, "Tokenizer: a folder or Hub name. Default: the model's.")
    trust_remote_code: bool = argument(False, "Run the code in the tokenizer's repository.", advanced=True)

    @property
    def tokenizer_source(self) -> str | None:
        """Folder or Hub name of the tokenizer."""
        return self.tokenizer_name

    @property
    def hub(self) -> dict[str, Any]:
        """The Hub arguments of `from_pretrained`."""
        return super().hub | {"trust_remote_code": self.trust_remote_code}


@dataclass
class ModelArguments(TokenizerArguments):
    """Which model to use. The names come from transformers' example scripts."""

    help_group: ClassVar[str] = "model"

    model_name_or_path: str | None = argument(None, "Checkpoint to start from: a folder or Hub name.")
    config_name: str | None = argument(
        None, f"Start from random weights: {', '.join(SIZE_NAMES)}, or a config folder."
    )
    config_overrides: str | None = argument(None, "Change fields of the configuration, such as hidden_dropout_prob=0.")
    allow_missing_weights: bool = argument(
        False, "Start encoder weights from random values if the checkpoint lacks them.", advanced=True
    )
    attn_implementation: str | None = argument(
        None, "Attention: sdpa, eager or flash_attention_2. Default: sdpa.", advanced=True
    )

    def __post_init__(self):
        if self.model_name_or_path is None and self.config_name is None:
            raise InputError("--model_name_or_path is missing. To start from random weights, pass --config_name.")
        if self.model_name_or_path is None and self.tokenizer_name is None:
            raise InputError(
                "--tokenizer_name is missing. A model with random weights (--config_name) has no tokenizer."
            )

    @property
    def tokenizer_source(self) -> str | None:
        """Folder or Hub name of the tokenizer. Default: the model's."""
        return self.tokenizer_name or self.model_name_or_path


@dataclass
class StudentArguments(ModelArguments):
    """Which model to train, and which teacher it learns from."""

    teacher_name_or_path: str | None = argument(
        None, "Checkpoint to distill, trained for the same task: a folder or Hub name."
    )
    num_student_layers: int | None = argument(
        None,
        "Keep this many layers of --model_name_or_path, or of the teacher if that flag is not set. Default: all.",
        advanced=True,
    )
    student_layers: str = argument(
        "spread", "Layers to keep: spread, first, last, or numbers from 0 such as 0,2,5.", advanced=True
    )

    def __post_init__(self):
        if self.num_student_layers is None and self.student_layers != type(self).student_layers:
            raise InputError("--student_layers needs --num_student_layers.")
        if self.model_name_or_path is None and self.config_name is None and self.num_student_layers is not None:
            self.model_name_or_path = self.teacher_name_or_path
        super().__post_init__()

    def as_teacher(self) -> Self:
        """Returns the arguments that load the teacher, with its own tokenizer and configuration."""
        return replace(
            self,
            model_name_or_path=self.teacher_name_or_path,
            # `model_revision` belongs to `model_name_or_path`, which may be a different checkpoint.
            model_revision=self.model_revision if self.model_name_or_path == self.teacher_name_or_path else "main",
            teacher_name_or_path=None,
            num_student_layers=None,
            student_layers=type(self).student_layers,
            tokenizer_name=None,
            config_name=None,
            config_overrides=None,
        )


@dataclass(kw_only=True)
class ConversionArguments(ConvertedArguments):
    """Arguments of `snugbert convert`."""

    to: str = argument(help="Target architecture.", choices=CONVERTED_TYPES)
    dtype: str | None = argument(
        None, "Dtype of the weights. Default: the dtype of the input.", choices=CONVERTED_DTYPES
    )
    max_position_embeddings: int | None = argument(
        None, "Extend learned positions to this many tokens. Default: as in the input."
    )
    max_shard_size: str = argument("5GB", "Maximum size of a weight file, such as 500MB.")
    do_lower_case: bool | None = argument(
        None, "Lowercase text. Default: the input's setting. For a vocab.txt alone: true if lowercase."
    )

    def __post_init__(self):
        check_ranges(self)
