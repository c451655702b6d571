"""Statuses as a training and a worker of a group write them, for tests of what reads them."""

from typing import Any

from ..links.status_files import Status

RATES = ("calls_made", "calls_received", "calls_failed", "calls_timed_out", "bytes_sent", "bytes_received")
QUEUES = ("calls_running", "calls_waiting", "actor_calls_waiting", "answers_waiting", "calls_open")


def run_status(key: str = "run-1-a", **changes: object) -> Status:
    """A training of two ranks, one of which is lost; `changes` to what it says."""
    body: dict[str, Any] = {
        "name": "train",
        "program": "train.py",
        "devices": ["cpu", "cpu"],
        "epoch": 1,
        "epochs": 3,
        "done": 40,
        "of": 100,
        "samples_per_s": 12.5,
        "loss": None,
        "left_s": 9.0,
        "elapsed_s": 4.0,
        "measured": None,
        "ranks": [
            {"rank": 0, "pid": 7, "devices": ["cpu"], "state": "running"},
            {"rank": 1, "pid": 8, "devices": ["cpu"], "state": "lost"},
        ],
        "past": [[100.0, 12.5, None]],
    }
    return Status(key, "run", "node7/boot/pid/net", 4711, 104.0, {**body, **changes})


def worker_status(rank: int, group: str = "port:29500", said_s: float = 105.0, **changes: object) -> Status:
    """A worker of a group of three; `changes` to what it says."""
    body: dict[str, Any] = {
        "group": group,
        "worker": f"w{rank}",
        "rank": rank,
        "world_size": 3,
        "is_coordinator": rank == 0,
        "workers": 3,
        "workers_lost": 0,
        "a_second": dict.fromkeys(RATES, 10.0 * (rank + 1)),
        **dict.fromkeys(QUEUES, rank),
        "num_peers": 1,
        "peers": {"w0": {"calls_made": 1.0, "calls_received": 0.0, "calls_open": 2}},
        "past": [[said_s - 3 + number, 10.0 * (rank + 1), 1.0, rank] for number in range(4)],
    }
    return Status(f"rpc-{rank}-a", "rpc", "node7/boot", 100 + rank, said_s, {**body, **changes})
