"""The control block: numbers and mailboxes in shared memory, for the ranks of one machine and their supervisor.

Each collective operation has a sequence number. A *view* is a period with the same members: an even number. While the
members change, the view is the odd number in between. See shm_team.py for the protocol.

    view        current view
    decided     last even view, to which `members` and `committed` belong; 0 while these are written
    committed   last operation that all members of the previous view had reached when that view ended
    members     ranks that take part, ascending
    ending      FAILED or STOPPED if all ranks must end, else 0
    answered    number of the last request that the supervisor has answered

    per rank:   arrived        view << 32 | sequence number of its last operation
                acknowledged   last odd view that it has seen
                idle           1 after its training function has returned

Every number has one writer: the supervisor for the upper ones, the rank for its own. Numbers have 8 bytes and are read
and written as a whole. A process that reads a number also sees everything that the writer wrote before. This takes a
memory barrier before each write on machines that may reorder writes.

Waits may wake spuriously and are bounded, because a process can die between its write and the wake-up. Callers must
check their condition in a loop.
"""

from . import futex
from .shared_memory import SharedMemory

MAX_RANKS = 1024
FAILED, STOPPED = 1, 2  # values of `ending`
FIRST_VIEW = 2

_VIEW, _COMMITTED, _COUNT, _ENDING, _ANSWERED, _DECIDED = range(6)
_MEMBERS = 8
_RANKS = _MEMBERS + MAX_RANKS
_NUMBERS_PER_RANK = 8  # 64 bytes: a cache line
_ARRIVED, _ACKNOWLEDGED, _IDLE = range(3)

_MAILBOXES = 1 << 20  # offset in the shared memory
MAILBOX_BYTES = 1 << 28
SUPERVISOR = MAX_RANKS  # owner of the mailboxes after those of the ranks

_MAX_SLEEP_S = 0.02


class ControlBlock:
    """See the module. Each process maps the same memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        futex.register()
        mapping = memory.map(0, _MAILBOXES)
        self._address = mapping.address
        self._numbers = mapping.view.cast("q")

    # -- written by the supervisor ---------------------------------------------------------------------------------

    @property
    def view(self) -> int:
        return self._numbers[_VIEW]

    def set_view(self, view: int) -> None:
        self._set(_VIEW, view)

    def wait_view(self, view: int) -> None:
        """Sleep while the view is `view`, for 20 ms at most."""
        self._wait(_VIEW, view)

    @property
    def committed(self) -> int:
        return self._numbers[_COMMITTED]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self._numbers[_MEMBERS : _MEMBERS + self._numbers[_COUNT]])

    @property
    def decided(self) -> int:
        """Read this before and after `members` and `committed`: they belong to the view if it is the same number."""
        return self._numbers[_DECIDED]

    def decide(self, view: int, members: tuple[int, ...], committed: int) -> None:
        """Write the members of the next view. `set_view` begins that view."""
        self._write(_DECIDED, 0)
        for index, rank in enumerate(members):
            self._write(_MEMBERS + index, rank)
        self._write(_COUNT, len(members))
        self._write(_COMMITTED, committed)
        self._write(_DECIDED, view)

    @property
    def ending(self) -> int:
        return self._numbers[_ENDING]

    def end(self, reason: int, ranks: int) -> None:
        """Tell ranks 0 to `ranks - 1` to end, and wake those that sleep. `reason`: FAILED or STOPPED."""
        self._write(_ENDING, reason)
        for index in (_VIEW, _ANSWERED, *(_index(rank, _ARRIVED) for rank in range(ranks))):
            futex.wake(self._address + 8 * index)

    @property
    def answered(self) -> int:
        return self._numbers[_ANSWERED]

    def set_answered(self, request: int) -> None:
        self._set(_ANSWERED, request)

    def wait_answered(self, request: int) -> None:
        """Sleep while `request` is the last answered request, for 20 ms at most."""
        self._wait(_ANSWERED, request)

    # -- written by the ranks --------------------------------------------------------------------------------------

    def arrived(self, rank: int) -> tuple[int, int]:
        """Return the view and the sequence number of the last operation that the rank has reached."""
        number = self._numbers[_index(rank, _ARRIVED)]
        return number >> 32, number & 0xFFFFFFFF

    def arrive(self, rank: int, view: int, seq: int) -> None:
        self._set(_index(rank, _ARRIVED), view << 32 | seq)

    def wait_arrived(self, rank: int, seq: int) -> None:
        """Sleep while `seq` is the last operation of the rank, for 20 ms at most."""
        self._wait(_index(rank, _ARRIVED), seq)

    def acknowledged(self, rank: int) -> int:
        return self._numbers[_index(rank, _ACKNOWLEDGED)]

    def acknowledge(self, rank: int, view: int) -> None:
        self._write(_index(rank, _ACKNOWLEDGED), view)

    def is_idle(self, rank: int) -> bool:
        return bool(self._numbers[_index(rank, _IDLE)])

    def set_idle(self, rank: int, is_idle: bool) -> None:
        self._write(_index(rank, _IDLE), int(is_idle))

    # -- mailboxes -------------------------------------------------------------------------------------------------

    def put(self, owner: int, slot: int, data: bytes) -> None:
        """Write into a mailbox. `owner`: a rank, or SUPERVISOR. `slot`: 0 or 1. Raise ValueError above 256 MiB."""
        if len(data) > MAILBOX_BYTES:
            raise ValueError(f"a message between the processes of a run has {len(data)} bytes; at most {MAILBOX_BYTES}")
        self._memory.write(_offset(owner, slot), len(data).to_bytes(8, "little") + data)

    def get(self, owner: int, slot: int) -> bytes:
        start = _offset(owner, slot)
        first = self._memory.read(start, 4096)
        size = int.from_bytes(first[:8], "little")
        return first[8 : 8 + size] if size <= 4088 else self._memory.read(start + 8, size)

    def clear(self) -> None:
        """Unmap the numbers in this process."""
        self._numbers.release()

    def _write(self, index: int, number: int) -> None:
        futex.barrier()
        self._numbers[index] = number

    def _set(self, index: int, number: int) -> None:
        self._write(index, number)
        futex.wake(self._address + 8 * index)

    def _wait(self, index: int, number: int) -> None:
        futex.wait(self._address + 8 * index, number, _MAX_SLEEP_S)


def _index(rank: int, field: int) -> int:
    return _RANKS + _NUMBERS_PER_RANK * rank + field


def _offset(owner: int, slot: int) -> int:
    return _MAILBOXES + (2 * owner + slot) * (MAILBOX_BYTES + 4096)
