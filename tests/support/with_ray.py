"""A Ray cluster of several nodes on this machine, for tests: all of it listens on loopback, and nothing is sent home.

    with RayCluster(cpus=2) as cluster:        a node of two CPUs
        second = cluster.add(cpus=2)           another joins
        cluster.remove(second)                 and dies: its Ray is killed, and what that ran ends by itself
        cluster.power_off(third)               all of its processes are killed at once

    with two_hosts() as (a, b), RayCluster(cpus=2, host=a) as cluster:      nodes on hosts of `networks`
        cluster.add(cpus=2, host=b)

It lives in a process of its own, and that below the init process: Ray keeps starting and ending processes whenever it
likes, which are none of a test's, and the process that tests loads nothing of Ray. It ends with the block, at the
latest with the process that made it. Its nodes are all named 127.0.0.1 where no host is given; Ray tells them apart by
their ids. On hosts, whoever uses the cluster has to be on its first one.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from networks import PlayedHost
from process_tree import MARKER

# What Ray reads when it is loaded, here and in who uses the cluster. Without the first it takes 127.0.0.1 for this
# machine's address in its network, where nobody listens.
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_CLONE_NEWNS, _CLONE_FS = 0x20000, 0x200
_STORE_BYTES = 80 << 20  # of objects; about the least that Ray takes


class RayCluster:
    """See the module. Begins with one node, which cannot be removed. Blocks until Ray is there, some seconds."""

    def __init__(self, cpus: int = 1, host: PlayedHost | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != MARKER}
        # Its paths of sockets must not outgrow what the kernel takes, and outlive a test's folder for temporary files.
        # Its nodes must find the modules of this folder, which functions of tests refer to.
        path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {**ENVIRONMENT, "TMPDIR": "/tmp", "PYTHONPATH": os.pathsep.join(path)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._process.wait()  # the one that goes on is its grandchild
        self.address = str(self._ask({"do": "begin", "cpus": cpus, **_told(host)}))

    def add(self, cpus: int = 1, host: PlayedHost | None = None, hidden: Path | None = None) -> str:
        """A node joins; its id. Blocks until Ray knows it. It does not see what is in the folder `hidden`."""
        return str(self._ask({"do": "add", "cpus": cpus, **_told(host), "hidden": str(hidden or "")}))

    def remove(self, node: str) -> None:
        """A node dies: its Ray is killed, and so what that runs."""
        self._ask({"do": "remove", "node": node})

    def power_off(self, node: str) -> None:
        """A node dies with all of its processes at once: Ray's, and whatever they have started there."""
        self._ask({"do": "power off", "node": node})

    def close(self) -> None:
        """End it. Blocks until its processes are gone."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._ask({"do": "end"})
            self._process.stdin.close()
            assert self._process.stdout is not None, "asked for a pipe"
            self._process.stdout.close()

    def _ask(self, order: dict[str, object]) -> Any:  # Any: JSON
        assert self._process.stdin is not None and self._process.stdout is not None, "asked for pipes"
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of the Ray cluster ended; it was asked to {order}")
        return json.loads(line)

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main() -> None:
    """The cluster's process: becomes nobody's child, and does what comes in, a line each."""
    if os.fork():
        os._exit(0)
    os.chdir(tempfile.gettempdir())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    from ray.cluster_utils import Cluster

    cluster: Any = None  # Any: Ray's
    nodes: dict[str, Any] = {}  # Any: Ray's
    try:
        for line in sys.stdin:
            order = json.loads(line)
            answer: object = None
            match order["do"]:
                case "begin":
                    if order["host"]:
                        PlayedHost(order["host"], order["address"]).enter()
                    cluster = Cluster(initialize_head=True, head_node_args=_arguments(order))
                    answer = cluster.address
                case "add":
                    place = PlayedHost(order["host"], order["address"])
                    with place.entered() if order["host"] else contextlib.nullcontext(), _hidden(order["hidden"]):
                        node = cluster.add_node(**_arguments(order))
                    nodes[node.node_id] = node
                    answer = node.node_id
                case "remove":
                    cluster.remove_node(nodes.pop(order["node"]), allow_graceful=False)
                case "power off":
                    node = nodes.pop(order["node"])
                    _kill_all_below(node.all_processes["raylet"][0].process.pid)
                    cluster.remove_node(node, allow_graceful=False)
                case "end":
                    cluster.shutdown()
            with contextlib.suppress(BrokenPipeError):
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
    finally:
        if cluster is not None:
            cluster.shutdown()


@contextlib.contextmanager
def _hidden(folder: str) -> Iterator[None]:
    """What is started meanwhile, by this thread, sees an empty folder there; empty: as it is."""
    if not folder:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace")
    try:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
        yield
    finally:
        libc.unshare(_CLONE_FS)  # threads that were started meanwhile share the current folder, and stay
        if libc.setns(before, _CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "no way back to the mounts of before")
        os.close(before)
        os.chdir(tempfile.gettempdir())


def _kill_all_below(pid: int) -> None:
    """SIGKILL for a process and all below it. Stopped before, so that none sees another one's death."""
    top = psutil.Process(pid)
    top.suspend()
    processes = [top, *top.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _told(host: PlayedHost | None) -> dict[str, str]:
    return {"host": host.name, "address": host.address} if host else {"host": "", "address": "127.0.0.1"}


def _arguments(order: dict[str, Any]) -> dict[str, object]:  # Any: JSON
    return {
        "num_cpus": order["cpus"],
        "node_ip_address": order["address"],
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
    }


if __name__ == "__main__":
    main()
