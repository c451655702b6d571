"""Conditions: a hyperparameter that exists only when others have certain values. Quiet.

    "optimizer": choice(["sgd", "adam"])
    "momentum":  parameter(uniform(0, 0.99), when={"optimizer": "sgd"})

A configuration leaves out what does not exist in it. Conditions may be nested: `nesterov` may depend on
`momentum_kind`, which depends on `optimizer`; without its parent a hyperparameter never exists.

Knows names, domains and values; draws nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

from ...base.nearest import did_you_mean
from .bounds import Value
from .domains import Domain, is_domain
from .near import is_finite
from .prior import Confidence, make_prior

When: TypeAlias = Mapping[str, tuple[Value, ...]]  # all of these parents must have one of their values


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """A domain or constant with more to say about it. Made by `parameter`; a `Space` reads and checks it."""

    domain: object
    when: Mapping[str, object] | None
    prior: object
    confidence: Confidence

    def __repr__(self) -> str:
        more = "" if self.when is None else f", when={self.when!r}"
        if has_prior(self):
            more += f", prior={self.prior!r}, confidence={self.confidence!r}"
        return f"parameter({self.domain!r}{more})"


_NO_PRIOR = object()


def parameter(
    domain: object,
    *,
    when: Mapping[str, object] | None = None,
    prior: object = _NO_PRIOR,
    confidence: Confidence = "medium",
) -> Parameter:
    """A hyperparameter that exists only under a condition, or whose good values somebody knows roughly.

    Args:
        domain: a domain such as `uniform(0, 1)`, or a constant.
        when: parent -> the value, or the list of values, that it must have. With several parents all must. Without
            it the hyperparameter exists in every configuration. Where it does not exist the objective does not get
            it: give that argument a default.
        prior: the value that is expected to be good. `Space.sample_prior` draws near it; `Space.sample` does not.
        confidence: how surely: "low", "medium", "high", or a number above 0 and below 1.

    Raises:
        ValueError: the prior is not in the domain, or the confidence is none of these.

    >>> from random import Random
    >>> from fanwise.tune import Space, choice, uniform
    >>> space = Space({
    ...     "optimizer": choice(["sgd", "adam"]),
    ...     "momentum": parameter(uniform(0, 0.99), when={"optimizer": "sgd"}, prior=0.9),
    ... })
    >>> space.complete({"optimizer": "adam"}, Random(0))
    {'optimizer': 'adam'}
    >>> space.complete({"momentum": 0.9}, Random(0))
    {'optimizer': 'sgd', 'momentum': 0.9}
    """
    made = Parameter(domain, when, prior, confidence)
    if is_domain(domain) and has_prior(made):
        make_prior(domain, prior, confidence)
    return made


def has_prior(given: Parameter) -> bool:
    """Whether `parameter` was given a prior; None may be one."""
    return given.prior is not _NO_PRIOR


def read_when(name: str, when: Mapping[str, object], domains: Mapping[str, Domain], names: Iterable[str]) -> When:
    """The condition of `name` with plain values.

    Raises:
        TypeError: not a mapping.
        ValueError: a parent that is unknown, a constant, real-valued or the hyperparameter itself; no value, or one
            that the parent cannot have.
    """
    if not isinstance(when, Mapping):
        raise TypeError(
            f"{name!r}: when must map parents to their values, got {when!r} of type {type(when).__name__}; "
            f'write when={{"optimizer": "sgd"}}'
        )
    if not when:
        raise ValueError(f"{name!r}: when is empty; leave it out for what exists in every configuration")
    return {parent: _values(name, parent, given, domains, names) for parent, given in when.items()}


def _values(
    name: str, parent: str, given: object, domains: Mapping[str, Domain], names: Iterable[str]
) -> tuple[Value, ...]:
    if parent == name:
        raise ValueError(f"{name!r} depends on itself")
    domain = domains.get(parent)
    if domain is None:
        what = "is a constant of the space" if parent in set(names) else "is not in the space"
        raise ValueError(f"{name!r} depends on {parent!r}, which {what}{did_you_mean(parent, domains)}")
    if not is_finite(domain):
        raise ValueError(
            f"{name!r} depends on {parent!r}, but a value of {domain!r} is never drawn twice; "
            f"a parent must be a domain whose values can be counted"
        )
    is_list = isinstance(given, list | tuple | range) and not domain.contains(given)
    values = list(given) if is_list else [given]  # type: ignore[call-overload]  # a list
    if not values:
        raise ValueError(f"{name!r}: when has no value for {parent!r}, so it would never exist")
    for value in values:
        if not domain.contains(value):
            raise ValueError(f"{name!r} depends on {parent!r} = {value!r}, which is not in {domain!r}")
    return tuple(domain.value_at(index) for index in dict.fromkeys(map(domain.index_of, values)))


def parents_first(names: Iterable[str], conditions: Mapping[str, When]) -> tuple[str, ...]:
    """The names in their order, but none before those that it depends on.

    Raises:
        ValueError: some depend on each other in a circle.
    """
    ordered: dict[str, None] = {}
    for name in names:
        _put(name, conditions, ordered, ())
    return tuple(ordered)


def _put(name: str, conditions: Mapping[str, When], ordered: dict[str, None], children: tuple[str, ...]) -> None:
    if name in children:
        circle = " -> ".join((*children[children.index(name) :], name))
        raise ValueError(f"these hyperparameters depend on each other in a circle: {circle}")
    if name not in ordered:
        for parent in conditions.get(name, ()):
            _put(parent, conditions, ordered, (*children, name))
        ordered[name] = None


def exists(name: str, config: Mapping[str, object], conditions: Mapping[str, When]) -> bool:
    """Whether a hyperparameter exists beside these values of its parents; a parent that is left out does not."""
    return all(
        parent in config and is_one_of(config[parent], values) for parent, values in conditions.get(name, {}).items()
    )


def is_one_of(value: object, values: Iterable[Value]) -> bool:
    """Whether a plain value is among others; True is not 1."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)


def told(when: When) -> str:
    """A condition in words."""
    parts = (
        f"{parent} is {' or '.join(map(repr, values))}" if len(values) < 4 else f"{parent} is one of {list(values)!r}"
        for parent, values in when.items()
    )
    return " and ".join(parts)


def demands(given: Iterable[str], conditions: Mapping[str, When]) -> dict[str, list[Value]]:
    """Which values the parents, grandparents, ... may have so that all the given names exist.

    Raises:
        ValueError: two of them cannot exist together.
    """
    allowed: dict[str, tuple[list[Value], str]] = {}
    ahead = list(given)
    for name in ahead:
        for parent, values in conditions.get(name, {}).items():
            before, who = allowed.get(parent, (list(values), name))
            both = [value for value in before if is_one_of(value, values)]
            if not both:
                raise ValueError(
                    f"{who} and {name} never exist together: {who} only when {told({parent: tuple(before)})}, "
                    f"{name} only when {told({parent: values})}"
                )
            allowed[parent] = (both, name)
            if parent not in ahead:
                ahead.append(parent)
    return {parent: values for parent, (values, _) in allowed.items()}
