"""Spaces from Optuna's distributions and for them.

    FloatDistribution, log, step    uniform, loguniform, quniform (finrange where low is no multiple of the step)
    IntDistribution, log, step      randint, lograndint, qrandint (finrange(..., cast_int=True))
    CategoricalDistribution         choice; with a single category a constant

Optuna's distributions know no conditions, orders of categories, priors or reversed logarithms: each is an error that
names the hyperparameter. Where conditions are to travel, let a trial of Optuna ask: `suggest(space, trial)`.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ...base.errors import NotInstalled
from .conditions import exists, parents_first, told
from .domains import Domain, choice, finrange, lograndint, loguniform, qrandint, quniform, randint, uniform
from .space import Constant, Space

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
except ImportError as error:
    raise NotInstalled(
        "spaces from and for Optuna need that library. Install it: pip install 'fanwise[optuna]'."
    ) from error


def from_optuna(distributions: Mapping[str, BaseDistribution]) -> Space:
    """The space of Optuna's distributions, such as those of `trial.distributions`.

    Raises:
        ValueError: a distribution has no counterpart; the message names it.

    >>> from optuna.distributions import FloatDistribution, IntDistribution
    >>> from_optuna({"lr": FloatDistribution(0.01, 1, log=True), "width": IntDistribution(8, 64, step=8)})
    Space({'lr': loguniform(0.01, 1.0), 'width': qrandint(8, 64, 8)})
    """
    return Space({name: _read(name, given) for name, given in distributions.items()})


def _read(name: str, given: BaseDistribution) -> object:
    if isinstance(given, CategoricalDistribution):
        return Constant(given.choices[0]) if given.single() else choice(given.choices)
    if not isinstance(given, FloatDistribution | IntDistribution):
        raise ValueError(f"{name!r} has no counterpart in a fanwise.tune.Space: {given}")
    if given.single():
        return Constant(given.low)
    if isinstance(given, FloatDistribution):
        if given.step is None:
            return (loguniform if given.log else uniform)(given.low, given.high)
        return _stepped(quniform, False, given.low, given.high, given.step)
    if given.step == 1:
        return (lograndint if given.log else randint)(given.low, given.high)
    return _stepped(qrandint, True, given.low, given.high, given.step)


def _stepped(multiples: Callable[..., Domain], is_int: bool, low: float, high: float, step: float) -> Domain:
    first, last, width = (Fraction(repr(number)) for number in (low, high, step))
    if (first / width).denominator == 1:
        return multiples(low, high, step)
    return finrange(low, high, int((last - first) / width) + 1, cast_int=is_int)


def to_optuna(space: Space) -> dict[str, BaseDistribution]:
    """Optuna's distributions of a space without conditions; a constant is a single category.

    Raises:
        ValueError: something in it has no counterpart there; the message names it.

    >>> from fanwise.tune import Space, loguniform
    >>> to_optuna(Space({"lr": loguniform(0.01, 1), "epochs": 10}))["lr"]
    FloatDistribution(high=1.0, log=True, low=0.01, step=None)
    """
    for name, when in space.conditions.items():
        raise ValueError(
            f"{name!r} exists only when {told(when)}, and Optuna's distributions have no conditions; "
            f"use suggest(space, trial) inside the objective"
        )
    return distributions(space)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The distribution of every name of the space, of those too that exist only beside certain values of others.

    Raises:
        ValueError: something in the space has no counterpart in Optuna; the message names it.
    """
    return {name: _distribution(space, name) for name in space.names}


def suggest(space: Space, trial: "optuna.trial.BaseTrial") -> dict[str, object]:
    """A configuration of `space` that a trial of Optuna suggests: only what exists beside its values is asked for.

    Raises:
        ValueError: something in the space has no counterpart in Optuna; the message names it.

    >>> from fanwise.tune import Space, choice, parameter, uniform
    >>> space = Space({
    ...     "optimizer": choice(["sgd", "adam"]), "momentum": parameter(uniform(0, 0.99), when={"optimizer": "sgd"})
    ... })
    >>> suggest(space, optuna.trial.FixedTrial({"optimizer": "adam"}))
    {'optimizer': 'adam'}
    """
    config: dict[str, object] = {}
    for name in parents_first(space.names, space.conditions):
        if exists(name, config, space.conditions):
            config[name] = _suggested(space, name, trial) if name in space.domains else space.constants[name]
    return space.check(config)


def _suggested(space: Space, name: str, trial: "optuna.trial.BaseTrial") -> object:
    asked: Any = _distribution(space, name)  # Any: one of three, whose attributes differ
    if isinstance(asked, CategoricalDistribution):
        return trial.suggest_categorical(name, asked.choices)
    suggest_number: Any = trial.suggest_int if isinstance(asked, IntDistribution) else trial.suggest_float
    return suggest_number(name, asked.low, asked.high, step=asked.step, log=asked.log)


def _distribution(space: Space, name: str) -> BaseDistribution:
    if name in space.priors:
        raise ValueError(f"the prior of {name!r} cannot go to Optuna: its distributions have none")
    if name in space.constants:
        value = space.constants[name]
        if isinstance(value, list | dict):
            raise ValueError(f"the constant {name!r} cannot go to Optuna: {value!r} is neither text, number nor None")
        return CategoricalDistribution((value,))
    found = distribution_of(space.domains[name])
    if found is None:
        raise ValueError(f"{name!r} cannot go to Optuna: {space.domains[name]!r} has no counterpart there")
    return found


def distribution_of(domain: Domain) -> BaseDistribution | None:
    """Optuna's counterpart of a domain, with the same values; None: it has none."""
    settings: Any = domain.settings()  # Any: numbers and lists
    if domain.made_by == "choice":
        return CategoricalDistribution(settings["categories"])
    low, high = settings.get("lower"), settings.get("upper")
    if domain.made_by in ("uniform", "loguniform"):
        return FloatDistribution(low, high, log=domain.made_by == "loguniform")
    if domain.made_by in ("randint", "lograndint"):
        return IntDistribution(low, high, log=domain.made_by == "lograndint")
    step = _step(domain.made_by, settings)
    if step is None:
        return None
    if isinstance(low, int):
        return IntDistribution(low, high, step=int(step))
    return FloatDistribution(low, high, step=float(step))


def _step(made_by: str, settings: Mapping[str, Any]) -> Fraction | None:
    """The distance of equally spaced values, if Optuna can say it: a whole number for ints, else a float as written."""
    if made_by in ("quniform", "qrandint"):
        return Fraction(repr(settings["q"]))
    if made_by != "finrange":
        return None
    width = Fraction(repr(settings["upper"])) - Fraction(repr(settings["lower"]))
    step = width / (settings["size"] - 1)
    if settings["cast_int"]:
        return step if step.denominator == 1 else None
    return step if Fraction(repr(float(step))) == step else None
