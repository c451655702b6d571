"""Whether a thread that is about to wait spins, looking at the socket, before it sleeps. A quiet file.

To be woken on an idle core costs 20 to 30 us, as much as all else that a short call costs there, and falling asleep and
waking costs as much processor time as a spin. So who waits for an answer, and who has just served a call, looks for
what comes itself first, for SPIN_S at most, and gives way to every other thread that could run. When nothing has
come in that time, the next waits sleep at once: 1, then 3, 7, ... up to WAITS_SKIPPED_MAX of them. So calls that take
long, or a machine that is full, pay for one spin in 255 waits, and a worker with nothing to do never spins.

SPIN_S is what a call with a small tensor takes on a full machine, where caches are cold, at either side.
"""

SPIN_S = 200e-6
WAITS_SKIPPED_MAX = 255


class Spinning:
    """The history of the spins of one who waits. Used by one thread at a time."""

    __slots__ = ("_penalty", "_to_skip")

    def __init__(self) -> None:
        self._penalty = 0
        self._to_skip = 0

    def is_due(self) -> bool:
        """A wait begins: whether to spin first. If so, tell `ended` how it went."""
        if self._to_skip:
            self._to_skip -= 1
            return False
        return True

    def ended(self, *, seen: bool) -> None:
        """Whether something came while this thread looked."""
        self._penalty = 0 if seen else min(2 * self._penalty + 1, WAITS_SKIPPED_MAX)
        self._to_skip = self._penalty
