"""Schedulers under the names that people look for, with a searcher put together for them.

Those that take a searcher take the name of one too, as `ASHA(searcher="tpe", ...)`: see `searchers.by_name`.
"""

from collections.abc import Mapping, Sequence

from ..searchers.base import Mode, Searcher
from ..searchers.by_name import searcher_of
from ..searchers.forest_searcher import ForestSearcher
from ..searchers.grid import GridSearcher
from ..searchers.optuna_searcher import OptunaSearcher
from ..searchers.sobol import SobolSearcher
from ..searchers.tpe import TPESearcher
from ..values import at_least
from .asha import ASHAScheduler, Kind
from .fifo import FIFOScheduler
from .halving import HalvingScheduler, OneBracket
from .hyperband import HyperbandBrackets
from .levels import RungLevels
from .median import MedianStoppingRule
from .moasha import MOASHAScheduler
from .pbt import PBTScheduler
from .resources import Resources
from .settings import checks_options


@checks_options
def RandomSearch(  # the field's name, and Syne Tune's
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> FIFOScheduler:
    """Random search: every configuration is drawn from the space, every trial runs to its end.

    Args and errors are those of `FIFOScheduler`, without the searcher.

    >>> RandomSearch(metrics="validation_error")
    Traceback (most recent call last):
    TypeError: RandomSearch has no option 'metrics'; did you mean 'metric'?
    """
    return FIFOScheduler(
        metric=metric,
        mode=mode,
        constraints=constraints,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def GridSearch(
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    num_points: int | Mapping[str, int] = 5,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> FIFOScheduler:
    """Grid search: every combination of a few values a hyperparameter, once; then the search ends.

    Args and errors are those of `FIFOScheduler` and, for num_points, of `GridSearcher`.
    """
    return FIFOScheduler(
        GridSearcher(num_points),
        metric=metric,
        mode=mode,
        constraints=constraints,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def SobolSearch(
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> FIFOScheduler:
    """Sobol search, or quasi-random search: the configurations fill the space more evenly than random ones do.

    Args and errors are those of `FIFOScheduler`, without the searcher.
    """
    return FIFOScheduler(
        SobolSearcher(),
        metric=metric,
        mode=mode,
        constraints=constraints,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def TPE(  # the field's name
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    num_init: int = 10,
    good_fraction: float = 0.15,
    num_candidates: int = 64,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> FIFOScheduler:
    """TPE, a model of which configurations are good: every trial runs to its end.

    Args and errors are those of `FIFOScheduler` and `TPESearcher`. With trials that are stopped early:
    `ASHA(searcher="tpe", ...)`, `BOHB(...)`.

    >>> scheduler = TPE(metric="validation_error")
    """
    return FIFOScheduler(
        TPESearcher(num_init, good_fraction=good_fraction, num_candidates=num_candidates),
        metric=metric,
        mode=mode,
        constraints=constraints,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def ForestSearch(
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    num_init: int = 5,
    cost_attr: str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> FIFOScheduler:
    """Forest search, the default: where a forest expects the greatest improvement on the best trial (SMAC, LION 2011).

    Args and errors are those of `FIFOScheduler` and `ForestSearcher`.

    >>> scheduler = ForestSearch(metric="validation_error")
    """
    return FIFOScheduler(
        ForestSearcher(num_init, cost_attr=cost_attr),
        metric=metric,
        mode=mode,
        constraints=constraints,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def ASHA(  # the field's name, and Syne Tune's
    *,
    metric: str,
    mode: Mode = "min",
    constraints: Sequence[str] = (),
    resource_attr: str | None = None,
    max_t: float | None = None,
    max_resource_attr: str | None = None,
    grace_period: float = 1,
    reduction_factor: float = 3,
    type: Kind = "stopping",
    brackets: int = 1,
    searcher: Searcher | str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> ASHAScheduler:
    """Asynchronous successive halving: who is not among the best third at a level is stopped, or waits.

    The searchers named forest and tpe compare trials at one level: the highest that enough of them have reached. A
    searcher object without `learn_from` learns from each trial's last report, also where the trial was stopped early.

    Args and errors are those of `ASHAScheduler`.

    >>> scheduler = ASHA(metric="validation_error", resource_attr="epoch", max_resource_attr="max_epochs")
    """
    resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
    return ASHAScheduler(
        searcher_of(searcher, learn_from=RungLevels(resources)),
        metric=metric,
        mode=mode,
        constraints=constraints,
        resource_attr=resource_attr,
        max_t=max_t,
        max_resource_attr=max_resource_attr,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        type=type,
        brackets=brackets,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def SuccessiveHalving(  # the field's name
    *,
    metric: str,
    mode: Mode = "min",
    constraints: Sequence[str] = (),
    resource_attr: str | None = None,
    max_t: float | None = None,
    max_resource_attr: str | None = None,
    grace_period: float = 1,
    reduction_factor: float = 3,
    prefact: float = 1,
    searcher: Searcher | str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> HalvingScheduler:
    """Synchronous successive halving: rounds in which the best of each rung go on when the rung is complete.

    Args and errors are those of `HalvingScheduler`, and:
        prefact: prefact * eta^K trials begin in a round, where K is the number of levels below the maximum.

    >>> scheduler = SuccessiveHalving(metric="validation_error", max_t=10, grace_period=2, reduction_factor=2)
    """
    resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
    plan = OneBracket(prefact)
    return HalvingScheduler(
        searcher_of(searcher, learn_from=RungLevels(resources, plan)),
        metric=metric,
        mode=mode,
        constraints=constraints,
        plan=plan,
        resource_attr=resource_attr,
        max_t=max_t,
        max_resource_attr=max_resource_attr,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def Hyperband(  # the field's name
    *,
    metric: str,
    mode: Mode = "min",
    constraints: Sequence[str] = (),
    resource_attr: str | None = None,
    max_t: float | None = None,
    max_resource_attr: str | None = None,
    grace_period: float = 1,
    reduction_factor: float = 3,
    searcher: Searcher | str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> HalvingScheduler:
    """Hyperband: rounds of successive halving, from those that compare early to one that compares only at the end.

    A searcher that is named learns as with `ASHA`.

    Args and errors are those of `HalvingScheduler`.

    >>> scheduler = Hyperband(metric="validation_error", max_t=81)
    """
    resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
    plan = HyperbandBrackets()
    return HalvingScheduler(
        searcher_of(searcher, learn_from=RungLevels(resources, plan)),
        metric=metric,
        mode=mode,
        constraints=constraints,
        plan=plan,
        resource_attr=resource_attr,
        max_t=max_t,
        max_resource_attr=max_resource_attr,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def BOHB(  # the field's name
    *,
    metric: str,
    mode: Mode = "min",
    constraints: Sequence[str] = (),
    resource_attr: str | None = None,
    max_t: float | None = None,
    max_resource_attr: str | None = None,
    grace_period: float = 1,
    reduction_factor: float = 3,
    num_init: int = 10,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> HalvingScheduler:
    """BOHB (Falkner et al., arXiv 1807.01774): Hyperband, with TPE for the configurations.

    The model learns at one resource level at a time: the highest at which `num_init` trials have a result, from each
    trial's first report there. Until a level has so many, the space is filled evenly.

    Args and errors are those of `HalvingScheduler` and, for num_init, of `TPESearcher`.

    >>> scheduler = BOHB(metric="validation_error", max_t=81)
    """
    resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
    plan = HyperbandBrackets()
    return HalvingScheduler(
        TPESearcher(num_init, learn_from=RungLevels(resources, plan)),
        metric=metric,
        mode=mode,
        constraints=constraints,
        plan=plan,
        resource_attr=resource_attr,
        max_t=max_t,
        max_resource_attr=max_resource_attr,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def MedianStopping(  # the field's name
    *,
    metric: str,
    mode: Mode = "min",
    constraints: Sequence[str] = (),
    resource_attr: str | None = None,
    grace_time: float = 1,
    grace_population: int = 5,
    searcher: Searcher | str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> MedianStoppingRule:
    """The median stopping rule on top of a search that would run every trial to its end.

    Args and errors are those of `FIFOScheduler` and `MedianStoppingRule`.

    >>> scheduler = MedianStopping(metric="validation_error", resource_attr="epoch", grace_time=2)
    """
    fifo = FIFOScheduler(
        searcher_of(searcher),
        metric=metric,
        mode=mode,
        constraints=constraints,
        resource_attr=resource_attr,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )
    return MedianStoppingRule(fifo, grace_time=grace_time, grace_population=grace_population)


@checks_options
def PopulationBasedTraining(  # the field's name, and Syne Tune's
    *,
    metric: str,
    mode: Mode = "min",
    constraints: Sequence[str] = (),
    resource_attr: str | None = None,
    max_t: float | None = None,
    max_resource_attr: str | None = None,
    perturbation_interval: float,
    population_size: int = 4,
    quantile_fraction: float = 0.25,
    resample_probability: float = 0.25,
    searcher: Searcher | str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> PBTScheduler:
    """Population-based training: the worst members go on from a checkpoint of the best, with other hyperparameters.

    Args and errors are those of `PBTScheduler`. The objective should save checkpoints.

    >>> scheduler = PopulationBasedTraining(metric="loss", max_t=100, perturbation_interval=10)
    """
    return PBTScheduler(
        searcher_of(searcher),
        metric=metric,
        mode=mode,
        constraints=constraints,
        resource_attr=resource_attr,
        max_t=max_t,
        max_resource_attr=max_resource_attr,
        perturbation_interval=perturbation_interval,
        population_size=population_size,
        quantile_fraction=quantile_fraction,
        resample_probability=resample_probability,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def MOASHA(  # the field's name, and Syne Tune's
    *,
    metric: Sequence[str],
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    resource_attr: str | None = None,
    max_t: float | None = None,
    max_resource_attr: str | None = None,
    grace_period: float = 1,
    reduction_factor: float = 3,
    searcher: Searcher | str | None = None,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> MOASHAScheduler:
    """Asynchronous successive halving for several objectives: who is far from the Pareto front is stopped.

    A searcher with a model learns from each trial's last report, also where the trial was stopped early.

    Args and errors are those of `MOASHAScheduler`.

    >>> scheduler = MOASHA(metric=["accuracy", "seconds"], mode=["max", "min"], max_t=81)
    """
    return MOASHAScheduler(
        searcher_of(searcher),
        metric=metric,
        mode=mode,
        constraints=constraints,
        resource_attr=resource_attr,
        max_t=max_t,
        max_resource_attr=max_resource_attr,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )


@checks_options
def NSGA2(  # the field's name, and Syne Tune's
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode] = "min",
    constraints: Sequence[str] = (),
    population_size: int = 50,
    points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
    random_seed: int | None = None,
) -> FIFOScheduler:
    """NSGA-II (Deb et al., IEEE Transactions on Evolutionary Computation 6(2)): a population near the Pareto front.

    Optuna's sampler in a search of ours (`fanwise[optuna]`); every trial runs to its end.

    Args and errors are those of `FIFOScheduler` and `OptunaSearcher`, and:
        population_size: so many trials make a generation, and so many random ones the first.

    >>> scheduler = NSGA2(metric=["validation_error", "num_parameters"], population_size=20)
    """
    return FIFOScheduler(
        OptunaSearcher("NSGAIISampler", population_size=at_least("population_size", population_size, 2)),
        metric=metric,
        mode=mode,
        constraints=constraints,
        points_to_evaluate=points_to_evaluate,
        random_seed=random_seed,
    )
