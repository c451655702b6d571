"""Numbers about the calls of this worker, for people and for what watches programs.

    links count for themselves --> `connections.traffic` --+
    group, queues of jobs and of calls ------------------- +--> metrics() --> prometheus.text_of --> metrics_text()

Nothing is counted for this alone but bytes, and the time of some calls; it is put together when somebody asks.
"""

from typing import Any

from ..links import Link, LinkCounts
from ..links.counts import LATENCY_BOUNDS_S, Latencies
from . import agent as _agent
from .membership.members import Joined, Left, Lost
from .prometheus import text_of


def metrics() -> dict[str, Any]:  # Any: numbers, texts, dicts of these
    """Numbers about this worker since `init_rpc`, as a dict of plain values. Does not block. A new one for each call.

    For the worker itself:
        `worker`: its name. `workers`: how many are in the group. `workers_joined`, `workers_left`, `workers_lost`: how
        many did, as this worker has heard. `calls_running`: functions that run here for others, without those that wait
        for something. `calls_waiting`: calls that are here and have not begun; `actor_calls_waiting`: that wait for
        their turn at an actor. `answers_waiting`: answers and callbacks that have not begun.

    `peers` has for each worker, by name, itself included:
        `calls_made`, `calls_received`; `calls_timed_out` of those made, `calls_failed` of those received, answered with
        an error. `bytes_sent`, `bytes_received`: of all messages, book-keeping and shared memory included.
        `calls_open`: made, and not answered yet. `calls_waiting_for_link`, `calls_waiting_for_room`: of these, not sent
        yet: there is no link, or too many wait there. `bytes_to_send`: not taken by the other side's socket.
        `bytes_not_begun`: of its calls that wait here, with 1 KiB for each.
        `refused`: what was not done, by reason. `window_full`: a call of ours, where the thread must not wait for room.
        `not_allowed`: a call of the other, by the allow-list, or one that could not be read. `malformed`: a link was
        ended for bytes that no worker sends. `not_welcome`: a link of one that the group has declared lost.
        `latency_s`: how long calls took until their answers were here, as a histogram: `buckets`, from the upper end in
        seconds (`inf` for the last) to the number; their `sum` and `count`. The first 64 of a link are timed, then one
        of 13, which counts for all of them.

    Counters of a worker go on when its link is cut, and when it comes back as another life. Of workers that have gone
    the newest 1,024 are kept.

    >>> metrics()["peers"]["worker1"]["calls_made"]
    1
    """
    return metrics_of(_agent.current())


def metrics_of(agent: _agent.Agent) -> dict[str, Any]:  # Any: as above
    """`metrics` of this worker. Does not block."""
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
        **agent.num_jobs(),
        "peers": {
            name: _of_peer(*traffic.get(name, (LinkCounts(), [])), waiting.get(name, 0))
            for name in sorted({*traffic, *names, *waiting})
        },
    }


def metrics_text() -> str:
    """The same in Prometheus' text format, version 0.0.4, for whatever serves or collects it.

    Every number has the label `worker`, those of a peer the label `peer`. Names begin with `fanwise_rpc_`, as
    `fanwise_rpc_calls_made_total{worker="worker0",peer="worker1"} 1`. Serve it with the content type
    `text/plain; version=0.0.4`.

    >>> "fanwise_rpc_calls_made_total" in metrics_text()
    True
    """
    return text_of(metrics())


_REFUSALS = ("malformed", "not_allowed", "not_welcome", "window_full")


def _of_peer(counts: LinkCounts, links: list[Link], waiting_for_link: int) -> dict[str, Any]:  # Any: as above
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
        "refused": {why: counts.refused.get(why, 0) for why in sorted({*_REFUSALS, *counts.refused})},
        "latency_s": _histogram(counts.latencies),
    }


def _histogram(latencies: Latencies) -> dict[str, Any]:  # Any: as above
    bounds = (*LATENCY_BOUNDS_S, float("inf"))
    return {
        "buckets": dict(zip(bounds, latencies.buckets, strict=True)),
        "sum": latencies.sum_s,
        "count": latencies.count,
    }
