"""`metrics()`: counters of this worker and of its calls to and from each other worker, as one dict.

The counters are kept by the links (`connections.traffic`), the group and the queues. They are collected on request.
"""

from typing import Any

from ..links.counts import LATENCY_BOUNDS_S, Latencies, LinkCounts
from ..links.link import Link
from . import agent as _agent
from .membership.members import Joined, Left, Lost


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
        last): number}; `sum` and `count`. The first 64 calls of a link are timed, then one of 13, with weight 13.

    The counters of a peer survive the loss of its link and its return under the same name. Those of the last 1,024
    workers that left are kept.

    >>> metrics()["peers"]["worker1"]["calls_made"]
    1
    """
    agent = _agent.current()
    counts, events = agent.connections, agent.worker_events
    traffic = counts.traffic.by_worker()
    waiting = counts.calls_waiting_for_links()
    names = [member.name for member in events.members()]
    return {
        "worker": agent.info.name,
        "workers": len(names),
        "workers_joined": events.counts[Joined],
        "workers_left": events.counts[Left],
        "workers_lost": events.counts[Lost],
        **agent.job_counts(),
        "peers": {
            name: _peer_metrics(*traffic.get(name, (LinkCounts(), [])), waiting.get(name, 0))
            for name in sorted({*traffic, *names, *waiting})
        },
    }


_REFUSALS = ("malformed", "not_allowed", "not_welcome", "window_full")


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
        "latency_s": _histogram(counts.latencies),
    }


def _histogram(latencies: Latencies) -> dict[str, Any]:
    bounds = (*LATENCY_BOUNDS_S, float("inf"))
    return {
        "buckets": dict(zip(bounds, latencies.buckets, strict=True)),
        "sum": latencies.sum_s,
        "count": latencies.count,
    }
