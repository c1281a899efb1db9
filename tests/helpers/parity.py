"""SnugBERT and stock BERT with the same weights and the same batch, for every head."""

from functools import wraps

import pytest
import torch
import torch.nn.functional as F
import transformers

import snugbert
from snugbert.kernels_snugbert import SnugBertDropout

HEADS = [
    "Model",
    "ForPreTraining",
    "ForMaskedLM",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]
NUM_LABELS = 3
CONFIG = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
    "num_labels": NUM_LABELS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@torch.no_grad()
def perturb(model: torch.nn.Module, scale: float = 0.05) -> None:
    """Adds noise to all weights. Initial biases of 0 and LayerNorm weights of 1 would hide errors."""
    for parameter in model.parameters():
        parameter.add_(scale * torch.randn_like(parameter))


def ours_and_stock(head: str, **overrides):
    """Builds our model and stock BERT with the same random weights."""
    config = CONFIG | overrides
    if head == "ForQuestionAnswering":
        config["num_labels"] = 2  # stock BERT's head needs it
    torch.manual_seed(0)
    stock = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**config, attn_implementation="eager"))
    perturb(stock)
    ours = getattr(snugbert, f"SnugBert{head}")(snugbert.SnugBertConfig(**config))
    ours.load_state_dict(stock.state_dict())
    return ours, stock


def ragged_batch(head: str, ragged: bool = True, batch: int = 6, length: int = 17) -> dict[str, torch.Tensor]:
    """Draws random inputs with the labels of a head, right-padded to random lengths if `ragged`."""
    generator = torch.Generator().manual_seed(1)

    def integers(low, high, shape):
        return torch.randint(low, high, shape, generator=generator)

    shape = (batch, 4, length) if head == "ForMultipleChoice" else (batch, length)
    lengths = integers(1, length + 1, shape[:-1]) if ragged else torch.full(shape[:-1], length)
    attention_mask = (torch.arange(length) < lengths[..., None]).long()
    input_ids = integers(1, CONFIG["vocab_size"], shape) * attention_mask
    labels = torch.where((integers(0, 3, shape) == 0) & (attention_mask == 1), integers(0, NUM_LABELS, shape), -100)
    inputs = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": integers(0, 2, shape) * attention_mask,
    }
    return (
        inputs
        | {
            "Model": {},
            "ForPreTraining": {"labels": labels, "next_sentence_label": integers(0, 2, (batch,))},
            "ForMaskedLM": {"labels": labels},
            "ForNextSentencePrediction": {"labels": integers(0, 2, (batch,))},
            "ForSequenceClassification": {"labels": integers(0, NUM_LABELS, (batch,))},
            "ForTokenClassification": {"labels": labels},
            "ForQuestionAnswering": {"start_positions": lengths - 1, "end_positions": lengths - 1},
            "ForMultipleChoice": {"labels": integers(0, 4, (batch,))},
        }[head]
    )


def packed(inputs: dict[str, torch.Tensor]) -> dict:
    """Packs a padded batch, and keeps its positions."""
    mask = inputs["attention_mask"].flatten(0, -2).bool()
    lengths = mask.sum(-1)
    columns = torch.arange(mask.shape[-1]).expand(mask.shape)
    result = {
        "position_ids": columns[mask][None],
        "cu_seq_lens_q": F.pad(lengths.cumsum(0), (1, 0)).int(),
        "max_length_q": int(lengths.max()),
    }
    if inputs["attention_mask"].dim() == 3:
        result["num_choices"] = inputs["attention_mask"].shape[1]
    for name, value in inputs.items():
        if value.shape == inputs["attention_mask"].shape and name != "attention_mask":
            result[name] = value.flatten(0, -2)[mask][None]
        elif name in ("start_positions", "end_positions"):
            result[name] = torch.stack([row[:at].sum() if at > 0 else at for row, at in zip(mask, value, strict=True)])
        elif name != "attention_mask":
            result[name] = value
    if "labels" in result and result["labels"].shape == result["input_ids"].shape:
        result["label_indices"] = (result["labels"][0] != -100).nonzero().squeeze(1)
    return result


def scalar(output) -> torch.Tensor:
    """Returns the loss. Without a head, returns a scalar made from the [CLS] states and the pooled output."""
    if "loss" in output:
        return output["loss"]
    return (output["last_hidden_state"][:, 0] ** 3).sum() + (output["pooler_output"] ** 2).sum()


def assert_same_gradients(ours: torch.nn.Module, stock: torch.nn.Module, tolerance: float = 1e-5):
    """Compares the gradient of every parameter. `tolerance` is relative to the gradient's norm."""
    theirs = dict(stock.named_parameters())
    # The exact gradient of a key bias is zero. The computed one is the rounding error of sums as large as the others.
    rounding = 1e-6 * max(1.0, *(p.grad.norm().item() for p in theirs.values() if p.grad is not None))
    for name, parameter in ours.named_parameters():
        expected = theirs.pop(name).grad
        if expected is None:
            assert parameter.grad is None or not parameter.grad.any(), name
        else:
            difference = (parameter.grad - expected).norm()
            assert difference <= tolerance * expected.norm() + rounding, (name, difference, expected.norm())
    assert not theirs


def make_dropout_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces dropout by a product, which reveals where dropout acts and with which probability."""

    def scale(values, p=0.5, training=True, inplace=False):
        return values * (1 + p) if training else values

    monkeypatch.setattr(F, "dropout", scale)
    monkeypatch.setattr(SnugBertDropout, "forward", lambda self, values: scale(values, self.p, self.training))


def without_padding(forward):
    """Wraps stock BERT's question answering `forward`, so that its softmax skips padding as ours does."""

    @wraps(forward)
    def answer(self, start_positions=None, end_positions=None, **inputs):
        output = forward(self, **inputs)
        padding = inputs["attention_mask"] == 0
        for name in ("start_logits", "end_logits"):
            output[name] = output[name].masked_fill(padding, torch.finfo(output[name].dtype).min)
        if start_positions is None:
            return output
        losses = (
            F.cross_entropy(output.start_logits, start_positions),
            F.cross_entropy(output.end_logits, end_positions),
        )
        return type(output)(loss=sum(losses) / 2, **output)

    return answer
