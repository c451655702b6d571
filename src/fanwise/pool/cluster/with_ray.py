"""The process that speaks with Ray for one pool, and what it has Ray run on the nodes. Nothing else imports Ray.

    pool --settings, then where it listens--> this process --an actor for each bundle--> Ray --> host on a node
    pool <------- news, a line each --------- this process <--what became of each actor---'

A process of its own, because to speak with Ray starts threads, changes handlers of signals and the environment, and is
possible once in a process: all of it would be in the user's program otherwise, which may speak with Ray itself.

For each alive node that has none - or for each of the bundles that were asked for - it has Ray run one actor. That
first tells the node's versions, before anything of ours is loaded there, and then serves until its link to the pool
ends (`host`). When it is gone, or its node is, another is started as soon as Ray has a place. This process ends when
its standard input does, and Ray ends what it has started, also when this process is killed.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import queue
import shutil
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ...base.text import counted

# How often to look for nodes that have come.
_LOOK_EVERY_S = 1.0

# After an actor has failed, the next one for its place.
_AGAIN_AFTER_S = 2.0

_REACH_WITHIN_S = 5.0
_LET_GO_WITHIN_S = 5.0
_COMPARED = ("fanwise", "torch")


def versions() -> dict[str, str]:
    """Of Python, and of what is installed here."""
    found = {"Python": platform.python_version()}
    for name in _COMPARED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main(config: dict[str, Any]) -> None:  # Any: JSON
    """Speak with Ray until standard input ends. `config`: the settings, see `ray_process`."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    connected = threading.Event()
    threading.Thread(target=_read, args=(lines, connected, config["folder"]), daemon=True).start()
    try:
        _Speaker(config, lines, connected).run()
    except _Failed as failed:
        _say("fatal", why=failed.why, text=str(failed))


def _read(lines: "queue.SimpleQueue[str]", connected: threading.Event, folder: str) -> None:
    """Hand on what the pool says; an empty line when it has gone. To connect may take Ray minutes: then end at once."""
    for line in sys.stdin:
        lines.put(line)
    shutil.rmtree(folder, ignore_errors=True)  # of the pool, which may have been killed
    if not connected.is_set():
        os._exit(0)
    lines.put("")


def _say(kind: str, **values: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.__stdout__.write(json.dumps({"kind": kind, **values}) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]


class _Failed(Exception):
    """The pool cannot begin."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why


@dataclass(slots=True)
class _Place:
    """Where a host may be: a node, or a bundle of the placement group."""

    name: str
    bundle: dict[str, float]
    strategy: Any  # Any: Ray's
    actor: Any = None  # Any: Ray's
    asked: Any = None  # Any: Ray's reference to what the actor does now
    looks: bool = False
    key: str = ""
    number: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True)
class _Speaker:
    config: dict[str, Any]  # Any: JSON
    lines: "queue.SimpleQueue[str]"
    connected: threading.Event
    places: dict[str, _Place] = field(default_factory=dict)
    ray: Any = None  # Any: the library, which has no types that hold
    actor_class: Any = None  # Any: Ray's
    listener: dict[str, Any] | None = None  # Any: JSON
    group: Any = None  # Any: Ray's

    def run(self) -> None:
        ray = self._connect()
        self.connected.set()
        try:
            _say("connected", address=ray.util.get_node_ip_address())
            line = self.lines.get()
            if not line:
                return
            self.listener = json.loads(line)
            self.actor_class = ray.remote(_host_class())
            if self.config["bundles"]:
                self._place_bundles()
            first = True
            while not self._told_to_end(0.0 if first else _LOOK_EVERY_S):
                self._look()
                if first:
                    _say("settled", hosts=[place.key for place in self.places.values()])
                first = False
        finally:
            self._let_go()

    # -- the beginning -----------------------------------------------------------------------------------------------

    def _connect(self) -> Any:  # Any: the library
        try:
            import ray
        except ImportError as error:
            raise _Failed("not-installed", str(error)) from error
        self.ray = ray
        address = os.environ.get("RAY_ADDRESS") or self.config["address"]
        if self.config["address"] != "auto":
            address = self.config["address"]
        tried = f"{address!r}" + (" (of RAY_ADDRESS)" if address != self.config["address"] else "")
        _check_reachable(address, tried) if address != "auto" else _check_auto(tried)
        # What cannot be had is not looked for: without this Ray would start a cluster of its own.
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
            if self._told_to_end(0.0):
                return
            if time.monotonic() >= until_s:
                raise _Failed("too-few", f"{_all_of(bundles)} asked for by bundles={bundles}; {self._what_exists()}")
        for index, bundle in enumerate(bundles):
            strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=index)
            self.places[f"bundle {index}"] = _Place(f"bundle {index}", bundle, strategy)

    def _what_exists(self) -> str:
        nodes = [_amounts(node["Resources"]) for node in self.ray.nodes() if node["Alive"]]
        there = f"{_amounts(self.ray.cluster_resources())} on {counted(len(nodes), 'node')}"
        return f"the cluster has {there} ({'; '.join(nodes)}); free now: {_amounts(self._free())}"

    def _free(self) -> dict[str, float]:
        """What nobody holds now."""
        free: dict[str, float] = self.ray.available_resources()
        return free

    # -- while it runs -----------------------------------------------------------------------------------------------

    def _told_to_end(self, within_s: float) -> bool:
        """Wait for what an actor says, or the end, so long at most."""
        until_s = time.monotonic() + within_s
        while True:
            self._hear(min(0.2, max(0.0, until_s - time.monotonic())))
            try:
                if self.lines.get_nowait() == "":
                    return True
            except queue.Empty:
                pass
            if time.monotonic() >= until_s:
                return False

    def _look(self) -> None:
        """Have a host at each place that has none."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self.group is None:
            alive = {node["NodeID"]: node["Resources"] for node in self.ray.nodes() if node["Alive"]}
            for name in self.places.keys() - alive.keys():
                if self.places[name].asked is None:
                    del self.places[name]
            for name, resources in alive.items():
                bundle = {kind: float(int(resources.get(kind, 0))) for kind in ("CPU", "GPU")}
                if name not in self.places and bundle["CPU"] >= 1:
                    self.places[name] = _Place(name, bundle, NodeAffinitySchedulingStrategy(name, soft=False))
        for place in self.places.values():
            if place.asked is None and time.monotonic() >= place.not_before_s:
                self._start(place)

    def _start(self, place: _Place) -> None:
        place.number += 1
        place.key = f"{place.name} {os.getpid()}.{place.number}"
        more = {kind: amount for kind, amount in place.bundle.items() if kind not in ("CPU", "GPU", "memory")}
        place.actor = self.actor_class.options(
            num_cpus=place.bundle.get("CPU", 0),
            num_gpus=place.bundle.get("GPU", 0),
            memory=place.bundle.get("memory"),
            resources=more,
            scheduling_strategy=place.strategy,
            max_restarts=0,
        ).remote()
        place.asked, place.looks = place.actor.look.remote(), True

    def _hear(self, within_s: float) -> None:
        """What the actors say that have something to say."""
        waiting = {place.asked: place for place in self.places.values() if place.asked is not None}
        if not waiting:
            time.sleep(within_s)
            return
        done, _ = self.ray.wait(list(waiting), num_returns=len(waiting), timeout=within_s)
        for asked in done:
            self._on_answer(waiting[asked], asked)

    def _on_answer(self, place: _Place, asked: Any) -> None:  # Any: Ray's reference
        place.asked = None
        try:
            told = self.ray.get(asked)
        except Exception as error:  # Ray has many: the actor died, its node did, its environment cannot be made
            self._failed(place, "lost" if not place.looks else "not-started", _in_short(error))
            return
        if not place.looks:
            self._failed(place, "ended", told)
            return
        from .versions import differences

        node, where, found = told
        if wrong := differences(self.config["versions"], found):
            self._failed(place, "versions", f"node {where}: {'; '.join(wrong)}")
            place.not_before_s = float("inf")  # the same node will be no other
            return
        place.looks = False
        place.asked = place.actor.serve.remote(place.key, node, place.bundle, self.listener)

    def _failed(self, place: _Place, why: str, text: str) -> None:
        """Its actor is of no use any more."""
        with contextlib.suppress(Exception):
            self.ray.kill(place.actor)
        place.actor = None
        place.not_before_s = time.monotonic() + _AGAIN_AFTER_S
        _say("failed", host=place.key, why=why, text=text)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """The hosts end with their links to the pool; those that do not are ended."""
        serving = [place.asked for place in self.places.values() if place.asked is not None and not place.looks]
        with contextlib.suppress(Exception):
            if serving:
                self.ray.wait(serving, num_returns=len(serving), timeout=_LET_GO_WITHIN_S)
            for place in self.places.values():
                if place.actor is not None:
                    self.ray.kill(place.actor)
            if self.group is not None:
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(self.group)
        if self.ray is not None:
            self.ray.shutdown()


def _check_reachable(address: str, tried: str) -> None:
    """Raise unless somebody listens there. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_WITHIN_S).close()
    except (OSError, ValueError) as error:
        raise _Failed("no-cluster", f"tried {tried}: {error}") from error


def _check_auto(tried: str) -> None:
    """Raise when nobody listens where Ray would look; when it finds no address at all, it says so itself."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    noted = Path(folder, "ray", "ray_current_cluster")  # of the cluster that was started last
    with contextlib.suppress(FileNotFoundError):
        if address := of_auto(noted.read_text().strip(), _clusters_here()):
            _check_reachable(address, f"{tried}, which is {address!r} as {noted} says")


def of_auto(noted: str, here: set[str]) -> str:
    """The address that Ray notes and would take for "auto"; empty: it takes that of the only cluster on this machine.

    >>> of_auto("10.0.0.1:6379", here={"10.0.0.2:6379"}), of_auto("10.0.0.1:6379", here=set())
    ('', '10.0.0.1:6379')
    """
    return noted if len(here) != 1 else ""


def _clusters_here() -> set[str]:
    """The addresses of the clusters that this machine has nodes of."""
    option = "--gcs-address="
    nodes = [each.info["cmdline"] for each in psutil.process_iter(["name", "cmdline"]) if each.info["name"] == "raylet"]
    return {word.removeprefix(option) for words in nodes for word in words or () if word.startswith(option)}


def _in_short(error: Exception) -> str:
    """What happened and why: Ray says that first and last, and ids in between."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def _all_of(bundles: list[dict[str, float]]) -> str:
    return _amounts({kind: sum(b.get(kind, 0) for b in bundles) for kind in {k for b in bundles for k in b}})


def _amounts(resources: dict[str, float]) -> str:
    """The CPUs, GPUs and what else was named; without what Ray counts for itself."""
    own = {kind: amount for kind, amount in sorted(resources.items()) if not kind.startswith(("node:", "object_store"))}
    return ", ".join(f"{amount:g} {kind}" for kind, amount in own.items() if kind != "memory") or "nothing"


def _host_class() -> type:
    """The actor. A class of no module, so that it travels by value: a node without fanwise shall be told, not crash."""

    class FanwiseHost:
        """A host of a pool; its process is Ray's."""

        def look(self) -> tuple[str, str, dict[str, str]]:
            """The node, for people too, and its versions. Loads nothing of ours."""
            import importlib.metadata
            import platform
            import socket

            import ray

            found = {"Python": platform.python_version()}
            for name in ("fanwise", "torch"):
                try:
                    found[name] = importlib.metadata.version(name)
                except importlib.metadata.PackageNotFoundError:
                    pass
            node = ray.get_runtime_context().get_node_id()
            return node, f"{socket.gethostname()} ({ray.util.get_node_ip_address()})", found

        def serve(self, key: str, node: str, bundle: dict[str, float], listener: dict[str, Any]) -> str:
            """Run jobs until the link to the pool ends; why it ended."""
            import ray

            from fanwise.pool.cluster.serving import serve

            return serve(key, node, ray.util.get_node_ip_address(), bundle, listener)

    return FanwiseHost
