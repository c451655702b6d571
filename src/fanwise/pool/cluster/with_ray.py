"""The Ray driver process of a pool, and the host actors that Ray runs for it. No other file imports Ray.

Ray needs its own process, because it starts threads, changes signal handlers and environment variables, and can be
initialized once per process, which the user's program may do itself.

Each node with CPUs, or each requested bundle, gets one actor. The actor first reports the versions of its node, before
it loads fanwise, and then serves until its link to the pool ends (`host`). When an actor or its node is gone, another
one is started as soon as Ray has room. This process ends when its standard input is closed, and Ray then ends the
actors, also if this process is killed.
"""

import contextlib
import json
import os
import queue
import shutil
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ...base.text import counted
from .versions import version_differences

# Interval of the search for new nodes.
_NODES_S = 1.0
_POLL_S = 0.2

# Pause before a failed actor is replaced.
_RESTART_S = 2.0

_CONNECT_S = 5.0
_EXIT_S = 5.0


def main(config: dict[str, Any]) -> None:
    """Run until standard input is closed. `config`: see `starting`."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    connected = threading.Event()
    threading.Thread(target=_read_stdin, args=(lines, connected, config["folder"]), daemon=True).start()
    try:
        _RayDriver(config, lines, connected).run()
    except _Failed as failed:
        _emit("fatal", why=failed.why, text=str(failed))


def _read_stdin(lines: "queue.SimpleQueue[str]", connected: threading.Event, folder: str) -> None:
    """Put lines into the queue, and an empty one at the end. Exit at once if Ray is connecting, which takes minutes."""
    for line in sys.stdin:
        lines.put(line)
    shutil.rmtree(folder, ignore_errors=True)  # of the pool, which may have been killed
    if not connected.is_set():
        os._exit(0)
    lines.put("")


def _emit(kind: str, **values: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.__stdout__.write(json.dumps({"kind": kind, **values}) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]


class _Failed(Exception):
    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why


@dataclass(slots=True)
class _Slot:
    """A node, or a bundle of the placement group, with the actor of its host.

    Attributes:
        task: Ray's reference to the running method of the actor.
        is_checking: the method is `check`, and not `serve`.
    """

    name: str
    bundle: dict[str, float]
    strategy: Any
    actor: Any = None
    task: Any = None
    is_checking: bool = False
    key: str = ""
    num_actors: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True)
class _RayDriver:
    config: dict[str, Any]
    lines: "queue.SimpleQueue[str]"
    connected: threading.Event
    slots: dict[str, _Slot] = field(default_factory=dict)
    ray: Any = None
    actor_class: Any = None
    listener: dict[str, Any] | None = None
    group: Any = None

    def run(self) -> None:
        ray = self._connect()
        self.connected.set()
        try:
            _emit("connected", address=ray.util.get_node_ip_address())
            line = self.lines.get()
            if not line:
                return
            self.listener = json.loads(line)
            self.actor_class = ray.remote(_host_class())
            if self.config["bundles"]:
                self._place_bundles()
            is_first = True
            while not self._wait_for_end(0.0 if is_first else _NODES_S):
                self._start_missing()
                if is_first:
                    _emit("settled", hosts=[slot.key for slot in self.slots.values()])
                is_first = False
        finally:
            self._shut_down()

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError as error:
            raise _Failed("not-installed", str(error)) from error
        self.ray = ray
        address = self.config["address"]
        tried = f"{address!r}"
        if address == "auto" and os.environ.get("RAY_ADDRESS"):
            address = os.environ["RAY_ADDRESS"]
            tried = f"{address!r} (of RAY_ADDRESS)"
        # Without an address, Ray would start a cluster of its own.
        if address != "auto":
            host, _, port = address.rpartition(":")
            try:  # Ray itself would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
            except (OSError, ValueError) as error:
                raise _Failed("no-cluster", f"tried {tried}: {error}") from error
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                configure_logging=False,
                runtime_env=self.config["runtime_env"] or None,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
            why = "versions" if "ersion mismatch" in str(error) else "no-cluster"
            raise _Failed(why, f"tried {tried}: {error}") from error
        return ray

    def _place_bundles(self) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundles = self.config["bundles"]
        self.group = placement_group(bundles, strategy="PACK")
        until_s = time.monotonic() + self.config["within_s"]
        while not self.group.wait(timeout_seconds=0.5):
            if self._wait_for_end(0.0):
                return
            if time.monotonic() >= until_s:
                kinds = {kind for bundle in bundles for kind in bundle}
                total = _amounts({kind: sum(bundle.get(kind, 0) for bundle in bundles) for kind in kinds})
                nodes = [_amounts(node["Resources"]) for node in self.ray.nodes() if node["Alive"]]
                raise _Failed(
                    "too-few",
                    f"{total} asked for by bundles={bundles}; the cluster has "
                    f"{_amounts(self.ray.cluster_resources())} on {counted(len(nodes), 'node')} ({'; '.join(nodes)}); "
                    f"free now: {_amounts(self.ray.available_resources())}",
                )
        for index, bundle in enumerate(bundles):
            strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=index)
            self.slots[f"bundle {index}"] = _Slot(f"bundle {index}", bundle, strategy)

    def _wait_for_end(self, within_s: float) -> bool:
        """Handle results of actors for this time. Return True if standard input was closed."""
        until_s = time.monotonic() + within_s
        while True:
            left_s = min(_POLL_S, max(0.0, until_s - time.monotonic()))
            tasks = {slot.task: slot for slot in self.slots.values() if slot.task is not None}
            if tasks:
                for task in self.ray.wait(list(tasks), num_returns=len(tasks), timeout=left_s)[0]:
                    self._on_result(tasks[task], task)
            else:
                time.sleep(left_s)
            with contextlib.suppress(queue.Empty):
                if self.lines.get_nowait() == "":
                    return True
            if time.monotonic() >= until_s:
                return False

    def _start_missing(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self.group is None:
            alive = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
            for name in self.slots.keys() - alive.keys():
                if self.slots[name].task is None:
                    del self.slots[name]
            for name, resources in alive.items():
                bundle = {kind: float(int(resources.get(kind, 0))) for kind in ("CPU", "GPU")}
                if name not in self.slots and bundle["CPU"] >= 1:
                    self.slots[name] = _Slot(name, bundle, NodeAffinitySchedulingStrategy(name, soft=False))
        for slot in self.slots.values():
            if slot.task is None and time.monotonic() >= slot.not_before_s:
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.num_actors += 1
        slot.key = f"{slot.name} {os.getpid()}.{slot.num_actors}"
        custom = {kind: amount for kind, amount in slot.bundle.items() if kind not in ("CPU", "GPU", "memory")}
        slot.actor = self.actor_class.options(
            num_cpus=slot.bundle.get("CPU", 0),
            num_gpus=slot.bundle.get("GPU", 0),
            memory=slot.bundle.get("memory"),
            resources=custom,
            scheduling_strategy=slot.strategy,
            max_restarts=0,
        ).remote()
        slot.task, slot.is_checking = slot.actor.check.remote(), True

    def _on_result(self, slot: _Slot, task: Any) -> None:
        slot.task = None
        try:
            result = self.ray.get(task)
        except Exception as error:  # many types: the actor or its node died, or its environment cannot be created
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            text = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"  # without the ids in between
            self._fail(slot, "not-started" if slot.is_checking else "lost", text)
            return
        if not slot.is_checking:
            self._fail(slot, "ended", result)
            return
        node, node_name, installed = result
        if differences := version_differences(self.config["versions"], installed):
            self._fail(slot, "versions", f"node {node_name}: {'; '.join(differences)}")
            slot.not_before_s = float("inf")
            return
        slot.is_checking = False
        slot.task = slot.actor.serve.remote(slot.key, node, slot.bundle, self.listener)

    def _fail(self, slot: _Slot, why: str, text: str) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(slot.actor)
        slot.actor = None
        slot.not_before_s = time.monotonic() + _RESTART_S
        _emit("failed", host=slot.key, why=why, text=text)

    def _shut_down(self) -> None:
        """Wait until hosts have ended, which they do with their links, and kill the rest."""
        serving = [slot.task for slot in self.slots.values() if slot.task is not None and not slot.is_checking]
        with contextlib.suppress(Exception):
            if serving:
                self.ray.wait(serving, num_returns=len(serving), timeout=_EXIT_S)
            for slot in self.slots.values():
                if slot.actor is not None:
                    self.ray.kill(slot.actor)
            if self.group is not None:
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(self.group)
        if self.ray is not None:
            self.ray.shutdown()


def _amounts(resources: dict[str, float]) -> str:
    """Return CPUs, GPUs and custom resources in words, without Ray's internal ones."""
    own = {kind: amount for kind, amount in sorted(resources.items()) if not kind.startswith(("node:", "object_store"))}
    return ", ".join(f"{amount:g} {kind}" for kind, amount in own.items() if kind != "memory") or "nothing"


def _host_class() -> type:
    """Return the class of the actor, which is sent by value, so that a node without fanwise can report that."""

    class FanwiseHost:
        def check(self) -> tuple[str, str, dict[str, str]]:
            """Return the node's id, its name and its versions. Does not import fanwise."""
            import contextlib
            import importlib.metadata
            import platform
            import socket

            import ray

            installed = {"Python": platform.python_version()}
            for name in ("fanwise", "torch"):
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    installed[name] = importlib.metadata.version(name)
            node = ray.get_runtime_context().get_node_id()
            return node, f"{socket.gethostname()} ({ray.util.get_node_ip_address()})", installed

        def serve(self, key: str, node: str, bundle: dict[str, float], listener: dict[str, Any]) -> str:
            """Run jobs until the link to the pool ends. Return the reason."""
            import ray

            from fanwise.pool.cluster.host import serve

            return serve(key, node, ray.util.get_node_ip_address(), bundle, listener)

    return FanwiseHost
