"""Search spaces, which map names to domains and constants.

A Space samples, completes and validates configurations. A configuration contains the constants and the hyperparameters
whose conditions hold (see `parameters`), in the order of the space. Its values are those of `Domain`, so objects are
represented by their names. Methods neither modify nor store their arguments.
"""

import itertools
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, final

from ...base.nearest import did_you_mean
from ..rng import RandomSource
from ..values import Value, plain_json, plain_json_or_name, with_objects
from .categories import Categories
from .domains import Domain, domain_from_json, domain_to_json, grid_values
from .parameters import (
    Parameter,
    Prior,
    When,
    count_configurations,
    exists,
    format_condition,
    is_one_of,
    normalize_condition,
    parameter,
    parents_first,
    required_ancestors,
)


@final
@dataclass(frozen=True, slots=True, repr=False)
class Constant:
    """A constant of the space. Created by `constant`."""

    value: object

    def __repr__(self) -> str:
        return f"constant({self.value!r})"


def constant(value: object) -> Constant:
    """A list as a constant of the space. Every configuration contains it.

    Other constants need no `constant`. A bare list in a space is an error, because `{"learning_rate": [0.1, 0.01]}`
    usually means `choice([0.1, 0.01])`.

    >>> from random import Random
    >>> Space({"hidden_sizes": constant([128, 64])}).sample(Random(0))
    {'hidden_sizes': [128, 64]}
    """
    return Constant(value)


@final
class Space:
    """A search space.

    Args:
        mapping: {name: domain, or a constant that JSON can represent}. `parameter(...)` adds a condition or prior.
            Write a constant list as `constant([...])`.

    Raises:
        TypeError: a name is not a str, or a constant is a bare list or tuple or cannot be represented in JSON.
        ValueError: a name is empty, a constant is NaN, or a condition or prior is invalid.

    Attributes:
        names: names of all hyperparameters and constants, in order.
        domains, constants: the domains and the constants by name.
        conditions: {conditional hyperparameter: {parent: values that the parent may have}}.

    >>> from random import Random
    >>> from fanwise.tune import loguniform
    >>> space = Space({"learning_rate": loguniform(1e-2, 1), "max_epochs": 10})
    >>> space.complete({"learning_rate": 0.1}, Random("0/suggest/0"))
    {'learning_rate': 0.1, 'max_epochs': 10}
    """

    __slots__ = (
        "_mutable_constants", "_parents_first", "_priors", "_template", "conditions", "constants", "domains", "names",
    )  # fmt: skip

    def __init__(self, mapping: Mapping[str, object]) -> None:
        if not isinstance(mapping, Mapping):
            raise TypeError(f"a space must be a dict, got {mapping!r} of type {type(mapping).__name__}")
        domains: dict[str, Domain] = {}
        constants: dict[str, object] = {}
        for name, entry in mapping.items():
            if not isinstance(name, str):
                raise TypeError(f"a hyperparameter's name must be a str, got {name!r} of type {type(name).__name__}")
            if not name:
                raise ValueError("a hyperparameter's name must not be empty")
            domain_or_constant = entry.domain if isinstance(entry, Parameter) else entry
            if isinstance(domain_or_constant, Domain):
                domains[name] = domain_or_constant
            else:
                constants[name] = _checked_constant(name, domain_or_constant)
        self.names = tuple(mapping)
        self.domains: Mapping[str, Domain] = domains
        self.constants: Mapping[str, object] = constants
        # A configuration with None for every hyperparameter. `_make_config` copies it, because that is fast.
        self._template: dict[str, object] = {name: self.constants.get(name) for name in self.names}
        self._mutable_constants = [name for name, value in self.constants.items() if isinstance(value, list | dict)]
        parameters = {name: entry for name, entry in mapping.items() if isinstance(entry, Parameter)}
        self.conditions: Mapping[str, When] = {
            name: normalize_condition(name, entry.when, self.domains, self.names)
            for name, entry in parameters.items()
            if entry.when is not None
        }
        self._priors = {name: entry.prior for name, entry in parameters.items() if entry.prior is not None}
        self._parents_first = parents_first(self.names, self.conditions)

    def __repr__(self) -> str:
        entries = (f"{name!r}: {self._format_entry(name)}" for name in self.names)
        return f"Space({{{', '.join(entries)}}})"

    def _format_entry(self, name: str) -> str:
        entry = self.domains.get(name, self.constants.get(name))
        options = []
        if name in self.conditions:
            when = {p: values[0] if len(values) == 1 else list(values) for p, values in self.conditions[name].items()}
            options.append(f"when={when!r}")
        if prior := self._priors.get(name):
            options.append(f"prior={prior.center!r}, confidence={prior.confidence!r}")
        text = repr(Constant(entry) if isinstance(entry, list) else entry)
        return f"parameter({', '.join((text, *options))})" if options else text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and space_to_json(self) == space_to_json(other) and self.names == other.names

    __hash__ = None  # type: ignore[assignment]  # constants may be lists

    @property
    def num_configurations(self) -> int | None:
        """Number of distinct configurations, or None if a hyperparameter is real-valued."""
        return count_configurations(self._parents_first, self.domains, self.conditions)

    def from_units(self, units: Sequence[float]) -> dict[str, object]:
        """Return the configuration at a point of the unit cube. `units`: one coordinate per domain.

        Raises ValueError if the number of coordinates is wrong, or a coordinate is not in [0, 1).
        """
        if len(units) != len(self.domains):
            raise ValueError(f"a point of this space has {len(self.domains)} numbers, got {len(units)}")
        pairs = zip(self.domains.items(), units, strict=True)
        return self._make_config({name: domain.from_unit(u) for (name, domain), u in pairs})

    def sample(self, rng: RandomSource) -> dict[str, object]:
        """Sample a configuration uniformly. Calls `rng.random()` once per domain, in order."""
        return self._make_config({name: domain.from_unit(rng.random()) for name, domain in self.domains.items()})

    def resample(self, config: Mapping[str, object], name: str, rng: RandomSource) -> dict[str, object]:
        """Return a copy of `config` with a new random value of `name`, which may equal the old one.

        Conditional hyperparameters that no longer exist are removed, and new ones are sampled. Raises ValueError if
        `name` is unknown, constant or does not exist in `config`, or if `config` is invalid.
        """
        if name not in self.domains:
            reason = "is a constant of the space" if name in self.constants else "is not in the space"
            raise ValueError(f"{name!r} {reason}{did_you_mean(name, self.domains)}")
        checked_config = self.check(config)
        if name not in checked_config:
            condition = format_condition(self.conditions[name])
            raise ValueError(f"{name!r} does not exist in this configuration; it exists only when {condition}")
        new_config = {**checked_config, name: self.domains[name].from_unit(rng.random())}
        for dependent in self._parents_first if self.conditions else ():
            if not exists(dependent, new_config, self.conditions):
                new_config.pop(dependent, None)
            elif dependent not in new_config and dependent in self.domains:
                new_config[dependent] = self.domains[dependent].from_unit(rng.random())
        return self._make_config(new_config)

    def complete(self, partial: Mapping[str, object], rng: RandomSource) -> dict[str, object]:
        """Return a configuration with the values of `partial`. Missing values are sampled as in `sample`.

        Parents are sampled such that the conditional hyperparameters in `partial` exist. Raises ValueError as `check`,
        and if hyperparameters cannot exist together.
        """
        given_values = self._plain_values(partial, [])
        units = {name: rng.random() for name in self.domains}
        values = {name: domain.from_unit(units[name]) for name, domain in self.domains.items()}
        for name, allowed in required_ancestors(partial, self.conditions).items():
            if name not in given_values and not is_one_of(values[name], allowed):
                values[name] = allowed[int(units[name] * len(allowed))]
        return self._make_config({**values, **given_values})

    def grid(self, num_points: int | Mapping[str, int]) -> Iterator[dict[str, object]]:
        """Iterate over a grid of evenly spaced values. The last name changes fastest.

        Args:
            num_points: number of values per domain, for all domains or by name. Domains with fewer values, and every
                choice, use all of their values.

        Raises ValueError if a number is below 1, or a domain is missing.
        """
        if not isinstance(num_points, Mapping):
            num_points = dict.fromkeys(self.domains, num_points)
        if missing := [name for name in self.domains if name not in num_points]:
            raise ValueError(f"num_points is missing {', '.join(map(repr, missing))}")
        values = {name: grid_values(domain, num_points[name]) for name, domain in self.domains.items()}
        return self._completions(values, {}, self._parents_first)

    def _completions(
        self, values: Mapping[str, Sequence[Value]], config: Mapping[str, object], names: Sequence[str]
    ) -> Iterator[dict[str, object]]:
        for index, name in enumerate(names):
            if name in values and exists(name, config, self.conditions):
                for value in values[name]:
                    yield from self._completions(values, {**config, name: value}, names[index + 1 :])
                return
        yield self._make_config(config)

    def with_objects(self, config: Mapping[str, object]) -> dict[str, Any]:
        """Return a copy of `config` with objects in place of their names, as the objective receives it.

        Raises ValueError if the space was restored from a record, which contains only names.

        >>> from fanwise.tune import choice
        >>> Space({"layers": choice([[64], [64, 64]])}).with_objects({"layers": "[64, 64]"})
        {'layers': [64, 64]}
        """
        return with_objects(config, object_categories(self))

    def check(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return a valid configuration with normalized values, the constants, and the order of the space.

        Raises ValueError with a list of all problems, such as missing or unknown names.
        """
        missing_names = (name for name in self.domains if name not in config)
        problems = [f"{name!r} is missing" for name in missing_names if exists(name, config, self.conditions)]
        return self._make_config(self._plain_values(config, problems))

    def _plain_values(self, config: Mapping[str, object], problems: list[str]) -> dict[str, object]:
        """Return the normalized values of `config`. Raise ValueError with `problems` and new problems, if any."""
        plain_values: dict[str, object] = {}
        for name, value in config.items():
            domain = self.domains.get(name)
            if domain is not None and domain.contains(value):
                plain_values[name] = domain.normalize(value)
            elif domain is not None:
                problems.append(f"{name} = {value!r} is not in {domain!r}")
            elif name not in self.constants:
                problems.append(f"{name!r} is not in the space{did_you_mean(name, self.names)}")
            elif plain_json_or_name(name, value) != self.constants[name]:
                problems.append(f"{name} = {value!r}, but the space has the constant {self.constants[name]!r}")
        if not problems and self.conditions:
            problems += self._unmet_conditions(plain_values, config)
        if problems:
            raise ValueError("\n".join(problems))
        return plain_values

    def _unmet_conditions(self, plain_values: Mapping[str, object], config: Mapping[str, object]) -> list[str]:
        """Return a message for each hyperparameter in `config` whose condition a parent in `plain_values` violates.

        Raises ValueError if two hyperparameters cannot exist together for any value of the omitted parents.
        """
        problems = []
        for name in config:
            for parent, values in required_ancestors([name], self.conditions).items():
                if parent in plain_values and not is_one_of(plain_values[parent], values):
                    condition = format_condition({parent: tuple(values)})
                    problems.append(
                        f"{name} = {config[name]!r} is given, but it exists only when {condition}, "
                        f"and {parent} is {plain_values[parent]!r}"
                    )
                    break
        if not problems:
            required_ancestors(config, self.conditions)
        return problems

    def _make_config(self, values: Mapping[str, object]) -> dict[str, object]:
        """Add constants, remove hyperparameters that do not exist, and restore the order of the space."""
        config: dict[str, object] = {**self._template, **values}
        for name in self._mutable_constants:
            config[name] = plain_json(name, self.constants[name])
        if not self.conditions:
            return config
        existing: dict[str, object] = {}
        for name in self._parents_first:
            if exists(name, existing, self.conditions):
                existing[name] = config[name]
        return {name: existing[name] for name in self.names if name in existing}


def check_partial_config(space: Space, partial: Mapping[str, object]) -> dict[str, object]:
    """Return the normalized values of an incomplete configuration. Raises ValueError with a list of all problems."""
    return space._plain_values(partial, [])


def space_priors(space: Space) -> Mapping[str, Prior]:
    return space._priors


def object_categories(space: Space) -> Mapping[str, Mapping[Value, Any]]:
    """Return the object categories as {hyperparameter: {name of the object: object}}.

    Raises ValueError if the space was restored from a record, which contains only names.
    """
    objects = {}
    for name, domain in space.domains.items():
        if isinstance(domain, Categories) and domain.object_indices:
            if domain.objects is None:
                raise ValueError(
                    f"{name}: {domain!r} was restored from a record, which has only the names of its objects. "
                    f"Pass the original space."
                )
            names = [domain.categories[index] for index in domain.object_indices]
            objects[name] = dict(zip(names, domain.objects, strict=True))
    return objects


def space_to_json(space: Space) -> dict[str, object]:
    """Return {name: {"domain": type, ...} or {"constant": value}}, with "when" and "prior" if set."""
    entries: dict[str, object] = {}
    for name in space.names:
        if name in space.domains:
            entry = domain_to_json(space.domains[name])
        else:
            entry = {"constant": plain_json(name, space.constants[name])}
        if name in space.conditions:
            entry["when"] = {parent: list(values) for parent, values in space.conditions[name].items()}
        if prior := space._priors.get(name):
            entry |= {"prior": prior.center, "confidence": prior.confidence}
        entries[name] = entry
    return entries


def space_from_json(body: Mapping[str, object]) -> Space:
    """Restore a space from the result of `space_to_json`. Raises ValueError if `body` is invalid."""
    mapping: dict[str, object] = {}
    for name, entry in body.items():
        if not isinstance(entry, Mapping):
            raise ValueError(f"{name!r} is {entry!r}, not the JSON form of a domain or a constant")
        options = {key: entry[key] for key in ("when", "prior", "confidence") if key in entry}
        settings = {key: value for key, value in entry.items() if key not in options}
        domain = Constant(settings["constant"]) if set(settings) == {"constant"} else domain_from_json(settings)
        mapping[name] = parameter(domain, **options) if options else domain
    return Space(mapping)


def _checked_constant(name: str, entry: object) -> object:
    if isinstance(entry, list | tuple | range | AbstractSet):
        values = reprlib.repr(list(itertools.islice(entry, 7)))  # shows the first 6
        raise TypeError(
            f"{name!r} is a bare {type(entry).__name__}, which is ambiguous:\n"
            f"  one of these values for each trial:     {name!r}: choice({values})\n"
            f"  all of them, the same for every trial:  {name!r}: constant({values})"
        )
    value = entry.value if isinstance(entry, Constant) else entry
    return plain_json(f"the constant {name!r}", value)
