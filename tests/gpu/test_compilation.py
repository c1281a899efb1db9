"""Which parts of a model a trainer compiles, when it does so by default, and what it logs."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.constants import HF_HOME
from synthetic import make_pair, tiny_model
from torch._inductor.runtime.cache_dir_utils import cache_dir

import snugbert
from snugbert.gpu import compilation
from snugbert.gpu.compilation import COMPILE_PASSES, Compilation, compile_model
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer

# inductor uses functions of torch that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def list_compiled(model: torch.nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if module._compiled_call_impl is not None]


@pytest.mark.slow
def test_a_gpu_compiles_more_parts_than_a_cpu():
    layers = ["bert.encoder.layer.0", "bert.encoder.layer.1"]
    model = tiny_model()
    assert compile_model(model) == ["layers"]
    assert list_compiled(model) == layers
    parts = compile_model(model, device=CUDA)
    assert parts == ["layers", "embeddings", "masked token head"]
    assert list_compiled(model) == ["bert.embeddings", *layers, "cls"]
    assert compile_model(tiny_model(model=snugbert.SnugBertForNextSentencePrediction), device=CUDA) == parts[:2]
    pair = tiny_model(model=make_pair)
    assert compile_model(pair, device=CUDA) == parts and "generator.cls" in list_compiled(pair)
    assert compile_model(torch.nn.Linear(2, 2), device=CUDA) == []


def test_no_mode_uses_the_cuda_graphs_of_torch(monkeypatch):
    used = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: used.append(options["mode"]))
    for mode in (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        compile_model(tiny_model(model=snugbert.SnugBertModel), mode=mode)
    assert used[::2] == [None, "default", None, *["max-autotune-no-cudagraphs"] * 2]


@pytest.mark.parametrize("chosen", [None, "/tmp"])
def test_compiled_code_outlives_the_temporary_folder(chosen, monkeypatch):
    """It is beside the Hugging Face cache, unless the user chose another folder."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    if chosen:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", chosen)
    compile_model(tiny_model())
    assert cache_dir() == (chosen or str(Path(HF_HOME) / "snugbert/compiled"))


@pytest.mark.parametrize(
    ("trainer_class", "device", "chosen", "passes", "problem", "compiles", "line"),
    [
        (PretrainingTrainer, CUDA, None, 2, None, True, "compiling: layers, embeddings, masked token head."),
        (PretrainingTrainer, CUDA, None, 2, "Triton is missing.", False, "not compiled: Triton is missing."),
        (PretrainingTrainer, CUDA, False, 2, None, False, None),
        (PretrainingTrainer, CPU, None, 2, None, False, None),
        (FineTuningTrainer, CUDA, None, COMPILE_PASSES, None, True, "compiling: layers"),
        (FineTuningTrainer, CUDA, None, COMPILE_PASSES - 2, None, False, "not compiled: the run has 19,998 "),
        (FineTuningTrainer, CPU, True, 2, None, True, "compiling: layers. The first steps take longer"),
    ],
)
def test_when_runs_compile(trainer_class, device, chosen, passes, problem, compiles, line, monkeypatch, caplog):
    """A step has two passes here, because it accumulates two batches."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(compilation, "find_compiler_problem", lambda device: problem)
    args = SimpleNamespace(device=device, torch_compile=chosen, torch_compile_backend=None, torch_compile_mode=None)
    args.gradient_accumulation_steps = 2
    model = tiny_model()
    state = SimpleNamespace(global_step=0, max_steps=passes // 2)
    Compilation(trainer_class.passes_to_repay_compiling).on_train_begin(args, state, None, model=model)
    assert bool(list_compiled(model)) == compiles
    assert caplog.messages[0].startswith(line) if line else not caplog.messages
