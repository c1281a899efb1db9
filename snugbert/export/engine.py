"""The dtypes of exported models. Each engine is a module with the functions `describe`, `write` and `load`."""

from typing import Literal

Dtype = Literal["float32", "float16", "int8"]
