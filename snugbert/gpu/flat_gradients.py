"""The gradients of a model as views of one tensor: CUDA graphs write them, and one all-reduce averages them."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

# Each gradient starts at a multiple of 256 bytes in float32, as torch's own tensors do, for wide reads and writes.
ALIGNMENT = 64


class FlatGradients:
    """A place for the gradient of each trainable parameter. It is allocated when it is first used.

    Parameters of one dtype share a tensor. The places change if other parameters are trained.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self._parameters = list(parameters)
        self.free()

    def free(self) -> None:
        """Frees the memory, as far as no gradient uses it."""
        self._views: dict[nn.Parameter, torch.Tensor] = {}
        self._tensors: list[torch.Tensor] = []

    def find_places(self) -> dict[nn.Parameter, torch.Tensor]:
        """Returns the place of each trainable parameter's gradient."""
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        if self._views.keys() != set(trained):
            self.free()
            for dtype in dict.fromkeys(parameter.dtype for parameter in trained):
                self._allocate([parameter for parameter in trained if parameter.dtype == dtype])
        return self._views

    def _allocate(self, parameters: list[nn.Parameter]) -> None:
        sizes = [-(-parameter.numel() // ALIGNMENT) * ALIGNMENT for parameter in parameters]
        self._tensors.append(parameters[0].new_zeros(sum(sizes) + ALIGNMENT))  # at the end: numbers of `average`
        for parameter, part in zip(parameters, self._tensors[-1].split([*sizes, ALIGNMENT]), strict=False):
            self._views[parameter] = part[: parameter.numel()].view_as(parameter)

    def attach(self, parameters: Iterable[nn.Parameter]) -> None:
        """Moves the gradients of trainable `parameters` to their places. None becomes zero."""
        places = self.find_places()
        zeroed, copied, sources = [], [], []
        for parameter in parameters:
            place, gradient = places[parameter], parameter.grad
            if gradient is None:
                zeroed.append(place)
            elif gradient is not place:
                copied.append(place)
                sources.append(gradient)
            parameter.grad = place
        if zeroed:
            torch._foreach_zero_(zeroed)
        if copied:
            torch._foreach_copy_(copied, sources)

    @torch.no_grad()
    def average(self, numbers: torch.Tensor) -> torch.Tensor:
        """Averages all gradients over the processes, and also `numbers`, with one all-reduce for each dtype.

        A gradient that is None in all processes stays None.

        Args:
            numbers: further numbers of this process. *Shape:* (K,)

        Returns:
            Their averages, and whether the processes have gradients of different numbers of parameters, which would
            make their weights differ. *Shape:* (K,), ()
        """
        places = self.find_places()
        used = [parameter for parameter in places if parameter.grad is not None]
        self.attach(used)
        if unused := [place for parameter, place in places.items() if parameter.grad is None]:
            torch._foreach_zero_(unused)
        numbers = torch.cat([numbers, numbers.new_full((1,), len(used))])
        averages = self._tensors[0][-ALIGNMENT:][: len(numbers)]
        averages.copy_(numbers)
        uses_gloo = dist.get_backend() == "gloo"  # it has no AVG
        for tensor in self._tensors:
            dist.all_reduce(tensor, dist.ReduceOp.SUM if uses_gloo else dist.ReduceOp.AVG)
            if uses_gloo:
                tensor.div_(dist.get_world_size())
        return averages[:-1].clone(), (averages[-1] - len(used)).abs() > 1e-3  # more than rounding
