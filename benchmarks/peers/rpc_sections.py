"""Where the time of a program with rpc goes: its processes write down when they joined their group and when they left.

    rpc_programs.py --environment: a file-->  program:  import rpc ; rpc_sections.watch(rpc)
                    <--a line a moment, JSON--          rpc.init_rpc(...), rpc.shutdown(), mark("first call")

CLOCK_MONOTONIC is one clock for all processes of a Linux machine. Without the environment variable nothing is written.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "FANWISE_BENCH_SECTIONS"
_rank = -1


def mark(name: str) -> None:
    """Write down that something is done. One short write in append mode, so that lines of two processes never mix."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    line = {"rank": _rank, "name": name, "s": time.monotonic(), "cpu_s": time.process_time()}
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


def watch(rpc: Any) -> None:  # Any: the module, torch's or ours
    """From now on this process writes down when it begins and ends to join, and to leave."""
    rpc.init_rpc = _marked(rpc.init_rpc, "joining", "joined")
    rpc.shutdown = _marked(rpc.shutdown, "leaving", "left")


def _marked(function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:  # Any: the library's
    def marked(*args: Any, **kwargs: Any) -> Any:  # Any: as above
        global _rank
        _rank = kwargs.get("rank", _rank)
        mark(before)
        value = function(*args, **kwargs)
        mark(after)
        return value

    return marked
