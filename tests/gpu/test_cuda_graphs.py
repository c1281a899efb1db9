"""CUDA graphs, recorded and replayed on a CPU."""

import copy
import logging
from concurrent.futures import ThreadPoolExecutor

import emulated_graphs as emulated
import pytest
import torch
from emulated_graphs import emulated_graphs
from parity import HEADS, ours_and_stock, packed, ragged_batch, scalar

from snugbert.gpu import cuda_graphs
from snugbert.gpu.cuda_graphs import CudaGraphs

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "snugbert")
    return caplog


def make_batches(head: str, number: int) -> list[dict]:
    """Makes packed batches of two sizes in turn. Batches of a size differ in the order of their sequences."""
    padded = [ragged_batch(head), ragged_batch(head, batch=4, length=11)]
    return [
        packed({name: value.roll(index // 2, 0) for name, value in padded[index % 2].items()})
        for index in range(number)
    ]


def train(model, step, batches, accumulation=3) -> list[torch.Tensor]:
    """Trains with `step`, which computes a loss and its gradients. Returns the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(0)
    losses = []
    for number, batch in enumerate(batches, start=1):
        losses.append(step(batch).clone())
        if number % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def make_step(model):
    def step(batch):
        loss = scalar(model(**batch))
        loss.backward()
        return loss.detach()

    return step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "accumulation", "most"),
    [*((head, 3, 64) for head in HEADS), ("ForMaskedLM", 3, 2), ("ForMaskedLM", 1, 64), ("ForPreTraining", 1, 64)],
)
def test_graphs_change_nothing(head, accumulation, most, monkeypatch):
    """With dropout and accumulation. Losses and weights are the same bits. Sizes beyond the limit run eagerly."""
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", most)
    eager = ours_and_stock(head, **DROPOUT)[0].train()
    model = copy.deepcopy(eager)
    graphs = CudaGraphs(make_step(model), model)
    batches = make_batches(head, 18)
    with emulated_graphs():
        expected = train(eager, make_step(eager), batches, accumulation)
        losses = train(model, graphs, batches, accumulation)
    # With accumulation, each size has a graph that adds to gradients and one that replaces them.
    assert graphs.count == (2 if accumulation == 1 else min(most, 4))
    assert len({loss.item() for loss in losses}) == len(losses)
    torch.testing.assert_close(losses, expected, atol=0, rtol=0)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), atol=0, rtol=0)


@pytest.mark.slow
def test_changes_of_the_model_are_noticed(log):
    """A layer is frozen, then unfrozen, then dropout changes. Each needs other graphs."""
    head = "ForSequenceClassification"
    eager = ours_and_stock(head, **DROPOUT)[0].train()
    model = copy.deepcopy(eager)
    graphs = CudaGraphs(make_step(model), model)
    losses = {}
    with emulated_graphs():
        for each, step in ((eager, make_step(eager)), (model, graphs)):
            losses[step] = train(each, step, make_batches(head, 8), 1)
            each.bert.encoder.layer[0].requires_grad_(False)
            losses[step] += train(each, step, make_batches(head, 8), 1)
            each.bert.encoder.layer[0].requires_grad_(True)
            losses[step] += train(each, step, make_batches(head, 8), 1)
            each.bert.encoder.layer[1].attention.self.dropout.p = 0.3
            losses[step] += train(each, step, make_batches(head, 8), 1)
    assert graphs.count == 4 and log.text.count("recorded") == 8  # the graphs of the frozen model are dropped
    torch.testing.assert_close(*losses.values(), atol=0, rtol=0)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), atol=0, rtol=0)


def unfilled(head: str, number: int) -> list[dict]:
    return [packed(ragged_batch(head, batch=2, length=2 + index)) for index in range(number)]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda head, number: [ragged_batch(head)] * number, "the step waits for the GPU at "),
        (unfilled, "nearly every batch has a different size"),
    ],
    ids=["padded", "unfilled"],
)
def test_what_no_graph_can_do_runs_eagerly(make, reason, log, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST_SIZES", 4)
    head = "ForTokenClassification"
    eager = ours_and_stock(head)[0].train()
    model = copy.deepcopy(eager)
    graphs = CudaGraphs(make_step(model), model)
    batches = make(head, 7)
    with emulated_graphs():
        losses = train(model, graphs, batches)
        torch.testing.assert_close(losses, train(eager, make_step(eager), batches))
    assert graphs.count == 0
    assert len(log.messages) == 1 and log.messages[0].startswith(f"CUDA graphs: off, because {reason}")


@pytest.mark.parametrize("kind", ["module", "parameter"])
def test_hooks_after_the_recording_turn_graphs_off(kind, log):
    model = ours_and_stock("ForMaskedLM")[0].train()
    graphs = CudaGraphs(make_step(model), model)
    batches, calls = make_batches("ForMaskedLM", 10)[::2], []
    with emulated_graphs():
        train(model, graphs, batches, accumulation=1)
        assert graphs.count == 1
        if kind == "module":
            model.bert.register_forward_hook(lambda *_: calls.append(1))
        else:
            model.bert.embeddings.word_embeddings.weight.register_hook(lambda _: calls.append(1))
        train(model, graphs, batches)
    assert len(calls) == 5 and log.messages[-1].startswith("CUDA graphs: off, because the model has hooks")


def test_without_a_gain_no_graph_takes_memory(log):
    """The GPU takes longer than the host, so it is busy anyway."""
    model = ours_and_stock("ForMaskedLM")[0].train()
    graphs = CudaGraphs(make_step(model), model)
    with emulated.emulated_graphs(gpu_seconds=2.0):
        train(model, graphs, make_batches("ForMaskedLM", 12))
    assert graphs.count == 0 and log.messages == [
        "CUDA graphs: not for large batches, because the GPU is the limit (the GPU takes 2000.0 ms for a batch, and "
        "the host 1000.0 ms)."
    ]


def test_threads_get_their_own_results():
    model = ours_and_stock("ForSequenceClassification")[0].eval()
    graphs = CudaGraphs(lambda batch: model(**batch).logits, model)
    batches = [
        {name: value for name, value in batch.items() if name != "labels"}
        for batch in make_batches("ForSequenceClassification", 12)[::2]
    ]
    with emulated_graphs(), torch.inference_mode():
        expected = [model(**batch).logits for batch in batches]

        def predict(index):
            with torch.inference_mode():
                return graphs(batches[index % 6]).equal(expected[index % 6])

        assert all(map(predict, range(6))) and graphs.count == 1
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(predict, range(60)))
        assert not graphs.gradients._places  # prediction needs no memory for gradients
        with torch.autocast("cpu", torch.bfloat16):  # keeps copies of weights, which are freed later
            graphs(batches[0])
        assert graphs.reason == "autocast keeps copies of the weights"


def test_without_memory_for_a_recording_the_step_runs_eagerly(log):
    model, batches, calls = ours_and_stock("Model")[0].eval(), make_batches("Model", 6)[::2], []

    def step(batch):
        calls.append(1)
        if len(calls) == 3:  # the recording
            raise torch.OutOfMemoryError
        return model(**batch).pooler_output

    graphs = CudaGraphs(step, model)
    with emulated_graphs(), torch.no_grad():
        graphs(batches[0])
        graphs(batches[1])
        assert graphs(batches[2]).equal(model(**batches[2]).pooler_output)
    assert graphs.count == 0 and "too little free memory" in log.messages[-1]
