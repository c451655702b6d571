"""One simulated search, and the file of all that are done, a line of JSON each.

A line is written when its run is over and never changed. So a file can be continued after anything, several programs
may write to it, and runs of two machines are joined by `cat`.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from fanwise.tune import StoppingCriterion
from fanwise.tune.schedulers import Scheduler
from fanwise.tune.searchers import Searcher, SuggestContext
from fanwise.tune.simulate import simulate

from .methods import Method
from .peers import PeerScheduler
from .regret import Run
from .tasks import Task


@dataclass(frozen=True, slots=True)
class Settings:
    """What all runs of a file have in common.

    Args:
        n_workers: simulated workers.
    """

    n_workers: int = 4


@final
class _Timed:
    """A searcher whose suggestions are timed. Everything else goes straight to it."""

    def __init__(self, searcher: Searcher, seconds: list[float]) -> None:
        self._searcher = searcher
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._searcher, name)

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        began_s = time.perf_counter()
        config = self._searcher.suggest(ask)
        self._seconds.append(time.perf_counter() - began_s)
        return config


@Scheduler.register
@final
class _TimedScheduler:
    """A scheduler of ours whose searcher is timed. It is used once, so it need not be copied."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.suggest_s: list[float] = []
        self.searcher = None if scheduler.searcher is None else _Timed(scheduler.searcher, self.suggest_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_TimedScheduler":
        return self


def search(
    task: Task, method: Method, seed: int, trainings: int, settings: Settings, interpreter: Path | None = None
) -> Run:
    """Run one search. Blocks until it is over: milliseconds to minutes, most of it in the searcher.

    Args:
        trainings: the budget: the workers together have the time of so many median trainings of the table.
        interpreter: of the environment of a peer.
    """
    horizon_s = trainings * task.training_s / settings.n_workers
    made = method.scheduler(task, interpreter, settings.n_workers)
    scheduler = made if isinstance(made, PeerScheduler) else _TimedScheduler(made)
    try:
        done = simulate(
            scheduler,  # type: ignore[arg-type]  # the rest of the protocol is forwarded
            task.table,
            StoppingCriterion(max_wallclock_time=horizon_s),
            n_workers=settings.n_workers,
            seed=seed,
        )
    finally:
        if isinstance(made, PeerScheduler):
            made.close()
    return Run(
        task.name,
        method.name,
        seed,
        trainings,
        horizon_s,
        task.best,
        task.median,
        times_s=[one.time_s for one in done.incumbents],
        losses=[done.objective.loss(one.value) for one in done.incumbents],
        trials=done.num_trials_started,
        suggest_ms=[round(each * 1e3, 3) for each in scheduler.suggest_s],
    )


@final
class RunFile:
    """Finished runs in a file; of two with the same table, method and seed the one with the larger budget counts.

    Raises:
        ValueError: its runs were made with other settings.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self.runs: dict[tuple[str, str, int], Run] = {}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(settings)) + "\n")
        for line in path.read_text().splitlines():
            body = json.loads(line)
            if "table" in body:
                self._note(Run(**body))
            elif "forget" in body:
                self._drop(body["forget"])
            elif body != asdict(settings):
                raise ValueError(f"{path} has runs with {body}, not with {asdict(settings)}: give another --file")

    def _note(self, run: Run) -> None:
        if not self.has(run.table, run.method, run.seed, run.trainings):
            self.runs[run.table, run.method, run.seed] = run

    def has(self, table: str, method: str, seed: int, trainings: int) -> bool:
        """Whether there is such a run with at least this budget."""
        run = self.runs.get((table, method, seed))
        return run is not None and run.trainings >= trainings

    def _drop(self, methods: Sequence[str]) -> None:
        self.runs = {key: run for key, run in self.runs.items() if run.method not in methods}

    def add(self, run: Run) -> None:
        """Keep a finished run."""
        self._write(asdict(run))
        self._note(run)

    def forget(self, methods: Sequence[str]) -> None:
        """Runs of these methods that were made so far no longer count: the methods have changed since."""
        if methods:
            self._write({"forget": list(methods)})
            self._drop(methods)

    def _write(self, body: Mapping[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(body) + "\n")
