"""Categories: a list of values, without an order (choice) or with one (ordinal). Quiet.

A category may be any Python object. A domain, and everything that draws, compares or records configurations, works with
its name: the value itself where it is text, a number, a boolean or None, otherwise a text such as "relu" or "[64, 64]".
`Space.with_objects` puts the objects in the places of their names, just before a configuration goes to the objective.
"""

import itertools
import numbers
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias, final

from ...base.nearest import did_you_mean
from ..values import copy_containers, is_number, is_switch, name_of, plain_json
from .bits import ONE, log2
from .bounds import Value, check_unit, middle_of_share, not_inside, share_at

OrdinalKind: TypeAlias = Literal["equal", "nn", "nn-log"]
_KINDS = ("equal", "nn", "nn-log")


@final
@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """One of a few values, all equally likely and without an order. Made by `choice`."""

    categories: tuple[Value, ...]
    object_positions: tuple[int, ...] = ()  # categories that are names of objects
    objects: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)  # None: read from JSON
    _positions: dict[object, int] = field(init=False, repr=False, compare=False)
    made_by: ClassVar[str] = "choice"
    ordered: ClassVar[bool] = False

    def __post_init__(self) -> None:
        values, positions = _read("choice", self.categories)
        object.__setattr__(self, "categories", values)  # frozen for everybody else
        object.__setattr__(self, "_positions", positions)

    def __repr__(self) -> str:
        return f"choice([{_shown(self)}])"

    def settings(self) -> dict[str, object]:
        return {"categories": list(self.categories), **_object_settings(self)}

    @property
    def num_values(self) -> int:
        return len(self.categories)

    @property
    def num_features(self) -> int:
        return len(self.categories)

    def value_at(self, index: int) -> Value:
        return self.categories[index]

    def index_of(self, value: object) -> int:
        return _position(self, value)

    def from_unit(self, u: float) -> Value:
        return self.categories[share_at(u, len(self.categories))]

    def to_unit(self, value: object) -> float:
        return middle_of_share(self.index_of(value), len(self.categories))

    def contains(self, value: object) -> bool:
        return _known(self, value) is not None

    def plain(self, value: object) -> Value:
        return self.categories[self.index_of(value)]


@final
@dataclass(frozen=True, slots=True, repr=False)
class Ordinal:
    """One of a few values in order. Made by `ordinal` and `logordinal`.

    With the kind "equal" all are equally likely. With "nn" a value is as likely as that it is the nearest one to a
    uniform number between the smallest and the largest (and half a mean distance beyond); "nn-log" does this with
    logarithms.
    """

    categories: tuple[Value, ...]
    kind: OrdinalKind
    object_positions: tuple[int, ...] = ()  # categories that are names of objects
    objects: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)  # None: read from JSON
    _positions: dict[object, int] = field(init=False, repr=False, compare=False)
    _edges: tuple[float, ...] = field(init=False, repr=False, compare=False)  # between the shares
    made_by: ClassVar[str] = "ordinal"
    ordered: ClassVar[bool] = True
    num_features: ClassVar[int] = 1

    def __post_init__(self) -> None:
        values, positions = _read("ordinal", self.categories)
        if self.kind not in _KINDS:
            raise ValueError(f"ordinal: {self.kind!r} is not a kind{did_you_mean(self.kind, _KINDS)}")
        object.__setattr__(self, "categories", values)  # frozen for everybody else
        object.__setattr__(self, "_positions", positions)
        object.__setattr__(self, "_edges", self._make_edges(values) if self.kind != "equal" else ())

    def _make_edges(self, values: Sequence[Value]) -> tuple[float, ...]:
        numbers_of = [Fraction(value) for value in values if is_number(value)]
        if len(numbers_of) != len(values) or not is_increasing(values):
            raise ValueError(f"ordinal: kind {self.kind!r} needs increasing numbers, got {list(values)!r}; use 'equal'")
        if self.kind == "nn-log":
            if numbers_of[0] <= 0:
                raise ValueError(f"ordinal: kind 'nn-log' needs numbers above 0, got {values[0]!r}; use 'nn'")
            numbers_of = [Fraction(log2(float(value)), ONE) for value in numbers_of]
        if len(values) == 1:
            return ()
        margin = (numbers_of[-1] - numbers_of[0]) / (2 * (len(values) - 1))
        lower, width = numbers_of[0] - margin, numbers_of[-1] - numbers_of[0] + 2 * margin
        middles = ((a + b) / 2 for a, b in itertools.pairwise(numbers_of))
        edges = tuple(float((middle - lower) / width) for middle in middles)
        if not is_increasing((0.0, *edges, 1.0)):
            raise ValueError(f"ordinal: the shares of {list(values)!r} cannot be told apart; use kind 'equal'")
        return edges

    def __repr__(self) -> str:
        return f"ordinal([{_shown(self)}], kind={self.kind!r})"

    def settings(self) -> dict[str, object]:
        return {"categories": list(self.categories), "kind": self.kind, **_object_settings(self)}

    @property
    def edges(self) -> tuple[float, ...]:
        """Where one value's share of [0, 1) ends and the next one's begins; none: all shares are equal."""
        return self._edges

    @property
    def num_values(self) -> int:
        return len(self.categories)

    def value_at(self, index: int) -> Value:
        return self.categories[index]

    def index_of(self, value: object) -> int:
        return _position(self, value)

    def from_unit(self, u: float) -> Value:
        if self._edges:
            return self.categories[bisect_right(self._edges, check_unit(u))]
        return self.categories[share_at(u, len(self.categories))]

    def to_unit(self, value: object) -> float:
        index = self.index_of(value)
        if not self._edges:
            return middle_of_share(index, len(self.categories))
        shares = (0.0, *self._edges, 1.0)
        return (shares[index] + shares[index + 1]) / 2

    def contains(self, value: object) -> bool:
        return _known(self, value) is not None

    def plain(self, value: object) -> Value:
        return self.categories[self.index_of(value)]


def is_increasing(values: Sequence[object]) -> bool:
    """Whether they are numbers, each above the one before it."""
    return all(map(is_number, values)) and all(a < b for a, b in itertools.pairwise(values))  # type: ignore[operator]


def named(made_by: str, given: object) -> tuple[Any, tuple[int, ...], tuple[Any, ...]]:
    """Return the categories with names for objects, the positions of the objects, and the objects.

    Names that are equal get the position: "<lambda>#0", "<lambda>#1".

    Raises:
        ValueError: an object is there twice.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        return given, (), ()  # refused by the domain
    positions = tuple(index for index, value in enumerate(given) if not _is_plain(value))
    objects = tuple(copy_containers(given[index]) for index in positions)
    names = [name_of(value) for value in objects]
    for (one, name), (other, same) in itertools.combinations(zip(objects, names, strict=True), 2):
        if name == same and _is_same(one, other):
            raise ValueError(f"{made_by} has {name} twice; say each category once")
    categories = list(given)
    taken = [*names, *(value for index, value in enumerate(given) if index not in positions)]
    for index, name in zip(positions, names, strict=True):
        categories[index] = name if taken.count(name) == 1 else f"{name}#{index}"
    return tuple(categories), positions, objects


def objects_of(domain: Choice | Ordinal) -> dict[Value, Any]:
    """Return the objects by their names.

    Raises:
        ValueError: the domain was read from a record, which has names only.
    """
    if domain.object_positions and domain.objects is None:
        raise ValueError(f"{domain!r} was read from a record, which has only the names of its objects")
    names = [domain.categories[index] for index in domain.object_positions]
    return dict(zip(names, domain.objects or (), strict=True))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | numbers.Real) or is_switch(value)


def _is_same(one: Any, other: Any) -> bool:  # Any: categories of the user's
    try:
        # The names, too: [1] == [True].
        return one is other or (type(one) is type(other) and bool(one == other) and name_of(one) == name_of(other))
    except Exception:  # as of arrays, which are compared element by element
        return False


def _shown(domain: Choice | Ordinal) -> str:
    objects = domain.object_positions
    return ", ".join(str(name) if place in objects else repr(name) for place, name in enumerate(domain.categories))


def _object_settings(domain: Choice | Ordinal) -> dict[str, object]:
    return {"objects": list(domain.object_positions)} if domain.object_positions else {}


def _read(made_by: str, given: object) -> tuple[tuple[Value, ...], dict[object, int]]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise TypeError(f"{made_by} takes a list of values, got {given!r} of type {type(given).__name__}")
    if not given:
        raise ValueError(f"{made_by} needs at least one category, got none")
    values = tuple(_category(made_by, value) for value in given)
    positions: dict[object, int] = {}
    for index, value in enumerate(values):
        if positions.setdefault(_key(value), index) != index:
            raise ValueError(f"{made_by} has {value!r} twice; say each category once")
    return values, positions


def _category(made_by: str, value: object) -> Value:
    copy = plain_json(f"a category of {made_by}", value)
    if isinstance(copy, list | dict):
        raise TypeError(f"a category of {made_by} must be text, a number, a boolean or None, got {value!r}")
    return copy  # type: ignore[return-value]  # plain_json returns nothing else


def _key(value: object) -> tuple[type, object]:
    # True == 1 in Python, but not here: a switch and a number are different hyperparameters.
    if is_switch(value):
        return bool, value
    return numbers.Real if isinstance(value, numbers.Real) else str if isinstance(value, str) else type(value), value


def _known(domain: Choice | Ordinal, value: Any) -> int | None:  # Any: what a person has written
    """Return the position of a category, given by its name or as an equal object; None if there is none."""
    if _is_plain(value):
        return domain._positions.get(_key(value))
    if domain.objects is None:  # read from JSON: objects are known by their names
        index = domain._positions.get((str, name_of(value))) if domain.object_positions else None
        return index if index in domain.object_positions else None
    found = (
        place for place, other in zip(domain.object_positions, domain.objects, strict=True) if _is_same(other, value)
    )
    return next(found, None)


def _position(domain: Choice | Ordinal, value: object) -> int:
    index = _known(domain, value)
    if index is None:
        raise not_inside(value, domain)
    return index
