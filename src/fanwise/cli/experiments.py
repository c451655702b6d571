"""What several commands do with an experiment: run it to its end, put it into words, draw it, export it."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..base.errors import SearchFailedError, SearchInterrupted
from ..base.text import counted, printable_line
from ..plot.worker_intervals import worker_timeline
from ..pool import Pool
from ..tune import Experiment, Tuner, load_experiment
from ..tune.constraints import format_violations
from ..tune.experiment import Best
from .usage import UsageError

# Exit status of a program that was ended by Ctrl-C, as shells define it.
INTERRUPTED_STATUS = 130

# For `--ray`, in the place of a cluster's address.
THIS_MACHINE = "none"

_MOST_POINTS = 10


def utilization_of(experiment: Experiment) -> str | None:
    """The utilization in the words of the worker timeline; None before the first objective began."""
    return worker_timeline(experiment.search_data()).utilization_in_words()


def run_tuner(tuner: Tuner) -> tuple[Experiment, int]:
    """Run a search until it ends or Ctrl-C is pressed. Return its results and the exit status of the command.

    Raises:
        SearchFailedError: as `Tuner.run`, with the command that shows the reports.
    """
    try:
        return tuner.run(), 0
    except SearchInterrupted:
        return Experiment(tuner.path), INTERRUPTED_STATUS
    except SearchFailedError as error:
        message = f"{error.reason}\nAll reports are saved: fanwise tune show {tuner.name}"
        raise SearchFailedError(message, reason=error.reason, kind=error.kind) from error


@contextlib.contextmanager
def pool_on(ray: str | None) -> Iterator[Pool | None]:
    """What `--ray` asks for, closed afterwards: a pool on a cluster, or of this machine; None: the tuner makes its own.

    Raises:
        UsageError: it is no address.
        NotInstalled, ClusterError: the cluster cannot be used.
    """
    if ray is None:
        yield None
        return
    try:
        pool = Pool() if ray == THIS_MACHINE else Pool(ray=ray)
    except ValueError as error:
        raise UsageError(f"--ray: {error}") from error
    with pool:
        yield pool


def shown_config(config: Mapping[str, object]) -> str:
    """A configuration in one line: learning_rate=0.1, batch_size=128."""
    return ", ".join(f"{printable_line(name)}={printable_line(str(value))}" for name, value in config.items())


def front_lines(experiment: Experiment) -> Iterator[str]:
    """The Pareto front, where a search has several objectives; the best in the first one first."""
    if len(experiment.metadata.get("objectives", ())) < 2:
        return
    front = experiment.pareto()
    if front:
        yield f"Pareto front: {counted(len(front), 'report')}"
    for point in front[:_MOST_POINTS]:
        values = ", ".join(f"{printable_line(name)}={value:.5g}" for name, value in point.values.items())
        yield f"  trial {point.trial_id}, report {point.iter}: {values}"
    if len(front) > _MOST_POINTS:
        yield f"  (and {len(front) - _MOST_POINTS} more; all of them: load_experiment({experiment.name!r}).pareto())"


def best_line(best: Best) -> str:
    """The best configuration, or the nearest to the constraints where none meets them."""
    if best.is_feasible:
        return f"best configuration: {shown_config(best.config)}"
    violated = printable_line(format_violations(best.violations))
    return f"no trial meets all constraints; the nearest: {shown_config(best.config)}; it violates {violated}"


def folder_for_output(out: Path) -> Path:
    """Make the folder that `--out` names, if it is not there.

    Raises:
        ValueError: it is a file, or the system does not let us make it or write into it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".fanwise-writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"--out {str(out)!r} must be a folder that can be written to: {error.strerror}") from error
    return out


def export(name: str, out: Path) -> Path:
    """Write all reports of an experiment as CSV, JSON, Parquet or SQLite, by the file's ending.

    Raises:
        UsageError: the ending is none of them.
        ValueError: the file cannot be written; nothing is left of it.
    """
    experiment = load_experiment(name)
    try:
        experiment.export(out)
    except ValueError as error:
        raise UsageError(f"--out: {error}") from error
    except OSError as error:
        raise ValueError(f"--out {str(out)!r} must be a file that can be written; {error.strerror}") from error
    return out
