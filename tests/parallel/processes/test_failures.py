"""What one process of a run raises, the caller gets: its type, its rank, its traceback; and nothing is left."""

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import RemoteError
from fanwise.parallel import Run
from fanwise.pool import Pool
from fanwise.testing import within

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))


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
    "local": (fail_local, RemoteError, "nowhere else"),
    "torch": (fail_in_torch, RuntimeError, "size"),
    "cause": (fail_with_cause, KeyError, "made of it"),
    "exit": (functools.partial(sys.exit, 3), SystemExit, "3"),
    "interrupt": (functools.partial(signal.raise_signal, signal.SIGINT), KeyboardInterrupt, ""),  # type: ignore[dict-item]  # it raises
}
PLACES = ("begin", "step", "between", "mean", "end")


def train(failure: str, place: str, ranks: tuple[int, ...], times: Path, run: Run) -> str:
    """Fails in these ranks at this place, and writes down when."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def here(now: str) -> None:
        if now == place and run.rank in ranks:
            times.write_text(str(time.monotonic()))
            FAILURES[failure][0]()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if step.turns == 1:
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


def fails(failure: str, place: str, ranks: tuple[int, ...], size: int, pool: Pool, folder: Path) -> float:
    """Runs it, looks at the error, and returns how long that took from the failure to here."""
    _, kind, said = FAILURES[failure]
    times = folder / "failed"
    with pytest.raises(kind) as raised:
        fanwise.run(functools.partial(train, failure, place, ranks, times), devices=size, pool=pool)
    took_s = time.monotonic() - float(times.read_text())
    error = raised.value
    notes = "\n".join(getattr(error, "__notes__", []))
    assert said in str(error), (error, notes)
    assert any(f"in rank {rank} of {size} (pid " in notes for rank in ranks), notes
    assert "Traceback (most recent call last)" in notes and "in here" in notes, notes
    if failure == "particular":
        assert isinstance(error, Particular) and error.where == 7
    return took_s


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


@pytest.mark.parametrize(("failure", "place", "ranks", "size"), SHORT, ids=lambda value: str(value).replace(" ", ""))
def test_the_error_is_that_of_the_rank_that_failed(
    failure: str, place: str, ranks: tuple[int, ...], size: int, pool: Pool, tmp_path: Path
) -> None:
    assert fails(failure, place, ranks, size, pool, tmp_path) < 5


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_failures(seed: int, pool: Pool, tmp_path: Path) -> None:
    size = 2 + seed % 3
    ranks = tuple(range(size)) if seed % 7 == 0 else (seed % size,)
    assert fails(list(FAILURES)[seed % 8], PLACES[seed // 8 % 5], ranks, size, pool, tmp_path) < 5


def one_waits_for_ever(folder: Path, run: Run) -> None:
    (folder / f"{run.rank}").write_text(str(os.getpid()))
    if run.rank == 0:
        fail_after = folder / "1"
        within(60, fail_after.exists, "the other is there")
        raise OSError("while another does something else")
    threading.Event().wait()


def test_a_failure_ends_processes_that_are_busy_elsewhere(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="while another does something else"):
        fanwise.run(functools.partial(one_waits_for_ever, tmp_path), devices=2, pool=pool)
    assert not any((Path("/proc") / (tmp_path / name).read_text()).exists() for name in "01")


def waits(folder: Path, run: Run) -> None:
    (folder / f"{run.rank}").write_text(str(os.getpid()))
    threading.Event().wait()


def test_ctrl_c_in_the_program_ends_all(pool: Pool, tmp_path: Path) -> None:
    pressed: list[float] = []

    def press() -> None:
        within(60, lambda: all((tmp_path / name).exists() for name in "012"), "all are at work")
        pressed.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fanwise.run(functools.partial(waits, tmp_path), devices=3, pool=pool)
    assert time.monotonic() - pressed[0] < 5
    thread.join()
    assert not any((Path("/proc") / (tmp_path / name).read_text()).exists() for name in "012")


def catches(run: Run) -> list[str]:
    """Goes on after a failed step, as a training on one device may."""
    said: list[str] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if step.turns == len(said) == 1 and run.rank == 0:
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
