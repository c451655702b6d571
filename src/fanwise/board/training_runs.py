"""Training runs of this user on this machine, from the status files of their processes (`links.status_files`)."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ..links.status_files import Status


def list_runs(statuses: Iterable[Status]) -> list[dict[str, Any]]:
    """Return the training runs, newest first. A status that another version of fanwise wrote may be left out."""
    runs = []
    for status in statuses:
        if status.kind == "run":
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                runs.append(_run(status))
    return sorted(runs, key=lambda run: run["elapsed_s"] - run["written_s"])


def _run(status: Status) -> dict[str, Any]:
    body = status.body
    return {
        "name": str(body["name"]) or "run",
        "program": str(body["program"]),
        "host": status.host.partition("/")[0],  # the rest makes it unique
        "pid": status.pid,
        "written_s": status.written_s,
        "elapsed_s": float(body["elapsed_s"]),
        **{name: body[name] for name in ("epoch", "epochs", "samples_per_s", "loss", "left_s")},
        "world_size": sum(rank["state"] != "lost" for rank in body["ranks"]),
    }
