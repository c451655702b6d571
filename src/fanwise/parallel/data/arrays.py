"""Arrays of JAX, TensorFlow and NumPy as data and in batches: read and cut as torch tensors over the same memory.

    data of torch, NumPy        batches of torch tensors
    data of JAX, TensorFlow     batches of their arrays

A step of a functional model turns either into arrays of its own engine.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from ...tensor.engines import engine_of, is_array_type
from ...tensor.exchange import convert

_NO_NUMBERS = "OSUMm"  # of NumPy: objects, texts and times, which are samples as any others


def is_array(value: object) -> bool:
    """Whether it is an array of numbers, of any engine."""
    return is_array_type(type(value)) and getattr(getattr(value, "dtype", None), "kind", "f") not in _NO_NUMBERS


def in_torch(content: Any) -> Any:  # Any: a tree of arrays, of the user's own making
    """The same tree with torch tensors in place of arrays of other engines, over the same memory; for reading."""
    if is_array(content):
        return tensor_of(content)
    if isinstance(content, Mapping):
        return {name: in_torch(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return (
            type(content)(map(in_torch, content)) if type(content) in (list, tuple) else tuple(map(in_torch, content))
        )
    return content


def tensor_of(array: Any) -> Tensor:  # Any: an array of any engine
    """The array itself, or a tensor over its memory, or over a copy where that cannot be; for reading.

    In main memory, but for a tensor that lies elsewhere.
    """
    if isinstance(array, Tensor):
        return array
    made: Tensor
    with suppress(ValueError):
        made = convert(array, "torch", copy=False)
        return made.cpu()
    made = convert(array, "torch")  # it is read-only, say, or on an accelerator that torch cannot use
    return made.cpu()


def as_data(arrays: Sequence[Any]) -> tuple[list[Tensor], list[str]]:  # Any: arrays of any engine
    """Tensors over their memory, and the engine in which their rows are given out."""
    engines = [engine_of(array) for array in arrays]
    return [tensor_of(array) for array in arrays], ["torch" if name == "numpy" else name for name in engines]


def given_out(rows: Tensor, engine: str) -> Any:  # Any: an array of the engine
    """Rows that were read into memory of their own, as an array of the engine over it."""
    if engine == "torch":
        return rows
    with suppress(ValueError):
        return convert(rows, engine, copy=False)
    return convert(rows, engine)
