"""Ids of workers, references and forks, as they are sent, and the type of a call. Pure."""

from collections.abc import Callable
from typing import Any, NamedTuple

# A function, its positional arguments and its keyword arguments.
Invocation = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class WorkerKey(NamedTuple):
    """One incarnation of a worker: a restarted worker keeps its id, the rank, and gets another incarnation."""

    id: int
    incarnation: int


class GlobalId(NamedTuple):
    """The id of a reference or a fork, unique in the group. Formatted as by torch."""

    created_on: int
    incarnation: int
    local_id: int

    @property
    def creator(self) -> WorkerKey:
        """The incarnation of the worker that created this id."""
        return WorkerKey(self.created_on, self.incarnation)

    @property
    def is_actor(self) -> bool:
        """True for a reference to an actor, whose method calls are queued."""
        return self.local_id < 0

    def __str__(self) -> str:
        return f"GloballyUniqueId(created_on={self.created_on}, local_id={self.local_id})"


class Fork(NamedTuple):
    """A share in the reference `rref_id`, created by `parent` for the receiver of a message."""

    rref_id: GlobalId
    fork_id: GlobalId
    owner: WorkerKey
    parent: WorkerKey


Created = tuple[GlobalId, GlobalId]  # a reference that a call creates, and the fork of its caller
