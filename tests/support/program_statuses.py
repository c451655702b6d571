"""The status that a training run writes, for tests of the board."""

from typing import Any

from fanwise.links.status_files import Status


def run_status(**changes: object) -> Status:
    """Return the status of a run of two ranks, one of which is lost, with these changes of its body."""
    body: dict[str, Any] = {
        "name": "train",
        "program": "train.py",
        "epoch": 1,
        "epochs": 3,
        "samples_per_s": 12.5,
        "loss": None,
        "left_s": 9.0,
        "elapsed_s": 4.0,
        "ranks": [
            {"state": "running"},
            {"state": "lost"},
        ],
    }
    return Status("run", "node7/boot/pid/net", 4711, 104.0, {**body, **changes})
