"""Trainings and groups of workers that run now, from what their processes say of themselves (`links.status_files`).

    statuses --programs_of--> {"runs": [a line each], "groups": [a line each]}
             --program_of---> one of them, with its ranks or workers and its last minutes

A run is one status; a group is those of its workers on this machine. What another version of fanwise says, and this one
does not understand, is left out. Knows neither files nor HTTP; texts stand here as they are.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..links.status_files import Status

Json = dict[str, Any]  # Any: JSON

_RATES = ("calls_made", "calls_received", "calls_failed", "calls_timed_out", "bytes_sent", "bytes_received")
_QUEUES = ("calls_running", "calls_waiting", "actor_calls_waiting", "answers_waiting", "calls_open")
_NOT_UNDERSTOOD = (KeyError, TypeError, ValueError, AttributeError, IndexError)
_STALE_S = 10.0  # of a worker that says nothing: its last rate is none of now


def programs_of(said: Iterable[Status]) -> Json:
    """A line for each run and each group, the newest and the largest first."""
    runs, groups = _understood(said)
    return {
        "runs": sorted(
            (_without(run, "past", "ranks") for run in runs), key=lambda run: run["elapsed_s"] - run["said_s"]
        ),
        "groups": sorted(
            (_without(_group(name, workers), "past", "members") for name, workers in groups.items()),
            key=lambda group: (-group["workers"], group["name"]),
        ),
    }


def program_of(said: Iterable[Status], key: str) -> Json | None:
    """The run or group of this key; None: there is none any more."""
    runs, groups = _understood(said)
    for run in runs:
        if run["key"] == key:
            return run
    for name, workers in groups.items():
        if _key(name) == key:
            return _group(name, workers)
    return None


def _understood(said: Iterable[Status]) -> tuple[list[Json], dict[str, list[Json]]]:
    """The runs; and the workers of each group."""
    runs: list[Json] = []
    groups: dict[str, list[Json]] = {}
    for status in said:
        try:
            if status.kind == "run":
                runs.append(_run(status))
            elif status.kind == "rpc":
                groups.setdefault(str(status.body["group"]), []).append(_worker(status))
        except _NOT_UNDERSTOOD:
            continue
    return runs, groups


def _run(status: Status) -> Json:
    body = status.body
    return {
        "key": status.key,
        "kind": "run",
        "name": str(body["name"]) or "run",
        "program": str(body["program"]),
        "host": _shown(status.host),
        "pid": status.pid,
        "said_s": status.written_s,
        **{what: body[what] for what in ("epoch", "epochs", "done", "of", "samples_per_s", "loss", "left_s")},
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
        "past": _points(body["past"], 3),
    }


def _worker(status: Status) -> Json:
    body = status.body
    return {
        "name": str(body["worker"]),
        "rank": int(body["rank"]),
        "host": _shown(status.host),
        "pid": status.pid,
        "said_s": status.written_s,
        "world_size": body["world_size"],
        "is_coordinator": bool(body["is_coordinator"]),
        "workers": int(body["workers"]),
        "workers_lost": int(body["workers_lost"]),
        "a_second": {what: float(body["a_second"][what]) for what in _RATES},
        **{what: int(body[what]) for what in _QUEUES},
        "num_peers": int(body["num_peers"]),
        "peers": [
            {
                "name": str(name),
                **{what: float(values[what]) for what in ("calls_made", "calls_received", "calls_open")},
            }
            for name, values in body["peers"].items()
        ],
        "past": _points(body["past"], 4),
    }


def _group(name: str, workers: Sequence[Json]) -> Json:
    ordered = sorted(workers, key=lambda worker: worker["rank"])
    now_s = max(worker["said_s"] for worker in ordered)
    return {
        "key": _key(name),
        "kind": "group",
        "name": f"localhost:{name.removeprefix('port:')}" if name.startswith("port:") else name,
        "said_s": now_s,
        "workers": max(worker["workers"] for worker in ordered),
        "workers_here": len(ordered),
        "workers_lost": max(worker["workers_lost"] for worker in ordered),
        "world_size": ordered[0]["world_size"],
        "a_second": {what: sum(worker["a_second"][what] for worker in ordered) for what in _RATES},
        **{what: sum(worker[what] for worker in ordered) for what in _QUEUES},
        "past": _together([worker["past"] for worker in ordered]),
        "members": [_without(worker, "past") for worker in ordered],
    }


def _together(pasts: Sequence[Sequence[Sequence[Any]]]) -> list[list[float]]:  # Any: numbers
    """The sums of what workers said, second by second. Each says it at times of its own."""
    begin_s = min((past[0][0] for past in pasts if past), default=0.0)
    end_s = min((past[-1][0] for past in pasts if past), default=0.0)
    places, summed = [0] * len(pasts), []
    for second in range(int(begin_s) + 1, int(end_s) + 1):
        sums = [float(second), 0.0, 0.0, 0.0]
        for number, past in enumerate(pasts):
            while places[number] + 1 < len(past) and past[places[number] + 1][0] <= second:
                places[number] += 1
            if past and 0 <= second - past[places[number]][0] < _STALE_S:
                for column in (1, 2, 3):
                    sums[column] += past[places[number]][column]
        summed.append(sums)
    return summed


def _points(points: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:  # Any: numbers, or None for a gap
    found = [[None if number is None else float(number) for number in point] for point in points]
    if any(len(point) != width or point[0] is None for point in found):
        raise ValueError("these are points of another version")
    return found


def _without(whole: Mapping[str, Any], *names: str) -> Json:
    return {name: value for name, value in whole.items() if name not in names}


def _key(name: str) -> str:
    return f"group-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _shown(host: str) -> str:
    """A host is its name and what tells it from others of the same name."""
    return host.partition("/")[0]
