"""What is asked of a list of arrays before anything is copied: so a wrong list changes nothing.

Every message names the entry of the list that does not fit, and the one it does not fit to.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ...tensor import engine_of
from ...tensor.engines import is_array_type
from ...tensor.placement import find_device
from .engines import Array, Engine, engine_file

_NO_GRADIENT = "is None: the .grad of a parameter that no loss used; leave such parameters out"


def checked_list(tensors: Sequence[Array], function: str) -> tuple[list[Array], Engine]:
    """The arrays, one a device and all of one engine and element type, and the file that serves them.

    Raises:
        TypeError: no list, no arrays, or arrays that differ in more than their values and shapes.
        ValueError: an empty list.
    """
    if is_array_type(type(tensors)) or not isinstance(tensors, Sequence) or isinstance(tensors, str):
        raise TypeError(f"{function} takes a list of arrays, one a device, got {_kind(tensors)}")
    if not tensors:
        raise ValueError(f"{function} takes a list of arrays, one a device, got an empty one")
    _refuse(tensors, lambda x: _NO_GRADIENT if x is None else "")
    names = [engine_of(x) for x in tensors]
    _check_equal("is an array of", names)
    engine = engine_file(names[0])
    _refuse(tensors, engine.refusal)
    _check_equal("has the type", [engine.dtype(x) for x in tensors])
    return list(tensors), engine


def check_sums(tensors: list[Array], engine: Engine) -> None:
    """That arrays can be added: one shape, and numbers.

    Raises:
        TypeError: they are bool.
        ValueError: shapes differ.
    """
    check_shapes(tensors)
    if engine.dtype(tensors[0]) == "bool":
        raise TypeError("a sum of bool counts nothing: convert to an integer type first")


def check_shapes(tensors: list[Array]) -> None:
    """Raises ValueError when shapes differ."""
    _check_equal("has the shape", [tuple(x.shape) for x in tensors], error=ValueError)


def check_first_axis(tensors: list[Array], function: str) -> None:
    """Raises ValueError when an array has no axis to cut or join along."""
    for place, x in enumerate(tensors):
        if not x.shape:
            raise ValueError(f"tensor {place} has no axis; {function} needs one, and x.reshape(1) has it")


def check_writable(tensors: list[Array], engine: Engine) -> None:
    """That arrays can be written to, and no two share memory: that would be written over while it is read.

    Raises:
        TypeError: one cannot be written to.
        ValueError: two do. Of arrays whose elements lie spread out only those that begin at one place are found.
    """
    _refuse(tensors, engine.why_fixed)
    spans = [(span, place) for place, x in enumerate(tensors) if (span := engine.span(x)) is not None]
    spans.sort(key=lambda found: (str(found[0].device), found[0].start))
    for (left, one), (right, other) in itertools.pairwise(spans):
        if left.device == right.device and right.start < left.stop:
            first, second = sorted((one, other))
            raise ValueError(
                f"tensors {first} and {second} share memory, so one would be overwritten while the other is read. "
                f"Each device needs its own: fanwise.parallel.replicate makes copies, x.to(device) does not always"
            )


def check_devices(devices: Sequence[object]) -> list[object]:
    """The devices as a list.

    Raises:
        TypeError: no list.
        ValueError: an empty one.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(f'devices is a list of names, as ["cpu"] * 2 or ["cuda:0", "cuda:1"], got {devices!r}')
    if not devices:
        raise ValueError("devices is empty, at least one is needed: fanwise.tensor.devices() lists what there is")
    return list(devices)


def found_devices(engine: str, devices: list[object]) -> list[str]:
    """Their full names for an engine.

    Raises:
        ValueError: one does not exist; the message says which do.
    """
    return [find_device(engine, device) for device in devices]


def _refuse(tensors: Sequence[Array], why: Callable[[Array], str]) -> None:
    for place, x in enumerate(tensors):
        reason = why(x)
        if reason:
            raise TypeError(f"tensor {place} {reason}")


def _check_equal(what: str, facts: list[Any], error: type[Exception] = TypeError) -> None:  # Any: what can be compared
    for place, fact in enumerate(facts):
        if fact != facts[0]:
            raise error(f"tensor {place} {what} {fact}, tensor 0 {what} {facts[0]}: all have to be alike")


def _kind(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"
