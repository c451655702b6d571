"""Errors of runs in several processes: the caller gets their type, rank and traceback, and no process remains.

All runs here share the pool of runs that are not given one.
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
    """The pool of runs that are not given one. Closing it twice is allowed, and the next run creates another one."""
    importlib.import_module("torch._dynamo")  # the first optimizer loads it, which changes the environment
    fanwise.run(lambda run: None, devices=2)  # starts the processes
    pool = own_pool()
    yield pool
    close_own_pool()
    close_own_pool()
    assert "closed" in repr(pool) and own_pool() is not pool
    close_own_pool()


# -- errors of a process ----------------------------------------------------------------------------------------------


class TwoPartError(Exception):
    """Its constructor takes other arguments than `args`."""

    def __init__(self, reason: str, *, line: int) -> None:
        super().__init__(f"{reason} in {line}")
        self.line = line


def fail_value() -> NoReturn:
    raise ValueError("a bad value")


def fail_with_keywords() -> NoReturn:
    raise TwoPartError("trouble", line=7)


def fail_unpicklable() -> NoReturn:
    error = RuntimeError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]  # on purpose
    raise error


def fail_local() -> NoReturn:
    class Local(LookupError):
        pass

    raise Local("of a local type")


def fail_in_torch() -> NoReturn:
    torch.ones(2) @ torch.ones(3)
    raise AssertionError("not reached")


def fail_with_cause() -> NoReturn:
    try:
        fail_value()
    except ValueError as error:
        raise KeyError("a key error") from error


FAILURES: dict[str, tuple[Callable[[], NoReturn], type[BaseException], str]] = {
    "value": (fail_value, ValueError, "a bad value"),
    "keywords": (fail_with_keywords, TwoPartError, "trouble in 7"),
    "unpicklable": (fail_unpicklable, RuntimeError, "holds a lock"),
    "local": (fail_local, LookupError, "of a local type"),
    "torch": (fail_in_torch, RuntimeError, "size"),
    "cause": (fail_with_cause, KeyError, "a key error"),
    "exit": (functools.partial(sys.exit, 3), SystemExit, "3"),
    "interrupt": (functools.partial(signal.raise_signal, signal.SIGINT), KeyboardInterrupt, ""),  # type: ignore[dict-item]  # it raises
}


def train(failure: str, place: str, ranks: tuple[int, ...], run: Run) -> str:
    """Fail in these ranks at this place."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def fail_at(current_place: str) -> None:
        if current_place == place and run.rank in ranks:
            FAILURES[failure][0]()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if step.batches == 1:
            fail_at("step")
        losses: Tensor = model(x).square()
        return losses

    def measure(model: nn.Module, x: Tensor) -> Tensor:
        fail_at("mean")
        first: Tensor = model(x)[:, 0]
        return first

    fail_at("begin")
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 8):
        step(batch)
        fail_at("between")
    run.mean(measure, model, X, batch_size=3)
    fail_at("end")
    return "trained"


CASES = [
    ("value", "step", (0,), 3),
    ("keywords", "mean", (1,), 2),
    ("unpicklable", "between", (2,), 3),
    ("local", "begin", (1,), 2),
    ("torch", "step", (0, 1, 2), 3),
    ("cause", "end", (1,), 2),
    ("exit", "step", (1,), 3),
    ("interrupt", "between", (1,), 2),
]


@pytest.mark.parametrize(("failure", "place", "ranks", "size"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_the_error_is_that_of_the_rank_that_failed(
    failure: str, place: str, ranks: tuple[int, ...], size: int, pool: Pool
) -> None:
    _, kind, text = FAILURES[failure]
    with pytest.raises(kind) as raised:
        fanwise.run(functools.partial(train, failure, place, ranks), devices=size, pool=pool)
    error = raised.value
    notes = "\n".join(getattr(error, "__notes__", []))
    assert text in str(error), (error, notes)
    assert any(f"in rank {rank} of {size} (pid " in notes for rank in ranks), notes
    assert "Traceback (most recent call last)" in notes and "in fail_at" in notes, notes
    if failure == "keywords":
        assert isinstance(error, TwoPartError) and error.line == 7


def write_pid(folder: Path, run: Run) -> None:
    unfinished = folder / f".{run.rank}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / f"{run.rank}")


def any_is_alive(folder: Path) -> bool:
    """Return True if a process that has called `write_pid` exists."""
    return any(os.path.exists(f"/proc/{path.read_text()}") for path in folder.iterdir())


def fail_while_the_other_waits(folder: Path, run: Run) -> None:
    write_pid(folder, run)
    if run.rank == 0:
        within(60, (folder / "1").exists, "the other process has started")
        raise OSError("while the other waits")
    threading.Event().wait()


def test_a_failure_ends_processes_that_wait(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="while the other waits"):
        fanwise.run(functools.partial(fail_while_the_other_waits, tmp_path), devices=2, pool=pool)
    assert not any_is_alive(tmp_path)


def wait_forever(folder: Path, run: Run) -> None:
    write_pid(folder, run)
    threading.Event().wait()


def test_ctrl_c_in_the_program_ends_all(pool: Pool, tmp_path: Path) -> None:
    def press() -> None:
        within(60, lambda: all((tmp_path / name).exists() for name in "012"), "all processes have started")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fanwise.run(functools.partial(wait_forever, tmp_path), devices=3, pool=pool)
    thread.join()
    assert not any_is_alive(tmp_path)


def catch_failed_step(run: Run) -> list[str]:
    """Continue after a failed step, which a training on one device may do."""
    steps: list[str] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if step.batches == len(steps) == 1 and run.rank == 0:
            raise ValueError("a bad sample")
        losses: Tensor = model(x).square()
        return losses

    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 8):
        try:
            step(batch)
            steps.append("step")
        except ValueError as error:
            steps.append(str(error))
    return steps


def test_a_failed_step_that_one_process_catches_is_an_error(pool: Pool) -> None:
    assert fanwise.run(catch_failed_step, devices=1) == ["step", "a bad sample", "step"]
    with pytest.raises((RuntimeError, ValueError), match=r"different things|a bad sample"):
        fanwise.run(catch_failed_step, devices=2, pool=pool)


def lock_of_first_rank(run: Run) -> Any:  # Any: a lock
    return threading.Lock() if run.rank == 0 else None


def test_a_result_that_cannot_be_sent_is_an_error(pool: Pool) -> None:
    with pytest.raises(Exception, match="lock") as raised:
        fanwise.run(lock_of_first_rank, devices=2, pool=pool)
    assert "rank 0 of 2" in "\n".join(raised.value.__notes__)


# -- mistakes in the training function ------------------------------------------------------------------------------


def square(model: nn.Module, x: Tensor) -> Tensor:
    losses: Tensor = model(x).square()
    return losses


def train_different_models(run: Run) -> None:
    last = nn.Linear(3, 1)
    if run.rank == 1:
        nn.init.ones_(last.weight)
    model = nn.Sequential(nn.Linear(3, 3), last)
    run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)(X)


def test_a_model_that_differs_between_processes_names_the_parameter(pool: Pool) -> None:
    message = r"between the processes, first in '1\.weight': float32 \(1, 3\) with checksum \w{8} in process 0, "
    with pytest.raises(ValueError, match=message):
        fanwise.run(train_different_models, devices=2, pool=pool)


def only_first_evaluates(run: Run) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    if run.rank == 0:
        run.mean(lambda model, x: model(x)[:, 0], nn.Linear(3, 1), X)
    for batch in run.batches(X, 8):
        step(batch)


def second_makes_more_steps(run: Run) -> None:
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), square)
    for _ in range(2 + run.rank):
        step(X)


def only_second_reports(run: Run) -> None:
    if run.rank == 1:
        run.report(loss=1.0)


@pytest.mark.parametrize(
    ("train", "action", "other_action"),
    [
        (only_first_evaluates, "evaluates", "makes step 0"),
        (second_makes_more_steps, "has returned", "makes step 0"),
        (only_second_reports, "has returned", "reports"),
    ],
    ids=["mean", "step", "report"],
)
def test_processes_that_do_different_things_are_named(
    train: Callable[[Run], object], action: str, other_action: str, pool: Pool
) -> None:
    with pytest.raises(RuntimeError, match="the processes of the run do different things") as raised:
        fanwise.run(train, devices=2, pool=pool)
    first = str(raised.value).split("\n")[0]
    assert action in first and other_action in first and "rank 0" in first and "rank 1" in first


def test_a_wrong_option_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"on_loss must be one of continue, stop, got 'continu'; did you mean 'continue'\?"
    ):
        fanwise.run(pid_and_world_size, devices=2, on_loss="continu")


def pid_and_world_size(run: Run) -> tuple[int, int]:
    return os.getpid(), run.world_size


def test_one_device_is_this_process() -> None:
    assert fanwise.run(pid_and_world_size, devices=1) == (os.getpid(), 1)


def test_more_processes_than_a_pool_has_cpus_is_refused_and_leaves_nothing() -> None:
    with Pool(cpus=5, seed=0) as small:
        with pytest.raises(
            LeaseError, match=r"2 processes with threads=3 .* room for 1: the pool has 5 CPUs"
        ) as raised:
            fanwise.run(pid_and_world_size, devices=2, threads=3, pool=small)
        assert "Give fewer devices." in str(raised.value)
        job = small.needs(cpus=2).submit(fanwise.run, pid_and_world_size, devices=3)
        with pytest.raises(LeaseError, match=r"3 processes with threads=1 .* room for 2: this job has 2 CPUs"):
            job.result(60)


def test_runs_without_a_pool_share_one(pool: Pool) -> None:
    before = pool._engine.finished
    pids = [fanwise.run(pid_and_world_size, devices=2)[0] for _ in range(2)]
    assert os.getpid() not in pids
    assert own_pool() is pool and pool._engine.finished == before + 4
