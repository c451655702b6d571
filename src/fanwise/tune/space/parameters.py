"""Hyperparameters with a condition or a prior.

Conditional hyperparameters exist only if their parents have certain values:

    "optimizer": choice(["sgd", "adam"])
    "momentum":  parameter(uniform(0, 0.99), when={"optimizer": "sgd"})

A configuration contains only the hyperparameters that exist. Conditions may be nested. If a parent does not exist, its
children do not exist either.

A prior is a distribution around a center, a value that is expected to be good. On an ordered domain, the prior is a
normal distribution on the scale of the domain, truncated to the domain. Its standard deviation is (1 - confidence)
times the width of the domain (PriorBand, Mallik et al. 2023, arXiv 2306.12370, as implemented in NePS). On a choice,
the center has probability `confidence`, and the other categories share the rest. The normal distribution is
approximated by a histogram with 256 bins of integer weight, so that draws are bit-identical on every machine.
"""

import functools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias, final

from ...base.nearest import did_you_mean
from ..values import Value, is_number
from .domains import Domain, is_finite
from .scales import FRACTION_BITS, ONE, below_one, check_unit, exp2

Confidence: TypeAlias = Literal["low", "medium", "high"] | float
_CONFIDENCES = {"low": 0.5, "medium": 0.75, "high": 0.9}
_NUM_BINS = 256  # of the histogram
_HALF_LOG2_E = 0.7213475204444817
_MAX_Z_SQUARED = 64.0  # keeps the probability of every value above 0


@final
@dataclass(frozen=True, slots=True)
class Prior:
    """A distribution around `center`, as described above. `confidence` is between 0 and 1, exclusive."""

    center: Value
    confidence: float

    def value_at(self, domain: Domain, u: float) -> Value:
        """Map u in [0, 1) to a value with the distribution of the prior. Monotone on ordered domains."""
        if domain.ordered:
            return domain.from_unit(_normal_quantile(check_unit(u), domain.to_unit(self.center), 1.0 - self.confidence))
        assert domain.num_values is not None, "unordered domains are finite"
        probability = max(self.confidence, 1.0 / domain.num_values)
        if check_unit(u) < probability or domain.num_values == 1:
            return self.center
        # Map the remaining interval to the other categories, starting after the center, cyclically.
        share = 1.0 / domain.num_values
        rest = below_one((u - probability) / (1.0 - probability)) * (1.0 - share)
        position = domain.to_unit(self.center) + share / 2 + rest
        return domain.from_unit(below_one(position - 1.0 if position >= 1.0 else position))


def make_prior(domain: Domain, center: object, confidence: object) -> Prior:
    """Return a validated prior. Arguments and errors are those of `parameter`."""
    if not domain.contains(center):
        raise ValueError(f"prior {center!r} is not in {domain!r}")
    if isinstance(confidence, str):
        if confidence not in _CONFIDENCES:
            raise ValueError(f"{confidence!r} is not a confidence{did_you_mean(confidence, _CONFIDENCES)}")
        confidence = _CONFIDENCES[confidence]
    if not is_number(confidence):
        raise TypeError(f"confidence must be a number or a str, got {confidence!r} of type {type(confidence).__name__}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be above 0 and below 1, got {confidence!r}; 'high' is 0.9")
    return Prior(domain.normalize(center), float(confidence))


@functools.lru_cache(maxsize=1024)
def _cumulative_weights(center: float, deviation: float) -> tuple[int, ...]:
    """Return the cumulative weights of the histogram that approximates the normal distribution."""
    weights = []
    for bin_index in range(_NUM_BINS):
        z = ((bin_index + 0.5) / _NUM_BINS - center) / deviation
        m, e = exp2(int(-min(z * z, _MAX_Z_SQUARED) * _HALF_LOG2_E * ONE))
        weights.append(m >> -e)
    return tuple(accumulate(weights))


def _normal_quantile(u: float, center: float, deviation: float) -> float:
    """Return the quantile of the truncated normal distribution at u in [0, 1)."""
    sums = _cumulative_weights(center, deviation)
    target = int(u * ONE) * sums[-1] >> FRACTION_BITS
    index = bisect_right(sums, target)
    lower = sums[index - 1] if index else 0
    return below_one((index + (target - lower) / (sums[index] - lower)) / _NUM_BINS)


When: TypeAlias = Mapping[str, tuple[Value, ...]]  # parent -> values that the parent may have; all parents must match


@final
@dataclass(frozen=True, slots=True)
class Parameter:
    """A domain or constant with a condition or prior. Created by `parameter`. `Space` validates the condition."""

    domain: object
    when: Mapping[str, object] | None
    prior: Prior | None


_NO_PRIOR = object()


def parameter(
    domain: object,
    *,
    when: Mapping[str, object] | None = None,
    prior: object = _NO_PRIOR,
    confidence: Confidence = "medium",
) -> Parameter:
    """A hyperparameter with a condition or a prior.

    Args:
        domain: a domain such as `uniform(0, 1)`, or a constant.
        when: {parent: value, or list of values, that the parent must have}. The hyperparameter exists only if all
            parents match. Otherwise the objective is called without the argument, so the argument needs a default.
            None: the hyperparameter always exists.
        prior: a value that is expected to be good. Model-based searchers draw some configurations near it.
            `Space.sample` ignores it.
        confidence: "low" (0.5), "medium" (0.75), "high" (0.9), or a number between 0 and 1, exclusive.

    Raises:
        TypeError: the confidence is neither a number nor a str.
        ValueError: the confidence is invalid, the prior is not in the domain, or a constant has a prior.

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
    if prior is _NO_PRIOR:
        return Parameter(domain, when, None)
    if not isinstance(domain, Domain):
        raise ValueError(f"the constant {domain!r} cannot have a prior")
    return Parameter(domain, when, make_prior(domain, prior, confidence))


def normalize_condition(
    name: str, when: Mapping[str, object], domains: Mapping[str, Domain], names: Sequence[str]
) -> When:
    """Validate the `when` of a hyperparameter and convert its values to plain Python.

    Raises:
        TypeError: `when` is not a mapping.
        ValueError: a parent is unknown, constant, real-valued or the hyperparameter itself, or no values or values
            outside its domain are given for it.
    """
    if not isinstance(when, Mapping):
        raise TypeError(
            f"{name!r}: `when` must map parents to values, got {when!r} of type {type(when).__name__}; "
            f'write when={{"optimizer": "sgd"}}'
        )
    if not when:
        raise ValueError(f"{name!r}: `when` is empty; omit it if the hyperparameter always exists")
    normalized: dict[str, tuple[Value, ...]] = {}
    for parent, allowed in when.items():
        if parent == name:
            raise ValueError(f"{name!r} depends on itself")
        domain = domains.get(parent)
        if domain is None:
            reason = "is a constant of the space" if parent in names else "is not in the space"
            raise ValueError(f"{name!r} depends on {parent!r}, which {reason}{did_you_mean(parent, domains)}")
        if not is_finite(domain):
            raise ValueError(
                f"{name!r} depends on {parent!r}, which is real-valued: {domain!r}; "
                f"a parent must have finitely many values"
            )
        is_list = isinstance(allowed, list | tuple | range) and not domain.contains(allowed)
        values = list(allowed) if is_list else [allowed]  # type: ignore[call-overload]  # a list
        if not values:
            raise ValueError(f"{name!r}: `when` lists no value for {parent!r}, so {name!r} would never exist")
        for value in values:
            if not domain.contains(value):
                raise ValueError(f"{name!r} depends on {parent!r} = {value!r}, which is not in {domain!r}")
        normalized[parent] = tuple(domain.value_at(i) for i in dict.fromkeys(map(domain.index_of, values)))
    return normalized


def parents_first(names: Iterable[str], conditions: Mapping[str, When]) -> tuple[str, ...]:
    """Return the names sorted such that parents precede children. Otherwise the order is kept.

    Raises ValueError if the conditions form a cycle.
    """
    sorted_names: dict[str, None] = {}

    def visit(name: str, children: tuple[str, ...]) -> None:
        if name in children:
            cycle = " -> ".join((*children[children.index(name) :], name))
            raise ValueError(f"these hyperparameters depend on each other in a cycle: {cycle}")
        if name not in sorted_names:
            for parent in conditions.get(name, ()):
                visit(parent, (*children, name))
            sorted_names[name] = None

    for name in names:
        visit(name, ())
    return tuple(sorted_names)


def exists(name: str, config: Mapping[str, object], conditions: Mapping[str, When]) -> bool:
    """Return True if the hyperparameter exists given the values of its parents in `config`."""
    parents = conditions.get(name, {}).items()
    return all(parent in config and is_one_of(config[parent], values) for parent, values in parents)


def is_one_of(value: object, values: Iterable[Value]) -> bool:
    """Return True if the value is one of `values`. Unlike with `in`, True and 1 are different."""
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in values)


def format_condition(when: When) -> str:
    """Format a condition for messages."""
    parts = (
        f"{parent} is {' or '.join(map(repr, values))}" if len(values) < 4 else f"{parent} is one of {list(values)!r}"
        for parent, values in when.items()
    )
    return " and ".join(parts)


def required_ancestors(names: Iterable[str], conditions: Mapping[str, When]) -> dict[str, list[Value]]:
    """Return {ancestor: values that it may have} for the ancestors of `names`, such that all `names` exist.

    Raises ValueError if two of the names cannot exist together.
    """
    allowed: dict[str, tuple[list[Value], str]] = {}
    queue = list(names)
    for name in queue:
        for parent, values in conditions.get(name, {}).items():
            previous, child = allowed.get(parent, (list(values), name))
            common_values = [value for value in previous if is_one_of(value, values)]
            if not common_values:
                first, second = format_condition({parent: tuple(previous)}), format_condition({parent: values})
                raise ValueError(
                    f"{child} and {name} never exist together: {child} only when {first}, {name} only when {second}"
                )
            allowed[parent] = (common_values, name)
            if parent not in queue:
                queue.append(parent)
    return {parent: values for parent, (values, _) in allowed.items()}


_OTHER = object()  # stands for all values of a parent that occur in no condition


def count_configurations(
    names: Sequence[str], domains: Mapping[str, Domain], conditions: Mapping[str, When]
) -> int | None:
    """Return the number of distinct configurations, or None if a domain is real-valued.

    Parents must precede children in `names`.
    """
    if not all(map(is_finite, domains.values())):
        return None
    values_of: dict[str, list[Value]] = {}  # parent -> its values in conditions
    for when in conditions.values():
        for parent, values in when.items():
            union = values_of.setdefault(parent, [])
            union += [value for value in values if not is_one_of(value, union)]

    def count(index: int, config: Mapping[str, object]) -> int:
        if index == len(names):
            return 1
        name, domain = names[index], domains.get(names[index])
        if domain is None or not exists(name, config, conditions):
            return count(index + 1, config)
        num_values = domain.num_values or 0
        if name not in values_of:
            return num_values * count(index + 1, config)
        num_others = num_values - len(values_of[name])
        total = num_others * count(index + 1, {**config, name: _OTHER}) if num_others else 0
        return total + sum(count(index + 1, {**config, name: value}) for value in values_of[name])

    return count(0, {})
