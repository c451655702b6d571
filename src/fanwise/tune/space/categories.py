"""Categorical domains, unordered (choice) or ordered (ordinal).

A category may be any Python object. Strings, numbers, booleans and None are used directly. Any other object is an
object category: domains, searchers and records use its name, such as "relu" or "[64, 64]". Names are replaced by
objects when the objective is called (see `Space.with_objects`).
"""

import itertools
import numbers
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeAlias, final

from ...base.nearest import did_you_mean
from ..values import Value, copy_containers, is_bool, is_number, object_name, plain_json
from .base import Domain, FiniteDomain, set_fields
from .scales import ONE, check_unit, log2

OrdinalKind: TypeAlias = Literal["equal", "nn", "nn-log"]
_KINDS = ("equal", "nn", "nn-log")


@final
@dataclass(frozen=True, slots=True, repr=False)
class Categories(FiniteDomain):
    """The categories of a `choice`, `ordinal` or `logordinal`.

    Args:
        domain_type: "choice" or "ordinal".
        categories: values, or names of objects.
        kind: distribution. "equal": uniform. "nn": the category nearest to a uniform number, whose interval exceeds the
            first and last category by half of the mean distance between neighbors. "nn-log": the same for logarithms.
        object_indices: indices of the object categories.
        objects: the objects at these indices, or None if the domain was restored from JSON.
    """

    domain_type: Literal["choice", "ordinal"]
    categories: tuple[Value, ...]
    kind: OrdinalKind = "equal"
    object_indices: tuple[int, ...] = ()
    objects: tuple[Any, ...] | None = field(default=None, repr=False, compare=False)
    _index_by_key: dict[object, int] = field(init=False, repr=False, compare=False)
    # `from_unit` divides [0, 1) into one share per category. These are the bounds between them; empty for equal shares.
    edges: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = tuple(plain_json(f"a category of {self.domain_type}", category) for category in self.categories)
        index_by_key: dict[object, int] = {}
        for index, value in enumerate(values):
            if index_by_key.setdefault(_key(value), index) != index:
                raise ValueError(f"{self.domain_type} has {value!r} twice; list each category once")
        if self.kind not in _KINDS:
            raise ValueError(f"ordinal: {self.kind!r} is not a kind{did_you_mean(self.kind, _KINDS)}")
        set_fields(self, categories=values, _index_by_key=index_by_key)
        set_fields(self, edges=() if self.kind == "equal" else self._compute_edges(values))

    def _compute_edges(self, values: Sequence[object]) -> tuple[float, ...]:
        points = [Fraction(value) for value in values if is_number(value)]
        if len(points) != len(values) or not is_increasing(values):
            raise ValueError(f"ordinal: kind {self.kind!r} needs increasing numbers, got {list(values)!r}; use 'equal'")
        if self.kind == "nn-log":
            if points[0] <= 0:
                raise ValueError(f"ordinal: kind 'nn-log' needs numbers above 0, got {values[0]!r}; use 'nn'")
            points = [Fraction(log2(float(value)), ONE) for value in points]  # log2 returns units of 1 / ONE
        if len(points) == 1:
            return ()
        margin = (points[-1] - points[0]) / (2 * (len(points) - 1))
        lower, width = points[0] - margin, points[-1] - points[0] + 2 * margin
        edges = tuple(float(((a + b) / 2 - lower) / width) for a, b in itertools.pairwise(points))
        if not is_increasing((0.0, *edges, 1.0)):
            raise ValueError(f"ordinal: the shares of {list(values)!r} are too unequal; use kind 'equal'")
        return edges

    def __repr__(self) -> str:
        indices = self.object_indices
        names = ", ".join(str(name) if i in indices else repr(name) for i, name in enumerate(self.categories))
        return f"{self.domain_type}([{names}]{f', kind={self.kind!r}' if self.ordered else ''})"

    def settings(self) -> dict[str, object]:
        settings: dict[str, object] = {"categories": list(self.categories)}
        settings |= {"kind": self.kind} if self.ordered else {}
        return settings | ({"objects": list(self.object_indices)} if self.object_indices else {})

    @property
    def ordered(self) -> bool:
        return self.domain_type == "ordinal"

    @property
    def num_values(self) -> int:
        return len(self.categories)

    def value_at(self, index: int) -> Value:
        return self.categories[index]

    def find(self, value: object) -> int | None:
        """Return the index of the category with this value, this name or an equal object, or None."""
        if _is_plain(value):
            return self._index_by_key.get(_key(value))
        if self.objects is None:  # restored from JSON, so only names can be compared
            index = self._index_by_key.get((str, object_name(value))) if self.object_indices else None
            return index if index in self.object_indices else None
        pairs = zip(self.object_indices, self.objects, strict=True)
        return next((index for index, category in pairs if _is_same(category, value)), None)

    def from_unit(self, u: float) -> Value:
        if self.edges:
            return self.categories[bisect_right(self.edges, check_unit(u))]
        return FiniteDomain.from_unit(self, u)

    def to_unit(self, value: object) -> float:
        if not self.edges:
            return FiniteDomain.to_unit(self, value)
        index, shares = self.index_of(value), (0.0, *self.edges, 1.0)
        return (shares[index] + shares[index + 1]) / 2


def is_increasing(values: Sequence[object]) -> bool:
    """Return True for strictly increasing numbers."""
    return all(map(is_number, values)) and all(a < b for a, b in itertools.pairwise(values))  # type: ignore[operator]


def make_categories(domain_type: Literal["choice", "ordinal"], values: object, kind: OrdinalKind | None) -> Categories:
    """Create the domain for `choice` or `ordinal`. Arguments and errors are those of `ordinal`."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise TypeError(f"{domain_type} takes a list of values, got {values!r} of type {type(values).__name__}")
    if not values:
        raise ValueError(f"{domain_type} needs at least one category, got none")
    for value in values:
        if isinstance(value, Domain):
            raise TypeError(
                f"a category cannot be a domain, got {value!r}; define a conditional hyperparameter instead: "
                f"parameter({value!r}, when=...)"
            )
    if kind is None:
        kind = "nn" if len(values) > 1 and is_increasing(values) else "equal"
    indices = tuple(index for index, value in enumerate(values) if not _is_plain(value))
    objects = tuple(copy_containers(values[index]) for index in indices)
    names = [object_name(value) for value in objects]
    for (a, name), (b, name_b) in itertools.combinations(zip(objects, names, strict=True), 2):
        if name == name_b and _is_same(a, b):
            raise ValueError(f"{domain_type} has {name} twice; list each category once")
    categories = list(values)
    all_names = [*names, *(value for index, value in enumerate(values) if index not in indices)]
    for index, name in zip(indices, names, strict=True):
        categories[index] = name if all_names.count(name) == 1 else f"{name}#{index}"
    return Categories(domain_type, tuple(categories), kind, indices, objects)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | numbers.Real) or is_bool(value)


def _is_same(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b) and object_name(a) == object_name(b))
    except Exception:  # e.g. arrays, which compare element by element
        return False


def _key(value: object) -> tuple[type, object]:
    # True == 1 in Python, but here they are different categories.
    if is_bool(value):
        return bool, value
    return numbers.Real if isinstance(value, numbers.Real) else str if isinstance(value, str) else type(value), value
