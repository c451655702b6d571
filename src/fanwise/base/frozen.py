"""Frozen dataclasses that are made by the million: facts, orders, rows.

`dataclass(frozen=True)` sets every field by a call of `object.__setattr__`: making one of five fields takes four times
as long as without, and a search makes several for each report. Here the type checker alone keeps them frozen; all else
is as with `dataclass(frozen=True, slots=True)`.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(made: type[_Class]) -> type[_Class]:
    """A slotted dataclass that nobody changes.

    >>> @frozen
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> Point(1.0) == Point(1.0, 0.0), {Point(1.0): "a key"}
    (True, {Point(x=1.0, y=0.0): 'a key'})
    """
    return dataclass(slots=True, unsafe_hash=True)(made)
