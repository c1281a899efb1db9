"""Stand-in until branch compile is merged."""

from argparse import Namespace

from torch import nn

from snugbert.trainers.shared_trainer import compile_layers


def compile_model(model: nn.Module, backend: str = "inductor", mode: str | None = None) -> None:
    """Compiles the layers."""
    compile_layers(model, Namespace(torch_compile_backend=backend, torch_compile_mode=mode))  # type: ignore[arg-type]
