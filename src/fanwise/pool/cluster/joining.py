"""The host's side of `fanwise join`: joins a pool that listens, and runs its jobs until the pool is closed.

dial, with pauses while nobody listens  ->  compare versions  ->  join  ->  jobs  ->  the link ends
    ^----------------------------- the link was lost, and not closed -----------------'
"""

import os
import secrets
import time
from collections.abc import Callable

from ...base.errors import ClosedError, ClusterError, DeadlineExceeded, WorkerLostError
from ...base.text import counted
from ...links.hub import Hub
from ...links.link import Link
from ..leases import Machine
from .host import HostFacts, run_host
from .versions import version_differences, versions

# The pool may begin after its hosts, and a tuner that was killed may be resumed.
_WAIT_S = 60.0
_PAUSE_S = 1.0


def join_pool(host: str, port: int, secret: str, machine: Machine, name: str, say: Callable[[str], None]) -> str:
    """Run jobs of the pool at this address. Blocks until the pool is closed, and return the reason of the end.

    Args:
        machine: what this host contributes.
        name: name of this host in messages of the pool.
        say: called with each message for the user.

    Raises:
        NotInstalled: the library for links between hosts is not installed.
        ClusterError: no pool has answered for a minute, or the pool has other versions.
        AuthenticationError, WireError: the pool has another secret, or speaks another protocol.
    """
    from ...links.security.certificates import Identity
    from ...links.transports.tcp import dial_tcp

    identity, address = Identity(secret), f"{host}:{port}"

    def dial(hub: Hub) -> Link:
        until_s, is_waiting = time.monotonic() + _WAIT_S, False
        while True:
            try:
                return dial_tcp(hub, host, port, identity)
            except (WorkerLostError, DeadlineExceeded) as error:
                if time.monotonic() >= until_s:
                    raise ClusterError(f"no pool has answered within {_WAIT_S:g} s: {error.message}") from error
                if not is_waiting:
                    say(f"waiting {_WAIT_S:g} s for a pool at {address}: {error.message}")
                is_waiting = True
                time.sleep(_PAUSE_S)

    def compare(link: Link) -> None:
        if differences := version_differences(versions(), link.ask("versions")):
            raise ClusterError(
                f"the pool at {address} has other versions than this host: {'; '.join(differences)}. "
                f"Install the same on both"
            )
        gpus = counted(len(machine.gpus), "GPU")
        say(f"{name} joins the pool at {address} with {counted(machine.cpus, 'CPU')} and {gpus}")

    while True:
        facts = HostFacts(f"{name} {secrets.token_hex(8)}", "", "", name, os.getpid(), machine)
        try:
            ending = run_host(facts, dial, compare)
            reason = ending.reason
            if ending.clean:
                return reason
        except ClosedError as error:
            return error.message
        except (WorkerLostError, DeadlineExceeded) as error:
            reason = error.message
        say(f"the connection to the pool was lost, and its jobs here have ended: {reason}. Joining again")
