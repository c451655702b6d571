"""What the processes of a run print and report: the first speaks for all, and a trial is stopped as one."""

import functools
import logging
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from searches import search
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import TrialStopped
from fanwise.parallel import Run
from fanwise.parallel.progress import Display
from fanwise.pool import Pool
from fanwise.tune import FIFO, Decision, New, NextTrial, Observation, Space, SuggestContext, uniform
from fanwise.tune.schedulers import Scheduler

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))


def speaks(run: Run) -> int:
    print(f"print of {run.rank}")
    print("no end of line", end="")
    sys.stdout.write(f", written by {run.rank}\n")
    run.print("run.print of", run.rank)
    print(f"error of {run.rank}", file=sys.stderr)
    warnings.warn(f"warning of {run.rank}", stacklevel=1)
    logging.getLogger("test").warning("logged by %d", run.rank)
    print("a last word", end="")
    return run.rank


def test_what_the_first_process_prints_is_the_programs_output(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    assert fanwise.run(speaks, devices=3, pool=pool) == 0
    out, err = capfd.readouterr()
    assert out == "print of 0\nno end of line, written by 0\nrun.print of 0\na last word"
    assert err.count("error of 0\n") == err.count("UserWarning: warning of 0") == err.count("logged by 0") == 1
    assert " of 1" not in err and " of 2" not in err and "by 1" not in err


def fails_speaking(run: Run) -> None:
    print(f"said by {run.rank} before")
    if run.rank == 1:
        raise ValueError("after some words")
    threading.Event().wait()


def test_what_another_process_said_comes_with_its_error(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError) as raised:
        fanwise.run(fails_speaking, devices=2, pool=pool)
    assert "said by 1 before" in "\n".join(raised.value.__notes__)
    assert "said by 1" not in capfd.readouterr().out


def warns(run: Run) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = model(x).square().mean()
        return found

    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 8):
        step(batch)


def test_what_the_library_says_once_is_said_once(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    fanwise.run(warns, devices=3, pool=pool)
    assert capfd.readouterr().err.count("loss_fn returned one number") == 1


def trains(folder: Path, x: float, run: Run) -> float:
    """Reports each epoch, from all processes; writes down how each of them ended."""
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.01), lambda m, x: m(x).square())
    reported = 0
    try:
        for epoch in run.epochs(4):
            for batch in run.batches(X, 8):
                loss = step(batch)
            run.report(epoch=epoch, loss=loss, x=x, processes=run.world_size)
            reported += 1
    except TrialStopped:
        (folder / f"{x}-{run.rank}-stopped").write_text(str(reported))
        raise
    (folder / f"{x}-{run.rank}-returned").write_text(str(reported))
    return float(loss)


def objective(folder: str, x: float) -> None:
    fanwise.run(functools.partial(trains, Path(folder), x), devices=2)


class StopsTheLowerHalf(Scheduler):
    """Trials of x below 0.5 are stopped at their second report."""

    def __init__(self) -> None:
        super().__init__(metric="loss")
        inner = FIFO(metric="loss", points_to_evaluate=[{"x": 0.25}, {"x": 0.75}])
        self.objectives, self.searcher = inner.objectives, inner.searcher

    def begin(self, space: Space, seed: int) -> None:
        self.searcher.begin(space, seed)

    def next(self, ask: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        is_low = observation.values["x"] == 0.25
        return Decision.STOP if is_low and observation.iter == 2 else Decision.CONTINUE


def test_a_trial_of_several_processes_reports_once_and_is_stopped_as_one(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    space = {"x": uniform(0, 1), "folder": str(tmp_path)}
    experiment = search(
        objective, space, pool=pool, scheduler=StopsTheLowerHalf(), trials=2, devices_per_trial=2, stop_grace_s=60.0
    )
    assert list(experiment.trials["status"]) == ["Stopped", "Completed"], experiment.trials.to_string()
    results = experiment.results.sort_values(["trial_id", "epoch"])
    assert list(zip(results["trial_id"], results["epoch"], results["processes"], strict=True)) == [
        *((0, epoch, 2) for epoch in range(2)),
        *((1, epoch, 2) for epoch in range(4)),
    ]
    ended = {path.name: int(path.read_text()) for path in tmp_path.glob("0.*")}
    assert ended == {"0.25-0-stopped": 1, "0.25-1-stopped": 1, "0.75-0-returned": 4, "0.75-1-returned": 4}


def stops_alone(folder: Path, run: Run) -> None:
    """One process is told to stop by somebody else; the others are busy, or wait for it."""
    try:
        if run.rank == 1:
            raise TrialStopped("by hand")
        run.mean(lambda model, x: model(x)[:, 0], nn.Linear(3, 1), X)
    except TrialStopped:
        (folder / f"{run.rank}").touch()
        raise


def test_when_one_process_stops_all_do(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(TrialStopped):
        fanwise.run(functools.partial(stops_alone, tmp_path), devices=3, pool=pool)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


# -- in a job, or a trial, of one process ------------------------------------------------------------------------------


def shows_progress() -> bool:
    display = Display(True)
    display.close()
    return display._is_shown


def test_a_job_of_a_pool_shows_no_progress_line(pool: Pool) -> None:
    assert not pool.submit(shows_progress).result()
