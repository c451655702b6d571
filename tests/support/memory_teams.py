"""Teams over real shared memory whose processes are threads of this one: for contracts, quick and without a fork.

    play(3, "two-shot", check)

Each thread has a `SharedMemoryTeam` of its own, and its own mappings. The supervisor is a lock around `Membership`:
what a member says is heard at once.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from all_reduce_contract import Check, Peer
from torch import nn

from fanwise.parallel.comm.all_reduce import AllReduce
from fanwise.parallel.comm.control_block import FAILED, ControlBlock
from fanwise.parallel.comm.shared_memory import AllReduceKind, SharedMemory
from fanwise.parallel.comm.shm_team import MembershipChanged, RunEnded, SharedMemoryTeam
from fanwise.parallel.launch.membership import Membership, View


class MemoryRun:
    """A run of so many processes, and its supervisor."""

    def __init__(self, size: int, all_reduce: AllReduceKind, reduce: str) -> None:
        self.memory = SharedMemory.create()
        self.memory.all_reduce = all_reduce
        self._control = ControlBlock(self.memory)
        self._views = Membership(tuple(range(size)), self._control.arrived)
        self._lock = threading.Lock()
        self._size = size
        self._control.decide(self._views.view, self._views.members, 0)
        self._control.set_view(self._views.view)
        self.teams = [
            SharedMemoryTeam(
                self.memory,
                ControlBlock(self.memory),
                rank,
                size,
                functools.partial(self.heard, rank),
                reduce=reduce,
            )
            for rank in range(size)
        ]

    def heard(self, rank: int, *message: Any) -> None:
        if message[0] == "acknowledged":
            with self._lock:
                self._obey(self._views.acknowledged(rank, message[1]))

    def lost(self, rank: int) -> None:
        """Its process is gone."""
        with self._lock:
            self._obey(self._views.lost(rank))

    def fail(self) -> None:
        """Whoever waits for another ends."""
        self._control.end(FAILED, self._size)

    def _obey(self, view: View | None) -> None:
        if view is not None:
            if view.members:
                self._control.decide(view.number, view.members, view.committed)
            self._control.set_view(view.number)


@contextmanager
def memory_peers(
    size: int, all_reduce: AllReduceKind, reduce: str, device: Callable[[int], torch.device]
) -> Iterator[tuple[MemoryRun, list[Peer]]]:
    """A run, and each of its processes as a contract sees it."""
    run = MemoryRun(size, all_reduce, reduce)

    def peer(team: SharedMemoryTeam) -> Peer:
        def make(params: Sequence[nn.Parameter]) -> AllReduce:
            return team.all_reduce(params)[0]

        leave = functools.partial(run.lost, team.rank)
        return Peer(team, make, reduce == "exact", leave, MembershipChanged, goes_on=True, device=device(team.rank))

    try:
        yield run, [peer(team) for team in run.teams]
    finally:
        run.memory.close()


def on_cpu(rank: int) -> torch.device:
    return torch.device("cpu")


def play(
    size: int,
    all_reduce: AllReduceKind,
    check: Check,
    reduce: str = "exact",
    *,
    device: Callable[[int], torch.device] = on_cpu,
) -> None:
    """Call a check in every process at once. Raises what the first of them raised.

    Args:
        device: of the gradients of each rank.
    """
    errors: list[BaseException] = []

    with memory_peers(size, all_reduce, reduce, device) as (run, peers):

        def live(peer: Peer) -> None:
            try:
                check(peer)
            except BaseException as error:
                errors.append(error)
                run.fail()

        threads = [threading.Thread(target=live, args=(peer,), daemon=True) for peer in peers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a process hangs"
    real = [error for error in errors if not isinstance(error, RunEnded)]
    if errors:
        raise (real or errors)[0]
