"""Loads any masked language model of transformers, and predicts masked tokens with it.

Shapes: B sequences, L tokens per sequence, V vocabulary size.
"""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from snugbert.cli.model_arguments import ModelArguments
from snugbert.configuration_snugbert import LOADABLE_TYPES, SnugBertConfig
from snugbert.errors import InputError, join_lines
from snugbert.families.engine_models import refuse_export
from snugbert.families.loading import (
    SPECIAL_TOKEN_NAMES,
    MissingWeightsError,
    check_repository,
    check_tokenizer,
    load_config,
    load_model,
    load_tokenizer,
    override_config,
)
from snugbert.families_snugbert import convert_family_config
from snugbert.modeling_snugbert import IGNORE_INDEX, SnugBertForMaskedLM, SnugBertForPreTraining


def load_masked_model(
    args: ModelArguments, sentence_pairs: bool = False, required: Sequence[str] = SPECIAL_TOKEN_NAMES
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a model with its masked token head, in float32 and in evaluation mode, on the accelerator if there is one.

    Checkpoints of the BERT family are loaded as SnugBERT, which computes the same outputs in less time. With
    `sentence_pairs`, the head for pairs is also loaded if the checkpoint has it, as in `BertForPreTraining`. Without
    `model_name_or_path`, the weights are random. `required` are special tokens that the tokenizer must have.
    """
    refuse_export(args.model_name_or_path)
    tokenizer = load_tokenizer(args, required)
    if not tokenizer.is_fast:
        raise InputError(
            f"{args.tokenizer_source}: tokenizer.json is missing. Convert the tokenizer to a fast tokenizer."
        )
    model = _load_heads(args, _load_any_config(args, tokenizer), sentence_pairs)
    vocab_size = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    check_tokenizer(args, tokenizer, vocab_size)
    device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    return model.to(device).eval(), tokenizer  # type: ignore[arg-type]


def _load_heads(args: ModelArguments, config: Any, sentence_pairs: bool) -> PreTrainedModel:
    trained = args.model_name_or_path is not None
    if isinstance(config, SnugBertConfig):
        config.architectures = []  # otherwise, a configuration of ELECTRA's discriminator would select that model
        pretraining_class: Any = SnugBertForPreTraining
    else:
        pretraining_class = MODEL_FOR_PRETRAINING_MAPPING.get(type(config), None)
    if sentence_pairs and pretraining_class is not None and predicts_pairs(pretraining_class):
        try:
            return load_model(AutoModelForPreTraining, args, config, trained=trained)
        except MissingWeightsError:
            pass  # the checkpoint lacks one of the heads
    return load_model(AutoModelForMaskedLM, args, config, trained=trained)


def predicts_pairs(model: PreTrainedModel | type[PreTrainedModel]) -> bool:
    """Whether a masked language model, or its class, also predicts sentence pairs, as `BertForPreTraining` does."""
    return "next_sentence_label" in signature(model.forward).parameters


def _load_any_config(args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> Any:
    name = args.model_name_or_path
    if name is None:
        return load_config(args, tokenizer)
    check_repository(name, **args.hub)
    try:
        values, _ = PreTrainedConfig.get_config_dict(name, **args.hub)
        if values.get("model_type", "bert") in LOADABLE_TYPES:
            try:
                convert_family_config(values)
            except ValueError:
                pass  # transformers runs models that SnugBERT does not support, such as DeBERTa-v2-xlarge
            else:
                return load_config(args, tokenizer)
        config = AutoConfig.from_pretrained(name, attn_implementation=args.attn_implementation, **args.hub)
        if args.config_overrides:
            override_config(config, args.config_overrides)
    except InputError:
        raise
    except Exception as error:  # invalid values raise errors of several types
        overrides = f" with {args.config_overrides}" if args.config_overrides else ""
        raise InputError(f"cannot load the configuration of {name}{overrides}: {join_lines(error)}") from error
    is_masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    if not is_masked and "AutoModelForMaskedLM" not in (getattr(config, "auto_map", None) or {}):
        raise InputError(
            f"{name} is a {config.model_type!r} model, which does not predict masked tokens. Choose a masked language "
            "model."
        )
    return config


@torch.inference_mode()
def predict_tokens(model: PreTrainedModel, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns the logits (B, V) of one token of each sequence. The vocabulary projection skips all other tokens.

    The sequences `input_ids` (B, L) have no padding. `positions` (B,) are the tokens to predict.
    """
    if isinstance(model, SnugBertForMaskedLM | SnugBertForPreTraining):
        labels = torch.full_like(input_ids, IGNORE_INDEX).scatter_(1, positions[:, None], 0)  # any label will do
        outputs = model(input_ids=input_ids, labels=labels, sparse_prediction=True)
        return outputs.logits if isinstance(model, SnugBertForMaskedLM) else outputs.prediction_logits
    rows = torch.arange(len(input_ids), device=input_ids.device)
    # Stock models have no sparse prediction. A hook selects the input of their projection instead.
    projection = model.get_output_embeddings()
    hook = projection and projection.register_forward_pre_hook(
        lambda _, inputs: (inputs[0][rows, positions], *inputs[1:])
    )
    try:
        logits = model(input_ids=input_ids).logits
    finally:
        if hook is not None:
            hook.remove()
    return logits if logits.dim() == 2 else logits[rows, positions]
