"""Functions that several commands share."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..base.errors import ClusterError, NotInstalled, SearchFailedError, SearchInterrupted
from ..base.text import counted, printable_line
from ..plot.data import worker_timeline
from ..pool import Pool
from ..tune import Experiment, Tuner, load_experiment
from ..tune.constraints import format_violations
from ..tune.experiment import Best
from .console import UsageError, at_work

_MAX_POINTS = 10

# A job scheduler may start the first host hours later.
_FIRST_HOST_S = 86_400.0


def utilization_of(experiment: Experiment) -> str | None:
    """Return the utilization as text, or None before the first objective has started."""
    return worker_timeline(experiment.search_data()).utilization_in_words()


def run_tuner(tuner: Tuner) -> tuple[Experiment, int]:
    """Run a search until it ends or Ctrl-C is pressed. Return its results and the exit status of the command.

    Raises:
        SearchFailedError: see `Tuner.run`. The message names the command that shows the reports.
    """
    try:
        return tuner.run(), 0
    except SearchInterrupted:
        return Experiment(tuner.path), 130  # as in shells
    except SearchFailedError as error:
        reason = error.reason.replace("set max_equal_failures=None", "search again with --max-equal-failures 0")
        message = f"{reason}\nAll reports are saved: fanwise tune show {tuner.name}"
        raise SearchFailedError(message, reason=reason, kind=error.kind) from error


@contextlib.contextmanager
def pool_on(
    ray: str | None, listen: str | None = None, secret_file: Path | None = None, local_workers: int | None = None
) -> Iterator[Pool | None]:
    """Yield the pool of `--ray` or `--listen`, or None for the default pool of the tuner. Close the pool afterwards.

    Raises:
        UsageError: the options are not addresses, or do not fit together.
        SecretError: there is no secret, or others may read its file.
        NotInstalled, ClusterError: the cluster cannot be used.
    """
    if listen is None and (secret_file is not None or local_workers is not None):
        raise UsageError("--secret-file and --local-workers need --listen")
    if ray is None and listen is None:
        yield None
        return
    try:
        if listen is not None:
            pool = Pool(
                ray=ray, listen=listen, secret_file=secret_file, cpus=local_workers, start_within_s=_FIRST_HOST_S
            )
        else:
            pool = Pool() if ray == "none" else Pool(ray=ray)
    except ValueError as error:
        raise UsageError(f"{'--ray' if listen is None else '--listen'}: {error}") from error
    except (ClusterError, NotInstalled) as error:
        message = error.message.replace("Pool(ray=...)", "--ray").replace("Pool(ray='10.0.0.1:6379')", "--ray ADDRESS")
        raise type(error)(message) from error
    with pool:
        if listen is not None:
            with at_work(f"listening at {listen}, and waiting for a host"):
                pool.capacity()
        yield pool


def shown_config(config: Mapping[str, object]) -> str:
    """Return a configuration in one line, such as "learning_rate=0.1, batch_size=128"."""
    return ", ".join(f"{printable_line(name)}={printable_line(str(value))}" for name, value in config.items())


def front_lines(experiment: Experiment) -> Iterator[str]:
    """Yield the Pareto front if there are several objectives, sorted by the first objective."""
    if len(experiment.metadata.get("objectives", ())) < 2:
        return
    front = experiment.pareto()
    if front:
        yield f"Pareto front: {counted(len(front), 'report')}"
    for point in front[:_MAX_POINTS]:
        values = ", ".join(f"{printable_line(name)}={value:.5g}" for name, value in point.values.items())
        yield f"  trial {point.trial_id}, report {point.iter}: {values}"
    if len(front) > _MAX_POINTS:
        yield f"  (and {len(front) - _MAX_POINTS} more: load_experiment({experiment.name!r}).pareto())"


def best_line(best: Best) -> str:
    """Return the best configuration, or the one closest to the constraints if none meets them, as text."""
    if best.is_feasible:
        return f"best configuration: {shown_config(best.config)}"
    violated = printable_line(format_violations(best.violations))
    return f"no trial meets all constraints; the closest is {shown_config(best.config)}, which violates {violated}"


def folder_for_output(out: Path) -> None:
    """Create the folder of `--out` if it does not exist.

    Raises:
        ValueError: the folder cannot be created or written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".fanwise-writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"--out {str(out)!r} is not a folder that can be written to: {error.strerror}") from error


def export(name: str, out: Path) -> Path:
    """Write all reports of an experiment to a file. Raises UsageError for an unknown suffix, and ValueError."""
    return _write(load_experiment(name).export, out)


def write_report(name: str, out: Path | None) -> Path:
    """Write the report of an experiment, by default to NAME.html. Raises the same errors as `export`."""
    experiment = load_experiment(name)
    return _write(experiment.report, Path(f"{experiment.path.name}.html") if out is None else out)


def _write(write: Callable[[Path], None], out: Path) -> Path:
    try:
        write(out)
    except ValueError as error:
        raise UsageError(f"--out: {error}") from error
    except OSError as error:
        raise ValueError(f"--out {str(out)!r} cannot be written: {error.strerror}") from error
    return out
