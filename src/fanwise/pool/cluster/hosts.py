"""What a host says of itself when it joins a pool, and what the pool answers. Plain frozen records."""

from dataclasses import dataclass

from ..leases import Machine


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A process on a node that runs jobs for a pool.

    Attributes:
        key: under which it was started; a host that is started anew has another.
        node: the cluster's name of its node.
        address, hostname: of its node, for people.
        pid: its process.
        machine: what its jobs share.
    """

    key: str
    node: str
    address: str
    hostname: str
    pid: int
    machine: Machine

    def __str__(self) -> str:
        return f"{self.hostname} ({self.address}, node {self.node[:8]})"
