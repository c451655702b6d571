"""How a member leaves its group: what it waits for, and for how long. Blocks in the caller's thread.

    settle   a static group: all who are alive want to leave, and nothing is open anywhere (`coordinator.Barrier`)
             a dynamic one: nothing is open here
    leave    say goodbye, and wait until the others know, or have gone too

What is said is the group's (`Host`); its answers come through the mailboxes.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from ...base.errors import DeadlineExceeded
from ...links.hub import Hub
from ..hub_thread import OneShot, run_on_hub

_PAUSE_S = 0.002
GOODBYE_S = 5.0
_AGAIN_S = 0.1
_ASK_S = 1.0


class Host(Protocol):
    """What the group does, on the hub's thread; but `who_is_missing` and `has_guests` on any other."""

    world_size: int | None

    def arrive(self) -> None: ...
    def say_goodbye(self) -> None: ...
    def who_is_missing(self) -> str: ...
    @property
    def has_guests(self) -> bool: ...


class Leaving:
    """See the module.

    Args:
        ending: is filled when the shutdown of all is over, or this member was declared lost.
        dismissed: is filled when the others know that this member has left.
        closed: is set when the group is closed.
    """

    def __init__(self, hub: Hub, host: Host, ending: OneShot, dismissed: OneShot, closed: threading.Event) -> None:
        self._hub = hub
        self._host = host
        self._ending = ending
        self._dismissed = dismissed
        self._closed = closed

    def settle(self, within_s: float | None, until_s: float | None, open_calls: Callable[[], tuple[int, int]]) -> None:
        """Raises `DeadlineExceeded`, which says who is missing, at `until_s`; then this member has left."""
        if self._host.world_size is None:
            while open_calls()[0] and not self._ending.is_set:
                self._check_time(within_s, until_s)
                self._closed.wait(_PAUSE_S)
            return
        run_on_hub(self._hub, self._host.arrive)
        while not self._ending.is_set:
            self._check_time(within_s, until_s)
            left_s = _ASK_S if until_s is None else min(_ASK_S, until_s - self._hub.clock.now_s())
            self._ending.wait(left_s)

    def _check_time(self, within_s: float | None, until_s: float | None) -> None:
        if until_s is not None and self._hub.clock.now_s() >= until_s:
            who = self._host.who_is_missing()
            self.leave(graceful=False)
            raise DeadlineExceeded(f"the group was not shut down within {within_s} s: {who}.")

    def leave(self, *, graceful: bool) -> None:
        """Not longer than 5 s."""
        until_s = self._hub.clock.now_s() + GOODBYE_S
        if graceful and self._host.world_size is not None:
            # Everybody goes. The last word of the coordinator must not be lost with its process.
            while self._host.has_guests and self._hub.clock.now_s() < until_s:
                self._closed.wait(_PAUSE_S)
            return
        while not self._dismissed.is_set and (left_s := until_s - self._hub.clock.now_s()) > 0:
            # Again, for the coordinator may leave too, and not have heard us. Then its successor must: where a group
            # cannot look for itself whether a member is still there, it would miss us for long.
            run_on_hub(self._hub, self._host.say_goodbye)
            self._dismissed.wait(min(_AGAIN_S, left_s))
