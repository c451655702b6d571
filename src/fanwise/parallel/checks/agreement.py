"""What differs first between processes that should be the same. A quiet file: facts in, words out.

    facts of each process, by name, in one order        first_difference       "lr of group 0: 0.1 in process 0, ..."

The order of the facts is the order of blame: what comes first may be the cause of what comes after it, as another batch
is of other parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Facts = Mapping[str, object]  # of one process; objects that can be compared and shown

_MISSING = "not there"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first fact that is not the same everywhere.

    Attributes:
        name: of the fact. place: of the first process that differs from most others.
        values: what each process has, in words, by place.
    """

    name: str
    place: int
    values: tuple[str, ...]

    def said(self) -> str:
        """One line: each value, and which processes have it."""
        owners: dict[str, list[int]] = {}
        for place, value in enumerate(self.values):
            owners.setdefault(value, []).append(place)
        return ", ".join(f"{value} in {_processes(places)}" for value, places in owners.items())


def first_difference(each: Sequence[Facts]) -> Difference | None:
    """None if all processes, by place, have the same facts."""
    names = {name: None for facts in each for name in facts}
    for name in names:
        values = [facts.get(name, _MISSING) for facts in each]
        if any(value != values[0] for value in values):
            return Difference(name, _odd_one(values), tuple(map(_shown, values)))
    return None


def _odd_one(values: Sequence[object]) -> int:
    """The first place whose value the fewest share; with two processes the second."""
    shared = [sum(value == other for other in values) for value in values]
    fewest = min(shared)
    places = [place for place, count in enumerate(shared) if count == fewest]
    return places[-1] if len(places) == len(values) else places[0]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _processes(places: Sequence[int]) -> str:
    return ("process " if len(places) == 1 else "processes ") + " and ".join(
        part for part in (", ".join(map(str, places[:-1])), str(places[-1])) if part
    )
