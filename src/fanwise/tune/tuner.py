"""The tuner: an asynchronous hyperparameter search, from its settings to its experiment.

    Tuner(objective, space, scheduler, stop).run()
      checks everything -> makes the record -> a pool (its own, or one that is given) -> `Search` on the pool's hub thread
      this thread waits, shows the table, sees Ctrl-C -> summary -> Experiment

Nothing is made before everything was checked: a wrong argument leaves no folder and no process behind.
"""

import functools
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.errors import SearchFailedError
from ..base.version import VERSION
from ..pool import Machine, Need, Pool
from ..pool.devices import find_machine
from ..pool.functions import Packed, check_signature, name_of, pack
from ..pool.preload import modules_needed
from .experiment import Experiment
from .experiment_names import check_name, experiments_folder, new_name
from .nearest import names_nearest_option
from .record import Record
from .reporting import run_objective
from .schedulers import Scheduler
from .screen import Screen, screen_for
from .search import Plan, Search
from .spaces import Space
from .stopping import StoppingCriterion
from .table import SearchSnapshot
from .tuning import Tuning

_log = logging.getLogger(__name__)


class Tuner:
    """An asynchronous search over the hyperparameters of an objective, on warm local workers.

    Args:
        objective: called in a process of its own for each trial, with the configuration as keyword arguments; calls
            `report(**metrics)`, and may return a number or dict as its last report.
        space: names to domains (`loguniform(...)`, ...) and constants, or a `Space`.
        scheduler: chooses configurations and decides about reports, e.g. `RandomSearch(metric="loss", mode="min")`.
        stop: when the search ends.
        n_workers: trials at a time; None: as many as the machine has devices for.
        devices_per_trial: GPUs for each trial where there are GPUs (below 1: a share of one), else CPUs; 0: one CPU
            and no GPU.
        trial_timeout_s: seconds a trial may take; None: no limit.
        stop_grace_s: seconds between telling a trial to stop and killing it.
        max_equal_failures: the search fails when its first so many trials all fail in the same way; None: never.
        retries: how often a trial that crashed is tried again.
        name: of the experiment and its folder; None: made from the objective's name and the time.
        print_update_interval: seconds between two tables where the output is no terminal.
        asynchronous: False: the next batch of trials waits for the whole last one.
        reuse: run trials in processes that have run trials before; faster to start, less isolated.
        random_seed: master seed of the search and of every trial's random states; None: the scheduler's, else drawn.
        pool: run on this pool and leave it open; None: a pool of its own.
        quiet: print nothing.

    Raises:
        TypeError, ValueError: settings that make no sense, an objective whose arguments and the space do not match.

    Attributes:
        name: of the experiment; `load_experiment(name)` reads it, also while it runs.
        seed: the master seed in use.
    """

    @names_nearest_option
    def __init__(
        self,
        objective: Callable[..., Any],  # Any: the user's objective
        space: Space | Mapping[str, Any],  # Any: domains and constants
        scheduler: Scheduler,
        stop: StoppingCriterion,
        *,
        n_workers: int | None = None,
        devices_per_trial: int | float = 1,
        trial_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        max_equal_failures: int | None = 3,
        retries: int = 0,
        name: str | None = None,
        print_update_interval: float = 30.0,
        asynchronous: bool = True,
        reuse: bool = False,
        random_seed: int | None = None,
        pool: Pool | None = None,
        quiet: bool = False,
    ) -> None:
        self.space = space if isinstance(space, Space) else Space(space)
        _check_parts(objective, scheduler, stop)
        check_signature(objective, self.space.names)
        machine = find_machine() if pool is None else pool.machine
        self._need = _need_of(machine, devices_per_trial)
        self.n_workers = _workers_on(machine, self._need) if n_workers is None else n_workers
        self.objective = objective
        self.scheduler = scheduler
        self.stop = stop
        self.seed = _seed_of(scheduler) if random_seed is None else random_seed
        self.name = new_name(name_of(objective), time.time(), os.urandom(8)) if name is None else check_name(name)
        self.asynchronous = asynchronous
        self._machine = machine
        self._reuse = reuse
        self._pool = pool
        self._quiet = quiet
        self._print_update_interval = print_update_interval
        self._ran = False
        self._tuning = Tuning(
            scheduler,
            stop,
            n_workers=self.n_workers,
            asynchronous=asynchronous,
            trial_timeout_s=trial_timeout_s,
            stop_grace_s=stop_grace_s,
            max_equal_failures=max_equal_failures,
            retries=retries,
        )

    @property
    def path(self) -> Path:
        """The experiment's folder."""
        return experiments_folder() / self.name

    def run(self) -> Experiment:
        """Search until the stopping criterion holds; blocks. Returns the experiment.

        Ctrl-C once ends the search: trials are stopped, everything is kept, and the experiment is returned. Twice
        kills what still runs and raises KeyboardInterrupt.

        Raises:
            NotSendableError: the objective refers to something that cannot travel to a worker; it is named.
            SearchFailedError: the first trials all failed in the same way.
            ValueError: no trial reports the scheduler's metric; the message has the names that were reported.
            RecordError: the record can no longer be written.
            FileExistsError: an experiment of this name exists.
        """
        if self._ran:
            raise ValueError("this tuner has run. A search is run once: make a new Tuner, and a new scheduler.")
        packed = self._packed()
        self.scheduler.start(self.space, self.seed)
        with ExitStack() as stack:
            record = Record.create(self.path, self._meta())
            stack.callback(record.close)
            self._ran = True
            pool = self._pool or stack.enter_context(Pool(seed=self.seed, cpus=self._cpus()))
            (self.path / "output").mkdir(mode=0o700)
            search = Search(pool.engine, pool.hub, record, self._tuning, self._plan(packed))
            interrupts = self._run(pool, search)
        self._raise_failure(search, interrupts)
        return Experiment(self.path)

    # -- before ----------------------------------------------------------------------------------------------------

    def _packed(self) -> Packed:
        """The objective, wrapped so that what it returns is reported, packed for the workers."""
        pack(self.objective, caller="Tuner")  # names what cannot travel by the objective's own name
        wrapped = pack(functools.partial(run_objective, self.objective, self.scheduler.metric), caller="Tuner")
        return replace(wrapped, name=name_of(self.objective), modules=modules_needed(self.objective))

    def _meta(self) -> dict[str, object]:
        return {
            "name": self.name,
            "objective": name_of(self.objective),
            "space": self.space.to_json(),
            "scheduler": self.scheduler.describe(),
            "metric": self.scheduler.metric,
            "mode": self.scheduler.mode,
            "seed": self.seed,
            "n_workers": self.n_workers,
            "asynchronous": self.asynchronous,
            "created_s": time.time(),
            "versions": _versions(),
        }

    def _plan(self, packed: Packed) -> Plan:
        limit_s = self.stop.max_wallclock_time
        return Plan(
            name=self.name,
            packed=packed,
            need=self._need,
            seed=self.seed,
            n_workers=self.n_workers,
            reuse=self._reuse,
            folder=self.path,
            metric=self.scheduler.metric,
            config_names=tuple(self.space.names),
            limit_s=limit_s if limit_s is not None and limit_s < float("inf") else None,
        )

    def _cpus(self) -> int:
        """Enough CPUs for all workers; more than there are is allowed, and said."""
        asked = self.n_workers * self._need.cpus
        if asked > self._machine.cpus:
            _log.warning("%d workers share %d CPUs", self.n_workers, self._machine.cpus)
        return max(asked, self._machine.cpus)

    # -- while it runs ---------------------------------------------------------------------------------------------

    def _run(self, pool: Pool, search: Search) -> int:
        """Wait for the end of the search and show it. Returns how often it was interrupted."""
        screen = screen_for(self._print_update_interval, quiet=self._quiet)
        screen.begin(self._first_lines())
        with _interrupts(pool, search) as interrupts:
            try:
                pool.hub.call_soon(search.begin)
                while not search.finished.wait(screen.pause_s):
                    screen.show(*_look(pool, search))
            finally:
                screen.end(*_look(pool, search), lines=self._last_lines(search))
            return len(interrupts)

    def _first_lines(self) -> Iterator[str]:
        how = "asynchronous" if self.asynchronous else "synchronous"
        yield f"experiment {self.name}: {how} search with {self.n_workers} workers, master random seed {self.seed}"
        yield f"results are kept in {self.path}"

    def _last_lines(self, search: Search) -> Iterator[str]:
        reason = search.finish.reason if search.finish is not None else "it was broken off"
        yield f"the search ended: {reason}"

    def _raise_failure(self, search: Search, interrupts: int) -> None:
        if search.failure is not None:
            raise search.failure
        finish = search.finish
        if finish is not None and finish.cause is not None:
            raise finish.cause
        if finish is not None and finish.error is not None:
            if finish.reason == "the metric was not reported":
                raise ValueError(finish.error)
            raise SearchFailedError(f"{finish.error}\nAll of it is kept: load_experiment({self.name!r}).")
        if interrupts > 1:
            raise KeyboardInterrupt


def _look(pool: Pool, search: Search) -> tuple[list[str], SearchSnapshot]:
    """The news since the last look, and a snapshot, taken on the hub's thread."""
    seen: list[SearchSnapshot] = []
    there = threading.Event()

    def look() -> None:
        seen.append(search.snapshot())
        there.set()

    pool.hub.call_soon(look)
    there.wait()
    news = [search.news.popleft() for _ in range(len(search.news))]
    return news, seen[0]


@contextmanager
def _interrupts(pool: Pool, search: Search) -> Iterator[list[int]]:
    """Ctrl-C goes to the search; the third one breaks out at once. Only in the main thread, where signals arrive."""
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def press(number: int, _frame: object) -> None:
        pressed.append(number)
        if len(pressed) > 2:
            raise KeyboardInterrupt
        pool.hub.call_soon(search.interrupt)
        hint = "Ctrl-C: the trials are stopped; once more kills them." if len(pressed) == 1 else "Ctrl-C: killed."
        print(f"\n{hint}", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _check_parts(objective: object, scheduler: object, stop: object) -> None:
    if not callable(objective):
        raise TypeError(f"the objective must be a function, got {objective!r}.\n  right:  Tuner(train, space, ...)")
    for name in ("suggest", "on_report", "describe", "metric", "mode"):
        if not hasattr(scheduler, name):
            raise TypeError(
                f"the scheduler must be one, such as RandomSearch(metric='loss'), got {scheduler!r} without {name!r}. "
                f"A searcher of your own goes into FIFOScheduler(searcher, metric=...)."
            )
    if not isinstance(stop, StoppingCriterion):
        raise TypeError(f"stop must be a StoppingCriterion, got {stop!r}.")


def _need_of(machine: Machine, devices: int | float) -> Need:
    if isinstance(devices, bool) or not isinstance(devices, int | float) or devices < 0:
        raise ValueError(f"devices_per_trial must be a number of at least 0, got {devices!r}")
    if machine.gpus and devices:
        return Need(cpus=max(1, machine.cpus // max(1, int(len(machine.gpus) / devices))), gpus=devices)
    if devices != int(devices):
        raise ValueError(f"devices_per_trial={devices!r}: CPUs are not shared, and no GPU was found (fanwise devices)")
    return Need(cpus=max(1, int(devices)))


def _workers_on(machine: Machine, need: Need) -> int:
    if need.gpus:
        return max(1, int(len(machine.gpus) / need.gpus))
    return max(1, machine.cpus // need.cpus)


def _seed_of(scheduler: Scheduler) -> int:
    seed = scheduler.describe().get("random_seed")
    return seed if isinstance(seed, int) else secrets.randbits(31)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"fanwise": VERSION, "python": sys.version.split()[0], **{n: version(n) for n in ("torch", "numpy")}}
