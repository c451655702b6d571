"""One run of a tuner's search, from opening its record to closing it.

SearchRun.run()
  create or reopen the record -> start `SearchRunner` on the pool's hub thread -> display it in the calling thread
  -> close the record -> return the experiment or raise the error of the search
SearchRun.stop(), SearchRun.call()    change the running search, from any thread
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from ...base.errors import ClosedError, ExperimentExistsError, RecordError, SearchInterrupted
from ...base.text import counted, printable_line
from ...base.urls import is_url
from ...links.hub import Hub
from ...pool import Capacity, Pool
from ...pool.cluster.engine import ClusterEngine
from ...pool.contract import JobRequest
from ...pool.current import in_job
from ...pool.functions import name_of, pack
from ...pool.modules import modules_needed
from ...pool.specs import Packed
from ..callbacks.dispatcher import CallbackDispatcher, checked_callbacks
from ..callbacks.search_events import SearchEnded
from ..core import events
from ..core.events import EarlierTrial, Event
from ..core.search_core import SearchCore
from ..display.screen import mark_shown_in_notebook, screen_for
from ..display.table import method_line
from ..display.watch import Interrupts, abandon_unless_finished, call_on, counting_interrupts, watch
from ..experiment import Experiment
from ..objective import run_objective
from ..program import save_cluster, save_program
from ..record.event_file import read_meta
from ..record.log import Record
from ..record.replay import restore
from ..record.state import SearchState
from ..schedulers.scheduler import Scheduler
from ..search_settings import SearchSettings
from ..space import object_categories
from ..stopping import limits_of
from ..trial_resources import default_devices_per_trial, max_workers, trial_resources
from ..values import checked_bool, checked_positive
from ..warm_start import Summary, summary_line
from .board_process import check_board_is_installed, serving_board
from .checkpoint_owner import claim, delete_owned, is_inside
from .checkpoint_store import CheckpointStore, checkpoint_root
from .commands import command_for
from .control import CommandListener
from .runner import SearchRunner


@final
@dataclass(kw_only=True, eq=False)
class SearchRun:
    """A run of a search. See `Tuner` for the arguments that are not listed.

    Args:
        name, path: the experiment and its folder, which exists if and only if `is_resumed`.
        capacity: the machines of the pool.
        pool: pool to run on, which is left open. None: create one with `cluster`, or on this machine.
        cluster: arguments for creating the pool when a search on a cluster is resumed.
        earlier: events with the trials of the warm start. A new search begins with them.
        summaries: one summary per source of the warm start.

    Raises:
        TypeError, ValueError: invalid callbacks or display options.
        LeaseError: a trial needs more devices than there are.
        NotInstalled: a library of the board is missing.
    """

    objective: Callable[..., Any]
    settings: SearchSettings
    name: str
    path: Path
    is_resumed: bool
    capacity: Capacity
    pool: Pool | None
    cluster: Mapping[str, Any] | None = None
    earlier: Sequence[EarlierTrial] = ()
    summaries: Sequence[Summary] = ()
    callbacks: Sequence[object]
    print_update_interval: float
    board: bool
    quiet: bool
    scheduler: Scheduler = field(init=False)  # a copy whose `begin` this run calls
    _search: SearchRunner | None = field(init=False, default=None)
    _hub: Hub | None = field(init=False, default=None)
    _last_fit: int | None = field(init=False, default=None)  # the last number in `_follow_hosts`

    def __post_init__(self) -> None:
        checked_callbacks(self.callbacks)
        checked_positive("print_update_interval", self.print_update_interval)
        checked_bool("quiet", self.quiet)
        if checked_bool("board", self.board):
            check_board_is_installed()
        self._resources = trial_resources(self.capacity, self.settings.devices_per_trial)
        self.capacity.check(self._resources, "this machine" if self.pool is None else "this pool")
        self.scheduler = self.settings.copy_scheduler()
        self._checkpoint_root = checkpoint_root(self.path, self.name, self.settings.checkpoints)

    def run(self, on_begin: Callable[[], None]) -> Experiment:
        """Run the search in this thread. Call `on_begin` when the search accepts commands. Raises like `Tuner.run`."""
        if self._search is not None:
            raise ValueError("this tuner has already run. Create another Tuner, or use Tuner.resume(name).")
        if self.pool is None and in_job():
            raise ClosedError("a search cannot run inside a job or trial, whose worker belongs to the outer pool.")
        packed = self._pack_objective()
        if not self.is_resumed:
            check_name_is_free(self.path)
        with ExitStack() as stack:
            interrupts = stack.enter_context(counting_interrupts())
            pool = self.pool or stack.enter_context(self._new_pool())
            engine, hub = pool._engine, pool._hub  # a closed pool raises here, before the record creates a folder
            record, state, core = self._reopen() if self.is_resumed else self._create()
            store = CheckpointStore(self._checkpoint_root)
            dispatcher = CallbackDispatcher(self.callbacks, state)
            state.news.on_line = dispatcher.on_line
            job = JobRequest(packed, self._resources, seed=self.settings.seed, reuse=self.settings.reuse)
            listener = dispatcher.on_event if self.callbacks else None
            search = self._search = SearchRunner(engine, record, state, job, store, listener)
            self._hub = hub
            dispatcher.start(self.settings.start_event(self.name, self.path, is_resumed=self.is_resumed))
            try:
                save_cluster(self.path, pool._cluster_settings)
                if pool._cluster is not None and not is_url(self._checkpoint_root):
                    # Workers never create it. If a host has no such folder, it does not share this file system.
                    os.makedirs(self._checkpoint_root, exist_ok=True)
                (self.path / "output").mkdir(mode=0o700, exist_ok=True)
                if self.is_resumed:
                    store.sweep(core.checkpoints)
                address = stack.enter_context(serving_board(self.path)) if self.board else None
                lines = [*self._first_lines(pool), *record.notices]
                lines += [] if address is None else [f"board: {address}"]
                if self.settings.follows_hosts and (cluster := pool._cluster_engine) is not None:
                    self._last_fit, follow = self.settings.n_workers, partial(self._follow_hosts, cluster, search)
                    stack.callback(hub.call_soon, partial(cluster.host_listeners.remove, follow))
                    hub.call_soon(partial(cluster.host_listeners.append, follow))
                    hub.call_soon(follow)
                self._search_and_display(search, hub, core, interrupts, on_begin, lines)
            finally:
                abandon_unless_finished(hub, search)
                try:
                    _close(record, search)
                finally:
                    store.close()
                    if search.failure is None:  # after a failure, the record may lack the last decisions
                        store.sweep(core.checkpoints)
                    dispatcher.close(self._end_event(search))
        searcher_failure = search.wait_for_searcher()  # after closing, so that interrupting this wait loses nothing
        self._raise_failure(search, interrupts, searcher_failure)
        return Experiment(self.path)

    def _search_and_display(
        self,
        search: SearchRunner,
        hub: Hub,
        core: SearchCore,
        interrupts: Interrupts,
        on_begin: Callable[[], None],
        lines: Sequence[str],
    ) -> None:
        """Start the search, display it, and block until the search ends. `lines` are shown first."""
        screen = screen_for(self.print_update_interval, quiet=self.quiet)
        if not self.quiet:
            mark_shown_in_notebook(self.path)
        screen.print_lines(*lines)
        listener = CommandListener(hub, self.path, self._handle)
        try:
            hub.call_soon(lambda: search.begin(core, self.scheduler.searcher, self._first_event, self.earlier))
            on_begin()
            watch(hub, search, screen, interrupts)
        finally:
            abandon_unless_finished(hub, search)
            try:
                call_on(hub, listener.close)
            except ClosedError:  # the hub's thread has ended, so this thread may call it
                listener.close()
            finish = search.finish
            line = f"the search failed: {search.failure}" if finish is None else f"the search ended: {finish.reason}"
            screen.end(search.take_news(), search.take_snapshot, lines=[line])  # the search no longer changes

    def _follow_hosts(self, cluster: ClusterEngine, search: SearchRunner) -> None:
        """Adapt the number of workers to the hosts of the pool, until a user sets the number."""
        n_workers = max_workers(cluster.capacity(), self._resources)
        if self._last_fit is not None and n_workers != self._last_fit:
            self._last_fit = n_workers
            search.apply_command(lambda now_s: events.WorkersChanged(now_s, n_workers))

    def _raise_failure(
        self, search: SearchRunner, interrupts: Interrupts, searcher_failure: BaseException | None
    ) -> None:
        results = f"All reports are saved: load_experiment({self.name!r})."
        if interrupts.count:
            message = (
                f"the search {self.name!r} was interrupted. {results} Resume it with Tuner.resume({self.name!r}).run()."
            )
            raise SearchInterrupted(message, Experiment(self.path)) from search.failure
        if search.failure is not None:
            search.failure.add_note(results)
            raise search.failure
        finish = search.finish
        assert finish is not None, "a search that did not fail has finished"
        if finish.cause is None and searcher_failure is not None:
            raise searcher_failure
        finish.raise_error(f"\n{results}")

    def stop(self, reason: str) -> None:
        """Execute `Tuner.stop`."""
        search, hub = self._running_search()
        hub.call_soon(lambda: search.apply_command(lambda now_s: events.Interrupt(now_s, reason)))

    def call(self, command: str, *args: object) -> None:
        """Execute a command (see `commands`) and block until the search has accepted it.

        Raises:
            TypeError, ValueError: the command is invalid.
            ClosedError: the search is not running.
        """
        _, hub = self._running_search()
        call_on(hub, lambda: self._handle(command, args, lambda _answer: None))

    def _handle(self, command: str, args: Sequence[object], answer: Callable[[str], None]) -> None:
        """Execute a command on the hub's thread. Call `answer` when the command is recorded. Raises like `call`."""
        search, _ = self._running_search()
        settings = self.settings
        make_event, reply = command_for(command, args, state=search.state, space=settings.space, seed=settings.seed)
        if command == "workers" and settings.divides_machine:  # must precede the event, which may start trials
            devices_per_trial = default_devices_per_trial(self.capacity, int(args[0]))  # type: ignore[call-overload]
            search.set_resources(trial_resources(self.capacity, devices_per_trial))
        self._last_fit = None if command == "workers" else self._last_fit
        search.apply_command(make_event, lambda: answer(reply))

    def _running_search(self) -> tuple[SearchRunner, Hub]:
        search, hub = self._search, self._hub
        if search is None or hub is None or search.finished.is_set() or search.failure is not None:
            raise ClosedError(f"the search {self.name!r} is not running.")
        return search, hub

    def _create(self) -> tuple[Record, SearchState, SearchCore]:
        root, settings = self._checkpoint_root, self.settings
        meta = {**settings.new_metadata(self.name, name_of(self.objective)), "warm_start": self.summaries}
        claim(root, str(meta["id"]), self.path)
        try:
            record = Record.create(self.path, meta)
        except BaseException:
            if not is_inside(root, self.path):
                delete_owned(root)  # undo the claim
            raise
        try:
            save_program(self.path, self.objective, settings.scheduler, settings.space)
            return record, SearchState(meta), settings.new_core(self.scheduler)
        except BaseException:
            record.close()
            raise

    def _reopen(self) -> tuple[Record, SearchState, SearchCore]:
        """Reopen the record of an existing experiment, and restore its state by replaying its events."""
        record = Record.reopen(self.path)
        try:
            meta = read_meta(self.path)
            claim(self._checkpoint_root, meta["id"], self.path)
            # Replay starts with the initial `stop` and `n_workers`.
            original = SearchSettings.from_json(meta, self.settings.scheduler)
            core = original.new_core(self.scheduler)
            return record, restore(self.path, core, self.scheduler.searcher), core
        except BaseException:
            record.close()
            raise

    def _first_event(self, now_s: float) -> Event:
        if not self.is_resumed:
            return events.Begin(now_s)
        settings = self.settings
        return events.Resumed(now_s, settings.n_workers, limits_of(settings.stop), settings.versions())

    def _pack_objective(self) -> Packed:
        """Wrap the objective so that its return value is reported, and pack it for the workers."""
        pack(self.objective, caller="Tuner")  # if this fails, the error names the objective and not the wrapper
        metric = self.scheduler.objectives[0].metric
        wrapped = partial(run_objective, self.objective, metric, object_categories(self.settings.space))
        packed = pack(wrapped, caller="Tuner")
        return replace(packed, name=name_of(self.objective), modules=modules_needed(self.objective))

    def _new_pool(self) -> Pool:
        if self.cluster:
            return Pool(**self.cluster)
        # The pool gets enough CPUs for all workers. `_first_lines` warns if the machine has fewer.
        num_cpus = max(self.settings.n_workers * self._resources.cpus, self.capacity.cpus)
        return Pool(seed=self.settings.seed, cpus=num_cpus)

    def _end_event(self, search: SearchRunner) -> SearchEnded:
        finish = search.finish
        reason = f"failed: {search.failure}" if finish is None else finish.reason
        error = str(search.failure) if finish is None else finish.error
        return SearchEnded(search.state.last_s, self.name, self.path, reason, error)

    def _first_lines(self, pool: Pool) -> Iterator[str]:
        settings, capacity = self.settings, self.capacity
        kind = "asynchronous" if settings.asynchronous else "synchronous"
        workers = counted(settings.n_workers, "worker")
        suffix = ", resumed" if self.is_resumed else ""
        yield f"experiment {self.name}{suffix}: {kind} search with {workers}, master random seed {settings.seed}"
        choice = settings.searcher_choice
        if method := method_line(self.scheduler.describe()):
            yield printable_line(method if choice is None else f"{method}, {choice.line()}")
        if (cluster := pool._cluster_engine) is not None:
            hosts = counted(len(capacity.machines), "host")
            size = f"{hosts} with {counted(capacity.cpus, 'CPU')} and {counted(capacity.gpus, 'GPU')}"
            yield printable_line(f"{cluster.description}: {size}")
        num_cpus = settings.n_workers * self._resources.cpus
        if num_cpus > capacity.cpus:
            effect = "workers share CPUs and run slower" if self.pool is None else "some trials wait"
            yield f"CPUs: {workers} requested {num_cpus}, but only {capacity.cpus} were found; {effect}"
        for summary in self.summaries:
            yield f"warm start from {summary_line(summary)}"
        yield f"results are kept in {self.path}"


def check_name_is_free(path: Path) -> None:
    """Raise ExperimentExistsError if the folder exists."""
    if path.exists():
        raise ExperimentExistsError(path)


def _close(record: Record, search: SearchRunner) -> None:
    if search.failure is None:
        record.set_summary(search.state.summary())
        record.close()
    else:
        with suppress(RecordError):  # the error of the search is raised instead
            record.close()
