"""The tuner: an asynchronous hyperparameter search, from its settings to its experiment.

    Tuner(objective, space, scheduler, stop).run()
      checks everything -> a pool (its own, or one that is given) -> the record -> `Search` on the pool's hub thread
      this thread watches it -> summary -> Experiment

Nothing is made before everything was checked: a wrong argument leaves no folder and no process behind.
"""

import functools
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.errors import ClosedError, RecordError, SearchFailedError
from ..base.nearest import names_nearest_option
from ..base.text import counted
from ..base.version import VERSION
from ..links import Hub
from ..pool import Machine, Pool, Resources
from ..pool.current import in_job
from ..pool.devices import find_machine
from ..pool.functions import check_signature, name_of, pack
from ..pool.leases import Ledger
from ..pool.preload import modules_needed
from ..pool.specs import Packed
from .experiment import Experiment
from .experiment_names import check_name, experiments_folder, new_name
from .record import Record
from .reporting import run_objective
from .schedulers import Scheduler, check_seed
from .screen import Screen, screen_for
from .search import Plan, Search
from .searchers import mark_used, refuse_used
from .spaces import Space
from .stopping import StoppingCriterion
from .tuning import Tuning
from .values import check_switch, is_number
from .watch import Interrupts, counting_interrupts, leave, look, watch


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
        TypeError, ValueError: settings that make no sense; an objective whose arguments and the space do not match;
            points_to_evaluate outside the space; a scheduler or searcher that has served a search.
        FileExistsError: an experiment of this name exists.
        LeaseError: more devices for a trial than there are.

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
        _check_settings(pool, name, print_update_interval)
        for setting, value in (("asynchronous", asynchronous), ("reuse", reuse), ("quiet", quiet)):
            check_switch(setting, value)
        check_signature(objective, self.space.names, sometimes=self.space.conditions)
        machine = find_machine() if pool is None else pool.machine
        self._need = _need_of(machine, devices_per_trial)
        self.n_workers = _workers_on(machine, self._need) if n_workers is None else n_workers
        self.objective = objective
        self.scheduler = scheduler
        self.stop = stop
        self.seed = _seed_of(scheduler, check_seed(random_seed))
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
        self._check_lease()
        self._check_name_is_free()
        self._start_scheduler()

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
            FileExistsError: an experiment of this name has been made since the Tuner was.
            ClosedError: the pool is closed, or this is a job of a pool itself.
            KeyboardInterrupt: Ctrl-C was pressed more than once.
            Exception: what the scheduler raised, in its own type.
        """
        if self._ran:
            raise ValueError("this tuner has run. A search is run once: make a new Tuner, and a new scheduler.")
        if self._pool is None and in_job():
            raise ClosedError("a search cannot be run inside a job or trial: its workers belong to the pool outside.")
        packed = self._packed()
        self._check_name_is_free()
        self._start_scheduler()
        with ExitStack() as stack:
            interrupts = stack.enter_context(counting_interrupts())
            pool = self._pool or stack.enter_context(Pool(seed=self.seed, cpus=self._cpus()))
            engine, hub = pool.engine, pool.hub  # before the record: a closed pool shall not leave a folder
            record = Record.create(self.path, self._meta())
            self._ran = True
            mark_used(self.scheduler)
            search = Search(engine, record, self._tuning, self._plan(packed))
            try:
                (self.path / "output").mkdir(mode=0o700)
                self._run(hub, search, interrupts)
            finally:
                leave(hub, search)
                _close(record, search)
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
        return max(self.n_workers * self._need.cpus, self._machine.cpus)

    def _check_lease(self) -> None:
        """Raise LeaseError for a trial that would wait for ever."""
        Ledger(self._machine).check(self._need)

    def _check_name_is_free(self) -> None:
        if self.path.exists():
            raise FileExistsError(
                f"{self.path} exists already. Give the experiment another name, or remove the folder."
            )

    def _start_scheduler(self) -> None:
        """Hand it the space, which it checks its settings against."""
        refuse_used(self.scheduler, "Make a new scheduler for each Tuner, with a new searcher.")
        self.scheduler.start(self.space, self.seed)

    # -- while it runs, and after ----------------------------------------------------------------------------------

    def _run(self, hub: Hub, search: Search, interrupts: Interrupts) -> None:
        """Wait for the end of the search and show it."""
        screen = screen_for(self._print_update_interval, quiet=self._quiet)
        screen.begin(self._first_lines())
        try:
            hub.call_soon(search.begin)
            watch(hub, search, screen, interrupts)
        finally:
            leave(hub, search)
            self._show_end(hub, search, screen)

    def _show_end(self, hub: Hub, search: Search, screen: Screen) -> None:
        try:
            seen = look(hub, search)
        except ClosedError:
            seen = search.look()  # the hub's thread has ended, so this one may
        screen.end(*seen, lines=self._last_lines(search))

    def _first_lines(self) -> Iterator[str]:
        how = "asynchronous" if self.asynchronous else "synchronous"
        workers = counted(self.n_workers, "worker")
        yield f"experiment {self.name}: {how} search with {workers}, master random seed {self.seed}"
        asked = self.n_workers * self._need.cpus
        if asked > self._machine.cpus:
            found = self._machine.cpus
            yield f"CPUs: {asked} asked for by {workers}, {found} found; they share them and run slower"
        yield f"results are kept in {self.path}"

    def _last_lines(self, search: Search) -> Iterator[str]:
        if search.finish is not None:
            yield f"the search ended: {search.finish.reason}"
        else:
            yield f"the search was broken off: {search.failure}"

    def _raise_failure(self, search: Search, interrupts: Interrupts) -> None:
        kept = f"All that was reported is kept: load_experiment({self.name!r})."
        if interrupts.count > 1:
            raise KeyboardInterrupt from search.failure
        if search.failure is not None:
            search.failure.add_note(kept)
            raise search.failure
        finish = search.finish
        assert finish is not None, "a search that did not fail came to its end"
        if finish.cause is not None:
            raise finish.cause
        if finish.kind == "no-metric":
            raise ValueError(finish.error)
        if finish.error is not None:
            raise SearchFailedError(f"{finish.error}\n{kept}")


def _close(record: Record, search: Search) -> None:
    """Close the record. When the search has failed, that is what the caller hears of."""
    try:
        record.close()
    except RecordError:
        if search.failure is None:
            raise


def _check_parts(objective: object, scheduler: object, stop: object) -> None:
    if not callable(objective):
        raise TypeError(f"the objective must be a function, got {objective!r}.\n  right:  Tuner(train, space, ...)")
    for name in ("start", "suggest", "on_report", "on_end", "describe", "metric", "mode"):
        if isinstance(scheduler, type):
            raise TypeError(
                f"the scheduler must be an object, got the class {scheduler.__name__}.\n"
                f"  right:  {scheduler.__name__}(metric=...)"
            )
        if not hasattr(scheduler, name):
            raise TypeError(
                f"the scheduler must be one, such as RandomSearch(metric='loss'), got {scheduler!r} without {name!r}. "
                f"A searcher of your own goes into FIFOScheduler(searcher, metric=...)."
            )
    if not isinstance(stop, StoppingCriterion):
        raise TypeError(f"stop must be a StoppingCriterion, got {stop!r}.")


def _check_settings(pool: object, name: object, print_update_interval: object) -> None:
    if pool is not None and not isinstance(pool, Pool):
        raise TypeError(f"pool must be a Pool or None, got {pool!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be text or None, got {name!r}")
    if not is_number(print_update_interval):
        raise TypeError(f"print_update_interval must be seconds, got {print_update_interval!r}")
    if not print_update_interval > 0:
        raise ValueError(f"print_update_interval must be above 0 seconds, got {print_update_interval!r}")


def _need_of(machine: Machine, devices: int | float) -> Resources:
    if not is_number(devices):
        raise TypeError(f"devices_per_trial must be a number, got {devices!r}")
    if not 0 <= devices < math.inf:
        raise ValueError(f"devices_per_trial must be a number of at least 0, got {devices!r}")
    if machine.gpus and devices:
        gpus = int(devices) if devices == int(devices) else float(devices)
        return Resources(cpus=max(1, machine.cpus // max(1, int(len(machine.gpus) / devices))), gpus=gpus)
    if devices != int(devices):
        raise ValueError(f"devices_per_trial={devices!r}: CPUs are not shared, and no GPU was found (fanwise devices)")
    return Resources(cpus=max(1, int(devices)))


def _workers_on(machine: Machine, need: Resources) -> int:
    if need.gpus:
        return max(1, int(len(machine.gpus) / need.gpus))
    return max(1, machine.cpus // need.cpus)


def _seed_of(scheduler: Scheduler, given: int | None) -> int:
    seed = scheduler.describe().get("random_seed") if given is None else given
    return seed if isinstance(seed, int) else secrets.randbits(31)


def _versions() -> dict[str, str]:
    """What the results may depend on; a library that is not installed as a package of its name is left out."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"fanwise": VERSION, "python": sys.version.split()[0]}
    for name in ("torch", "numpy"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
