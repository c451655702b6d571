"""What benchmarks/rpc.py measures, written once for all libraries, and the loop in which a peer program answers.

    rpc.py --{"measure": NAME, "quick": BOOL}, a line on stdin--> peer program --{"figures": {...}}, a line--> rpc.py

A library is an object with `call` (run a function on the other worker and wait) and `start` (do not wait yet); a
measure takes it and returns figures by name. Functions that run on the other worker are in this file, because they
travel by name. Only torch and the standard library are used: this file runs in the environments of all peers.
"""

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch

Figures = dict[str, float]
MIB_FLOATS = 1 << 18


class Waitable(Protocol):
    """A call that has begun."""

    def wait(self) -> Any: ...  # Any: what the function returned


class Library(Protocol):
    """How a library calls a function on its other worker."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any: ...  # Any: the function's

    def start(self, function: Callable[..., Any], *args: Any) -> Waitable: ...  # Any: as above


# -- what runs on the other worker -------------------------------------------------------------------------------------


def noop(value: int) -> int:
    return value


def read_all(x: torch.Tensor) -> float:
    """Read every element, so that no page of the tensor may still be on its way."""
    return float(x.sum())


def read_pages(x: torch.Tensor) -> float:
    """Read one element of each page of 4 KiB."""
    return float(x[::1024].sum())


def cpu_s_of_callee() -> float:
    return cpu_s("self")


busy = threading.Event()


def compute_python() -> None:
    """Pure Python, which holds the GIL, while `busy` is set."""
    while busy.is_set():
        sum(i * i for i in range(1000))


def set_busy(on: bool) -> None:
    """On the callee: its main thread, which stands in `callee_main`, computes from now on, or rests."""
    if on:
        busy.set()
    else:
        busy.clear()


def callee_main(ended: threading.Event) -> None:
    """What the main thread of a callee does until `ended`: rest, or compute while that is asked for."""
    while not ended.is_set():
        if busy.wait(0.2):
            compute_python()


# -- measures ----------------------------------------------------------------------------------------------------------


def cpu_s(pid: str) -> float:
    """Seconds of processor time that all threads of a process have had, exact to a microsecond or so."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # it has just ended
    return total_ns / 1e9


def timed(once: Callable[[], object], number: int) -> list[float]:
    """Microseconds of each of `number` calls, after a tenth as many to warm up."""
    for _ in range(max(3, number // 10)):
        once()
    times = []
    for _ in range(number):
        begun = time.perf_counter()
        once()
        times.append((time.perf_counter() - begun) * 1e6)
    return times


def latency(once: Callable[[], object], number: int) -> Figures:
    times = sorted(timed(once, number))
    return {"p50 us": times[len(times) // 2], "p99 us": times[min(len(times) - 1, int(0.99 * len(times)))]}


def sync(library: Library, quick: bool) -> Figures:
    return latency(lambda: library.call(noop, 1), 300 if quick else 2000)


def async_wait(library: Library, quick: bool) -> Figures:
    return latency(lambda: library.start(noop, 1).wait(), 300 if quick else 2000)


def futures_wait_all(library: Library, quick: bool) -> Figures:
    """Through `torch.futures.wait_all`."""
    return latency(
        lambda: torch.futures.wait_all([cast("torch.futures.Future[int]", library.start(noop, 1))]),
        300 if quick else 2000,
    )


def busy_callee(library: Library, quick: bool) -> Figures:
    library.call(set_busy, True)
    try:
        return latency(lambda: library.call(noop, 1), 30 if quick else 150)
    finally:
        library.call(set_busy, False)


def busy_caller(library: Library, quick: bool) -> Figures:
    busy.set()
    thread = threading.Thread(target=compute_python)
    thread.start()
    try:
        return latency(lambda: library.call(noop, 1), 30 if quick else 150)
    finally:
        busy.clear()
        thread.join()


def one_element_add(library: Library, quick: bool) -> Figures:
    x = torch.ones(1)
    return latency(lambda: library.call(torch.add, x, x), 300 if quick else 1500)


def pipelined(library: Library, quick: bool) -> Figures:
    number = 500 if quick else 3000
    for each in [library.start(noop, 1) for _ in range(100)]:
        each.wait()
    begun = time.perf_counter()
    for each in [library.start(noop, i) for i in range(number)]:
        each.wait()
    return {"calls/s": number / (time.perf_counter() - begun)}


def one_way(library: Library, size_mib: int, number: int, read: Callable[[torch.Tensor], float]) -> Figures:
    """A new tensor each time, written by the caller and read by the callee before it answers."""
    times = []
    for i in range(number + 1):
        x = torch.full((size_mib * MIB_FLOATS,), 1.0)
        begun = time.perf_counter()
        library.call(read, x)
        if i:  # the first one warms up
            times.append(time.perf_counter() - begun)
        del x
    median_s = statistics.median(times)
    return {"ms": median_s * 1e3, "GB/s": size_mib * 1.048576e-3 / median_s}


# KiB of a tensor, and how often it is sent.
ON_DEVICE = {4: 200, 1 << 10: 100, 64 << 10: 20}


def echo(x: torch.Tensor) -> torch.Tensor:
    return x


def one_way_on(library: Library, device: str, size_kib: int, number: int) -> Figures:
    """As `one_way`, on a device: what it was asked to write is written before the clock starts."""
    times = []
    for i in range(number + 3):
        x = torch.full((size_kib << 8,), 1.0, device=device)
        assert float(x[-1]) == 1
        begun = time.perf_counter()
        total = library.call(read_all, x)
        if i >= 3:  # the first ones find the way
            times.append(time.perf_counter() - begun)
        assert total == size_kib << 8
    return {"ms": statistics.median(times) * 1e3}


def there_and_back_on(library: Library, device: str, size_kib: int, number: int) -> Figures:
    """A tensor goes there, comes back, and an element of it is read."""
    x = torch.full((size_kib << 8,), 1.0, device=device)
    assert float(x[-1]) == 1
    times = timed(lambda: float(library.call(echo, x)[-1]), number)
    return {"ms": statistics.median(times) / 1e3}


def of_device(device: str) -> dict[str, Callable[[Library, bool], Figures]]:
    """Measures with tensors of that device."""

    def measure(function: Callable[..., Figures], size_kib: int, number: int) -> Callable[[Library, bool], Figures]:
        return lambda library, quick: function(library, device, size_kib, number // 10 if quick else number)

    return {
        f"{function.__name__}_{size_kib}": measure(function, size_kib, number)
        for function in (one_way_on, there_and_back_on)
        for size_kib, number in ON_DEVICE.items()
    }


def read_alone(library: Library, quick: bool) -> Figures:
    """What reading costs by itself, in this process: the part of `one_way` that no library can save."""
    x = torch.full((64 * MIB_FLOATS,), 1.0)
    times = timed(lambda: read_all(x), 5)
    return {"ms": statistics.median(times) / 1e3}


def idle(library: Library, quick: bool) -> Figures:
    """Processor time of a callee that is not called, in percent of one core; so of the caller that waits beside it."""
    wait_s = 2.0 if quick else 5.0
    time.sleep(0.5)  # what the last measure left behind
    before_callee = library.call(cpu_s_of_callee)
    before = cpu_s("self")
    time.sleep(wait_s)
    mine = cpu_s("self") - before
    return {"callee %": 100 * (library.call(cpu_s_of_callee) - before_callee) / wait_s, "caller %": 100 * mine / wait_s}


MEASURES: dict[str, Callable[[Library, bool], Figures]] = {
    "sync": sync,
    "async_wait": async_wait,
    "futures_wait_all": futures_wait_all,
    "busy_callee": busy_callee,
    "busy_caller": busy_caller,
    "one_element_add": one_element_add,
    "pipelined": pipelined,
    "one_way_1": lambda library, quick: one_way(library, 1, 10 if quick else 50, read_all),
    "one_way_64": lambda library, quick: one_way(library, 64, 2 if quick else 7, read_all),
    "one_way_64_pages": lambda library, quick: one_way(library, 64, 2 if quick else 7, read_pages),
    "one_way_256": lambda library, quick: one_way(library, 256, 1 if quick else 3, read_all),
    "read_alone": read_alone,
    "idle": idle,
}


def serve(library: Library, version: str, more: dict[str, Callable[[Library, bool], Figures]] | None = None) -> None:
    """Say that we are ready, then measure what is asked for, until the end of the input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an answer
    print(json.dumps({"ready": version}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        measure = {**MEASURES, **(more or {})}[asked["measure"]]
        print(json.dumps({"figures": measure(library, asked["quick"])}), file=out, flush=True)
