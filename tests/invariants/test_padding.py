"""Padded = packed = stock BERT without padding, forward and backward, for all kinds of batches."""

import gzip

import pytest
import torch
import torch.nn.functional as F
import transformers
from parity import CONFIG, HEADS, assert_same_gradients, ours_and_stock, packed, ragged_batch
from torch.utils.flop_counter import FlopCounterMode

import snugbert

pytestmark = pytest.mark.slow

LABELS = ("labels", "next_sentence_label", "start_positions", "end_positions")


def make_batch(case: str, head: str) -> dict[str, torch.Tensor]:
    """A padded batch with the mask of a case. Only tokens have labels."""
    shape = {"one sequence": (1, 17), "one token": (1, 1), "longest": (2, CONFIG["max_position_embeddings"])}
    batch, length = shape.get(case, (6, 17))
    inputs = ragged_batch(head, ragged=case not in ("even", "one sequence", "one token"), batch=batch, length=length)
    mask = inputs["attention_mask"]
    if case == "left":
        mask = mask.flip(-1)
    if case == "holes":
        mask = torch.randint(0, 2, mask.shape, generator=torch.Generator().manual_seed(2))
        mask[..., 3] = 1
    if case != "ragged":
        inputs["attention_mask"] = mask
        inputs["input_ids"] = torch.where(mask == 1, torch.arange(length) % 200 + 3, 0)
        if "labels" in inputs and inputs["labels"].shape == mask.shape:
            inputs["labels"] = torch.where(
                (mask == 1) & (torch.arange(length) % 3 == 0), torch.arange(length) % 3, -100
            )
        if "start_positions" in inputs:
            inputs["start_positions"] = mask.argmax(-1)
            inputs["end_positions"] = (mask * torch.arange(length)).argmax(-1)
    return inputs


def stock_alone(stock, head: str, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Runs stock BERT on one sequence at a time. Returns the loss, and the outputs of all tokens or sequences."""
    mask = inputs["attention_mask"].flatten(0, -2).bool()
    outputs = []
    for row, real in enumerate(mask):
        one = {name: inputs[name].flatten(0, -2)[row, real][None] for name in ("input_ids", "token_type_ids")}
        one["position_ids"] = real.nonzero().T
        if head == "ForMultipleChoice":
            one = {name: value[None] for name, value in one.items()}
        outputs.append(stock(**one))
    per_token = ("last_hidden_state", "prediction_logits", "start_logits", "end_logits")
    joined = {
        name: torch.cat([out[name][0] if name in per_token or out[name].dim() == 3 else out[name] for out in outputs])
        for name in outputs[0]
    }
    if head == "Model":
        return (joined["last_hidden_state"] ** 3).sum() + (joined["pooler_output"] ** 2).sum(), joined
    if head == "ForQuestionAnswering":
        packed_inputs = packed(inputs)
        losses = [
            F.cross_entropy(out[f"{end}_logits"], packed_inputs[f"{end}_positions"][row : row + 1])
            for row, out in enumerate(outputs)
            for end in ("start", "end")
        ]
        return torch.stack(losses).mean(), joined
    if head == "ForMultipleChoice":
        joined["logits"] = joined["logits"].view(-1, 4)
    labels = inputs["labels"]
    if labels.shape == inputs["attention_mask"].shape:
        labels = labels[mask]
    loss = F.cross_entropy(joined.get("prediction_logits", joined.get("logits")), labels)
    if head == "ForPreTraining":
        loss = loss + F.cross_entropy(joined["seq_relationship_logits"], inputs["next_sentence_label"])
    return loss, joined


def compute_loss(output) -> torch.Tensor:
    if "loss" in output:
        return output.loss
    return (output.last_hidden_state**3).sum() + (output.pooler_output**2).sum()  # padding is zero


CASES = ["ragged", "even", "one sequence", "one token", "longest", "left", "holes"]
# Heads differ by the tokens that they read. Eager attention differs by the mask and the queries of the last layer.
SDPA = [(head, case, "sdpa") for head in HEADS for case in ("ragged", "holes")]
SDPA += [(head, case, "sdpa") for head in ("ForPreTraining", "ForQuestionAnswering") for case in CASES[1:-1]]
EAGER = [("ForPreTraining", case, "eager") for case in CASES] + [("ForMultipleChoice", "ragged", "eager")]


@pytest.mark.parametrize(("head", "case", "attention"), SDPA + EAGER)
def test_padded_is_packed_is_stock_bert(head, case, attention):
    ours, stock = ours_and_stock(head)
    ours.set_attn_implementation(attention)
    inputs = make_batch(case, head)
    expected_loss, expected = stock_alone(stock, head, inputs)
    expected_loss.backward()
    real = inputs["attention_mask"].flatten(0, -2).bool()
    for batch in (inputs, packed(inputs)):
        for training in (True, False):  # in training, the last layer and the vocabulary head skip unused tokens
            ours.train(training).zero_grad()
            output = ours(**batch)
            torch.testing.assert_close(compute_loss(output), expected_loss, atol=2e-5, rtol=1e-5)
            compute_loss(output).backward()
            assert_same_gradients(ours, stock, tolerance=2e-5)
        output = ours.eval()(**{n: v for n, v in batch.items() if n not in LABELS})
        for name, value in expected.items():
            mine = output[name]
            if mine.shape[:2] == real.shape and value.shape[:1] == (real.sum(),):
                mine = mine[real]
            elif mine.shape[0] == 1 and mine.shape[1:] == value.shape:
                mine = mine[0]
            torch.testing.assert_close(mine, value, atol=2e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_word_embeddings_instead_of_ids():
    ours, stock = ours_and_stock("ForPreTraining")
    inputs = ragged_batch("ForPreTraining")
    expected_loss, _ = stock_alone(stock, "ForPreTraining", inputs)
    for batch in (inputs, packed(inputs)):
        embeds = ours.get_input_embeddings()(batch.pop("input_ids")).detach().requires_grad_()
        loss = ours(**batch, inputs_embeds=embeds).loss
        torch.testing.assert_close(loss, expected_loss, atol=2e-5, rtol=1e-5)
        (gradient,) = torch.autograd.grad(loss, embeds)
        assert (gradient.norm(dim=-1) > 0).equal(batch.get("attention_mask", torch.ones(gradient.shape[:2])) > 0)


@pytest.mark.parametrize(("head", "attention"), [*((head, "sdpa") for head in HEADS), ("Model", "eager")])
def test_a_row_without_tokens_changes_no_other_row(head, attention):
    """Its hidden states are zero, and its pooled output is the pooled zero vector. It still counts as a sequence."""
    ours, _ = ours_and_stock(head)
    ours.set_attn_implementation(attention)
    inputs = ragged_batch(head)
    empty, others = [2, 5], [0, 1, 3, 4]
    inputs["attention_mask"][empty] = 0
    for name, value in inputs.items():
        if name in LABELS:
            value[empty] = -100
    alone = {name: value[others] for name, value in inputs.items()}
    for batch, batch_alone in ((inputs, alone), (packed(inputs), packed(alone))):
        gradients = []
        for one in (batch, batch_alone):
            ours.zero_grad()
            output = ours.train()(**one)
            loss = output.loss if "loss" in output else (output.last_hidden_state**3).sum()
            loss.backward()
            gradients.append([p.grad.clone() for p in ours.parameters() if p.grad is not None])
        torch.testing.assert_close(*gradients, atol=2e-6, rtol=1e-4)
    inputs, alone = ({n: v for n, v in batch.items() if n not in LABELS} for batch in (inputs, alone))
    output, expected = ours.eval()(**inputs), ours(**alone)
    for name, value in expected.items():
        torch.testing.assert_close(output[name][others], value, atol=2e-6, rtol=1e-5)
    if head == "Model":
        assert not output.last_hidden_state[empty].any()
        torch.testing.assert_close(output.pooler_output[2], torch.tanh(ours.pooler.dense.bias))
        torch.testing.assert_close(ours(**packed(inputs)).pooler_output, output.pooler_output, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM", "ForTokenClassification"])
def test_without_labeled_tokens_the_loss_is_zero_and_has_gradients(head):
    """Every parameter has a zero gradient. Data-parallel training would wait for a missing one."""
    ours, _ = ours_and_stock(head)
    inputs = ragged_batch(head)
    inputs["labels"] = torch.full_like(inputs["labels"], -100)
    inputs.pop("next_sentence_label", None)
    unused = ("pooler", "seq_relationship")  # their loss has no label here
    for batch in (inputs, packed(inputs)):
        ours.zero_grad()
        loss = ours.train()(**batch).loss
        loss.backward()
        assert loss == 0
        for name, parameter in ours.named_parameters():
            assert any(part in name for part in unused) or not parameter.grad.any(), name


def test_an_answer_beyond_its_packed_sequence_is_ignored():
    """Like an answer beyond the end of a padded row. The other sequences do not matter."""
    ours, _ = ours_and_stock("ForQuestionAnswering")
    inputs = {"input_ids": torch.arange(3, 10)[None], "cu_seq_lens_q": torch.tensor([0, 3, 7])}
    both = ours(**inputs, start_positions=torch.tensor([3, 0]), end_positions=torch.tensor([5, 2])).loss
    second = {"input_ids": inputs["input_ids"][:, 3:]}
    alone = ours(**second, start_positions=torch.tensor([0]), end_positions=torch.tensor([2])).loss
    torch.testing.assert_close(both, alone, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_block_mask_equals_a_packed_batch(attention):
    """A boolean or integer 4-D mask may separate the sequences of a row. Their positions then restart."""
    ours, _ = ours_and_stock("Model")
    ours.set_attn_implementation(attention)
    inputs = {"input_ids": torch.arange(3, 10)[None], "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]])}
    expected = ours(**inputs, cu_seq_lens_q=torch.tensor([0, 3, 7])).last_hidden_state
    blocks = torch.block_diag(torch.ones(3, 3), torch.ones(4, 4))[None, None]
    for mask in (blocks.bool(), blocks.long()):
        output = ours(**inputs, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-5)


def test_real_weights_and_512_tokens(minilm, data_dir):
    """Padded and packed batches of real text equal stock BERT."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    classes = (transformers.BertModel, snugbert.SnugBertModel)
    stock, ours = (each.from_pretrained(minilm, num_hidden_layers=3).eval() for each in classes)
    with gzip.open(data_dir / "wikitext2/valid.docs.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line for line in file if len(line) > 40]
    pair = [lines[0], " ".join(lines[:40])], lines[1:3]
    inputs = dict(tokenizer(*pair, padding=True, truncation=True, max_length=512, return_tensors="pt"))
    assert inputs["input_ids"].shape == (2, 512)
    real = inputs["attention_mask"].bool()
    expected = stock(**inputs).last_hidden_state[real]
    (expected**2).sum().backward()
    for batch in (inputs, packed(inputs)):
        ours.zero_grad()
        output = ours(**batch).last_hidden_state
        output = output[real] if output.shape[:2] == real.shape else output[0]
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
        (output**2).sum().backward()
        assert_same_gradients(ours, stock, tolerance=2e-5)


@pytest.mark.parametrize("head", HEADS)
def test_bfloat16_error_is_at_most_three_times_that_of_stock_bert(head):
    """Gradients under autocast, padded and packed, compared with stock BERT in float32. Weights are random."""
    ours, stock = ours_and_stock(head)
    inputs = ragged_batch(head)

    def gradients(model, batch):
        model.zero_grad()
        output = model.train()(**batch)
        (output.loss if "loss" in output else output.pooler_output.float().pow(2).sum()).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    if head == "ForQuestionAnswering":
        inputs = ragged_batch(head, ragged=False)  # stock BERT's softmax includes padding
    exact = gradients(stock, inputs)

    def error(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            rounded = gradients(model, batch)
        return torch.stack([(rounded[name] - gradient).norm() for name, gradient in exact.items()]).norm()

    stock_error = error(stock, inputs)
    for batch in (inputs, packed(inputs)):
        assert 0 < error(ours, batch) <= 3 * stock_error


def test_nothing_is_computed_on_padding_and_the_last_layer_computes_only_the_needed_tokens():
    ours, _ = ours_and_stock("ForPreTraining")
    inputs = ragged_batch("ForPreTraining")
    sizes, flops = [], []
    for batch in (inputs, packed(inputs)):
        with FlopCounterMode(display=False) as counter:
            ours.train()(**batch).loss.backward()
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1]
    for layer in ours.bert.encoder.layer:
        layer.intermediate.dense.register_forward_hook(lambda module, args, output: sizes.append(output.shape[1]))
    ours(**inputs)
    tokens, labeled = int(inputs["attention_mask"].sum()), int((inputs["labels"] != -100).sum())
    assert sizes == [tokens, tokens, labeled + 6]
    sizes.clear()
    ours.eval()(**inputs)
    assert sizes == [tokens] * 3
