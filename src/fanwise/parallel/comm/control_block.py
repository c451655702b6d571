"""The control block: numbers and boxes in shared memory for the ranks and the supervisor.

    view        an even number for a set of members, and the next odd one while that changes
    decided     the last even view, to which the next two belong; 0 while they are written
    committed   the turn that all members of the view before had arrived at when it ended
    members     the ranks of the view, ascending
    ending      0, or the reason why all ranks must end
    answered    the last request of a rank that the supervisor has answered

    for each rank:  arrived   view << 32 | turn, its last exchange        agreed   the odd view that it has seen
                    idle      1 while it does not take part in exchanges, so that nobody waits for it
                    saves     number of calls of run.save           writing   1 while it writes checkpoints

Every number has one writer: the supervisor above, the rank itself below. Numbers of 8 bytes are read and written whole.
A reader that sees a number sees everything that its writer had written before: a barrier precedes each write on
machines that may reorder them.

Waits may wake spuriously and are bounded, because a peer can die between its store and the wake-up. Callers re-check in
a loop. How views are decided is in `launch/membership.py`.
"""

from . import futex
from .shared_memory import SharedMemory

MAX_RANKS = 1024
NOT_ENDING, FAILED, STOPPED = 0, 1, 2
FIRST_VIEW = 2  # of launch/membership.py

_VIEW, _COMMITTED, _COUNT, _ENDING, _ANSWERED, _DECIDED = range(6)
_MEMBERS = 8
_LINES = _MEMBERS + MAX_RANKS
_LINE = 8  # numbers of a rank: 64 bytes, a cache line of its own
_ARRIVED, _AGREED, _IDLE, _SAVES, _WRITING = range(5)
_NUMBERS = _LINES + _LINE * MAX_RANKS

_BOXES = 1 << 20
BOX_BYTES = 1 << 28
SUPERVISOR = MAX_RANKS  # its boxes come after those of the ranks

# A process can die between its store and the wake-up, so nobody sleeps longer.
_MAX_SLEEP_S = 0.02


class ControlBlock:
    """See the module. All processes map the same numbers."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        futex.register()
        mapping = memory.map(0, _BOXES)
        self._address = mapping.address
        self._numbers = mapping.view.cast("q")

    # -- the supervisor's ------------------------------------------------------------------------------------------

    @property
    def view(self) -> int:
        return self._numbers[_VIEW]

    def set_view(self, view: int) -> None:
        self._set(_VIEW, view)

    @property
    def committed(self) -> int:
        return self._numbers[_COMMITTED]

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self._numbers[_MEMBERS : _MEMBERS + self._numbers[_COUNT]])

    @property
    def decided(self) -> int:
        """The view of `members` and `committed`. Both are complete if it is the same before and after reading them."""
        return self._numbers[_DECIDED]

    def decide(self, view: int, members: tuple[int, ...], committed: int) -> None:
        """Write the next view, before it is shown. No member reads it yet."""
        self._write(_DECIDED, 0)
        for place, rank in enumerate(members):
            self._write(_MEMBERS + place, rank)
        self._write(_COUNT, len(members))
        self._write(_COMMITTED, committed)
        self._write(_DECIDED, view)

    @property
    def ending(self) -> int:
        return self._numbers[_ENDING]

    def end(self, reason: int, ranks: int) -> None:
        """Tell all ranks to end, and wake those that sleep."""
        self._write(_ENDING, reason)
        for place in (_VIEW, _ANSWERED, *(_LINES + _LINE * rank + _ARRIVED for rank in range(ranks))):
            futex.wake(self._address + 8 * place)

    @property
    def answered(self) -> int:
        return self._numbers[_ANSWERED]

    def set_answered(self, request: int) -> None:
        self._set(_ANSWERED, request)

    def wait_answered(self, last: int) -> None:
        """Sleep until the last answered request is not `last`, or for a moment."""
        self._wait(_ANSWERED, last)

    def wait_view(self, view: int) -> None:
        """Sleep until the view is not `view`, or for a moment."""
        self._wait(_VIEW, view)

    # -- the ranks' ------------------------------------------------------------------------------------------------

    def arrived(self, rank: int) -> tuple[int, int]:
        """The view and the turn at which this rank has arrived last."""
        number = self._numbers[_LINES + _LINE * rank + _ARRIVED]
        return number >> 32, number & 0xFFFFFFFF

    def arrive(self, rank: int, view: int, turn: int) -> None:
        self._set(_LINES + _LINE * rank + _ARRIVED, view << 32 | turn)

    def wait_arrived(self, rank: int, turn: int) -> None:
        """Sleep until this rank has arrived at a turn other than `turn`, or for a moment."""
        self._wait(_LINES + _LINE * rank + _ARRIVED, turn)

    def agreed(self, rank: int) -> int:
        return self._numbers[_LINES + _LINE * rank + _AGREED]

    def agree(self, rank: int, view: int) -> None:
        """Note that this rank has seen the odd view `view`."""
        self._write(_LINES + _LINE * rank + _AGREED, view)

    def is_idle(self, rank: int) -> bool:
        """Return True if it does not take part in exchanges, so that nobody waits for it."""
        return bool(self._numbers[_LINES + _LINE * rank + _IDLE])

    def set_idle(self, rank: int, is_idle: bool) -> None:
        self._write(_LINES + _LINE * rank + _IDLE, int(is_idle))

    def saves(self, rank: int) -> int:
        """The number of its calls of run.save, also of those that another rank writes."""
        return self._numbers[_LINES + _LINE * rank + _SAVES]

    def set_saves(self, rank: int, saves: int) -> None:
        self._write(_LINES + _LINE * rank + _SAVES, saves)

    def is_writing(self, rank: int) -> bool:
        """Return True if it has checkpoints that are not on the disk yet."""
        return bool(self._numbers[_LINES + _LINE * rank + _WRITING])

    def set_writing(self, rank: int, is_writing: bool) -> None:
        self._write(_LINES + _LINE * rank + _WRITING, int(is_writing))

    # -- boxes -----------------------------------------------------------------------------------------------------

    def put(self, owner: int, slot: int, data: bytes) -> None:
        """Write into one of the two boxes of a rank, before it arrives.

        Raises:
            ValueError: the data are too large.
        """
        if len(data) > BOX_BYTES:
            raise ValueError(f"a message between the processes of a run has {len(data)} bytes; at most {BOX_BYTES}")
        self._memory.write(_box(owner, slot), len(data).to_bytes(8, "little") + data)

    def get(self, owner: int, slot: int) -> bytes:
        start = _box(owner, slot)
        first = self._memory.read(start, 4096)
        size = int.from_bytes(first[:8], "little")
        return first[8 : 8 + size] if size <= 4088 else self._memory.read(start + 8, size)

    def clear(self) -> None:
        """Release the mapping of this process."""
        self._numbers.release()

    def _write(self, place: int, number: int) -> None:
        futex.barrier()
        self._numbers[place] = number

    def _set(self, place: int, number: int) -> None:
        self._write(place, number)
        futex.wake(self._address + 8 * place)

    def _wait(self, place: int, number: int) -> None:
        futex.wait(self._address + 8 * place, number, _MAX_SLEEP_S)


def _box(owner: int, slot: int) -> int:
    return _BOXES + (2 * owner + slot) * (BOX_BYTES + 4096)
