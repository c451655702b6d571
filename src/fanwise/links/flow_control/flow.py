"""The credit of one link in both directions: `credits` decides, this module packs and unpacks its frames.

    caller   spend, overdraw, wait ... credited          callee   received, taken_up, wanted
    both     close

All methods are called with the link's lock held. They return frames, which the link sends without the lock.
"""

import struct
import threading
import weakref
from typing import Generic

from ...base.errors import WireError
from .. import frames
from ..frames import Buffer
from ..hub import Hub
from .credits import WINDOW_MIN, Granting, Spending, Turn, share

_CREDIT, _WANT = struct.Struct("<QQ"), struct.Struct("<Q")


class Budget:
    """The window of the links of one hub, and so of a process, that share a budget."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_links = 0
        self.window = share(1)

    def join(self, by: int) -> None:
        """Change the number of links by this number."""
        with self._lock:
            self._num_links += by
            self.window = share(self._num_links)


class Flow(Generic[Turn]):
    """See the module. A turn is the reply that a caller waits for; opaque here."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._budget: Budget | None = None  # joined when the peer needs more than WINDOW_MIN
        self._granting = Granting()
        self._spending: Spending[Turn] = Spending()
        self.spend, self.overdraw = self._spending.spend, self._spending.overdraw
        self.give_up, self.refund = self._spending.give_up, self._spending.refund
        self.withdraw = self._spending.withdraw
        self.received, self.taken_up = self._granting.received, self._granting.taken_up

    # -- numbers ---------------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Number of calls that wait here for credit."""
        return self._spending.num_waiting

    @property
    def num_received(self) -> int:
        """Number of received calls."""
        return self._granting.num_calls

    @property
    def bytes_not_begun(self) -> int:
        """Cost of the received calls that were not started: their bytes, and memory for each."""
        return self._granting.total_cost - self._granting.started

    # -- the caller's side -----------------------------------------------------------------------------------------

    def wait(self, turn: Turn, cost: int) -> tuple[list[Turn], list[Buffer]]:
        """Queue a call. Return the calls that may be sent now, perhaps this one, and a frame to send."""
        turns = self._spending.wait(turn, cost)
        return turns, self.want() if self._spending.num_waiting == 1 else []

    def want(self) -> list[Buffer]:
        """Return a frame to send if calls still wait after others were sent."""
        position = self._spending.wanted()
        return [] if position is None else frames.encode(frames.WANT, 0, _WANT.pack(position))

    def credited(self, head: Buffer) -> list[Turn]:
        """Process CREDIT. Return the calls that may be sent now. Raises `WireError` if it cannot be true."""
        try:
            return self._spending.credit(*_CREDIT.unpack(head))
        except (struct.error, ValueError) as error:
            raise WireError(f"the peer gave credit that it cannot give: {error}.") from error

    # -- the callee's side -----------------------------------------------------------------------------------------

    @property
    def _window(self) -> int:
        return WINDOW_MIN if self._budget is None else self._budget.window

    def tell(self) -> list[Buffer]:
        """Return the frame to send when `taken_up` returned True."""
        return frames.encode(frames.CREDIT, 0, _CREDIT.pack(*self._granting.tell(self._window)))

    def wanted(self, head: Buffer) -> list[Buffer]:
        """Process WANT. Return a frame to send. Raises `WireError`."""
        if len(head) != _WANT.size:
            raise WireError(f"a frame about credit has {len(head)} bytes, expected {_WANT.size}.")
        if self._budget is None:
            self._budget = _budgets.get(self._hub) or _budgets.setdefault(self._hub, Budget())
            self._budget.join(1)
        (position,) = _WANT.unpack(head)
        return self.tell() if self._granting.wanted(position, self._window) else []

    def close(self) -> list[Turn]:
        """The link has ended. Return all waiting calls."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget.join(-1)
        return self._spending.lose()


_budgets: "weakref.WeakKeyDictionary[Hub, Budget]" = weakref.WeakKeyDictionary()
