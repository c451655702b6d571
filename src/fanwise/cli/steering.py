"""Commands that watch, control, resume and delete searches."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from ..base.errors import ClusterError, RecordError
from ..base.text import counted, printable_line
from ..tune import Status, StoppingCriterion, Tuner
from ..tune.display.screen import screen_for
from ..tune.display.table import footer
from ..tune.experiment import folder_of, remove_experiment
from ..tune.record.event_file import read_meta
from ..tune.record.overview import Overview, SearchReader, overview_of
from ..tune.record.replay import last_settings
from ..tune.runtime.control import check_is_running, send_command
from ..tune.space import space_from_json
from .console import UsageError, at_work
from .experiments import pool_on
from .objectives import find_modules_here, load_function
from .searching import run_and_print
from .space_files import read_config

_REFRESH_S = 0.5
_PRINT_S = 30.0


def watch_search(name: str) -> None:
    """Show a running search until it ends or Ctrl-C is pressed. Raises ClosedError if it is not running."""
    folder = folder_of(name)
    overview = check_is_running(folder)
    reader = SearchReader(folder)
    reader.refresh()
    reader.search.news.take()  # drop earlier news
    screen = screen_for(_PRINT_S, quiet=False)
    shown = printable_line(overview.name)
    screen.print_lines(f"watching {shown}: {footer(reader.snapshot())}; Ctrl-C ends the display, not the search")
    try:
        while reader.state in ("running", "unknown"):
            screen.show(reader.search.news.take(), reader.snapshot)
            time.sleep(_REFRESH_S)
            reader.refresh()
    except KeyboardInterrupt:
        screen.end([], reader.snapshot, [f"the search continues; watch it again: fanwise tune watch {shown}"])
        raise typer.Exit(130) from None
    if reader.state == "finished":
        last = f"the search ended: {printable_line(reader.search.stop_reason or '')}"
    else:
        last = f"the tuner of the search was killed or has crashed. Resume it: fanwise tune resume {shown}"
    screen.end(reader.search.news.take(), reader.snapshot, [last])


def command_search(name: str, command: str, *args: object) -> None:
    """Send a command to a running search and print its answer. Raises like `send_command`."""
    typer.echo(printable_line(send_command(folder_of(name), command, *args)))


def enqueue(name: str, settings: Sequence[str]) -> None:
    """Let a running search try a configuration next. Raises like `send_command`, and like `read_config`."""
    space = space_from_json(read_meta(folder_of(name))["space"])
    command_search(name, "enqueue", read_config(space, settings))


def resume_search(
    *,
    name: str,
    objective: str | None,
    workers: int | None,
    seconds: float | None,
    trials: int | None,
    ray: str | None,
    listen: str | None,
    secret_file: Path | None,
    local_workers: int | None,
    json: bool,
) -> None:
    """Resume a search in this process, and print its results.

    Raises:
        RecordError: the search does not exist, is running, or its program cannot be loaded.
        UsageError: the search would end at once, because a limit is reached.
    """
    folder = folder_of(name)
    meta = read_meta(folder)
    overview = overview_of(folder)
    if overview.state == "running":
        raise RecordError(f"the search {overview.name!r} is running already (to watch it: fanwise tune watch {name})")
    _, stop = last_settings(folder, meta)
    if seconds is not None:
        stop = replace(stop, max_wallclock_time=seconds)
    if trials is not None:
        stop = replace(stop, max_num_trials_started=trials)
    _check_limits(overview, stop)
    find_modules_here()
    function = None if objective is None else load_function(objective)
    with pool_on(ray, listen, secret_file, local_workers) as pool:
        try:
            tuner = Tuner.resume(folder, objective=function, stop=stop, n_workers=workers, pool=pool, quiet=json)
        except ClusterError as error:
            hint = "The search ran on this cluster before. --ray ADDRESS uses another cluster, --ray none this machine."
            raise ClusterError(f"{error.message}\n{hint}") from error
        run_and_print(tuner, json=json)


def remove(names: Sequence[str], *, sure: bool) -> None:
    """Delete experiments. Ask before each, unless `sure` is True.

    Raises:
        ClosedError: an experiment is running.
        RecordError: an experiment does not exist.
        UsageError: standard input cannot answer.
    """
    folders = [folder_of(name) for name in names]  # all must exist before one is deleted
    for folder in folders:
        shown = printable_line(str(folder))
        if not sure and not _is_confirmed(f"delete {shown} ({_size_of(folder)}) permanently?"):
            typer.echo(f"kept {shown}")
            continue
        with at_work(f"deleting {shown}"):
            remove_experiment(folder)
        typer.echo(f"deleted {shown}")


def _check_limits(overview: Overview, stop: StoppingCriterion) -> None:
    """Raise UsageError if a limit is reached already, so that no trial could run."""
    over_s, started = overview.elapsed_s, overview.num_trials
    seconds, trials = stop.max_wallclock_time, stop.max_num_trials_started
    may_resume_trials = overview.num_paused or overview.num_lost or overview.num_ended.get(Status.STOPPED)
    if seconds is not None and over_s >= seconds:
        limit = f"--seconds above {over_s:.0f}: it has run for {over_s:.1f} s, and the limit is {seconds:g} s"
    elif trials is not None and started >= trials and not may_resume_trials:
        limit = f"--trials above {started}: it has started {counted(started, 'trial')}, and the limit is {trials}"
    else:
        return
    raise UsageError(f"the search {overview.name!r} has ended. To resume it, give {limit}")


def _is_confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N]: ").strip().lower() in ("y", "yes")
    except EOFError:
        typer.echo()  # ends the line of the question
        raise UsageError("there was no answer, so nothing was deleted; --yes deletes without asking") from None


def _size_of(folder: Path) -> str:
    try:
        return counted(overview_of(folder).num_trials, "trial")
    except RecordError:
        return "cannot be read"
