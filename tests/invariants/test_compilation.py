"""Runs with `torch_compile` learn the same as runs without it, and soon stop compiling."""

import copy
import json
from pathlib import Path

import forked
import pytest
import torch
from accelerate.state import AcceleratorState
from finetuning_examples import HEADS, examples, make_tokenizer, new_model, new_trainer
from parity import assert_same_gradients, ours_and_stock, ragged_batch
from parity import packed as pack
from reference_kernels import acting_as_gpu
from safetensors.torch import load_file
from synthetic import make_teacher, make_trainer
from torch._dynamo.utils import counters
from transformers import TrainerCallback

from snugbert.gpu.compilation import compile_model
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments

pytestmark = pytest.mark.usefixtures("new_compiler")

STEPS = 6
# inductor without its compiler: the same graphs, run by torch.
COMPILED = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
# Without compiled backward passes, in half the time. For tests that do not depend on them.
TRACED = {"torch_compile": True, "torch_compile_backend": "eager"}
SMALL_BATCHES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
# transformers 5.23 renamed it; 5.17 has the old name only.
FIELDS = PretrainingArguments.__dataclass_fields__
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in FIELDS else "gradient_checkpointing"


class CountGraphs(TrainerCallback):
    """Counts the graphs after each step."""

    def __init__(self):
        self.graphs = []

    def on_step_end(self, *_, **kwargs):
        self.graphs.append(counters["stats"]["unique_graphs"])


def train(folder: Path, resume: Path | None = None, evaluates: bool = True, **options) -> list[int]:
    """Returns the number of graphs after each step. Evaluation compiles as many again."""
    trainer = make_trainer(folder, max_steps=STEPS, save_steps=3, **options)
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


def train_all_on_gpus(runs: dict[str, dict]) -> None:
    with acting_as_gpu():
        for folder, options in runs.items():
            AcceleratorState._reset_state(reset_partial_state=True)
            train(Path(folder), evaluates=False, **options)


def assert_same_run(folder: Path, expected: Path) -> None:
    ours, theirs = (json.loads((path / "report.json").read_text()) for path in (folder, expected))
    assert len(ours) == len(theirs) >= STEPS
    for line, expected_line in zip(ours, theirs, strict=True):
        assert line == pytest.approx(expected_line, rel=1e-5)
    weights, expected_weights = (load_file(path / "model.safetensors") for path in (folder, expected))
    assert weights.keys() == expected_weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected_weights[name], atol=2e-5, rtol=0, msg=name)


@pytest.mark.slow
def test_the_parts_that_a_gpu_compiles_fit_batches_of_all_sizes():
    """20 batches of random sizes, with dropout. Every fifth is compared with the eager model."""
    head = "ForPreTraining"
    eager, _ = ours_and_stock(head, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_hidden_layers=2)
    compiled = copy.deepcopy(eager.train())
    generator = torch.Generator().manual_seed(0)
    with acting_as_gpu():
        compile_model(compiled, backend="aot_eager")
        for step in range(20):
            size, length = (int(torch.randint(low, 12, (), generator=generator)) for low in (2, 9))
            inputs = pack(ragged_batch(head, batch=size, length=length))
            compared = step % 5 == 0
            losses = []
            with torch._dynamo.config.patch(error_on_recompile=step > 0):
                for model in (compiled, eager)[: 1 + compared]:
                    torch.manual_seed(step)
                    losses.append(model(**inputs).loss)
                    losses[-1].backward()
            if compared:
                torch.testing.assert_close(*losses)
                assert_same_gradients(compiled, eager)
            compiled.zero_grad(), eager.zero_grad()
    # Embeddings, layers, the shorter last layer, and the head with its loss.
    assert counters["stats"]["unique_graphs"] == 4 and not counters["graph_break"]


@pytest.mark.slow
def test_a_compiled_run_with_checkpointing_equals_an_eager_run(tmp_path):
    """With reentrant checkpointing. The other kind is below, under DDP."""
    graphs, options = {}, {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": True}}
    for name, compiled in (("eager", {}), ("compiled", COMPILED)):
        graphs[name] = train(tmp_path / name, evaluates=False, **options, **compiled)
    assert graphs["eager"] == [0] * STEPS and not counters["graph_break"]
    assert 2 <= graphs["compiled"][0] == graphs["compiled"][-1]
    assert_same_run(tmp_path / "compiled", tmp_path / "eager")


@pytest.mark.slow
def test_compiled_and_eager_runs_resume_each_other(tmp_path):
    """With accumulation. A resumed run with dropout is bit-identical to an uninterrupted one."""
    train(tmp_path / "eager", **SMALL_BATCHES)
    graphs = train(tmp_path / "compiled", **SMALL_BATCHES, **COMPILED)
    graphs += train(tmp_path / "eager-compiled", tmp_path / "eager/checkpoint-3", **SMALL_BATCHES, **COMPILED)
    # The layers and the shorter last layer, in training and then in evaluation. Other runs and batches add none.
    assert graphs == [2] * STEPS + [4] * (len(graphs) - STEPS) and not counters["graph_break"]
    train(tmp_path / "compiled-eager", tmp_path / "compiled/checkpoint-3", **SMALL_BATCHES)
    for name in ("compiled", "eager-compiled", "compiled-eager"):
        assert_same_run(tmp_path / name, tmp_path / "eager")
    compiled = COMPILED | {"dropout": 0.1, "evaluates": False}
    train(tmp_path / "dropout", **compiled)
    train(tmp_path / "resumed", tmp_path / "dropout/checkpoint-3", **compiled)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("dropout", "resumed")]
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_compiled_student_equals_an_eager_one(tmp_path):
    """The loss compares its hidden states with the hidden states of a teacher. The teacher is not compiled."""
    train(tmp_path / "eager", teacher=make_teacher(), evaluates=False)
    graphs = train(tmp_path / "compiled", teacher=make_teacher(), evaluates=False, **COMPILED)
    assert 1 <= graphs[0] == graphs[-1] <= 2 and not counters["graph_break"]
    assert_same_run(tmp_path / "compiled", tmp_path / "eager")


@pytest.mark.slow
def test_two_compiled_processes_equal_one_eager_process(tmp_path):
    """With and without checkpointing. All parts that a GPU compiles."""
    train(tmp_path / "one", evaluates=False)
    runs = {"ddp": TRACED, "checkpointing": TRACED | {CHECKPOINTING: True}}
    process = forked.run(
        train_all_on_gpus,
        {str(tmp_path / name): SMALL_BATCHES | options for name, options in runs.items()},
        processes=2,
    )
    assert process.returncode == 0, process.stderr
    for name in runs:
        assert_same_run(tmp_path / name, tmp_path / "one")


@pytest.mark.slow
def test_compiled_fine_tuning_equals_eager_fine_tuning(tmp_path):
    """Training and prediction, with a smaller last batch and a frozen layer. Heads of fine-tuning are not compiled."""
    head, results = "ForTokenClassification", []
    for compiled in ({}, COMPILED):
        model = new_model(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        options = {"per_device_train_batch_size": 7, "freeze_layers": 1, "num_train_epochs": 1}
        trainer = new_trainer(head, make_tokenizer(), tmp_path, model=model, **options, **compiled)
        trainer.train()
        results.append((model.state_dict(), trainer.predict(examples(head, 20)).predictions))
    assert counters["stats"]["unique_graphs"] >= 4 and not counters["graph_break"]
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_models_of_one_process_compile_all_their_graphs(tmp_path):
    """As in a sweep. The graphs of float32, autocast, a frozen layer and batches of one exceed torch's limit of 8."""
    graphs = []
    for options in ({}, {"freeze_layers": 1}, {"bf16": True}):
        model = new_model(HEADS[0], num_hidden_layers=3)
        options |= {"per_device_train_batch_size": 4, "num_train_epochs": 1}  # the last batch has one example
        trainer = new_trainer(
            HEADS[0], make_tokenizer(), tmp_path, examples(HEADS[0], 9), model=model, **options, **TRACED
        )
        trainer.train()
        trainer.predict(examples(HEADS[0], 9))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] < graphs[1] <= 8 < graphs[2]
