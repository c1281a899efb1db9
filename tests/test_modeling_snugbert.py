"""Models compared with stock BERT, and features that transformers users expect."""

import logging
import math
from types import MethodType

import pytest
import torch
from parity import (
    CONFIG,
    HEADS,
    NUM_LABELS,
    assert_same_gradients,
    ours_and_stock,
    packed,
    ragged_batch,
    scalar,
    without_padding,
)

import snugbert

OWN_OUTPUTS = ("mlm_loss", "nsp_loss")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("head", HEADS)
def test_outputs_and_gradients_equal_stock_bert(head, attention):
    """Hooks on embeddings and layers see the caller's layout. Requested outputs are part of the graph."""
    inputs = ragged_batch(head)
    real = inputs["attention_mask"].flatten(0, -2).bool()
    ours, stock = ours_and_stock(head)
    ours.set_attn_implementation(attention)
    if head == "ForQuestionAnswering":
        stock.forward = MethodType(without_padding(type(stock).forward), stock)

    def observe(model):
        outputs = {name: value for name, value in model.eval()(**inputs).items() if name not in OWN_OUTPUTS}
        if model is ours:
            torch.testing.assert_close(model(**inputs, return_dict=False), tuple(outputs.values()))
        values = [value[real] if value.shape[:2] == real.shape else value for value in outputs.values()]
        if head == "ForQuestionAnswering":  # no token of padding is an answer
            values += [outputs["start_logits"], outputs["end_logits"]]
        scalar(outputs).backward()
        model.zero_grad()
        seen = []
        bert = model.train() if head == "Model" else model.train().bert
        modules = (bert.embeddings.word_embeddings, bert.embeddings, *bert.encoder.layer)
        hooks = [module.register_forward_hook(lambda *arguments: seen.append(arguments[-1])) for module in modules]
        for layer in bert.encoder.layer:
            hooks.append(layer.register_full_backward_hook(lambda *arguments: seen.append(arguments[-1][0])))
        loss = scalar(model(**inputs))
        loss.backward()
        for hook in hooks:
            hook.remove()
        output = model(**inputs, output_hidden_states=True, output_attentions=attention == "eager")
        for state in (*output.hidden_states, *(output.attentions or ())):
            state.retain_grad()
        scalar(output).backward()
        seen += [*output.hidden_states, *(state.grad for state in output.hidden_states)]
        for weights in output.attentions or ():  # without padded keys
            seen += [both.mul(real[:, None, None]).transpose(1, 2) for both in (weights, weights.grad)]
        return list(outputs), [*values, loss, scalar(output), *(value[real] for value in seen)]

    (names, mine), (expected_names, theirs) = observe(ours), observe(stock)
    assert names == expected_names and len(mine) == len(theirs)
    for value, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(value, expected, atol=2e-6, rtol=1e-5)
    assert_same_gradients(ours, stock)


def assert_same_steps(ours, stock, inputs, batches):
    """Compares loss and gradients: `ours` on each (attention, batch), and `stock` on `inputs`."""
    expected = scalar(stock(**inputs))
    expected.backward()
    for attention, batch in batches:
        ours.set_attn_implementation(attention)
        ours.zero_grad()
        mine = scalar(ours(**batch))
        torch.testing.assert_close(mine, expected, atol=2e-6, rtol=1e-5)
        mine.backward()
        assert_same_gradients(ours, stock)


@pytest.mark.parametrize("head", HEADS)
def test_dropout_modules_decide_as_in_stock_bert(head):
    """Probabilities of 0 and 1 leave nothing to chance. Monte Carlo dropout changes the mode of the modules only."""
    ours, stock = ours_and_stock(head, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    inputs = ragged_batch(head, ragged=head != "ForQuestionAnswering")
    batches = [("sdpa", inputs), ("eager", inputs)] + [("sdpa", packed(inputs))] * (head != "Model")
    for probability, training, dropping in [(0, True, True), (1, True, True), (1, True, False), (1, False, True)]:
        for model in (ours, stock):
            model.zero_grad()
            model.train(training)
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = probability
                    module.train(dropping)
        assert_same_steps(ours, stock, inputs, batches)


class Apply(torch.nn.Module):
    """A layer or a pooler without weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, hidden_states, *args, **kwargs):
        return self.function(hidden_states)


class Scale(torch.nn.Module):
    """Wraps a layer, an attention or a pooler."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        output = self.inner(*args, **kwargs)
        return (1.5 * output[0], *output[1:]) if isinstance(output, tuple) else 1.5 * output


class PassMask(torch.nn.Module):
    """Wraps a layer or an attention, and passes on the mask only."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states, attention_mask=None, *args, **kwargs):
        return self.inner(hidden_states, attention_mask)


def make_subclass(layers):
    class Louder(type(layers[-1])):
        def forward(self, *args, **kwargs):
            return 1.5 * super().forward(*args, **kwargs)

    layers[-1].__class__ = Louder


# Name -> a function that changes the encoder of ours or of stock BERT, and its layers.
CHANGES = {
    "skip": lambda bert, layers: layers.__setitem__(-1, Apply(lambda states: states)),
    "skip_first": lambda bert, layers: layers.__setitem__(0, Apply(lambda states: states)),
    "mix": lambda bert, layers: layers.__setitem__(-1, Apply(lambda states: states + states[:, :1])),
    "wrap": lambda bert, layers: layers.__setitem__(-1, Scale(layers[-1])),
    "wrap_first_with_mask": lambda bert, layers: layers.__setitem__(0, PassMask(layers[0])),
    "self_attention": lambda bert, layers: setattr(layers[0].attention, "self", PassMask(layers[0].attention.self)),
    "attention": lambda bert, layers: setattr(layers[-1], "attention", Scale(layers[-1].attention)),
    "subclass": lambda bert, layers: make_subclass(layers),
    "transplant": lambda bert, layers: layers.__setitem__(-1, ours_and_stock("Model")[1].encoder.layer[-1]),
    "drop": lambda bert, layers: layers.__delitem__(slice(1, None)),
    "drop_all": lambda bert, layers: layers.__delitem__(slice(None)),
    "scaling": lambda bert, layers: setattr(layers[0].attention.self, "scaling", 0.1),
    "eps": lambda bert, layers: setattr(layers[0].output.LayerNorm, "eps", 0.5),
    "pooler": lambda bert, layers: setattr(bert, "pooler", Apply(lambda states: states[:, 0].sigmoid())),
    "pooler_wrapped": lambda bert, layers: setattr(bert, "pooler", Scale(bert.pooler)),
}


# All tokens, or first and labeled tokens, are needed after the last layer.
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("head", ["Model", "ForPreTraining"])
def test_changed_layers_equal_stock_bert(head, change):
    ours, stock = ours_and_stock(head, num_hidden_layers=2 if change != "transplant" else 3)
    for model in (ours.train(), stock.train()):
        bert = getattr(model, "bert", model)
        CHANGES[change](bert, bert.encoder.layer)
    inputs = ragged_batch(head)
    batches = [("sdpa", inputs), ("eager", inputs)]
    if head != "Model" and change != "mix":  # in a packed batch, the row has several first tokens
        batches.append(("sdpa", packed(inputs)))
    assert_same_steps(ours, stock, inputs, batches)


@pytest.mark.parametrize("head", HEADS)
def test_wrapped_modules_equal_stock_bert(head):
    """Each module in turn. If the model has a head, the modules of the encoder are left out."""
    models = ours_and_stock(head, num_hidden_layers=1)
    inputs = ragged_batch(head, ragged=head != "ForQuestionAnswering")
    expected = scalar(models[1](**inputs))
    for path, module in list(models[1].named_modules())[1:]:
        if isinstance(module, torch.nn.ModuleList) or path in ("encoder", "cls") or path.startswith("bert"):
            continue
        parent, _, name = path.rpartition(".")
        losses = []
        for model in models:
            wrapped = model.get_submodule(path)
            setattr(model.get_submodule(parent), name, Scale(wrapped))
            losses.append(scalar(model.eval()(**inputs)))
            setattr(model.get_submodule(parent), name, wrapped)
        torch.testing.assert_close(*losses, atol=2e-5, rtol=1e-5, msg=lambda text, path=path: f"{path}: {text}")
        assert name in ("dropout", "transform_act_fn") or not torch.isclose(losses[1], expected, rtol=1e-4), path


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("mask", ["additive", "boolean", None])
def test_modules_called_by_your_code_equal_stock_bert(mask, attention):
    """Mixes the embeddings of two batches (mixup), and runs the encoder, a layer, its attention and the pooler."""
    ours, stock = ours_and_stock("Model")
    ours.set_attn_implementation(attention)
    inputs = ragged_batch("Model")
    real = inputs["attention_mask"].bool()
    allowed = real[:, None, None].expand(-1, 1, 17, -1)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    masks = {"additive": (added, added), "boolean": (allowed, added), None: (None, None)}[mask]

    def run(model, mask):
        first = model.embeddings(inputs["input_ids"], inputs["token_type_ids"])
        second = model.embeddings(inputs_embeds=model.embeddings.word_embeddings(inputs["input_ids"].flip(0)))
        states = 0.7 * first + 0.3 * second
        encoded = model.encoder(states, attention_mask=mask)
        layer = model.encoder.layer[0]
        attended = layer.attention(states, mask)
        outputs = (*layer.attention.self(states, mask)[:1], attended[0], layer.feed_forward_chunk(attended[0]))
        return states, encoded[0], encoded.last_hidden_state, layer(states, mask), model.pooler(encoded[0]), *outputs

    for mine, theirs in zip(run(ours, masks[0]), run(stock, masks[1]), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_second_derivatives_equal_stock_bert(head):
    """A gradient penalty with eager attention, and Hessian-vector products with sdpa."""
    inputs = ragged_batch(head, ragged=head != "ForQuestionAnswering")  # stock BERT's softmax includes padding
    ours, stock = ours_and_stock(head)

    def loss(model, parameters, inputs):
        return scalar(torch.func.functional_call(model, parameters, (), inputs))

    def derive(model):
        parameters = {name: value.detach() for name, value in sorted(model.named_parameters())}
        generator = torch.Generator().manual_seed(0)
        vectors = {name: torch.randn(value.shape, generator=generator) for name, value in parameters.items()}
        gradient = torch.func.grad(lambda some: loss(model, some, inputs))
        yield torch.func.jvp(gradient, (parameters,), (vectors,))[1]
        model.set_attn_implementation("eager")
        gradients = torch.autograd.grad(
            scalar(model(**inputs)), list(model.parameters()), create_graph=True, allow_unused=True
        )
        sum((gradient**2).sum() for gradient in gradients if gradient is not None).backward()
        yield {name: value.grad for name, value in model.named_parameters() if value.grad is not None}

    for mine, theirs in zip(derive(ours.train()), derive(stock.train()), strict=True):
        rounding = 1e-6 * max(value.norm() for value in theirs.values())  # key biases have exact derivatives of zero
        for name, value in theirs.items():
            assert (mine[name] - value).norm() <= 1e-5 * value.norm() + rounding, name
    ours.set_attn_implementation("sdpa")
    words = [model.get_input_embeddings().weight for model in (ours, stock)]
    mine, theirs = (
        torch.autograd.grad(scalar(model(**inputs)), weight, create_graph=True)[0]
        for model, weight in zip((ours, stock), words, strict=True)
    )
    assert (mine - theirs).norm() <= 1e-5 * theirs.norm()  # the first derivative
    with pytest.raises(RuntimeError, match=r'`model.set_attn_implementation\("eager"\)`'):
        mine.square().sum().backward()


def test_answers_outside_the_row():
    """As in stock BERT, positions beyond the row are ignored, and negative ones mean [CLS]."""
    ours, stock = ours_and_stock("ForQuestionAnswering")
    inputs = ragged_batch("ForQuestionAnswering", ragged=False)
    inputs["end_positions"][:3] = 17
    inputs["start_positions"][2:4] = inputs["end_positions"][3] = -1
    torch.testing.assert_close(ours(**inputs).loss, stock(**inputs).loss, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_labels_at_padding_are_ignored_with_one_warning(head, monkeypatch, caplog):
    """Padded, and packed by the collator, as if they were -100."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    ours, _ = ours_and_stock(head)
    expected = ragged_batch(head)
    padding = expected["attention_mask"] == 0
    if head == "ForQuestionAnswering":
        name, values = "start_positions", "1 value of `start_positions` belongs"
        rows = padding.any(1).nonzero()[:1, 0]
        wrong = expected[name].index_copy(0, rows, padding[rows].long().argmax(1))
        expected[name][rows] = -100
    else:
        name, values = "labels", f"{padding.sum()} values of `labels` belong"
        wrong = expected[name].masked_fill(padding, 1)
    inputs = expected | {name: wrong}
    rows = [{key: value[row].numpy() for key, value in inputs.items()} for row in range(len(padding))]
    ours.train()
    ours(**expected).loss.backward()
    gradients = [parameter.grad for parameter in ours.parameters()]
    pack = snugbert.SnugBertDataCollatorWithPacking()
    for make_batch in (lambda: inputs, lambda: pack(rows)):
        monkeypatch.setattr("snugbert.packing_snugbert._warned", set())
        caplog.clear()
        ours.zero_grad()
        ours(**make_batch())
        ours(**make_batch()).loss.backward()
        for parameter, gradient in zip(ours.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)
        warnings = [record.getMessage() for record in caplog.records if "to padding" in record.getMessage()]
        assert [warning.startswith(f"In this batch, {values} to padding.") for warning in warnings] == [True]
    if name == "labels":  # no label is left
        inputs["labels"] = torch.where(padding, 1, -100)
        assert ours(**inputs | {"next_sentence_label": None} if head == "ForPreTraining" else inputs).loss == 0


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_four_dimensional_masks(attention):
    ours, _ = ours_and_stock("Model")
    ours.set_attn_implementation(attention)
    inputs = ragged_batch("Model")
    expected = ours(**inputs).last_hidden_state
    allowed = inputs["attention_mask"].bool()[:, None, None].expand(-1, 1, 17, -1)
    allowed = allowed & allowed.transpose(2, 3)  # padding attends to nothing
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    real = inputs["attention_mask"].bool()
    for mask in (allowed, added):
        output = ours(**inputs | {"attention_mask": mask}).last_hidden_state
        torch.testing.assert_close(output[real], expected[real], atol=2e-6, rtol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):  # whose minimum is above the mask's
            output = ours(**inputs | {"attention_mask": mask}).last_hidden_state
        torch.testing.assert_close(output[real].float(), expected[real], atol=0.05, rtol=0.05)


def test_pretraining_losses_one_at_a_time():
    ours, _ = ours_and_stock("ForPreTraining")
    inputs = ragged_batch("ForPreTraining")
    both = ours(**inputs)
    nsp_label = inputs.pop("next_sentence_label")
    mlm = ours(**inputs)
    del inputs["labels"]
    nsp = ours(**inputs, next_sentence_label=nsp_label)
    torch.testing.assert_close(both.loss, mlm.loss + nsp.loss)
    torch.testing.assert_close((both.mlm_loss, both.nsp_loss), (mlm.loss.detach(), nsp.loss.detach()))
    assert ours(**inputs).loss is None
    # A plain Trainer has one count. A micro-batch's next-sentence loss is weighted by its share of the labeled tokens.
    inputs = ragged_batch("ForPreTraining")
    shared = ours(**inputs, num_items_in_batch=4 * (inputs["labels"] != -100).sum())
    torch.testing.assert_close(shared.loss, both.loss / 4, atol=2e-6, rtol=1e-5)


def test_the_vocabulary_head_runs_on_labeled_tokens_in_training():
    ours, _ = ours_and_stock("ForMaskedLM")
    inputs = ragged_batch("ForMaskedLM")
    is_labeled = inputs["labels"] != -100
    sparse, full = ours.train()(**inputs), ours.eval()(**inputs)
    assert sparse.logits.shape == (is_labeled.sum(), CONFIG["vocab_size"])
    assert full.logits.shape == (*is_labeled.shape, CONFIG["vocab_size"])
    torch.testing.assert_close(sparse.logits, full.logits[is_labeled])
    torch.testing.assert_close(ours.eval()(**inputs, sparse_prediction=True).logits, sparse.logits)


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        *((head, {}) for head in HEADS[1:]),
        ("ForSequenceClassification", {"problem_type": "regression"}),
        ("ForSequenceClassification", {"problem_type": "multi_label_classification"}),
        ("ForSequenceClassification", {"num_labels": 1}),  # one label means regression
    ],
)
def test_every_head_divides_by_the_items_of_the_global_batch(head, fields):
    """With the global count, the losses of two unequal parts add up to stock BERT's loss of the whole batch."""
    ours, stock = ours_and_stock(head, **fields)
    inputs = ragged_batch(head, ragged=head != "ForQuestionAnswering")
    if fields:
        inputs["labels"] = torch.rand(6, fields.get("num_labels", NUM_LABELS)).squeeze(1)
    name = "start_positions" if head == "ForQuestionAnswering" else "labels"
    items = (inputs[name] != -100).sum()
    extra = {"num_sequences_in_batch": torch.tensor(6)} if head == "ForPreTraining" else {}
    parts = [
        ours(**{n: v[rows] for n, v in inputs.items()}, num_items_in_batch=items, **extra).loss
        for rows in (slice(0, 2), slice(2, 6))
    ]
    torch.testing.assert_close(sum(parts), stock(**inputs).loss, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(ours(**inputs).loss, stock(**inputs).loss, atol=2e-6, rtol=1e-5)
    assert ours.config.problem_type == stock.config.problem_type


def test_sinusoidal_positions_follow_the_formula():
    config = snugbert.SnugBertConfig(**CONFIG, position_embedding_type="sinusoidal")
    model = snugbert.SnugBertModel(config).eval()
    assert "embeddings.position_embeddings.weight" not in model.state_dict()
    table = model.embeddings.position_embeddings(torch.arange(40)) / config.initializer_range
    for position, dimension in ((0, 0), (1, 0), (7, 5), (39, 46), (39, 47)):
        angle = position / 10000 ** ((dimension - dimension % 2) / 48)
        expected = math.cos(angle) if dimension % 2 else math.sin(angle)
        assert abs(table[position, dimension].item() - expected) < 1e-5
    assert model.bfloat16()(**ragged_batch("Model")).last_hidden_state.dtype == torch.bfloat16


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gradient_checkpointing_changes_nothing(attention):
    """The dropout masks are the same, too."""
    ours, _ = ours_and_stock("ForPreTraining", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    ours.set_attn_implementation(attention)
    inputs = ragged_batch("ForPreTraining")
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            # transformers 5.23 renamed it; 5.17 has the old name only.
            (getattr(ours, "activation_checkpointing_enable", None) or ours.gradient_checkpointing_enable)()
        torch.manual_seed(3)
        ours.zero_grad()
        ours.train()(**inputs).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in ours.parameters()])
    torch.testing.assert_close(*gradients)


def test_initialization():
    torch.manual_seed(0)
    model = snugbert.SnugBertForPreTraining(snugbert.SnugBertConfig.from_size("mini"))
    for name, parameter in model.named_parameters():
        if "LayerNorm.weight" in name:
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            std = parameter.std().item()
            assert abs(std - 0.02) < 0.02 * 5 / math.sqrt(2 * parameter.numel()) + 1e-4, (name, std)
    assert (model.bert.embeddings.word_embeddings.weight[0] == 0).all()


def test_packed_inputs_under_data_parallel_are_refused():
    """`nn.DataParallel` would split the boundaries and the labels, but not the row of tokens."""
    ours, _ = ours_and_stock("ForPreTraining")
    ours._is_replica = True
    with pytest.raises(ValueError, match="DataParallel"):
        ours(**packed(ragged_batch("ForPreTraining")))


def test_chunks_of_the_feed_forward_sublayer_change_nothing():
    ours, _ = ours_and_stock("ForMaskedLM", chunk_size_feed_forward=4)
    inputs = ragged_batch("ForMaskedLM")
    sizes = []
    ours.bert.encoder.layer[0].intermediate.register_forward_hook(
        lambda module, arguments, output: sizes.append(output.shape[1])
    )
    torch.testing.assert_close(ours(**inputs).loss, ours_and_stock("ForMaskedLM")[1](**inputs).loss)
    assert max(sizes) == 4 and sum(sizes) == inputs["attention_mask"].sum()
