"""Batches of a data set, in the order of the run, already cut into the shards of a step.

    data set --order from a key--> places --cut into shards--> read, collated --> Batch

Each shard is read, and collated, by itself: so a shard is the same whether one process makes all of them or each makes
its own, also with a `collate_fn` that pads to the longest. It is read when a step asks for it, or ahead of that by a
worker: the same code makes the same shard, from the same places of the order and the same random numbers.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from ..shards import cut
from .ahead import Shard
from .order import Pass
from .reading import PassReader
from .splitting import Content, arguments, joined, moved, part_of, samples_in, tensors_in
from .transfer import Transfer
from .workers import LoaderWorkers


class Batch:
    """One global batch, in shards. Iterates like the list of tensors that a DataLoader gives: `x, y = batch`.

    A shard is read when somebody asks for it, so a process reads only what it executes; it is then on the device.

    Attributes:
        sizes: samples of each shard.
        last: whether no other batch comes in this pass.
    """

    __slots__ = ("_contents", "_given", "_read", "_versions", "last", "sizes")

    def __init__(
        self, sizes: tuple[int, ...], read: Callable[[int], Content], last: bool = False, given: Content = ()
    ) -> None:
        self.sizes = sizes
        self.last = last
        self._read = read
        self._contents: dict[int, Content] = {}
        self._given = given  # what the program has made, of which shards are views
        self._versions = _versions(given)

    def shard(self, index: int) -> Content | None:
        """The content of a shard; None if it has no samples."""
        if not self.sizes[index]:
            return None
        if index not in self._contents:
            self._contents[index] = self._read(index)
        return self._contents[index]

    def whole(self) -> Content:
        """The content of all shards as one."""
        return joined([self.shard(index) for index, size in enumerate(self.sizes) if size])

    def __len__(self) -> int:
        """Its number of samples."""
        return sum(self.sizes)

    def __iter__(self) -> Iterator[Content]:
        return iter(arguments(self.whole()))


def _versions(content: Content) -> list[int]:
    """How often each tensor was changed in place, as torch counts it; inference tensors are not counted."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_in(content)]


def read_again(batch: Batch) -> None:
    """Its step is made again, and the loss may have changed samples in place: they are read anew.

    Raises:
        ValueError: they are the program's own, and changed.
    """
    batch._contents.clear()
    if _versions(batch._given) != batch._versions:
        raise ValueError(
            "a process was lost, and its step cannot be made again by those that are left: the loss has changed "
            "samples of the batch in place, which was made by the program.\n"
            "  wrong:  x.div_(255)\n"
            "  right:  x = x / 255"
        )


def batch_of(content: Content, shards: int, device: torch.device) -> Batch:
    """A batch that the user made, cut into shards. Raises as `samples_in`, and ValueError if it has no samples."""
    if isinstance(content, Batch):
        return content
    size = samples_in(content)
    if size == 0:
        raise ValueError("the batch has no samples")
    if shards == 1:
        return Batch((size,), lambda index: moved(content, device), given=content)
    ranges = cut(size, shards)
    return Batch(tuple(map(len, ranges)), lambda index: moved(part_of(content, ranges[index]), device), given=content)


Cut = Callable[[int], tuple[range, ...] | None]  # the places of each shard of a batch; None: there is no such batch


class Fetch(Protocol):
    """Where the shards of a pass come from."""

    def reach(self, batch: int) -> None:
        """The loop has this batch in hand now."""
        ...

    def read(self, batch: int, shard: int, places: range) -> Content:
        """A shard, on the device."""
        ...

    def close(self) -> None:
        """The loop is over, well or not."""
        ...


class InStep:
    """Shards are read when a step asks for them."""

    def __init__(self, source: PassReader, transfer: Transfer) -> None:
        self._source = source
        self._transfer = transfer

    def reach(self, batch: int) -> None:
        pass

    def read(self, batch: int, shard: int, places: range) -> Content:
        return self._transfer.now(self._source.read(places))

    def close(self) -> None:
        pass


class ByWorkers:
    """Shards are read by workers, and brought to the device, before a step asks for them.

    Args:
        own: which shards of a batch, of so many, this process executes as things are now. Those that a step asked for
            besides, as all of them where the program looks into the batch, are read ahead in the next batch, too.
        ahead: batches beyond the one in hand. let_go: called once with the workers, when the loop is over.
    """

    def __init__(
        self,
        source: PassReader,
        transfer: Transfer,
        workers: LoaderWorkers,
        cut_of: Cut,
        own: Callable[[int], range],
        *,
        ahead: int,
        let_go: Callable[[LoaderWorkers], None],
    ) -> None:
        self._source = source
        self._transfer = transfer
        self._workers = workers
        self._cut_of = cut_of
        self._own = own
        self._ahead = ahead
        self._let_go = let_go
        self._batch = 0  # in hand
        self._asked: set[int] = set()
        self._moving: dict[Shard, Callable[[], Content]] = {}
        self._is_over = False

    def reach(self, batch: int) -> None:
        self._batch = batch
        self._workers.drop_before(batch)
        self._moving = {shard: arrived for shard, arrived in self._moving.items() if shard[0] >= batch}
        wanted: dict[Shard, tuple[range]] = {}
        for number in range(batch, batch + self._ahead + 1):
            if (cuts := self._cut_of(number)) is None:
                break
            shards = self._asked.union(self._own(len(cuts)))
            wanted |= {(number, shard): (cuts[shard],) for shard in shards if cuts[shard]}
        self._workers.want({shard: what for shard, what in wanted.items() if shard not in self._moving})
        self._asked = set()
        if self._transfer.is_needed:
            self._begin_moving([shard for shard in wanted if shard[0] <= batch + 1])

    def _begin_moving(self, shards: list[Shard]) -> None:
        for shard in shards:
            if shard not in self._moving and self._workers.is_there(shard):
                self._moving[shard] = self._transfer.begin(self._workers.take(shard))

    def read(self, batch: int, shard: int, places: range) -> Content:
        if self._is_over or batch < self._batch:  # the loop has let go of it
            return self._transfer.now(self._source.read(places))
        self._asked.add(shard)
        if (arrived := self._moving.pop((batch, shard), None)) is not None:
            return arrived()
        self._workers.want({(batch, shard): (places,)})
        return self._transfer.now(self._workers.take((batch, shard)))

    def close(self) -> None:
        self._moving.clear()
        if not self._is_over:
            self._is_over = True
            self._let_go(self._workers)


def batches(
    begun: Pass,
    batch_size: int,
    fetch: Fetch,
    length_now: Callable[[], int],
    cut_places: Callable[[range], tuple[range, ...]],
    *,
    drop_last: bool,
) -> Iterator[Batch]:
    """The batches of a pass, from where it begins.

    Raises:
        ValueError: the data set does not have the length any more that it had when the pass began.
    """
    try:
        for number, places in enumerate(begun.batches(batch_size, drop_last)):
            if (now := length_now()) != begun.length:
                raise ValueError(
                    f"the data set had {begun.length} samples when this pass began, and has {now} now.\n"
                    f"A pass shows every sample once, so its length must stay. Change it between two passes."
                )
            ranges = cut_places(places)
            fetch.reach(number)

            def read(index: int, number: int = number, ranges: tuple[range, ...] = ranges) -> Content:
                return fetch.read(number, index, ranges[index])

            yield Batch(tuple(map(len, ranges)), read, begun.is_last(places, batch_size, drop_last))
    finally:
        fetch.close()
