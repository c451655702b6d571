"""Which way a tensor in a device's memory goes to another worker, and what is lent meanwhile. Quiet: opens nothing.

    why_staged   facts --> None: its memory is lent, and a handle travels; else why its bytes go through main memory
    Loans        lend --> id    give_back, take, lose --> what may be let go of

A loan belongs to its holder, one life of one worker, until that returns it by its id (`links.outstanding`). Who is lost
holds nothing.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ...links.outstanding import Outstanding

# What is smaller goes with the message: to open a handle takes half a millisecond, as long as such a copy (H200).
LENT_FROM_BYTES = 1 << 20
# More than this is not lent to all others together, one tensor excepted: each is a copy in the device's memory.
LENT_BYTES_MAX = 1 << 30

NOT_KNOWN = "it is not known yet which devices the other worker sees"

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Sight:
    """What a worker sees of devices, each known by a number that all processes of the host agree on (its UUID).

    Attributes:
        devices: UUIDs by the worker's own names, such as "cuda:0", which CUDA_VISIBLE_DEVICES changes.
        reach: (one, other): a program on the one reads the memory of the other.
    """

    devices: Mapping[str, str] = field(default_factory=dict)
    reach: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """About one tensor, and the worker it goes to.

    Attributes:
        uuid: of the device it lies on; "" when nothing there can be lent.
        target: where it shall be, by the receiver's name; None: the receiver decides, as for answers.
        sight: the receiver's; None while it is not known.
        lent_bytes: what is lent to all others now.
        refused: whether lending from this device, or opening it there, has failed before.
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
    """Why the bytes go through main memory, for people; None: the memory is lent."""
    if not facts.uuid:
        return "it lies where nothing can be lent"
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
        return "the device where it shall be does not reach the one where it is"
    if facts.lent_bytes and facts.lent_bytes + facts.size_bytes > LENT_BYTES_MAX:
        return "too much is lent already"
    return None


def _reaches(sight: Sight, target: str, uuid: str) -> bool:
    there = sight.devices.get(target)
    return there is not None and (there == uuid or (there, uuid) in sight.reach)


@dataclass(slots=True)
class Loans(Generic[Thing]):
    """What one worker has lent: to whom, and how much. The things are opaque."""

    total_bytes: int = 0
    _lent: Outstanding[tuple[Thing, int]] = field(default_factory=Outstanding)
    _left_by: dict[int, int] = field(default_factory=dict)  # the number of a link

    def __len__(self) -> int:
        return len(self._lent)

    def lend(self, thing: Thing, holder: Hashable, size_bytes: int) -> int:
        """A new loan; its id."""
        self.total_bytes += size_bytes
        return self._lent.give((thing, size_bytes), holder)

    def leaving(self, loans: Iterable[int], link: int) -> None:
        """A message with these leaves by this link."""
        self._left_by.update((loan, link) for loan in loans if loan in self._lent)

    def left_by(self, link: int) -> list[int]:
        """Those that left by this link and are still lent."""
        return [loan for loan, left_by in self._left_by.items() if left_by == link]

    def give_back(self, ids: Iterable[int], holder: Hashable) -> list[Thing]:
        """`holder` has let go of these, or never got them: what is lent no more."""
        return [thing for loan in ids if (thing := self.take(loan, holder)) is not None]

    def take(self, loan: int, holder: Hashable) -> Thing | None:
        """As `give_back`, one. None: it is not lent to `holder`."""
        lent = self._lent.take_back(loan, holder)
        return None if lent is None else self._ended(loan, *lent)

    def lose(self, holder: Hashable) -> list[Thing]:
        """`holder` is gone: what it let go of or not."""
        return [self._ended(loan, *lent) for loan, lent in self._lent.lose(holder).items()]

    def end(self) -> list[Thing]:
        """All that is lent, to anybody."""
        self._left_by.clear()
        self.total_bytes = 0
        return [thing for thing, _ in self._lent.end()]

    def _ended(self, loan: int, thing: Thing, size_bytes: int) -> Thing:
        self._left_by.pop(loan, None)
        self.total_bytes -= size_bytes
        return thing
