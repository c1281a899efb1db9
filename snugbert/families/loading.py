"""Loads tokenizers, configurations and models."""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import httpx
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import is_protobuf_available, is_sentencepiece_available

from snugbert.cli.model_arguments import ModelArguments, TokenizerArguments
from snugbert.configuration_snugbert import (
    LOADABLE_TYPES,
    SIZES,
    SnugBertConfig,
    compute_head_size,
    compute_max_length,
    get_windows,
)
from snugbert.errors import InputError, did_you_mean, join_lines, shorten, suggest_path
from snugbert.families.engine_models import EngineModel, find_export, open_export, refuse_export
from snugbert.families.weight_files import find_prefix, read_weights
from snugbert.families_snugbert import WRAPPER_NAMES
from snugbert.modeling_snugbert import SnugBertPreTrainedModel
from snugbert.tokenization_snugbert import SnugBertTokenizer

logger = logging.getLogger(__name__)

# Weights of heads. A model with a different head does not load them.
HEAD_WEIGHTS = re.compile(
    r"(cls\.(predictions|seq_relationship)|discriminator_predictions)\.|"
    r"(classifier(\.dense|\.out_proj)?|qa_outputs)\.(weight|bias)$|(bert\.)?pooler\.dense\."
)

# Files with a tokenizer's vocabulary. vocab.json also needs merges.txt.
SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spm.model", "spiece.model")
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES)
SPECIAL_TOKEN_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
GENERATOR_FOLDER = "generator"  # ELECTRA's generator, in the folder of the discriminator
# Entries of config.json that [`choose_decisions`] fits to the weights. Training makes them obsolete.
DECISIONS = ("thresholds", "calibration")
HUB_SECONDS = 5  # time limit of the request that checks whether a model exists


class MissingWeightsError(InputError):
    """A checkpoint lacks weights of the model to load."""


def check_repository(
    name: str, revision: str | None = None, token: str | None = None, cache_dir: str | None = None, **_: Any
) -> None:
    """Checks that a model or tokenizer is a folder, was downloaded before, or is on the Hub.

    Sends one request. If the Hub cannot be reached, transformers would retry each file for half a minute.
    """
    if Path(name).exists():
        return
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    try:
        if (cache / repo_folder_name(repo_id=name, repo_type="model") / "snapshots").is_dir():
            return
        HfApi().model_info(name, revision=revision, token=token, timeout=HUB_SECONDS)
    except (RepositoryNotFoundError, HFValidationError) as error:  # the second error: the name has invalid characters
        raise InputError(
            f"{name}: no such folder, and no such repository on the Hub.{suggest_path(name)} A private repository "
            "needs --token."
        ) from error
    except (ConnectionError, httpx.TransportError) as error:
        reason = join_lines(error).rstrip(".")
        raise InputError(
            f"{name}: no such folder, no earlier download in {cache}, and the Hub cannot be reached ({reason})."
            f"{suggest_path(name)}"
        ) from error
    except OSError as error:  # the download explains other errors, such as an unknown revision or a busy server
        logger.debug("%s: %s", name, error)


def load_config(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> SnugBertConfig:
    """Loads the configuration of a checkpoint of the BERT family, or of a model with random weights.

    `tokenizer` sets the vocabulary size and padding token of a model with random weights. If the model has one token
    type, the tokenizer stops returning `token_type_ids`, which would be 1 in the second text of a pair.
    """
    name = str(model_args.config_name or model_args.model_name_or_path)
    try:
        config = SnugBertConfig.from_size(name) if model_args.config_name in SIZES else _read_config(name, model_args)
        if model_args.model_name_or_path is None:
            config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        if model_args.config_overrides:
            override_config(config, model_args.config_overrides)
            config = SnugBertConfig.from_dict(config.to_dict())  # checks the new values
        compute_head_size(config)  # checks that a model can be built
        get_windows(config)  # checks `document_windows`
    except InputError as error:
        is_size = model_args.config_name and not suggest_path(name)  # the error already suggests a path
        raise InputError(f"{error}{did_you_mean(name, SIZES) if is_size else ''}") from error
    except Exception as error:  # invalid values raise errors of several types
        overrides = f" with {model_args.config_overrides}" if model_args.config_overrides else ""
        raise InputError(f"invalid configuration {name}{overrides}: {join_lines(error)}") from error
    check_tokenizer(model_args, tokenizer, config.vocab_size)
    config._attn_implementation = model_args.attn_implementation
    if config.type_vocab_size == 1 and "token_type_ids" in tokenizer.model_input_names:
        names = [one for one in tokenizer.model_input_names if one != "token_type_ids"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names  # `init_kwargs` is saved
    return config


def check_tokenizer(args: ModelArguments, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Checks that the model has an embedding for each token, and that its own tokenizer has the same token ids."""
    if len(tokenizer) > vocab_size:
        raise InputError(
            f"--tokenizer_name: the tokenizer has {len(tokenizer)} tokens, but the model's vocabulary has only "
            f"{vocab_size}. Use the tokenizer that the model was trained with."
        )
    model = args.model_name_or_path
    if args.tokenizer_name in (None, model) or model is None:
        return
    try:
        own = load_tokenizer(replace(args, tokenizer_name=None), required=())
    except InputError:  # the checkpoint has no tokenizer
        return
    ids = tokenizer.get_vocab()
    if changed := [token for token, index in own.get_vocab().items() if ids.get(token, index) != index]:
        raise InputError(
            f"--tokenizer_name: {len(changed):,} tokens, such as {changed[0]!r}, have other ids than in the tokenizer "
            f"of {model}. Use the tokenizer that the model was trained with."
        )


def override_config(config: PreTrainedConfig, overrides: str) -> None:
    """Changes values of a configuration. `overrides` has the form "name=value,name=value"."""
    for pair in overrides.split(","):
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"expected name=value, found {pair!r}")
        old = getattr(config, name, "")
        # transformers keeps the type of the old value. So it cannot replace None, or change a dropout of 0 to 0.1.
        if old is None:
            setattr(config, name, yaml.safe_load(text))
        elif type(old) is int and old == 0 and not text.lstrip("+-").isdigit():
            setattr(config, name, float(text))
        else:
            config.update_from_string(pair)


def _read_config(name: str, model_args: ModelArguments) -> SnugBertConfig:
    check_repository(name, **model_args.hub)
    values, _ = PreTrainedConfig.get_config_dict(name, **model_args.hub)
    if not values:
        raise OSError("there is no config.json")
    model_type = values.get("model_type") or "bert"  # the configurations of Google's original release have none
    if model_type not in LOADABLE_TYPES:
        raise InputError(
            f"{name} is a {model_type!r} model. Expected {', '.join(LOADABLE_TYPES)}. "
            "`snugbert convert` converts DistilBERT and TensorFlow checkpoints."
        )
    return SnugBertConfig.from_dict(values)


def load_tokenizer(args: TokenizerArguments, required: Sequence[str] = SPECIAL_TOKEN_NAMES) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of `tokenizer_source`.

    With only a `vocab.txt`, text is lowercased if the whole vocabulary is lowercase.
    """
    name = str(args.tokenizer_source)
    folder = Path(name)
    check_repository(name, **args.hub)
    if folder.exists():
        check_vocabulary(folder)
    if folder.is_dir() and not any((folder / file).exists() for file in VOCABULARY_FILES):
        raise InputError(f"{name} contains no tokenizer. If it is the folder of a run, choose one of its checkpoints.")
    only_vocabulary = (folder / "vocab.txt").exists() and not (folder / "tokenizer_config.json").exists()
    try:
        if only_vocabulary:
            tokenizer = SnugBertTokenizer.from_pretrained(name, do_lower_case=is_uncased(folder / "vocab.txt"))
        else:
            tokenizer = AutoTokenizer.from_pretrained(name, **args.hub)
    except Exception as error:  # the tokenizers library raises a plain Exception, JSON a RecursionError
        raise InputError(f"cannot load the tokenizer of {name}: {join_lines(error)}") from error
    # `auto_map` may refer to code in another repository, and would be saved. Classes with their own code add it again.
    tokenizer.init_kwargs.pop("auto_map", None)
    check_words(tokenizer, name)
    missing = [token for token in required if getattr(tokenizer, token) is None]
    if missing:
        raise InputError(
            f"the tokenizer of {name} lacks special tokens: {', '.join(missing)}. Choose a different tokenizer."
        )
    return tokenizer


def write_vocab_txt(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokens of a WordPiece tokenizer, without added tokens, to `folder/vocab.txt` in the order of ids.

    transformers 5 no longer writes this file, but many tools need it. A token's id is its line number, so no file is
    written if the ids have gaps.
    """
    tokens = {index: token for token, index in tokenizer.backend_tokenizer.get_vocab(False).items()}
    if tokens.keys() == set(range(len(tokens))):
        text = "".join(f"{tokens[index]}\n" for index in range(len(tokens)))
        (folder / "vocab.txt").write_text(text, encoding="utf-8", newline="\n")


def is_uncased(vocabulary: Path) -> bool:
    """Whether all tokens of a `vocab.txt` are lowercase, apart from special tokens in brackets."""
    tokens = vocabulary.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    return all(token == token.lower() for token in tokens if not token.startswith("["))


def check_vocabulary(folder: Path) -> None:
    """Checks that a tokenizer's folder has a vocabulary and that the packages that read it are installed."""
    found = [name for name in VOCABULARY_FILES if (folder / name).exists()]
    if found == ["vocab.json"] and not (folder / "merges.txt").exists():
        raise InputError(f"{folder}: merges.txt is missing. vocab.json needs it.")
    if (folder / "bpe.codes").exists() and found == ["vocab.txt"]:
        raise InputError(f"{folder}: bpe.codes, as in BERTweet and PhoBERT, is not supported. Add a tokenizer.json.")
    if found and found[0] in SENTENCEPIECE_FILES and not (is_sentencepiece_available() and is_protobuf_available()):
        raise InputError(
            f"{folder}: reading {found[0]} needs SentencePiece. Run `pip install 'snugbert[sentencepiece]'`."
        )


def check_words(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Checks that a tokenizer has ordinary tokens. It has none if its class cannot read the files in the folder."""
    if set(tokenizer.get_vocab()) <= {*tokenizer.all_special_tokens, "▁"}:
        raise InputError(
            f"{name}: the tokenizer is empty. {type(tokenizer).__name__} cannot read the files in this folder. Add a "
            "tokenizer.json, or set `tokenizer_class` in tokenizer_config.json."
        )


def check_ids(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Checks that the ids of a tokenizer are 0, 1, 2 and so on, so that their number is the size of the vocabulary."""
    free = sorted(set(range(len(tokenizer))) - set(tokenizer.get_vocab().values()))
    if free:
        raise InputError(
            f"{name}: no token has the id {free[0]}. Add a token with this id to the tokenizer's files. If there is a "
            f"vocab.txt, line {free[0] + 1} repeats another line."
        )


def is_regression(config: PreTrainedConfig) -> bool:
    """Whether a sequence classifier predicts numbers. As in transformers, one output means regression by default."""
    return config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1)


def get_text_columns(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the text columns that a model was fine-tuned on, from its config.json. Empty: they are not stored."""
    columns: Any = values.get("text_columns")
    is_valid = isinstance(columns, list | tuple) and all(isinstance(name, str) for name in columns)
    return tuple(columns) if is_valid else ()


def forget_decisions(config: PreTrainedConfig) -> None:
    """Removes values that were fitted to the weights of an earlier fine-tuning run, see `DECISIONS`."""
    for name in DECISIONS:
        vars(config).pop(name, None)


def remember_windows(config: PreTrainedConfig, windows: tuple[int, int] | None) -> None:
    """Stores the window size for long texts, and how many tokens neighbors share. None: texts are truncated."""
    if windows is not None:
        config.document_windows = {"max_seq_length": windows[0], "doc_stride": windows[1]}
    elif hasattr(config, "document_windows"):  # from an earlier run
        config.document_windows = None


def max_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the maximum number of tokens of an input, including special tokens. `sys.maxsize` means no limit."""
    if model.config.model_type == SnugBertConfig.model_type:
        limit = compute_max_length(model.config)  # type: ignore[arg-type]
    else:
        limit = getattr(model.config, "max_position_embeddings", sys.maxsize)
        table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        if padding is not None:  # RoBERTa's positions start after the position of padding
            limit -= padding + 1
    return min(limit, tokenizer.model_max_length)


def limit_length(config: SnugBertConfig, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> int:
    """Returns `max_seq_length`, or the model's maximum number of tokens if that is smaller."""
    limit = min(tokenizer.model_max_length, compute_max_length(config))
    if max_seq_length > limit:
        logger.warning("--max_seq_length %d exceeds the model's limit. Using %d.", max_seq_length, limit)
    return min(max_seq_length, limit)


def load_model(
    auto_class: Any,
    model_args: ModelArguments,
    config: SnugBertConfig,
    *,
    trained: bool = False,
    **kwargs: Any,
) -> Any:
    """Loads a checkpoint or an export, or builds a model with random weights if neither is given. Weights are float32.

    `trained`: whether the checkpoint must have all weights, because no training follows.
    """
    name = model_args.model_name_or_path
    if not trained:
        refuse_export(name)
    elif (export := find_export(name)) is not None:
        return EngineModel(config, open_export(export))
    if trained and name is None:
        raise InputError(
            "--model_name_or_path is missing. This command needs trained weights. --config_name gives random weights."
        )
    try:
        # float32 even if the configuration or the file has 16 bits, because 16-bit weights would lose AdamW's small
        # steps.
        if name is None:
            build = getattr(auto_class, "from_config", None) or auto_class._from_config  # model classes lack the first
            return build(config, dtype=torch.float32)
        options = dict(config=config, dtype=torch.float32, output_loading_info=True, **kwargs, **model_args.hub)
        with hiding_warnings("transformers.modeling_utils"):  # `_check_loaded` logs its own lines about weights
            model, info = auto_class.from_pretrained(name, **options)
            prefix = find_prefix(info["unexpected_keys"])
            if prefix and _lacks_encoder(model, info):
                logger.info("%s: dropped the prefix %s from the weight names", name, prefix)
                options["key_mapping"] = {**WRAPPER_NAMES, f"^{re.escape(prefix)}": ""}
                model, info = auto_class.from_pretrained(name, **options)
    except Exception as error:  # a damaged pickle can raise anything
        if name is not None and Path(name).is_dir():
            read_weights(Path(name))  # reports a weight file that is missing, truncated or damaged
        if isinstance(error, OSError | ValueError | ImportError | SafetensorError):
            raise InputError(f"cannot load the model {name or model_args.config_name}: {join_lines(error)}") from error
        if not isinstance(error, RuntimeError):
            raise
        remedy = ""
        if "ignore_mismatched_sizes" in kwargs:  # the data has labels
            remedy = f" Number of labels in this data: {config.num_labels}."
        if remedy and not trained:
            remedy += " To replace a classifier with a different number, add --ignore_mismatched_sizes true."
        raise InputError(f"the weights of {name} do not fit its configuration.{remedy}") from error
    _check_loaded(model, info, name, trained, model_args.allow_missing_weights)
    return model


def _check_loaded(
    model: PreTrainedModel, info: dict[str, Any], name: str, trained: bool, allow_missing_weights: bool
) -> None:
    """Refuses or logs weights that the checkpoint lacks, and weights that the model does not use."""
    random = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    random_encoder = [key for key in random if not HEAD_WEIGHTS.match(key)]
    if _lacks_encoder(model, info):
        found = shorten(sorted(info["unexpected_keys"])) or "heads only"
        remedy = "" if trained else " To start from random weights, use --config_name."
        raise InputError(
            f"{name}: no encoder weights. Expected names such as {random_encoder[0]}, found {found}.{remedy}"
        )
    unknown = sorted(key for key in info["unexpected_keys"] if not HEAD_WEIGHTS.match(key))
    # Other architectures (`snugbert evaluate`) are transformers' own classes, which load all weights that they use.
    if unknown and trained and isinstance(model, SnugBertPreTrainedModel):
        raise InputError(
            f"{name} contains weights that SnugBERT does not use: {shorten(unknown)}. Ignoring them would "
            "change the model."
        )
    if unknown:
        logger.warning("%s: ignored weights that this model does not use: %s", name, shorten(unknown))
    if random and trained:
        raise MissingWeightsError(
            f"{name} has no weights for {shorten(random)}. Choose a model that was trained for this task, or train "
            "it first."
        )
    if random_encoder and not allow_missing_weights:
        raise InputError(
            f"{name}: encoder weights are missing or have the wrong shape: {shorten(random_encoder)}. Get the "
            "complete checkpoint. To train these weights from random values, add --allow_missing_weights true."
        )
    if random_encoder:
        logger.warning("%s: missing weights were initialized randomly: %s", name, shorten(random))
    elif random:
        logger.info("randomly initialized weights: %s", shorten(random))


def _lacks_encoder(model: PreTrainedModel, info: dict[str, Any]) -> bool:
    """Whether the checkpoint has no encoder layers. False for other architectures (`snugbert evaluate`)."""
    layers = {key for key in model.state_dict() if "encoder.layer." in key}
    return bool(layers) and layers <= set(info["missing_keys"])


@contextmanager
def hiding_warnings(name: str | None = None) -> Iterator[None]:
    """Hides the warnings of a logger, or of the root.

    Uses a filter, because raising the logger's level would make transformers list layers that are not sharded.
    """

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    hidden = logging.getLogger(name)
    hidden.addFilter(is_error)
    try:
        yield
    finally:
        hidden.removeFilter(is_error)
