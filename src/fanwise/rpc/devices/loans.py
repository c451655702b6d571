"""Decides how a tensor in device memory is sent to another worker, and tracks the loans. Pure.

    why_staged   facts --> None: lend the memory and send a handle; else why the bytes go through main memory
    Loans        lend --> id    give_back, take, lose --> the things to release

A loan belongs to its holder, one incarnation of a worker, until the holder returns its id (`links.outstanding`) or is
lost.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ...links.outstanding import Outstanding

# Smaller tensors are copied: opening a handle takes half a millisecond, as long as such a copy (H200).
LENT_FROM_BYTES = 1 << 20
# Limit of all loans together, except for a single tensor: each is a copy in device memory.
LENT_BYTES_MAX = 1 << 30

NOT_KNOWN = "it is not known yet which devices the other worker sees"

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Sight:
    """The devices that a worker sees, identified by UUIDs, which are equal in all processes of a host.

    Attributes:
        devices: UUIDs by the names of the worker, such as "cuda:0", which depend on CUDA_VISIBLE_DEVICES.
        reach: pairs (a, b) such that a program on device a can read the memory of device b.
    """

    devices: Mapping[str, str] = field(default_factory=dict)
    reach: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a tensor and its receiver.

    Attributes:
        uuid: UUID of its device; "" if its memory cannot be lent.
        target: target device, by the receiver's name; None if the receiver decides, as for replies.
        sight: devices of the receiver; None while unknown.
        lent_bytes: size of all current loans.
        refused: True if lending from this device, or opening a handle there, has failed before.
    """

    size_bytes: int
    uuid: str
    target: str | None
    sight: Sight | None
    is_on_this_host: bool
    is_this_worker: bool = False
    lent_bytes: int = 0
    refused: bool = False


def why_staged(facts: Facts) -> str | None:
    """Return why a tensor is sent through main memory, for messages; None if its memory is lent."""
    if not facts.uuid:
        return "its memory cannot be lent"
    if facts.is_this_worker:
        return "a process cannot open its own handle"
    if not facts.is_on_this_host:
        return "the other worker is on another host"
    if facts.size_bytes < LENT_FROM_BYTES:
        return "it is small"
    if facts.refused:
        return "that failed before"
    if facts.sight is None:
        return NOT_KNOWN
    if facts.uuid not in facts.sight.devices.values():
        return "the other worker does not see the device"
    if facts.target is not None and not _reaches(facts.sight, facts.target, facts.uuid):
        return "the target device cannot access the memory of its device"
    if facts.lent_bytes and facts.lent_bytes + facts.size_bytes > LENT_BYTES_MAX:
        return "too much is lent already"
    return None


def _reaches(sight: Sight, target: str, uuid: str) -> bool:
    there = sight.devices.get(target)
    return there is not None and (there == uuid or (there, uuid) in sight.reach)


@dataclass(slots=True)
class Loans(Generic[Thing]):
    """The loans of one worker: holders and sizes. The things are opaque."""

    total_bytes: int = 0
    _lent: Outstanding[tuple[Thing, int]] = field(default_factory=Outstanding)

    def __len__(self) -> int:
        return len(self._lent)

    def lend(self, thing: Thing, holder: Hashable, size_bytes: int) -> int:
        """Add a loan and return its id."""
        self.total_bytes += size_bytes
        return self._lent.give((thing, size_bytes), holder)

    def give_back(self, ids: Iterable[int], holder: Hashable) -> list[Thing]:
        """End loans that `holder` has released or never received. Return the things to release."""
        return [thing for loan in ids if (thing := self.take(loan, holder)) is not None]

    def take(self, loan: int, holder: Hashable) -> Thing | None:
        """As `give_back`, for one loan. Return None if it is not lent to `holder`."""
        lent = self._lent.take_back(loan, holder)
        return None if lent is None else self._ended(loan, *lent)

    def lose(self, holder: Hashable) -> list[Thing]:
        """End all loans of a lost holder. Return the things to release."""
        return [self._ended(loan, *lent) for loan, lent in self._lent.lose(holder).items()]

    def end(self) -> list[Thing]:
        """End all loans. Return the things to release."""
        self.total_bytes = 0
        return [thing for thing, _ in self._lent.end()]

    def _ended(self, loan: int, thing: Thing, size_bytes: int) -> Thing:
        self.total_bytes -= size_bytes
        return thing
