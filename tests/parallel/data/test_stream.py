"""Iterable data sets keep their order, give the same bits with a worker, and resume from their state or by reading."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, default_collate

import fanwise
from fanwise.parallel import Batch, Run
from fanwise.parallel.data.batch import LoadedBatch
from fanwise.parallel.data.position import Pass
from fanwise.parallel.data.stream import StreamReader
from fanwise.parallel.step.tree import cut
from fanwise.tensor.random.keys import Key

N, B = 21, 4


class Noisy(IterableDataset[Any]):
    """Sample i is i with noise from all three generators, and noise of the pass. `before` is called with each place."""

    def __init__(self, length: int = N, before: Callable[[int], object] = lambda place: None) -> None:
        self.length = length
        self.before = before

    def __iter__(self) -> Iterator[tuple[int, float]]:
        of_the_pass = random.random()
        for place in range(self.length):
            self.before(place)
            yield place, of_the_pass + float(torch.rand(())) + random.random() + np.random.random()


class Shuffled(Noisy):
    """Shuffled by a buffer, which draws from the global generators."""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        buffer: list[tuple[int, float]] = []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) > 5:
                yield buffer.pop(random.randrange(len(buffer)))
        random.shuffle(buffer)
        yield from buffer


class Resumable(Noisy):
    """A stream with a state: the next sample, and the random number of the pass."""

    def __init__(self, read: list[int] | None = None) -> None:
        super().__init__()
        self.read = [] if read is None else read
        self.place, self.of_the_pass = 0, -1.0
        self.is_restored = False

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "of_the_pass": self.of_the_pass}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.of_the_pass, self.is_restored = state["place"], state["of_the_pass"], True

    def __iter__(self) -> Iterator[tuple[int, float]]:
        if not self.is_restored:
            self.place, self.of_the_pass = 0, random.random()
        self.is_restored = False
        while self.place < N:
            self.place += 1
            self.read.append(self.place - 1)
            yield self.place - 1, self.of_the_pass + random.random()


def samples_of(batches: Iterator[Batch]) -> list[tuple[int, float]]:
    return [(int(i), float(value)) for batch in batches for i, value in zip(*batch, strict=True)]


def epochs(run: Run, data: Any, **options: Any) -> list[tuple[int, float]]:
    return [each for _ in run.epochs(2) for each in samples_of(run.batches(data, B, **options))]


def test_a_stream_comes_in_its_own_order_and_each_epoch_draws_anew() -> None:
    result = epochs(fanwise.here(), Noisy())
    assert [place for place, _ in result] == [*range(N)] * 2
    assert len({value for _, value in result}) == 2 * N
    assert result == epochs(fanwise.here(shards=3), Noisy()) != epochs(fanwise.here(seed=1), Noisy())
    shuffled = epochs(fanwise.here(), Shuffled())
    assert [place for place, _ in shuffled[:N]] != [place for place, _ in shuffled[N:]]
    assert sorted(place for place, _ in shuffled[:N]) == [*range(N)]


@pytest.mark.parametrize("kind", [Noisy, Shuffled, Resumable])
def test_a_worker_gives_the_same_samples_of_a_stream(kind: Callable[[], Any]) -> None:
    expected = epochs(fanwise.here(), kind())
    assert fanwise.run(lambda run: epochs(run, kind(), num_workers=1), devices="cpu") == expected


@given(length=st.integers(1, 30), size=st.integers(1, 12), shards=st.integers(1, 5), drop_last=st.booleans())
def test_every_sample_of_a_stream_comes_once(length: int, size: int, shards: int, drop_last: bool) -> None:
    batches = list(fanwise.here(shards=shards).batches(Noisy(length), size, drop_last=drop_last))
    kept = length - length % size if drop_last else length
    assert [len(batch) for batch in batches] == [min(size, kept - start) for start in range(0, kept, size)]
    assert [batch.sizes for batch in batches] == [tuple(map(len, cut(len(batch), shards))) for batch in batches]
    assert [place for place, _ in samples_of(iter(batches))] == [*range(kept)]


@given(
    starts=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    wanted=st.lists(st.sets(st.integers(0, 2)), min_size=8, max_size=8),
    state_at=st.integers(0, 3),
)
def test_a_batch_is_the_same_in_whatever_order_batches_are_read(
    starts: list[int], wanted: list[set[int]], state_at: int
) -> None:
    def new_reader(state: Any = None, done: int = 0) -> StreamReader:
        started = Pass(None, Key(3), done, state)
        return StreamReader(Resumable(), default_collate, started, size=B, drop_last=False, num_shards=3)

    batches = {number: contents(new_reader().read(number, (0, 1, 2))) for number in range(7)}
    state = batches[state_at - 1][2] if state_at else None
    reader = new_reader(state, state_at * B)
    for number, shards in zip(starts, wanted, strict=False):
        if number >= state_at:
            expected = batches[number]
            batch = contents(reader.read(number - state_at, sorted(shards)))
            assert batch[:3] == expected[:3]
            assert batch[3] == {index: content for index, content in expected[3].items() if index in shards}


def contents(batch: LoadedBatch) -> tuple[int, bool, Any, Any]:
    shards = {index: [member.tolist() for member in content] for index, content in batch.shards.items()}
    return batch.num_samples, batch.is_last, batch.state, shards


@pytest.mark.parametrize("kind", [Shuffled, Resumable])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("uses", [False, True])
def test_a_stream_goes_on_where_the_checkpoint_was_made(
    kind: Callable[[], Any], workers: int, uses: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run.pt"

    def train(run: Run, stops: bool = False) -> list[list[tuple[int, float]]]:
        model = torch.nn.Linear(1, 1)
        step = run.step(model, torch.optim.SGD(model.parameters(), 0.0), lambda m, i, x: m(x[:, None].float())[:, 0])
        result, number = [], 0
        for _ in run.epochs(2):
            for batch in run.batches(kind(), B, num_workers=workers):
                result.append(samples_of(iter([batch])))
                number += 1
                if uses:
                    step(batch)
                if stops and number == 9:  # of 12
                    run.save(path)
                    return result
        return result

    whole = fanwise.run(train, devices="cpu")
    begun = fanwise.run(lambda run: train(run, stops=True), devices="cpu")
    rest = fanwise.run(train, devices="cpu", resume=path)
    assert begun + rest == whole if uses else begun[:-1] + rest == whole


def test_a_stream_with_a_state_is_not_read_again_after_a_resume(tmp_path: Path) -> None:
    def train(run: Run, read: list[int], stop: int) -> None:
        for number, _batch in enumerate(run.batches(Resumable(read), B)):
            if number == stop:
                run.save(tmp_path / "run.pt")
                return

    fanwise.run(lambda run: train(run, [], 3), devices="cpu")
    read: list[int] = []
    fanwise.run(lambda run: train(run, read, 9), devices="cpu", resume=tmp_path / "run.pt")
    assert read == [*range(3 * B, N)]


def test_what_a_stream_raises_names_the_place() -> None:
    def fail(place: int) -> None:
        if place == 9:
            raise OSError("the tape is torn")

    for workers in (0, 1):
        with pytest.raises(OSError, match="the tape is torn") as caught:
            fanwise.run(partial(epochs, data=Noisy(before=fail), num_workers=workers), devices="cpu")
        assert any("while sample 9 of the data set was read" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], ids=str
)
def test_options_that_a_stream_does_not_support_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="an IterableDataset has its own order, is read by at most one worker"):
        fanwise.here().batches(Noisy(), 2, **options)


def test_measures_are_not_taken_of_a_stream() -> None:
    with pytest.raises(TypeError, match=r"got Noisy\.\n.* Only run\.batches takes an IterableDataset"):
        fanwise.here().mean(lambda m, i, x: x, torch.nn.Linear(1, 1), Noisy())


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="the data set has no samples"):
        next(fanwise.here().batches(Noisy(0), 2))
