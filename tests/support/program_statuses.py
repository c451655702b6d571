"""The status that a training run writes, for tests of the board."""

from typing import Any

from fanwise.links.status_files import Status


def run_status(key: str = "run-1-a", **changes: object) -> Status:
    """Return the status of a run of two ranks, one of which is lost, with these changes of its body."""
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
