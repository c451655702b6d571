"""The results of an experiment, read from its record during the search or later.

Every property first reads the events that are new since the last read, so one object can follow a running search.
An `Experiment` never writes to the record, and must be used from one thread only.

A trial that crashes or is interrupted restarts from its last checkpoint. Its reports after that checkpoint are void and
are left out. Late and repeated reports are left out, too (see `record.state`).
"""

import difflib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import ClosedError, RecordError
from ..base.extras import check_installed
from ..base.home import experiments_folder, list_experiments
from ..plot import SearchData, incumbent, learning_curves, rungs, workers
from ..plot.fronts import pareto_front
from .display.screen import is_shown
from .display.table import html_of, method_line, search_view
from .frames import results_frame, trials_frame, write_results
from .pareto_results import ParetoPoint, hypervolume_of, pareto_points
from .plot_data import front_data, importance_figure, search_data
from .program import load_program
from .record.event_file import EVENTS_NAME, read_meta
from .record.lock import HeldError, hold, release
from .record.overview import SearchReader, State
from .record.replay import ReplayResult, recorded_versions, replay, rows_of
from .record.state import SearchState
from .record.trials import Failure
from .runtime.checkpoint_owner import conflict_in, delete_owned, is_inside
from .runtime.checkpoint_store import checkpoint_root
from .schedulers.scheduler import Scheduler
from .search_settings import SearchSettings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .permutation_importance import Importances


@dataclass(frozen=True, slots=True)
class Best:
    """The best report of an experiment.

    Args:
        value: value of the first metric, as reported.
        iter: number of the report in its trial, from 1.
        violations: {violated constraint: excess in the unit of the metric}. Empty if the report is feasible.
    """

    trial_id: int
    value: float
    config: Mapping[str, Any]
    iter: int
    violations: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_feasible(self) -> bool:
        """True if the report meets all constraints."""
        return not self.violations

    def __repr__(self) -> str:
        violations = f", violations={self.violations!r}" if self.violations else ""
        report = f"trial_id={self.trial_id}, value={self.value!r}, config={self.config!r}, iter={self.iter}"
        return f"Best({report}{violations})"


class Experiment:
    """The results of one search. Returned by `load_experiment` and `Tuner.run`.

    Args:
        path: the experiment's folder.

    Raises:
        RecordError: the record is missing, damaged or has another format. All properties may raise it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        folder = Path(path)
        self.path = folder.parent if folder.name == EVENTS_NAME else folder
        self._reader = SearchReader(self.path, full=True)

    def __repr__(self) -> str:
        return f"Experiment({self.name!r}, {str(self.path)!r})"

    def _repr_html_(self) -> str | None:
        """Return HTML for notebooks, or None in the cell that has just displayed this search."""
        if is_shown(self.path):
            return None
        state = self.state if self.end_reason is None else f"ended: {self.end_reason}"
        method = method_line(self._reader.search.meta.get("scheduler", {}))
        title = f"{self.name} {state} ({method})" if method else f"{self.name} {state}"
        return html_of(search_view(self._reader.snapshot(), title=title))

    @property
    def name(self) -> str:
        """Name of the experiment. The folder has the same name unless it was renamed."""
        return self._reader.search.name

    @property
    def metadata(self) -> dict[str, Any]:
        """Settings at the start: objective, space, scheduler, metric, mode, seed, n_workers, versions, ..."""
        return dict(self._reader.search.meta)

    @property
    def results(self) -> "pd.DataFrame":
        """Table of the reports, one row per report, oldest first.

        Columns: trial_id, the reported values, config_<name> for every name in the configuration, st_attempt,
        st_tuner_time (seconds since the search began), st_worker_time (seconds since this attempt called the
        objective), st_worker_iter (1, 2, ...), st_decision, st_status (the trial's current status) and, if there are
        constraints, st_feasible.
        """
        return results_frame(self._history(), is_tuner_killed=self._reader.is_tuner_killed)

    @property
    def trials(self) -> "pd.DataFrame":
        """Table of all trials, one row per trial, in the order in which they started.

        Columns: trial_id, status, attempt (number of the last attempt, from 0), iter (number of reports), source (id of
        the trial that it was cloned from), config_<name>, the last reported values, best_<metric>, feasible (whether
        the best report is, if there are constraints), worker_time (seconds inside the objective over all attempts),
        started_s and ended_s (seconds since the search began; NaN while the trial runs), reason (kind of failure) and
        reason_text. The method `reason` also returns the traceback and the last output.
        """
        return trials_frame(self._history(), is_tuner_killed=self._reader.is_tuner_killed)

    @property
    def best(self) -> Best | None:
        """The best report so far, the earliest on ties. None if no finite value has been reported.

        Feasible reports precede infeasible ones. If all are infeasible, the one with the smallest infeasibility is the
        best.
        """
        best = self._history().best()
        if best is None:
            return None
        return Best(best.trial_id, best.value, dict(best.config), best.iter, best.violations)

    def pareto(self) -> list[ParetoPoint]:
        """Return the Pareto front of all feasible reports, sorted by the first objective, best first.

        A trial can be on the front with any of its reports. With one objective, the front is the best report.

        >>> [(point.trial_id, point.values) for point in load_experiment("networks").pareto()]
        [(3, {'error': 0.02, 'latency_ms': 9.0}), (7, {'error': 0.05, 'latency_ms': 4.0})]
        """
        return pareto_points(self._history())

    def hypervolume(self, reference_point: Mapping[str, float] | None = None) -> float:
        """Return the exact hypervolume dominated by all feasible reports, up to a reference point.

        Args:
            reference_point: {objective: worst acceptable value}. None: the worst values of the Pareto front, each
                made worse by a tenth of the front's range. To compare searches, pass the same point for all.

        Raises:
            ValueError: the point does not have a finite number for each objective.
        """
        return hypervolume_of(self._history(), reference_point)

    @property
    def utilization(self) -> float | None:
        """Fraction of the worker time spent in the objective, from 0 to 1. None before the first objective has begun.

        The worker time is n_workers times the time from the start of the first objective until no more trials were
        started (in a running search, until the last event). Start-up and shutdown are excluded. A worker removed by
        `Tuner.set_workers` counts until its last objective ends.
        """
        history = self._history()
        return history.utilization.share(history.last_s)

    @property
    def state(self) -> State:
        """State of the search.

        - `"running"`: its tuner is running.
        - `"finished"`: a limit, an error, a user or Ctrl-C ended the search (see `end_reason`).
        - `"crashed"`: its tuner was killed, crashed, or could not write the record.
        - `"unknown"`: the search has not finished, and without file locks nobody can tell whether its tuner runs.
        """
        self._reader.refresh()
        return self._reader.state

    @property
    def end_reason(self) -> str | None:
        """Reason for the end, e.g. "max_wallclock_time=60 s is over" or "interrupted". None until it has finished."""
        history = self._history()
        return history.stop_reason if history.finished else None

    def reason(self, trial_id: int) -> Failure | None:
        """Return the failure of a trial, with traceback and last output, or None if the trial did not fail.

        Raises:
            ValueError: there is no such trial.
        """
        trials = self._history().trials
        if trial_id not in trials:
            hint = f"its trials are {min(trials)} to {max(trials)}" if trials else "it has no trials"
            raise ValueError(f"experiment {self.name!r} has no trial {trial_id!r}; {hint}")
        return trials[trial_id].last.failure

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write `results` to a .csv, .json or .parquet file, or `results` and `trials` to an .sqlite file, atomically.

        Raises:
            ValueError: the path has another suffix, or SQLite cannot store the columns: it has a limit of 2,000, and
                ignores the case of names.
            NotInstalled: Parquet needs `fanwise[parquet]`.
            OSError: the file cannot be written.
        """
        write_results(self.results, self.trials, path)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a report to an HTML file, which needs neither a server nor a network to be read.

        It contains the best configuration, the figures, a table of the best 500 trials, the failures and the
        environment. An existing file is replaced atomically.

        Raises:
            ValueError: the path has another suffix than .html.
            OSError: the file cannot be written.
        """
        if Path(path).suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"a report is an HTML file, so its name must end in .html, got {os.fspath(path)!r}")
        from .html_report import write_report

        self._reader.refresh()
        write_report(self._reader, path)

    def to_optuna(self) -> Any:
        """Return an in-memory Optuna study with the distributions of this space and all finished trials.

        The value of a trial is its last report. Stopped trials become pruned trials.

        Raises:
            NotInstalled: Optuna is not installed.
            ValueError: a part of the space cannot be converted to an Optuna distribution; the message names it.
        """
        check_installed("to_optuna() needs", "optuna", extra="optuna")
        from .with_optuna_study import study_of

        return study_of(self._history())

    def search_data(self) -> SearchData:
        """Return plain data for `fanwise.plot`. Reports whose metric is not a number are left out."""
        return search_data(self._history())

    def plot(self) -> "Figure":
        """Return a matplotlib figure of the best value so far over wall-clock time."""
        return incumbent(self.search_data())

    def plot_learning_curves(self) -> "Figure":
        """Return a matplotlib figure of the metric of every trial over wall-clock time."""
        return learning_curves(self.search_data())

    def plot_workers(self) -> "Figure":
        """Return a matplotlib figure of the trials and idle times of each worker over wall-clock time."""
        return workers(self.search_data())

    def plot_rungs(self) -> "Figure":
        """Return a matplotlib figure of the trials that reached each rung, and of those that were promoted."""
        return rungs(self.search_data())

    def plot_pareto_front(self) -> "Figure":
        """Return a matplotlib figure of the reports and their Pareto front, for two to four objectives.

        Raises:
            ValueError: the search has one objective (use `plot`), or more than four.
        """
        return pareto_front(front_data(self._history()))

    def importances(self, metric: str | None = None) -> "Importances":
        """Return the permutation importance of each hyperparameter, and the accuracy of the underlying model.

        The value of a trial is its best feasible report, even if the trial was stopped early. See
        `fanwise.tune.permutation_importance`.

        Args:
            metric: name of an objective. None: the first.

        Raises:
            ValueError: fewer than ten trials have a result, the space has no hyperparameters, or there is no such
                objective.
        """
        from .permutation_importance import importances_of

        return importances_of(self._history(), metric)

    def plot_importances(self, metric: str | None = None) -> "Figure":
        """Return a figure of the importances and of predicted over actual ranks. Raises the errors of `importances`."""
        return importance_figure(self._history(), metric)

    def _history(self) -> SearchState:
        self._reader.refresh()
        return self._reader.search


def load_experiment(name_or_path: str | os.PathLike[str]) -> Experiment:
    """Open an experiment by its name (below `$FANWISE_HOME` or `~/fanwise`) or by the path of its folder.

    The experiment may still be running, or its tuner may have been killed. Every acknowledged report is included.

    Raises:
        RecordError: there is no such experiment, or it cannot be read. The message suggests similar names.

    >>> load_experiment("lenet-search").best.config
    {'learning_rate': 0.1, 'batch_size': 128}
    """
    return Experiment(folder_of(name_or_path))


def replay_experiment(name_or_path: str | os.PathLike[str], *, scheduler: Scheduler | None = None) -> ReplayResult:
    """Replay all decisions of an experiment, and compare them bit for bit with the recorded ones.

    The experiment may have been killed and resumed. If there are no differences, the scheduler and the searcher are
    deterministic, so the experiment can be resumed after any event. If a library of the searcher (`Searcher.libraries`)
    has another version than in the record, suggestions are not compared (see `version_changes` of the result).
    Suggestions may also depend on the type of CPU. A replay takes about as long as all decisions of the search.

    Args:
        scheduler: the scheduler of the experiment. None: load it from the experiment's folder.

    Raises:
        RecordError: there is no such experiment, or its program cannot be loaded.
        ValueError: the random seeds of the scheduler and the experiment differ.

    >>> result = replay_experiment("lenet-search")
    >>> result.num_differences
    0
    """
    folder = folder_of(name_or_path)
    meta = read_meta(folder)
    if scheduler is None:
        _, scheduler, _ = load_program(folder)
    settings = SearchSettings.from_json(meta, scheduler)
    scheduler = settings.copy_scheduler()
    new_versions, old_versions = settings.versions(), recorded_versions(folder, meta)
    version_changes = {
        name: (" and ".join(old_versions[name]), new_versions.get(name, "not installed"))
        for name in scheduler.searcher.libraries
        if name in old_versions and old_versions[name] != [new_versions.get(name)]
    }
    core, rows = settings.new_core(scheduler), rows_of(folder)
    result = replay(core, scheduler.searcher, rows, compares_suggestions=not version_changes)
    result.version_changes = version_changes
    return result


def folder_of(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the folder of an experiment, given its name or path. Raises the same errors as `load_experiment`."""
    path = Path(name_or_path)
    named_folder = experiments_folder() / path
    if not path.is_absolute() and len(path.parts) == 1 and named_folder.exists():
        return named_folder
    if path.exists():
        return path.parent if path.name == EVENTS_NAME else path
    raise RecordError(f"There is no experiment {os.fspath(name_or_path)!r}: {_hint(path.name)}")


def _hint(name: str) -> str:
    names, folder = list_experiments(), experiments_folder()
    if not names:
        return f"{folder} contains no experiments yet. If the experiment is elsewhere, pass the path of its folder."
    similar_names = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if similar_names:
        return f"did you mean {' or '.join(similar_names)}? (in {folder})"
    return f"{folder} contains {len(names)} experiments, for example {', '.join(names[-3:])}."


def remove_experiment(folder: Path) -> None:
    """Delete an experiment and its checkpoints, even if its record cannot be read. Other files are kept.

    Raises:
        RecordError: the folder has no record or is a symbolic link, or the experiment does not own its checkpoint
            root. Nothing was deleted.
        ClosedError: the search is running.
        OSError: the file system failed. The remaining files may have no record.
    """
    if folder.is_symlink() or not (folder / EVENTS_NAME).is_file():
        raise RecordError(f"{folder} is not the folder of an experiment: nothing was deleted.")
    try:
        meta = read_meta(folder)
    except RecordError:
        meta = {}
    try:
        lock = hold(folder)
    except HeldError:
        raise ClosedError(
            f"the search {folder.name!r} is running: nothing was deleted. End it first: fanwise tune stop {folder.name}"
        ) from None
    try:
        _delete_checkpoints(folder, meta)
        # A hidden folder is not listed as an experiment, and the name can be used again even if deleting fails.
        deleted_folder = folder.with_name(f".{folder.name}.{os.getpid()}.deleted")
        os.rename(folder, deleted_folder)
        (deleted_folder / EVENTS_NAME).unlink()
        shutil.rmtree(deleted_folder)
    finally:
        release(lock)


def _delete_checkpoints(folder: Path, meta: Mapping[str, Any]) -> None:
    """Delete the checkpoints of an experiment, unless they are in its folder."""
    setting = meta.get("settings", {}).get("checkpoints")
    if setting is None:
        return
    root = checkpoint_root(folder, str(meta["name"]), str(setting))
    if is_inside(root, folder):
        return
    if conflict := conflict_in(root, meta.get("id"), folder):
        raise RecordError(
            f"{folder.name} keeps its checkpoints in {root}, but {conflict}\n"
            f"Nothing was deleted. To delete the experiment without them, remove {folder} by hand."
        )
    delete_owned(root)
