"""A Ray cluster of several nodes on this machine, for tests: all of it listens on loopback, and nothing is sent home.

    with RayCluster(cpus=2) as cluster:        a node of two CPUs
        second = cluster.add(cpus=2)           another joins
        cluster.remove(second)                 and dies

It lives in a process of its own, and that below the init process: Ray keeps starting and ending processes whenever it
likes, which are none of a test's, and the process that tests loads nothing of Ray. It ends with the block, at the
latest with the process that made it. Its nodes are all named 127.0.0.1; Ray tells them apart by their ids.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any

from .processes import MARKER

# What Ray reads when it is loaded, here and in who uses the cluster. Without the first it takes 127.0.0.1 for this
# machine's address in its network, where nobody listens.
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_STORE_BYTES = 80 << 20  # of objects; about the least that Ray takes


class RayCluster:
    """See the module. Begins with one node, which cannot be removed. Blocks until Ray is there, some seconds."""

    def __init__(self, cpus: int = 1) -> None:
        environment = {name: value for name, value in os.environ.items() if name != MARKER}
        # Its paths of sockets must not outgrow what the kernel takes, and outlive a test's folder for temporary files.
        environment |= {**ENVIRONMENT, "TMPDIR": "/tmp"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from fanwise.testing.with_ray import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._process.wait()  # the one that goes on is its grandchild
        self.address = str(self._ask({"do": "begin", "cpus": cpus}))

    def add(self, cpus: int = 1) -> str:
        """A node joins; its id. Blocks until Ray knows it."""
        return str(self._ask({"do": "add", "cpus": cpus}))

    def remove(self, node: str) -> None:
        """A node dies: its Ray is killed, and so what that runs."""
        self._ask({"do": "remove", "node": node})

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
                    cluster = Cluster(initialize_head=True, head_node_args=_arguments(order["cpus"]))
                    answer = cluster.address
                case "add":
                    node = cluster.add_node(**_arguments(order["cpus"]))
                    nodes[node.node_id] = node
                    answer = node.node_id
                case "remove":
                    cluster.remove_node(nodes.pop(order["node"]), allow_graceful=False)
                case "end":
                    cluster.shutdown()
            with contextlib.suppress(BrokenPipeError):
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
    finally:
        if cluster is not None:
            cluster.shutdown()


def _arguments(cpus: int) -> dict[str, object]:
    return {
        "num_cpus": cpus,
        "node_ip_address": "127.0.0.1",
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
    }
