"""Runs with `torch_compile` learn the same as runs without it, and soon stop compiling."""

import json
from pathlib import Path

import forked
import pytest
import torch
from finetuning_examples import examples, make_tokenizer, new_model, new_trainer
from reference_kernels import acting_as_gpu
from safetensors.torch import load_file
from synthetic import make_teacher, make_trainer
from torch._dynamo.utils import counters
from transformers import TrainerCallback

pytestmark = pytest.mark.usefixtures("new_compiler")

STEPS = 4
# The same graphs as inductor, run by torch. Compiled backward passes are in test_graphs_in_training.py.
TRACED = {"torch_compile": True, "torch_compile_backend": "eager"}
SMALL_BATCHES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}


class CountGraphs(TrainerCallback):
    """Counts the graphs after each step."""

    def __init__(self):
        self.graphs = []

    def on_step_end(self, *_, **kwargs):
        self.graphs.append(counters["stats"]["unique_graphs"])


def train(folder: Path, resume: Path | None = None, evaluates: bool = True, **options) -> list[int]:
    """Returns the number of graphs after each step. Evaluation compiles as many again."""
    trainer = make_trainer(folder, max_steps=STEPS, save_steps=2, **options)
    count = CountGraphs()
    trainer.add_callback(count)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    log = [
        {name: line[name] for name in ("loss", "grad_norm")} for line in trainer.state.log_history if "loss" in line
    ]
    if evaluates:
        log.append({"loss": trainer.evaluate()["eval_loss"]})
    if trainer.is_world_process_zero():
        (folder / "report.json").write_text(json.dumps(log))
    return count.graphs


def train_on_gpu(folder: Path, options: dict) -> None:
    with acting_as_gpu():
        train(folder, evaluates=False, **options)


def assert_same_run(folder: Path, expected: Path) -> None:
    ours, theirs = (json.loads((path / "report.json").read_text()) for path in (folder, expected))
    assert len(ours) == len(theirs) >= STEPS
    for line, expected_line in zip(ours, theirs, strict=True):
        assert line == pytest.approx(expected_line, rel=1e-5)
    weights = [load_file(path / "model.safetensors") for path in (folder, expected)]
    torch.testing.assert_close(*weights, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_compiled_and_eager_runs_resume_each_other(tmp_path):
    """With accumulation. A resumed run with dropout is bit-identical to an uninterrupted one."""
    train(tmp_path / "eager", **SMALL_BATCHES)
    graphs = train(tmp_path / "compiled", **SMALL_BATCHES, **TRACED)
    graphs += train(tmp_path / "eager-compiled", tmp_path / "eager/checkpoint-2", **SMALL_BATCHES, **TRACED)
    # The layers and the shorter last layer, in training and then in evaluation. Other runs and batches add none.
    assert graphs == [2] * STEPS + [4] * (len(graphs) - STEPS) and not counters["graph_break"]
    train(tmp_path / "compiled-eager", tmp_path / "compiled/checkpoint-2", **SMALL_BATCHES)
    for name in ("compiled", "eager-compiled", "compiled-eager"):
        assert_same_run(tmp_path / name, tmp_path / "eager")
    compiled = TRACED | {"dropout": 0.1, "evaluates": False}
    train(tmp_path / "dropout", **compiled)
    train(tmp_path / "resumed", tmp_path / "dropout/checkpoint-2", **compiled)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("dropout", "resumed")]
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_compiled_student_equals_an_eager_one(tmp_path):
    """The loss compares its hidden states with the hidden states of a teacher. The teacher is not compiled."""
    train(tmp_path / "eager", teacher=make_teacher(), evaluates=False)
    graphs = train(tmp_path / "compiled", teacher=make_teacher(), evaluates=False, **TRACED)
    assert 1 <= graphs[0] == graphs[-1] <= 2 and not counters["graph_break"]
    assert_same_run(tmp_path / "compiled", tmp_path / "eager")


@pytest.mark.slow
def test_two_compiled_processes_equal_one_eager_process(tmp_path):
    """All parts that a GPU compiles."""
    train(tmp_path / "one", evaluates=False)
    process = forked.run(train_on_gpu, tmp_path / "ddp", SMALL_BATCHES | TRACED, processes=2)
    assert process.returncode == 0, process.stderr
    assert_same_run(tmp_path / "ddp", tmp_path / "one")


@pytest.mark.slow
def test_compiled_fine_tuning_equals_eager_fine_tuning(tmp_path):
    """Training and prediction, with a smaller last batch and a frozen layer. Heads of fine-tuning are not compiled.

    These need more graphs than torch allows. Its limit, which is for all models of a process, is 8, and here 2.
    """
    torch._dynamo.config.recompile_limit = 2
    head, results = "ForTokenClassification", []
    for compiled in ({}, TRACED):
        model = new_model(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        options = {"per_device_train_batch_size": 4, "freeze_layers": 1, "num_train_epochs": 1}
        data = examples(head, 17)  # the last batch has one example
        trainer = new_trainer(head, make_tokenizer(), tmp_path, data, model=model, **options, **compiled)
        trainer.train()
        results.append((model.state_dict(), trainer.predict(examples(head, 20)).predictions))
    assert counters["stats"]["unique_graphs"] >= 4 and not counters["graph_break"]
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=0)
