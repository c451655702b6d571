"""One run of a tuner's search, from opening its record to closing it.

SearchRun.run()
  create or reopen the record -> start `Search` on the pool's hub thread -> display it in the calling thread
  -> close the record -> return the experiment or raise the error of the search
SearchRun.apply(), SearchRun.call()    change the running search; callable from any thread
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from ...base.errors import ClosedError, ExperimentExistsError, RecordError, SearchFailedError, SearchInterrupted
from ...base.text import counted, printable_line
from ...links import Hub
from ...pool import Capacity, Pool, Resources
from ...pool.current import in_job
from ...pool.functions import name_of, pack
from ...pool.preload import modules_needed
from ...pool.specs import Packed
from ..callbacks.dispatcher import CallbackDispatcher
from ..callbacks.search_events import SearchEnded, SearchStarted
from ..core import events
from ..core.events import Earlier, Event
from ..core.search_core import SearchCore
from ..display.screen import note_shown, screen_for
from ..display.table import method_line
from ..display.watch import Interrupts, call_on, counting_interrupts, leave, watch
from ..experiment import Experiment
from ..objective import run_objective
from ..program import Program, save_cluster, save_program
from ..record.log import Record
from ..record.reading import read_meta
from ..record.restoring import restore
from ..record.state import SearchState
from ..schedulers.scheduler import Scheduler
from ..search_settings import SearchSettings
from ..space import space_objects
from ..transfer import Taken
from ..trial_resources import divided, trial_resources
from ..warm_start import summaries_to_json
from .board_process import own_board
from .checkpoint_owner import claim, delete_owned, is_inside
from .checkpoint_store import CheckpointStore, checkpoint_root, is_local
from .commands import command_for
from .control import CommandListener
from .runner import Plan, Search


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Location, resources, callbacks and display of a run.

    Args:
        path: the experiment's folder. It exists if and only if `is_resumed`.
        capacity: the machines of the pool.
        resources: resources of one trial.
        pool: pool to run on, which is left open. None: create one with `cluster`, or on this machine.
        cluster: arguments for creating the pool when a search on a cluster is resumed.
        earlier: warm-start trials of other experiments. They are the first events of a new search.
        summaries: summaries of these trials.
    """

    name: str
    path: Path
    capacity: Capacity
    resources: Resources
    is_resumed: bool
    pool: Pool | None
    cluster: Mapping[str, Any] | None  # Any: JSON
    earlier: Sequence[Earlier]
    summaries: Sequence[Taken]
    callbacks: Sequence[object]
    print_update_interval: float
    board: bool
    quiet: bool


@dataclass(frozen=True, slots=True)
class _OpenedSearch:
    """The open record of a search and its fresh or restored state."""

    record: Record
    state: SearchState
    core: SearchCore
    first_event: Callable[[float], Event]


@final
class SearchRun:
    """A run of a search; see the module. `scheduler`: unused copy of the scheduler in the settings."""

    def __init__(
        self,
        objective: Callable[..., Any],  # Any: the user's objective
        settings: SearchSettings,
        scheduler: Scheduler,
        options: RunOptions,
    ) -> None:
        self._objective = objective
        self._settings = settings
        self._scheduler = scheduler
        self._options = options
        self._path = options.path
        self._checkpoint_root = checkpoint_root(options.path, options.name, settings.checkpoints)
        self._has_begun = False
        self._search: Search | None = None
        self._hub: Hub | None = None
        self._pool: Pool | None = None

    # -- running and finishing -------------------------------------------------------------------------------------

    def run(self, on_begin: Callable[[], None]) -> Experiment:
        """Run the search in the current thread. `on_begin` is called when the search accepts commands.

        Raises:
            Exception: see `Tuner.run`.
        """
        options = self._options
        if self._has_begun:
            raise ValueError("this tuner has already run. Create another Tuner, or use Tuner.resume(name).")
        if options.pool is None and in_job():
            raise ClosedError("a search cannot run inside a job or trial: its workers belong to the outer pool.")
        packed = self._pack_objective()
        if not options.is_resumed:
            check_name_is_free(self._path)
        with ExitStack() as stack:
            interrupts = stack.enter_context(counting_interrupts())
            pool = options.pool or stack.enter_context(
                Pool(**options.cluster) if options.cluster else Pool(seed=self._settings.seed, cpus=self._num_cpus())
            )
            # A closed pool raises here, before the record creates a folder.
            self._pool, engine, self._hub = pool, pool.engine, pool.hub
            opened = self._reopen() if options.is_resumed else self._create()
            self._has_begun = True
            store = CheckpointStore(self._checkpoint_root)
            dispatcher = CallbackDispatcher(options.callbacks, opened.state)
            opened.state.news.on_line = dispatcher.on_line
            search = self._search = Search(
                engine,
                opened.record,
                self._plan(packed),
                opened.state,
                began_s=opened.state.last_s,
                checkpoints=store,
                listener=dispatcher.on_event if options.callbacks else None,
            )
            dispatcher.start(self._start_event())
            try:
                save_cluster(self._path, pool.cluster_settings)
                if pool.cluster_settings and is_local(self._checkpoint_root):
                    os.makedirs(self._checkpoint_root, exist_ok=True)  # nodes that cannot see it raise an error
                (self._path / "output").mkdir(mode=0o700, exist_ok=True)
                if options.is_resumed:
                    store.sweep(opened.core.checkpoints)
                address = stack.enter_context(own_board(self._path)) if options.board else None
                self._search_and_display(search, self._hub, opened, interrupts, on_begin, address)
            finally:
                leave(self._hub, search)
                try:
                    _close(opened.record, search)
                finally:
                    store.close()
                    if search.failure is None:  # after a failure, the record may lack the last decisions
                        store.sweep(opened.core.checkpoints)
                    dispatcher.close(self._end_event(search))
        search.settle()  # after closing, so that interrupting this wait loses nothing
        self._raise_failure(search, interrupts)
        return Experiment(self._path)

    def _search_and_display(
        self,
        search: Search,
        hub: Hub,
        opened: _OpenedSearch,
        interrupts: Interrupts,
        on_begin: Callable[[], None],
        address: str | None,
    ) -> None:
        """Start the search, display it, and block until it ends."""
        options, earlier = self._options, self._options.earlier
        screen = screen_for(options.print_update_interval, quiet=options.quiet)
        if not options.quiet:
            note_shown(self._path)
        screen.say(*self._first_lines(address, opened.record.notices))
        listener = CommandListener(hub, self._path, self.handle)
        try:
            opened.core.listen(search.suggester(self._scheduler.searcher))
            hub.call_soon(lambda: search.begin(opened.core, opened.first_event, earlier))
            on_begin()
            watch(hub, search, screen, interrupts)
        finally:
            leave(hub, search)
            listener.close()
            try:
                frame = call_on(hub, search.look)
            except ClosedError:
                frame = search.look()  # the hub's thread has ended, so this thread may call it
            screen.end(*frame, lines=[_last_line(search)])

    def _raise_failure(self, search: Search, interrupts: Interrupts) -> None:
        name = self._options.name
        results = f"All reports are saved: load_experiment({name!r})."
        if interrupts.count:
            message = f"the search {name!r} was interrupted. {results} Resume it with Tuner.resume({name!r}).run()."
            raise SearchInterrupted(message, Experiment(self._path)) from search.failure
        if search.failure is not None:
            search.failure.add_note(results)
            raise search.failure
        finish = search.finish
        assert finish is not None, "a search that did not fail has finished"
        cause = finish.cause or search.searcher_failure
        if cause is not None:
            raise cause
        if finish.kind == "no-metric":
            raise ValueError(finish.error)
        if finish.error is not None:
            raise SearchFailedError(f"{finish.error}\n{results}", reason=finish.error, kind=finish.kind)

    # -- commands, callable from any thread ------------------------------------------------------------------------

    def apply(self, make_event: Callable[[float], Event]) -> None:
        """Pass `make_event(now_s)` to the search on the hub's thread. Does not block.

        Raises:
            ClosedError: the search is not running.
        """
        search, hub = self._running()
        hub.call_soon(lambda: search.command(make_event))

    def call(self, word: str, *args: object) -> None:
        """Execute a command of `runtime.commands`. Blocks until the search has accepted it.

        Raises:
            TypeError, ValueError: the command is invalid.
            ClosedError: the search is not running.
        """
        _, hub = self._running()

        def execute() -> None:
            self._running()
            self.handle(word, args, lambda _answer: None)

        call_on(hub, execute)

    def handle(self, word: str, args: Sequence[object], answer: Callable[[str], None]) -> None:
        """Execute a command, on the hub's thread. Raise TypeError or ValueError if it is invalid."""
        search = self._search
        if search is None or search.finished.is_set() or search.failure is not None:
            raise ValueError(f"the search {self._options.name!r} is over")
        settings = self._settings
        command = command_for(word, args, state=search.state, space=settings.space, seed=settings.seed)
        if word == "workers" and settings.divides_machine:  # before the command, which starts trials
            capacity, n_workers = self._options.capacity, int(args[0])  # type: ignore[call-overload]  # checked above
            search.resources = trial_resources(capacity, divided(capacity, n_workers))
        search.command(command.make, lambda: answer(command.answer))

    @property
    def num_trials(self) -> int | None:
        """Number of trials so far. None before the search has begun."""
        return None if self._search is None else self._search.num_trials

    def _running(self) -> tuple[Search, Hub]:
        search, hub = self._search, self._hub
        if search is None or hub is None or search.finished.is_set() or search.failure is not None:
            raise ClosedError(f"the search {self._options.name!r} is not running.")
        return search, hub

    # -- the record ------------------------------------------------------------------------------------------------

    def _create(self) -> _OpenedSearch:
        meta = self._meta()
        root = self._checkpoint_root
        claim(root, str(meta["id"]), self._path)
        try:
            record = Record.create(self._path, meta)
        except BaseException:
            if not is_inside(root, self._path):
                delete_owned(root)  # it is empty
            raise
        try:
            save_program(self._path, Program(self._objective, self._settings.scheduler, self._settings.space))
            core = self._settings.new_core(self._scheduler)
        except BaseException:
            record.close()
            raise
        return _OpenedSearch(record, SearchState(meta), core, events.Begin)

    def _reopen(self) -> _OpenedSearch:
        """Reopen an existing experiment and restore its state by replaying its events."""
        settings = self._settings
        record = Record.reopen(self._path)
        try:
            meta = read_meta(self._path)
            claim(self._checkpoint_root, meta["id"], self._path)
            original = SearchSettings.from_json(meta, settings.scheduler)  # initial stop and n_workers
            core = original.new_core(self._scheduler)
            state = restore(self._path, core, self._scheduler.searcher)
        except BaseException:
            record.close()
            raise

        def make_resumed_event(now_s: float) -> Event:
            return events.Resumed(now_s, settings.n_workers, settings.stop.to_json(), settings.versions())

        return _OpenedSearch(record, state, core, make_resumed_event)

    def _meta(self) -> dict[str, object]:
        """Return the metadata of a new experiment."""
        return {
            **self._settings.new_metadata(self._options.name, name_of(self._objective)),
            "objective_sha256": hashlib.sha256(pack(self._objective, caller="Tuner").function).hexdigest(),
            "warm_start": summaries_to_json(self._options.summaries),
        }

    # -- trials ----------------------------------------------------------------------------------------------------

    def _pack_objective(self) -> Packed:
        """Wrap the objective so that its return value is reported, and pack it for the workers."""
        pack(self._objective, caller="Tuner")  # so that an error names the objective and not the wrapper
        metric = self._scheduler.objectives[0].metric
        wrapped = functools.partial(run_objective, self._objective, metric, space_objects(self._settings.space))
        packed = pack(wrapped, caller="Tuner")
        return replace(packed, name=name_of(self._objective), modules=modules_needed(self._objective))

    def _plan(self, packed: Packed) -> Plan:
        return Plan(
            name=self._options.name,
            packed=packed,
            resources=self._options.resources,
            seed=self._settings.seed,
            reuse=self._settings.reuse,
            folder=self._path,
            checkpoints=self._checkpoint_root,
        )

    def _num_cpus(self) -> int:
        """Return enough CPUs for all workers, even if the machine has fewer; `_first_lines` reports the shortage."""
        return max(self._settings.n_workers * self._options.resources.cpus, self._options.capacity.cpus)

    # -- callback events and screen messages -----------------------------------------------------------------------

    def _start_event(self) -> SearchStarted:
        settings, options = self._settings, self._options
        return SearchStarted(
            options.name,
            self._path,
            settings.space,
            self._scheduler.objectives,
            settings.seed,
            settings.n_workers,
            resumed=options.is_resumed,
            created_s=float(read_meta(self._path)["created_s"]),
        )

    def _end_event(self, search: Search) -> SearchEnded:
        finish = search.finish
        reason = f"broken off: {search.failure}" if finish is None else finish.reason
        error = str(search.failure) if finish is None else finish.error
        return SearchEnded(search.state.last_s, self._options.name, self._path, reason, error)

    def _first_lines(self, address: str | None, notices: Sequence[str]) -> Iterator[str]:
        settings, options = self._settings, self._options
        kind = "asynchronous" if settings.asynchronous else "synchronous"
        workers = counted(settings.n_workers, "worker")
        suffix = ", resumed" if options.is_resumed else ""
        yield f"experiment {options.name}{suffix}: {kind} search with {workers}, master random seed {settings.seed}"
        choice = settings.searcher_choice
        if method := method_line(self._scheduler.describe()):
            yield printable_line(method if choice is None else f"{method}, {choice.line()}")
        pool, capacity = self._pool, options.capacity
        if pool is not None and pool.cluster_settings:
            hosts = counted(len(capacity.machines), "host")
            size = f"{hosts} with {counted(capacity.cpus, 'CPU')} and {counted(capacity.gpus, 'GPU')}"
            yield printable_line(f"on the Ray cluster {pool.cluster_settings['ray']}: {size}")
        needed = settings.n_workers * options.resources.cpus
        if needed > capacity.cpus:
            effect = "workers share CPUs and run slower" if options.pool is None else "some trials wait"
            yield f"CPUs: {workers} requested {needed}, but only {capacity.cpus} were found; {effect}"
        for source in options.summaries:
            yield f"warm start from {source}"
        yield f"results are kept in {self._path}"
        yield from notices
        if address is not None:
            yield f"board: {address}"


def check_name_is_free(path: Path) -> None:
    """Raise ExperimentExistsError if the folder exists."""
    if path.exists():
        raise ExperimentExistsError(path)


def _close(record: Record, search: Search) -> None:
    """Close the record. If the search has failed, ignore record errors: the error of the search is raised instead."""
    try:
        if search.failure is None:
            record.set_summary(search.state.summary())
        record.close()
    except RecordError:
        if search.failure is None:
            raise


def _last_line(search: Search) -> str:
    if search.finish is not None:
        return f"the search ended: {search.finish.reason}"
    return f"the search was broken off: {search.failure}"
