"""Words for memory on its way between engines. A quiet file; loads no engine.

    with_<a>.handed_out(x) --> Hold: a numpy array over the memory, and who else holds that --> with_<b>.taken_in(hold)

Whether the taker may share depends on the giver, so each engine tells what it knows and none knows another.
"""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy

# mutable: the giver's memory, and somebody may write to it. immutable: the giver's, and nobody ever will.
# private: made for this conversion, nobody else has it.
Kind = Literal["mutable", "immutable", "private"]


# A numpy array over an array's elements, and what may happen to its memory. A bare pair: a NamedTuple of the two
# takes 0.2 us to make. Any: shape and element type are known only when it runs.
Hold = tuple["numpy.ndarray[Any, Any]", Kind]


class Place(NamedTuple):
    """Where the elements of an array lie."""

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    size_bytes: int  # of one element


class Exchanger(Protocol):
    """What a `with_<engine>` file offers. `copy` is as in `convert`."""

    def handed_out(self, x: Any, copy: bool | None) -> Hold: ...  # Any: an array of the engine, here and below

    def taken_in(self, hold: Hold, copy: bool | None) -> Any: ...

    def copied(self, x: Any) -> Any: ...

    def place_of(self, x: Any) -> Place: ...


def cannot_share(source: str, why: str) -> ValueError:
    """The error for copy=False where a copy is needed."""
    return ValueError(f"{source} cannot be converted without a copy: {why}. Leave copy out, or give copy=True.")


def no_such_type(engine: str, name: str, hint: str) -> TypeError:
    """The error for an element type that the other engine lacks."""
    return TypeError(f"{engine} has no element type {name}. Change it first: {hint}.")
