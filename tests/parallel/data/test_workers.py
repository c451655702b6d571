"""Workers read ahead: the same bits, in the same order, whoever reads and whoever dies; nothing is left."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

import fanwise
from fanwise.base.errors import DeadlineExceeded, WorkerLostError
from fanwise.parallel import Batch, Run
from fanwise.parallel.data.parcels import received, sent
from fanwise.testing import within

N, B = 46, 8


class Noisy(Dataset[Any]):
    """Sample i is i, with noise from all three generators. `before` is called with the index of each."""

    def __init__(self, before: Callable[[int], object] = lambda index: None) -> None:
        self.before = before

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.before(index)
        return index, float(torch.rand(())) + random.random() + np.random.random()


def seen(batches: Iterator[Batch]) -> list[tuple[int, float]]:
    """All samples, in the order in which they come."""
    return [(int(i), float(value)) for batch in batches for i, value in zip(*batch, strict=True)]


def two_epochs(run: Run, data: Any = None, **options: Any) -> list[tuple[int, float]]:
    data = Noisy() if data is None else data
    return [each for _ in run.epochs(2) for each in seen(run.batches(data, B, **options))]


EXPECTED = two_epochs(fanwise.here())


def here(**options: Any) -> list[tuple[int, float]]:
    return fanwise.run(lambda run: two_epochs(run, **options), devices="cpu")


@pytest.fixture
def once(tmp_path: Path) -> Callable[[int], bool]:
    """True for the first process that asks with this number, ever."""

    def first(number: int) -> bool:
        try:
            os.close(os.open(tmp_path / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    return first


class Odd(Exception):
    """With arguments that its __init__ does not take again."""

    def __init__(self, index: int) -> None:
        super().__init__(f"no sample {index} here", index)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_give_the_same_samples_in_the_same_order(workers: int, persistent: bool) -> None:
    assert here(num_workers=workers, persistent_workers=persistent, prefetch_factor=3) == EXPECTED


def test_threads_of_the_run_are_not_in_the_samples() -> None:
    def sums(workers: int) -> list[tuple[int, float]]:
        x = torch.randn(N, 300_000, generator=torch.Generator().manual_seed(0))
        data = [(index, row) for index, row in enumerate(x)]

        def collate(samples: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
            return torch.tensor([index for index, _ in samples]), torch.stack([row.sum() for _, row in samples])

        return fanwise.run(
            lambda run: seen(run.batches(data, 16, collate_fn=collate, num_workers=workers)), devices="cpu", threads=3
        )

    assert sums(0) == sums(1)


def test_a_worker_reads_in_a_process_of_its_own_and_nothing_else_does(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def note(index: int) -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")

    assert here(data=Noisy(note), num_workers=2, persistent_workers=True) == EXPECTED
    first_shards = 2 * 2  # each worker reads its first shard twice
    assert len(readers := pids.read_text().split()) == 2 * N + first_shards
    assert len(set(readers)) == 2 and str(os.getpid()) not in readers


def test_no_more_is_read_than_the_batches_ahead(tmp_path: Path) -> None:
    def note(index: int) -> None:
        (tmp_path / str(index)).touch()

    def first(run: Run) -> None:
        batches = run.batches(Noisy(note), B, num_workers=1, prefetch_factor=2, shuffle=False)
        next(batches)
        within(5.0, lambda: len(list(tmp_path.iterdir())) == 3 * B, "two batches beyond the first are read")
        next(batches)
        within(5.0, lambda: len(list(tmp_path.iterdir())) == 4 * B, "one more is read")

    fanwise.run(first, devices="cpu")
    assert sorted(map(int, os.listdir(tmp_path))) == list(range(4 * B))


def test_a_step_raises_what_the_data_set_raised_with_its_place() -> None:
    def fail(index: int) -> None:
        if index == 17:
            raise Odd(index)

    def train(run: Run) -> None:
        model = nn.Linear(1, 1)
        step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, i, x: m(x[:, None].float())[:, 0])
        for batch in run.batches(Noisy(fail), B, num_workers=2):
            step(batch)

    with pytest.raises(Odd) as caught:
        fanwise.run(train, devices="cpu")
    assert caught.value.args == ("no sample 17 here", 17)
    notes = "\n".join(caught.value.__notes__)
    assert "while sample 17 of the data set was read" in notes
    assert f'File "{__file__}"' in notes and "in fail" in notes
    assert "of a data loader" in notes and "of 4, which has 2 samples of the batch" in notes


def test_without_workers_an_error_names_its_sample_too() -> None:
    def fail(index: int) -> None:
        if index == 2:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as failed:
        seen(fanwise.here().batches(Noisy(fail), 4))
    assert "while sample 2 of the data set was read" in failed.value.__notes__


def test_after_an_error_that_is_caught_the_shard_is_read_again(once: Callable[[int], bool]) -> None:
    def fail(index: int) -> None:
        if index == 11 and once(11):
            raise OSError("the disk is away for a moment")

    def train(run: Run) -> list[tuple[int, float]]:
        found = []
        for _ in run.epochs(2):
            for batch in run.batches(Noisy(fail), B, num_workers=2):
                try:
                    x, y = batch
                except OSError:
                    x, y = batch
                found += [(int(i), float(value)) for i, value in zip(x, y, strict=True)]
        return found

    assert fanwise.run(train, devices="cpu") == EXPECTED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_dead_worker_had_is_read_again(
    once: Callable[[int], bool], number: int, persistent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def die(index: int) -> None:
        if index in (0, 30) and once(index):
            os.kill(os.getpid(), number)

    assert here(data=Noisy(die), num_workers=2, persistent_workers=persistent) == EXPECTED
    name = signal.Signals(number).name
    for index in (0, 30):
        assert f"ended by {name} at sample {index} of the data set; what it had is read again" in caplog.text


def test_all_workers_die_and_the_batches_still_come(workers: Callable[[], set[int]]) -> None:
    def train(run: Run) -> list[tuple[int, float]]:
        found = []
        for _ in run.epochs(2):
            for number, batch in enumerate(run.batches(Noisy(), B, num_workers=3)):
                if number in (1, 4):
                    for pid in workers():
                        os.kill(pid, signal.SIGKILL)
                found += seen(iter([batch]))
        return found

    assert fanwise.run(train, devices="cpu") == EXPECTED


def children() -> set[int]:
    tasks = Path("/proc/self/task")
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


@pytest.fixture
def workers() -> Callable[[], set[int]]:
    """The children of this process that were not there when the test began, as those of a pool of other tests are."""
    before = children()
    return lambda: children() - before


def test_a_sample_that_kills_every_worker_is_an_error() -> None:
    def die(index: int) -> None:
        if index == 30:
            os._exit(3)

    with pytest.raises(
        WorkerLostError, match=r"ended with exit code 3 at sample 30 of the data set; 3 workers have died"
    ):
        here(data=Noisy(die), num_workers=2)


def test_a_worker_that_hangs_is_an_error_in_time_and_its_shard_is_read_again(once: Callable[[int], bool]) -> None:
    def hang(index: int) -> None:
        if index == 30 and once(30):
            threading.Event().wait()

    def train(run: Run) -> list[tuple[int, float]]:
        found, errors = [], []
        for _ in run.epochs(2):
            for batch in run.batches(Noisy(hang), B, num_workers=2, timeout=0.5):
                try:
                    found += seen(iter([batch]))
                except DeadlineExceeded as error:
                    errors.append(str(error))
                    found += seen(iter([batch]))
        (text,) = errors
        assert "at sample 30 of the data set" in text and "in hang" in text and "a step has waited" in text
        return found

    assert fanwise.run(train, devices="cpu") == EXPECTED


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_is_left_leaves_nothing(persistent: bool, workers: Callable[[], set[int]]) -> None:
    def train(run: Run) -> list[tuple[int, float]]:
        for _ in run.epochs(1):
            for number, _batch in enumerate(run.batches(Noisy(), B, num_workers=2, persistent_workers=persistent)):
                if number == 1:
                    break
        return two_epochs(run, num_workers=2, persistent_workers=persistent)

    without = fanwise.run(lambda run: [list(run.epochs(1)), two_epochs(run)][1], devices="cpu")
    assert fanwise.run(train, devices="cpu") == without
    assert not workers()


def test_an_error_of_the_program_leaves_nothing(workers: Callable[[], set[int]]) -> None:
    def train(run: Run) -> None:
        for _ in run.batches(Noisy(), B, num_workers=2):
            raise RuntimeError("of the program")

    with pytest.raises(RuntimeError, match="of the program") as caught:
        fanwise.run(train, devices="cpu")
    assert not workers(), "although the traceback still holds the loop"
    del caught


def test_ctrl_c_while_a_step_waits_leaves_nothing(tmp_path: Path, workers: Callable[[], set[int]]) -> None:
    def slow(index: int) -> None:
        (tmp_path / "reading").touch()
        threading.Event().wait()

    def press() -> None:
        within(5.0, (tmp_path / "reading").exists, "a worker reads")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        here(data=Noisy(slow), num_workers=2)
    presses.join()
    assert not workers()


def test_a_batch_is_there_after_its_loop_has_let_go_of_it() -> None:
    def train(run: Run) -> list[tuple[int, float]]:
        kept = [
            batch for _ in run.epochs(2) for batch in run.batches(Noisy(), B, num_workers=1, persistent_workers=True)
        ]
        return seen(iter(kept))

    assert fanwise.run(train, devices="cpu") == EXPECTED


def test_workers_without_persistence_see_what_the_program_has_changed() -> None:
    def lengths(persistent: bool) -> list[int]:
        def train(run: Run) -> list[int]:
            data, found = [(0,), (0,)], []
            for epoch in run.epochs(2):
                data[:] = [(epoch,), (epoch,)]
                for (x,) in run.batches(data, 2, num_workers=1, persistent_workers=persistent):
                    found.append(int(x.sum()))
            return found

        return fanwise.run(train, devices="cpu")

    assert lengths(persistent=False) == [0, 2]
    assert lengths(persistent=True) == [0, 0]


def test_loops_inside_one_another_do_not_share_workers() -> None:
    def train(run: Run, workers: int) -> list[Any]:
        options: Any = {"num_workers": workers, "persistent_workers": workers > 0}
        found: list[Any] = []
        data = Noisy()
        for _ in run.epochs(2):
            for batch in run.batches(data, 16, **options):
                found.append(run.mean(lambda m, i, x: x, nn.Linear(1, 1), data, **options))
                found += seen(run.batches(data, 20, **options)) + seen(iter([batch]))
        return found

    assert fanwise.run(partial(train, workers=2), devices="cpu") == fanwise.run(
        partial(train, workers=0), devices="cpu"
    )


def test_a_sample_cannot_ask_which_worker_reads_it() -> None:
    assert here(data=Noisy(lambda index: 1 / (get_worker_info() is None)), num_workers=2) == EXPECTED


def test_worker_init_fn_is_called_in_each_worker(tmp_path: Path) -> None:
    def init(number: int) -> None:
        (tmp_path / str(number)).write_text(str(os.getpid()))

    assert here(num_workers=2, worker_init_fn=init, persistent_workers=True) == EXPECTED
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
    assert str(os.getpid()) not in {path.read_text() for path in tmp_path.iterdir()}

    def fail(number: int) -> None:
        raise LookupError("no such disk")

    with pytest.raises(LookupError, match="no such disk") as caught:
        here(num_workers=2, worker_init_fn=fail)
    assert any("in worker_init_fn(" in note for note in caught.value.__notes__)


def test_means_and_sums_are_the_same_with_workers() -> None:
    def measure(run: Run, workers: int) -> tuple[float, float]:
        model = nn.Linear(1, 1)
        options: Any = {"batch_size": 7, "num_workers": workers}
        mean = run.mean(lambda m, i, x: x, model, Noisy(), **options)
        return mean, run.sum(lambda m, i, x: (i * x).double(), model, Noisy(), **options)

    results = set()
    for workers in (0, 1, 3):
        results.add(fanwise.run(partial(measure, workers=workers), devices="cpu"))
    assert len(results) == 1


def test_tensors_are_read_without_workers(workers: Callable[[], set[int]]) -> None:
    x = torch.arange(N)

    def train(run: Run) -> list[int]:
        found = []
        for batch in run.batches(x, B, num_workers=2):
            found += batch.whole().tolist()
            assert not workers()
        return found

    assert sorted(fanwise.run(train, devices="cpu")) == list(range(N))


def test_many_batches_leave_no_descriptor_open() -> None:
    def train(run: Run) -> int:
        batches = run.batches(Noisy(), 1, num_workers=2, prefetch_factor=8)
        kept = [next(batches).whole() for _ in range(5)]
        before = len(os.listdir("/proc/self/fd"))
        kept += [next(batches).whole() for _ in range(30)]
        return len(os.listdir("/proc/self/fd")) - before

    assert fanwise.run(train, devices="cpu") == 0


class Made:
    """Something that a collate_fn makes, found by its name."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_what_a_worker_sends_comes_as_it_was() -> None:
    whole = torch.arange(24.0)

    class Local(dict[str, Tensor]):
        """Not found by its name."""

    content: Any = {
        "columns": whole.view(4, 6).t(),
        "part": whole[3:9],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "expanded": torch.zeros(3).expand(2, 3),
        "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "sparse": torch.eye(3).to_sparse(),
        "texts": ["a", "b"],
        "array": np.arange(6)[::2],
        "made": Made(torch.ones(2)),
        "grad": torch.ones(2, requires_grad=True),
    }
    fd, begin, end = sent((content, Local(x=torch.ones(1))))
    came, local = received(fd, begin, end)
    os.close(fd)
    assert list(came) == list(content) and came["texts"] == ["a", "b"]
    for name, tensor in content.items():
        if isinstance(tensor, Tensor):
            assert came[name].dtype == tensor.dtype and torch.equal(came[name].to_dense(), tensor.to_dense())
            if tensor.layout is torch.strided:
                assert came[name].stride() == tensor.stride(), name
                assert not tensor.numel() or came[name].data_ptr() % 64 == tensor.data_ptr() % 64, name
    assert came["grad"].requires_grad and type(came["made"]) is Made and came["made"].x.tolist() == [1, 1]
    assert came["array"].tolist() == [0, 2, 4] and local["x"].tolist() == [1]
    came["part"][0] = -1  # it may be written to, and nothing else changes
    assert came["columns"][3, 0] == 3.0 and whole[3] == 3.0
