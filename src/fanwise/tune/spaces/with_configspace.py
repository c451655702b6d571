"""Spaces from ConfigSpace (1.0 and newer) and for it: SMAC, DEHB and NePS describe their spaces so.

    UniformFloat, log                 uniform, loguniform          Categorical         choice
    UniformInteger, log               randint, lograndint          Ordinal             ordinal(..., kind="equal")
    Normal..., weights of one choice  a prior                      Constant            a constant
    Equals, In, NotEquals, <, >, And  when=

What is finite, ordered and equally likely (finrange, logfinrange, quniform, qrandint) goes out as an Ordinal. What
ConfigSpace or this library cannot say is an error that names the hyperparameter: forbidden clauses, Beta
distributions, conditions that join two parents by "or", reverseloguniform, priors on logarithmic scales, ... Default
values are not part of a space here: give `dict(configspace.get_default_configuration())` to `points_to_evaluate`.
"""

from collections.abc import Mapping
from typing import Any

from ...base.errors import NotInstalled
from .bounds import Value
from .categories import Choice
from .conditions import When, is_one_of, parameter
from .domains import Domain, choice, lograndint, loguniform, ordinal, randint, uniform
from .near import is_finite
from .prior import Prior
from .space import Constant, Space

try:
    import ConfigSpace as cs
    from ConfigSpace.conditions import Condition, Conjunction
except ImportError as error:
    raise NotInstalled(
        "spaces from and for ConfigSpace need that library. Install it: pip install 'fanwise[configspace]'."
    ) from error

_MOST_VALUES = 10_000  # of a parent, which are tried one by one, and of an Ordinal


def from_configspace(space: cs.ConfigurationSpace) -> Space:
    """The same space here.

    Raises:
        ValueError: something in it has no counterpart; the message names it.

    >>> import ConfigSpace
    >>> space = ConfigSpace.ConfigurationSpace({"learning_rate": (0.01, 1.0), "optimizer": ["sgd", "adam"]})
    >>> sorted(from_configspace(space).domains.items())
    [('learning_rate', uniform(0.01, 1.0)), ('optimizer', choice(['sgd', 'adam']))]
    """
    if space.forbidden_clauses:
        raise ValueError(
            f"the clause {space.forbidden_clauses[0]} has no counterpart: a fanwise.tune.Space forbids nothing"
        )
    read = {name: _read(name, given) for name, given in space.items()}
    domains = {name: domain for name, (domain, _) in read.items()}
    conditions = {condition.child.name: _read_condition(condition, domains) for condition in space.conditions}
    mapping: dict[str, object] = {}
    for name, (domain, prior) in read.items():
        more: dict[str, Any] = {"when": conditions[name]} if name in conditions else {}
        if prior is not None:
            more |= {"prior": prior.center, "confidence": prior.confidence}
        mapping[name] = parameter(domain, **more) if more else domain
    return Space(mapping)


def _read(name: str, given: cs.hyperparameters.Hyperparameter) -> tuple[object, Prior | None]:
    """The domain or constant, and a prior if there is one."""
    if isinstance(given, cs.Constant):
        return Constant(given.value), None
    if isinstance(given, cs.UniformFloatHyperparameter):
        return (loguniform if given.log else uniform)(given.lower, given.upper), None
    if isinstance(given, cs.UniformIntegerHyperparameter):
        return (lograndint if given.log else randint)(given.lower, given.upper), None
    if isinstance(given, cs.OrdinalHyperparameter):
        return ordinal(tuple(given.sequence), "equal"), None
    if isinstance(given, cs.CategoricalHyperparameter):
        return choice(tuple(given.choices)), _read_weights(name, given)
    if isinstance(given, cs.NormalFloatHyperparameter | cs.NormalIntegerHyperparameter) and not given.log:
        return _read_normal(name, given)
    raise ValueError(f"{name!r} has no counterpart in a fanwise.tune.Space: {given}")


def _read_weights(name: str, given: cs.CategoricalHyperparameter) -> Prior | None:
    ordered = sorted(zip(map(float, given.probabilities), range(len(given.choices)), strict=True), reverse=True)
    others = {round(weight, 12) for weight, _ in ordered[1:]}
    if len(others | {round(ordered[0][0], 12)}) == 1:
        return None
    if len(others) > 1:
        raise ValueError(
            f"the weights of {name!r} have no counterpart: a prior here makes one category likelier than all others, "
            f"which are equally likely. They are {[float(weight) for weight in given.probabilities]}"
        )
    return Prior(given.choices[ordered[0][1]], ordered[0][0])


def _read_normal(
    name: str, given: cs.NormalFloatHyperparameter | cs.NormalIntegerHyperparameter
) -> tuple[Domain, Prior]:
    is_int = isinstance(given, cs.NormalIntegerHyperparameter)
    width = float(given.upper - given.lower + is_int)
    if not 0 < given.sigma < width or not given.lower <= given.mu <= given.upper:
        raise ValueError(f"{name!r} has no counterpart as a prior, whose centre lies within the bounds: {given}")
    domain = randint(given.lower, given.upper) if is_int else uniform(given.lower, given.upper)
    return domain, Prior(round(given.mu) if is_int else float(given.mu), 1.0 - float(given.sigma) / width)


def _read_condition(condition: Condition | Conjunction, domains: Mapping[str, object]) -> dict[str, object]:
    if isinstance(condition, Conjunction):
        parts = [_read_condition(part, domains) for part in condition.components]
        parents = list(dict.fromkeys(parent for part in parts for parent in part))
        if isinstance(condition, cs.OrConjunction):
            if len(parents) > 1:
                raise ValueError(
                    f"the condition {condition} has no counterpart: here all parents must have one of their values"
                )
            return {parents[0]: [value for part in parts for value in _listed(part[parents[0]])]}
        return {parent: _in_all([_listed(part[parent]) for part in parts if parent in part]) for parent in parents}
    parent = condition.parent.name
    domain: Any = domains[parent]  # Any: a domain or a constant
    if isinstance(domain, Constant) or not is_finite(domain) or domain.num_values > _MOST_VALUES:
        raise ValueError(f"the condition {condition} has no counterpart: {parent!r} must have few different values")
    values = [domain.value_at(index) for index in range(domain.num_values)]
    return {parent: [value for value in values if condition.satisfied_by_value({parent: value})]}


def _listed(values: object) -> list[Value]:
    assert isinstance(values, list), "_read_condition lists them"
    return values


def _in_all(lists: list[list[Value]]) -> list[Value]:
    return [value for value in lists[0] if all(is_one_of(value, other) for other in lists[1:])]


def to_configspace(space: Space, *, seed: int | None = None) -> cs.ConfigurationSpace:
    """The same space for ConfigSpace.

    Args:
        space: what to translate.
        seed: of the generator that ConfigSpace keeps inside its space.

    Raises:
        ValueError: something in it has no counterpart there; the message names it.

    >>> from fanwise.tune import Space, choice, parameter
    >>> made = to_configspace(Space({
    ...     "optimizer": choice(["sgd", "adam"]), "momentum": parameter(uniform(0, 0.99), when={"optimizer": "sgd"})
    ... }))
    >>> print(made.conditions)
    [momentum | optimizer == 'sgd']
    """
    made = cs.ConfigurationSpace(seed=seed)
    parameters = {name: cs.Constant(name, value) for name, value in space.constants.items()}
    parameters |= {name: _write(name, domain, space.priors.get(name)) for name, domain in space.domains.items()}
    made.add([parameters[name] for name in space.names])
    made.add([_write_condition(parameters, name, when) for name, when in space.conditions.items()])
    return made


def _write(name: str, domain: Domain, prior: Prior | None) -> Any:  # Any: one of ConfigSpace's hyperparameters
    settings: Any = domain.settings()  # Any: numbers and lists
    if isinstance(domain, Choice):
        return _write_choice(name, domain, prior)
    if prior is not None:
        return _write_normal(name, domain, prior)
    if domain.made_by in ("uniform", "loguniform"):
        return cs.UniformFloatHyperparameter(name, **settings, log=domain.made_by == "loguniform")
    if domain.made_by in ("randint", "lograndint"):
        return cs.UniformIntegerHyperparameter(name, **settings, log=domain.made_by == "lograndint")
    equal = domain.made_by in ("quniform", "qrandint", "finrange", "logfinrange") or settings.get("kind") == "equal"
    if equal and is_finite(domain) and domain.num_values <= _MOST_VALUES:
        return cs.OrdinalHyperparameter(name, [domain.value_at(index) for index in range(domain.num_values)])
    raise ValueError(f"{name!r} cannot go to ConfigSpace: {domain!r} has no counterpart there")


def _write_choice(name: str, domain: Choice, prior: Prior | None) -> cs.CategoricalHyperparameter:
    if prior is None or domain.num_values == 1:
        return cs.CategoricalHyperparameter(name, domain.categories)
    trust = max(prior.confidence, 1.0 / domain.num_values)
    center = domain.index_of(prior.center)
    weights = [
        trust if index == center else (1.0 - trust) / (domain.num_values - 1) for index in range(domain.num_values)
    ]
    return cs.CategoricalHyperparameter(name, domain.categories, weights=weights, default_value=prior.center)


def _write_normal(name: str, domain: Domain, prior: Prior) -> Any:  # Any: one of two of ConfigSpace's
    settings: Any = domain.settings()  # Any: numbers
    if domain.made_by not in ("uniform", "randint"):
        raise ValueError(
            f"the prior of {name!r} cannot go to ConfigSpace, which has them for uniform, randint and choice only; "
            f"this is {domain!r}"
        )
    is_int = domain.made_by == "randint"
    sigma = (1.0 - prior.confidence) * (settings["upper"] - settings["lower"] + is_int)
    made: Any = cs.NormalIntegerHyperparameter if is_int else cs.NormalFloatHyperparameter
    return made(name, mu=prior.center, sigma=sigma, **settings)


def _write_condition(parameters: Mapping[str, Any], name: str, when: When) -> Any:  # Any: a condition of ConfigSpace
    child = parameters[name]
    parts = [
        cs.EqualsCondition(child, parameters[parent], values[0])
        if len(values) == 1
        else cs.InCondition(child, parameters[parent], list(values))
        for parent, values in when.items()
    ]
    return parts[0] if len(parts) == 1 else cs.AndConjunction(*parts)
