"""Training and evaluation with CUDA graphs, recorded and replayed on a CPU."""

import logging

import pytest
import torch
from emulated_graphs import emulated_graphs
from finetuning_examples import examples, make_tokenizer, new_model, new_trainer
from safetensors.torch import load_file
from synthetic import CHECKPOINTING, make_trainer, without_times
from torch._dynamo.utils import counters

from snugbert.cli.device_arguments import DeviceArguments
from snugbert.gpu import cuda_graphs
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def count_graphs(caplog) -> int:
    return sum(line.startswith("CUDA graph ") for line in caplog.messages)


def test_pretraining(tmp_path, caplog):
    """With dropout, accumulation and evaluation. Weights and log are the same bits, also of a resumed run.

    The first half of the steps has no pairs.
    """
    options = {"max_steps": 12, "save_steps": 6, "eval_strategy": "steps", "eval_steps": 6, "dropout": 0.1}
    options |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "pad_to_multiple_of": 64}
    options |= {"per_device_eval_batch_size": 2, "steps_without_pairs": 6}
    runs = {"eager": (False, None), "graphs": (True, None), "resumed": (True, "graphs/checkpoint-6")}
    logs, counts = {}, {}
    caplog.set_level(logging.INFO, "snugbert")
    with emulated_graphs():
        for name, (graphs, checkpoint) in runs.items():
            caplog.clear()
            trainer = make_trainer(tmp_path / name, cuda_graphs=graphs, **options)
            trainer.train(None if checkpoint is None else str(tmp_path / checkpoint))
            trainer.save_model()
            logs[name] = without_times(trainer.state.log_history)
            counts[name] = count_graphs(caplog)
    # Each half and the evaluation have graphs.
    assert counts["eager"] == 0 and counts["graphs"] >= 3 and counts["resumed"] >= 2
    assert logs["graphs"] == logs["resumed"] == logs["eager"]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in runs]
    torch.testing.assert_close(weights[1], weights[0], atol=0, rtol=0)
    torch.testing.assert_close(weights[2], weights[1], atol=0, rtol=0)


@pytest.mark.skipif(
    torch.__version__ < "2.12",
    reason="compiled code of torch 2.11 reads dropout probabilities from the CPU, which looks like a wait here",
)
def test_a_compiled_step_in_graphs_equals_an_eager_step(tmp_path, caplog, new_compiler):
    """As on a GPU by default: layers, embeddings and head are compiled, rows filled, and batches accumulated."""
    options = {"max_steps": 8, "dropout": 0.1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    compiled = {"torch_compile": True, "torch_compile_backend": "aot_eager", "cuda_graphs": True}
    caplog.set_level(logging.INFO, "snugbert")
    weights = []
    with emulated_graphs():
        for extra in ({}, compiled):
            trainer = make_trainer(tmp_path, save_strategy="no", pad_to_multiple_of=64, **options, **extra)
            trainer.train()
            weights.append(trainer.model.state_dict())
    assert count_graphs(caplog) >= 1
    assert counters["stats"]["unique_graphs"] == 4 and not counters["graph_break"]
    torch.testing.assert_close(*weights, atol=1e-5, rtol=0)


def test_fine_tuning(tmp_path, caplog):
    """With dropout, a frozen layer, and a smaller last batch."""
    head = "ForQuestionAnswering"
    options = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_train_epochs": 2}
    options |= {"freeze_layers": 1, "pad_to_multiple_of": 128}
    results = []
    caplog.set_level(logging.INFO, "snugbert")
    with emulated_graphs():
        for graphs in (False, True):
            model = new_model(head, **DROPOUT)
            data = examples(head, 22)
            trainer = new_trainer(head, make_tokenizer(), tmp_path, data, model=model, cuda_graphs=graphs, **options)
            trainer.train()
            predictions = trainer.predict(examples(head, 19, seed=1)).predictions
            results.append((without_times(trainer.state.log_history), model.state_dict(), predictions))
    assert count_graphs(caplog) >= 2  # training, evaluation
    torch.testing.assert_close(results[1][1:], results[0][1:], atol=0, rtol=0)
    assert results[1][0] == results[0][0]


def test_checkpointing_runs_without_graphs(tmp_path, caplog):
    caplog.set_level(logging.INFO, "snugbert")
    with emulated_graphs():
        make_trainer(tmp_path, cuda_graphs=True, max_steps=4, pad_to_multiple_of=128, **{CHECKPOINTING: True}).train()
    lines = [line for line in caplog.messages if line.startswith("CUDA graph")]
    assert len(lines) == 1 and "off, because gradient checkpointing reads the random state" in lines[0]


class OwnLoss(PretrainingTrainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) * (1 + self.state.global_step)


def test_own_code_may_depend_on_more_than_the_batch(tmp_path, caplog, monkeypatch):
    """By default, it runs without graphs on a GPU. `cuda_graphs=True` says that it depends on the batch only."""
    monkeypatch.setattr(DeviceArguments, "uses_cuda", True)
    monkeypatch.setattr(cuda_graphs, "are_on_gpu", lambda tensors: True)
    caplog.set_level(logging.INFO, "snugbert")
    like = make_trainer(tmp_path, max_steps=2, torch_compile=False, pad_to_multiple_of=128)
    options = {"model": like.model, "args": like.args, "train_dataset": like.train_dataset}
    for trainer_class, setting, expected in (
        (OwnLoss, None, False),
        (OwnLoss, True, True),
        (PretrainingTrainer, None, True),
        (PretrainingTrainer, False, False),
    ):
        caplog.clear()
        like.args.cuda_graphs = setting
        trainer = trainer_class(data_collator=like.data_collator.collate, **options)
        assert trainer.graphs.are_used() == expected
        assert caplog.text.count(" may depend on more than the batch") == (setting is None and not expected)
