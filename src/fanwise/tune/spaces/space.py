"""Search spaces: names for domains and for constants, which are passed through to the objective as they are.

A Space draws, completes and checks configurations. It knows nothing of trials, metrics or searchers. Chance comes in
as a generator of which only `.random()` is used.

Invariants: a configuration that leaves here has, in the order of the space, every name that exists beside the values
it has, and plain Python values; the caller's dicts are neither changed nor kept.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from ...base.nearest import did_you_mean
from ..chance import Draws
from ..values import plain_json, with_objects
from .bounds import Value
from .categories import Choice, Ordinal, objects_of
from .conditions import (
    Parameter,
    When,
    demands,
    exists,
    has_prior,
    is_one_of,
    parameter,
    parents_first,
    read_when,
    told,
)
from .counting import count_configurations
from .domains import Domain, domain_from_json, domain_to_json, is_domain
from .near import grid, neighbour
from .prior import Prior, make_prior

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

    >>> from random import Random
    >>> Space({"hidden_sizes": constant([128, 64])}).sample(Random(0))
    {'hidden_sizes': [128, 64]}
    """
    return Constant(value)


@final
class Space:
    """Names for domains and constants; draws, completes and checks configurations.

    Args:
        mapping: name -> domain, or a constant (anything JSON keeps as it is) which every configuration carries; a
            list as `constant([...])`; either inside `parameter(...)` with a condition or a prior.

    Raises:
        TypeError: a name that is not text, a bare list or tuple, or a constant that JSON cannot keep.
        ValueError: an empty name, a constant NaN, a condition on what is not there, or a prior outside its domain.

    >>> from random import Random
    >>> from fanwise.tune import loguniform
    >>> space = Space({"learning_rate": loguniform(1e-2, 1), "max_epochs": 10})
    >>> space.complete({"learning_rate": 0.1}, Random("0/suggest/0"))
    {'learning_rate': 0.1, 'max_epochs': 10}
    """

    __slots__ = ("_conditions", "_constants", "_copied", "_domains", "_names", "_outline", "_parents_first", "_priors")

    def __init__(self, mapping: Mapping[str, object]) -> None:
        if not isinstance(mapping, Mapping):
            raise TypeError(f"a space is a dict of names, got {mapping!r} of type {type(mapping).__name__}")
        self._names = tuple(mapping)
        self._domains: dict[str, Domain] = {}
        self._constants: dict[str, object] = {}
        self._priors: dict[str, Prior] = {}
        for name, given in mapping.items():
            _check_name(name)
            inner = given.domain if isinstance(given, Parameter) else given
            if is_domain(inner):
                self._domains[name] = inner
            else:
                self._constants[name] = _constant_of(name, inner)
        self._outline: dict[str, object] = {name: self._constants.get(name) for name in self._names}
        self._copied = [name for name, value in self._constants.items() if isinstance(value, list | dict)]
        more = {name: given for name, given in mapping.items() if isinstance(given, Parameter)}
        self._conditions: dict[str, When] = {
            name: read_when(name, given.when, self._domains, self._names)
            for name, given in more.items()
            if given.when is not None
        }
        self._priors = {name: self._prior_of(name, given) for name, given in more.items() if has_prior(given)}
        self._parents_first = parents_first(self._names, self._conditions)

    def _prior_of(self, name: str, given: Parameter) -> Prior:
        if name in self._constants:
            raise ValueError(f"{name!r} is a constant of the space, so it cannot have a prior")
        return make_prior(self._domains[name], given.prior, given.confidence)

    def __repr__(self) -> str:
        inside = (f"{name!r}: {self._shown(name)}" for name in self._names)
        return f"Space({{{', '.join(inside)}}})"

    def _shown(self, name: str) -> str:
        given = self._domains.get(name, self._constants.get(name))
        more = []
        if name in self._conditions:
            when = {parent: _one_or_list(values) for parent, values in self._conditions[name].items()}
            more.append(f"when={when!r}")
        if name in self._priors:
            more.append(f"prior={self._priors[name].center!r}, confidence={self._priors[name].confidence!r}")
        shown = repr(Constant(given) if isinstance(given, list) else given)
        return f"parameter({', '.join((shown, *more))})" if more else shown

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

    @property
    def conditions(self) -> Mapping[str, When]:
        """Of what does not exist in every configuration: parent -> the values that it must have. Read only."""
        return MappingProxyType(self._conditions)

    @property
    def priors(self) -> Mapping[str, Prior]:
        """Where somebody expects good values. Read only."""
        return MappingProxyType(self._priors)

    @property
    def num_configurations(self) -> int | None:
        """How many different configurations there are; None if a real-valued hyperparameter makes them countless."""
        return count_configurations(self._parents_first, self._domains, self._conditions)

    def from_units(self, units: Sequence[float]) -> dict[str, object]:
        """The configuration at a point of the unit cube, one number for each of `domains`: for Sobol sequences.

        Raises:
            ValueError: not one number in [0, 1) for each domain.
        """
        if len(units) != len(self._domains):
            raise ValueError(f"a point of this space has {len(self._domains)} numbers, got {len(units)}")
        pairs = zip(self._domains.items(), units, strict=True)
        return self._existing({name: domain.from_unit(u) for (name, domain), u in pairs})

    def sample(self, rng: Draws) -> dict[str, object]:
        """A configuration at random: one `rng.random()` for each domain, in the order of the space."""
        return self._existing({name: domain.from_unit(rng.random()) for name, domain in self._domains.items()})

    def sample_prior(self, rng: Draws) -> dict[str, object]:
        """A configuration at random, near the priors where there are some; else as `sample`."""
        return self._existing({name: self._near_prior(name, rng.random()) for name in self._domains})

    def _near_prior(self, name: str, u: float) -> Value:
        prior, domain = self._priors.get(name), self._domains[name]
        return domain.from_unit(u) if prior is None else prior.value_at(domain, u)

    def resample(self, config: Mapping[str, object], name: str, rng: Draws) -> dict[str, object]:
        """A copy of config with the hyperparameter `name` drawn anew (which may give the old value again).

        What does not exist beside the new value is left out, what begins to exist is drawn.

        Raises:
            ValueError: name is a constant or unknown, config is not a configuration of this space, or name does not
                exist in it.
        """
        return self._changed(config, name, lambda domain, _: domain.from_unit(rng.random()), rng)

    def neighbour(self, config: Mapping[str, object], name: str, rng: Draws) -> dict[str, object]:
        """A copy of config with a value of `name` that is near the old one, at most a tenth of its domain away.

        Of a choice it is any other category. What does not exist beside the new value is left out, what begins to
        exist is drawn.

        Raises:
            ValueError: as `resample`.
        """
        return self._changed(config, name, lambda domain, old: neighbour(domain, old, rng.random()), rng)

    def _changed(
        self, config: Mapping[str, object], name: str, change: Callable[[Domain, object], Value], rng: Draws
    ) -> dict[str, object]:
        if name not in self._domains:
            what = "is a constant of the space" if name in self._constants else "is not in the space"
            raise ValueError(f"{name!r} {what}{did_you_mean(name, self._domains)}")
        old = self.check(config)
        if name not in old:
            raise ValueError(f"{name!r} does not exist in this configuration: only when {told(self._conditions[name])}")
        new = {**old, name: change(self._domains[name], old[name])}
        for other in self._parents_first if self._conditions else ():
            if not exists(other, new, self._conditions):
                new.pop(other, None)
            elif other not in new and other in self._domains:
                new[other] = self._domains[other].from_unit(rng.random())
        return self._existing(new)

    def complete(self, partial: Mapping[str, object], rng: Draws) -> dict[str, object]:
        """A configuration with the values of partial, and the others as `sample` would draw them from rng.

        A hyperparameter that is given exists: its parents are drawn from the values that it needs.

        Raises:
            ValueError: partial has a name that is not in the space, a value outside its domain, or hyperparameters
                that do not exist together.
        """
        given = self.check_part(partial)
        units = {name: rng.random() for name in self._domains}
        values = {name: domain.from_unit(units[name]) for name, domain in self._domains.items()}
        for name, allowed in demands(partial, self._conditions).items():
            if name not in given and not is_one_of(values[name], allowed):
                values[name] = allowed[int(units[name] * len(allowed))]
        return self._existing({**values, **given})

    def grid(self, num_points: int | Mapping[str, int]) -> Iterator[dict[str, object]]:
        """All configurations with values that are evenly spread over each domain; the last name changes fastest.

        Args:
            num_points: how many values for each domain, or for each by name. All of a domain that has fewer, and all
                categories of a choice.

        Raises:
            ValueError: a number below 1, or a name that is missing or unknown.
        """
        if not isinstance(num_points, Mapping):
            num_points = dict.fromkeys(self._domains, num_points)
        for name in num_points:
            if name not in self._domains:
                raise ValueError(f"{name!r} is no domain of the space{did_you_mean(name, self._domains)}")
        missing = [name for name in self._domains if name not in num_points]
        if missing:
            raise ValueError(f"num_points has no number for {', '.join(map(repr, missing))}")
        values = {name: grid(domain, num_points[name]) for name, domain in self._domains.items()}
        return self._combined(values, {}, self._parents_first)

    def _combined(
        self, values: Mapping[str, Sequence[Value]], config: Mapping[str, object], names: tuple[str, ...]
    ) -> Iterator[dict[str, object]]:
        rest = list(itertools.dropwhile(lambda name: not self._is_free(name, config), names))
        if not rest:
            yield self._existing(config)
            return
        for value in values[rest[0]]:
            yield from self._combined(values, {**config, rest[0]: value}, tuple(rest[1:]))

    def _is_free(self, name: str, config: Mapping[str, object]) -> bool:
        return name in self._domains and exists(name, config, self._conditions)

    @property
    def objects(self) -> Mapping[str, Mapping[Value, Any]]:
        """The categories that are objects: name of the hyperparameter -> name of the category -> object.

        Raises:
            ValueError: the space was read from a record, which has only the names.
        """
        found = {}
        for name, domain in self._domains.items():
            if isinstance(domain, Choice | Ordinal) and domain.object_positions:
                try:
                    found[name] = objects_of(domain)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}. Give the space with which the experiment began.") from None
        return found

    def with_objects(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Return a copy of a configuration, with objects in the places of their names: what the objective receives.

        Raises:
            ValueError: the space was read from a record, which has only the names.

        >>> from fanwise.tune import choice
        >>> Space({"layers": choice([[64], [64, 64]])}).with_objects({"layers": "[64, 64]"})
        {'layers': [64, 64]}
        """
        return with_objects(config, self.objects)

    def check(self, config: Mapping[str, object]) -> dict[str, object]:
        """config as plain Python values in the order of the space; constants may be left out and are filled in.

        Raises:
            ValueError: names every hyperparameter that is missing, surplus, does not exist beside the others, or is
                outside its domain.
        """
        problems = [
            f"{name!r} is missing"
            for name in self._domains
            if name not in config and exists(name, config, self._conditions)
        ]
        return self._existing(self._checked(config, problems))

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
        if not problems and self._conditions:
            problems += self._misfits(plain, config)
        if problems:
            raise ValueError("\n".join(problems))
        return plain

    def _misfits(self, plain: Mapping[str, object], config: Mapping[str, object]) -> list[str]:
        """What does not exist beside the values of parents that are given.

        Raises:
            ValueError: two do not exist together, whatever the parents that are left out.
        """
        misfits = []
        for name in config:
            for parent, values in demands([name], self._conditions).items():
                if parent in plain and not is_one_of(plain[parent], values):
                    misfits.append(
                        f"{name} = {config[name]!r} is given, but it exists only when {told({parent: tuple(values)})}, "
                        f"and {parent} is {plain[parent]!r}"
                    )
                    break
        if not misfits:
            demands(config, self._conditions)
        return misfits

    def _existing(self, values: Mapping[str, object]) -> dict[str, object]:
        """The values that exist beside each other, and the constants, in the order of the space."""
        whole: dict[str, object] = {**self._outline, **values}
        for name in self._copied:
            whole[name] = plain_json(name, self._constants[name])
        if not self._conditions:
            return whole
        kept: dict[str, object] = {}
        for name in self._parents_first:
            if exists(name, kept, self._conditions):
                kept[name] = whole[name]
        return {name: kept[name] for name in self._names if name in kept}

    def to_json(self) -> dict[str, object]:
        """The JSON form: name -> {"domain": kind, ...} or {"constant": value}, with "when" and "prior" if they are."""
        return {name: self._entry(name) for name in self._names}

    def _entry(self, name: str) -> dict[str, object]:
        domain = self._domains.get(name)
        entry = {"constant": plain_json(name, self._constants[name])} if domain is None else domain_to_json(domain)
        if name in self._conditions:
            entry["when"] = {parent: list(values) for parent, values in self._conditions[name].items()}
        if name in self._priors:
            entry |= {"prior": self._priors[name].center, "confidence": self._priors[name].confidence}
        return entry

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
            more = {key: entry[key] for key in ("when", "prior", "confidence") if key in entry}
            rest = {key: value for key, value in entry.items() if key not in more}
            inner = Constant(rest["constant"]) if set(rest) == {"constant"} else domain_from_json(rest)
            mapping[name] = parameter(inner, **more) if more else inner
        return cls(mapping)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a hyperparameter's name must be text, got {name!r} of type {type(name).__name__}")
    if not name:
        raise ValueError("a hyperparameter's name must not be empty")


def _one_or_list(values: tuple[Value, ...]) -> object:
    return values[0] if len(values) == 1 else list(values)


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
