"""A peer's search in a process of its own, driven line by line by benchmarks/searchers_parts/peers.py.

    in   {"method", "seed", "n_workers", "max_resource", "space": {name: [function, arguments]}}      first of all
         {"suggest": trial}                        out  {"config": {...}, "seconds": ...}
                                                        {"resume": another, "seconds": ...}      one that was paused
                                                        {"wait": true, "seconds": ...}           until something happens
         {"report": trial, "resource", "loss"}     out  {"decision": "CONTINUE", "STOP" or "PAUSE"}
         {"end": trial}                                 the trial ran to its end, or was stopped: no answer

A smaller loss is always better. `seconds` is the time inside the peer's own call, without these lines. The functions of
a space are Syne Tune's: uniform, loguniform, randint, lograndint, choice. Only the standard library is used: this file
runs in the environments of all peers.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Search(Protocol):
    """What a peer's program makes of the first line."""

    def suggest(self, trial: int) -> Mapping[str, object] | int | None:
        """The configuration of a new trial with this number, or the number of a paused one that goes on; None: wait."""

    def report(self, trial: int, resource: int, loss: float) -> str:
        """A report; "CONTINUE", "STOP" or "PAUSE"."""

    def end(self, trial: int) -> None:
        """The trial ran to its end, or was stopped by `report`."""


def serve(begin: Callable[[Mapping[str, Any]], Search]) -> None:
    """Answer until the lines end. What the peer itself prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    search = begin(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        asked = json.loads(line)
        if "suggest" in asked:
            began_s = time.perf_counter()
            chosen = search.suggest(asked["suggest"])
            seconds = time.perf_counter() - began_s
            print(json.dumps({**_worded(chosen), "seconds": seconds}, default=_plain), file=answers)
        elif "report" in asked:
            decision = search.report(asked["report"], asked["resource"], asked["loss"])
            print(json.dumps({"decision": decision}), file=answers)
        else:
            search.end(asked["end"])


def _worded(chosen: Mapping[str, object] | int | None) -> dict[str, object]:
    if chosen is None:
        return {"wait": True}
    return {"resume": chosen} if isinstance(chosen, int) else {"config": dict(chosen)}


def _plain(number: Any) -> object:
    """A number of numpy as Python's."""
    return number.item()
