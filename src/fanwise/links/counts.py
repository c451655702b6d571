"""Counters of a link: calls, bytes, refusals, and a histogram of the times of calls."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

# Upper limits of the buckets, in seconds. One more bucket counts slower calls.
LATENCY_BOUNDS_S = (
    *(25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


@dataclass(slots=True)
class Latencies:
    """Histogram of the times from sending calls to reading their answers."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, latency_s: float) -> None:
        """A call was answered."""
        self.buckets[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        self.sum_s += latency_s

    @property
    def count(self) -> int:
        """Number of calls."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """Counters of one link, or the sum of several.

    Attributes:
        calls_made, calls_received: calls on credit of this side and of the peer, without those that wait for credit.
        calls_timed_out: calls of this side whose time limit has passed.
        calls_failed: requests of the peer that were answered with an error.
        bytes_sent, bytes_received: of all frames, and of buffers in shared memory.
        refused: number of refusals by reason.
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
            refused={reason: self.refused.get(reason, 0) + other.refused.get(reason, 0) for reason in reasons},
            latencies=Latencies([sum(pair) for pair in both], self.latencies.sum_s + other.latencies.sum_s),
        )
