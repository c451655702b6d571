"""The pool's side of `Pool(listen=...)`: a listener that hosts join with `fanwise join`, and this machine as a host.

This machine runs a local engine behind a link, like the others, unless it contributes no CPU.
"""

import math
import os
import socket
import threading
from dataclasses import replace
from typing import Any

from ...base.errors import ClusterError
from ...links.hub import Hub
from ...links.transports.unix import link_pair
from ..backend import Lifetime
from ..engine import LocalEngine
from ..leases import Machine
from ..runtime_environment import capture_environment
from ..settings import ListenSettings
from .engine import ClusterEngine
from .host import Host, HostFacts


class ListeningStart:
    """See the module and `backend.Running`. Jobs wait without limit for a host that can run them.

    Args:
        machine: what this machine contributes.
    """

    def __init__(self, hub: Hub, settings: ListenSettings, seed: int, machine: Machine) -> None:
        self.engine = ClusterEngine(hub, seed=seed, patience_s=math.inf)
        self._hub = hub
        self._settings = settings
        self._machine = machine
        self._life = Lifetime(lambda backend: LocalEngine(backend, seed=seed, machine=machine), shares_backend=True)
        self._listener: Any = None  # a TcpListener, whose module loads ssl

    def begin(self) -> None:
        """Listen, and block until there is a host: this machine or, if it has no CPU for the pool, the first to join.

        Raises:
            NotInstalled: the library for links between hosts is not installed.
            ClusterError: this machine cannot listen at the address, or no host has joined in time.
        """
        from ...links.security.certificates import Identity
        from ...links.transports.tcp import TcpListener

        host, port, identity = self._settings.host, self._settings.port, Identity(self._settings.secret)
        has_host = threading.Event()
        self.engine.host_listeners.append(has_host.set)
        try:
            self._listener = TcpListener(
                self._hub, host, port, identity, on_link=self.engine.on_link, all_interfaces=True
            )
        except OSError as error:
            raise ClusterError(
                f"the pool cannot listen at {self._settings}, where hosts would join: {error}"
            ) from error
        address = str(replace(self._settings, port=self._listener.port))
        self.engine.description = f"listening at {address} for hosts that join"
        if self._machine.cpus:
            self._join()
        elif not has_host.wait(self._settings.start_within_s):
            raise ClusterError(
                f"no host has joined the pool at {address} within {self._settings.start_within_s:g} s "
                f"(start_within_s), and it uses no CPU of this machine. On another host, run "
                f"`fanwise join HOST:{self._listener.port} --secret-file FILE`."
            )

    def _join(self) -> None:
        """Let this machine join the pool. Blocks until it has."""
        engine = self._life.start()
        assert isinstance(engine, LocalEngine) and self._life.hub is not None, "comes with the engine"
        near, far = link_pair(self._hub, self._life.hub)
        self.engine.on_link(near)
        name = socket.gethostname()
        address = name if self._settings.host in ("0.0.0.0", "::") else self._settings.host
        facts = HostFacts(name, "", address, name, os.getpid(), self._machine)
        host = Host(far, engine, facts, capture_environment())
        near.open()
        far.open()
        host.join().result()

    def leave(self) -> bool:
        return False

    def close(self) -> None:
        self.engine.close()
        if self._listener is not None:
            self._listener.close()

    def wait_closed(self) -> None:
        self._life.close()
