"""The tuner: an asynchronous hyperparameter search, from its settings to its experiment.

    Tuner(objective, space, scheduler, stop).run()
      checks everything -> a pool (its own, or one that is given) -> the record -> `Search` on the pool's hub thread
      this thread watches it -> summary -> Experiment
    Tuner.resume(name).run()
      the record's facts -> `Tuning` and scheduler as they were -> go on

Nothing is made before everything was checked: a wrong argument leaves no folder and no process behind.
"""

import functools
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

from ..base.errors import ClosedError, RecordError, SearchFailedError, SearchInterrupted
from ..base.nearest import names_nearest_option
from ..base.text import counted, printable_line
from ..links import Hub
from ..pool import Capacity, Pool
from ..pool.current import in_job
from ..pool.devices import find_machine
from ..pool.functions import check_signature, name_of, pack
from ..pool.preload import modules_needed
from ..pool.specs import Packed
from .background import RunningSearch
from .callbacks.dispatcher import CallbackDispatcher, checked_callbacks
from .callbacks.events import SearchEnded, SearchStarted
from .checkpoint_owner import claim, delete_owned, is_inside
from .checkpoints import CheckpointStore, checked_root, checkpoint_root, is_local
from .constraints import checked_constraints, constraints_of
from .decisions import facts
from .decisions.facts import Fact
from .decisions.tuning import Tuning
from .devices import need_of, workers_on
from .experiment import Experiment, folder_of
from .opening import (
    check_same,
    check_scheduler,
    checked_stop,
    copied,
    described,
    scheduler_for,
    space_of,
    versions_of,
)
from .own_board import check_board_is_there, own_board
from .program import ASKED, Program, load_cluster, load_program, save_cluster, save_program
from .record.log import Record
from .record.names import check_name, experiments_folder, new_name
from .record.reading import read_meta
from .record.restoring import fresh_tuning, last_settings, restore
from .record.state import SearchState
from .remote.commands import check_is_trial, check_may_enqueue, command_for, completed
from .remote.listening import CommandListener
from .reporting import run_objective
from .runner import Plan, Search
from .schedulers.base import Scheduler, checked_seed, seed_of
from .searchers.base import Mode, Searcher
from .space import Space
from .stopping import StoppingCriterion
from .terminal.cells import note_shown
from .terminal.method import method_line
from .terminal.screen import Screen, screen_for
from .terminal.watch import Interrupts, call_on, counting_interrupts, leave, look, watch
from .values import check_bool, checked_int, is_number
from .warm_start import WarmStart, read_warm_start, summaries_to_json


@dataclass(frozen=True, slots=True)
class _Begun:
    """A search that can start: its record, and where its decisions stand."""

    record: Record
    state: SearchState
    began_s: float
    tuning: Tuning
    first: Callable[[float], Fact]
    before: Sequence[Fact] = ()


class Tuner:
    """An asynchronous search over the hyperparameters of an objective, on warm local workers.

    Args:
        objective: called in a process of its own for each trial, with the configuration as keyword arguments; calls
            `report(**metrics)`, and may return a number or dict as its last report.
        space: names to domains (`loguniform(...)`, ...) and constants, or a `Space`.
        scheduler: chooses configurations and decides about reports, e.g. `ASHA(metric="loss", max_t=81)`. The tuner
            runs a copy. None: every trial runs to its end, and `metric` says what is looked at.
        stop: when the search ends; needed.
        metric, mode: without a scheduler: the name of the reported value to optimise, or several, and "min" or "max".
        searcher: without a scheduler: what chooses configurations, an object or a name ("random", "forest", ...); None:
            one is chosen by the objectives, space, budget and number of workers, said on screen, and recorded.
        constraints: what every report must meet, such as ["latency_ms <= 20"], where the scheduler has none: a trial
            that does not is never the best as long as another one does.
        points_to_evaluate: without a scheduler: configurations to try first; what one leaves out is drawn at random.
        n_workers: trials at a time; None: as many as the machine has devices for. `set_workers` changes it later.
        devices_per_trial: GPUs for each trial where there are GPUs (below 1: a share of one), else CPUs; 0: one CPU
            and no GPU.
        trial_timeout_s: seconds a trial may take; None: no limit.
        stop_grace_s: seconds between telling a trial to stop and killing it.
        max_equal_failures: the search fails when its first so many trials all fail in the same way, or all trials of it
            fail; one that has paused after a report is none of these. None: never.
        retries: how often a trial that crashed is tried again, from its last checkpoint.
        checkpoints: where trials keep their checkpoints, a folder or any URL that fsspec knows and that other processes
            see; None: in the experiment's folder. They are in a folder of the experiment's name there, which must be
            empty or not exist when the experiment begins.
        keep_checkpoints: keep the last checkpoint of every trial, and not only of the best and of those that may go on.
        name: of the experiment and its folder; None: made from the objective's name and the time.
        print_update_interval: seconds between two tables where the output is no terminal.
        asynchronous: False: the next batch of trials waits for the whole last one.
        reuse: run trials in processes that have run trials before; faster to start, less isolated.
        random_seed: the seed of the search: of its scheduler, its searcher and every trial's random states. None: the
            scheduler's `random_seed`, else drawn. A seed here and another one in the scheduler are an error.
        pool: run on this pool and leave it open; None: a pool of its own.
        warm_start: earlier experiments (names, paths or `Experiment`), data frames with a row for each report, or a
            list of these. The searcher learns from their reports before its first suggestion; what does not fit the
            space is left out and said, another mode or metric is an error.
        callbacks: objects with any of the methods `on_start`, `on_trial_start`, `on_report`, `on_trial_end` and
            `on_end`, each called with one event (`fanwise.tune.callbacks.events`), in order, in a thread for each.
        board: show the search in a browser while it runs, on a board of its own; its address is printed.
        quiet: print nothing.

    Raises:
        TypeError, ValueError: settings that make no sense; an objective whose arguments and the space do not match;
            points_to_evaluate outside the space.
        FileExistsError: an experiment of this name exists.
        LeaseError: more devices for a trial than there are.
        NotInstalled: the library for the place of the checkpoints, or one of the board, is not there.

    Attributes:
        name: of the experiment; `load_experiment(name)` reads it, also while it runs.
        seed: the master seed in use.
        scheduler: the copy that the tuner runs.
    """

    @names_nearest_option
    def __init__(
        self,
        objective: Callable[..., Any],  # Any: the user's objective
        space: Space | Mapping[str, Any],  # Any: domains and constants
        scheduler: Scheduler | None = None,
        stop: StoppingCriterion | None = None,
        *,
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] = "min",
        searcher: Searcher | str | None = None,
        constraints: Sequence[str] = (),
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        n_workers: int | None = None,
        devices_per_trial: int | float = 1,
        trial_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        max_equal_failures: int | None = 3,
        retries: int = 0,
        checkpoints: str | os.PathLike[str] | None = None,
        keep_checkpoints: bool = False,
        name: str | None = None,
        print_update_interval: float = 30.0,
        asynchronous: bool = True,
        reuse: bool = False,
        random_seed: int | None = None,
        pool: Pool | None = None,
        warm_start: WarmStart | None = None,
        callbacks: Sequence[object] = (),
        board: bool = False,
        quiet: bool = False,
    ) -> None:
        self.space = space_of(space)
        _check_objective(objective)
        stop = checked_stop(stop)
        _check_settings(pool, name, print_update_interval)
        for setting, value in (
            ("asynchronous", asynchronous),
            ("reuse", reuse),
            ("board", board),
            ("quiet", quiet),
            ("keep_checkpoints", keep_checkpoints),
        ):
            check_bool(setting, value)
        if board:
            check_board_is_there()
        _ = self.space.objects  # raises without them
        check_signature(objective, self.space.names, sometimes=self.space.conditions)
        capacity = Capacity((find_machine(),)) if pool is None else pool.capacity()
        self._need = need_of(capacity, devices_per_trial)
        self.n_workers = (
            workers_on(capacity, self._need) if n_workers is None else checked_int("n_workers", n_workers, 1)
        )
        scheduler, self._chosen = scheduler_for(
            scheduler,
            metric=metric,
            mode=mode,
            searcher=searcher,
            points_to_evaluate=points_to_evaluate,
            space=self.space,
            stop=stop,
            n_workers=self.n_workers,
        )
        self.objective = objective
        self.scheduler = copied(scheduler)
        self._pristine = copied(scheduler)
        self._constraints = constraints_of(scheduler, constraints)
        self.stop_criterion = stop
        self.seed = seed_of(scheduler, checked_seed(random_seed), secrets.randbits(31))
        self.name = new_name(name_of(objective), time.time(), os.urandom(8)) if name is None else check_name(name)
        self.asynchronous = asynchronous
        self._capacity = capacity
        self._reuse = reuse
        self._pool = pool
        self._callbacks = checked_callbacks(callbacks)
        self._shows_board = board
        self._quiet = quiet
        self._print_update_interval = print_update_interval
        self._ran = False
        self._resumes = False
        self._search: Search | None = None
        self._hub: Hub | None = None
        self._checkpoints = checked_root(checkpoints)
        self._devices_per_trial = devices_per_trial
        self._timing: dict[str, Any] = {  # Any: settings of `Tuning`, which checks them
            "trial_timeout_s": trial_timeout_s,
            "stop_grace_s": stop_grace_s,
            "max_equal_failures": max_equal_failures,
            "retries": retries,
            "keep_checkpoints": keep_checkpoints,
        }
        Tuning(self.scheduler, self.space, stop, n_workers=self.n_workers, asynchronous=asynchronous, **self._timing)
        self._check_lease()
        self._check_name_is_free()
        self.scheduler.check(self.space)
        self._earlier, self._taken = read_warm_start(warm_start, self.space, self.scheduler, self._constraints)

    @classmethod
    @names_nearest_option
    def resume(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        objective: Callable[..., Any] | None = None,  # Any: the user's objective
        space: Space | Mapping[str, Any] | None = None,  # Any: domains and constants
        scheduler: Scheduler | None = None,
        stop: StoppingCriterion | None = None,
        n_workers: int | None = None,
        print_update_interval: float = 30.0,
        pool: Pool | None = None,
        callbacks: Sequence[object] = (),
        board: bool = False,
        quiet: bool = False,
    ) -> "Tuner":
        """A tuner whose `run()` goes on with an experiment, however it ended: finished, by Ctrl-C, killed.

        What ran then runs first, each trial from its last checkpoint; the time it was not running does not count.

        Args:
            name_or_path: of the experiment.
            objective, space, scheduler: the same as then; None takes what is kept beside the record.
            stop: another stopping criterion from now on; None: the last one.
            n_workers: another number of workers from now on; None: the last one.
            pool: run on this pool and leave it open; None: on one of its own, on the cluster where it ran last if it
                ran on one.
            print_update_interval, callbacks, board, quiet: as in the constructor.

        Raises:
            RecordError: there is no such experiment, or its program cannot be loaded here.
            NotInstalled, ClusterError: the cluster cannot be used.
            ValueError: another objective, space or scheduler than then: says what differs.
        """
        folder = folder_of(name_or_path)
        meta = read_meta(folder)
        if meta["objective"] == ASKED:
            raise ValueError(
                f"the trials of {folder.name!r} were asked for by a program, which goes on with "
                f"open_search(space, scheduler, name={folder.name!r})"
            )
        if objective is None or scheduler is None:
            kept = load_program(folder)
            objective = kept.objective if objective is None else objective
            scheduler = kept.scheduler if scheduler is None else scheduler
            space = kept.space if space is None else space
        space = Space.from_json(meta["space"]) if space is None else space_of(space)
        _check_objective(objective)
        check_scheduler(scheduler)
        constraints = meta.get("constraints", [])
        same = constraints_of(scheduler) or checked_constraints(constraints)  # those that the Tuner was given stand
        check_same(meta, name_of(objective), space, scheduler, same)
        settings = meta["settings"]
        last_workers, last_stop = last_settings(folder, meta)
        cluster = load_cluster(folder) if pool is None else None
        with Pool(**cluster) if cluster else nullcontext(pool) as checked_on:  # closed here: `run` may never be called
            tuner = cls(
                objective,
                space,
                scheduler,
                stop or last_stop,
                constraints=() if constraints_of(scheduler) else constraints,
                n_workers=last_workers if n_workers is None else n_workers,
                random_seed=meta["seed"],
                print_update_interval=print_update_interval,
                pool=checked_on,
                callbacks=callbacks,
                board=board,
                quiet=quiet,
                **settings,
            )
        tuner._pool, tuner._cluster = pool, cluster
        tuner._resumes = True
        tuner._folder = folder
        tuner.name = str(meta["name"])
        return tuner

    _folder: Path | None = None
    _cluster: Mapping[str, Any] | None = None  # the arguments of the Pool to run on; Any: JSON

    @property
    def path(self) -> Path:
        """The experiment's folder."""
        return experiments_folder() / self.name if self._folder is None else self._folder

    @overload
    def run(self, *, block: Literal[True] = True) -> Experiment: ...

    @overload
    def run(self, *, block: Literal[False]) -> RunningSearch: ...

    def run(self, *, block: bool = True) -> Experiment | RunningSearch:
        """Search until the stopping criterion holds. Returns the experiment.

        With `block=False` the search runs in a thread, and what is returned as soon as it has begun has `wait()`,
        `experiment`, `finished` and `stop()`. It is stopped when the program ends.

        Ctrl-C, or the stop button of a notebook, once ends the search: trials are stopped, everything is kept, and
        SearchInterrupted, a KeyboardInterrupt that carries the experiment, is raised. Twice kills what still runs.

        Raises:
            NotSendableError: the objective refers to something that cannot travel to a worker; it is named.
            SearchFailedError: the first trials all failed in the same way, or all trials did.
            ValueError: no trial reports the scheduler's metric; the message has the names that were reported.
            RecordError: the record can no longer be written; or another tuner writes to the experiment.
            FileExistsError: an experiment of this name has been made since the Tuner was.
            CheckpointError: the folder for the checkpoints has files of others, or cannot be written.
            ClosedError: the pool is closed, or this is a job of a pool itself.
            SearchInterrupted: Ctrl-C.
            Exception: what the scheduler or its searcher raised, in its own type.
        """
        check_bool("block", block)
        if not block:
            return RunningSearch(self._search_to_the_end, self.stop, self.path, grace_s=self._timing["stop_grace_s"])
        return self._search_to_the_end(lambda: None)

    def _search_to_the_end(self, begun_at_last: Callable[[], None]) -> Experiment:
        """`run`, in whatever thread. `begun_at_last`: is called when commands are heard."""
        if self._ran:
            raise ValueError("this tuner has run. A search is run once: make a new Tuner, or Tuner.resume(name).")
        if self._pool is None and in_job():
            raise ClosedError("a search cannot be run inside a job or trial: its workers belong to the pool outside.")
        packed = self._packed()
        if not self._resumes:
            self._check_name_is_free()
        with ExitStack() as stack:
            interrupts = stack.enter_context(counting_interrupts())
            if self._cluster:
                self._pool = stack.enter_context(Pool(**self._cluster))
            pool = self._pool or stack.enter_context(Pool(seed=self.seed, cpus=self._cpus()))
            engine, hub = pool.engine, pool.hub  # before the record: a closed pool shall not leave a folder
            begun = self._reopen() if self._resumes else self._create()
            self._ran = True
            store = CheckpointStore(self._checkpoint_root())
            listening = CallbackDispatcher(self._callbacks, begun.state.alive())
            begun.state.news.on_line = listening.on_line
            search = Search(
                engine,
                begun.record,
                self._plan(packed),
                begun.state,
                began_s=begun.began_s,
                checkpoints=store,
                listener=listening.on_event if self._callbacks else None,
            )
            self._search, self._hub = search, hub
            listening.start(self._started())
            try:
                save_cluster(self.path, pool.cluster_settings)
                if pool.cluster_settings and is_local(root := self._checkpoint_root()):
                    os.makedirs(root, exist_ok=True)  # a node that does not see it says so
                (self.path / "output").mkdir(mode=0o700, exist_ok=True)
                if self._resumes:
                    store.sweep(begun.tuning.checkpoints)
                address = stack.enter_context(own_board(self.path)) if self._shows_board else None
                self._run(hub, search, interrupts, begun, begun_at_last, address)
            finally:
                leave(hub, search)
                try:
                    _close(begun.record, search)
                finally:
                    store.close()
                    if search.failure is None:  # else the record is behind what was decided
                        store.sweep(begun.tuning.checkpoints)
                    listening.close(self._ended(search))
        search.settle()  # when all is closed: whoever interrupts the wait loses nothing
        self._raise_failure(search, interrupts)
        return Experiment(self.path)

    # -- commands, from other threads --------------------------------------------------------------------------------

    def stop(self, reason: str = "stopped by hand") -> None:
        """End the running search as its stopping criterion would; `run()` returns then. By any thread."""
        self._command(lambda now_s: facts.Interrupt(now_s, reason))

    def pause(self, trial_id: int) -> None:
        """Pause a trial at its next report; it keeps its last checkpoint, its worker goes on. By any thread.

        Nothing happens to a trial that is over.

        Raises:
            TypeError, ValueError: it is no trial of the search.
            ClosedError: the search does not run.
        """
        self._command_trial("pause", trial_id)

    def unpause(self, trial_id: int) -> None:
        """Go on with a trial that was paused by hand. By any thread; raises as `pause`."""
        self._command_trial("resume", trial_id)

    def stop_trial(self, trial_id: int) -> None:
        """End one trial for good. By any thread; raises as `pause`."""
        self._command_trial("stop", trial_id)

    def enqueue(self, config: Mapping[str, object]) -> None:
        """Try this configuration next. Values that it leaves out are drawn at random.

        Can be called from any thread; blocks until the search has accepted the configuration.

        Raises:
            TypeError, ValueError: it is no dict, or not of the space; or the search starts no new trials any more.
            ClosedError: the search does not run.
        """
        complete = completed(config, self.space, self.seed)
        search, hub = self._running()

        def enqueue() -> None:
            self._running()
            check_may_enqueue(search.state)
            search.command(lambda now_s: facts.Enqueued(now_s, complete))

        call_on(hub, enqueue)

    def set_workers(self, n_workers: int) -> None:
        """Change the number of trials that run at a time.

        Running trials end normally. With fewer workers no trial starts until fewer than `n_workers` run. With more, new
        trials start at once; those that the pool has no devices for wait until it has. A synchronous search uses the
        new number from its next batch on. Can be called from any thread; blocks until the search has accepted it.

        Raises:
            TypeError, ValueError: not an int of at least 1; or the search starts no new trials any more.
            ClosedError: the search does not run.
        """
        checked_int("n_workers", n_workers, 1)
        search, hub = self._running()

        def set_workers() -> None:
            self._running()
            self._hear(search, "workers", [n_workers], lambda _answer: None)

        call_on(hub, set_workers)

    def _command_trial(self, what: Literal["pause", "resume", "stop"], trial_id: int) -> None:
        if isinstance(trial_id, bool) or not isinstance(trial_id, int):
            raise TypeError(f"trial_id must be an int, got {trial_id!r} of type {type(trial_id).__name__}")
        if self._search is not None:
            check_is_trial(trial_id, self._search.num_trials)
        self._command(lambda now_s: facts.Command(now_s, what, trial_id))

    def _command(self, make: Callable[[float], Fact]) -> None:
        search, hub = self._running()
        hub.call_soon(lambda: search.command(make))

    def _running(self) -> tuple[Search, Hub]:
        """Return the search and its hub, or raise ClosedError if the search does not run."""
        search, hub = self._search, self._hub
        if search is None or hub is None or search.finished.is_set() or search.failure is not None:
            raise ClosedError(f"the search {self.name!r} does not run.")
        return search, hub

    def _hear(self, search: Search, word: str, args: Sequence[object], answer: Callable[[str], None]) -> None:
        """What another process wants, on the hub's thread. ValueError: it cannot be."""
        if search.finished.is_set() or search.failure is not None:
            raise ValueError(f"the search {self.name!r} is over")
        command = command_for(word, args, state=search.state, space=self.space, seed=self.seed)
        search.command(command.make, lambda: answer(command.answer))

    # -- before ----------------------------------------------------------------------------------------------------

    def _packed(self) -> Packed:
        """The objective, wrapped so that what it returns is reported, packed for the workers."""
        pack(self.objective, caller="Tuner")  # names what cannot travel by the objective's own name
        metric = self.scheduler.objectives[0].metric
        wrapped = pack(functools.partial(run_objective, self.objective, metric, self.space.objects), caller="Tuner")
        return replace(wrapped, name=name_of(self.objective), modules=modules_needed(self.objective))

    def _create(self) -> _Begun:
        """A new experiment."""
        meta = self._meta()
        root = self._checkpoint_root()
        claim(root, str(meta["id"]), self.path)
        try:
            record = Record.create(self.path, meta)
        except BaseException:
            if not is_inside(root, self.path):
                delete_owned(root)  # which is empty
            raise
        try:
            save_program(self.path, Program(self.objective, self._pristine, self.space))
            tuning = fresh_tuning(meta, self.scheduler)
            return _Begun(record, SearchState(meta), 0.0, tuning, facts.Begin, self._earlier)
        except BaseException:
            record.close()
            raise

    def _reopen(self) -> _Begun:
        """An experiment that has a record: everything that was decided is decided again, and then it goes on."""
        record = Record.reopen(self.path)
        try:
            meta = read_meta(self.path)
            claim(self._checkpoint_root(), meta["id"], self.path)
            tuning = fresh_tuning(meta, self.scheduler)
            state = restore(self.path, tuning, self.scheduler.searcher)
        except BaseException:
            record.close()
            raise

        def resumed(now_s: float) -> Fact:
            return facts.Resumed(now_s, self.n_workers, self.stop_criterion.to_json(), versions_of(self.scheduler))

        return _Begun(record, state, state.last_s, tuning, resumed)

    def _meta(self) -> dict[str, object]:
        return {
            **described(
                name=self.name,
                objective=name_of(self.objective),
                space=self.space,
                scheduler=self.scheduler,
                constraints=self._constraints,
                seed=self.seed,
                n_workers=self.n_workers,
                stop=self.stop_criterion,
                chosen=self._chosen,
            ),
            "warm_start": summaries_to_json(self._taken),
            "objective_sha256": hashlib.sha256(pack(self.objective, caller="Tuner").function).hexdigest(),
            "asynchronous": self.asynchronous,
            "settings": {
                "asynchronous": self.asynchronous,
                "devices_per_trial": self._devices_per_trial,
                "checkpoints": self._checkpoints,
                "reuse": self._reuse,
                **self._timing,
            },
        }

    def _plan(self, packed: Packed) -> Plan:
        return Plan(
            name=self.name,
            packed=packed,
            need=self._need,
            seed=self.seed,
            reuse=self._reuse,
            folder=self.path,
            checkpoints=self._checkpoint_root(),
        )

    def _checkpoint_root(self) -> str:
        return checkpoint_root(self.path, self.name, self._checkpoints)

    def _cpus(self) -> int:
        """Enough CPUs for all workers; more than there are is allowed, and said."""
        return max(self.n_workers * self._need.cpus, self._capacity.cpus)

    def _check_lease(self) -> None:
        """Raise LeaseError for a trial that would wait for ever."""
        self._capacity.check(self._need, "this machine" if self._pool is None else "this pool")

    def _check_name_is_free(self) -> None:
        if self.path.exists():
            raise FileExistsError(
                f"{self.path} exists already. Give the experiment another name, remove the folder, or go on with it: "
                f"Tuner.resume({self.name!r})."
            )

    # -- while it runs, and after ----------------------------------------------------------------------------------

    def _run(
        self,
        hub: Hub,
        search: Search,
        interrupts: Interrupts,
        begun: _Begun,
        begun_at_last: Callable[[], None],
        address: str | None,
    ) -> None:
        """Wait for the end of the search and show it."""
        screen = screen_for(self._print_update_interval, quiet=self._quiet)
        if not self._quiet:
            note_shown(self.path)
        screen.begin(self._first_lines(address, begun.record.notices))
        listener = CommandListener(hub, self.path, functools.partial(self._hear, search))
        try:
            tuning = begun.tuning
            tuning.listen(search.suggester(self.scheduler.searcher))
            hub.call_soon(lambda: search.begin(tuning, begun.first, begun.before))
            begun_at_last()
            watch(hub, search, screen, interrupts)
        finally:
            leave(hub, search)
            listener.close()
            self._show_end(hub, search, screen)

    def _show_end(self, hub: Hub, search: Search, screen: Screen) -> None:
        try:
            seen = look(hub, search)
        except ClosedError:
            seen = search.look()  # the hub's thread has ended, so this one may
        screen.end(*seen, lines=self._last_lines(search))

    def _started(self) -> SearchStarted:
        objectives = self.scheduler.objectives
        return SearchStarted(
            self.name,
            self.path,
            self.space,
            objectives,
            self.seed,
            self.n_workers,
            resumed=self._resumes,
            created_s=float(read_meta(self.path)["created_s"]),
        )

    def _ended(self, search: Search) -> SearchEnded:
        finish = search.finish
        reason = f"broken off: {search.failure}" if finish is None else finish.reason
        error = str(search.failure) if finish is None else finish.error
        return SearchEnded(search.state.last_s, self.name, self.path, reason, error)

    def _first_lines(self, address: str | None, notices: Sequence[str]) -> Iterator[str]:
        how = "asynchronous" if self.asynchronous else "synchronous"
        workers = counted(self.n_workers, "worker")
        again = ", resumed" if self._resumes else ""
        yield f"experiment {self.name}{again}: {how} search with {workers}, master random seed {self.seed}"
        if method := method_line(self.scheduler.describe()):
            yield printable_line(method if self._chosen is None else f"{method}, {self._chosen.line()}")
        there = self._capacity
        if self._pool is not None and self._pool.cluster_settings:
            hosts = counted(len(there.machines), "host")
            has = f"{hosts} with {counted(there.cpus, 'CPU')} and {counted(there.gpus, 'GPU')}"
            yield printable_line(f"on the Ray cluster {self._pool.cluster_settings['ray']}: {has}")
        asked = self.n_workers * self._need.cpus
        if asked > there.cpus:
            found = there.cpus
            then = "they share them and run slower" if self._pool is None else "some wait for others"
            yield f"CPUs: {asked} asked for by {workers}, {found} found; {then}"
        for taken in self._taken:
            yield f"warm start from {taken}"
        yield f"results are kept in {self.path}"
        yield from notices
        if address is not None:
            yield f"board: {address}"

    def _last_lines(self, search: Search) -> Iterator[str]:
        if search.finish is not None:
            yield f"the search ended: {search.finish.reason}"
        else:
            yield f"the search was broken off: {search.failure}"

    def _raise_failure(self, search: Search, interrupts: Interrupts) -> None:
        kept = f"All that was reported is kept: load_experiment({self.name!r})."
        if interrupts.count:
            what = (
                f"the search {self.name!r} was interrupted. {kept} It goes on with Tuner.resume({self.name!r}).run()."
            )
            raise SearchInterrupted(what, Experiment(self.path)) from search.failure
        if search.failure is not None:
            search.failure.add_note(kept)
            raise search.failure
        finish = search.finish
        assert finish is not None, "a search that did not fail came to its end"
        cause = finish.cause or search.searcher_failure
        if cause is not None:
            raise cause
        if finish.kind == "no-metric":
            raise ValueError(finish.error)
        if finish.error is not None:
            raise SearchFailedError(f"{finish.error}\n{kept}")


def _close(record: Record, search: Search) -> None:
    """Close the record. When the search has failed, that is what the caller hears of."""
    try:
        if search.failure is None:
            record.set_summary(search.state.summary())
        record.close()
    except RecordError:
        if search.failure is None:
            raise


def _check_objective(objective: object) -> None:
    if not callable(objective):
        raise TypeError(f"the objective must be a function, got {objective!r}.\n  right:  Tuner(train, space, ...)")


def _check_settings(pool: object, name: object, print_update_interval: object) -> None:
    if pool is not None and not isinstance(pool, Pool):
        raise TypeError(f"pool must be a Pool or None, got {pool!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be text or None, got {name!r}")
    if not is_number(print_update_interval):
        raise TypeError(f"print_update_interval must be seconds, got {print_update_interval!r}")
    if not print_update_interval > 0:
        raise ValueError(f"print_update_interval must be above 0 seconds, got {print_update_interval!r}")
