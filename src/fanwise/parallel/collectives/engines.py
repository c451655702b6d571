"""What the collectives need of an engine, and which file has it: the seam between orders of additions and arrays.

    reducing, spreading, copying --Engine--> with_torch | with_numpy | with_jax | with_tensorflow

An engine's file moves, adds and stores arrays; it knows no list of devices and no order. No array of two devices is
ever given to one operation but `near`, `copied` and `stored`, which copy between devices.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

Array = Any  # An array of whichever engine; they have no type in common.


class Span(NamedTuple):
    """Memory that an array may be written to: addresses `start` to before `stop` on one device."""

    device: object
    start: int
    stop: int


class Engine(Protocol):
    """What a `with_<engine>` file offers, in two halves: facts of an array, and what is done to arrays."""

    def refusal(self, x: Array) -> str:
        """Why x can take no part, as the end of "tensor 2 ..."; empty if it can."""

    def why_fixed(self, x: Array) -> str:
        """Why x cannot be written to, the same way; empty if it can, and for constants: new ones take their place."""

    def span(self, x: Array) -> Span | None:
        """Its memory; None if nobody can write to it, or there is none. Of spread out elements the first alone."""

    def dtype(self, x: Array) -> str: ...

    def near(self, x: Array, like: Array) -> Array:
        """x on the device of `like`: x itself if it is there."""

    def copied(self, x: Array, like: Array) -> Array:
        """A copy of x on the device of `like`, in memory of its own where it could be written to."""

    def added(self, x: Array, y: Array) -> Array:
        """x + y, on their one device: in x where it can be written to, else a new array."""

    def stored(self, x: Array, value: Array) -> Array:
        """x with the elements of `value`: x itself where it can be written to, else `value` on the device of x."""

    def slices(self, x: Array, ranges: Sequence[range]) -> list[Array]:
        """Ranges of the elements in C order, each of one axis: views, unless x lies spread out or is a constant."""

    def rebuilt(self, x: Array, slices: list[Array]) -> Array:
        """x, of whose elements `slices` were made and then stored to; a new array of its shape for constants."""

    def rows(self, x: Array, ranges: Sequence[range]) -> list[Array]:
        """Ranges of x along its first axis, where x lies: views, of what can be written to."""

    def joined(self, parts: list[Array]) -> Array:
        """A new array of parts of one device, side by side along the first axis."""

    def replica(self, x: Array, device: str) -> Array:
        """An independent copy of x on a device, of the same kind."""

    def placed(self, x: Array, device: str) -> Array:
        """x on a device: x itself if it is there."""


_files: dict[str, Engine] = {}


def engine_file(name: str) -> Engine:
    """What serves the engine of that name."""
    if name not in _files:
        _files[name] = cast(Engine, importlib.import_module(f".with_{name}", __package__))
    return _files[name]
