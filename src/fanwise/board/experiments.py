"""The experiments of a folder, for the pages of the board.

    Home(folder) --listing----> a line for each experiment, also for those that cannot be read
                 --experiment-> CachedExperiment --summary, view, trials, trial--> JSON values

All pages of an experiment share one `CachedExperiment`, which reads only new events and computes each view once per
state. Everything here blocks, and is called from threads. Records are opened read-only. They may be from other people,
so no path in a record is opened, and symbolic links out of the folder are not followed.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, final

from ..base.errors import NotInstalled, RecordError
from ..base.plain_json import attributes, json_bytes
from ..base.text import printable, printable_line
from ..base.tracebacks import of_the_user
from ..links.status_files import Status
from ..pool.output import tail
from ..tune.experiment import Experiment
from ..tune.plot_data import search_data
from ..tune.record.event_file import EVENTS_NAME, META_NAME, SUMMARY_NAME
from ..tune.record.names import output_files
from ..tune.record.overview import Overview, SearchReader, overview_of
from ..tune.stopping import StoppingCriterion
from .views import VIEWS, ExperimentState, Json, importance, summary, trial_detail, trial_rows

_MAX_CACHED = 6  # a long record takes 100 MB
_MIN_REFRESH_S, _MAX_REFRESH_S = 0.3, 60.0
_REST_FACTOR = 20.0  # after a second of reading and computing, the next refresh is 20 seconds later
_IMPORTANCE_REST_FACTOR = 10.0
_MAX_ROWS = 100
_MAX_LOG_BYTES, _MAX_LOG_LINES = 1 << 16, 300

_T = TypeVar("_T")


class NotFound(LookupError):
    """There is no such experiment, trial or view."""


@final
class Home:
    """The experiments in `folder`, which may be created later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._cached: dict[str, CachedExperiment] = {}
        self._lines: dict[str, tuple[object, Json]] = {}

    def listing(self) -> list[Json]:
        """Return a line for each experiment, running and new ones first. Raises RecordError."""
        try:
            with os.scandir(self.folder) as entries:
                names = {entry.name for entry in entries if os.path.lexists(os.path.join(entry.path, EVENTS_NAME))}
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        except OSError as error:
            raise RecordError(f"the folder of experiments {self.folder} cannot be read: {error.strerror}") from error
        with self._lock:
            self._lines = {name: line for name, line in self._lines.items() if name in names}
        lines = [self._line(name) for name in names]
        return sorted(lines, key=lambda line: (line["state"] != "running", -line["changed_s"], line["name"]))

    def _line(self, name: str) -> Json:
        """Return the line of an experiment. Unless the search is running, it is reused until the files change."""
        stats = _file_stats(self.folder / name)
        cached = self._lines.get(name)
        if cached is not None and cached[0] == stats and cached[1]["state"] != "running":
            return cached[1]
        try:
            if not name.isprintable():
                raise NotFound("the name of its folder contains unprintable characters")
            line = _overview_json(overview_of(self.folder_of(name)))
        except Exception as error:  # a foreign file may cause any error, which concerns only this line
            message = str(error).partition("\n")[0] if isinstance(error, RecordError | NotFound) else ""
            line = {"state": "unreadable", "error": message or "its record is damaged, or not one of fanwise"}
        line |= {"id": name, "name": line.get("name", name), "changed_s": max(stats[0][0], stats[1][0]) / 1e9}
        with self._lock:
            self._lines[name] = (stats, line)
        return line

    def folder_of(self, name: str) -> Path:
        """Return the folder of an experiment. Raises NotFound if there is none, or if it is a symbolic link."""
        folder = self.folder / name
        if not os.path.lexists(folder / EVENTS_NAME):
            raise NotFound(f"there is no experiment {name!r} in {self.folder}")
        if not _is_inside(folder / EVENTS_NAME, self.folder):
            raise NotFound(f"the experiment {name!r} is a link to another place, which the board does not follow")
        return folder

    def overview(self, name: str) -> Json:
        """Return the summary of an experiment without reading all events. Raises NotFound, RecordError."""
        return _overview_json(overview_of(self.folder_of(name)))

    def experiment(self, name: str) -> "CachedExperiment":
        """Return the experiment of this name. Raises NotFound. The least recently used ones are dropped."""
        folder = self.folder_of(name)
        inode = (folder / EVENTS_NAME).stat().st_ino  # differs if the experiment was deleted and created again
        with self._lock:
            experiment = self._cached.pop(name, None)
            if experiment is None or experiment.inode != inode:
                experiment = CachedExperiment(folder, inode)
            self._cached[name] = experiment
            while len(self._cached) > _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        return experiment


@final
class CachedExperiment:
    """The state of one experiment and the views that were computed from it.

    The state is refreshed on demand, at most every 0.3 s, and so rarely that reading the record and computing views
    takes a twentieth of the time. All methods raise RecordError if the record cannot be read.
    """

    def __init__(self, folder: Path, inode: int) -> None:
        self.folder = folder
        self.inode = inode
        self._lock = threading.RLock()
        self._reader: SearchReader | None = None
        self._state: ExperimentState | None = None
        self._refreshed_at_s = self._next_refresh_s = self._busy_s = 0.0
        self._views: dict[str, tuple[object, Any]] = {}  # {name: (version, value)}
        self._importance_lock = threading.Lock()
        self._importance: tuple[object, bytes | ValueError] | None = None  # (version, result)
        self._next_importance_s = 0.0

    def state(self) -> ExperimentState:
        """Return the state after the latest refresh, which may be a moment ago."""
        with self._lock, _as_record_errors(self.folder):
            if self._state is None or time.monotonic() >= self._next_refresh_s:
                self._refreshed_at_s, self._busy_s = time.monotonic(), 0.0
                with self._measured():
                    self._state = self._refresh()
            return self._state

    def _refresh(self) -> ExperimentState:
        if self._reader is None:
            self._reader = SearchReader(self.folder, full=True)
        reader, last = self._reader, self._state
        reader.refresh()
        history = reader.search
        is_unchanged = last is not None and last.seq == history.last_seq
        return ExperimentState(
            path=self.folder,
            history=history,
            seq=history.last_seq,
            search=last.search if last is not None and is_unchanged else search_data(history),
            state=reader.state,
            now_s=reader.now_s,
            stop=StoppingCriterion(**history.stop),
        )

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Add the duration of the block to the cost of the current state, which delays the next refresh."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._busy_s += time.monotonic() - started_s
            delay_s = min(_MAX_REFRESH_S, max(_MIN_REFRESH_S, _REST_FACTOR * self._busy_s))
            self._next_refresh_s = self._refreshed_at_s + delay_s

    def refresh_soon(self) -> None:
        """Refresh at the next access, because the search has received a command."""
        with self._lock:
            self._next_refresh_s = 0.0

    def refresh_delay_s(self) -> float:
        """Return the seconds until the next refresh, 0 if it is due."""
        with self._lock:
            return max(0.0, self._next_refresh_s - time.monotonic())

    def summary(self) -> Json:
        """Return the counts, the best report and the budget."""
        with self._lock, _as_record_errors(self.folder):
            return summary(self.state())

    def view(self, name: str) -> bytes:
        """Return a view with its `seq` as JSON.

        Raises:
            NotFound: there is no such view.
            ValueError: this experiment does not have the view. The message says why.
        """
        if name == "importance":
            return self.importance()
        if name not in VIEWS:
            raise NotFound(f"there is no view {name!r}; there are {', '.join(VIEWS)} and importance")
        with self._lock:
            state = self.state()
            return self._cached(name, state, lambda: json_bytes({**VIEWS[name](state), "seq": state.seq}))

    def _cached(self, name: str, state: ExperimentState, make: Callable[[], _T]) -> _T:
        version, cached = (state.seq, state.state), self._views.get(name)
        if cached is None or cached[0] != version:
            with self._measured(), _as_record_errors(self.folder):
                self._views[name] = cached = (version, make())
        value: _T = cached[1]
        return value

    def importance(self) -> bytes:
        """Return the importances as JSON. They are computed again if trials have ended since, but not all the time.

        Raises:
            ValueError: too few trials have a result. The message says how many are needed.
        """
        with self._importance_lock:
            state, cached, started_s = self.state(), self._importance, time.monotonic()
            version = (sum(state.history.num_ended.values()), state.state)
            if cached is None or (cached[0] != version and started_s >= self._next_importance_s):
                result: bytes | ValueError
                try:
                    result = json_bytes(importance(Experiment(self.folder)))  # does not block other views
                except (ValueError, NotInstalled) as error:
                    result = ValueError(str(error))
                self._importance = cached = (version, result)
                ended_s = time.monotonic()
                self._next_importance_s = ended_s + _IMPORTANCE_REST_FACTOR * (ended_s - started_s)
        if isinstance(cached[1], ValueError):
            raise cached[1]
        return cached[1]

    def trials(self, *, sort: str, descending: bool, status: str, text: str, offset: int) -> Json:
        """Return rows of the table of trials: those with the status (or "") and the text, sorted by a column."""
        with self._lock:
            state = self.state()
            rows = self._cached("trials", state, lambda: trial_rows(state))
            metrics, config = list(state.history.reports.values), list(state.history.meta["space"])
        text = text.casefold()
        matches = [
            row for row in rows if (not status or row["status"] == status) and (not text or text in _row_text(row))
        ]
        matches.sort(key=lambda row: row["trial"])
        matches.sort(key=lambda row: _sort_key(_cell(row, sort)), reverse=descending)
        matches.sort(key=lambda row: _cell(row, sort) is None)
        return {
            "total": len(rows),
            "found": len(matches),
            "offset": offset,
            "limit": _MAX_ROWS,
            "metrics": metrics,
            "config": config,
            "rows": matches[offset : offset + _MAX_ROWS],
        }

    def trial(self, trial_id: int) -> Json:
        """Return one trial with the end of its output. Raises NotFound."""
        with self._lock, _as_record_errors(self.folder):
            state = self.state()
            if trial_id not in state.history.trials:
                raise NotFound(f"there is no trial {trial_id} in {state.history.name!r}")
            detail = trial_detail(state, trial_id)
            attempt = state.history.trials[trial_id].last.number
        output, errors = (self._tail(path) for path in output_files(self.folder, trial_id, attempt))
        failure = detail["failure"]
        if failure is not None:
            failure["traceback"] = of_the_user(printable(failure["traceback"]))
        return {**detail, "output": output, "errors": of_the_user(errors)}

    def _tail(self, path: Path) -> str:
        if not _is_inside(path, self.folder):
            return ""
        return tail(path, max_bytes=_MAX_LOG_BYTES, max_lines=_MAX_LOG_LINES)


@contextmanager
def _as_record_errors(folder: Path) -> Iterator[None]:
    """Convert errors of a record that lacks expected fields to RecordError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RecordError(
            f"the record of {folder.name} cannot be understood ({type(error).__name__}: {error}). Was it written by "
            f"another program, or by another version of fanwise?"
        ) from error


def _overview_json(overview: Overview) -> Json:
    best = overview.best
    return {
        **attributes(overview, "name", "state", "reason", "metric", "mode", "elapsed_s"),
        "trials": {
            "total": overview.num_trials,
            "InProgress": overview.num_running,
            "Paused": overview.num_paused,
            "Lost": overview.num_lost,
            **overview.num_ended,
        },
        "best": best and {"value": best[0], "trial": best[1], "violated": overview.violated},
    }


def _file_stats(folder: Path) -> list[tuple[int, int]]:
    """Return time and size of the files of a record. Missing files have (0, 0)."""
    stats = []
    for name in (EVENTS_NAME, SUMMARY_NAME, META_NAME):
        try:
            stat = os.lstat(folder / name)
            stats.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            stats.append((0, 0))
    return stats


def _is_inside(file: Path, folder: Path) -> bool:
    """Return True if no part of the path from the folder to the file is a symbolic link."""
    return os.path.realpath(file) == os.path.join(os.path.realpath(folder), os.path.relpath(file, folder))


def _row_text(row: Mapping[str, Any]) -> str:
    config = " ".join(f"{name}={value}" for name, value in row["config"].items())
    return printable_line(f"{row['trial']} {row['status']} {config} {row['reason'] or ''}").casefold()


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """Return the value in a column: a key of the row, `config.NAME` or `last.NAME`."""
    group, _, name = column.partition(".")
    return row[group].get(name) if group in ("config", "last") and name else row.get(column)


def _sort_key(value: object) -> tuple[int, float, str]:
    """Sort numbers before texts, and NaN after other numbers."""
    if isinstance(value, int | float):
        return (0, float(value), "") if value == value else (1, 0.0, "")
    return 2, 0.0, str(value)


def training_runs(statuses: Iterable[Status]) -> list[dict[str, Any]]:
    """Return the training runs of this user, newest first, without those that cannot be read."""
    runs = []
    for status in statuses:
        if status.kind == "run":
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                runs.append(_run(status))
    return sorted(runs, key=lambda run: run["elapsed_s"] - run["written_s"])


def _run(status: Status) -> dict[str, Any]:
    body = status.body
    return {
        "name": str(body["name"]) or "run",
        "program": str(body["program"]),
        "host": status.host.partition("/")[0],  # the rest makes it unique
        "pid": status.pid,
        "written_s": status.written_s,
        "elapsed_s": float(body["elapsed_s"]),
        **{name: body[name] for name in ("epoch", "epochs", "samples_per_s", "loss", "left_s")},
        "world_size": sum(rank["state"] != "lost" for rank in body["ranks"]),
    }
