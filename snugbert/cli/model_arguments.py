"""The arguments that name models and tokenizers, and the arguments of `snugbert convert`.

`--help` imports this module, so it imports neither models nor configurations, which take seconds.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from snugbert.errors import InputError
from snugbert.families_snugbert import FAMILY_TYPES

SIZE_NAMES = ("tiny", "mini", "small", "medium", "base", "large")  # the keys of configuration_snugbert.SIZES
CONVERTED_TYPES = ("snugbert", "bert", *FAMILY_TYPES)
CONVERTED_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(kw_only=True)
class HubArguments:
    """How to download from the Hub."""

    help_group: ClassVar[str] = "more"

    cache_dir: str | None = field(
        default=None,
        metadata={"advanced": True, "help": "Folder for downloads and prepared text. Default: in HF_HOME."},
    )
    model_revision: str = field(
        default="main", metadata={"advanced": True, "help": "Branch, tag or commit on the Hub."}
    )
    token: str | None = field(
        default=None, metadata={"advanced": True, "help": "Token for the Hub. Default: the token of `hf auth login`."}
    )

    @property
    def hub(self) -> dict[str, Any]:
        """The Hub arguments of `from_pretrained`."""
        return {"cache_dir": self.cache_dir, "revision": self.model_revision, "token": self.token}


@dataclass
class TokenizerArguments(HubArguments):
    """Which tokenizer to use, and how to reach the Hub."""

    help_group: ClassVar[str] = "tokenizer"

    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer: a folder or Hub name."})
    trust_remote_code: bool = field(
        default=False, metadata={"advanced": True, "help": "Run the code in the tokenizer's repository."}
    )

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
    """Which model to train. The names come from transformers' example scripts."""

    help_group: ClassVar[str] = "model"

    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer: a folder or Hub name. Default: the tokenizer of the model."}
    )
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Checkpoint of the BERT family to start from: a folder or Hub name."}
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Start from random weights: {', '.join(SIZE_NAMES)}, or a config folder."},
    )
    config_overrides: str | None = field(
        default=None, metadata={"help": "Change fields of the configuration, such as hidden_dropout_prob=0."}
    )
    allow_missing_weights: bool = field(
        default=False,
        metadata={"advanced": True, "help": "Start encoder weights from random values if the checkpoint lacks them."},
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={"advanced": True, "help": "Attention: sdpa, eager or flash_attention_2. Default: sdpa."},
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

    teacher_name_or_path: str | None = field(
        default=None, metadata={"help": "Checkpoint to distill, trained for the same task: a folder or Hub name."}
    )
    num_student_layers: int | None = field(
        default=None,
        metadata={
            "advanced": True,
            "help": "Keep this many layers of --model_name_or_path, or of the teacher if that flag is not set.",
        },
    )
    student_layers: str = field(
        default="spread",
        metadata={"advanced": True, "help": "Layers to keep: spread, first, last, or numbers from 0 such as 0,2,5."},
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
class ConversionArguments:
    """Arguments of `snugbert convert`."""

    help_group: ClassVar[str] = "more"

    input: str = field(
        metadata={
            "positional": True,
            "help": "Checkpoint: a folder or a Hub name. For TensorFlow: a folder or a prefix.",
        }
    )
    output: str = field(metadata={"positional": True, "help": "Folder to write."})
    to: str = field(metadata={"choices": CONVERTED_TYPES, "help": "Target architecture."})
    dtype: str | None = field(
        default=None,
        metadata={
            "choices": CONVERTED_DTYPES,
            "help": "Dtype of the weights. Default: the dtype of the input.",
        },
    )
    max_position_embeddings: int | None = field(
        default=None, metadata={"help": "Extend learned positions to this many tokens. Default: as in the input."}
    )
    max_shard_size: str = field(default="5GB", metadata={"help": "Maximum weight file size. Default: 5GB."})
    do_lower_case: bool | None = field(
        default=None,
        metadata={
            "nargs": "?",
            "const": True,
            "help": "Lowercase text. Default: the input's setting. For a vocab.txt alone: true if lowercase.",
        },
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the model in the output folder."})

    def __post_init__(self):
        if not re.fullmatch(r"\d+(\.\d+)?[KMGT]B", self.max_shard_size) or not float(self.max_shard_size[:-2]):
            raise InputError(f"--max_shard_size: expected a size such as 500MB or 5GB, not {self.max_shard_size!r}.")
