"""Workers of torch's DataLoader: equal bits in the same order, errors of the data set, and no process left behind."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import fanwise
from fanwise.parallel import Batch, Run
from fanwise.parallel.data.batch import discard_contents
from fanwise.testing import within

# A machine with one core is no reason to skip these.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")

N, B = 46, 8


class Noisy(Dataset[Any]):
    """Sample i is i, with noise from all three generators. `before` is called with each index."""

    def __init__(self, before: Callable[[int], object] = lambda index: None) -> None:
        self.before = before

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.before(index)
        return index, float(torch.rand(())) + random.random() + np.random.random()


def samples_of(batches: Iterator[Batch]) -> list[tuple[int, float]]:
    """Return all samples in their order."""
    return [(int(i), float(value)) for batch in batches for i, value in zip(*batch, strict=True)]


def two_epochs(run: Run, data: Any = None, **options: Any) -> list[tuple[int, float]]:
    data = Noisy() if data is None else data
    return [each for _ in run.epochs(2) for each in samples_of(run.batches(data, B, **options))]


EXPECTED = two_epochs(fanwise.here())


def train_epochs(**options: Any) -> list[tuple[int, float]]:
    return fanwise.run(lambda run: two_epochs(run, **options), devices="cpu")


class Odd(Exception):
    """Its __init__ does not accept its args."""

    def __init__(self, index: int) -> None:
        super().__init__(f"no sample {index} here", index)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_give_the_same_samples_in_the_same_order(workers: int, persistent: bool) -> None:
    assert train_epochs(num_workers=workers, persistent_workers=persistent, prefetch_factor=3) == EXPECTED


def test_samples_do_not_depend_on_the_threads_of_the_run() -> None:
    def sums(workers: int) -> list[tuple[int, float]]:
        x = torch.randn(N, 300_000, generator=torch.Generator().manual_seed(0))
        data = [(index, row) for index, row in enumerate(x)]

        def collate(samples: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
            return torch.tensor([index for index, _ in samples]), torch.stack([row.sum() for _, row in samples])

        return fanwise.run(
            lambda run: samples_of(run.batches(data, 16, collate_fn=collate, num_workers=workers)),
            devices="cpu",
            threads=3,
        )

    assert sums(0) == sums(1)


def test_only_workers_read_samples(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def note(index: int) -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")

    assert train_epochs(data=Noisy(note), num_workers=2, persistent_workers=True) == EXPECTED
    first_shards = 2 * 2  # each worker reads its first shard twice
    assert len(readers := pids.read_text().split()) == 2 * N + first_shards
    assert len(set(readers)) == 2 and str(os.getpid()) not in readers


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_data_set_has_its_type_and_names_the_sample(workers: int) -> None:
    def fail(index: int) -> None:
        if index == 17:
            raise Odd(index)

    with pytest.raises(Odd) as caught:
        train_epochs(data=Noisy(fail), num_workers=workers)
    assert caught.value.args == ("no sample 17 here", 17)
    notes = "\n".join(caught.value.__notes__)
    assert "while sample 17 of the data set was read" in notes
    assert not workers or (f'File "{__file__}"' in notes and "in fail" in notes and "of a data loader" in notes)


def children() -> set[int]:
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            pids.update(map(int, (task / "children").read_text().split()))
    return pids


@pytest.fixture
def workers() -> Callable[[], set[int]]:
    """Return the child processes that were started during the test."""
    before = children()
    return lambda: children() - before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_raises_the_error_of_torch(number: int, workers: Callable[[], set[int]]) -> None:
    def die(index: int) -> None:
        os.kill(os.getpid(), number)

    with pytest.raises(RuntimeError, match="DataLoader worker"):
        train_epochs(data=Noisy(die), num_workers=2)
    assert not workers()


def test_few_idle_workers_are_kept_if_each_pass_has_its_own_functions(workers: Callable[[], set[int]]) -> None:
    def train(run: Run) -> tuple[list[int], int]:
        data, same, counts = Noisy(), Noisy(), []
        for _ in range(6):
            init: Any = lambda number: None  # noqa: E731  # another one in each pass
            samples_of(run.batches(data, B, num_workers=1, persistent_workers=True, worker_init_fn=init))
            samples_of(run.batches(same, B, num_workers=1, persistent_workers=True))
            counts.append(len(workers()))
            pids.add(frozenset(workers()))
        return counts, len(frozenset.intersection(*pids))

    pids: set[frozenset[int]] = set()
    counts, kept = fanwise.run(train, devices="cpu")
    assert max(counts) == 3
    assert kept == 1, "the workers of the data set without own functions stay"
    assert not workers()


def test_killed_persistent_workers_are_replaced_in_the_next_pass(tmp_path: Path) -> None:
    def die_once(index: int) -> None:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def train(run: Run) -> list[tuple[int, float]]:
        data = Noisy(die_once)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            list(run.batches(data, B, num_workers=1, persistent_workers=True))
        return samples_of(run.batches(data, B, num_workers=1, persistent_workers=True))

    actual = fanwise.run(train, devices="cpu")
    assert sorted(index for index, _ in actual) == list(range(N))


def test_a_discarded_shard_is_read_again() -> None:
    def train(run: Run) -> list[tuple[int, float]]:
        actual = []
        for _ in run.epochs(2):
            for batch in run.batches(Noisy(), B, num_workers=1):
                for x, _ in (batch.shard(index) or (torch.zeros(1), 0) for index in range(run.shards)):
                    x.fill_(-1)
                discard_contents(batch)
                actual += samples_of(iter([batch]))
        return actual

    assert fanwise.run(train, devices="cpu") == EXPECTED


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_is_left_by_break_or_an_error_leaves_no_process(
    persistent: bool, workers: Callable[[], set[int]]
) -> None:
    def train(run: Run) -> list[tuple[int, float]]:
        for _ in run.epochs(1):
            for number, _batch in enumerate(run.batches(Noisy(), B, num_workers=2, persistent_workers=persistent)):
                if number == 1:
                    break
        return two_epochs(run, num_workers=2, persistent_workers=persistent)

    without = fanwise.run(lambda run: [list(run.epochs(1)), two_epochs(run)][1], devices="cpu")
    assert fanwise.run(train, devices="cpu") == without
    assert not workers()

    def fail(run: Run) -> None:
        for _ in run.batches(Noisy(), B, num_workers=2, persistent_workers=persistent):
            raise RuntimeError("of the program")

    with pytest.raises(RuntimeError, match="of the program") as caught:
        fanwise.run(fail, devices="cpu")
    assert not workers(), "although the traceback still refers to the loop"
    del caught


def test_ctrl_c_leaves_no_process(tmp_path: Path, workers: Callable[[], set[int]]) -> None:
    def slow(index: int) -> None:
        (tmp_path / "reading").touch()
        threading.Event().wait()

    def press() -> None:
        within(30.0, (tmp_path / "reading").exists, "a worker reads")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        train_epochs(data=Noisy(slow), num_workers=2)
    presses.join()
    assert not workers()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("moment", ["fork", "first request"])
def test_ctrl_c_while_the_workers_start_leaves_no_process(
    moment: str, persistent: bool, workers: Callable[[], set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
        """Press Ctrl-C at the end of the second call in this process."""

        def call(*args: Any) -> Any:
            result = function(*args)
            if result != 0:  # not in the child
                calls.append(1)
                if len(calls) == 2:
                    signal.raise_signal(signal.SIGINT)
            return result

        return call

    if moment == "fork":
        monkeypatch.setattr(os, "fork", interrupted(os.fork))
    else:
        put = interrupted(_MultiProcessingDataLoaderIter._try_put_index)
        monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_put_index", put)
    with pytest.raises(KeyboardInterrupt) as raised:
        train_epochs(num_workers=2, persistent_workers=persistent)
    assert not workers(), "although the traceback still refers to the loop"
    assert len(calls) >= 2
    del raised


def test_nested_loops_do_not_share_workers() -> None:
    def train(run: Run, workers: int) -> list[Any]:
        options: Any = {"num_workers": workers, "persistent_workers": workers > 0}
        actual: list[Any] = []
        data = Noisy()
        for _ in run.epochs(2):
            for batch in run.batches(data, 16, **options):
                actual.append(run.mean(lambda m, i, x: x, nn.Linear(1, 1), data, **options))
                actual += samples_of(run.batches(data, 20, **options)) + samples_of(iter([batch]))
        return actual

    assert fanwise.run(partial(train, workers=2), devices="cpu") == fanwise.run(
        partial(train, workers=0), devices="cpu"
    )


def test_worker_init_fn_is_called_in_each_worker(tmp_path: Path) -> None:
    def init(number: int) -> None:
        (tmp_path / str(number)).write_text(str(os.getpid()))

    assert train_epochs(num_workers=2, worker_init_fn=init, persistent_workers=True) == EXPECTED
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
    assert str(os.getpid()) not in {path.read_text() for path in tmp_path.iterdir()}

    def fail(number: int) -> None:
        raise LookupError("no such disk")

    with pytest.raises(LookupError, match="no such disk"):
        train_epochs(num_workers=2, worker_init_fn=fail)


def test_tensors_are_read_without_workers(workers: Callable[[], set[int]]) -> None:
    x = torch.arange(N)

    def train(run: Run) -> list[int]:
        actual = []
        for batch in run.batches(x, B, num_workers=2):
            actual += batch.whole().tolist()
            assert not workers()
        return actual

    assert sorted(fanwise.run(train, devices="cpu")) == list(range(N))


def test_unaligned_tensors_and_strides_are_the_same_in_the_step_and_from_workers() -> None:
    def collate(samples: list[tuple[int, float]]) -> dict[str, Any]:
        whole = torch.tensor([value for _, value in samples] * 8).view(-1, len(samples))
        unaligned = torch.empty(4 * len(samples) + 4, dtype=torch.uint8)[4:].view(torch.float32)
        unaligned.copy_(whole[0])
        return {"columns": whole.t(), "unaligned": unaligned, "names": [str(index) for index, _ in samples]}

    def layouts(run: Run, workers: int) -> list[Any]:
        actual = []
        for batch in run.batches(Noisy(), B, collate_fn=collate, num_workers=workers):
            content: Any = batch.shard(0)
            for tensor in (content["columns"], content["unaligned"]):
                assert tensor.data_ptr() % 64 == 0
                actual.append((tensor.tolist(), tensor.stride()))
            actual.append(content["names"])
        return actual

    step, worker = (fanwise.run(partial(layouts, workers=workers), devices="cpu") for workers in (0, 1))
    assert step == worker


@pytest.mark.parametrize(
    "options",
    [{"num_workers": -1}, {"prefetch_factor": 2}, {"persistent_workers": True}, {"num_workers": 1, "timeout": -1}],
    ids=str,
)
def test_options_that_dataloader_refuses_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"num_workers|prefetch_factor|timeout"):
        fanwise.here().batches(Noisy(), 4, **options)


def test_unknown_options_and_data_loaders_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sampler'"):
        fanwise.here().batches(Noisy(), 4, sampler=[1, 2])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Instead of a DataLoader, pass its data set and its options"):
        fanwise.here().batches(DataLoader(Noisy()), 4)  # type: ignore[arg-type]
