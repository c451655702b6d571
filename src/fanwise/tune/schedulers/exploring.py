"""Explore: a configuration a little different from one that went well (arXiv 1711.09846, section 4.1.2)."""

from bisect import bisect_left
from collections.abc import Mapping

from ..chance import Chance
from ..spaces import Domain, Space
from ..spaces.bounds import Value
from ..spaces.categories import Ordinal
from ..spaces.conditions import exists
from ..spaces.domains import FiniteDomain
from ..spaces.interval import Interval
from ..spaces.near import is_finite

_FACTORS = (0.8, 1.2)


def explored(space: Space, config: Mapping[str, object], rng: Chance, resample_probability: float) -> dict[str, object]:
    """Each hyperparameter drawn anew with a probability, and otherwise perturbed; see `perturbed`.

    What does not exist beside the new values is left out, what begins to exist is drawn.
    """
    values: dict[str, object] = {}
    for name, domain in space.domains.items():
        if name in config:
            u, factor, drawn = rng.random(), rng.choice(_FACTORS), rng.random()
            anew = u < resample_probability or _cannot_move(domain, config[name])
            values[name] = domain.from_unit(drawn) if anew else perturbed(domain, config[name], factor)
    while gone := [name for name in values if not exists(name, values, space.conditions)]:
        for name in gone:
            del values[name]
    return space.complete(values, rng)


def perturbed(domain: Domain, value: object, factor: float) -> Value:
    """The value times the factor, within the domain.

    Of a domain whose values can be counted it is the nearest one, but at least the next: 2 becomes 3 or 1. Of an
    `ordinal` it is the next one; of a `choice`, which has no order, the same. A `reverseloguniform` is a distance to
    1, which is what is multiplied.

    >>> from fanwise.tune.spaces import randint, reverseloguniform, uniform
    >>> perturbed(uniform(0, 1), 0.5, 1.2), perturbed(uniform(0, 1), 0.9, 1.2), perturbed(randint(1, 9), 2, 1.2)
    (0.6, 1.0, 3)
    >>> perturbed(reverseloguniform(0.5, 0.99), 0.75, 0.8)
    0.8
    """
    if isinstance(domain, Interval):
        number = domain.plain(value)
        target = 1.0 - (1.0 - number) * factor if domain.made_by == "reverseloguniform" else number * factor
        return min(max(target, domain.lower), domain.upper)
    assert is_finite(domain), "what is no interval can be counted"
    if not domain.ordered:
        return domain.plain(value)
    index, last = domain.index_of(value), domain.num_values - 1
    if isinstance(domain, Ordinal):
        new = index + (1 if factor > 1 else -1)
        return domain.value_at(min(max(new, 0), last))
    number = _number(domain, index)
    target = number * factor
    new = bisect_left(range(last + 1), target, key=lambda place: _number(domain, place))
    if new > last or (new > 0 and target - _number(domain, new - 1) <= _number(domain, new) - target):
        new -= 1
    if new == index:
        new += (target > number) - (target < number)
    return domain.value_at(min(max(new, 0), last))


def _number(domain: FiniteDomain, index: int) -> float:
    return float(domain.value_at(index))  # type: ignore[arg-type]  # only a choice and an ordinal have no numbers


def _cannot_move(domain: Domain, value: object) -> bool:
    """Whether the value is 0, which no factor changes."""
    return domain.ordered and not isinstance(domain, Ordinal) and value == 0
