"""The tuner: an asynchronous hyperparameter search, from its settings to its experiment.

    Tuner(objective, space, scheduler, stop).run()
      validate -> create or reuse a pool -> create the record -> run `Search` on the pool's hub thread
      the calling thread displays the search -> summary -> Experiment
    Tuner.resume(name).run()
      replay the record's events to restore `SearchCore` and the scheduler -> continue as above

All arguments are validated before any folder or process is created.
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
from ..base.home import experiments_folder
from ..base.nearest import names_nearest_option
from ..base.text import counted, printable_line
from ..links import Hub
from ..pool import Capacity, Pool
from ..pool.current import in_job
from ..pool.devices import find_machine
from ..pool.functions import check_signature, name_of, pack
from ..pool.preload import modules_needed
from ..pool.specs import Packed
from .callbacks.dispatcher import CallbackDispatcher, checked_callbacks
from .callbacks.search_events import SearchEnded, SearchStarted
from .constraints import checked_constraints, constraints_of
from .core import events
from .core.events import Event
from .core.search_core import SearchCore
from .devices import need_of, workers_on
from .display.screen import Screen, note_shown, screen_for
from .display.table import method_line
from .display.watch import Interrupts, call_on, counting_interrupts, leave, watch
from .experiment import Experiment, folder_of
from .opening import check_same, check_scheduler, checked_stop, copied, described, scheduler_for, space_of, versions_of
from .program import ASKED, Program, load_cluster, load_program, save_cluster, save_program
from .record.log import Record
from .record.names import check_name, new_name
from .record.reading import read_meta
from .record.restoring import last_settings, new_core, restore
from .record.state import SearchState
from .reporting import run_objective
from .runtime.background import RunningSearch
from .runtime.board_process import check_board_is_there, own_board
from .runtime.checkpoint_owner import claim, delete_owned, is_inside
from .runtime.checkpoint_store import CheckpointStore, checked_root, checkpoint_root, is_local
from .runtime.command_listener import CommandListener
from .runtime.commands import check_is_trial, check_may_enqueue, command_for, completed
from .runtime.runner import Plan, Search
from .schedulers.scheduler import Scheduler, checked_seed, seed_of
from .searchers.searcher import Mode, Searcher
from .space import Space
from .stopping import StoppingCriterion
from .values import check_bool, checked_int, is_number
from .warm_start import WarmStart, read_warm_start, summaries_to_json


@dataclass(frozen=True, slots=True)
class _Begun:
    """A search that is ready to start: its open record and its restored or fresh state."""

    record: Record
    state: SearchState
    began_s: float
    core: SearchCore
    first: Callable[[float], Event]
    before: Sequence[Event] = ()


class Tuner:
    """An asynchronous search over the hyperparameters of an objective, on warm local workers.

    Args:
        objective: function to optimize. Each trial calls it in a separate process with the configuration as keyword
            arguments. It calls `report(**metrics)` and may return a number or dict as its last report.
        space: dict of names to domains (`loguniform(...)`, ...) and constants, or a `Space`.
        scheduler: chooses configurations and decides about reports, e.g. `ASHA(metric="loss", max_t=81)`. The tuner
            runs a copy. None: every trial runs to its end, and `metric` is required.
        stop: the stopping criterion. Required.
        metric: name of the reported value to optimize, or several names. Only used when no scheduler is given.
        mode: "min" or "max", one for all metrics or one per metric. Only used when no scheduler is given.
        searcher: a searcher, or its name ("random", "forest", ...). None: choose one by the objectives, space, budget
            and number of workers, print it, and record it. Only used when no scheduler is given.
        constraints: constraints on every report, such as ["latency_ms <= 20"], if the scheduler has none. A report
            that violates one is the best only if no report meets all of them.
        points_to_evaluate: configurations to try first. Missing values are drawn at random. Only used when no
            scheduler is given.
        n_workers: number of trials that run at a time. None: as many as the devices allow. `set_workers` changes it.
        devices_per_trial: GPUs per trial (below 1: a share of one GPU), or CPUs if there is no GPU. 0: one CPU and no
            GPU.
        trial_timeout_s: seconds that a trial may run. None: no limit.
        stop_grace_s: seconds between asking a trial to stop and killing it.
        max_equal_failures: fail the search if this many trials finish first and all fail in the same way, or if every
            trial fails. A trial that has paused after a report does not count as failed. None: never.
        retries: number of times a crashed trial is restarted from its last checkpoint.
        checkpoints: root folder of the checkpoints, or an fsspec URL that other processes can access. They are written
            to a subfolder named after the experiment, which must be empty or missing when the experiment begins. None:
            the experiment's folder.
        keep_checkpoints: keep the last checkpoint of every trial, not only those of the best trial and of trials that
            may be resumed.
        name: name of the experiment and its folder. None: derived from the objective's name and the time.
        print_update_interval: seconds between two tables if the output is not a terminal.
        asynchronous: False: run trials in batches, and start a batch only when the last one has finished.
        reuse: run trials in processes that have run other trials. Starts faster, but isolates less.
        random_seed: seed of the scheduler, the searcher and the random states of every trial. None: the scheduler's
            `random_seed`, else a random one. It must not differ from the scheduler's.
        pool: pool to run on, which is left open. None: create one.
        warm_start: earlier experiments (names, paths or `Experiment`), data frames with one row per report, or a list
            of these. The searcher learns from their reports before its first suggestion. Trials that do not fit the
            space are skipped with a notice. A different mode or a missing metric is an error.
        callbacks: objects with any of the methods `on_start`, `on_trial_start`, `on_report`, `on_trial_end` and
            `on_end`. Each method takes one event (`fanwise.tune.callbacks.search_events`). Each object is called in its
            own thread, in the order of the events.
        board: show the search in a browser while it runs, and print the address.
        quiet: print nothing.

    Raises:
        TypeError, ValueError: invalid settings, an objective whose arguments do not match the space, or
            points_to_evaluate outside the space.
        FileExistsError: an experiment of this name exists.
        LeaseError: a trial needs more devices than there are.
        NotInstalled: a library for the checkpoint URL or for the board is missing.

    Attributes:
        name: name of the experiment. `load_experiment(name)` reads it, even while it runs.
        seed: the random seed in use.
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
        self._timing: dict[str, Any] = {  # Any: settings of `SearchCore`, which checks them
            "trial_timeout_s": trial_timeout_s,
            "stop_grace_s": stop_grace_s,
            "max_equal_failures": max_equal_failures,
            "retries": retries,
            "keep_checkpoints": keep_checkpoints,
        }
        SearchCore(
            self.scheduler, self.space, stop, n_workers=self.n_workers, asynchronous=asynchronous, **self._timing
        )
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
        """Return a tuner whose `run()` resumes an experiment that finished, was interrupted, or was killed.

        Interrupted trials run first, each from its last checkpoint. The time between the runs does not count.

        Args:
            name_or_path: name or path of the experiment.
            objective, space, scheduler: must equal the original ones. None: load them from the experiment's folder.
            stop: a new stopping criterion. None: keep the last one.
            n_workers: a new number of workers. None: keep the last one.
            pool: pool to run on, which is left open. None: create one, on the cluster of the last run if there was one.
            print_update_interval, callbacks, board, quiet: as in the constructor.

        Raises:
            RecordError: there is no such experiment, or its program cannot be loaded.
            NotInstalled, ClusterError: the cluster cannot be used.
            ValueError: the objective, space or scheduler differs from the original; the message shows how.
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
        same = constraints_of(scheduler) or checked_constraints(constraints)  # those passed to the Tuner remain valid
        check_same(meta, name_of(objective), space, scheduler, same)
        settings = meta["settings"]
        last_workers, last_stop = last_settings(folder, meta)
        cluster = load_cluster(folder) if pool is None else None
        with Pool(**cluster) if cluster else nullcontext(pool) as checked_on:  # `run` may never be called
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
        """Run the search until the stopping criterion is met, and return the experiment.

        `block=False` runs the search in a thread and returns a `RunningSearch` with `wait()`, `experiment`, `finished`
        and `stop()` as soon as it has begun. The search is stopped when the program exits.

        Ctrl-C, or the stop button of a notebook, ends the search: running trials are stopped, all results are kept, and
        SearchInterrupted is raised, a KeyboardInterrupt that carries the experiment. A second Ctrl-C kills the trials.

        Raises:
            NotSendableError: the objective refers to an object that cannot be sent to a worker; the message names it.
            SearchFailedError: the first trials all failed in the same way, or every trial failed.
            ValueError: no trial reports the scheduler's metric (the message lists the reported names), or this tuner
                has run before.
            RecordError: the record cannot be written, or another tuner writes to the experiment.
            FileExistsError: an experiment of this name has been created since the Tuner was.
            CheckpointError: the checkpoint folder contains other files or cannot be written.
            ClosedError: the pool is closed, or `run` was called inside a job of a pool.
            SearchInterrupted: Ctrl-C was pressed.
            Exception: an exception of the scheduler or its searcher, in its original type.
        """
        check_bool("block", block)
        if not block:
            return RunningSearch(self._search_to_the_end, self.stop, self.path, grace_s=self._timing["stop_grace_s"])
        return self._search_to_the_end(lambda: None)

    def _search_to_the_end(self, begun_at_last: Callable[[], None]) -> Experiment:
        """Run the search in the current thread. `begun_at_last` is called when it accepts commands."""
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
            engine, hub = pool.engine, pool.hub  # before the record is created: a closed pool must not leave a folder
            begun = self._reopen() if self._resumes else self._create()
            self._ran = True
            store = CheckpointStore(self._checkpoint_root())
            listening = CallbackDispatcher(self._callbacks, begun.state)
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
                    os.makedirs(root, exist_ok=True)  # nodes that cannot see it raise an error
                (self.path / "output").mkdir(mode=0o700, exist_ok=True)
                if self._resumes:
                    store.sweep(begun.core.checkpoints)
                address = stack.enter_context(own_board(self.path)) if self._shows_board else None
                self._run(hub, search, interrupts, begun, begun_at_last, address)
            finally:
                leave(hub, search)
                try:
                    _close(begun.record, search)
                finally:
                    store.close()
                    if search.failure is None:  # else the record lacks the last decisions
                        store.sweep(begun.core.checkpoints)
                    listening.close(self._ended(search))
        search.settle()  # after closing, so an interrupt of this wait loses nothing
        self._raise_failure(search, interrupts)
        return Experiment(self.path)

    # -- commands, callable from any thread --------------------------------------------------------------------------

    def stop(self, reason: str = "stopped by hand") -> None:
        """End the running search as if its stopping criterion were met. Can be called from any thread.

        Does not block; `run()` returns when the search has ended.

        Raises:
            ClosedError: the search is not running.
        """
        self._command(lambda now_s: events.Interrupt(now_s, reason))

    def pause(self, trial_id: int) -> None:
        """Pause a trial at its next report and free its worker. The trial keeps its last checkpoint.

        A finished trial is not affected. Can be called from any thread; does not block.

        Raises:
            TypeError, ValueError: trial_id is not a trial of the search.
            ClosedError: the search is not running.
        """
        self._command_trial("pause", trial_id)

    def unpause(self, trial_id: int) -> None:
        """Let a trial that was paused by `pause` resume. Threads and errors as for `pause`."""
        self._command_trial("resume", trial_id)

    def stop_trial(self, trial_id: int) -> None:
        """Stop one trial permanently. Threads and errors as for `pause`."""
        self._command_trial("stop", trial_id)

    def enqueue(self, config: Mapping[str, object]) -> None:
        """Use this configuration for the next new trial. Missing values are drawn at random.

        Can be called from any thread; blocks until the search has accepted the configuration.

        Raises:
            TypeError, ValueError: config is not a dict or not in the space, or the search starts no new trials.
            ClosedError: the search is not running.
        """
        complete = completed(config, self.space, self.seed)
        search, hub = self._running()

        def enqueue() -> None:
            self._running()
            check_may_enqueue(search.state)
            search.command(lambda now_s: events.Enqueued(now_s, complete))

        call_on(hub, enqueue)

    def set_workers(self, n_workers: int) -> None:
        """Change the number of trials that run at a time.

        Running trials are not interrupted. After a decrease, no trial starts until fewer than `n_workers` run. After an
        increase, new trials start at once, or as soon as the pool has devices for them. A synchronous search applies
        the new number to its next batch. Can be called from any thread; blocks until the search has accepted it.

        Raises:
            TypeError, ValueError: n_workers is not an int of at least 1, or the search starts no new trials.
            ClosedError: the search is not running.
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
        self._command(lambda now_s: events.Command(now_s, what, trial_id))

    def _command(self, make: Callable[[float], Event]) -> None:
        search, hub = self._running()
        hub.call_soon(lambda: search.command(make))

    def _running(self) -> tuple[Search, Hub]:
        """Return the search and its hub, or raise ClosedError if the search does not run."""
        search, hub = self._search, self._hub
        if search is None or hub is None or search.finished.is_set() or search.failure is not None:
            raise ClosedError(f"the search {self.name!r} does not run.")
        return search, hub

    def _hear(self, search: Search, word: str, args: Sequence[object], answer: Callable[[str], None]) -> None:
        """Execute a command of another process, on the hub's thread. Raise TypeError or ValueError if it is invalid."""
        if search.finished.is_set() or search.failure is not None:
            raise ValueError(f"the search {self.name!r} is over")
        command = command_for(word, args, state=search.state, space=self.space, seed=self.seed)
        search.command(command.make, lambda: answer(command.answer))

    # -- setup -----------------------------------------------------------------------------------------------------

    def _packed(self) -> Packed:
        """Wrap the objective so that its return value is reported, and pack it for the workers."""
        pack(self.objective, caller="Tuner")  # so that an error names the objective and not the wrapper
        metric = self.scheduler.objectives[0].metric
        wrapped = pack(functools.partial(run_objective, self.objective, metric, self.space.objects), caller="Tuner")
        return replace(wrapped, name=name_of(self.objective), modules=modules_needed(self.objective))

    def _create(self) -> _Begun:
        """Create a new experiment."""
        meta = self._meta()
        root = self._checkpoint_root()
        claim(root, str(meta["id"]), self.path)
        try:
            record = Record.create(self.path, meta)
        except BaseException:
            if not is_inside(root, self.path):
                delete_owned(root)  # it is empty
            raise
        try:
            save_program(self.path, Program(self.objective, self._pristine, self.space))
            core = new_core(meta, self.scheduler)
            return _Begun(record, SearchState(meta), 0.0, core, events.Begin, self._earlier)
        except BaseException:
            record.close()
            raise

    def _reopen(self) -> _Begun:
        """Reopen an existing experiment and restore its state by replaying its events."""
        record = Record.reopen(self.path)
        try:
            meta = read_meta(self.path)
            claim(self._checkpoint_root(), meta["id"], self.path)
            core = new_core(meta, self.scheduler)
            state = restore(self.path, core, self.scheduler.searcher)
        except BaseException:
            record.close()
            raise

        def resumed(now_s: float) -> Event:
            return events.Resumed(now_s, self.n_workers, self.stop_criterion.to_json(), versions_of(self.scheduler))

        return _Begun(record, state, state.last_s, core, resumed)

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
        """Return enough CPUs for all workers. They may exceed the machine's CPUs, and `_first_lines` says so."""
        return max(self.n_workers * self._need.cpus, self._capacity.cpus)

    def _check_lease(self) -> None:
        """Raise LeaseError if a trial would wait forever."""
        self._capacity.check(self._need, "this machine" if self._pool is None else "this pool")

    def _check_name_is_free(self) -> None:
        if self.path.exists():
            raise FileExistsError(
                f"{self.path} exists already. Give the experiment another name, remove the folder, or go on with it: "
                f"Tuner.resume({self.name!r})."
            )

    # -- running and finishing -------------------------------------------------------------------------------------

    def _run(
        self,
        hub: Hub,
        search: Search,
        interrupts: Interrupts,
        begun: _Begun,
        begun_at_last: Callable[[], None],
        address: str | None,
    ) -> None:
        """Start the search, display it, and block until it ends."""
        screen = screen_for(self._print_update_interval, quiet=self._quiet)
        if not self._quiet:
            note_shown(self.path)
        screen.say(*self._first_lines(address, begun.record.notices))
        listener = CommandListener(hub, self.path, functools.partial(self._hear, search))
        try:
            core = begun.core
            core.listen(search.suggester(self.scheduler.searcher))
            hub.call_soon(lambda: search.begin(core, begun.first, begun.before))
            begun_at_last()
            watch(hub, search, screen, interrupts)
        finally:
            leave(hub, search)
            listener.close()
            self._show_end(hub, search, screen)

    def _show_end(self, hub: Hub, search: Search, screen: Screen) -> None:
        try:
            frame = call_on(hub, search.look)
        except ClosedError:
            frame = search.look()  # the hub's thread has ended, so this thread may call it
        screen.end(*frame, lines=self._last_lines(search))

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
        suffix = ", resumed" if self._resumes else ""
        yield f"experiment {self.name}{suffix}: {how} search with {workers}, master random seed {self.seed}"
        if method := method_line(self.scheduler.describe()):
            yield printable_line(method if self._chosen is None else f"{method}, {self._chosen.line()}")
        capacity = self._capacity
        if self._pool is not None and self._pool.cluster_settings:
            hosts = counted(len(capacity.machines), "host")
            has = f"{hosts} with {counted(capacity.cpus, 'CPU')} and {counted(capacity.gpus, 'GPU')}"
            yield printable_line(f"on the Ray cluster {self._pool.cluster_settings['ray']}: {has}")
        needed = self.n_workers * self._need.cpus
        if needed > capacity.cpus:
            effect = "they share them and run slower" if self._pool is None else "some wait for others"
            yield f"CPUs: {needed} asked for by {workers}, {capacity.cpus} found; {effect}"
        for source in self._taken:
            yield f"warm start from {source}"
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
            message = (
                f"the search {self.name!r} was interrupted. {kept} It goes on with Tuner.resume({self.name!r}).run()."
            )
            raise SearchInterrupted(message, Experiment(self.path)) from search.failure
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
    """Close the record. Ignore errors of the record if the search has failed, whose error is raised instead."""
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
