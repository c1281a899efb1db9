"""Stand-in until branch graphs is merged."""

from collections.abc import Callable
from typing import Any


class CudaGraphs:
    """Runs the function."""

    count = 0

    def __init__(self, function: Callable[[dict[str, Any]], Any], model: Any):
        self._function = function

    def __call__(self, batch: dict[str, Any]) -> Any:
        """Returns the result of the function."""
        return self._function(batch)
