"""Which model and which tokenizer a command works on: the arguments that name them, and opening what they name."""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.checkpoints import is_uncased, read_weights, shorten_list
from snugbert.configuration_snugbert import SIZES, SnugBertConfig
from snugbert.errors import InputError
from snugbert.tokenization_snugbert import SnugBertTokenizer

logger = logging.getLogger(__name__)

LOADABLE_TYPES = ("snugbert", "bert")
# Weights that a model with another head leaves in the file.
OTHER_HEADS = re.compile(
    r"cls\.(predictions|seq_relationship)\.|(classifier|qa_outputs)\.(weight|bias)$|(bert\.)?pooler\.dense\."
)

SPECIAL_TOKEN_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


@dataclass
class TokenizerArguments:
    """Which tokenizer to use, and how to reach the Hub."""

    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer folder or Hub name; default: that of the model, if one is named."}
    )
    use_fast_tokenizer: bool = field(default=True, metadata={"help": "Accepted; every tokenizer is a fast one."})
    cache_dir: str | None = field(
        default=None, metadata={"help": "Where to keep downloads and prepared text; default: HF_HOME."}
    )
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model on the Hub."})
    token: str | None = field(default=None, metadata={"help": "Token for the Hub; default: that of `hf auth login`."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run the code that comes with a tokenizer."})

    def __post_init__(self):
        check_folder("tokenizer_name", self.tokenizer_name)

    @property
    def tokenizer_source(self) -> str | None:
        """Folder or Hub name of the tokenizer."""
        return self.tokenizer_name

    @property
    def hub(self) -> dict[str, Any]:
        """What `from_pretrained` has to know of the Hub."""
        names = {"cache_dir": self.cache_dir, "revision": self.model_revision, "token": self.token}
        return {**names, "trust_remote_code": self.trust_remote_code}


def check_folder(flag: str, name: str | None) -> None:
    """Checks that `name` exists if it can only be a folder. A name on the Hub is "name" or "owner/name".

    Raises:
        InputError: there is no such folder.
    """
    if name and (name[0] in "/.~" or name.count("/") > 1) and not Path(name).exists():
        raise InputError(f"--{flag}: there is no folder {name}.")


@dataclass
class ModelArguments(TokenizerArguments):
    """Which model to train. The names are those of transformers' example scripts.

    Raises:
        InputError: no model is named, or none of its vocabulary, or a folder that does not exist.
    """

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "The checkpoint to go on from, a folder or a Hub name; BERT runs as SnugBERT."}
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Without a checkpoint, random weights: {', '.join(SIZES)}, a folder, or a JSON file."},
    )
    config_overrides: str | None = field(
        default=None, metadata={"help": "Fields of the configuration to change, such as hidden_dropout_prob=0."}
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "sdpa (the default), eager, flash_attention_2, ..., as in transformers."}
    )

    def __post_init__(self):
        if self.model_name_or_path is None and self.config_name is None:
            raise InputError("which model? Give --model_name_or_path, or --config_name to start from random weights.")
        if self.model_name_or_path is None and self.tokenizer_name is None:
            raise InputError("--config_name alone says nothing of the vocabulary; give --tokenizer_name, too.")
        check_folder("model_name_or_path", self.model_name_or_path)
        super().__post_init__()

    @property
    def tokenizer_source(self) -> str | None:
        """Folder or Hub name of the tokenizer: the model's, unless another is named."""
        return self.tokenizer_name or self.model_name_or_path


def load_config(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The configuration of the checkpoint, BERT's as SnugBERT's, or that of a model to start from random weights.

    Args:
        model_args: `config_name` may be a named size (`tiny` to `large`), a folder or a JSON file.
        tokenizer: a model that starts from random weights gets its vocabulary size and padding token.

    Raises:
        InputError: there is no such configuration, `config_overrides` does not fit it, or the tokenizer has tokens
            that the model has not.
    """
    name = str(model_args.config_name or model_args.model_name_or_path)
    try:
        if model_args.config_name in SIZES:
            config: PreTrainedConfig = SnugBertConfig.from_size(name)
        else:
            config = _read_config(name, model_args)
        if model_args.model_name_or_path is None:
            config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        if model_args.config_overrides:
            config.update_from_string(model_args.config_overrides)
            config = type(config).from_dict(config.to_dict())  # checks the new values
    except InputError:
        raise
    except Exception as error:  # the checks of configurations raise what is no ValueError, too
        overrides = f" with {model_args.config_overrides}" if model_args.config_overrides else ""
        raise InputError(f"the configuration {name}{overrides} cannot be used: {error}") from error
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer knows {len(tokenizer)} tokens and the model {config.vocab_size}; "
            "--tokenizer_name must be the tokenizer that the model was trained with."
        )
    config._attn_implementation = model_args.attn_implementation
    return config


def _read_config(name: str, model_args: ModelArguments) -> PreTrainedConfig:
    if model_args.config_name is not None and not Path(name).exists() and "/" not in name:
        raise InputError(f"--config_name: {name!r} is neither a size ({', '.join(SIZES)}) nor a folder or JSON file.")
    values, _ = PreTrainedConfig.get_config_dict(name, **model_args.hub)
    if not values:
        raise OSError("there is no config.json")
    model_type = values.get("model_type") or "bert"  # the configuration of Google's own release names none
    if model_type not in LOADABLE_TYPES:
        raise InputError(
            f"{name} is a model of type {model_type!r}, and what is accepted is {' and '.join(LOADABLE_TYPES)}; "
            "`snugbert convert` makes SnugBERT of DistilBERT's checkpoints and of the TensorFlow release."
        )
    return SnugBertConfig.from_dict(values)


def load_tokenizer(args: TokenizerArguments) -> PreTrainedTokenizerBase:
    """The tokenizer that `tokenizer_source` holds.

    A folder with nothing but a `vocab.txt` opens too, and lower-cases text if all its pieces are lower-case.

    Raises:
        InputError: there is no tokenizer, or its vocabulary lacks a special token.
    """
    name = str(args.tokenizer_source)
    folder = Path(name)
    if folder.exists() and not (folder / "tokenizer.json").exists() and not (folder / "vocab.txt").exists():
        raise InputError(f"there is no tokenizer.json or vocab.txt in {name}.")
    only_vocabulary = (folder / "vocab.txt").exists() and not (folder / "tokenizer_config.json").exists()
    try:
        if only_vocabulary:
            tokenizer = SnugBertTokenizer.from_pretrained(name, do_lower_case=is_uncased(folder / "vocab.txt"))
        else:
            tokenizer = AutoTokenizer.from_pretrained(name, **args.hub)
    except Exception as error:  # the tokenizers library raises a bare Exception, JSON a RecursionError
        raise InputError(f"the tokenizer of {name} cannot be used: {error}") from error
    # It may name another repository's code, and would be saved. A class with its own code writes its entry again.
    tokenizer.init_kwargs.pop("auto_map", None)
    missing = [token for token in SPECIAL_TOKEN_NAMES if getattr(tokenizer, token) is None]
    if missing:
        raise InputError(f"the tokenizer of {name} has no {', '.join(missing)}; BERT needs all of them.")
    return tokenizer


def longest(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> int:
    """`max_seq_length`, or what the model can take if that is less, in tokens."""
    limit = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", max_seq_length))
    if max_seq_length > limit:
        logger.warning("--max_seq_length %d is more than the model takes; examples end at %d", max_seq_length, limit)
    return min(max_seq_length, limit)


def load_model(
    auto_class: Any, model_args: ModelArguments, config: PreTrainedConfig, *, trained: bool = False, **kwargs: Any
) -> PreTrainedModel:
    """The model of a checkpoint, or one of random weights if none is named, in float32.

    Args:
        auto_class: such as `AutoModelForPreTraining`. The class of `config` decides what it makes of a checkpoint.
        model_args: which checkpoint.
        config: from [`load_config`].
        trained: a checkpoint must have all weights, because nothing will train them.
        kwargs: go to `from_pretrained`.

    Raises:
        InputError: the weights cannot be opened, a file of them being missing or cut short; they do not fit the
            configuration; the attention implementation is unknown or not installed; or a model that must be trained
            is not, or has weights that SnugBERT does not have.
    """
    name = model_args.model_name_or_path
    if trained and name is None:
        raise InputError(
            "nothing trains the model, and --config_name alone gives it random weights; "
            "--model_name_or_path must name one that was fine-tuned."
        )
    try:
        if name is None:
            return auto_class.from_config(config)
        # Whatever the file has: AdamW's steps are lost in 16 bits. --bf16 is for speed.
        model, info = auto_class.from_pretrained(
            name, config=config, dtype=torch.float32, output_loading_info=True, **kwargs, **model_args.hub
        )
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        _check_files(name)
        raise InputError(f"the model {name or model_args.config_name} cannot be opened: {error}") from error
    except RuntimeError as error:
        _check_files(name)
        remedy = ""
        if trained:
            remedy = f"; name one that was fine-tuned for the {config.num_labels} labels of these data"
        elif "ignore_mismatched_sizes" in kwargs:
            remedy = (
                f"; if its classifier has other than the {config.num_labels} labels of these data, "
                "--ignore_mismatched_sizes replaces it"
            )
        raise InputError(f"the weights of {name} do not fit its configuration{remedy}.") from error
    except Exception:  # a damaged pickle can raise anything
        _check_files(name)
        raise
    unknown = sorted(key for key in info["unexpected_keys"] if not OTHER_HEADS.match(key))
    if unknown and trained:
        raise InputError(
            f"{name} holds weights that are not SnugBERT's: {shorten_list(unknown)}; without them it is another model "
            "than the one that was trained."
        )
    if unknown:
        logger.warning(
            "%s holds weights that this model does not have, and they are left out: %s", name, shorten_list(unknown)
        )
    random = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    if trained and random:
        raise InputError(
            f"nothing trains the model {name}, and its {shorten_list(random)} would be random; "
            "name one that was fine-tuned for this task, or train it first."
        )
    return model


def _check_files(name: str | None) -> None:
    """Raises an [`InputError`] if a file of weights in the folder `name` is missing, cut short or no such file."""
    if name is not None and Path(name).is_dir():
        read_weights(Path(name))
