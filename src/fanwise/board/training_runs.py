"""Training runs on this machine, from the status files that their processes write (`links.status_files`).

A status that another version of fanwise has written in another form is left out. Texts are not escaped here.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ..links.status_files import Status

Json = dict[str, Any]

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
_DETAILS = ("ranks", "past")


def list_runs(statuses: Iterable[Status]) -> list[Json]:
    """Return the training runs, newest first, without their ranks and past."""
    runs = sorted(_runs(statuses), key=lambda run: run["elapsed_s"] - run["said_s"])
    return [{name: value for name, value in run.items() if name not in _DETAILS} for run in runs]


def find_run(statuses: Iterable[Status], key: str) -> Json | None:
    """Return the run with this key, or None if it has ended."""
    return next((run for run in _runs(statuses) if run["key"] == key), None)


def _runs(statuses: Iterable[Status]) -> list[Json]:
    runs = []
    for status in statuses:
        if status.kind == "run":
            try:
                runs.append(_run(status))
            except _MALFORMED:
                continue
    return runs


def _run(status: Status) -> Json:
    body = status.body
    return {
        "key": status.key,
        "name": str(body["name"]) or "run",
        "program": str(body["program"]),
        "host": status.host.partition("/")[0],  # the rest makes it unique
        "pid": status.pid,
        "said_s": status.written_s,
        **{name: body[name] for name in ("epoch", "epochs", "done", "of", "samples_per_s", "loss", "left_s")},
        "elapsed_s": float(body["elapsed_s"]),
        "measured": body["measured"],
        "num_devices": len(body["devices"]),
        "world_size": sum(rank["state"] != "lost" for rank in body["ranks"]),
        "ranks": [
            {
                "rank": int(rank["rank"]),
                "pid": int(rank["pid"]),
                "devices": ", ".join(map(str, rank["devices"])),
                "state": str(rank["state"]),
            }
            for rank in body["ranks"]
        ],
        "past": [_point(point) for point in body["past"]],
    }


def _point(point: Sequence[float | None]) -> list[float | None]:
    """Return (time, samples per second, loss). Raises ValueError if the point has another form."""
    time_s, samples_per_s, loss = (None if number is None else float(number) for number in point)
    if time_s is None:
        raise ValueError("a point without a time")
    return [time_s, samples_per_s, loss]
