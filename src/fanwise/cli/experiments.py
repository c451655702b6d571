"""What `fanwise tune ls|show|plot|export` print, draw and write. Reads records only; works on running experiments too.

A record may be foreign, so every text that comes from one goes through `base.text` before it is printed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..base.errors import RecordError, SearchInterrupted
from ..base.text import printable, printable_line
from ..plot import (
    SearchData,
    hyperparameters,
    incumbent,
    learning_curves,
    parallel_coordinates,
    rungs,
    save_figure,
    workers,
)
from ..plot.canvas import FIGURE_KINDS
from ..plot.data import worker_timeline
from ..plot.halving import levels_of
from ..pool.output import tail
from ..tune import Experiment, Tuner, list_experiments, load_experiment
from ..tune.experiment import State
from ..tune.record.names import experiments_folder
from ..tune.terminal.table import final_block

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a shell gives a program that Ctrl-C ended.
INTERRUPTED_STATUS = 130

_STATES: Mapping[State, str] = {
    "running": "running",
    "finished": "finished",
    "broken-off": "broken off: its tuner ended before it did. What was reported until then is here",
    "unknown": "not finished; whether it still runs can be seen only where it was started",
}
_MOST_FAILURES = 10
_MOST_OUTPUT_BYTES, _MOST_OUTPUT_LINES = 1 << 16, 200


def list_lines() -> Iterator[str]:
    """One line an experiment, also for one that cannot be read."""
    names = list_experiments()
    if not names:
        yield f"no experiments in {printable_line(str(experiments_folder()))}"
        return
    width = max(len(printable_line(name)) for name in names)
    yield f"{'name':<{width}}  state       trials  best"
    for name in names:
        try:
            yield _list_line(name, load_experiment(name), width)
        except RecordError as error:
            yield f"{printable_line(name):<{width}}  unreadable: {printable_line(error.message.partition(chr(10))[0])}"


def _list_line(name: str, experiment: Experiment, width: int) -> str:
    snapshot = experiment.snapshot()
    best = "-"
    if snapshot.best is not None:
        best = f"{printable_line(snapshot.metric)}={snapshot.best[0]:.5g} (trial {snapshot.best[1]})"
    return f"{printable_line(name):<{width}}  {experiment.state:<10}  {snapshot.finished + snapshot.running:>6}  {best}"


def show_lines(name: str) -> Iterator[str]:
    """The state, the resource summary, the best configuration, the utilisation, and why trials failed."""
    experiment = load_experiment(name)
    ended = f" ({printable_line(experiment.end_reason)})" if experiment.end_reason else ""
    yield f"experiment {printable_line(experiment.name)}: {_STATES[experiment.state]}{ended}"
    yield final_block(experiment.snapshot())
    best = experiment.best
    if best is not None:
        yield f"best configuration: {shown_config(best.config)}"
    utilisation = utilisation_of(experiment)
    if utilisation is not None:
        yield f"worker utilisation: {utilisation}"
    failed = {i: trial.last.failure for i, trial in experiment.history().trials.items() if trial.last.failure}
    for trial_id, failure in list(failed.items())[:_MOST_FAILURES]:
        first_line = failure.text.partition("\n")[0]
        yield f"trial {trial_id} failed ({printable_line(failure.kind)}): {printable_line(first_line)}"
    if len(failed) > _MOST_FAILURES:
        yield f"(and {len(failed) - _MOST_FAILURES} more failed trials)"
    if failed:
        yield f"all of a failure: fanwise tune show {printable_line(name)} --trial {next(iter(failed))}"
    yield f"kept in {printable_line(str(experiment.path))}"


def utilisation_of(experiment: Experiment) -> str | None:
    """The utilisation in the words of the worker timeline; None before the first objective began."""
    return worker_timeline(experiment.search_data()).utilisation_in_words()


def run_to_its_end(tuner: Tuner) -> Experiment:
    """Run a search; Ctrl-C ends it, and what was found until then is shown all the same. See `check_end`."""
    try:
        return tuner.run()
    except SearchInterrupted:
        return Experiment(tuner.path)


def check_end(experiment: Experiment) -> None:
    """What a command that ran a search does last.

    Raises:
        typer.Exit: with 130 when Ctrl-C ended the search, so that a script which runs it ends, too.
    """
    if experiment.end_reason == "interrupted":
        raise typer.Exit(INTERRUPTED_STATUS)


def shown_config(config: Mapping[str, object]) -> str:
    """A configuration in one line: learning_rate=0.1, batch_size=128."""
    return ", ".join(f"{printable_line(name)}={printable_line(str(value))}" for name, value in config.items())


def trial_lines(name: str, trial_id: int) -> Iterator[str]:
    """One trial: its configuration, how it failed, and the end of its output.

    Raises:
        ValueError: there is no such trial; says which there are.
    """
    experiment = load_experiment(name)
    failure = experiment.reason(trial_id)
    history = experiment.history()
    trial = history.trials[trial_id]
    yield f"trial {trial_id} of {printable_line(experiment.name)}: {printable_line(history.status_of(trial))}"
    for key, value in trial.config.items():
        yield f"  {printable_line(key)} = {printable_line(str(value))}"
    if failure is not None:
        yield printable(f"{failure.kind}: {failure.text}")
    attempt = f"-{trial.last.number}" if trial.last.number else ""
    output, errors = (_output_of(experiment, f"{trial_id}{attempt}{ending}") for ending in (".out", ".err"))
    parts = [("standard output", output), ("standard error", errors)]
    where = printable((failure and failure.traceback) or "").strip()
    if where not in printable(errors):  # a worker prints it as well, as long as it can
        parts.insert(0, ("traceback", where))
    for title, text in parts:
        if text:
            yield f"--- {title} ---\n{printable(text)}"


def _output_of(experiment: Experiment, file: str) -> str:
    path = experiment.path / "output" / file
    return tail(path, max_bytes=_MOST_OUTPUT_BYTES, max_lines=_MOST_OUTPUT_LINES)


def draw(names: Sequence[str | Path], out: Path, kind: str = "png") -> list[Path]:
    """The figures of an experiment, or of several beside each other, as files in `out`, which is made.

    Args:
        names: of one experiment, for all figures that have something to show; or of several, to compare.
        kind: png, svg or pdf.

    Returns:
        The paths of the files.

    Raises:
        ValueError: no such kind, or `out` cannot be made, or not be written to.
    """
    if kind not in FIGURE_KINDS:
        raise ValueError(f"--format must be one of {', '.join(FIGURE_KINDS)}, got {kind!r}")
    experiments = [load_experiment(name) for name in names]
    searches = [experiment.search_data() for experiment in experiments]
    figures = {"incumbent": incumbent(*searches), "workers": workers(*searches)}
    if len(experiments) == 1:
        figures |= _figures_of_one(experiments[0], searches[0])
    folder_for_output(out)
    return [save_figure(figure, out / f"{name}.{kind}") for name, figure in sorted(figures.items())]


def _figures_of_one(experiment: Experiment, search: SearchData) -> "dict[str, Figure]":
    """Those that a comparison does not have, and that have something to show."""
    figures = {"learning-curves": learning_curves(search)}
    if search.hyperparameters:
        figures["hyperparameters"] = hyperparameters(search)
        figures["parallel-coordinates"] = parallel_coordinates(search)
    if levels_of(search):
        figures["rungs"] = rungs(search)
    if len(experiment.metadata["objectives"]) > 1:
        figures["pareto-front"] = experiment.plot_pareto_front()
    return figures


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
    """Write all reports of an experiment as CSV.

    Raises:
        ValueError: the file cannot be written; nothing is left of it.
    """
    experiment = load_experiment(name)
    try:
        experiment.export(out)
    except OSError as error:
        raise ValueError(f"--out {str(out)!r} must be a file that can be written. {error}") from error
    return out
