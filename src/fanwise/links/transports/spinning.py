"""Decides whether a thread that waits for bytes polls actively ("spins") before it sleeps. Pure.

Waking up on an idle core costs 20 to 30 us, as much as the rest of a short call, and sleeping and waking cost as much
processor time as a spin. So a thread that waits for a reply, or has just served a call, first polls for SPIN_S at most
and yields to every other runnable thread. After a spin without success the next waits sleep at once: 1, then 3, 7, ...
up to WAITS_SKIPPED_MAX of them. So long calls, and full machines, pay for one spin in 255 waits, and idle workers never
spin.

SPIN_S is the duration of a call with a small tensor on a full machine with cold caches, on either side.
"""

SPIN_S = 200e-6
WAITS_SKIPPED_MAX = 255


class Spinning:
    """The history of the spins of one waiter. Used by one thread at a time."""

    __slots__ = ("_penalty", "_to_skip")

    def __init__(self) -> None:
        self._penalty = 0
        self._to_skip = 0

    def is_due(self) -> bool:
        """Return True if the wait that begins now should spin first. Call `ended` afterwards if so."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        return True

    def ended(self, *, seen: bool) -> None:
        """`seen`: whether bytes arrived during the spin."""
        self._penalty = 0 if seen else min(2 * self._penalty + 1, WAITS_SKIPPED_MAX)
        self._to_skip = self._penalty
