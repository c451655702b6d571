"""`all_gather` and `barrier` among any set of workers, by plain calls.

    each worker  --its value-->  the leader, the first by name, which waits for all values
    each worker  <--all values--  the leader

Names and order of the calls follow torch, because programs monkey-patch these functions. If a participant is lost, all
waiters fail. Rounds of the same workers are numbered by each worker, so all must call in the same order.
"""

import threading
from collections.abc import Collection
from typing import Any

from ..base.errors import DeadlineExceeded, WorkerLostError
from . import agent as _agent
from .calls import get_rpc_timeout, rpc_async, rpc_sync
from .constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from .worker_info import WorkerInfo

_Values = dict[str, Any]


class AllGatherStates:
    """The state of one round on one worker: the values by worker name, and an event for their completion."""

    def __init__(self) -> None:
        self.gathered_objects: _Values = {}
        self.proceed_signal = threading.Event()
        self.lost: str | None = None


class Gatherer:
    """The rounds of one worker.

    Args:
        collect, broadcast: functions (round, name, value, names) and (round, values) that are called on other workers.
            They are found by name, and call `add_value` and `finish` of the gatherer there.
    """

    def __init__(self, collect: Any, broadcast: Any) -> None:
        self._collect = collect
        self._broadcast_to = broadcast
        self._lock = threading.Lock()
        self._rounds: dict[str, AllGatherStates] = {}
        self._counts: dict[str, int] = {}

    def all_gather(self, value: object, names: Collection[str] | None, timeout: float = UNSET_RPC_TIMEOUT) -> _Values:
        """Block until all participants have called this, and return their values by name."""
        agent = _agent.current()
        participants = set(names or (worker.name for worker in agent.workers()))
        leader, own_name = min(participants), agent.info.name
        limit_s = get_rpc_timeout() if timeout == UNSET_RPC_TIMEOUT else timeout
        wait_s = None if timeout in (UNSET_RPC_TIMEOUT, DEFAULT_SHUTDOWN_TIMEOUT) else timeout
        key = ",".join(sorted(participants))  # names have no commas
        with self._lock:
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
            number = f"{key} {count}"
            state = self._rounds.setdefault(number, AllGatherStates())  # values of others may have arrived before

        def on_lost(worker: WorkerInfo, _incarnation: int) -> None:
            if worker.name in participants and not state.proceed_signal.is_set():
                state.lost = worker.name
                state.proceed_signal.set()

        agent.on_lost.append(on_lost)
        try:
            if own_name == leader:
                self.add_value(number, own_name, value, participants)
            else:
                rpc_sync(leader, self._collect, args=(number, own_name, value, participants), timeout=limit_s)
            with agent.waiting():
                is_complete = state.proceed_signal.wait(wait_s)
            if not is_complete:
                raise DeadlineExceeded(
                    f"timed out in _all_gather after {wait_s:.2f} seconds: only received values of "
                    f"{sorted(state.gathered_objects)}."
                )
            if state.lost is not None:
                raise WorkerLostError(f"worker {state.lost} was lost during an all_gather of {sorted(participants)}.")
            if own_name == leader:
                self._broadcast(number, state.gathered_objects, participants - {leader}, limit_s)
        finally:
            agent.on_lost.remove(on_lost)
            with self._lock:
                del self._rounds[number]
        return state.gathered_objects

    def add_value(self, number: str, name: str, value: object, names: Collection[str] | None = None) -> None:
        """Add the value of a participant, on the leader."""
        participants = set(names or (worker.name for worker in _agent.current().workers()))
        state = self._find_round(number)
        with self._lock:
            if name not in participants or name in state.gathered_objects:
                raise AssertionError(f"unexpected or repeated value of {name} in round {number}.")
            state.gathered_objects[name] = value
            if participants == set(state.gathered_objects):
                state.proceed_signal.set()

    def finish(self, number: str, values: _Values) -> None:
        """Set the values of all participants, on a follower."""
        state = self._find_round(number)
        if state.proceed_signal.is_set():
            raise AssertionError(f"round {number} has ended already.")
        state.gathered_objects = values
        state.proceed_signal.set()

    def _find_round(self, number: str) -> AllGatherStates:
        """Return the round of a received message. Raises DeadlineExceeded if this worker no longer waits for it."""
        key, _, count = number.rpartition(" ")
        with self._lock:
            if number not in self._rounds and int(count) < self._counts.get(key, 0):
                raise DeadlineExceeded(f"round {count} of an all_gather of {key} has timed out here.")
            return self._rounds.setdefault(number, AllGatherStates())

    def _broadcast(self, number: str, values: _Values, followers: Collection[str], limit_s: float) -> None:
        calls = {
            to: rpc_async(to, self._broadcast_to, args=(number, values), timeout=limit_s) for to in sorted(followers)
        }
        failures: dict[str, RuntimeError] = {}
        for to, future in calls.items():
            try:
                future.wait()
            except RuntimeError as error:
                failures[to] = error
        if failures:
            first = next(iter(failures.values()))
            raise RuntimeError(
                f"Followers {list(failures)} timed out in _all_gather after {limit_s:.2f} seconds. "
                f"The first exception is {first}"
            ) from first
