"""Whom to ask for the coordinator when the entrance is gone with its host: the members that are left.

    the coordinator itself, where its link was reset: it may live
    the lowest rank first ... up to this worker's own: then it is its turn ... the higher ones, while it is not

Whoever could not be reached is left alone for a while, together with its whole host: each try takes seconds. Whoever
was reached, and is not the coordinator, may be it the next moment. Blocks while it dials; says nothing.
"""

from collections.abc import Callable

from ...base.errors import DeadlineExceeded, FanwiseError
from ...links.hub import Hub
from ...links.link import Link
from .members import Member, MemberState

PROBE_S = 2.0
_AGAIN_S = 0.2
_OUT_OF_REACH_S = 5.0
# What takes longer than this was no refusal, but silence.
_SLOW_S = 0.5

ENTRANCE = "the entrance"


class PeerProber:
    """What one search has found so far. `dial(member, seconds)` makes a link to the member's own listener.

    Attributes:
        is_busy: the coordinator that was asked last took the connection, and said nothing: it lives, and is at work.
    """

    def __init__(self, hub: Hub, state: MemberState, dial: Callable[[Member, float], Link]) -> None:
        self._now_s = hub.clock.now_s
        self._state = state
        self._dial = dial
        self._not_before_s: dict[str | int, float] = {}
        self._answered_s: dict[int, float] = {}
        self.is_busy = False

    def is_worth_a_try(self, place: str | int) -> bool:
        """Whether a host, an incarnation or the entrance was not found out of reach, or asked, a moment ago."""
        return self._now_s() >= self._not_before_s.get(place, 0.0)

    def tried(self, place: str | int, began_s: float) -> None:
        """It was asked in vain, beginning at `began_s`. What took long is not tried again soon."""
        now_s = self._now_s()
        self._not_before_s[place] = now_s + (_OUT_OF_REACH_S if now_s - began_s > _SLOW_S else 0.0)

    def back(self, gone: int) -> Link | None:
        """A link to the coordinator that is thought to be gone, as our link to it was reset; None when it is not there,
        or was asked a moment ago."""
        member = self._state.view.member(gone) if self._state.view is not None else None
        if member is None or not self.is_worth_a_try(gone):
            return None
        self.is_busy = False
        try:
            return self._dial(member, PROBE_S)
        except DeadlineExceeded:
            self.is_busy = True
        except FanwiseError:
            pass
        finally:
            self._not_before_s[gone] = self._now_s() + _AGAIN_S
        return None

    def next(self, gone: int, *, my_turn: bool) -> Link | None:
        """A link to the next one to be asked; None when there is nobody to be asked now.

        Args:
            gone: the incarnation of the coordinator that is no more.
            my_turn: the higher ranks are not asked.
        """
        me = self._state.me
        for member in self._state.successors(gone):
            if member.id == me.id or (my_turn and member.id > me.id):
                continue
            if self.is_worth_a_try(member.host) and self.is_worth_a_try(member.incarnation):
                link = self._connect(member)
                if link is not None:
                    return link
        return None

    def any_below(self, gone: int) -> bool:
        """Whether a lower rank was reached lately: that one goes first."""
        since_s = self._now_s() - _OUT_OF_REACH_S
        below = [member for member in self._state.successors(gone) if member.id < self._state.me.id]
        return any(self._answered_s.get(member.incarnation, float("-inf")) >= since_s for member in below)

    def _connect(self, member: Member) -> Link | None:
        began_s = self._now_s()
        try:
            link = self._dial(member, PROBE_S)
        except FanwiseError:
            self.tried(member.host, began_s)
            self._not_before_s[member.incarnation] = self._now_s() + _OUT_OF_REACH_S
            self._answered_s.pop(member.incarnation, None)
            return None
        self._answered_s[member.incarnation] = self._now_s()
        self._not_before_s[member.incarnation] = self._now_s() + _AGAIN_S
        return link
