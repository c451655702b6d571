"""Counting: how many different configurations a space has, so that a search can say that it is exhausted. Quiet.

Without conditions it is the product of the domains. With them the values of a parent are taken one by one where a
condition names them, and all others at once.
"""

from collections.abc import Mapping, Sequence
from typing import final

from .bounds import Value
from .conditions import When, exists, is_one_of
from .domains import Domain


@final
class _Other:
    """Stands for any value of a parent that no condition names."""


_OTHER = _Other()


def count_configurations(
    names: Sequence[str], domains: Mapping[str, Domain], conditions: Mapping[str, When]
) -> int | None:
    """How many there are, or None for countless.

    Args:
        names: parents before those that depend on them.
        domains: what the names may be; a name without a domain is a constant.
        conditions: of the names that do not always exist.
    """
    named: dict[str, list[Value]] = {}
    for when in conditions.values():
        for parent, values in when.items():
            known = named.setdefault(parent, [])
            known += [value for value in values if not is_one_of(value, known)]

    def count(place: int, config: Mapping[str, object]) -> int | None:
        if place == len(names):
            return 1
        name, domain = names[place], domains.get(names[place])
        if domain is None or not exists(name, config, conditions):
            return count(place + 1, config)
        if domain.num_values is None:
            return None
        if name not in named:
            rest = count(place + 1, config)
            return None if rest is None else domain.num_values * rest
        ways = [(value, 1) for value in named[name]] + [(_OTHER, domain.num_values - len(named[name]))]
        total = 0
        for value, how_often in ways:
            rest = count(place + 1, {**config, name: value}) if how_often else 0
            if rest is None:
                return None
            total += how_often * rest
        return total

    return count(0, {})
