"""Steps through a domain: a value near another one (local search, evolution), values spread over it (grids). Quiet."""

import contextlib
from collections.abc import Mapping
from typing import Literal, TypeGuard

from .bounds import Value, below_one, check_unit, share_at
from .domains import Domain, FiniteDomain
from .finrange import FinRange
from .interval import Interval

_EVENLY_SPACED: Mapping[str, Literal["finrange", "logfinrange"]] = {"uniform": "finrange", "loguniform": "logfinrange"}
_REACH = 0.1  # of the domain, to either side


def is_finite(domain: Domain) -> TypeGuard[FiniteDomain]:
    """Whether the values can be counted."""
    return domain.num_values is not None


def neighbour(domain: Domain, value: object, u: float) -> Value:
    """A value near `value`: at most a tenth of the domain away, on its own scale.

    A larger u gives a later value. Of a domain whose values can be counted it is another value, and the next one on
    either side is always within reach; of a choice, any other category. The only value of a domain is its own.

    Args:
        domain: what value belongs to.
        value: where to begin.
        u: chance, a number in [0, 1).

    Raises:
        ValueError: the value is not in the domain, or u not in [0, 1).

    >>> from fanwise.tune import randint, uniform
    >>> neighbour(randint(1, 9), 5, 0.0), neighbour(randint(1, 9), 5, 0.9)
    (4, 6)
    >>> neighbour(uniform(0, 1), 0.5, 0.75)
    0.55
    """
    check_unit(u)
    if not is_finite(domain):
        place = domain.to_unit(value)
        lower, upper = max(place - _REACH, 0.0), min(place + _REACH, 1.0)
        return domain.from_unit(below_one(lower + u * (upper - lower)))
    index, last = domain.index_of(value), domain.num_values - 1
    reach = max(int(last * _REACH), 1) if domain.ordered else last
    lowest, highest = max(index - reach, 0), min(index + reach, last)
    if lowest == highest:
        return domain.plain(value)
    other = lowest + share_at(u, highest - lowest)
    return domain.value_at(other + (other >= index))


def grid(domain: Domain, num_points: int) -> list[Value]:
    """At most `num_points` different values, evenly spread over the domain on its own scale, both ends included.

    Of a domain with fewer values these are all of them; of a choice, always all categories, because none stands for
    another.

    Raises:
        ValueError: num_points is below 1.

    >>> from fanwise.tune import choice, loguniform, randint
    >>> grid(loguniform(0.01, 1), 3), grid(randint(0, 9), 4), grid(choice(["a", "b", "c"]), 2)
    ([0.01, 0.1, 1.0], [0, 3, 6, 9], ['a', 'b', 'c'])
    """
    if num_points < 1:
        raise ValueError(f"a grid needs at least 1 point for each hyperparameter, got {num_points!r}")
    if is_finite(domain) and (domain.num_values <= num_points or not domain.ordered):
        return [domain.value_at(index) for index in range(domain.num_values)]
    if num_points == 1:
        return [domain.from_unit(0.5)]
    if isinstance(domain, Interval) and domain.made_by in _EVENLY_SPACED:
        with contextlib.suppress(ValueError):  # too narrow for so many points
            points = FinRange(_EVENLY_SPACED[domain.made_by], domain.lower, domain.upper, num_points)
            return [points.value_at(index) for index in range(num_points)]
    values = [domain.from_unit(below_one(part / (num_points - 1))) for part in range(num_points)]
    if is_finite(domain):
        return [domain.value_at(index) for index in dict.fromkeys(map(domain.index_of, values))]
    if isinstance(domain, Interval):
        values[-1] = domain.upper
    return list(dict.fromkeys(values))  # a narrow interval has few floats
