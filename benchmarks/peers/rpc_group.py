"""fanwise.rpc and torch.distributed.rpc, which have the same interface: one program for both.

    python rpc_group.py --library fanwise|torch [--observers 8] [--tls] [--device cuda:0 [--without-ipc]]

Rank 0 is this process, the caller. Rank 1 is the callee; with `--observers` there are so many others instead, and all
of them call rank 0. With `--tls` the workers meet on a port of the loopback with a secret, and take each other for
workers of other hosts: everything between them is encrypted. With `--device` the measures with tensors of that device
can be asked for; torch takes those of a GPU by a device map alone, so rank 0 has one.
"""

import argparse
import importlib
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rpc_measures
import torch
from rpc_measures import Figures, Library, Waitable, latency, noop, serve
from torch.multiprocessing.spawn import spawn

warnings.filterwarnings("ignore", category=DeprecationWarning)
ended = threading.Event()


def imported(library: str) -> Any:  # Any: the module under either name
    return importlib.import_module({"fanwise": "fanwise.rpc", "torch": "torch.distributed.rpc"}[library])


def join(library: str, rank: int, world_size: int, init_method: str, device: str = "cpu") -> Any:  # Any: as above
    rpc = imported(library)
    if "FANWISE_SECRET" in os.environ:  # neighbours would share memory
        entrance: Any = importlib.import_module("fanwise.rendezvous.tls")  # Any: its name is replaced
        entrance.this_host = lambda: "a host of its own"
    torch.set_num_threads(1)  # two workers share two cores; spinning OpenMP threads would drown what we measure
    options = rpc.TensorPipeRpcBackendOptions(init_method=init_method)
    if device != "cpu" and rank == 0:
        options.set_device_map("worker1", {device: device})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    return rpc


def end() -> None:
    ended.set()


def work(index: int, library: str, world_size: int, init_method: str) -> None:
    """A worker other than rank 0."""
    rpc = join(library, index + 1, world_size, init_method)
    rpc_measures.callee_main(ended)
    rpc.shutdown()


@dataclass(frozen=True, slots=True)
class Group:
    """Calls from rank 0 to rank 1."""

    rpc: Any  # Any: the module under either name

    def call(self, function: Callable[..., Any], *args: Any) -> Any:  # Any: the function's
        return self.rpc.rpc_sync("worker1", function, args=args)

    def start(self, function: Callable[..., Any], *args: Any) -> Waitable:  # Any: the function's
        future: Waitable = self.rpc.rpc_async("worker1", function, args=args)
        return future


def hammer(library: str, number: int) -> float:
    """On an observer: call the agent `number` times, one after the other; the median time of a call in us."""
    rpc = imported(library)
    return latency(lambda: rpc.rpc_sync("worker0", noop, args=(1,)), number)["p50 us"]


def observers(rpc: Any, library: str, count: int, quick: bool) -> Figures:  # Any: the module under either name
    """All observers call the agent at the same time."""
    number = 100 if quick else 500
    begun = time.perf_counter()
    futures = [rpc.rpc_async(f"worker{i + 1}", hammer, args=(library, number)) for i in range(count)]
    medians = torch.futures.wait_all(futures)
    calls = count * (number + number // 10)
    return {"calls/s": calls / (time.perf_counter() - begun), "p50 us": sorted(medians)[count // 2]}


# -- overload: all observers call an agent that is busy ----------------------------------------------------------------

CALL_FLOATS = 25_000  # 100 kB
THREADS = 16  # that run calls, with either library


def base() -> None:
    """From now on the peak of this process's memory counts."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_mb(what: str = "VmHWM") -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(what)


def be_busy(seconds: float) -> None:
    time.sleep(seconds)


def size_of(x: torch.Tensor) -> int:
    return x.numel()


def flood(library: str, number: int) -> tuple[int, float]:
    """On an observer: so many calls with 100 kB each, none waited for before all have begun. Answers, and MB grown."""
    rpc = imported(library)
    base()
    before = memory_mb("VmRSS")
    calls = [rpc.rpc_async("worker0", size_of, args=(torch.full((CALL_FLOATS,), float(i)),)) for i in range(number)]
    right = sum(call.wait() == CALL_FLOATS for call in calls)
    return right, memory_mb() - before


def overload(rpc: Any, library: str, count: int, quick: bool) -> Figures:  # Any: the module under either name
    """The agent's threads do something else for a while; meanwhile all observers call it without waiting."""
    number, busy_s, most = (100, 2.0, 0) if quick else (400, 10.0, 0)
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            most = max(most, len(os.listdir("/proc/self/task")))

    watching = threading.Thread(target=watch)
    watching.start()
    rpc.rpc_sync("worker1", be_busy, args=(0.2,))
    base()
    before, threads = memory_mb("VmRSS"), len(os.listdir("/proc/self/task"))
    busy = [rpc.rpc_async("worker0", be_busy, args=(busy_s,)) for _ in range(THREADS)]
    time.sleep(0.2)
    floods = [rpc.rpc_async(f"worker{i + 1}", flood, args=(library, number)) for i in range(count)]
    found = [each.wait() for each in floods]
    for each in busy:
        each.wait()
    over.set()
    watching.join()
    return {
        "callee MB": memory_mb() - before,
        "caller MB": max(grown for _, grown in found),
        "answered": 100 * sum(right for right, _ in found) / (count * number),
        "threads": float(most - threads),
    }


def in_wait_all(rpc: Any, library: str, quick: bool) -> Figures:  # Any: the module under either name
    """One call inside the block that waits for all calls begun in it: `_wait_all` in torch."""
    wait_all = rpc.api._wait_all if library == "torch" else importlib.import_module("fanwise.rpc.calls").wait_all

    def once() -> None:
        with wait_all():
            rpc.rpc_async("worker1", noop, args=(1,))

    return latency(once, 300 if quick else 2000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=["fanwise", "torch"], required=True)
    parser.add_argument("--observers", type=int, default=0)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without-ipc", action="store_true")
    args = parser.parse_args()
    world_size = 1 + (args.observers or 1)
    if args.without_ipc:
        os.environ["FANWISE_CUDA_IPC"] = "0"  # of both workers
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{folder}/meet"
        if args.tls:
            shared_secret = importlib.import_module("fanwise.links.shared_secret")
            os.environ["FANWISE_SECRET"] = shared_secret.new_secret()
            init_method = f"tcp://127.0.0.1:{free_port()}"
        context = spawn(  # type: ignore[no-untyped-call]  # torch's
            work, args=(args.library, world_size, init_method), nprocs=world_size - 1, join=False
        )
        try:
            call_and_answer(args, world_size, init_method)
        except BaseException:
            for process in context.processes:  # it would wait for this one, and this one for it
                process.kill()
            raise
        while not context.join():
            pass


def call_and_answer(args: argparse.Namespace, world_size: int, init_method: str) -> None:
    """As rank 0: measure what is asked for, until the end of the input."""
    rpc = join(args.library, 0, world_size, init_method, args.device)
    more: dict[str, Callable[[Library, bool], Figures]] = {
        "observers": lambda _, quick: observers(rpc, args.library, args.observers, quick),
        "overload": lambda _, quick: overload(rpc, args.library, args.observers, quick),
        "in_wait_all": lambda _, quick: in_wait_all(rpc, args.library, quick),
        **rpc_measures.of_device(args.device),
    }
    serve(Group(rpc), version(args.library), more)
    for rank in range(1, world_size):
        rpc.rpc_sync(f"worker{rank}", end)
    rpc.shutdown()


def free_port() -> int:
    """Somebody else may take it first; then the program fails and the benchmark says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def version(library: str) -> str:
    return torch.__version__ if library == "torch" else str(sys.modules["fanwise"].__version__)


if __name__ == "__main__":
    main()
