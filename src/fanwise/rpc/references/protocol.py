"""Messages between the reference tables of workers, and the actions that a table returns to its own worker.

A reference (RRef) stands for a value on its owner. A fork is the share of one worker in it.
"""

from dataclasses import dataclass
from typing import Literal

from ..messages.ids import GlobalId, WorkerKey
from ..messages.records import control_codec

# Why the call that creates a value never reaches its owner.
Reason = Literal["died", "timed out", "not sent"]


# -- messages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """User to owner: register this fork. The acknowledgment of the message confirms the fork."""

    rref_id: GlobalId
    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class ChildAccepted:
    """Child to parent: the owner knows this fork, so the parent may be released."""

    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class Release:
    """User to owner: the fork is not used any more. It may be the fork of a creating call that is yet to arrive."""

    rref_id: GlobalId
    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class CreationFailed:
    """Creator to owner: the creating call will never arrive. Register the fork, and fail the value if it is awaited."""

    rref_id: GlobalId
    fork_id: GlobalId
    reason: Reason


@dataclass(frozen=True, slots=True)
class FlushRequest:
    """Request to all workers: accept nothing more from lost workers, and reply when all forks of them are confirmed.

    `lost_before`: workers that the receiver may not know to be lost.
    """

    lost: WorkerKey
    lost_before: tuple[WorkerKey, ...]


@dataclass(frozen=True, slots=True)
class FlushReply:
    """The reply to `FlushRequest`."""

    lost: WorkerKey


TableMessage = ForkRequest | ChildAccepted | Release | CreationFailed | FlushRequest | FlushReply


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages from `sender` to `to`, in order."""

    sender: WorkerKey
    to: WorkerKey
    messages: tuple[TableMessage, ...]


control_codec.register(
    *(Batch, ForkRequest, ChildAccepted, Release, CreationFailed, FlushRequest, FlushReply), first_code=16
)

# -- actions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send the batch, then report `on_delivered`."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class FreeValue:
    """Free the value: no fork is left."""

    rref_id: GlobalId


@dataclass(frozen=True, slots=True)
class FailValue:
    """Set the value to an error: the call of `creator` will never arrive."""

    rref_id: GlobalId
    creator: WorkerKey
    reason: Reason


@dataclass(frozen=True, slots=True)
class ConfirmFork:
    """The owner knows this fork."""

    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class FailFork:
    """Each use of this fork is an error from now on: its owner, or the worker that sent it, is lost."""

    fork_id: GlobalId
    lost: WorkerKey


Action = Send | FreeValue | FailValue | ConfirmFork | FailFork
