"""Optuna's distributions of a space.

    uniform, loguniform, quniform (finrange where its steps are exact)           FloatDistribution
    randint, lograndint, qrandint (finrange with cast_int where they are exact)  IntDistribution
    choice; a constant is a single category                                      CategoricalDistribution

Optuna has no ordered categories, priors or reversed logarithms. Its distributions have no conditions: a trial leaves
out the parameters that do not exist in it.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ...base.errors import NotInstalled
from .domains import Domain
from .space import Space

try:
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
except ImportError as error:
    raise NotInstalled("distributions of Optuna need it. Install it: pip install 'fanwise[optuna]'.") from error


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The distribution of every name of the space, including those that exist only beside certain values of others.

    Raises:
        ValueError: something in the space has no counterpart in Optuna; the message names it.

    >>> from fanwise.tune import loguniform
    >>> distributions(Space({"lr": loguniform(0.01, 1), "epochs": 10}))["lr"]
    FloatDistribution(high=1.0, log=True, low=0.01, step=None)
    """
    return {name: _distribution(space, name) for name in space.names}


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
        step = Fraction(repr(settings["q"]))
        return step if (Fraction(repr(settings["upper"])) / step).denominator == 1 else None  # not for q = 1/3
    if made_by != "finrange":
        return None
    width = Fraction(repr(settings["upper"])) - Fraction(repr(settings["lower"]))
    step = width / (settings["size"] - 1)
    if settings["cast_int"]:
        return step if step.denominator == 1 else None
    return step if Fraction(repr(float(step))) == step else None
