"""What one link has carried, as numbers: calls, bytes, times. A quiet file.

How long calls took is kept as a histogram. The first calls of a link are timed one by one, later ones from time to
time, and each of these counts for as many as were not: so the number of times is about that of the calls, and to time
them costs a call next to nothing.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

# The upper ends of the buckets, in seconds; one more bucket has what took longer.
LATENCY_BOUNDS_S = (
    *(25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
# Messages are counted from 1. A prime: programs that send messages of two kinds in turns have both timed.
TIMED_SINGLY = 64
TIMED_EVERY = 13


def weight_of(number: int) -> int:
    """For how many calls the one of this number stands, when it is timed."""
    return 1 if number <= TIMED_SINGLY else TIMED_EVERY


@dataclass(slots=True)
class Latencies:
    """How long calls took, from being sent until the answer was read."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, latency_s: float, weight: int) -> None:
        """A call was answered; it stands for `weight` calls."""
        self.buckets[bisect_left(LATENCY_BOUNDS_S, latency_s)] += weight
        self.sum_s += weight * latency_s

    @property
    def count(self) -> int:
        """How many calls they are of."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """What has gone over one link, or several: `+` adds all of it up.

    Attributes:
        calls_made, calls_received: calls of functions, this way and that; those in a queue are not sent yet.
        calls_timed_out: of those made, no longer waited for when the answer came, if it came.
        calls_failed: what the peer asked and was answered with an error.
        bytes_sent, bytes_received: of all messages, frames included, and buffers that went by shared memory.
        refused: what was not done, by reason.
        latencies: of the calls made.
    """

    calls_made: int = 0
    calls_received: int = 0
    calls_timed_out: int = 0
    calls_failed: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)

    def __add__(self, other: "LinkCounts") -> "LinkCounts":
        reasons = sorted({*self.refused, *other.refused})
        both = zip(self.latencies.buckets, other.latencies.buckets, strict=True)
        return LinkCounts(
            calls_made=self.calls_made + other.calls_made,
            calls_received=self.calls_received + other.calls_received,
            calls_timed_out=self.calls_timed_out + other.calls_timed_out,
            calls_failed=self.calls_failed + other.calls_failed,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            bytes_received=self.bytes_received + other.bytes_received,
            refused={why: self.refused.get(why, 0) + other.refused.get(why, 0) for why in reasons},
            latencies=Latencies([mine + its for mine, its in both], self.latencies.sum_s + other.latencies.sum_s),
        )
