"""RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA and DeBERTa-v3 as SnugBERT, compared with transformers' own classes."""

import copy
import json
import re
from contextlib import nullcontext
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
import transformers
from family_checkpoints import write_checkpoint
from parity import HEADS, NUM_LABELS, make_dropout_visible, packed, ragged_batch, without_padding
from reference_kernels import acting_as_gpu
from safetensors.torch import load_file, save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

import snugbert
from snugbert.families.reading import CLASSES, STOCK_NAMES
from snugbert.families_snugbert import FAMILY_TYPES
from snugbert.modeling_snugbert import compute_buckets

FAMILIES_AND_HEADS = [
    (family, head)
    for family in ("bert", *FAMILY_TYPES)
    for head in HEADS
    if hasattr(transformers, STOCK_NAMES[family] + head)
]
# config.json of DeBERTa-v3-base on the Hub, without the values that equal BERT's.
DEBERTA_V3 = {
    "hidden_size": 768,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
}
READS_FIRST_TOKEN = ("Model", "ForNextSentencePrediction", "ForSequenceClassification", "ForMultipleChoice")


def stock_class(family: str, head: str) -> type[transformers.PreTrainedModel]:
    if (family, head) == ("deberta-v2", "ForMaskedLM"):  # transformers' class, repaired for its versions before 5.20
        return CLASSES[family][head]
    return getattr(transformers, STOCK_NAMES[family] + head)


def our_class(family: str, head: str) -> type[snugbert.SnugBertPreTrainedModel]:
    if (family, head) == ("electra", "ForPreTraining"):
        return snugbert.SnugBertForReplacedTokenDetection
    return getattr(snugbert, f"SnugBert{head}")


def write_family(folder, family, head, **fields):
    """Writes a checkpoint of transformers with random weights, by default without dropout."""
    fields.setdefault("num_labels", 2 if head == "ForQuestionAnswering" else NUM_LABELS)
    if family == "electra":
        fields.setdefault("summary_last_dropout", 0.0)
    if family == "deberta-v2":
        # Few buckets, so that short sequences use the logarithmic ones.
        fields = {"position_buckets": 8, "max_position_embeddings": 64} | fields
        if head in ("ForSequenceClassification", "ForMultipleChoice"):
            fields.setdefault("problem_type", "single_label_classification")  # otherwise the loss is in float32
    return write_checkpoint(folder, family, head, **fields)


def open_as_snugbert(folder, family, head, **options):
    """Opens a checkpoint of transformers. No weight is missing or unused."""
    if family in ("electra", "deberta-v2") and head == "Model":
        options["add_pooling_layer"] = False  # they have none
    model, info = our_class(family, head).from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values()), info
    return model


def make_batch(family: str, head: str, config: transformers.PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Draws a right-padded batch with the labels of a head."""
    is_discriminator = (family, head) == ("electra", "ForPreTraining")
    inputs = ragged_batch("ForTokenClassification" if is_discriminator else head)
    is_token = inputs["attention_mask"].bool()
    first_id = 7  # after all special tokens
    inputs["input_ids"] = torch.where(
        is_token, inputs["input_ids"] % (config.vocab_size - first_id) + first_id, config.pad_token_id
    )
    inputs["input_ids"][..., 2] = config.pad_token_id  # "<pad>" in a text, which RoBERTa's positions skip
    inputs["token_type_ids"] %= config.type_vocab_size or 2  # DeBERTa ignores segments
    if is_discriminator:
        inputs["labels"] = torch.where(is_token, inputs["input_ids"] % 2, -100)
    return inputs


def pad_left(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Moves the padding of a batch to the left."""
    mask = inputs["attention_mask"]
    length = mask.shape[-1]
    source = (torch.arange(length) + mask.sum(-1, keepdim=True)) % length
    moved = {name: value.gather(-1, source) for name, value in inputs.items() if value.shape == mask.shape}
    ends = {name: torch.full_like(value, length - 1) for name, value in inputs.items() if name.endswith("_positions")}
    return inputs | moved | ends


def in_the_dtype_of_the_logits(forward):
    """Wraps stock ELECTRA's `forward`, which computes the loss in float32."""

    def detect(self, labels, **inputs):
        output = forward(self, **inputs)
        is_token = inputs["attention_mask"].bool()
        logits = output.logits[is_token]
        output.loss = F.binary_cross_entropy_with_logits(logits, labels[is_token].to(logits.dtype))
        return output

    return detect


def run(model, inputs, token_mask=None):
    """Returns the outputs, without padding, and the gradients of the loss.

    Without a head, the loss is made from the outputs. Gradients of unused parameters are left out.
    """
    model.zero_grad()
    outputs = {
        name: value[token_mask] if token_mask is not None and value.shape[:2] == token_mask.shape else value
        for name, value in model(**inputs).items()
    }
    loss = outputs["loss"] if "loss" in outputs else sum((value**3).sum() for value in outputs.values())
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return outputs, gradients


def rename(name: str, ours: snugbert.SnugBertPreTrainedModel) -> str:
    """Returns our name of a weight of a transformers class."""
    for pattern, replacement in ours._family_names.items():
        name = re.sub(pattern, replacement, name)
    if hasattr(ours, "bert") and name.startswith("pooler."):  # DeBERTa's pooler is not part of the encoder
        name = f"bert.{name}"
    tied = {"weight": "bert.embeddings.word_embeddings.weight", "bias": "cls.predictions.bias"}
    return re.sub(r"^cls\.predictions\.decoder\.(weight|bias)$", lambda match: tied[match[1]], name)


def assert_close(ours, theirs, tolerance):
    """Compares two sets of tensors. The tolerance is relative to the largest value of each tensor, at least 1."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        mine = ours[name].reshape(value.shape)
        assert (mine - value).abs().max() <= tolerance * max(1.0, value.abs().max()), name


# DeBERTa-v3's files have another masked token head than transformers' files of it.
@pytest.mark.parametrize(
    ("family", "head", "fields"),
    [*((family, head, {}) for family, head in FAMILIES_AND_HEADS), ("deberta-v2", "ForMaskedLM", {"legacy": False})],
)
def test_outputs_and_gradients_equal_transformers(tmp_path, family, head, fields):
    write_family(tmp_path, family, head, **fields)
    stock = stock_class(family, head).from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="eager")
    ours = open_as_snugbert(tmp_path, family, head, dtype=torch.float64)
    if head == "ForQuestionAnswering":
        stock.forward = MethodType(without_padding(type(stock).forward), stock)
    if (family, head) == ("electra", "ForPreTraining"):
        stock.forward = MethodType(in_the_dtype_of_the_logits(type(stock).forward), stock)
    right = make_batch(family, head, stock.config)
    left = pad_left(right)
    right_mask, left_mask = (batch["attention_mask"].flatten(0, -2).bool() for batch in (right, left))
    expected = {"right": run(stock, right, right_mask)}
    expected["packed"] = expected["left"] = expected["right"]
    if head not in READS_FIRST_TOKEN and (family, head) != ("bert", "ForPreTraining"):
        expected["left"] = run(stock, left, left_mask)
    elif family in ("bert", "electra"):  # their positions count padding, so the first token of `left` has a later one
        left["position_ids"] = left["attention_mask"].cumsum(-1).sub(1).clamp(min=0)
    packed_inputs = packed(right)
    if family not in ("bert", "electra"):
        del packed_inputs["position_ids"]
    batches = {"right": (right, right_mask), "left": (left, left_mask), "packed": (packed_inputs, None)}
    for layout, (inputs, mask) in batches.items():
        outputs, gradients = run(ours, inputs, mask)
        expected_outputs, expected_gradients = expected[layout]
        if layout == "packed":  # outputs of tokens are one row
            outputs = {name: value.squeeze(0) if value.shape[:1] == (1,) else value for name, value in outputs.items()}
        # The pretraining model also returns the parts of its loss.
        assert_close({name: outputs[name] for name in expected_outputs}, expected_outputs, 1e-10)
        assert_close(gradients, {rename(name, ours): g for name, g in expected_gradients.items()}, 1e-10)


@pytest.mark.parametrize(
    ("family", "head"), [pair for pair in FAMILIES_AND_HEADS if pair[0] not in ("xlm-roberta", "camembert")]
)
def test_dropout_acts_where_it_does_in_transformers(tmp_path, monkeypatch, family, head):
    """With another activation and epsilon, too."""
    make_dropout_visible(monkeypatch)
    fields = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}
    fields |= {"hidden_act": "relu", "layer_norm_eps": 1e-3}
    if family == "electra":
        fields |= {"summary_last_dropout": 0.1}
    if family == "deberta-v2":
        fields["cls_dropout"] = fields.pop("classifier_dropout")
    write_family(tmp_path, family, head, **fields)
    stock = stock_class(family, head).from_pretrained(tmp_path, attn_implementation="eager").train()
    ours = open_as_snugbert(tmp_path, family, head, attn_implementation="eager").train()
    inputs = make_batch(family, head, stock.config)
    mask = inputs["attention_mask"].flatten(0, -2).bool()
    if head == "ForQuestionAnswering":  # stock's softmax includes padding
        del inputs["start_positions"], inputs["end_positions"]
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        mask = torch.ones_like(mask)
    for _ in range(2):
        (mine, _), (expected, _) = run(ours, inputs, mask), run(stock, inputs, mask)
        # ours computes logits of labeled tokens only
        names = ["loss"] if head in ("ForMaskedLM", "ForPreTraining") else list(expected)
        assert_close({name: mine[name] for name in names}, {name: expected[name] for name in names}, 1e-5)
        for model in (ours, stock):  # Monte Carlo dropout
            model.eval()
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.5
                    module.train()


@pytest.mark.parametrize("family", FAMILY_TYPES)
def test_fine_tuning_starts_from_the_pretrained_encoder(tmp_path, family):
    """A new head gets random weights, as in transformers."""
    pretrained = write_family(tmp_path / "pretrained", family, "ForMaskedLM")
    _, info = snugbert.SnugBertForSequenceClassification.from_pretrained(pretrained, output_loading_info=True)
    head = {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}
    assert info["missing_keys"] == head
    assert all(name.startswith(("lm_head.", "generator_", "cls.")) for name in info["unexpected_keys"])


def test_an_unused_pooler_of_a_roberta_classifier_is_ignored(tmp_path):
    """Files from before transformers 4 contain a pooler besides the classifier's dense layer."""
    write_family(tmp_path, "roberta", "ForSequenceClassification")
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    dense = weights["classifier.dense.weight"]
    pooler = {"roberta.pooler.dense.weight": dense + 1, "roberta.pooler.dense.bias": torch.ones(len(dense))}
    save_file(weights | pooler, file, {"format": "pt"})
    model = snugbert.SnugBertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(model.bert.pooler.dense.weight, dense)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("roberta", {"position_embedding_type": "relative_key"}, "supported relative positions are DeBERTa-v3's"),
        ("xlm-roberta", {"is_decoder": True}, "SnugBERT is an encoder"),
        ("electra", {"add_cross_attention": True}, "SnugBERT is an encoder"),
        ("camembert", {"pad_token_id": None}, "RoBERTa's positions start after this id"),
        ("electra", {"summary_type": "mean", "architectures": ["ElectraForMultipleChoice"]}, "reads the first token"),
        ("deberta-v2", {}, "`relative_attention` False is not supported"),
        ("deberta-v2", DEBERTA_V3 | {"pos_att_type": "c2p"}, r"Expected \['c2p', 'p2c'\], as in all"),
        ("deberta-v2", DEBERTA_V3 | {"conv_kernel_size": 3}, "`conv_kernel_size` 3 is not supported"),
        ("deberta-v2", DEBERTA_V3 | {"embedding_size": 128}, "Expected 768"),
        ("deberta-v2", DEBERTA_V3 | {"position_buckets": -1}, "without buckets are not supported"),
    ],
)
def test_what_cannot_be_equal_is_refused(tmp_path, family, fields, message):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} | fields))
    with pytest.raises(ValueError, match=message):
        snugbert.SnugBertConfig.from_pretrained(tmp_path)


def test_buckets_equal_transformers(tmp_path):
    """With few positions, a distance can have a higher bucket than itself. Lengths do not change the result."""
    buckets = compute_buckets(torch.arange(-511, 512), 256, 512)
    assert torch.equal(buckets, make_log_bucket_position(torch.arange(-511, 512), 256, 512).long())
    fields = {"num_hidden_layers": 1, "max_position_embeddings": 64, "position_buckets": 64}
    folder = write_checkpoint(tmp_path, "deberta-v2", "ForMaskedLM", **fields)
    stock = transformers.DebertaV2ForMaskedLM.from_pretrained(folder)
    ours = open_as_snugbert(folder, "deberta-v2", "ForMaskedLM")
    for length in (32, 33, 47, 63):
        ids = torch.randint(7, 100, (2, length), generator=torch.Generator().manual_seed(length))
        assert_close({"logits": ours(ids).logits}, {"logits": stock(ids).logits}, 1e-5)


@pytest.mark.slow
def test_relative_positions_in_every_implementation(tmp_path):
    """Attention implementations, masks of scores, compilation and gradient checkpointing: equal outputs and gradients.

    Sequences have up to 200 tokens, more than `max_position_embeddings`, so that every bucket occurs.
    """
    fields = {"num_hidden_layers": 1, "max_position_embeddings": 128, "position_buckets": 64}
    folder = write_checkpoint(tmp_path, "deberta-v2", "ForMaskedLM", **fields)
    models = {
        name: open_as_snugbert(folder, "deberta-v2", "ForMaskedLM", dtype=torch.float64, attn_implementation=name)
        for name in ("sdpa", "eager")
    }
    lengths = torch.tensor([[200], [7], [130]])
    mask = (torch.arange(200) < lengths).long()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(7, 100, mask.shape, generator=generator) * mask
    labels = torch.where((torch.rand(mask.shape, generator=generator) < 0.2) & (mask == 1), ids, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    stock = transformers.DebertaV2ForMaskedLM.from_pretrained(folder, dtype=torch.float64)
    outputs, gradients = run(stock, inputs)
    expected = {"loss": outputs["loss"], **{rename(name, models["sdpa"]): one for name, one in gradients.items()}}
    del expected["bert.embeddings.word_embeddings.weight"]
    score_mask = mask[:, None, None].expand(-1, -1, 200, -1)
    minimum = torch.finfo(torch.float64).min
    additive = torch.zeros(score_mask.shape, dtype=torch.float64).masked_fill(score_mask == 0, minimum)
    compiled = torch.compile(models["sdpa"], backend="aot_eager")
    checkpointed = copy.deepcopy(models["sdpa"]).train()
    new_name = getattr(checkpointed, "activation_checkpointing_enable", None)
    (new_name or checkpointed.gradient_checkpointing_enable)({"use_reentrant": True})
    runs = {
        "padded": (models["sdpa"], inputs),
        "eager": (models["eager"], inputs),
        "packed": (models["sdpa"], packed(inputs)),
        "boolean mask": (models["eager"], inputs | {"attention_mask": score_mask}),
        "additive mask": (models["sdpa"], inputs | {"attention_mask": additive}),
        "GPU": (models["sdpa"], packed(inputs)),
        "compiled": (compiled, packed(inputs)),
        "checkpointed": (checkpointed, inputs),
    }
    for name, (model, batch) in runs.items():
        with acting_as_gpu() if name == "GPU" else nullcontext():
            outputs, gradients = run(model, batch)
        gradients = {key.removeprefix("_orig_mod."): one for key, one in gradients.items()}
        del gradients["bert.embeddings.word_embeddings.weight"]
        assert_close({"loss": outputs["loss"], **gradients}, expected, 1e-10)
    # Padding within a text counts in the distances.
    inputs |= {
        "attention_mask": mask * (torch.arange(200) != 5),
        "labels": labels.index_fill(1, torch.tensor(5), -100),
    }
    assert_close({"loss": models["sdpa"](**inputs).loss}, {"loss": stock(**inputs).loss}, 1e-10)
