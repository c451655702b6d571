"""Batches: every sample once, in an order and with an augmentation that depend on seed, epoch and index alone."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fanwise
from fanwise.parallel import Batch, Run

NUMBERS = torch.arange(11)


class Squares(Dataset[tuple[int, int]]):
    """Sample i is (i, i * i); its length can be changed."""

    def __init__(self, length: int = 11) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index * index


class Noisy(Squares):
    """Sample i with noise from all three generators."""

    def __getitem__(self, index: int) -> Any:  # Any: two numbers
        return index, float(torch.rand(())) + random.random() + np.random.random()


def order(batches: Iterator[Batch]) -> list[int]:
    """The first member of each batch, one after another."""
    return [int(value) for batch in batches for value in next(iter(batch))]


@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 45),
    shards=st.integers(1, 9),
    drop_last=st.booleans(),
)
def test_every_sample_comes_once(length: int, batch_size: int, shards: int, drop_last: bool) -> None:
    run = fanwise.here(shards=shards)
    batches = list(run.batches((torch.arange(length),), batch_size, drop_last=drop_last))
    seen = order(iter(batches))
    if drop_last:
        assert len(seen) == len(set(seen)) == length - length % batch_size
        assert all(len(batch) == batch_size for batch in batches)
    else:
        assert sorted(seen) == list(range(length))
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert all(len(batch.sizes) == shards for batch in batches)


def test_the_order_is_of_the_seed_and_the_epoch_and_not_of_the_shards() -> None:
    def orders(**options: int) -> list[list[int]]:
        run = fanwise.here(**options)
        return [order(run.batches((NUMBERS,), 4)) for _ in run.epochs(3)]

    first = orders()
    assert first == orders(shards=3)
    assert first != orders(seed=1)
    assert first[0] != first[1] != first[2] != list(range(11))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param((NUMBERS, NUMBERS**2), id="tensors"),
        pytest.param(TensorDataset(NUMBERS, NUMBERS**2), id="TensorDataset"),
        pytest.param(Squares(), id="map style"),
        pytest.param([(i, i * i) for i in range(11)], id="list"),
    ],
)
def test_kinds_of_data_sets_give_the_same_batches(data: Any) -> None:  # Any: data sets have no type in common
    expected = fanwise.here(shards=3).batches((NUMBERS, NUMBERS**2), 4)
    for batch, wanted in zip(fanwise.here(shards=3).batches(data, 4), expected, strict=True):
        x, y = batch
        assert torch.equal(y, x**2)
        assert torch.equal(x, wanted.whole()[0])
        assert batch.sizes == wanted.sizes


def test_each_shard_is_collated_by_itself() -> None:
    seen: list[int] = []

    def collate(samples: list[Any]) -> Tensor:  # Any: samples
        seen.append(len(samples))
        return torch.tensor([first for first, _ in samples])

    assert sorted(order(fanwise.here(shards=3).batches(Squares(), 7, collate_fn=collate))) != []
    assert seen == [3, 3, 2, 2, 2, 1, 1], "the first one is read twice"


def test_augmentation_depends_on_epoch_and_index_and_not_on_shards_or_batches() -> None:
    def noise(shards: int, batch_size: int) -> list[dict[int, float]]:
        run, actual = fanwise.here(shards=shards), []
        for _ in run.epochs(2):
            pairs = [tuple(batch) for batch in run.batches(Noisy(), batch_size)]
            actual.append({int(i): float(value) for x, y in pairs for i, value in zip(x, y, strict=True)})
        return actual

    one = noise(1, 4)
    assert one == noise(3, 5)
    assert one[0] != one[1]
    assert len(set(one[0].values())) == 11


def test_every_shard_begins_at_an_aligned_address() -> None:
    seen: list[int] = []

    def losses(model: torch.nn.Module, x: Tensor) -> Tensor:
        seen.append(x.data_ptr() % 64)
        return model(x)[:, 0]  # type: ignore[no-any-return]  # a module returns anything

    model = torch.nn.Linear(3, 1)
    run = fanwise.here(shards=3)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), losses)
    step(torch.rand(10, 3))
    for batch in run.batches(torch.rand(10, 3), 10):
        step(batch)
    assert set(seen) == {0}


def test_a_data_set_that_changes_its_length_in_a_pass_is_refused() -> None:
    data = Squares()
    batches = fanwise.here().batches(data, 4)
    next(batches)
    data.length = 12
    with pytest.raises(ValueError, match="the length of the data set changed from 11 to 12 during a pass"):
        next(batches)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        pytest.param((NUMBERS,), 0, "batch_size must be at least 1, got 0", id="no batch"),
        pytest.param((NUMBERS[:0],), 2, "the data set has no samples", id="empty"),
        pytest.param((NUMBERS, NUMBERS[1:]), 2, r"same length, got batch\[0\] 11, batch\[1\] 10", id="lengths"),
    ],
)
def test_wrong_sizes_are_refused(data: Any, size: int, message: str) -> None:  # Any: wrong on purpose
    with pytest.raises(ValueError, match=message):
        fanwise.here().batches(data, size)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((NUMBERS, NUMBERS[1:]), ValueError, r"batch\[0\] 11, batch\[1\] 10"),
        ({"x": NUMBERS, "y": object()}, TypeError, r"batch\['y'\] is a object, which cannot be cut"),
        ((NUMBERS, torch.tensor(3)), TypeError, r"batch\[1\] is a tensor without axes"),
        ((), ValueError, "contains no tensor|no samples"),
        (NUMBERS[:0], ValueError, "the batch has no samples"),
    ],
    ids=["lengths", "object", "scalar", "nothing", "empty"],
)
def test_a_batch_that_cannot_be_cut_is_refused(batch: Any, error: type[Exception], message: str) -> None:  # Any: wrong
    model = torch.nn.Linear(1, 1)
    step = fanwise.here(shards=2).step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, *parts: m.weight)
    with pytest.raises(error, match=message):
        step(batch)


class Counting(Squares):
    """Sample i also depends on how many were read before it."""

    count = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.count += 1
        return index, self.count


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_depend_on_who_reads_them_are_refused(workers: int) -> None:
    def train(run: Run) -> None:
        next(run.batches(Counting(), 8, num_workers=workers)).shard(run.rank)

    message = "the data set returned different samples when the same indices were read twice"
    with pytest.raises(ValueError, match=message) as caught:
        fanwise.run(train, devices=1)
    assert any(note.startswith("the shard[1] was int64 (2,) with checksum") for note in caught.value.__notes__)


def test_a_second_data_set_of_the_same_type_and_length_is_checked_too() -> None:
    class Sometimes(Counting):
        def __init__(self, counts: bool) -> None:
            super().__init__()
            self.counts = counts

        def __getitem__(self, index: int) -> tuple[int, int]:
            return super().__getitem__(index) if self.counts else (index, 0)

    run, first = fanwise.here(), Sometimes(counts=False)
    next(run.batches(first, 8)).whole()
    with pytest.raises(ValueError, match="returned different samples"):
        next(run.batches(Sometimes(counts=True), 8)).whole()


def test_only_the_first_shard_of_a_data_set_is_read_twice() -> None:
    data = Reads()
    run = fanwise.here()
    for _ in range(2):
        for batch in run.batches(data, 4, shuffle=False):
            batch.whole()
    assert data.read == [0, *range(11), *range(11)]


class Reads(Squares):
    """Notes which samples were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.read.append(index)
        return super().__getitem__(index)


def test_data_that_cannot_be_indexed_is_refused() -> None:
    with pytest.raises(TypeError, match="got list_iterator"):
        fanwise.here().batches(iter([1]), 2)  # type: ignore[arg-type]  # wrong
    with pytest.raises(TypeError, match=r"got a dict, which is indexed by names\.\n  wrong: .*\n  right:  run.batches"):
        fanwise.here().batches({"image": NUMBERS}, 4)  # type: ignore[arg-type]  # wrong


@pytest.mark.parametrize("data", [Squares(), Stream()], ids=["indexed", "stream"])
def test_a_collate_fn_that_returns_nothing_is_named(data: Any) -> None:
    with pytest.raises(TypeError, match="collate_fn returned None for 1 samples"):
        next(fanwise.here().batches(data, 4, collate_fn=lambda samples: None)).whole()
