"""The gradients of a model as views of one tensor: CUDA graphs write them, and one all-reduce averages them."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

# Each gradient starts at a multiple of 256 bytes in float32, as torch's own tensors do, for wide reads and writes.
ALIGNMENT = 64


class FlatGradients:
    """A place for the gradient of each trainable parameter, allocated at the first use. All have the same dtype."""

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self._parameters = list(parameters)
        self.free()

    def free(self) -> None:
        """Frees the memory unless a gradient still uses it."""
        self._places: dict[nn.Parameter, torch.Tensor] = {}
        self._flat = torch.empty(0)

    def find_places(self) -> dict[nn.Parameter, torch.Tensor]:
        """Returns the place of each gradient. Places move if the set of trained parameters changes."""
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        if self._places.keys() != set(trained):
            sizes = [-(-parameter.numel() // ALIGNMENT) * ALIGNMENT for parameter in trained]
            self._flat = trained[0].new_zeros(sum(sizes) + ALIGNMENT)  # the end: for the numbers of `average`
            parts = zip(trained, self._flat.split([*sizes, ALIGNMENT]), strict=False)
            self._places = {each: part[: each.numel()].view_as(each) for each, part in parts}
        return self._places

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
        """Averages all gradients over the processes, and also `numbers` (K,), with one all-reduce. Returns `numbers`.

        Gradients that are None remain None, because all processes train the same weights in a step.
        """
        places = self.find_places()
        unused = [parameter for parameter in places if parameter.grad is None]
        self.attach(places)
        for parameter in unused:
            parameter.grad = None
        averages = self._flat[-ALIGNMENT:][: len(numbers)]
        averages.copy_(numbers)
        divides = dist.get_backend() == "nccl"  # other backends only add
        dist.all_reduce(self._flat, dist.ReduceOp.AVG if divides else dist.ReduceOp.SUM)
        if not divides:
            self._flat.div_(dist.get_world_size())
        return averages.clone()
