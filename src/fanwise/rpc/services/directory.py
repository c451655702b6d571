"""Which worker has which name, as the coordinator of a group knows it. A quiet file.

    reserve --> granted, or taken by whom          find --> at whom; nobody has it yet: waits, until told or given up
    gone  --> what it had is free

Each worker keeps its own names, so nothing is lost with a coordinator: the next one asks all who are there (`collect`),
and answers nobody until each has told, or is gone. Names that a worker was granted by the coordinator before, and has
not noted when it is asked, are not told: it reserves them again.

A holder is one life of a worker; a ticket is whoever asks, opaque here.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..worker_info import WorkerKey

Ticket = Hashable


class Taken(NamedTuple):
    """Result: the name is this worker's. Said to itself, too: it was granted."""

    holder: WorkerKey


class Unknown(NamedTuple):
    """Result: nobody has it, and the time of who asks is over. These names there are."""

    names: tuple[str, ...]


class Respond(NamedTuple):
    """Order: tell who asks."""

    ticket: Ticket
    result: Taken | Unknown


@dataclass(frozen=True, slots=True)
class _Asked:
    ticket: Ticket
    by: WorkerKey
    name: str
    reserves: bool


@dataclass(slots=True)
class Directory:
    """See the module. Nothing is asked before `collect` was called."""

    holders: dict[str, WorkerKey] = field(default_factory=dict)
    _untold: set[WorkerKey] = field(default_factory=set)
    _asked: list[_Asked] = field(default_factory=list)

    def collect(self, members: Iterable[WorkerKey]) -> None:
        """These may have names that are not known here: each will be `told`, or is `gone`."""
        self._untold = set(members)

    def told(self, member: WorkerKey, names: Iterable[str]) -> list[Respond]:
        """A member that was asked has these names, and no others."""
        if member not in self._untold:
            return []
        self._untold.discard(member)
        for name in names:
            self.holders.setdefault(name, member)
        return self._settle()

    def reserve(self, ticket: Ticket, by: WorkerKey, name: str) -> list[Respond]:
        """`by` wants the name for a value that it keeps. May be repeated."""
        self._asked.append(_Asked(ticket, by, name, reserves=True))
        return self._settle()

    def find(self, ticket: Ticket, by: WorkerKey, name: str) -> list[Respond]:
        """Who has it? Answered when somebody does, or when it is given up."""
        self._asked.append(_Asked(ticket, by, name, reserves=False))
        return self._settle()

    def give_up(self, ticket: Ticket) -> list[Respond]:
        """Who asks waits no longer. Nothing when it was answered."""
        left = [asked for asked in self._asked if asked.ticket != ticket]
        is_answered, self._asked = len(left) == len(self._asked), left
        return [] if is_answered else [Respond(ticket, Unknown(self.names()))]

    def drop(self, by: WorkerKey, name: str) -> None:
        """`by` does not want it any more."""
        if self.holders.get(name) == by:
            del self.holders[name]

    def gone(self, member: WorkerKey) -> list[Respond]:
        """It died or left: its names are free, and what it asked is forgotten."""
        self._untold.discard(member)
        self.holders = {name: holder for name, holder in self.holders.items() if holder != member}
        self._asked = [asked for asked in self._asked if asked.by != member]
        return self._settle()

    def names(self) -> tuple[str, ...]:
        """All that there are."""
        return tuple(sorted(self.holders))

    def _settle(self) -> list[Respond]:
        if self._untold:
            return []
        answers = []
        waiting = []
        for asked in self._asked:
            if asked.reserves:
                answers.append(Respond(asked.ticket, Taken(self.holders.setdefault(asked.name, asked.by))))
            else:
                waiting.append(asked)
        self._asked = []
        for asked in waiting:
            holder = self.holders.get(asked.name)
            if holder is None:
                self._asked.append(asked)
            else:
                answers.append(Respond(asked.ticket, Taken(holder)))
        return answers
