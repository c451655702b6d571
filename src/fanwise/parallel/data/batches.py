"""Batches of a data set, in the order of the run, already cut into the shards of a step.

    data set --order from a key--> places --cut into shards--> read, collated --> Batch

Each shard is read, and collated, by itself: so a shard is the same whether one process makes all of them or each makes
its own, also with a `collate_fn` that pads to the longest. It is read when a step asks for it, or ahead by a worker.
"""

from collections.abc import Callable, Iterator

import torch

from ..shards import cut
from .order import Pass
from .reading import PassReader
from .splitting import Content, Rows, arguments, joined, moved, part_of, samples_in
from .transfer import Transfer


class Batch:
    """One global batch, in shards. Iterates like the list of tensors that a DataLoader gives: `x, y = batch`.

    A shard is read when somebody asks for it, so a process reads only what it executes; it is then on the device.

    Attributes:
        sizes: samples of each shard.
        last: whether no other batch comes in this pass.
        rows: its samples in a data set on the device, if it was read from one.
    """

    __slots__ = ("_contents", "_read", "last", "rows", "sizes")

    def __init__(
        self, sizes: tuple[int, ...], read: Callable[[int], Content], last: bool = False, rows: Rows | None = None
    ) -> None:
        self.sizes = sizes
        self.last = last
        self.rows = rows
        self._read = read
        self._contents: dict[int, Content] = {}

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


def read_again(batch: Batch) -> None:
    """Forget the content of its shards, so that they are read anew when the step is repeated."""
    batch._contents.clear()


def batch_of(content: Content, shards: int, device: torch.device) -> Batch:
    """A batch that the user made, cut into shards. Raises as `samples_in`, and ValueError if it has no samples."""
    if isinstance(content, Batch):
        return content
    size = samples_in(content)
    if size == 0:
        raise ValueError("the batch has no samples")
    if shards == 1:
        return Batch((size,), lambda index: moved(content, device))
    ranges = cut(size, shards)
    return Batch(tuple(map(len, ranges)), lambda index: moved(part_of(content, ranges[index]), device))


class ShardFetch:
    """The shards of a pass, on the device.

    Args:
        source: reads shards in the step. loaded: the requested shards of each batch; None without workers.
    """

    def __init__(
        self,
        source: PassReader,
        transfer: Transfer,
        loaded: Iterator[dict[int, Callable[[], Content]]] | None,
        on_close: Callable[[], None],
    ) -> None:
        self._source = source
        self._transfer = transfer
        self._loaded = loaded
        self._on_close = on_close
        self._batch = -1
        self._shards: dict[int, Callable[[], Content]] = {}

    def reach(self, batch: int) -> None:
        """The loop begins this batch. Blocks until its shards are loaded, if there are workers.

        Raises:
            The error of the data set, in its own type. Those of DataLoader: a worker died, or took too long.
        """
        self._batch = batch
        if self._loaded is not None:
            self._shards = next(self._loaded)

    def read(self, batch: int, shard: int, places: range) -> Content:
        """Return a shard. It is read again when it is asked for again, because the loss may have changed it."""
        if batch == self._batch and shard in self._shards:
            return self._shards.pop(shard)()
        return self._transfer.now(self._source.read(places))

    def rows(self, places: range) -> Rows | None:
        """Return where samples are on the device; None if they are read elsewhere."""
        return self._source.rows(places)

    def close(self) -> None:
        """The loop is over."""
        self._shards = {}
        if self._loaded is not None:
            self._loaded = None
            self._on_close()


def batches(
    begun: Pass,
    batch_size: int,
    fetch: ShardFetch,
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

            is_last = begun.is_last(places, batch_size, drop_last)
            yield Batch(tuple(map(len, ranges)), read, is_last, fetch.rows(places))
    finally:
        fetch.close()
