"""Training and evaluation with CUDA graphs, recorded and replayed on a CPU."""

import logging

import pytest
import torch
from emulated_graphs import emulated_graphs
from finetuning_examples import HEADS, examples, make_tokenizer, new_model, new_trainer
from safetensors.torch import load_file
from synthetic import make_trainer

from snugbert import cuda_graphs
from snugbert.trainers.pretraining.arguments import PretrainingArguments

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
TIMES = ("runtime", "per_second")
# transformers 5.23 renamed it; 5.17 has the old name only.
FIELDS = PretrainingArguments.__dataclass_fields__
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in FIELDS else "gradient_checkpointing"


def read_numbers(trainer) -> list[dict]:
    """Returns the log without times."""
    return [{name: line[name] for name in line if not name.endswith(TIMES)} for line in trainer.state.log_history]


def count_graphs(caplog) -> int:
    return sum(line.startswith("CUDA graph ") for line in caplog.messages)


def test_pretraining(tmp_path, caplog):
    """With dropout, accumulation and evaluation. Weights and log are the same bits, also of a resumed run."""
    options = {"max_steps": 12, "save_steps": 6, "eval_strategy": "steps", "eval_steps": 4, "dropout": 0.1}
    options |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "pad_to_multiple_of": 64}
    options |= {"per_device_eval_batch_size": 2}
    runs = {"eager": (False, None), "graphs": (True, None), "resumed": (True, "graphs/checkpoint-6")}
    logs = {}
    caplog.set_level(logging.INFO, "snugbert")
    with emulated_graphs():
        for name, (graphs, checkpoint) in runs.items():
            caplog.clear()
            trainer = make_trainer(tmp_path / name, cuda_graphs=graphs, **options)
            trainer.train(None if checkpoint is None else str(tmp_path / checkpoint))
            trainer.save_model()
            logs[name] = read_numbers(trainer)
            assert (count_graphs(caplog) >= 2) == graphs  # of training and of evaluation
    assert logs["graphs"] == logs["resumed"] == logs["eager"]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in runs]
    torch.testing.assert_close(weights[1], weights[0], atol=0, rtol=0)
    torch.testing.assert_close(weights[2], weights[1], atol=0, rtol=0)


@pytest.mark.parametrize("head", HEADS)
def test_fine_tuning(head, tmp_path, caplog):
    """With dropout, a frozen layer that is unfrozen later, and a smaller last batch."""
    options = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_train_epochs": 3}
    options |= {"freeze_layers": 1, "unfreeze_after_steps": 14, "pad_to_multiple_of": 128}
    results = []
    caplog.set_level(logging.INFO, "snugbert")
    with emulated_graphs():
        for graphs in (False, True):
            model = new_model(head, **DROPOUT)
            data = examples(head, 42)
            trainer = new_trainer(head, make_tokenizer(), tmp_path, data, model=model, cuda_graphs=graphs, **options)
            trainer.train()
            predictions = trainer.predict(examples(head, 27, seed=1)).predictions
            results.append((read_numbers(trainer), model.state_dict(), predictions))
    assert count_graphs(caplog) >= 3  # frozen, unfrozen, evaluation
    torch.testing.assert_close(results[1][1:], results[0][1:], atol=0, rtol=0)
    assert results[1][0] == results[0][0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({CHECKPOINTING: True}, "gradient checkpointing reads the random state"),
        ({"torch_empty_cache_steps": 1}, "--torch_empty_cache_steps frees memory"),
        ({"pad_to_multiple_of": 0}, "hardly two batches have the same size"),
    ],
    ids=["checkpointing", "cache", "sizes"],
)
def test_reasons_against_graphs(options, reason, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST_SIZES", 3)
    caplog.set_level(logging.INFO, "snugbert")
    with emulated_graphs():
        make_trainer(tmp_path, cuda_graphs=True, max_steps=8, **{"pad_to_multiple_of": 128, **options}).train()
    lines = [line for line in caplog.messages if line.startswith("CUDA graph")]
    assert len(lines) == 1 and lines[0].startswith(f"CUDA graphs: off, because {reason}")
