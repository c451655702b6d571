"""numpy arrays in the collectives: written to in place, on the one device there is."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .engines import Span

_Array = np.ndarray[Any, Any]  # Any: shape and element type are known only when it runs


def refusal(x: object) -> str:
    if not isinstance(x, np.ndarray):
        return "is a numpy scalar, which is no array: give np.array(x)"
    return "is masked: give x.filled(0)" if isinstance(x, np.ma.MaskedArray) else ""


def why_fixed(x: _Array) -> str:
    return "" if x.flags.writeable else "is read-only: give x.copy()"


def span(x: _Array) -> Span | None:
    start = x.__array_interface__["data"][0]
    return Span("cpu", start, start + (x.nbytes if x.flags.c_contiguous else 1)) if x.size else None


def dtype(x: _Array) -> str:
    return str(x.dtype)


def near(x: _Array, like: _Array) -> _Array:
    return x


def copied(x: _Array, like: _Array) -> _Array:
    return x.copy()


def added(x: _Array, y: _Array) -> _Array:
    x += y
    return x


def stored(x: _Array, value: _Array) -> _Array:
    if value is not x:
        x[...] = value
    return x


def slices(x: _Array, ranges: Sequence[range]) -> list[_Array]:
    flat = np.asarray(x).reshape(-1)
    return [flat[part.start : part.stop] for part in ranges]


def rebuilt(x: _Array, slices: list[_Array]) -> _Array:
    if not x.flags.c_contiguous:
        x[...] = np.concatenate(slices).reshape(x.shape)
    return x


def rows(x: _Array, ranges: Sequence[range]) -> list[_Array]:
    return [x[part.start : part.stop] for part in ranges]


def joined(parts: list[_Array]) -> _Array:
    return np.concatenate(parts)


def replica(x: _Array, device: str) -> _Array:
    return np.array(x, order="K", copy=True, subok=True)


def placed(x: _Array, device: str) -> _Array:
    return x
