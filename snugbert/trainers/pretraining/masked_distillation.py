"""Distillation of a masked language model into a smaller model (DistilBERT: Sanh et al., 2019).

The student learns from the text, as without a teacher, and also from two outputs of the teacher: its predictions of
the masked tokens and its last hidden states. The teacher does not change. DistilBERT's authors compare predictions at
all tokens by default. The vocabulary head is the most expensive part of a small model, so here it runs at masked
tokens only, as with their `--restrict_ce_to_mask`.

Shapes: B rows and L columns of a batch, T tokens, M masked tokens, V vocabulary size, H hidden size.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.families.loading import load_config, load_tokenizer
from snugbert.kernels_snugbert import ACCELERATOR_CHUNK_SIZE, CHUNK_SIZE, has_own_kernels, upcast
from snugbert.trainers.pretraining.pretraining_arguments import (
    COSINE_WEIGHT,
    LABEL_WEIGHT,
    SOFT_WEIGHT,
    TEMPERATURE,
    PretrainingModelArguments,
)
from snugbert.trainers.pretraining.scores import get_mlm_logits

DENOMINATORS = ("num_items_in_batch", "num_tokens_in_batch", "num_sequences_in_batch")
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")

logger = logging.getLogger(__name__)


def distill(
    student: torch.nn.Module,
    teacher: PreTrainedModel,
    inputs: Mapping[str, Any],
    with_hidden_states: bool,
) -> dict[str, torch.Tensor]:
    """Runs both models on a batch. Returns the loss of the student, its logits, and the parts of the loss, detached.

    The loss is 5 x `soft_loss` + 2 x (`mlm_loss` + `nsp_loss`) + `cos_loss`, without the parts that do not apply.

    The `inputs` contain `DENOMINATORS`: the numbers of masked tokens, of tokens without padding and (with sentence
    pairs) of pairs in the global batch. To compare the last hidden states, which must have the same size, both models
    compute the last layer for all tokens, not only for masked tokens.
    """
    options = {"output_last_hidden_state": with_hidden_states, "sparse_prediction": True, "return_dict": True}
    for_student = {name: value for name, value in inputs.items() if name != "num_tokens_in_batch"}
    for_teacher = {name: inputs[name] for name in inputs if name not in ("next_sentence_label", *DENOMINATORS)}
    with torch.no_grad():
        taught = teacher(**for_teacher, **options)
    outputs = student(**for_student, **options)
    logits = get_mlm_logits(outputs)
    soft_loss = _SoftLoss.apply(logits, get_mlm_logits(taught)) / inputs["num_items_in_batch"].clamp(min=1)
    loss = LABEL_WEIGHT * outputs["loss"] + SOFT_WEIGHT * soft_loss
    parts = {"soft_loss": soft_loss, "mlm_loss": outputs.get("mlm_loss", outputs["loss"])}
    if with_hidden_states:
        last = upcast(outputs["hidden_states"][-1]), upcast(taught["hidden_states"][-1])
        losses = 1 - F.cosine_similarity(*last, dim=-1)  # of each token. *Shape:* (B, L)
        if "attention_mask" in inputs:
            losses = losses.masked_fill(inputs["attention_mask"] == 0, 0)
        cos_loss = losses.sum() / inputs["num_tokens_in_batch"]
        parts["cos_loss"] = cos_loss
        loss = loss + COSINE_WEIGHT * cos_loss
    pairs = {name: outputs[name] for name in ("seq_relationship_logits", "nsp_loss") if name in outputs}
    return {"loss": loss, "logits": logits, **pairs, **{name: part.detach() for name, part in parts.items()}}


def prepare_teacher(teacher: PreTrainedModel, config: SnugBertConfig, device: torch.device) -> None:
    """Moves the teacher to the device of the model with this `config`, and freezes it."""
    torch.nn.Module.to(teacher, device)
    teacher.requires_grad_(False).eval()
    logger.info("teacher: %s parameters, not trained", f"{teacher.num_parameters():,}")
    if teacher.config.hidden_size != config.hidden_size:
        logger.info("Teacher and student have different hidden sizes. The loss on hidden states is omitted.")


class _SoftLoss(torch.autograd.Function):
    """Adds up the Kullback-Leibler divergences of the student's predictions from the teacher's, in nats.

    The sum has the gradient of cross entropy with soft targets, but is 0 if both models agree. It is multiplied by the
    square of the temperature, so that its size does not depend on the temperature (Hinton et al., 2015, section 2).
    For M = 0 it is 0 and has a gradient. *Shape:* (M, V), (M, V) -> ()

    Computes the gradient in the forward pass, a chunk of rows at a time, and saves nothing else. torch's own functions
    would save three tensors of this size. On a CPU they take twice as long.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
        elements = CHUNK_SIZE if has_own_kernels(logits) else ACCELERATOR_CHUNK_SIZE
        length = max(1, elements // logits.shape[1])
        grad_logits, losses = torch.empty_like(logits), []
        tensors = (logits, teacher_logits, grad_logits)
        for chunk, teacher_chunk, grad_chunk in zip(*(tensor.split(length) for tensor in tensors), strict=True):
            log_q, log_p = ((upcast(each) / TEMPERATURE).log_softmax(1) for each in (chunk, teacher_chunk))
            p = log_p.exp()
            losses.append(log_p.sub_(log_q).mul_(p).sum(1))
            torch.mul(log_q.exp_().sub_(p), TEMPERATURE, out=grad_chunk)
        ctx.save_for_backward(grad_logits)
        return torch.cat(losses).sum() * TEMPERATURE**2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        (grad_logits,) = ctx.saved_tensors
        return grad_logits * grad_outputs[0], None


def load_teacher_config(
    model_args: PretrainingModelArguments, config: SnugBertConfig, tokenizer: PreTrainedTokenizerBase
) -> SnugBertConfig:
    """Loads the configuration of the teacher. `config` and `tokenizer` are the student's."""
    teacher_args = model_args.as_teacher()
    own_tokenizer = load_tokenizer(teacher_args)
    teacher_config = load_config(teacher_args, own_tokenizer)
    if own_tokenizer.get_vocab() != tokenizer.get_vocab() or teacher_config.vocab_size != config.vocab_size:
        raise InputError(
            f"--teacher_name_or_path: the vocabulary of {model_args.teacher_name_or_path} differs from the student's. "
            "Teacher and student predict the same tokens, so they need the same vocabulary."
        )
    if model_args.num_student_layers is not None:
        ours, theirs = config.to_dict(), teacher_config.to_dict()
        changed = [field for field in ours if ours[field] != theirs.get(field) and field not in DROPOUTS]
        if changed:
            raise InputError(
                f"--config_overrides: {', '.join(changed)} cannot be changed, because the student starts from the "
                f"teacher's layers. Only {' and '.join(DROPOUTS)} can be changed."
            )
    return teacher_config
