"""Frozen dataclasses that are fast to create, for events and actions."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_Class]) -> type[_Class]:
    """Return a slotted, hashable dataclass that is frozen for the type checker only.

    `dataclass(frozen=True)` sets each field through `object.__setattr__`, which makes creation four times slower. A
    search creates several objects per report.

    >>> @frozen
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> Point(1.0) == Point(1.0, 0.0), {Point(1.0): "a key"}
    (True, {Point(x=1.0, y=0.0): 'a key'})
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
