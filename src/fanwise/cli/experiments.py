"""What `fanwise tune ls|show|plot|export` print, draw and write. Reads records only; works on running experiments too.

A record may be foreign, so every text that comes from one goes through `text` before it is printed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..base.errors import RecordError
from ..plot import save_png
from ..pool.output import tail
from ..tune import Experiment, list_experiments, load_experiment
from ..tune.experiment_names import experiments_folder
from ..tune.summary import snapshot_of
from ..tune.table import final_block
from .text import plain_line, plain_text

_MOST_FAILURES = 10
_MOST_OUTPUT_BYTES, _MOST_OUTPUT_LINES = 1 << 16, 200


def list_lines() -> Iterator[str]:
    """One line an experiment, also for one that cannot be read."""
    names = list_experiments()
    if not names:
        yield f"no experiments in {plain_line(str(experiments_folder()))}"
        return
    width = max(len(plain_line(name)) for name in names)
    yield f"{'name':<{width}}  state       trials  best"
    for name in names:
        try:
            yield _list_line(name, load_experiment(name), width)
        except RecordError as error:
            yield f"{plain_line(name):<{width}}  unreadable: {plain_line(error.message.partition(chr(10))[0])}"


def _list_line(name: str, experiment: Experiment, width: int) -> str:
    snapshot = snapshot_of(experiment)
    state = "finished" if experiment.finished else "unfinished"
    best = "-"
    if snapshot.best is not None:
        best = f"{plain_line(snapshot.metric)}={snapshot.best[0]:.5g} (trial {snapshot.best[1]})"
    return f"{plain_line(name):<{width}}  {state:<10}  {snapshot.finished + snapshot.running:>6}  {best}"


def show_lines(name: str) -> Iterator[str]:
    """The resource summary, the best configuration, the utilisation, and why trials failed."""
    experiment = load_experiment(name)
    yield final_block(snapshot_of(experiment))
    best = experiment.best
    if best is not None:
        yield f"best configuration: {shown_config(best.config)}"
    if experiment.utilisation is not None:
        yield f"worker utilisation: {experiment.utilisation:.1%}"
    failed = {i: trial.last.failure for i, trial in experiment.history().trials.items() if trial.last.failure}
    for trial_id, failure in list(failed.items())[:_MOST_FAILURES]:
        first_line = failure.text.partition("\n")[0]
        yield f"trial {trial_id} failed ({plain_line(failure.kind)}): {plain_line(first_line)}"
    if len(failed) > _MOST_FAILURES:
        yield f"(and {len(failed) - _MOST_FAILURES} more failed trials)"
    if failed:
        yield f"all of a failure: fanwise tune show {plain_line(name)} --trial {next(iter(failed))}"
    yield f"kept in {plain_line(str(experiment.path))}"


def shown_config(config: Mapping[str, object]) -> str:
    """A configuration in one line: learning_rate=0.1, batch_size=128."""
    return ", ".join(f"{plain_line(name)}={plain_line(str(value))}" for name, value in config.items())


def trial_lines(name: str, trial_id: int) -> Iterator[str]:
    """One trial: its configuration, how it failed, and the end of its output.

    Raises:
        ValueError: there is no such trial; says which there are.
    """
    experiment = load_experiment(name)
    failure = experiment.reason(trial_id)
    history = experiment.history()
    trial = history.trials[trial_id]
    yield f"trial {trial_id} of {plain_line(experiment.name)}: {plain_line(history.status_of(trial))}"
    for key, value in trial.config.items():
        yield f"  {plain_line(key)} = {plain_line(str(value))}"
    if failure is not None:
        yield plain_text(f"{failure.kind}: {failure.text}")
    attempt = f"-{trial.last.number}" if trial.last.number else ""
    output, errors = (_output_of(experiment, f"{trial_id}{attempt}{ending}") for ending in (".out", ".err"))
    parts = [("standard output", output), ("standard error", errors)]
    where = plain_text((failure and failure.traceback) or "").strip()
    if where not in plain_text(errors):  # a worker prints it as well, as long as it can
        parts.insert(0, ("traceback", where))
    for title, text in parts:
        if text:
            yield f"--- {title} ---\n{plain_text(text)}"


def _output_of(experiment: Experiment, file: str) -> str:
    path = experiment.path / "output" / file
    return tail(path, max_bytes=_MOST_OUTPUT_BYTES, max_lines=_MOST_OUTPUT_LINES)


def draw(name: str | Path, out: Path) -> list[Path]:
    """The three figures of an experiment as PNGs in `out`, which is made. Returns their paths.

    Raises:
        ValueError: `out` cannot be made, or not be written to.
    """
    experiment = load_experiment(name)
    folder_for_output(out)
    figures = {
        "incumbent": experiment.plot,
        "learning-curves": experiment.plot_learning_curves,
        "workers": experiment.plot_workers,
    }
    return [save_png(figure(), out / f"{kind}.png") for kind, figure in figures.items()]


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
        experiment.export(out.absolute())  # absolute: "." has no file name
    except OSError as error:
        raise ValueError(f"--out {str(out)!r} must be a file that can be written: {error.strerror or error}") from error
    return out
