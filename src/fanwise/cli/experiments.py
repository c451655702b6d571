"""What `fanwise tune ls|show|plot` print and draw. Reads records only; works on running experiments too."""

from collections.abc import Iterator
from pathlib import Path

from ..base.errors import RecordError
from ..plot import save_png
from ..pool.output import tail
from ..tune import Experiment, list_experiments, load_experiment
from ..tune.experiment_names import experiments_folder
from ..tune.summary import snapshot_of
from ..tune.table import final_block


def list_lines() -> Iterator[str]:
    """One line an experiment."""
    names = list_experiments()
    if not names:
        yield f"no experiments in {experiments_folder()}"
        return
    width = max(len(name) for name in names)
    yield f"{'name':<{width}}  state       trials  best"
    for name in names:
        try:
            yield _list_line(load_experiment(name), width)
        except RecordError as error:
            yield f"{name:<{width}}  unreadable: {error.message.partition(chr(10))[0]}"


def _list_line(experiment: Experiment, width: int) -> str:
    snapshot = snapshot_of(experiment)
    state = "finished" if experiment.finished else "unfinished"
    best = "-" if snapshot.best is None else f"{snapshot.metric}={snapshot.best[0]:.5g} (trial {snapshot.best[1]})"
    return f"{experiment.name:<{width}}  {state:<10}  {snapshot.finished + snapshot.running:>6}  {best}"


def show_lines(name: str) -> Iterator[str]:
    """The resource summary, the best configuration, the utilisation, and why trials failed."""
    experiment = load_experiment(name)
    yield final_block(snapshot_of(experiment))
    best = experiment.best
    if best is not None:
        yield f"best configuration: {dict(best.config)}"
    if experiment.utilisation is not None:
        yield f"worker utilisation: {experiment.utilisation:.1%}"
    failed = [row for row in experiment.trials.itertuples() if row.status == "Failed"]
    for row in failed[:10]:
        yield f"trial {row.trial_id} failed ({row.reason}): {str(row.reason_text).partition(chr(10))[0]}"
    if len(failed) > 10:
        yield f"(and {len(failed) - 10} more failed trials)"
    yield f"kept in {experiment.path}"


def trial_lines(name: str, trial_id: int) -> Iterator[str]:
    """One trial: how it failed, and the end of its output."""
    experiment = load_experiment(name)
    failure = experiment.reason(trial_id)
    row = experiment.trials.set_index("trial_id").loc[trial_id]
    yield f"trial {trial_id} of {experiment.name}: {row['status']}"
    for key, value in row.items():
        if str(key).startswith("config_"):
            yield f"  {str(key).removeprefix('config_')} = {value}"
    if failure is not None:
        yield f"{failure.kind}: {failure.text}"
        yield failure.traceback
    attempt = f"-{row['attempt']}" if row["attempt"] else ""
    for ending, title in ((".out", "standard output"), (".err", "standard error")):
        text = tail(experiment.path / "output" / f"{trial_id}{attempt}{ending}", max_bytes=1 << 16, max_lines=200)
        if text:
            yield f"--- {title} ---"
            yield text


def draw(name: str | Path, out: Path) -> list[Path]:
    """The three figures of an experiment as PNGs in `out`, which is made. Returns their paths."""
    experiment = load_experiment(name)
    out.mkdir(parents=True, exist_ok=True)
    figures = {
        "incumbent": experiment.plot(),
        "learning-curves": experiment.plot_learning_curves(),
        "workers": experiment.plot_workers(),
    }
    paths = []
    for kind, figure in figures.items():
        path = out / f"{kind}.png"
        save_png(figure, path)
        paths.append(path)
    return paths
