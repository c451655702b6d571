"""An experiment read from its record: while it runs, after a crash, or years later.

    events.jsonl -> record.reading -> history (what the events add up to) -> frames (tables)
                                            |                             -> plot   (figures)
                                            +-> best, utilisation, reasons

Knows names and paths, and asks the others. Every property first reads what the record has got since the last look, and
only that, so that a running search can be watched with one object. Nothing here writes to the record.

Reports that became void, because their trial went on from an earlier checkpoint, are left out everywhere, except in
`results_of(all_attempts=True)`.
An `Experiment` belongs to one thread.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import RecordError
from .exporting import write_results
from .pareto_results import ParetoPoint, objectives_of, pareto_of
from .record.frames import results_frame, trials_frame
from .record.lock import is_held
from .record.names import experiments_folder, list_experiments
from .record.overview import State as State
from .record.overview import state_of
from .record.reading import FILE_NAME, EventReader, read_meta
from .record.snapshot import SearchSnapshot
from .record.state import SearchState
from .record.trials import Failure
from .terminal.cells import is_shown
from .terminal.method import method_line
from .terminal.page import search_page

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..plot.data import SearchData
    from ..plot.hypervolumes import VolumeData
    from .permutation_importance import Dependences, Importances


@dataclass(frozen=True, slots=True)
class Best:
    """The best report of an experiment: its trial, the metric's value, the configuration, and which report it was.

    `violations`: the constraints that it violates, and by how much, in the metric's unit. Empty, unless no report meets
    all constraints: then this one is the nearest to that.
    """

    trial_id: int
    value: float
    config: Mapping[str, Any]  # Any: what the space holds
    iter: int
    violations: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_feasible(self) -> bool:
        """Whether it meets all constraints."""
        return not self.violations

    def __repr__(self) -> str:
        parts = [f"trial_id={self.trial_id}, value={self.value!r}, config={self.config!r}, iter={self.iter}"]
        parts += [f"violations={self.violations!r}"] if self.violations else []
        return f"Best({', '.join(parts)})"


class Experiment:
    """What is known of one search. Made by `load_experiment` or returned by `Tuner.run`.

    Args:
        path: the experiment's folder.

    Raises:
        RecordError: there is no record, or it is damaged, foreign or of another version. All properties may raise it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        place = Path(path)
        self.path = place.parent if place.name == FILE_NAME else place
        self._meta = read_meta(self.path)
        self._state = SearchState(self._meta, full=True)
        self._reader = EventReader(self.path)

    def __repr__(self) -> str:
        return f"Experiment({self.name!r}, {str(self.path)!r})"

    def _repr_html_(self) -> str | None:
        """What a notebook shows of it; nothing more where the cell has just shown its search."""
        if is_shown(self.path):
            return None
        state = self.state if self.end_reason is None else f"ended: {self.end_reason}"
        method = method_line(self._meta.get("scheduler", {}))
        return search_page(self.snapshot(), f"{state} ({method})" if method else state)

    @property
    def name(self) -> str:
        """The experiment's name, which is its folder's unless that was renamed."""
        return str(self._meta.get("name", self.path.name))

    @property
    def metadata(self) -> dict[str, Any]:  # Any: JSON
        """What was known when it began: objective, space, scheduler, metric, mode, seed, n_workers, versions, ..."""
        return dict(self._meta)

    @property
    def results(self) -> "pd.DataFrame":
        """One row a report, in the order of reporting.

        Columns: trial_id, the reported values, config_<name> for every name of the configuration, st_attempt,
        st_tuner_time (s since the tuner started), st_worker_time (s since the objective began), st_worker_iter (1, 2,
        ...), st_decision, st_status (of the trial, now) and, where there are constraints, st_feasible.
        """
        return self.results_of()

    def results_of(self, *, all_attempts: bool = False) -> "pd.DataFrame":
        """As `results`; with `all_attempts=True` also the reports of attempts that were later tried again."""
        return results_frame(self.history(), all_attempts=all_attempts, dead=self.state == "broken-off")

    @property
    def trials(self) -> "pd.DataFrame":
        """One row a trial, in the order of starting.

        Columns: trial_id, status, attempt (0, 1, ...), iter (number of reports), config_<name>, the values reported
        last, best_<metric>, feasible (whether that report meets all constraints, where there are any), worker_time (s
        inside the objective, all attempts together), started_s, ended_s (NaN while it runs), reason (kind of failure)
        and reason_text; see `reason` for the whole of it.
        """
        return trials_frame(self.history(), dead=self.state == "broken-off")

    @property
    def best(self) -> Best | None:
        """The best report so far; of equal ones the first. None when no finite value was reported.

        Where the search has constraints, the best one that meets them; as long as none does, the one that is nearest to
        that, with `violations`.
        """
        best = self.history().best()
        if best is None:
            return None
        return Best(best.trial_id, best.value, dict(best.config), best.iter, best.violations)

    def pareto(self) -> list[ParetoPoint]:
        """The reports that no other report dominates in all objectives, the best in the first objective first.

        Every report that counts is looked at, not only the last of each trial, and those that violate a constraint are
        left out. With one objective it is the best report.

        >>> [(point.trial_id, point.values) for point in load_experiment("networks").pareto()]
        [(3, {'error': 0.02, 'latency_ms': 9.0}), (7, {'error': 0.05, 'latency_ms': 4.0})]
        """
        return pareto_of(self.history(), objectives_of(self._meta))

    def hypervolume(self, reference_point: Mapping[str, float] | None = None) -> float:
        """The volume that all reports dominate together, up to a reference point; exact.

        Args:
            reference_point: name of each objective to the value that is just not good enough any more; None: the worst
                of the Pareto front in each objective, and a tenth of its extent more. To compare searches, give one.

        Raises:
            ValueError: the point does not have a finite number for each objective.
        """
        steps = self.volume_data(reference_point).steps
        return steps[-1][1] if steps else 0.0

    @property
    def utilisation(self) -> float | None:
        """Share of the worker time that went into the objective, 0 to 1; None before the first objective began.

        The worker time is n_workers times the time from the first objective's beginning to the moment when trials were
        no longer started (in a running search: to the last event). Start-up and winding down are not part of it. When
        `Tuner.set_workers` lowers the number, a worker counts until its last objective ends.
        """
        return self.history().utilisation()

    @property
    def finished(self) -> bool:
        """Whether the search came to its end. False while it runs, and for ever if it was broken off; see `state`."""
        return self.history().finished

    @property
    def state(self) -> State:
        """Whether the search still runs, and if not, whether it came to its end.

        `"running"`: its tuner is at work. `"finished"`: it came to its end, by a limit, an error or Ctrl-C;
        `end_reason` says which. `"broken-off"`: its tuner ended before it did: killed, crashed, or without a disk.
        `"unknown"`: it has not finished, and its file system has no locks, which say whether its tuner lives.

        Told from a lock that the tuner holds, so a new process with the pid of a dead tuner is not taken for it.
        """
        held = is_held(self.path)
        return state_of(finished=self.finished, held=held)  # in this order: it may come to its end meanwhile

    @property
    def end_reason(self) -> str | None:
        """Why the search ended, e.g. "max_wallclock_time=60 s is over" or "interrupted"; None until it has finished."""
        state = self.history()
        return state.reason if state.finished else None

    def reason(self, trial_id: int) -> Failure | None:
        """Why a trial failed, with traceback and last output; None if it did not.

        Raises:
            ValueError: there is no such trial.
        """
        state = self.history()
        if trial_id not in state.trials:
            known = f"its trials are {min(state.trials)} to {max(state.trials)}" if state.trials else "it has no trials"
            raise ValueError(f"experiment {self.name!r} has no trial {trial_id!r}; {known}")
        return state.trials[trial_id].last.failure

    def refresh(self) -> int:
        """Read what the record has got since the last look; returns the number of new events."""
        before = self._state.last_seq
        for events in self._reader.read():
            self._state.fold(events)
        return self._state.last_seq - before

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write `results` as .csv, .json or .parquet, or `results` and `trials` as .sqlite, by the file's ending.

        The file is written as a whole or not at all.

        Raises:
            ValueError: another ending. NotInstalled: parquet needs `fanwise[parquet]`.
            OSError: the file cannot be written: there is no such folder, it may not be written to, the disk is full.
        """
        write_results(self.results, self.trials, path)

    def to_optuna(self) -> Any:  # Any: an optuna.Study, checked alike without Optuna
        """A study of Optuna in memory, with this space's distributions and all trials that are over.

        A trial's value is what it reported last; trials that were stopped are pruned ones.

        Raises:
            NotInstalled: Optuna is not there: `fanwise[optuna]`.
            ValueError: something in the space has no counterpart in Optuna; the message names it.
        """
        from .with_optuna import study_of

        return study_of(self.history(), self.metadata)

    def search_data(self) -> "SearchData":
        """The search as the plain data that `fanwise.plot` draws. Reports without a number as metric are left out."""
        from .plot_data import search_data

        return search_data(self.name, self._meta, self.history())

    def volume_data(self, reference_point: Mapping[str, float] | None = None) -> "VolumeData":
        """How the hypervolume grew, as the plain data that `fanwise.plot.hypervolume` draws. As `hypervolume`."""
        from .plot_data import volume_data

        return volume_data([(self.name, self._meta, self.history())], reference_point)[0]

    def snapshot(self) -> SearchSnapshot:
        """What the terminal shows of it: the same as while it runs."""
        history = self.history()
        return history.snapshot(dead=self.state == "broken-off")

    def plot(self) -> "Figure":
        """The best value so far over wall-clock time, as a matplotlib figure."""
        from ..plot import figures

        return figures.incumbent(self.search_data())

    def plot_learning_curves(self) -> "Figure":
        """The metric of every trial over wall-clock time, as a matplotlib figure."""
        from ..plot import figures

        return figures.learning_curves(self.search_data())

    def plot_workers(self) -> "Figure":
        """Which worker ran which trial when, and when it was idle, as a matplotlib figure."""
        from ..plot import figures

        return figures.workers(self.search_data())

    def plot_hyperparameters(self) -> "Figure":
        """A scatter for each hyperparameter: its value, and the best value of each trial, as a matplotlib figure."""
        from ..plot import landscapes

        return landscapes.hyperparameters(self.search_data())

    def plot_parallel_coordinates(self) -> "Figure":
        """An axis for each hyperparameter and one for the metric, a line for each trial, as a matplotlib figure."""
        from ..plot import landscapes

        return landscapes.parallel_coordinates(self.search_data())

    def plot_rungs(self) -> "Figure":
        """Who came to each level where trials were stopped or paused, and who went on, as a matplotlib figure."""
        from ..plot import ladder

        return ladder.rungs(self.search_data())

    def plot_pareto_front(self) -> "Figure":
        """The reports of a search with several objectives, and those that no other one dominates in all of them.

        Raises:
            ValueError: the search has one objective (see `plot`), or more than four.
        """
        from ..plot import fronts
        from .plot_data import front_data

        return fronts.pareto_front(front_data(self.name, self._meta, self.history()))

    def importances(self, metric: str | None = None) -> "Importances":
        """How much each hyperparameter matters, with spread, and how well a model predicts trials that it has not seen.

        The value of a trial is its best feasible report, even if it was stopped early. See
        `fanwise.tune.permutation_importance`.

        Args:
            metric: one of several objectives; None: the first.

        Raises:
            ValueError: fewer than ten trials have a result, the space has no hyperparameters, no such objective.
        """
        from .permutation_importance import importances_of

        return importances_of(self._meta, self.history(), metric)

    def plot_importances(self, metric: str | None = None) -> "Figure":
        """Importances, and predicted against seen, as a matplotlib figure. Arguments and errors as `importances`."""
        from ..plot.importances import importance

        found = self.importances(metric)
        bars = [(one.name, one.mean, one.deviation) for one in found.hyperparameters]
        return importance(self.name, found.metric, bars, found.predicted, found.seen, found.correlation)

    def partial_dependence(self, metric: str | None = None) -> "Dependences":
        """What a model predicts at each value of a hyperparameter: the mean of the trials, and how much it varies.

        The model is that of the importances. Arguments and errors as `importances`.
        """
        from .permutation_importance import dependences_of

        return dependences_of(self._meta, self.history(), metric)

    def plot_partial_dependence(self, metric: str | None = None) -> "Figure":
        """A panel for each hyperparameter: `partial_dependence`, as a matplotlib figure."""
        from ..plot.dependences import partial_dependence
        from .plot_data import dependence_data

        found = self.partial_dependence(metric)
        panels = dependence_data(self._meta, self.history(), found.hyperparameters)
        return partial_dependence(self.name, found.metric, panels, found.quarters, found.correlation)

    def plot_hypervolume(self, reference_point: Mapping[str, float] | None = None) -> "Figure":
        """The hypervolume over wall-clock time, as a matplotlib figure. Arguments and errors as `hypervolume`."""
        from ..plot import hypervolumes

        return hypervolumes.hypervolume(self.volume_data(reference_point))

    def history(self) -> SearchState:
        """What the events add up to so far: the plain data behind the tables. Do not change it."""
        self.refresh()
        return self._state


def load_experiment(name_or_path: str | os.PathLike[str]) -> Experiment:
    """Open an experiment by its name (below `$FANWISE_HOME` or `~/fanwise`) or by the path of its folder.

    It may still run, or its tuner may have been killed: everything that was acknowledged is there.

    Raises:
        RecordError: there is none of that name or at that path, or it is not to be read. The message names experiments
            with a similar name.

    >>> load_experiment("lenet-search").best.config
    {'learning_rate': 0.1, 'batch_size': 128}
    """
    return Experiment(folder_of(name_or_path))


def folder_of(name_or_path: str | os.PathLike[str]) -> Path:
    """The folder of an experiment that is named or whose path is given. Raises as `load_experiment`."""
    place = Path(name_or_path)
    named = experiments_folder() / place
    if not place.is_absolute() and len(place.parts) == 1 and named.exists():
        return named
    if place.exists():
        return place.parent if place.name == FILE_NAME else place
    raise RecordError(f"There is no experiment {os.fspath(name_or_path)!r}: {_what_there_is(place.name)}")


def _what_there_is(name: str) -> str:
    names, folder = list_experiments(), experiments_folder()
    if not names:
        return f"{folder} holds none yet. Give the path of its folder if it is somewhere else."
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}? (in {folder})"
    return f"{folder} holds {len(names)}, for example {', '.join(names[-3:])}."
