"""What the reference table of one worker is told and says: messages between tables, orders to its own worker.

    messages  ForkRequest, ChildAccepted, Release, Forget, Unmade, Drain, Drained; they travel in batches
    orders    Send, FreeValue, FailValue, Confirmed, FailRefs, Refused

A reference (RRef) is a value at its owner; a fork is one worker's share in it. Plain values; knows nothing else.
"""

from dataclasses import dataclass
from typing import Literal

from ..messages.ids import GlobalId, WorkerKey
from ..messages.records import control_codec

# Why a call that was to make a value will never come to its owner.
Why = Literal["died", "timed out", "not sent"]


# -- messages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """User to owner: count me. When it is answered, the fork is confirmed."""

    rref_id: GlobalId
    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class ChildAccepted:
    """Child to parent: the owner knows of me, or is me. You may go."""

    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class Release:
    """User to owner: this fork, which you know, is used no more."""

    rref_id: GlobalId
    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class Forget:
    """Creator to owner: the call that creates this was given up; forget the fork, also when the call is yet to come."""

    rref_id: GlobalId
    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class Unmade:
    """Creator to owner: unless it is there, the call that creates this will never come. Then its value is an error.

    In any case this fork holds it.
    """

    rref_id: GlobalId
    fork_id: GlobalId
    why: Why


@dataclass(frozen=True, slots=True)
class Drain:
    """To everybody: take nothing more from `lost` and those before, and say when all you had from them is confirmed.

    `lost_before`: who may not be known to be lost everywhere.
    """

    lost: WorkerKey
    lost_before: tuple[WorkerKey, ...]


@dataclass(frozen=True, slots=True)
class Drained:
    """The answer to Drain."""

    lost: WorkerKey


TableMessage = ForkRequest | ChildAccepted | Release | Forget | Unmade | Drain | Drained


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages from `sender` to `to`, in their order."""

    sender: WorkerKey
    to: WorkerKey
    messages: tuple[TableMessage, ...]


control_codec.register(
    *(Batch, ForkRequest, ChildAccepted, Release, Forget, Unmade, Drain, Drained),
    first_code=16,
)

# -- orders ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Bring this batch to `batch.to`, after those before; then call `delivered` with it."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class FreeValue:
    """No fork is left: let go of the value."""

    rref_id: GlobalId


@dataclass(frozen=True, slots=True)
class FailValue:
    """The call of `creator` will never bring the value: whoever waits for it gets an error."""

    rref_id: GlobalId
    creator: WorkerKey
    why: Why


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The owner knows of this fork."""

    fork_id: GlobalId


@dataclass(frozen=True, slots=True)
class FailRefs:
    """The owner of these forks is lost: each use is an error from now on."""

    fork_ids: tuple[GlobalId, ...]
    owner: WorkerKey


@dataclass(frozen=True, slots=True)
class Refused:
    """A fork that came when `lost`, its owner or its sender, was lost already: it was not taken."""

    fork_id: GlobalId
    lost: WorkerKey


Order = Send | FreeValue | FailValue | Confirmed | FailRefs | Refused
