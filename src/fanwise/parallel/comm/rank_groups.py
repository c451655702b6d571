"""A process group of torch.distributed between the ranks of a run, for reduce="fast" on GPUs, where NCCL adds.

    view 2: ranks 0 1 2 --group--> all_reduce, barrier ...      1 dies: 0 2 abort, agree
    view 4: ranks 0 2   --group--> all_reduce, barrier ...      made anew when it is first used

torch.distributed's own state is not touched: a program may use it beside it. The group is of one view. A communicator
does not outlive any of its members, and does not say so in time, so nobody waits in it: who waits looks at the result
and at the view by turns, and when that changes aborts the group and begins again, as in any other exchange. A sum
counts when all have come to the barrier after it.

Ranks find each other by a file without a name of the first of them; nothing is left of it. The same works on CPUs over
Gloo, on the loopback interface, which is for tests: shared memory is quicker. Over NCCL, which needs a GPU for each
rank, it has not run yet.
"""

import datetime
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, distributed

from ...base.errors import WorkerLostError

_LOOK_S = 0.0001
# Between the end of a process and the view that says so there is less; a group that fails for so long is not ours.
_TOLD_S = 30.0
# How long those that have come to a group wait for the others, who are no further than one exchange before it.
_MEET_S = 60.0

# torch ends the process when a communicator fails, unless these say otherwise; here the view says what to do.
_NO_HANDLING = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}

_torch: Any = (
    distributed  # Any: torch has not annotated its groups, and has those of NCCL only where it is built with it
)


class GroupTeam(Protocol):
    """What it needs of a team."""

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def place(self) -> int: ...

    @property
    def view(self) -> int:
        """That this process is in."""
        ...

    def gather(self, what: str, content: Any) -> list[Any]: ...  # Any: as Team

    def barrier(self) -> None: ...

    def look(self) -> None:
        """Raise what ends an exchange that cannot be finished: a member is gone, or the run is over."""
        ...


class RankGroups:
    """See the module. `device`: of what is added."""

    def __init__(self, team: GroupTeam, device: torch.device) -> None:
        self._team = team
        self._device = device
        self._view = 0
        self._held: list[Any] = []  # Any: a group of torch.distributed, and the file of its store
        weakref.finalize(self, _let_go, self._held)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """The sums over all members, in place. Blocks until all have them. Only inside `together`.

        Raises:
            WorkerLostError: the group fails although all members live.
            What the team raises to begin again. The tensors are not to be used any more then.
        """
        try:
            if self._view != self._team.view:
                self._enter()
            works = [self._held[0].allreduce([tensor]) for tensor in tensors]
            while not all(work.is_completed() for work in works):
                self._team.look()
                time.sleep(_LOOK_S)
            for work in works:
                work.wait()
        except RuntimeError as error:  # of the back end, which has no type of its own
            self._leave()
            self._end(error)
        except BaseException:
            self._leave()
            raise
        self._team.barrier()

    def _end(self, error: RuntimeError) -> None:
        """The group has failed: as a rule because a member is gone, which the team says soon."""
        until_s = time.monotonic() + _TOLD_S
        while time.monotonic() < until_s:
            self._team.look()
            time.sleep(_LOOK_S)
        raise WorkerLostError(
            f"the {_kind(self._device)} group between the {len(self._team.members)} processes of the run fails, and "
            f"all of them live: {error}\n"
            f"With reduce='exact' gradients go through the memory of the machine instead."
        ) from error

    def _enter(self) -> None:
        """Make the group of this view, all together. The first has a file in which they find each other."""
        self._leave()
        team, fd = self._team, -1
        if team.place == 0:
            fd = os.memfd_create("group", os.MFD_CLOEXEC)
        try:
            path = team.gather("makes a group", f"/proc/{os.getpid()}/fd/{fd}")[0]
            place, size = team.place, len(team.members)
            self._held.extend(self._beside(lambda: self._made(path, place, size)))
            team.barrier()  # they have found each other
        finally:
            if fd >= 0:
                os.close(fd)
        self._view = team.view

    def _made(self, path: str, place: int, size: int) -> tuple[Any, int]:  # Any: a group of torch.distributed
        # Opened here, as the store opens its file again whenever it looks, and once more at its end.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        store, within = _torch.FileStore(f"/proc/self/fd/{fd}", -1), datetime.timedelta(seconds=_MEET_S)
        store.set_timeout(within)
        if self._device.type == "cpu":
            options = _torch.ProcessGroupGloo._Options()
            options._timeout = within
            options._devices = [_torch.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            return _torch.ProcessGroupGloo(store, place, size, options), fd
        with _environment(_NO_HANDLING), torch.cuda.device(self._device):
            group = _torch.ProcessGroupNCCL(store, place, size, _torch.ProcessGroupNCCL.Options())
            # The communicator is made by the first exchange.
            group.allreduce([torch.zeros(1, device=self._device)]).wait()
            return group, fd

    def _beside(self, make: Callable[[], tuple[Any, int]]) -> tuple[Any, int]:  # Any: as `_made`
        """In a thread, as it cannot be told to stop waiting for who does not come; it is left alone then."""
        made: list[tuple[Any, int]] = []  # Any: as above
        failed: list[BaseException] = []

        def work() -> None:
            try:
                made.append(make())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            self._team.look()
            thread.join(_LOOK_S)
        if failed:
            raise failed[0]
        return made[0]

    def _leave(self) -> None:
        """Nothing is waited for any more, neither here nor by those that wait for this process."""
        held, self._view = self._held[:], 0
        self._held.clear()
        if held:
            held[0].abort()
            # The last reference waits for what is under way, which ends when the others have left, too.
            threading.Thread(target=_let_go, args=(held,), daemon=True).start()


def _let_go(held: list[Any]) -> None:  # Any: a group and its file, which its store needs to the last
    if held:
        fd = held.pop()
        held.clear()
        os.close(fd)


def _kind(device: torch.device) -> str:
    return "Gloo" if device.type == "cpu" else "NCCL"


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
