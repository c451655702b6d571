"""Replacement for the part of Syne Tune that sections 19.3 and 19.5 of "Dive into Deep Learning" use.

    python -m fanwise.tune.syne_tune program.py     run an unchanged program that imports syne_tune

`install` registers this one module under the names of several modules of Syne Tune (release 0.3), so every name can be
imported from each of them. The guide "Coming from Syne Tune" lists the counterparts of other names and options.
"""

import argparse
import functools
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from .experiment import Experiment
from .experiment import load_experiment as _load_experiment
from .objective import report
from .schedulers.asha import ASHA as _ASHA
from .schedulers.scheduler import FIFO, Scheduler
from .space import Space
from .space import choice as choice
from .space import lograndint as lograndint
from .space import loguniform as loguniform
from .space import randint as randint
from .space import uniform as uniform
from .stopping import StoppingCriterion as StoppingCriterion
from .tuner import Tuner as _Tuner

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODULE_NAMES = """
syne_tune syne_tune.backend syne_tune.backend.python_backend syne_tune.backend.python_backend.python_backend
syne_tune.config_space syne_tune.experiments syne_tune.optimizer syne_tune.optimizer.baselines syne_tune.report
syne_tune.stopping_criterion syne_tune.tuner
""".split()


class Reporter:
    """Callable that reports metrics in an objective, as `fanwise.tune.report` does."""

    def __call__(self, **metrics: Any) -> None:
        report(**metrics)


class _Objective:
    """Wraps the user's function.

    If the program has loaded `syne_tune`, each trial calls `install` first, because it may run in a fresh process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.needs_install = "syne_tune" in sys.modules
        functools.update_wrapper(self, function)

    def __call__(self, **config: Any) -> Any:
        if self.needs_install:
            install()
        return self.__wrapped__(**config)  # type: ignore[attr-defined]  # set by update_wrapper


def PythonBackend(tune_function: Callable[..., Any], config_space: Mapping[str, Any]) -> tuple[_Objective, Space]:
    """Return (objective, space), to pass as `trial_backend` to `Tuner`."""
    return _Objective(tune_function), Space(config_space)


def RandomSearch(config_space: Mapping[str, Any], **options: Any) -> tuple[Scheduler, Space]:
    """Return (scheduler, space) for a random search, to pass as `scheduler` to `Tuner`. Takes the options of `FIFO`."""
    return _with_space(FIFO(**options), config_space)


def ASHA(config_space: Mapping[str, Any], *, type: str = "stopping", **options: Any) -> tuple[Scheduler, Space]:
    """Return (scheduler, space) for asynchronous successive halving, to pass as `scheduler` to `Tuner`.

    Takes the options of `fanwise.tune.ASHA`, with one difference: `type="stopping"` is Syne Tune's rule, which
    `fanwise.tune.ASHA` calls "quantile". A trial continues if its metric equals or beats the 1/eta quantile of
    its rung.
    """
    scheduler = _ASHA(type="quantile" if type == "stopping" else type, **options)  # type: ignore[arg-type]
    return _with_space(scheduler, config_space)


def Tuner(
    trial_backend: tuple[_Objective, Space],
    scheduler: tuple[Scheduler, Space],
    stop_criterion: StoppingCriterion,
    n_workers: int,
    *,
    print_update_interval: float = 30.0,
) -> _Tuner:
    """Return a `fanwise.tune.Tuner` with these arguments.

    Args:
        trial_backend: result of `PythonBackend`.
        scheduler: result of `RandomSearch` or `ASHA`, with the same space.
    """
    objective, space = trial_backend
    if space != scheduler[1]:
        raise ValueError("trial_backend and scheduler have different config_spaces: pass the same one to both")
    return _Tuner(
        objective, space, scheduler[0], stop_criterion, n_workers=n_workers, print_update_interval=print_update_interval
    )


@final
class LoadedExperiment:
    """An experiment whose `plot` uses pyplot. All other attributes are those of `fanwise.tune.Experiment`."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._experiment, name)

    def plot(self) -> "Figure":
        """Draw the best value so far over wall-clock time, and show it. Later pyplot calls draw on another figure."""
        from matplotlib import pyplot

        from ..plot.incumbents import draw_incumbent

        draw_incumbent(figure := pyplot.figure(layout="constrained"), self._experiment.search_data())
        if pyplot.get_backend().lower() != "agg":
            pyplot.show()
        if pyplot.fignum_exists(figure.number):
            pyplot.figure()
        return figure


def load_experiment(tuner_name: str) -> LoadedExperiment:
    """Load an experiment by name, even while it runs. Raises the errors of `fanwise.tune.load_experiment`."""
    return LoadedExperiment(_load_experiment(tuner_name))


def _with_space(scheduler: Scheduler, config_space: Mapping[str, Any]) -> tuple[Scheduler, Space]:
    space = Space(config_space)
    scheduler.check(space)
    return scheduler, space


def install() -> None:
    """Register this module under Syne Tune's module names."""
    for name in _MODULE_NAMES:
        sys.modules.setdefault(name, sys.modules["fanwise.tune.syne_tune"])


def main() -> None:
    """Run the program given on the command line, as `python program.py ...` would. Usage errors exit with status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m fanwise.tune.syne_tune",
        description="Run a Syne Tune program with fanwise in place of syne_tune.",
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.program.is_file():
        parser.error(f"there is no file {str(options.program)!r}")
    sys.argv[:] = [str(options.program), *options.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(options.program.resolve().parent)
    runpy.run_path(str(options.program), run_name="__main__")


if __name__ == "__main__":
    from fanwise.tune import syne_tune

    syne_tune.install()
    syne_tune.main()
