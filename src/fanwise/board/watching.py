"""The experiments of one folder, watched for as long as somebody looks: what each page is answered.

    Home(folder) --listing-----> one line an experiment, also for what cannot be read
                 --training_runs--> those on this machine; training_run: one of them
                 --watched-----> Watched: one experiment, its record read on from where the last look ended
                                   --summary, view, trials, trial, log-->  JSON values

Several pages share one `Watched`: each look reads only what is new, and each view is computed once for a state of the
record. Everything here blocks, and is called from threads. Records are opened read-only; files in the folder may come
from anybody, so nothing that a record says is read as a file, and no link is followed out of an experiment.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from ..base.errors import NotInstalled, RecordError
from ..base.plain_json import json_bytes
from ..base.text import printable, printable_line
from ..base.tracebacks import of_the_user
from ..links.status_files import statuses
from ..pool.output import tail
from ..tune.experiment import Experiment
from ..tune.record.event_file import EVENTS_NAME, META_NAME, SUMMARY_NAME
from ..tune.record.names import output_files
from ..tune.record.overview import Overview, SearchReader, overview_of
from ..tune.stopping import StoppingCriterion
from .columns import Columns, columns_of
from .training_runs import find_run, list_runs
from .views import VIEWS, Json, Look, importance, summary, trial_detail, trial_rows

_MOST_WATCHED = 6  # a long record takes 100 MB
_PATIENCE = 10.0  # importances that took a second are computed again after ten
_LEAST_REST_S, _MOST_REST_S = 0.3, 60.0  # between two looks
_SHARE_OF_A_CORE = 0.05
_MOST_ROWS = 100
_LOG_BYTES, _LOG_LINES = 1 << 16, 300
_RUN_KEY = re.compile(r"run-[0-9a-f-]+", re.ASCII)


class NotThere(LookupError):
    """There is no such experiment, trial or view."""


@final
class Home:
    """See the module. `folder` need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._watched: dict[str, Watched] = {}
        self._lines: dict[str, tuple[object, Json]] = {}

    def listing(self) -> list[Json]:
        """The experiments, those that run first, then the newest first."""
        try:
            with os.scandir(self.folder) as entries:
                found = {entry.name for entry in entries if os.path.lexists(os.path.join(entry.path, EVENTS_NAME))}
        except (FileNotFoundError, NotADirectoryError):
            found = set()
        except OSError as error:
            raise RecordError(f"the folder of experiments {self.folder} cannot be read: {error.strerror}") from error
        with self._lock:
            self._lines = {name: line for name, line in self._lines.items() if name in found}
        lines = [self._line(name) for name in found]
        return sorted(lines, key=lambda line: (line["state"] != "running", -line["changed_s"], line["name"]))

    def training_runs(self) -> list[Json]:
        """Return the training runs of this user on this machine."""
        return list_runs(statuses())

    def training_run(self, key: str) -> Json:
        """Return one of them. Raises NotThere if it has ended."""
        run = find_run(statuses(), key)
        if run is None:
            raise NotThere("it has ended" if _RUN_KEY.fullmatch(key) else f"there is no training run {key!r}")
        return run

    def _line(self, name: str) -> Json:
        """Of an experiment that does not run any more it is made once, and again when its files have changed."""
        marks = _marks(self.folder / name / EVENTS_NAME)
        known = self._lines.get(name)
        if known is not None and known[0] == marks and known[1]["state"] != "running":
            return known[1]
        try:
            if not name.isprintable():
                raise NotThere("the name of its folder is no text that can be shown")
            line = _told(overview_of(self.inside(name)))
        except Exception as error:  # whatever a foreign file makes a reader raise is about its own line only
            first = str(error).partition("\n")[0] if isinstance(error, RecordError | NotThere) else ""
            line = {"state": "unreadable", "error": first or "its record is damaged, or not one of fanwise"}
        line |= {"id": name, "name": line.get("name", name), "changed_s": max(marks[0][0], marks[1][0]) / 1e9}
        with self._lock:
            self._lines[name] = (marks, line)
        return line

    def inside(self, name: str) -> Path:
        """The folder of the experiment. NotThere: there is none of this name, or it lies somewhere else."""
        folder = self.folder / name
        if not os.path.lexists(folder / EVENTS_NAME):
            raise NotThere(f"there is no experiment {name!r} in {self.folder}")
        if not _is_itself(folder / EVENTS_NAME, self.folder):
            raise NotThere(f"the experiment {name!r} is a link to another place, which the board does not follow")
        return folder

    def overview(self, name: str) -> Json:
        """What is known of an experiment before its record has been read in full. Raises NotThere, RecordError."""
        return _told(overview_of(self.inside(name)))

    def watched(self, name: str) -> "Watched":
        """The experiment of this name. Raises NotThere. Those that nobody has looked at for longest are forgotten."""
        folder = self.inside(name)
        inode = (folder / EVENTS_NAME).stat().st_ino  # another one: it was deleted and made anew
        with self._lock:
            found = self._watched.pop(name, None)
            if found is None or found.inode != inode:
                found = Watched(folder, inode)
            self._watched[name] = found
            while len(self._watched) > _MOST_WATCHED:
                del self._watched[next(iter(self._watched))]
        return found


@final
class Watched:
    """One experiment; see the module. All methods raise RecordError where its record cannot be read."""

    def __init__(self, folder: Path, inode: int) -> None:
        self.folder = folder
        self.inode = inode
        self._lock = threading.RLock()
        self._reader: SearchReader | None = None
        self._look: Look | None = None
        self._again_s = 0.0  # the clock's time of the next look
        self._columns: tuple[int, Columns] | None = None
        self._made: dict[str, tuple[object, Any]] = {}  # Any: what a view returns
        self._is_thinking = False
        self._think_again_s = 0.0

    def look(self) -> Look:
        """The experiment as it is now, or was a moment ago: looking takes at most a twentieth of a core."""
        with self._lock, _understood(self.folder):
            if self._look is None or time.monotonic() >= self._again_s:
                self._look = self._look_again()
            return self._look

    def hurry(self) -> None:
        """Somebody has told the search something, and wants to see what comes of it."""
        with self._lock:
            self._again_s = 0.0

    def due_s(self) -> float:
        """Seconds until the next look, before which nothing here changes; 0: it is due."""
        with self._lock:
            return max(0.0, self._again_s - time.monotonic())

    def _spent(self, began_s: float) -> None:
        """What was made of this look took this thread's CPU since `began_s`."""
        self._spent_s += time.thread_time() - began_s
        self._again_s = self._looked_s + min(_MOST_REST_S, max(_LEAST_REST_S, self._spent_s / _SHARE_OF_A_CORE))

    _looked_s = _spent_s = 0.0

    def _look_again(self) -> Look:
        self._looked_s, self._spent_s = time.monotonic(), 0.0
        began_s = time.thread_time()
        if self._reader is None:
            self._reader = SearchReader(self.folder, full=True)
        self._reader.refresh()
        history = self._reader.search
        if self._columns is None or self._columns[0] != history.last_seq:
            self._columns = (history.last_seq, columns_of(history))
        self._spent(began_s)
        return Look(
            self.folder,
            history.meta,
            history,
            self._columns[1],
            self._reader.state,
            self._reader.now_s,
            history.n_workers,
            StoppingCriterion(**history.stop),
        )

    def summary(self) -> Json:
        """See `views.summary`."""
        with self._lock, _understood(self.folder):
            return summary(self.look())

    def view(self, name: str) -> Json:
        """One of `VIEWS`, with the `seq` that it is of. Made once a look.

        Raises:
            NotThere: there is no such view.
            ValueError: this experiment does not have it; says why.
        """
        if name not in VIEWS:
            raise NotThere(f"there is no view {name!r}; there are {', '.join(VIEWS)}")
        with self._lock:
            look = self.look()
            with _understood(self.folder):
                made: Json = self._kept(name, look, lambda: {**VIEWS[name](look), "seq": look.history.last_seq})
            return made

    def view_body(self, name: str) -> bytes:
        """`view` as JSON, written once for all pages."""
        with self._lock:
            made = self.view(name)
            body: bytes = self._kept(f"{name} as JSON", self.look(), lambda: json_bytes(made))
        return body

    def importance(self) -> Json:
        """How much each hyperparameter matters: what is known by now. A thread of its own computes it meanwhile.

        Raises:
            ValueError: too few trials have a result; says how many it takes.
        """
        with self._lock:
            look, known = self.look(), self._made.get("importance")
            over = look.history.num_ended
            mark = (sum(over.values()), look.state)
            is_due = time.monotonic() >= self._think_again_s and not self._is_thinking
            if (known is None or known[0] != mark) and is_due:
                self._is_thinking = True
                threading.Thread(target=self._think, args=(mark,), name="board importance", daemon=True).start()
            if known is None:
                return {"state": "computing"}
        if isinstance(known[1], ValueError):
            raise known[1]
        return {"state": "known", **known[1]}

    def _think(self, mark: object) -> None:
        began_s = time.monotonic()
        found: Json | Exception
        try:
            found = importance(Experiment(self.folder))  # its own: nobody waits for this one
        except (ValueError, RecordError, NotInstalled) as error:
            found = ValueError(str(error))
        ended_s = time.monotonic()
        with self._lock:
            self._is_thinking = False
            self._made["importance"] = (mark, found)
            self._think_again_s = ended_s + _PATIENCE * (ended_s - began_s)

    def _kept(self, name: str, look: Look, make: Callable[[], Any]) -> Any:  # Any: what a view returns
        mark = (look.history.last_seq, look.state)
        known = self._made.get(name)
        if known is not None and known[0] == mark:
            return known[1]
        began_s = time.thread_time()
        made = make()
        self._made[name] = (mark, made)
        self._spent(began_s)
        return made

    def trials(self, *, sort: str, descending: bool, status: str, text: str, offset: int) -> Json:
        """A page of the table of trials: of those of a status ("": of all) that contain a text, sorted by a column."""
        with self._lock:
            look = self.look()
            rows: list[Json] = self._kept("trials", look, lambda: trial_rows(look))
            metrics, config = list(look.history.reports.values), list(look.meta["space"])
        wanted = text.casefold()
        kept = [
            row for row in rows if (not status or row["status"] == status) and (not wanted or wanted in _text_of(row))
        ]
        kept.sort(key=lambda row: row["trial"])
        present = [row for row in kept if _cell(row, sort) is not None]
        missing = [row for row in kept if _cell(row, sort) is None]
        present.sort(key=lambda row: _orderly(_cell(row, sort)), reverse=descending)
        ordered = present + missing
        return {
            "total": len(rows),
            "found": len(ordered),
            "offset": offset,
            "limit": _MOST_ROWS,
            "metrics": metrics,
            "config": config,
            "rows": ordered[offset : offset + _MOST_ROWS],
        }

    def trial(self, trial_id: int) -> Json:
        """One trial with the end of what it printed. Raises NotThere."""
        with self._lock:
            look = self.look()
            try:
                detail = trial_detail(look, trial_id)
            except KeyError:
                raise NotThere(f"there is no trial {trial_id} in {look.name!r}") from None
            attempt = look.history.trials[trial_id].last.number
        output, errors = (self._tail(path) for path in output_files(self.folder, trial_id, attempt))
        failure = detail["failure"]
        if failure is not None:
            failure["traceback"] = of_the_user(printable(failure["traceback"]))
        return {**detail, "output": output, "errors": of_the_user(errors)}

    def _tail(self, path: Path) -> str:
        if not _is_itself(path, self.folder):
            return ""
        return tail(path, max_bytes=_LOG_BYTES, max_lines=_LOG_LINES)


@contextmanager
def _understood(folder: Path) -> Iterator[None]:
    """A record that lacks what every record has is a RecordError, and no bug of ours."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RecordError(
            f"the record of {folder.name} cannot be understood ({type(error).__name__}: {error}). Was it written by "
            f"another program, or by another version of fanwise?"
        ) from error


def _told(overview: Overview) -> Json:
    best = overview.best
    return {
        "name": overview.name,
        "state": overview.state,
        "reason": overview.reason,
        "metric": overview.metric,
        "mode": overview.mode,
        "trials": {
            "total": overview.num_trials,
            "InProgress": overview.num_running,
            "Paused": overview.num_paused,
            "Lost": overview.num_lost,
            **overview.num_ended,
        },
        "best": None if best is None else {"value": best[0], "trial": best[1], "violated": overview.violated},
        "elapsed_s": overview.elapsed_s,
    }


def _marks(file: Path) -> tuple[tuple[int, int], ...]:
    """What changes when a record does: times and sizes of its files."""
    return tuple(_mark(file.with_name(name)) for name in (EVENTS_NAME, SUMMARY_NAME, META_NAME))


def _mark(place: Path) -> tuple[int, int]:
    try:
        status = os.lstat(place)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _is_itself(file: Path, folder: Path) -> bool:
    """No link on the way from the folder to the file leads anywhere else."""
    real = os.path.realpath(folder)
    return os.path.realpath(file) == os.path.join(real, os.path.relpath(file, folder))


def _text_of(row: Mapping[str, Any]) -> str:  # Any: JSON
    config = " ".join(f"{name}={value}" for name, value in row["config"].items())
    return printable_line(f"{row['trial']} {row['status']} {config} {row['reason'] or ''}").casefold()


def _cell(row: Mapping[str, Any], column: str) -> Any:  # Any: JSON
    """What stands in a column: one of the table's own, or `config.NAME`, or `last.NAME`."""
    group, _, name = column.partition(".")
    return row[group].get(name) if group in ("config", "last") and name else row.get(column)


def _orderly(value: object) -> tuple[int, float, str]:
    """Numbers before texts; NaN after all other numbers."""
    if isinstance(value, int | float):
        return (0, float(value), "") if value == value else (1, 0.0, "")
    return 2, 0.0, str(value)
