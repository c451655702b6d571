"""Search spaces: names for domains and for constants, which are passed through to the objective as they are.

A Space draws, completes and checks configurations. It knows nothing of trials, metrics or searchers. Chance comes in
as a `random.Random`, of which only `.random()` is used: one number for each domain, in the order of the space.

Invariants: a configuration that leaves here has every name of the space, in its order, and plain Python values; the
caller's dicts are neither changed nor kept.
"""

import itertools
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import final

from ...base.nearest import did_you_mean
from ..values import plain_json
from .domains import Domain, domain_from_json, domain_to_json

_MOST_SHOWN = 6


@final
@dataclass(frozen=True, slots=True, repr=False)
class Constant:
    """One value that every configuration carries, even if it is a list. Made by `constant`."""

    value: object

    def __repr__(self) -> str:
        return f"constant({self.value!r})"


def constant(value: object) -> Constant:
    """`value` as it is in every configuration. Needed for lists only: a bare list in a space is refused.

    Whoever writes `{"learning_rate": [0.1, 0.01]}` nearly always means two alternatives: `choice([0.1, 0.01])`.

    >>> Space({"hidden_sizes": constant([128, 64])}).sample(Random(0))
    {'hidden_sizes': [128, 64]}
    """
    return Constant(value)


@final
class Space:
    """Names for domains and constants; draws, completes and checks configurations.

    Args:
        mapping: name -> domain, or a constant (anything JSON keeps as it is) which every configuration carries; a
            list as `constant([...])`.

    Raises:
        TypeError: a name that is not text, a bare list or tuple, or a constant that JSON cannot keep.
        ValueError: an empty name, or a constant NaN.

    >>> from fanwise.tune import loguniform
    >>> space = Space({"learning_rate": loguniform(1e-2, 1), "max_epochs": 10})
    >>> space.complete({"learning_rate": 0.1}, Random("0/suggest/0"))
    {'learning_rate': 0.1, 'max_epochs': 10}
    """

    __slots__ = ("_constants", "_domains", "_names")

    def __init__(self, mapping: Mapping[str, object]) -> None:
        if not isinstance(mapping, Mapping):
            raise TypeError(f"a space is a dict of names, got {mapping!r} of type {type(mapping).__name__}")
        domains: dict[str, Domain] = {}
        constants: dict[str, object] = {}
        for name, given in mapping.items():
            if not isinstance(name, str):
                raise TypeError(f"a hyperparameter's name must be text, got {name!r} of type {type(name).__name__}")
            if not name:
                raise ValueError("a hyperparameter's name must not be empty")
            if isinstance(given, Domain):
                domains[name] = given
            else:
                constants[name] = _constant_of(name, given)
        self._names = tuple(mapping)
        self._domains = domains
        self._constants = constants

    def __repr__(self) -> str:
        inside = (f"{name!r}: {self._shown(name)!r}" for name in self._names)
        return f"Space({{{', '.join(inside)}}})"

    def _shown(self, name: str) -> object:
        given = self._domains.get(name, self._constants.get(name))
        return Constant(given) if isinstance(given, list) else given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.to_json() == other.to_json() and self._names == other._names

    __hash__ = None  # type: ignore[assignment]  # constants may be lists

    @property
    def names(self) -> tuple[str, ...]:
        """All names, constants too, in the order in which the space was written."""
        return self._names

    @property
    def domains(self) -> Mapping[str, Domain]:
        """What is searched over. Read only."""
        return MappingProxyType(self._domains)

    @property
    def constants(self) -> Mapping[str, object]:
        """What every configuration carries. Read only."""
        return MappingProxyType(self._constants)

    def sample(self, rng: Random) -> dict[str, object]:
        """A configuration at random: one `rng.random()` for each domain, in the order of the space."""
        drawn = {name: domain.from_unit(rng.random()) for name, domain in self._domains.items()}
        return self._in_order(drawn)

    def resample(self, config: Mapping[str, object], name: str, rng: Random) -> dict[str, object]:
        """A copy of config with the hyperparameter `name` drawn anew (which may give the old value again).

        Raises:
            ValueError: name is a constant or unknown, or config is not a configuration of this space.
        """
        if name in self._constants:
            raise ValueError(f"{name!r} is a constant of the space{did_you_mean(name, self._domains)}")
        if name not in self._domains:
            raise ValueError(f"{name!r} is not in the space{did_you_mean(name, self._domains)}")
        return {**self.check(config), name: self._domains[name].from_unit(rng.random())}

    def complete(self, partial: Mapping[str, object], rng: Random) -> dict[str, object]:
        """A configuration with the values of partial, and the others as `sample` would draw them from rng.

        Raises:
            ValueError: partial names what the space has not, or gives a value outside its domain.
        """
        given = self.check_part(partial)
        return {**self.sample(rng), **given}

    def check(self, config: Mapping[str, object]) -> dict[str, object]:
        """config as plain Python values in the order of the space; constants may be left out and are filled in.

        Raises:
            ValueError: names every hyperparameter that is missing, surplus, or outside its domain.
        """
        missing = [f"{name!r} is missing" for name in self._domains if name not in config]
        return self._in_order(self._checked(config, missing))

    def check_part(self, partial: Mapping[str, object]) -> dict[str, object]:
        """Like `check` for a configuration that may leave anything out; fills nothing in."""
        return self._checked(partial, [])

    def _checked(self, config: Mapping[str, object], problems: list[str]) -> dict[str, object]:
        plain: dict[str, object] = {}
        for name, value in config.items():
            domain = self._domains.get(name)
            if domain is not None and domain.contains(value):
                plain[name] = domain.plain(value)
            elif domain is not None:
                problems.append(f"{name} = {value!r} is not in {domain!r}")
            elif name not in self._constants:
                problems.append(f"{name!r} is not in the space{did_you_mean(name, self._names)}")
            elif not _same(value, self._constants[name]):
                problems.append(f"{name} = {value!r}, but the space fixes it at {self._constants[name]!r}")
        if problems:
            raise ValueError("\n".join(problems))
        return plain

    def _in_order(self, values: Mapping[str, object]) -> dict[str, object]:
        return {
            name: values[name] if name in self._domains else plain_json(name, self._constants[name])
            for name in self._names
        }

    def to_json(self) -> dict[str, object]:
        """The JSON form: name -> {"domain": kind, ...} or {"constant": value}."""
        return {
            name: domain_to_json(self._domains[name])
            if name in self._domains
            else {"constant": plain_json(name, self._constants[name])}
            for name in self._names
        }

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> "Space":
        """The space that `to_json` wrote.

        Raises:
            ValueError: not written by it.
        """
        mapping: dict[str, object] = {}
        for name, entry in body.items():
            if not isinstance(entry, Mapping):
                raise ValueError(f"{name!r} is {entry!r}, not the JSON form of a domain or a constant")
            mapping[name] = Constant(entry["constant"]) if set(entry) == {"constant"} else domain_from_json(entry)
        return cls(mapping)


def _constant_of(name: str, given: object) -> object:
    """The value of a constant, in plain Python values."""
    if isinstance(given, list | tuple | range | AbstractSet):
        few = list(itertools.islice(given, _MOST_SHOWN + 1))
        values = repr(few) if len(few) <= _MOST_SHOWN else f"{repr(few[:_MOST_SHOWN])[:-1]}, ...]"
        raise TypeError(
            f"{name!r} is a bare {type(given).__name__}, which may mean two things:\n"
            f"  one of these values for each trial:     {name!r}: choice({values})\n"
            f"  all of them, the same for every trial:  {name!r}: constant({values})"
        )
    value = given.value if isinstance(given, Constant) else given
    return plain_json(f"the constant {name!r}", value)


def _same(value: object, fixed: object) -> bool:
    try:
        return plain_json("value", value) == fixed
    except (TypeError, ValueError):
        return False
