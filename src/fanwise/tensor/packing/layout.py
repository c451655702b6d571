"""Where each leaf of a tree lies in a buffer: a quiet file, of shapes and numbers alone.

    | leaf 0 . . . 0 0 | leaf 1 . 0 0 0 | leaf 3 . . . . . . . . |     0: padding, always zero
      offset 0           offset 16        offset 32                leaf 2 has no elements

Every leaf begins at a multiple of `align_elements`, and the buffer's length is one.
"""

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..trees import TreeSpec

Shape = tuple[int, ...]


# A named tuple and not a dataclass: there may be hundreds, and a frozen dataclass costs 1 us to make.
class PackedLeaf(NamedTuple):
    """One leaf: elements `offset` to `offset + size` of the buffer, in C order.

    `dtype` is what it has outside of the buffer. `number` is "bool", "int", "float" or "complex" for a Python
    number, and empty for an array.
    """

    shape: Shape
    dtype: str
    offset: int
    size: int
    number: str = ""


@dataclass(frozen=True, slots=True)
class PackSpec:
    """What `unpack` needs beside the buffer. Can be compared, hashed and pickled; holds no array.

    `size` is the buffer's length in elements, `dtype` their type. `leaves` are in optree's order: of a dict by
    sorted keys.
    """

    tree: "TreeSpec"
    leaves: tuple[PackedLeaf, ...]
    dtype: str
    size: int
    align_elements: int


# A training packs the same tree at every step.
@functools.lru_cache(maxsize=256)
def laid_out(leaves: tuple[tuple[Shape, str, str], ...], align_elements: int) -> tuple[tuple[PackedLeaf, ...], int]:
    """The places of leaves, given as (shape, dtype, number), and the size of the buffer in elements."""
    placed, end = [], 0
    for shape, dtype, number in leaves:
        size = math.prod(shape)
        placed.append(PackedLeaf(shape, dtype, end, size, number))
        end += -(-size // align_elements) * align_elements
    return tuple(placed), end


@functools.lru_cache(maxsize=256)
def gaps(leaves: tuple[PackedLeaf, ...], size: int) -> list[int]:
    """How many elements of padding follow each leaf."""
    ends = [leaf.offset for leaf in leaves[1:]] + [size]
    return [end - leaf.offset - leaf.size for leaf, end in zip(leaves, ends, strict=False)]


def as_python(found: bool | int | float | complex, number: str) -> bool | int | float | complex:
    """What a buffer holds for a Python number, as a number of that kind again; integers are cut, not rounded."""
    if isinstance(found, complex):
        return found if number == "complex" else as_python(found.real, number)
    kinds: dict[str, Any] = {"bool": bool, "int": int, "float": float, "complex": complex}  # Any: those four
    made: bool | int | float | complex = kinds[number](found)
    return made
