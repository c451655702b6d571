"""`syne_tune.optimizer.baselines`: schedulers that know the space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ...schedulers import presets
from ...schedulers.asha import Kind
from ...schedulers.protocol import Scheduler
from ...searchers.base import Mode
from ...spaces import Space
from ..missing import refuse_options, refuses_names


@final
@dataclass(frozen=True, slots=True)
class SchedulerOfSpace:
    """A scheduler of fanwise, and the space that Syne Tune's schedulers are given."""

    scheduler: Scheduler
    config_space: Space


def RandomSearch(
    config_space: Space | Mapping[str, Any],  # Any: domains and constants
    *,
    metric: str,
    mode: Mode = "min",
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
    **others: object,
) -> SchedulerOfSpace:
    """Random search in `config_space`; arguments and errors are those of `fanwise.tune.RandomSearch`."""
    known = ("config_space", "metric", "mode", "points_to_evaluate", "random_seed")
    refuse_options("RandomSearch", others, known)
    scheduler = presets.RandomSearch(
        metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, random_seed=random_seed
    )
    return _of_space(scheduler, config_space)


def BayesianOptimization(
    config_space: Space | Mapping[str, Any],  # Any: domains and constants
    *,
    metric: str,
    mode: Mode = "min",
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
    **others: object,
) -> SchedulerOfSpace:
    """Bayesian optimization in `config_space`; arguments and errors are `fanwise.tune.BayesianOptimization`'s."""
    known = ("config_space", "metric", "mode", "points_to_evaluate", "random_seed")
    refuse_options("BayesianOptimization", others, known)
    scheduler = presets.BayesianOptimization(
        metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, random_seed=random_seed
    )
    return _of_space(scheduler, config_space)


def ASHA(
    config_space: Space | Mapping[str, Any],  # Any: domains and constants
    *,
    metric: str,
    resource_attr: str,
    mode: Mode = "min",
    max_resource_attr: str | None = None,
    max_t: float | None = None,
    grace_period: float = 1,
    reduction_factor: float = 3,
    brackets: int = 1,
    type: Kind = "stopping",
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
    **others: object,
) -> SchedulerOfSpace:
    """Asynchronous successive halving in `config_space`; arguments and errors are those of `fanwise.tune.ASHA`."""
    known = ("config_space", "metric", "mode", "resource_attr", "max_resource_attr", "max_t", "grace_period")
    refuse_options(
        "ASHA", others, (*known, "reduction_factor", "brackets", "type", "points_to_evaluate", "random_seed")
    )
    scheduler = presets.ASHA(
        metric=metric,
        mode=mode,
        resource_attr=resource_attr,
        max_resource_attr=max_resource_attr,
        max_t=max_t,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        brackets=brackets,
        type=type,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )
    return _of_space(scheduler, config_space)


def _of_space(scheduler: Scheduler, config_space: Space | Mapping[str, Any]) -> SchedulerOfSpace:  # Any: as above
    space = config_space if isinstance(config_space, Space) else Space(config_space)
    scheduler.check(space)
    return SchedulerOfSpace(scheduler, space)


__getattr__ = refuses_names(__name__)
