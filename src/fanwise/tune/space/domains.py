"""Domains: the set of values of one hyperparameter, and its mapping from [0, 1).

The functions below construct domains; their names and meanings are those of Syne Tune. All domains satisfy:

- Values are plain Python (int, float, str, bool, None) and survive JSON.
- `from_unit` is monotone, never leaves the domain, and is bit-identical on every machine.
- `from_unit(to_unit(value)) == value`.
- `contains` accepts NumPy scalars and 3.0 for 3; `normalize` converts them to plain Python.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypeGuard

from ...base.nearest import did_you_mean
from ..values import Value
from .categories import Choice, Ordinal, OrdinalKind, is_increasing, name_objects
from .numeric import FinRange, Interval, Multiples
from .scales import below_one


class Domain(Protocol):
    """Interface of all domains."""

    @property
    def domain_type(self) -> str:
        """Name of the constructing function, such as "loguniform"."""

    @property
    def ordered(self) -> bool:
        """False only for `choice`, whose categories have no order."""

    @property
    def num_values(self) -> int | None:
        """Number of values; None for intervals of real numbers."""

    def from_unit(self, u: float) -> Value:
        """Return the value at u. Raises ValueError if u is not in [0, 1)."""

    def to_unit(self, value: object) -> float:
        """Return a number that `from_unit` maps to the value. Raises ValueError if it is not in the domain."""

    def contains(self, value: object) -> bool:
        """Return True if the value, after normalization, is in the domain."""

    def normalize(self, value: object) -> Value:
        """Convert a value to plain Python. Raises ValueError if it is not in the domain."""

    def settings(self) -> Mapping[str, object]:
        """Return the arguments of the constructing function, as JSON."""


class FiniteDomain(Domain, Protocol):
    """A domain with finitely many values."""

    @property
    def num_values(self) -> int: ...

    def value_at(self, index: int) -> Value:
        """Return the value at an index, from 0."""

    def index_of(self, value: object) -> int:
        """Return the index of a value. Raises ValueError if it is not in the domain."""


_AnyDomain: TypeAlias = Interval | Multiples | FinRange | Choice | Ordinal


def is_domain(value: object) -> TypeGuard[Domain]:
    """Return True for domains."""
    return isinstance(value, _AnyDomain)


def is_finite(domain: Domain) -> TypeGuard[FiniteDomain]:
    """Return True if the domain has finitely many values."""
    return domain.num_values is not None


def uniform(lower: float, upper: float) -> Interval:
    """Real numbers between lower and upper, uniformly distributed.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN or infinite.
    """
    return Interval("uniform", lower, upper)


def loguniform(lower: float, upper: float) -> Interval:
    """Positive real numbers, uniform on a log scale, e.g. for learning rates and regularization.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN, infinite, or not above 0.

    >>> loguniform(0.01, 1).from_unit(0.5)
    0.1
    """
    return Interval("loguniform", lower, upper)


def reverseloguniform(lower: float, upper: float) -> Interval:
    """Real numbers in [0, 1) whose distance to 1 is uniform on a log scale, e.g. for momentum and discounts.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN, below 0, or not below 1.

    >>> round(reverseloguniform(0.9, 0.999).from_unit(0.5), 6)
    0.99
    """
    return Interval("reverseloguniform", lower, upper)


def randint(lower: int, upper: int) -> Multiples:
    """Integers from lower to upper, both included, uniformly distributed.

    Raises:
        TypeError: a bound is not an int.
        ValueError: bounds reversed or equal, or more than 2**52 integers.

    >>> randint(32, 256).from_unit(0.0), randint(32, 256).from_unit(0.9999)
    (32, 256)
    """
    return Multiples("randint", lower, upper)


def lograndint(lower: int, upper: int) -> Multiples:
    """Integers from lower to upper, both included, uniform on a log scale, e.g. for widths and batch sizes.

    An integer k has the probability of [k - 1/2, k + 1/2].

    Raises:
        TypeError: a bound is not an int.
        ValueError: bounds reversed or equal, lower below 1, or upper above 2**45.
    """
    return Multiples("lograndint", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Multiples:
    """Multiples of q from lower to upper, both included, uniformly distributed.

    Raises:
        TypeError: an argument is not a number.
        ValueError: a bound is not a multiple of q, bounds reversed or equal, or q not above 0.

    >>> [quniform(0.1, 0.4, 0.1).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [0.1, 0.2, 0.3, 0.4]
    """
    return Multiples("quniform", lower, upper, q)


def qloguniform(lower: float, upper: float, q: float) -> Multiples:
    """Multiples of q from lower to upper, both included, uniform on a log scale.

    Raises:
        TypeError: an argument is not a number.
        ValueError: a bound is not a multiple of q, bounds reversed or equal, lower or q not above 0.
    """
    return Multiples("qloguniform", lower, upper, q)


def qrandint(lower: int, upper: int, q: int = 1) -> Multiples:
    """Integers that are multiples of q, from lower to upper, both included, uniformly distributed.

    Raises:
        TypeError: an argument is not an int.
        ValueError: a bound is not a multiple of q, bounds reversed or equal, or q below 1.

    >>> [qrandint(8, 32, 8).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [8, 16, 24, 32]
    """
    return Multiples("qrandint", lower, upper, q)


def qlograndint(lower: int, upper: int, q: int) -> Multiples:
    """Integers that are multiples of q, from lower to upper, both included, uniform on a log scale.

    Raises:
        TypeError: an argument is not an int.
        ValueError: a bound is not a multiple of q, bounds reversed or equal, lower or q below 1.
    """
    return Multiples("qlograndint", lower, upper, q)


def finrange(lower: float, upper: float, size: int, cast_int: bool = False) -> FinRange:
    """`size` equally spaced numbers from lower to upper, both included; rounded to ints with cast_int.

    Raises:
        TypeError: a bound is not a number (with cast_int: not an int), or size is not an int.
        ValueError: bounds reversed, equal, NaN or infinite; size below 2; points too close together.

    >>> [finrange(0.5, 2.0, 4).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [0.5, 1.0, 1.5, 2.0]
    """
    return FinRange("finrange", lower, upper, size, cast_int)


def logfinrange(lower: float, upper: float, size: int, cast_int: bool = False) -> FinRange:
    """`size` numbers from lower to upper, both included, with equal ratios; rounded to ints with cast_int.

    Raises:
        TypeError: a bound is not a number (with cast_int: not an int), or size is not an int.
        ValueError: bounds reversed, equal, NaN, infinite or not above 0; size below 2; points too
            close together.

    >>> [logfinrange(16, 128, 4, cast_int=True).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [16, 32, 64, 128]
    """
    return FinRange("logfinrange", lower, upper, size, cast_int)


def choice(categories: Sequence[Any]) -> Choice:
    """Categories without an action, uniformly distributed.

    A category is text, a number, a boolean, None, or any other Python object, such as a list, function or class. The
    objective receives the object; lists, tuples and dicts are copied for each trial. Elsewhere (records, tables,
    `Space.sample`) an object is represented by its name: `__name__` or repr, with the position appended if two names
    are equal ("<lambda>#1"). Configurations, e.g. in `points_to_evaluate`, may contain the object or its name.

    Raises:
        TypeError: not a list or tuple.
        ValueError: no category, a duplicate, or NaN.

    >>> choice(["relu", "tanh"]).from_unit(0.5)
    'tanh'
    >>> choice([[64], [64, 64], max]).from_unit(0.5)
    '[64, 64]'
    """
    return Choice(*name_objects("choice", _checked_categories(categories)))


def ordinal(categories: Sequence[Any], kind: OrdinalKind | None = None) -> Ordinal:
    """Ordered categories: neighbors in the list are similar.

    Args:
        categories: values or objects, as in `choice`, in order.
        kind: "equal": uniformly distributed. "nn": increasing numbers; the nearest neighbor of a number drawn by
            `uniform`. "nn-log": the nearest neighbor of a number drawn by `loguniform`. None: "nn" for increasing
            numbers, otherwise "equal".

    Raises:
        TypeError: not a list or tuple.
        ValueError: no category, a duplicate, NaN, an unknown kind, or a kind that does not fit the categories.

    >>> [ordinal(["small", "medium", "large"]).from_unit(u) for u in (0.0, 0.5, 0.9)]
    ['small', 'medium', 'large']
    >>> [ordinal([1, 2, 100]).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [1, 2, 100, 100]
    """
    categories = _checked_categories(categories)
    if kind is None:
        kind = "nn" if isinstance(categories, tuple) and len(categories) > 1 and is_increasing(categories) else "equal"
    names, positions, objects = name_objects("ordinal", categories)
    return Ordinal(names, kind, positions, objects)


def logordinal(categories: Sequence[float]) -> Ordinal:
    """Increasing positive numbers; `ordinal` with kind "nn-log".

    Raises:
        TypeError: not a list or tuple of numbers.
        ValueError: not increasing, or not above 0.

    >>> [logordinal([8, 64, 512]).from_unit(u) for u in (0.1, 0.5, 0.9)]
    [8, 64, 512]
    """
    return Ordinal(_checked_categories(categories), "nn-log")


def _checked_categories(categories: Sequence[Any]) -> tuple[Any, ...]:
    for category in categories if isinstance(categories, list | tuple) else ():
        if is_domain(category):
            raise TypeError(
                f"a category cannot be a domain, got {category!r}; define a conditional hyperparameter instead: "
                f"parameter({category!r}, when=...)"
            )
    if isinstance(categories, list | range):
        return tuple(categories)
    return categories  # type: ignore[return-value]  # rejected by the domain


def grid_values(domain: Domain, num_points: int) -> list[Value]:
    """Return at most `num_points` distinct values, evenly spaced on the scale of the domain, including both ends.

    Domains with fewer values, and every `choice`, return all values. One point is the middle.

    Raises:
        ValueError: num_points is below 1.

    >>> grid_values(loguniform(0.01, 1), 3), grid_values(randint(0, 9), 4), grid_values(choice(["a", "b", "c"]), 2)
    ([0.01, 0.1, 1.0], [0, 3, 6, 9], ['a', 'b', 'c'])
    """
    if num_points < 1:
        raise ValueError(f"a grid needs at least 1 point for each hyperparameter, got {num_points!r}")
    if is_finite(domain) and (domain.num_values <= num_points or not domain.ordered):
        return [domain.value_at(index) for index in range(domain.num_values)]
    if num_points == 1:
        return [domain.from_unit(0.5)]
    if isinstance(domain, Interval) and domain.domain_type != "reverseloguniform":
        with contextlib.suppress(ValueError):  # too narrow for that many points
            maker = finrange if domain.domain_type == "uniform" else logfinrange
            points = maker(domain.lower, domain.upper, num_points)
            return [points.value_at(index) for index in range(num_points)]
    values = [domain.from_unit(below_one(index / (num_points - 1))) for index in range(num_points)]
    if is_finite(domain):
        return [domain.value_at(index) for index in dict.fromkeys(map(domain.index_of, values))]
    if isinstance(domain, Interval):
        values[-1] = domain.upper
    return list(dict.fromkeys(values))  # a narrow interval contains few floats


DOMAIN_TYPES: Mapping[str, Callable[..., Domain]] = {
    function.__name__: function
    for function in (
        *(uniform, loguniform, reverseloguniform),
        *(randint, lograndint, quniform, qloguniform, qrandint, qlograndint),
        *(finrange, logfinrange),
        *(choice, ordinal, logordinal),
    )
}


def domain_to_json(domain: Domain) -> dict[str, object]:
    """Return the JSON form of a domain: the constructing function and its arguments."""
    return {"domain": domain.domain_type, **domain.settings()}


def domain_from_json(body: Mapping[str, object]) -> Domain:
    """Restore a domain from `domain_to_json`. Raises ValueError if the body is invalid."""
    settings = dict(body)
    domain_type = settings.pop("domain", None)
    if domain_type not in DOMAIN_TYPES:
        raise ValueError(f"{domain_type!r} is not a type of domain{did_you_mean(domain_type, DOMAIN_TYPES)}")
    objects: Any = settings.pop("objects", ())
    try:
        domain = DOMAIN_TYPES[str(domain_type)](**settings)
        if objects and isinstance(domain, Choice | Ordinal):
            return replace(domain, object_positions=tuple(objects), objects=None)
        return domain
    except TypeError as error:
        raise ValueError(f"{dict(body)!r} is not the JSON form of a domain: {error}") from error
