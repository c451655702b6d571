"""The life of a host's process: dial the pool, serve it, and end everything when the link has ended. Blocks.

Called on the node, by whoever the cluster runs there; knows no Ray.
"""

import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from ..devices import find_machine
from ..leases import Machine
from ..lifetime import Lifetime, Local
from ..runtime_environment import look
from .host import Host
from .hosts import HostFacts

_DIAL_WITHIN_S = 10.0


def serve(key: str, node: str, address: str, bundle: Mapping[str, float], listener: Mapping[str, Any]) -> str:
    """Run jobs on this machine for the pool that listens; why it ended. Blocks until then.

    Args:
        key: under which this host was started.
        node, address: of this machine, as the cluster names them.
        bundle: what of this machine is the pool's: CPU, GPU, memory.
        listener: host, port and secret of the pool (JSON).
    """
    from ...links.security.certificates import Identity
    from ...links.transports.tcp import dial_tcp

    machine = machine_of(find_machine(), bundle)
    life = Lifetime(lambda backend: Local(backend, seed=0, machine=machine))
    try:
        engine = life.start()
        assert life.hub is not None, "comes with the engine"
        link = dial_tcp(
            life.hub, listener["host"], listener["port"], Identity(listener["secret"]), within_s=_DIAL_WITHIN_S
        )
        facts = HostFacts(key, node, address, socket.gethostname(), os.getpid(), machine)
        host = Host(link, engine, facts, look())
        ended = threading.Event()
        link.on_ended(lambda link, ending: ended.set())
        try:
            link.open()
            host.join()
            ended.wait()
        finally:
            # Before the jobs, where this process is told to end: nobody has stopped them, so they do not say so.
            link.close("its host was told to end")
        assert link.ending is not None, "it has ended"
        return link.ending.reason
    finally:
        life.close()


def machine_of(found: Machine, bundle: Mapping[str, float]) -> Machine:
    """What of a machine is the pool's, when so much of it was given to this host.

    >>> machine_of(Machine(cpus=8, memory_bytes=64), {"CPU": 2}).cpus
    2
    """
    gpus = found.gpus[: int(bundle.get("GPU", 0))]
    memory = int(bundle.get("memory", 0)) or found.memory_bytes
    return Machine(int(bundle.get("CPU", 1)), memory, gpus)
