"""What a member of a run is told of the others and tells them: `Control` and `MessageSink`, seen from the member.

    view        who takes part: even; odd while the supervisor changes it, and then all that live agree and stand still
    turn        how far each member has come in its view; each gather and each barrier is one
    committed   the last turn that all members of a view had come to when it ended: all of it counts, nothing after it
    boxes       what a member says at a turn, read by all when they have come to it

How views are decided is `supervisor/membership.py`. The control block in shared memory is a `Control` for one machine
(`shared_memory/control_block.py`). A wait may return early, and the caller looks again; it does not last, as a process
can die between its change and the wake-up.
"""

from typing import Any, Protocol


class MessageSink(Protocol):
    """To the supervisor: messages in order, each whole or not at all."""

    def say(self, *message: Any) -> None:  # Any: what can be pickled
        ...


class Control(Protocol):
    """See the module."""

    # -- what the supervisor has decided ---------------------------------------------------------------------------

    @property
    def view(self) -> int: ...

    @property
    def decided(self) -> int:
        """The view that `members` and `committed` are of; 0 while they are written."""
        ...

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part, by place."""
        ...

    @property
    def committed(self) -> int: ...

    @property
    def ending(self) -> int:
        """Whether, and why, everybody is to end."""
        ...

    @property
    def answered(self) -> int:
        """The last request to the supervisor whose answer is in its box."""
        ...

    def wait_view(self, seen: int) -> None:
        """Until the view is another than `seen`."""
        ...

    def wait_answered(self, seen: int) -> None:
        """Until another request is answered than `seen`."""
        ...

    # -- what members say of themselves ----------------------------------------------------------------------------

    def arrive(self, rank: int, view: int, turn: int) -> None: ...

    def arrived(self, rank: int) -> tuple[int, int]:
        """The view and the turn that it has come to."""
        ...

    def wait_arrived(self, rank: int, seen: int) -> None:
        """Until it has come to another turn than `seen`."""
        ...

    def agree(self, rank: int, view: int) -> None: ...

    def agreed(self, rank: int) -> int:
        """The odd view that it has seen last."""
        ...

    def put(self, owner: int, slot: int, data: bytes) -> None:
        """Into one of the two boxes of a rank, before it arrives."""
        ...

    def get(self, owner: int, slot: int) -> bytes: ...

    def set_idle(self, rank: int, is_idle: bool) -> None:
        """It waits for something other than a turn or a view."""
        ...

    def saves(self, rank: int) -> int: ...

    def set_saves(self, rank: int, saves: int) -> None:
        """How many checkpoints it has come to."""
        ...

    def set_writing(self, rank: int, is_writing: bool) -> None:
        """Whether it has checkpoints that are not on the disk yet."""
        ...
