"""`syne_tune.tuner`."""

import os
import time
from pathlib import Path

from ..experiment import Experiment
from ..record.names import new_name
from ..stopping import StoppingCriterion
from ..tuner import Tuner as _Tuner
from .backend.python_backend.python_backend import PythonBackend
from .missing import refuse_options, refuses_names
from .optimizer.baselines import SchedulerOfSpace

_OPTIONS = (
    *("trial_backend", "scheduler", "stop_criterion", "n_workers", "print_update_interval", "tuner_name"),
    *("asynchronous_scheduling", "suffix_tuner_name", "sleep_time", "results_update_interval", "save_tuner"),
)


class Tuner:
    """A search: back end, scheduler and stopping criterion, put together.

    Args:
        trial_backend: the objective and its space.
        scheduler: of the same space; `RandomSearch` or `ASHA` of `fanwise.tune.syne_tune.optimizer.baselines`.
        stop_criterion: when the search ends.
        n_workers: trials at a time. Where there are GPUs, each trial has one.
        print_update_interval: seconds between two tables where the output is no terminal.
        tuner_name: how the experiment's name begins; None: with the objective's name.
        asynchronous_scheduling: False: the next batch of trials waits for the whole last one.
        suffix_tuner_name: False: tuner_name is the whole name.
        sleep_time, results_update_interval, save_tuner: of no effect: nothing is polled, every report is on disk before
            it is answered, and `fanwise.tune.Tuner.resume(name)` goes on with any experiment.

    Raises:
        TypeError, ValueError: as `fanwise.tune.Tuner`; an option that is not here; different spaces.

    Attributes:
        name: of the experiment; `load_experiment(name)` reads it, also while it runs.
        tuner_path: the experiment's folder.
    """

    def __init__(
        self,
        trial_backend: PythonBackend,
        scheduler: SchedulerOfSpace,
        stop_criterion: StoppingCriterion,
        n_workers: int,
        *,
        print_update_interval: float = 30.0,
        tuner_name: str | None = None,
        asynchronous_scheduling: bool = True,
        suffix_tuner_name: bool = True,
        sleep_time: float | None = None,
        results_update_interval: float | None = None,
        save_tuner: bool | None = None,
        **others: object,
    ) -> None:
        refuse_options("Tuner", others, _OPTIONS)
        _check_parts(trial_backend, scheduler)
        name = tuner_name
        if tuner_name is not None and suffix_tuner_name:
            name = new_name(tuner_name, time.time(), os.urandom(8))
        self._tuner = _Tuner(
            trial_backend.tune_function,
            scheduler.config_space,
            scheduler.scheduler,
            stop_criterion,
            n_workers=n_workers,
            print_update_interval=print_update_interval,
            asynchronous=asynchronous_scheduling,
            name=name,
        )
        self.name = self._tuner.name

    @property
    def tuner_path(self) -> Path:
        return self._tuner.path

    def run(self) -> Experiment:
        """Search until the stopping criterion holds; blocks. Returns and raises as `fanwise.tune.Tuner.run`."""
        return self._tuner.run()


def _check_parts(backend: object, scheduler: object) -> None:
    if not isinstance(backend, PythonBackend):
        raise TypeError(f"trial_backend must be a PythonBackend, got {backend!r}")
    if not isinstance(scheduler, SchedulerOfSpace):
        raise TypeError(
            f"scheduler must be one of fanwise.tune.syne_tune.optimizer.baselines, got {scheduler!r}. Those of "
            f"fanwise.tune go to fanwise.tune.Tuner(objective, space, scheduler, stop)."
        )
    if backend.config_space != scheduler.config_space:
        raise ValueError(
            f"PythonBackend and scheduler have different spaces: {backend.config_space!r} and "
            f"{scheduler.config_space!r}. Give both the same config_space."
        )


__getattr__ = refuses_names(__name__)
