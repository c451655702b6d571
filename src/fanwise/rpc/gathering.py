"""Everybody gives a value and gets those of all: `all_gather` and `barrier` among any set of workers, by plain calls.

    each   --its value-->        the first by name, which waits until it has all
    each   <--the values of all--  the first by name

The names and the order of what is called are torch's, where programs put functions of their own in the place of some.
A worker that is lost meanwhile ends the wait of all who would wait for it. Rounds of the same set of workers are told
apart by a number, which each worker counts for itself: all must call in the same order.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ..base.errors import DeadlineExceeded, WorkerLostError
from . import agent as _agent
from .calls import get_rpc_timeout, rpc_async, rpc_sync
from .constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from .worker_info import WorkerInfo

_Values = dict[str, Any]


class AllGatherStates:
    """One round, as one worker sees it: the values by worker's name, and whether all are there."""

    def __init__(self) -> None:
        self.gathered_objects: _Values = {}
        self.proceed_signal = threading.Event()
        self.lost: str | None = None


class Gatherer:
    """The rounds of one worker.

    Args:
        collect, spread: functions that are called on other workers: (round, name, value, names), (round, values). They
            must be found by their name, and call `collected` and `spread_out` of the worker's own gatherer.
    """

    def __init__(self, collect: Any, spread: Any) -> None:
        self._collect = collect
        self._spread = spread
        self._lock = threading.Lock()
        self._rounds: dict[str, AllGatherStates] = {}
        self._counts: dict[str, int] = {}

    def all_gather(self, value: object, names: Collection[str] | None, timeout: float = UNSET_RPC_TIMEOUT) -> _Values:
        """The values of all, by name; blocks until all have called it. `timeout` in seconds; -1 the default's."""
        agent = _agent.current()
        everybody = set(names or (worker.name for worker in agent.workers()))
        leader, me = min(everybody), agent.info.name
        limit_s = get_rpc_timeout() if timeout == UNSET_RPC_TIMEOUT else timeout
        wait_s = None if timeout in (UNSET_RPC_TIMEOUT, DEFAULT_SHUTDOWN_TIMEOUT) else timeout
        number, state = self._begin(everybody)
        try:
            with self._watched(agent, state, everybody):
                if me == leader:
                    self.collected(number, me, value, everybody)
                else:
                    rpc_sync(leader, self._collect, args=(number, me, value, everybody), timeout=limit_s)
                self._wait(agent, state, everybody, wait_s)
                if me == leader:
                    self._tell_all(number, state, everybody - {leader}, limit_s)
        finally:
            with self._lock:
                del self._rounds[number]
        return state.gathered_objects

    def collected(self, number: str, name: str, value: object, names: Collection[str] | None = None) -> None:
        """On the first by name: the value of one of them is here."""
        everybody = set(names or (worker.name for worker in _agent.current().workers()))
        state = self._round(number)
        with self._lock:
            if name not in everybody or name in state.gathered_objects:
                raise AssertionError(f"{name} is not expected, or not expected twice, in round {number}.")
            state.gathered_objects[name] = value
            if everybody == set(state.gathered_objects):
                state.proceed_signal.set()

    def spread_out(self, number: str, values: _Values) -> None:
        """On the others: the values of all are here."""
        state = self._round(number)
        if state.proceed_signal.is_set():
            raise AssertionError(f"round {number} has ended already.")
        state.gathered_objects = values
        state.proceed_signal.set()

    def _begin(self, names: Collection[str]) -> tuple[str, AllGatherStates]:
        """The next round of these workers. A value of another worker may have come already."""
        key = ",".join(sorted(names))  # names have no commas
        with self._lock:
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
            number = f"{key} {count}"
            return number, self._rounds.setdefault(number, AllGatherStates())

    def _round(self, number: str) -> AllGatherStates:
        """The round of a message that came. DeadlineExceeded: this worker does not wait for it any more."""
        key, _, count = number.rpartition(" ")
        with self._lock:
            state = self._rounds.get(number)
            if state is None:
                if int(count) < self._counts.get(key, 0):
                    raise DeadlineExceeded(f"round {count} of an all_gather of {key} was given up here.")
                state = self._rounds[number] = AllGatherStates()
            return state

    def _wait(self, agent: _agent.Agent, state: AllGatherStates, names: Collection[str], wait_s: float | None) -> None:
        with agent.waiting():
            came = state.proceed_signal.wait(wait_s)
        if not came:
            raise DeadlineExceeded(
                f"timed out in _all_gather after {wait_s:.2f} seconds: only {sorted(state.gathered_objects)} have come."
            )
        if state.lost is not None:
            raise WorkerLostError(f"worker {state.lost} was lost during an all_gather of {sorted(names)}.")

    def _tell_all(self, number: str, state: AllGatherStates, others: Collection[str], limit_s: float) -> None:
        values = state.gathered_objects
        told = {to: rpc_async(to, self._spread, args=(number, values), timeout=limit_s) for to in sorted(others)}
        failed: dict[str, RuntimeError] = {}
        for to, future in told.items():
            try:
                future.wait()
            except RuntimeError as error:
                failed[to] = error
        if failed:
            first = next(iter(failed.values()))
            raise RuntimeError(
                f"Followers {list(failed)} timed out in _all_gather after {limit_s:.2f} seconds. "
                f"The first exception is {first}"
            ) from first

    @contextmanager
    def _watched(self, agent: _agent.Agent, state: AllGatherStates, names: Collection[str]) -> Iterator[None]:
        """Meanwhile the loss of one of them ends the wait."""

        def lost(worker: WorkerInfo, _incarnation: int) -> None:
            if worker.name in names and not state.proceed_signal.is_set():
                state.lost = worker.name
                state.proceed_signal.set()

        agent.on_lost.append(lost)
        try:
            yield
        finally:
            agent.on_lost.remove(lost)
