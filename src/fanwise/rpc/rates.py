"""From two looks at the metrics of a worker to what a person watches: calls a second, queues. A quiet file.

metrics() now and before, the seconds between --said--> a dict of plain values, small whatever the group's size
"""

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]  # Any: numbers, texts, mappings of these

_COUNTED = ("calls_made", "calls_received", "calls_failed", "calls_timed_out", "bytes_sent", "bytes_received")
_WAITING = ("calls_open", "calls_waiting_for_link", "calls_waiting_for_room", "bytes_to_send", "bytes_not_begun")
_QUEUES = ("calls_running", "calls_waiting", "actor_calls_waiting", "answers_waiting")
_MOST_PEERS = 64


def said(now: Values, before: Values, seconds: float) -> dict[str, Any]:  # Any: as above
    """What has happened in the `seconds` between two looks, and what waits now.

    `a_second` has the counters of all peers together, as numbers a second; `since` as they are. `peers` are those that
    calls went to, or came from, most; the others are left out.
    """
    peers: dict[str, dict[str, Any]] = {}  # Any: as above
    for name, values in now["peers"].items():
        former = before["peers"].get(name, {})
        peers[name] = {
            **{what: (values[what] - former.get(what, 0)) / seconds for what in _COUNTED},
            **{what: values[what] for what in _WAITING},
        }
    shown = sorted(peers, key=lambda name: (-(peers[name]["calls_made"] + peers[name]["calls_received"]), name))
    return {
        "workers": now["workers"],
        "workers_lost": now["workers_lost"],
        **{what: now[what] for what in _QUEUES},
        "since": {what: sum(values[what] for values in now["peers"].values()) for what in _COUNTED},
        "a_second": {what: sum(values[what] for values in peers.values()) for what in _COUNTED},
        **{what: sum(values[what] for values in peers.values()) for what in _WAITING},
        "peers": {name: peers[name] for name in shown[:_MOST_PEERS]},
        "num_peers": len(peers),
    }
