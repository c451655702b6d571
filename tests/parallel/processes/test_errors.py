"""What goes wrong in a run of several processes the caller learns: what it is, where, and nothing is left.

What one process raises comes with its type, its rank and its traceback; what is wrong with the run is said by an error
that names it. All runs here share the pool that is made for runs which are given none.
"""

import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import LeaseError
from fanwise.parallel import Run
from fanwise.parallel.launch.pools import close_own_pool, own_pool
from fanwise.pool import Pool
from fanwise.testing import within

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def pool(forked_pools: None) -> Iterator[Pool]:
    """The pool of runs that are given none. Closed twice, which does no harm; the next run would make another one."""
    importlib.import_module("torch._dynamo")  # the first optimizer loads it, which changes the environment
    fanwise.run(lambda run: None, devices=2)  # its processes are there before the test begins
    pool = own_pool()
    yield pool
    close_own_pool()
    close_own_pool()
    assert "closed" in repr(pool) and own_pool() is not pool
    close_own_pool()


# -- raised in a process ----------------------------------------------------------------------------------------------


class Particular(Exception):
    """Cannot be made again from what `args` holds."""

    def __init__(self, what: str, *, where: int) -> None:
        super().__init__(f"{what} in {where}")
        self.where = where


def fail_value() -> NoReturn:
    raise ValueError("a bad value")


def fail_particular() -> NoReturn:
    raise Particular("trouble", where=7)


def fail_unpicklable() -> NoReturn:
    error = RuntimeError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]  # on purpose
    raise error


def fail_local() -> NoReturn:
    class Local(LookupError):
        pass

    raise Local("of a type that is nowhere else")


def fail_in_torch() -> NoReturn:
    torch.ones(2) @ torch.ones(3)
    raise AssertionError("not reached")


def fail_with_cause() -> NoReturn:
    try:
        fail_value()
    except ValueError as error:
        raise KeyError("made of it") from error


FAILURES: dict[str, tuple[Callable[[], NoReturn], type[BaseException], str]] = {
    "value": (fail_value, ValueError, "a bad value"),
    "particular": (fail_particular, Particular, "trouble in 7"),
    "unpicklable": (fail_unpicklable, RuntimeError, "holds a lock"),
    "local": (fail_local, LookupError, "nowhere else"),
    "torch": (fail_in_torch, RuntimeError, "size"),
    "cause": (fail_with_cause, KeyError, "made of it"),
    "exit": (functools.partial(sys.exit, 3), SystemExit, "3"),
    "interrupt": (functools.partial(signal.raise_signal, signal.SIGINT), KeyboardInterrupt, ""),  # type: ignore[dict-item]  # it raises
}
PLACES = ("begin", "step", "between", "mean", "end")


def train(failure: str, place: str, ranks: tuple[int, ...], run: Run) -> str:
    """Fail in these ranks at this place."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def here(now: str) -> None:
        if now == place and run.rank in ranks:
            FAILURES[failure][0]()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if step.batches == 1:
            here("step")
        found: Tensor = model(x).square()
        return found

    def measure(model: nn.Module, x: Tensor) -> Tensor:
        here("mean")
        found: Tensor = model(x)[:, 0]
        return found

    here("begin")
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 8):
        step(batch)
        here("between")
    run.mean(measure, model, X, batch_size=3)
    here("end")
    return "trained"


SHORT = [
    ("value", "step", (0,), 3),
    ("particular", "mean", (1,), 2),
    ("unpicklable", "between", (2,), 3),
    ("local", "begin", (1,), 2),
    ("torch", "step", (0, 1, 2), 3),
    ("cause", "end", (1,), 2),
    ("exit", "step", (1,), 3),
    ("interrupt", "between", (1,), 2),
]


@pytest.mark.parametrize(
    ("failure", "place", "ranks", "size"),
    SHORT,
    ids=lambda value: str(value).replace(" ", ""),
)
def test_the_error_is_that_of_the_rank_that_failed(
    failure: str, place: str, ranks: tuple[int, ...], size: int, pool: Pool
) -> None:
    _, kind, said = FAILURES[failure]
    with pytest.raises(kind) as raised:
        fanwise.run(functools.partial(train, failure, place, ranks), devices=size, pool=pool)
    error = raised.value
    notes = "\n".join(getattr(error, "__notes__", []))
    assert said in str(error), (error, notes)
    assert any(f"in rank {rank} of {size} (pid " in notes for rank in ranks), notes
    assert "Traceback (most recent call last)" in notes and "in here" in notes, notes
    if failure == "particular":
        assert isinstance(error, Particular) and error.where == 7


def one_waits_for_ever(folder: Path, run: Run) -> None:
    (folder / f"{run.rank}").write_text(str(os.getpid()))
    if run.rank == 0:
        fail_after = folder / "1"
        within(60, lambda: is_written(fail_after), "the other is there")
        raise OSError("while another does something else")
    threading.Event().wait()


def test_a_failure_ends_processes_that_are_busy_elsewhere(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="while another does something else"):
        fanwise.run(functools.partial(one_waits_for_ever, tmp_path), devices=2, pool=pool)
    assert not any((Path("/proc") / (tmp_path / name).read_text()).exists() for name in "01")


def is_written(path: Path) -> bool:
    """Not only opened by who is about to write."""
    return path.exists() and bool(path.read_text())


def waits(folder: Path, run: Run) -> None:
    (folder / f"{run.rank}").write_text(str(os.getpid()))
    threading.Event().wait()


def test_ctrl_c_in_the_program_ends_all(pool: Pool, tmp_path: Path) -> None:
    def press() -> None:
        within(60, lambda: all(is_written(tmp_path / name) for name in "012"), "all are at work")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fanwise.run(functools.partial(waits, tmp_path), devices=3, pool=pool)
    thread.join()
    assert not any((Path("/proc") / (tmp_path / name).read_text()).exists() for name in "012")


def catches(run: Run) -> list[str]:
    """Goes on after a failed step, as a training on one device may."""
    said: list[str] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if step.batches == len(said) == 1 and run.rank == 0:
            raise ValueError("a bad sample")
        found: Tensor = model(x).square()
        return found

    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 8):
        try:
            step(batch)
            said.append("step")
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_failed_step_that_one_process_lets_pass_is_an_error(pool: Pool) -> None:
    assert fanwise.run(catches, devices=1) == ["step", "a bad sample", "step"]
    with pytest.raises((RuntimeError, ValueError), match=r"different things|a bad sample"):
        fanwise.run(catches, devices=2, pool=pool)


def wait_status_of_result(result: Any, run: Run) -> Any:  # Any: whatever comes back
    return result() if run.rank == 0 else None


def test_a_result_that_cannot_be_sent_says_so(pool: Pool) -> None:
    with pytest.raises(Exception, match="lock") as raised:
        fanwise.run(functools.partial(wait_status_of_result, threading.Lock), devices=2, pool=pool)
    assert "rank 0 of 2" in "\n".join(raised.value.__notes__)


# -- wrong with the run ------------------------------------------------------------------------------------------------


def square(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x).square()
    return found


def trained(run: Run, model: nn.Module, batch_size: int = 8) -> list[Tensor]:
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    for batch in run.batches(X, batch_size):
        step(batch)
    return list(model.state_dict().values())


def of_rank(run: Run) -> list[Tensor]:
    last = nn.Linear(3, 1)
    if run.rank == 1:
        nn.init.ones_(last.weight)
    return trained(run, nn.Sequential(nn.Linear(3, 3), last))


def test_a_model_that_differs_between_processes_names_the_parameter(pool: Pool) -> None:
    said = r"between the processes, first in '1\.weight': float32 \(1, 3\) with checksum \w{8} in process 0, "
    with pytest.raises(ValueError, match=said):
        fanwise.run(of_rank, devices=2, pool=pool)


def mean(run: Run, rows: int) -> float:
    return run.mean(lambda model, x: model(x)[:, 0], nn.Linear(3, 1), X[:rows])


def some_evaluate(run: Run) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    if run.rank == 0:
        mean(run, 10)
    for batch in run.batches(X, 8):
        step(batch)


def some_step_more(run: Run) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    for _ in range(2 + run.rank):
        step(X)


def some_report(run: Run) -> None:
    if run.rank == 1:
        run.report(loss=1.0)


@pytest.mark.parametrize(
    ("train", "one", "other"),
    [
        (some_evaluate, "evaluates", "makes step 0"),
        (some_step_more, "has returned", "makes step 0"),
        (some_report, "has returned", "reports"),
    ],
    ids=["mean", "step", "report"],
)
def test_processes_that_do_different_things_are_named(
    train: Callable[[Run], object], one: str, other: str, pool: Pool
) -> None:
    with pytest.raises(RuntimeError, match="the processes of the run do different things") as raised:
        fanwise.run(train, devices=2, pool=pool)
    first = str(raised.value).split("\n")[0]
    assert one in first and other in first and "rank 0" in first and "rank 1" in first


def small_batches(run: Run) -> list[Tensor]:
    return trained(run, nn.Linear(3, 1), 3)


def test_a_wrong_option_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"on_loss must be one of continue, stop, got 'continu'; did you mean 'continue'\?"
    ):
        fanwise.run(small_batches, devices=2, on_loss="continu")


def where(run: Run) -> tuple[int, int]:
    return os.getpid(), run.world_size


def test_one_device_is_this_process() -> None:
    assert fanwise.run(where, devices=1) == (os.getpid(), 1)


def test_more_processes_than_a_pool_has_cpus_is_refused_and_leaves_nothing() -> None:
    with Pool(cpus=5, seed=0) as small:
        with pytest.raises(
            LeaseError, match=r"2 processes with threads=3 .* room for 1: the pool has 5 CPUs"
        ) as raised:
            fanwise.run(where, devices=2, threads=3, pool=small)
        assert "Give fewer devices." in str(raised.value)
        job = small.needs(cpus=2).submit(fanwise.run, where, devices=3)
        with pytest.raises(LeaseError, match=r"3 processes with threads=1 .* room for 2: this job has 2 CPUs"):
            job.result(60)


def test_runs_without_a_pool_share_one(pool: Pool) -> None:
    before = pool._engine.finished
    pids = [fanwise.run(where, devices=2)[0] for _ in range(2)]
    assert os.getpid() not in pids
    assert own_pool() is pool and pool._engine.finished == before + 4
