"""Functions that create domains. Names and meanings are those of Syne Tune."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from ...base.nearest import did_you_mean
from ..values import Value
from .base import Domain as Domain
from .base import FiniteDomain as FiniteDomain
from .categories import Categories, OrdinalKind, make_categories
from .numeric import FinRange, Interval, Quantized
from .scales import below_one


def is_finite(domain: Domain) -> TypeGuard[FiniteDomain]:
    """Return True if the domain has finitely many values."""
    return domain.num_values is not None


def uniform(lower: float, upper: float) -> Interval:
    """Real numbers between lower and upper, uniformly distributed.

    Raises TypeError if a bound is not a number, ValueError if bounds are reversed, equal, NaN or infinite.
    """
    return Interval("uniform", lower, upper)


def loguniform(lower: float, upper: float) -> Interval:
    """Positive real numbers, uniform on a log scale, e.g. for learning rates.

    Raises the same errors as `uniform`, and ValueError if lower is not above 0.

    >>> loguniform(0.01, 1).from_unit(0.5)
    0.1
    """
    return Interval("loguniform", lower, upper)


def reverseloguniform(lower: float, upper: float) -> Interval:
    """Real numbers in [0, 1) whose distance to 1 is uniform on a log scale, e.g. for momentum.

    Raises the same errors as `uniform`, and ValueError if a bound is outside [0, 1).

    >>> round(reverseloguniform(0.9, 0.999).from_unit(0.5), 6)
    0.99
    """
    return Interval("reverseloguniform", lower, upper)


def randint(lower: int, upper: int) -> Quantized:
    """Integers from lower to upper, both included, uniformly distributed.

    Raises TypeError if a bound is not an int, ValueError if bounds are reversed, equal, or span more than 2**52 values.

    >>> randint(32, 256).from_unit(0.0), randint(32, 256).from_unit(0.9999)
    (32, 256)
    """
    return Quantized("randint", lower, upper)


def lograndint(lower: int, upper: int) -> Quantized:
    """Integers from lower to upper, both included, uniform on a log scale, e.g. for widths and batch sizes.

    The probability of k is proportional to log((k + 1/2) / (k - 1/2)). Raises the same errors as `randint`, and
    ValueError if lower is below 1 or upper is above 2**45.
    """
    return Quantized("lograndint", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Quantized:
    """Multiples of q from lower to upper, both included, uniformly distributed.

    Raises the same errors as `uniform`, and ValueError if a bound is not a multiple of q, or q is not above 0.

    >>> [quniform(0.1, 0.4, 0.1).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [0.1, 0.2, 0.3, 0.4]
    """
    return Quantized("quniform", lower, upper, q)


def qloguniform(lower: float, upper: float, q: float) -> Quantized:
    """Multiples of q, log-uniform. Raises the same errors as `quniform`, and ValueError if lower is not above 0."""
    return Quantized("qloguniform", lower, upper, q)


def qrandint(lower: int, upper: int, q: int = 1) -> Quantized:
    """Integers that are multiples of q, from lower to upper, both included, uniformly distributed.

    Raises the same errors as `randint`, and ValueError if a bound is not a multiple of q, or q is below 1.

    >>> [qrandint(8, 32, 8).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [8, 16, 24, 32]
    """
    return Quantized("qrandint", lower, upper, q)


def qlograndint(lower: int, upper: int, q: int) -> Quantized:
    """Multiples of q, log-uniform. Raises the same errors as `qrandint`, and ValueError if lower is not above 0."""
    return Quantized("qlograndint", lower, upper, q)


def finrange(lower: float, upper: float, size: int, cast_int: bool = False) -> FinRange:
    """`size` equally spaced numbers from lower to upper, both included. With cast_int, they are rounded to ints.

    Raises the same errors as `uniform`, TypeError if size (or, with cast_int, a bound) is not an int, and ValueError if
    size is below 2 or the points are too close together.

    >>> [finrange(0.5, 2.0, 4).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [0.5, 1.0, 1.5, 2.0]
    """
    return FinRange("finrange", lower, upper, size, cast_int)


def logfinrange(lower: float, upper: float, size: int, cast_int: bool = False) -> FinRange:
    """`size` geometrically spaced numbers from lower to upper, both included. With cast_int, they are rounded to ints.

    Raises the same errors as `finrange`, and ValueError if lower is not above 0.

    >>> [logfinrange(16, 128, 4, cast_int=True).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [16, 32, 64, 128]
    """
    return FinRange("logfinrange", lower, upper, size, cast_int)


def choice(categories: Sequence[Any]) -> Categories:
    """Categories without an order, uniformly distributed.

    A category is a string, a number, a boolean, None, or any other Python object, such as a list, function or class.
    The objective receives the object, or a new copy of a list, tuple or dict. Records, tables and `Space.sample`
    contain the name of the object instead. The name is `__name__` or the repr, with the index appended if two names are
    equal ("<lambda>#1"). Configurations, e.g. in `points_to_evaluate`, may contain the object or its name.

    Raises TypeError if categories is not a list or tuple, ValueError if it is empty or has a duplicate or NaN.

    >>> choice(["relu", "tanh"]).from_unit(0.5)
    'tanh'
    >>> choice([[64], [64, 64], max]).from_unit(0.5)
    '[64, 64]'
    """
    return make_categories("choice", categories, "equal")


def ordinal(categories: Sequence[Any], kind: OrdinalKind | None = None) -> Categories:
    """Ordered categories. Searchers assume that neighbors in the list are similar.

    Args:
        categories: values or objects, as in `choice`, in order.
        kind: distribution. "equal": uniform. "nn" (for increasing numbers): the category nearest to a uniform number
            from an interval that extends beyond the first and last category by half the mean gap. "nn-log": the same
            on a log scale. None: "nn" for increasing numbers, otherwise "equal".

    Raises the same errors as `choice`, and ValueError if the kind is unknown or does not fit the categories.

    >>> [ordinal(["small", "medium", "large"]).from_unit(u) for u in (0.0, 0.5, 0.9)]
    ['small', 'medium', 'large']
    >>> [ordinal([1, 2, 100]).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [1, 2, 100, 100]
    """
    return make_categories("ordinal", categories, kind)


def logordinal(categories: Sequence[float]) -> Categories:
    """Ordered positive numbers: `ordinal` with kind "nn-log". Raises the same errors as `ordinal`.

    >>> [logordinal([8, 64, 512]).from_unit(u) for u in (0.1, 0.5, 0.9)]
    [8, 64, 512]
    """
    return make_categories("ordinal", categories, "nn-log")


def grid_values(domain: Domain, num_points: int) -> list[Value]:
    """Return up to `num_points` distinct values, evenly spaced on the scale of the domain, including both ends.

    For a `choice`, return all values, even if there are more. A single point is the middle of the scale. Raises
    ValueError if num_points is below 1.

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
        with contextlib.suppress(ValueError):  # raised if the points are too close together
            constructor = finrange if domain.domain_type == "uniform" else logfinrange
            points = constructor(domain.lower, domain.upper, num_points)
            return [points.value_at(index) for index in range(num_points)]
    values = [domain.from_unit(below_one(index / (num_points - 1))) for index in range(num_points)]
    if isinstance(domain, Interval):
        values[-1] = domain.upper
    return list(dict.fromkeys(values))  # without duplicates, because a narrow interval contains few floats


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
    """Return the JSON form of a domain: the name and the arguments of the function that created the domain."""
    return {"domain": domain.domain_type, **domain.settings()}


def domain_from_json(body: Mapping[str, object]) -> Domain:
    """Restore a domain from its JSON form. Raises ValueError if the form is invalid."""
    settings = dict(body)
    domain_type = settings.pop("domain", None)
    if domain_type not in DOMAIN_TYPES:
        raise ValueError(f"{domain_type!r} is not a type of domain{did_you_mean(domain_type, DOMAIN_TYPES)}")
    object_indices: Any = settings.pop("objects", ())
    try:
        domain = DOMAIN_TYPES[str(domain_type)](**settings)
        if object_indices and isinstance(domain, Categories):
            return replace(domain, object_indices=tuple(object_indices), objects=None)
        return domain
    except TypeError as error:
        raise ValueError(f"{dict(body)!r} is not the JSON form of a domain: {error}") from error
