"""Categorical domains, unordered (choice) or ordered (ordinal).

A category may be any Python object. Domains, searchers and records use its name: the value itself for text, numbers,
booleans and None, otherwise a text such as "relu" or "[64, 64]". `Space.with_objects` replaces names by objects before
the objective is called.
"""

import itertools
import numbers
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias, final

from ...base.nearest import did_you_mean
from ..values import Value, copy_containers, is_bool, is_number, name_of, plain_json
from .scales import ONE, bin_at, check_unit, log2, middle_of_bin

OrdinalKind: TypeAlias = Literal["equal", "nn", "nn-log"]
_KINDS = ("equal", "nn", "nn-log")


@final
@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """Unordered categories, uniformly distributed; constructed by `choice`."""

    categories: tuple[Value, ...]
    object_positions: tuple[int, ...] = ()  # indices of categories that are names of objects
    objects: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)  # None: restored from JSON
    _positions: dict[object, int] = field(init=False, repr=False, compare=False)
    domain_type: ClassVar[str] = "choice"
    ordered: ClassVar[bool] = False

    def __post_init__(self) -> None:
        values, positions = _checked("choice", self.categories)
        object.__setattr__(self, "categories", values)
        object.__setattr__(self, "_positions", positions)

    def __repr__(self) -> str:
        return f"choice([{_shown(self)}])"

    def settings(self) -> dict[str, object]:
        return {"categories": list(self.categories), **_object_settings(self)}

    @property
    def num_values(self) -> int:
        return len(self.categories)

    def value_at(self, index: int) -> Value:
        return self.categories[index]

    def index_of(self, value: object) -> int:
        return _index(self, value)

    def from_unit(self, u: float) -> Value:
        return self.categories[bin_at(u, len(self.categories))]

    def to_unit(self, value: object) -> float:
        return middle_of_bin(self.index_of(value), len(self.categories))

    def contains(self, value: object) -> bool:
        return _find(self, value) is not None

    def normalize(self, value: object) -> Value:
        return self.categories[self.index_of(value)]


@final
@dataclass(frozen=True, slots=True, repr=False)
class Ordinal:
    """Ordered categories; constructed by `ordinal` and `logordinal`.

    "equal": uniformly distributed. "nn": the nearest neighbor of a uniform number between the smallest and the largest
    category, extended by half a mean distance at both ends. "nn-log": the same for logarithms.
    """

    categories: tuple[Value, ...]
    kind: OrdinalKind
    object_positions: tuple[int, ...] = ()  # indices of categories that are names of objects
    objects: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)  # None: restored from JSON
    _positions: dict[object, int] = field(init=False, repr=False, compare=False)
    _edges: tuple[float, ...] = field(init=False, repr=False, compare=False)
    domain_type: ClassVar[str] = "ordinal"
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        values, positions = _checked("ordinal", self.categories)
        if self.kind not in _KINDS:
            raise ValueError(f"ordinal: {self.kind!r} is not a kind{did_you_mean(self.kind, _KINDS)}")
        object.__setattr__(self, "categories", values)
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
            raise ValueError(f"ordinal: the shares of {list(values)!r} are too unequal; use kind 'equal'")
        return edges

    def __repr__(self) -> str:
        return f"ordinal([{_shown(self)}], kind={self.kind!r})"

    def settings(self) -> dict[str, object]:
        return {"categories": list(self.categories), "kind": self.kind, **_object_settings(self)}

    @property
    def edges(self) -> tuple[float, ...]:
        """Boundaries between the shares of [0, 1), increasing; empty if all shares are equal."""
        return self._edges

    @property
    def num_values(self) -> int:
        return len(self.categories)

    def value_at(self, index: int) -> Value:
        return self.categories[index]

    def index_of(self, value: object) -> int:
        return _index(self, value)

    def from_unit(self, u: float) -> Value:
        if self._edges:
            return self.categories[bisect_right(self._edges, check_unit(u))]
        return self.categories[bin_at(u, len(self.categories))]

    def to_unit(self, value: object) -> float:
        index = self.index_of(value)
        if not self._edges:
            return middle_of_bin(index, len(self.categories))
        shares = (0.0, *self._edges, 1.0)
        return (shares[index] + shares[index + 1]) / 2

    def contains(self, value: object) -> bool:
        return _find(self, value) is not None

    def normalize(self, value: object) -> Value:
        return self.categories[self.index_of(value)]


def is_increasing(values: Sequence[object]) -> bool:
    """Return True for strictly increasing numbers."""
    return all(map(is_number, values)) and all(a < b for a, b in itertools.pairwise(values))  # type: ignore[operator]


def name_objects(domain_type: str, values: object) -> tuple[Any, tuple[int, ...], tuple[Any, ...]]:
    """Return the categories with names in place of objects, the positions of the objects, and the objects.

    Raises:
        ValueError: an object is listed twice.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        return values, (), ()  # rejected by the domain
    positions = tuple(index for index, value in enumerate(values) if not _is_plain(value))
    objects = tuple(copy_containers(values[index]) for index in positions)
    names = [name_of(value) for value in objects]
    for (a, name), (b, name_b) in itertools.combinations(zip(objects, names, strict=True), 2):
        if name == name_b and _is_same(a, b):
            raise ValueError(f"{domain_type} has {name} twice; list each category once")
    categories = list(values)
    all_names = [*names, *(value for index, value in enumerate(values) if index not in positions)]
    for index, name in zip(positions, names, strict=True):
        categories[index] = name if all_names.count(name) == 1 else f"{name}#{index}"
    return tuple(categories), positions, objects


def objects_of(domain: Choice | Ordinal) -> dict[Value, Any]:
    """Map names to objects. Raises ValueError if the domain was restored from a record, which has only names."""
    if domain.object_positions and domain.objects is None:
        raise ValueError(f"{domain!r} was restored from a record, which has only the names of its objects")
    names = [domain.categories[index] for index in domain.object_positions]
    return dict(zip(names, domain.objects or (), strict=True))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | numbers.Real) or is_bool(value)


def _is_same(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b) and name_of(a) == name_of(b))
    except Exception:  # e.g. arrays, which compare element by element
        return False


def _shown(domain: Choice | Ordinal) -> str:
    objects = domain.object_positions
    return ", ".join(str(name) if index in objects else repr(name) for index, name in enumerate(domain.categories))


def _object_settings(domain: Choice | Ordinal) -> dict[str, object]:
    return {"objects": list(domain.object_positions)} if domain.object_positions else {}


def _checked(domain_type: str, categories: object) -> tuple[tuple[Value, ...], dict[object, int]]:
    if isinstance(categories, str | bytes) or not isinstance(categories, Sequence):
        raise TypeError(f"{domain_type} takes a list of values, got {categories!r} of type {type(categories).__name__}")
    if not categories:
        raise ValueError(f"{domain_type} needs at least one category, got none")
    values = tuple(_category(domain_type, value) for value in categories)
    positions: dict[object, int] = {}
    for index, value in enumerate(values):
        if positions.setdefault(_key(value), index) != index:
            raise ValueError(f"{domain_type} has {value!r} twice; list each category once")
    return values, positions


def _category(domain_type: str, value: object) -> Value:
    copy = plain_json(f"a category of {domain_type}", value)
    if isinstance(copy, list | dict):
        raise TypeError(f"a category of {domain_type} must be text, a number, a boolean or None, got {value!r}")
    return copy  # type: ignore[return-value]  # not a container


def _key(value: object) -> tuple[type, object]:
    # True == 1 in Python, but here they are different categories.
    if is_bool(value):
        return bool, value
    return numbers.Real if isinstance(value, numbers.Real) else str if isinstance(value, str) else type(value), value


def _find(domain: Choice | Ordinal, value: Any) -> int | None:
    """Return the index of a category, given by name or as an equal object, or None."""
    if _is_plain(value):
        return domain._positions.get(_key(value))
    if domain.objects is None:  # restored from JSON: compare names
        index = domain._positions.get((str, name_of(value))) if domain.object_positions else None
        return index if index in domain.object_positions else None
    pairs = zip(domain.object_positions, domain.objects, strict=True)
    return next((index for index, other in pairs if _is_same(other, value)), None)


def _index(domain: Choice | Ordinal, value: object) -> int:
    index = _find(domain, value)
    if index is None:
        raise ValueError(f"{value!r} is not in {domain!r}")
    return index
