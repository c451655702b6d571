"""Which worker reads which shard, ahead of the steps that use them. A quiet file: it is told facts, and gives orders.

    want(shards of the next batches) --sends--> worker 0, worker 1 ...     came(worker, shard)    taken(shard)
                                                                           died(worker): its shards are sent again
                                                                           drop_before(batch): nobody wants them now

A shard is known by (batch, shard). It waits, then one worker has it, then it is there, until it is taken. Shards are
sent in the order of the batches, each to the worker that has least to do, and each worker reads in the order in which
they were sent to it. Knows no process, no time and no sample.

Invariants: a shard is in one place; what has come and is not wanted any more is not kept; nobody has more than `most`.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

Shard = tuple[int, int]  # the number of a batch, and of the shard in it


@dataclass(frozen=True, slots=True)
class Send:
    """Order: this worker reads this shard, after those that it has."""

    worker: int
    shard: Shard


@dataclass(slots=True)
class ReadAhead:
    """See the module.

    Args:
        workers: how many read. most: shards that one of them may have at a time.

    >>> book = ReadAhead(workers=2)
    >>> book.want([(0, 0), (0, 1), (1, 0)])
    >>> book.sends()
    [Send(worker=0, shard=(0, 0)), Send(worker=1, shard=(0, 1)), Send(worker=0, shard=(1, 0))]
    >>> book.died(0), book.sends()
    ((0, 0), [Send(worker=0, shard=(0, 0)), Send(worker=0, shard=(1, 0))])
    """

    workers: int
    most: int = 64
    waiting: list[Shard] = field(default_factory=list)  # sorted
    held: list[list[Shard]] = field(init=False)  # by each worker, in the order of sending
    there: set[Shard] = field(default_factory=set)
    unwanted: set[Shard] = field(default_factory=set)  # some worker has them still
    deaths: dict[Shard, int] = field(default_factory=dict)  # of workers that were reading it

    def __post_init__(self) -> None:
        self.held = [[] for _ in range(self.workers)]

    def knows(self, shard: Shard) -> bool:
        """Whether it is wanted: it waits, is being read, or is there."""
        return shard in self.there or shard in self.waiting or any(shard in each for each in self.held)

    def want(self, shards: Iterable[Shard]) -> None:
        """These are to be read, where they are not yet. Of no batch that was dropped."""
        for shard in shards:
            if not self.knows(shard):
                insort(self.waiting, shard)

    def sends(self) -> list[Send]:
        """What is to be sent now."""
        orders = []
        while self.waiting:
            worker = min(range(self.workers), key=lambda each: len(self.held[each]))
            if len(self.held[worker]) >= self.most:
                break
            shard = self.waiting.pop(0)
            self.held[worker].append(shard)
            orders.append(Send(worker, shard))
        return orders

    def came(self, worker: int, shard: Shard) -> bool:
        """This worker has read it. Whether anybody wants it."""
        self.held[worker].remove(shard)
        self.deaths.pop(shard, None)
        if shard in self.unwanted:
            self.unwanted.discard(shard)
            return False
        self.there.add(shard)
        return True

    def died(self, worker: int) -> Shard | None:
        """Another worker has taken its place, with nothing to do; what it had waits again.

        Returns:
            The wanted shard that it was at, whose deaths are one more; None if there was none.
        """
        lost, self.held[worker] = self.held[worker], []
        at = lost[0] if lost and lost[0] not in self.unwanted else None
        for shard in lost:
            if shard in self.unwanted:
                self.unwanted.discard(shard)
            else:
                insort(self.waiting, shard)
        if at is not None:
            self.deaths[at] = self.deaths.get(at, 0) + 1
        return at

    def failed(self, shard: Shard) -> None:
        """A shard that waits is not to be read again: that it cannot be is all that comes of it."""
        self.waiting.remove(shard)
        self.deaths.pop(shard, None)
        self.there.add(shard)

    def taken(self, shard: Shard) -> None:
        """What was there has been used; who wants it again has it read again."""
        self.there.discard(shard)

    def drop_before(self, batch: int) -> set[Shard]:
        """Nobody wants shards of batches before this one. Those that were there."""
        self.waiting = [shard for shard in self.waiting if shard[0] >= batch]
        self.unwanted |= {shard for each in self.held for shard in each if shard[0] < batch}
        self.deaths = {shard: deaths for shard, deaths in self.deaths.items() if shard[0] >= batch}
        gone = {shard for shard in self.there if shard[0] < batch}
        self.there -= gone
        return gone
