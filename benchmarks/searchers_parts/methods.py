"""What is compared: a line for each method.

Of ours, a line says how the scheduler is made for a task. Of a peer, it says which program under benchmarks/peers asks
which of its methods, and in which environment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fanwise.tune.schedulers import (
    ASHA,
    BOHB,
    FIFO,
    Hyperband,
    Scheduler,
)

from .peers import PeerScheduler
from .tasks import Task

RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Method:
    """One line.

    Args:
        name: unique, in all results.
        make: the scheduler of ours; None: a peer's.
        stops_early: it needs learning curves.
        peer: (environment, program, method) of a peer.
        shown: drawn in the figure's curves.
    """

    name: str
    make: Callable[[Task], Scheduler] | None = None
    stops_early: bool = False
    peer: tuple[str, str, str] | None = None
    shown: bool = True

    def suits(self, task: Task) -> bool:
        return task.has_curves or not self.stops_early

    def scheduler(self, task: Task, interpreter: Path | None, n_workers: int) -> Scheduler:
        """A scheduler for one run. `interpreter`: of the peer's environment."""
        if self.make is not None:
            return self.make(task)
        assert self.peer is not None and interpreter is not None, "a peer has an interpreter"
        return PeerScheduler(
            interpreter,
            *self.peer[1:],
            metric=task.metric,
            mode=task.mode,
            resource_attr="epoch",
            max_resource=task.max_resource,
            n_workers=n_workers,
        )


def _optuna(name: str, method: str, *, stops_early: bool = False, shown: bool = True) -> Method:
    return Method(name, stops_early=stops_early, peer=("optuna", "searchers_optuna.py", method), shown=shown)


def _syne_tune(name: str, method: str, *, stops_early: bool = False, shown: bool = True) -> Method:
    return Method(name, stops_early=stops_early, peer=("syne_tune", "searchers_syne_tune.py", method), shown=shown)


def _ray(name: str, *, stops_early: bool = False) -> Method:
    """Never drawn as a curve: a figure that has all others has no colours left."""
    method = name.removeprefix("Ray ")
    return Method(name, stops_early=stops_early, peer=("ray_search", "searchers_ray.py", method), shown=False)


def _other(name: str, environment: str) -> Method:
    """A library with one method."""
    return Method(name, peer=(environment, f"searchers_{environment}.py", "default"))


def _asha(task: Task, searcher: str = "random") -> Scheduler:
    return ASHA(metric=task.metric, mode=task.mode, resource_attr="epoch", max_t=task.max_resource, searcher=searcher)


def _hyperband(task: Task) -> Scheduler:
    return Hyperband(
        metric=task.metric, mode=task.mode, resource_attr="epoch", max_t=task.max_resource, searcher="forest"
    )


def _bohb(task: Task) -> Scheduler:
    return BOHB(metric=task.metric, mode=task.mode, resource_attr="epoch", max_t=task.max_resource)


METHODS = (
    Method(RANDOM, lambda task: FIFO(metric=task.metric, mode=task.mode)),
    Method("Sobol", lambda task: FIFO("sobol", metric=task.metric, mode=task.mode), shown=False),
    Method("GP (the default)", lambda task: FIFO("gp", metric=task.metric, mode=task.mode)),
    Method("forest", lambda task: FIFO("forest", metric=task.metric, mode=task.mode)),
    Method("TPE", lambda task: FIFO("tpe", metric=task.metric, mode=task.mode)),
    Method("ASHA", _asha, stops_early=True),
    Method("ASHA, TPE", lambda task: _asha(task, "tpe"), stops_early=True),
    Method("ASHA, forest", lambda task: _asha(task, "forest"), stops_early=True),
    Method("BOHB", _bohb, stops_early=True),
    Method("Hyperband, forest", _hyperband, stops_early=True),
    _optuna("Optuna TPE", "TPE"),
    _optuna("Optuna GP", "GP"),
    _optuna("Optuna TPE, Hyperband", "TPE, Hyperband", stops_early=True),
    _other("Rustuna TPE", "rustuna"),
    _other("SMAC3", "smac"),
    _other("Ax", "ax"),
    _syne_tune("Syne Tune CQR", "CQR"),
    _syne_tune("Syne Tune BORE", "BORE"),
    _syne_tune("Syne Tune TPE", "TPE", shown=False),
    _syne_tune("Syne Tune ASHA", "ASHA", stops_early=True, shown=False),
    _syne_tune("Syne Tune ASHACQR", "ASHACQR", stops_early=True),
    _syne_tune("Syne Tune BOHB", "BOHB", stops_early=True, shown=False),
    _ray("Ray HyperOpt"),
    _ray("Ray HEBO"),
    _ray("Ray Nevergrad"),
    _ray("Ray ASHA", stops_early=True),
    _ray("Ray ASHA, HyperOpt", stops_early=True),
    _ray("Ray median stopping", stops_early=True),
    _ray("Ray HyperBand", stops_early=True),
    _ray("Ray BOHB", stops_early=True),
)
