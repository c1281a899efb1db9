"""Rows that are filled up to a multiple of tokens have the losses, gradients, predictions and logs of other rows."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import forked
import pytest
import torch
from host_waits import count_host_waits
from parity import HEADS, ours_and_stock, packed, ragged_batch
from reference_kernels import acting_as_gpu
from safetensors.torch import load_file
from synthetic import make_trainer, without_times
from transformers import TrainerCallback

import snugbert
from snugbert.files import read_json
from snugbert.gpu.row_sizes import pad_row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

KINDS = {head: head for head in HEADS}
KINDS |= dict.fromkeys(("regression", "integers", "several labels"), "ForSequenceClassification")
KINDS |= {"replaced tokens": "ForMaskedLM", "labels on all tokens": "ForMaskedLM", "one label": "ForMaskedLM"}


def make_model(kind: str) -> torch.nn.Module:
    ours, _ = ours_and_stock(KINDS[kind], num_labels=1 if kind in ("regression", "integers") else 3)
    if kind == "replaced tokens":
        torch.manual_seed(0)
        ours = snugbert.SnugBertForReplacedTokenDetection(ours.config)
    return ours.double().train()


def make_batch(kind: str, batch: int = 6) -> dict:
    """A packed batch with a sequence without tokens."""
    inputs = ragged_batch(KINDS[kind], batch=batch)
    if KINDS[kind] != "ForMultipleChoice":
        inputs["attention_mask"][2] = 0
    row = packed(inputs)
    if KINDS[kind] == "ForQuestionAnswering":
        row["start_positions"][2] = row["end_positions"][2] = -100
    if kind == "regression":
        row["labels"] = torch.linspace(-1, 1, batch)
    elif kind == "integers":
        row["labels"] = torch.arange(batch)
    elif kind == "several labels":
        row["labels"] = (torch.arange(3 * batch).view(batch, 3) % 2).float()
    elif kind in ("replaced tokens", "labels on all tokens"):
        row["labels"] = row["input_ids"] % 2
    elif kind == "one label":
        row["labels"] = torch.full_like(row["input_ids"], -100)
        row["labels"][0, 3] = 7
    if "label_indices" in row:
        row["label_indices"] = (row["labels"][0] != -100).nonzero().squeeze(1)
    return row


@pytest.mark.parametrize("path", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_outputs_and_gradients_equal_in_float64(kind, path):
    """Some sequences of padding are full, one is short or empty. Masked token heads get more slots than labels."""
    row, model = make_batch(kind), make_model(kind)
    filled, copy = pad_row(row, 128), make_model(kind)
    assert filled["input_ids"].shape[1] % 128 == 0 and len(filled["cu_seq_lens_q"]) > len(row["cu_seq_lens_q"])
    results: list[dict] = []
    with acting_as_gpu() if path == "gpu" else nullcontext():
        for each, inputs in ((model, row), (copy, filled)):
            outputs = each(**inputs)
            shapes = {name: value.shape for name, value in (results[0] if results else outputs).items()}
            kept = {name: value[tuple(map(slice, shapes[name]))] for name, value in outputs.items()}  # no padding
            loss = kept["loss"] if "loss" in kept else sum((value**3).sum() for value in kept.values())
            loss.backward()
            results.append(kept)
    torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-13)
    for (name, ours), theirs in zip(copy.named_parameters(), model.parameters(), strict=True):
        expected = torch.zeros_like(ours) if theirs.grad is None else theirs.grad
        found = torch.zeros_like(ours) if ours.grad is None else ours.grad
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: name + text)


def test_a_label_that_is_nan_is_not_ignored():
    for kind in ("regression", "several labels"):
        row = make_batch(kind)
        row["labels"][1] = torch.nan
        assert make_model(kind)(**pad_row(row, 128)).loss.isnan()


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_gpu_kernels_accept_filled_rows_and_nothing_waits(kernel):
    """With dropout, as in training. The reference kernels check the conditions of the real ones."""
    ours, _ = ours_and_stock("ForPreTraining", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    row = make_batch("ForPreTraining")
    with acting_as_gpu(kernel) as calls, count_host_waits() as waits:
        ours.train()(**pad_row(row, 500, max_sequences=9)).loss.backward()
    assert calls and waits == []
    assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())


class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2 and args.process_index == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, settings: dict, resume: bool = False, kill: bool = False) -> None:
    trainer = make_trainer(folder, max_steps=3, save_steps=2, per_device_eval_batch_size=3, **settings)
    if kill:
        trainer.add_callback(Kill)

    def check_size(model, args, inputs):
        assert inputs["input_ids"].shape[1] % settings.get("pad_to_multiple_of", 1) == 0

    trainer.model.register_forward_pre_hook(check_size, with_kwargs=True)
    trainer.train(resume_from_checkpoint=resume)
    trainer.evaluate()
    trainer.save_model()
    trainer.save_state()


def test_two_processes_accumulation_and_a_kill_equal_one_process_without_filled_rows(tmp_path):
    """Weights and all numbers of the log, among them tokens, padding and FLOPs. The multiple changes on resume."""
    plain, filled = tmp_path / "plain", tmp_path / "filled"
    train(plain, {})
    halves = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    process = forked.run(train, filled, halves | {"pad_to_multiple_of": 64}, False, True, processes=2)
    assert process.returncode == -signal.SIGKILL, process.stderr
    process = forked.run(train, filled, halves | {"pad_to_multiple_of": 100}, True, processes=2)
    assert process.returncode == 0, process.stderr
    logs = [read_json(folder / "trainer_state.json")["log_history"] for folder in (filled, plain)]
    for line, expected in zip(*map(without_times, logs), strict=True):
        assert line == pytest.approx(expected, rel=2e-5)
    weights = [load_file(folder / "model.safetensors") for folder in (filled, plain)]
    torch.testing.assert_close(*weights, atol=2e-5, rtol=0)
