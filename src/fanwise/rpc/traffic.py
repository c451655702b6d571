"""`metrics()`: counters of this worker and of its calls to and from each other worker, as one dict.

Each link counts its traffic (`links.counts`). `Traffic` sums up the counters of ended links per worker, so the counters
of a worker never decrease when its link is lost or it restarts. The newest MAX_FORMER_PEERS workers without a link are
kept.
"""

import threading
from collections import defaultdict
from functools import partial
from typing import Any

from ..links.counts import LATENCY_BOUNDS_S, LinkCounts
from ..links.link import Link
from ..links.peers import Ending
from . import current
from .membership.members import Joined, Left, Lost

MAX_FORMER_PEERS = 1024
_REFUSALS = ("malformed", "not_allowed", "not_welcome", "window_full")


class Traffic:
    """Counters of the links of this worker, by the name of the peer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: defaultdict[str, list[Link]] = defaultdict(list)
        self._ended: dict[str, LinkCounts] = {}

    def add_link(self, worker: str, link: Link) -> None:
        """Add a link to `worker`."""
        with self._lock:
            self._links[worker].append(link)
        link.on_ended(partial(self._link_ended, worker))

    def count_refusal(self, worker: str, why: str) -> None:
        """Count a refusal that no link can count."""
        with self._lock:
            self._add(worker, LinkCounts(refused={why: 1}))

    def by_worker(self) -> dict[str, tuple[LinkCounts, list[Link]]]:
        """Return the counters and open links of each worker, by name."""
        with self._lock:
            ended, links = dict(self._ended), {worker: links.copy() for worker, links in self._links.items()}
        result: dict[str, tuple[LinkCounts, list[Link]]] = {}
        for worker in sorted({*ended, *links}):
            open_links = links.get(worker, [])
            result[worker] = sum((link.counts() for link in open_links), ended.get(worker, LinkCounts())), open_links
        return result

    def _link_ended(self, worker: str, link: Link, _ending: Ending) -> None:
        with self._lock:
            links = self._links[worker]
            links.remove(link)
            if not links:
                del self._links[worker]
            self._add(worker, link.counts())

    def _add(self, worker: str, counts: LinkCounts) -> None:
        self._ended[worker] = self._ended.pop(worker, LinkCounts()) + counts  # moved to the end: the newest
        if len(self._ended) > MAX_FORMER_PEERS:
            oldest = next((name for name in self._ended if name not in self._links), None)
            if oldest is not None:
                del self._ended[oldest]


def metrics() -> dict[str, Any]:
    """Return counters of this worker since `init_rpc`, as a new dict of plain values. Does not block.

    For the worker itself:
        `worker`: its name. `workers`: number of workers in the group. `workers_joined`, `workers_left`, `workers_lost`:
        number of these events that this worker has seen. `calls_running`: functions that run here for others, without
        those that wait. `calls_waiting`: received calls that have not started; `actor_calls_waiting`: those that wait
        for their turn at an actor. `answers_waiting`: answers and callbacks that have not started.

    `peers` has for each worker, by name, including this one:
        `calls_made`, `calls_received`; `calls_timed_out` of those made; `calls_failed` of those received, answered with
        an error. `bytes_sent`, `bytes_received`: of all messages, including internal ones and shared memory.
        `calls_open`: made and not answered yet. `calls_waiting_for_link`, `calls_waiting_for_room`: those not sent yet,
        because there is no link or the peer's queue is full. `bytes_to_send`: not accepted by the peer's socket.
        `bytes_not_begun`: size of the peer's calls that wait here, plus 1 KiB for each.
        `refused`: number of refusals, by reason. `window_full`: a call of this worker whose thread must not wait.
        `not_allowed`: a call of the peer that the allow-list refuses or that could not be read. `malformed`: a link
        closed because of invalid bytes. `not_welcome`: a link of a worker that the group has declared lost.
        `latency_s`: histogram of the time from a call to its answer: `buckets`, {upper limit in seconds (`inf` for the
        last): number}; `sum` and `count`.

    The counters of a peer survive the loss of its link and its return under the same name. Those of the last 1,024
    workers that left are kept.

    >>> metrics()["peers"]["worker1"]["calls_made"]
    1
    """
    agent = current.current()
    members, event_counts = agent.group.members(), agent.worker_events.counts
    traffic: dict[str, tuple[LinkCounts, list[Link]]] = agent.connections.traffic.by_worker()
    peers = agent.group.former | members
    waiting = {peers[id].name: number for id, number in agent.connections.routes.num_queued().items() if id in peers}
    names = [member.name for member in members.values()]
    return {
        "worker": agent.info.name,
        "workers": len(names),
        "workers_joined": event_counts[Joined],
        "workers_left": event_counts[Left],
        "workers_lost": event_counts[Lost],
        **agent.job_counts(),
        "peers": {
            name: _peer_metrics(*traffic.get(name, (LinkCounts(), [])), waiting.get(name, 0))
            for name in sorted({*traffic, *names, *waiting})
        },
    }


def _peer_metrics(counts: LinkCounts, links: list[Link], waiting_for_link: int) -> dict[str, Any]:
    waiting_for_room = sum(link.num_waiting for link in links)
    return {
        "calls_made": counts.calls_made,
        "calls_received": counts.calls_received,
        "calls_timed_out": counts.calls_timed_out,
        "calls_failed": counts.calls_failed,
        "bytes_sent": counts.bytes_sent,
        "bytes_received": counts.bytes_received,
        "calls_open": sum(link.num_open for link in links) + waiting_for_room + waiting_for_link,
        "calls_waiting_for_link": waiting_for_link,
        "calls_waiting_for_room": waiting_for_room,
        "bytes_to_send": sum(link.num_queued_bytes for link in links),
        "bytes_not_begun": sum(link.num_bytes_not_begun for link in links),
        "refused": {reason: counts.refused.get(reason, 0) for reason in sorted({*_REFUSALS, *counts.refused})},
        "latency_s": {
            "buckets": dict(zip((*LATENCY_BOUNDS_S, float("inf")), counts.latencies.buckets, strict=True)),
            "sum": counts.latencies.sum_s,
            "count": counts.latencies.count,
        },
    }
