"""A process of a run that hangs is reported with its stack. The run ends, or continues with the same bits."""

import functools
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.base.errors import WorkerLostError
from fanwise.parallel import Run
from fanwise.parallel.comm import stragglers
from fanwise.pool import JobHandle, Pool
from fanwise.testing import within

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
STEPS = 6  # an epoch
TIMEOUT_S = 1.5  # a process that does not hang takes less, also on a loaded machine


def stops(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def deadlocks(folder: Path) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def reads_from_a_fifo(folder: Path) -> None:
    path = folder / "fifo"
    with suppress(FileExistsError):
        os.mkfifo(path)
    path.read_bytes()


def computes_in_native_code(folder: Path) -> None:
    """Hold the interpreter's lock for longer than the test."""
    re.match("(a+)+$", "a" * 64 + "b")


def cannot_be_interrupted(folder: Path) -> None:
    """Wait in the kernel, as for a disk that does not answer: posix_spawn waits until the child has opened a FIFO."""
    path = folder / "stuck"
    os.mkfifo(path)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)])


@pytest.fixture
def let_children_go(tmp_path: Path) -> Iterator[None]:
    yield
    if (path := tmp_path / "stuck").exists():
        os.close(os.open(path, os.O_RDWR))


# The ways to hang, with a part of the report.
HANGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "stopped": (stops, "It is stopped by a signal (SIGSTOP, or Ctrl-Z); kill -CONT"),
    "deadlock": (deadlocks, "in deadlocks"),
    "blocking read": (reads_from_a_fifo, "in reads_from_a_fifo"),
    "native code": (computes_in_native_code, "in computes_in_native_code"),
    "uninterruptible": (
        cannot_be_interrupted,
        "It waits in the kernel and cannot be interrupted, for example for a file system",
    ),
}


def train(folder: Path, how: str, ranks: tuple[int, ...], site: str, number: int, run: Run) -> list[Tensor]:
    """Hang once in each of these ranks, at the site in step `number` or after it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    step = run.step(model, torch.optim.Adam(model.parameters(), 0.01), lambda m, x: loss(m, x))
    rank, done = run.rank, 0

    def reach(reached: str) -> None:
        note = folder / f"{rank}"
        if reached == site and done == number and rank in ranks and not note.exists():
            note.touch()
            HANGS[how][0](folder)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        reach("loss")
        actual: Tensor = model(x).square().mean(1)
        return actual

    def measure(model: nn.Module, x: Tensor) -> Tensor:
        reach("mean")
        actual: Tensor = model(x)[:, 0]
        return actual

    for _ in run.epochs(2):
        for batch in run.batches(X, 8):
            step(batch)
            done += 1
            reach("between")
        run.mean(measure, model, X)
    return list(model.state_dict().values())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture(scope="module")
def expected() -> list[Tensor]:
    return fanwise.run(functools.partial(train, Path(os.devnull), "", (), "", 0), devices="cpu")


@pytest.mark.usefixtures("let_children_go")
@pytest.mark.parametrize(
    ("how", "site"),
    [
        ("native code", "loss"),
        ("uninterruptible", "loss"),
        ("stopped", "loss"),
        ("deadlock", "between"),
        ("blocking read", "mean"),
    ],
)
def test_a_process_that_hangs_is_killed_and_the_others_continue_with_the_same_bits(
    how: str, site: str, pool: Pool, tmp_path: Path, expected: list[Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    hangs = functools.partial(train, tmp_path, how, (0,), site, STEPS)
    trained = fanwise.run(hangs, devices=2, step_timeout_s=TIMEOUT_S, pool=pool)
    assert all(map(torch.equal, trained, expected))
    (warning,) = warnings(caplog)
    assert warning.startswith("rank 0 of 2 (pid ") and HANGS[how][1] in warning
    assert warning.endswith("has passed, and it was killed; 1 process takes over its shards")


def test_several_processes_that_hang_are_all_reported(pool: Pool, tmp_path: Path, expected: list[Tensor]) -> None:
    hangs = functools.partial(train, tmp_path, "stopped", (0, 2), "between", 3)
    with pytest.raises(WorkerLostError) as raised:
        fanwise.run(hangs, devices=3, on_loss="stop", step_timeout_s=TIMEOUT_S, pool=pool)
    message = str(raised.value)
    assert message.startswith("rank 0 of 3 (pid ") and "rank 2 of 3" in message and "rank 1 of 3" not in message
    assert "1 process waits for " in message and HANGS["stopped"][1] in message
    assert f"step_timeout_s={TIMEOUT_S} has passed.\non_loss='stop' ends the run with " in message
    for note in "02":
        (tmp_path / note).unlink()
    actual = fanwise.run(hangs, devices=3, step_timeout_s=TIMEOUT_S, pool=pool)
    assert all(map(torch.equal, actual, expected))


def test_the_run_ends_if_all_processes_hang(pool: Pool, tmp_path: Path) -> None:
    hangs = functools.partial(train, tmp_path, "blocking read", (0, 1), "between", 2)
    with pytest.raises(WorkerLostError) as raised:
        fanwise.run(hangs, devices=2, step_timeout_s=TIMEOUT_S, pool=pool)
    message = str(raised.value)
    assert "rank 0 of 2" in message and "rank 1 of 2" in message and message.count("in reads_from_a_fifo") == 2
    assert "No other process of the run is left." in message


def always(folder: Path, run: Run) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if step.batches == 2 and run.rank == run.world_size - 1:
            deadlocks(folder)
        actual: Tensor = model(x).square().mean(1)
        return actual

    model = nn.Linear(4, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 8):
        step(batch)


def test_a_step_that_always_hangs_ends_the_run(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match="2 hangs without one finished step between them") as raised:
        fanwise.run(functools.partial(always, tmp_path), devices=3, step_timeout_s=TIMEOUT_S, pool=pool)
    assert "devices=1" in str(raised.value)


def test_without_a_limit_a_warning_names_the_process(
    pool: Pool,
    tmp_path: Path,
    expected: list[Tensor],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stragglers, "WARN_S", 0.5)

    def let_go_on() -> None:
        within(60, lambda: len(caplog.records) > 0, "it is named")
        actual = re.search(r"kill -CONT (\d+)", caplog.records[0].getMessage())
        assert actual is not None
        os.kill(int(actual[1]), signal.SIGCONT)

    thread = threading.Thread(target=let_go_on)
    thread.start()
    hangs = functools.partial(train, tmp_path, "stopped", (1,), "loss", 3)
    actual = fanwise.run(hangs, devices=2, pool=pool)
    thread.join()
    assert all(map(torch.equal, actual, expected))
    warning = caplog.records[0].getMessage()
    assert warning.startswith("rank 1 of 2 (pid ")
    assert warning.endswith("The run waits, because no step_timeout_s= was given.")


def decided_late(folder: Path, run: Run) -> str:
    """The last process hangs before it reports, while the report of the first is not decided yet."""
    step = run.step(model := nn.Linear(4, 1), torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).sum(1))
    step(X)
    if run.rank == 1:
        (folder / "written").write_text(str(os.getpid()))
        (folder / "written").rename(folder / "pid")
        within(60, (folder / "asked").exists, "the first one has reported")
        deadlocks(folder)
    run.report(processes=run.world_size)
    step(X)
    return "returned"


def test_a_process_that_hangs_while_the_tuner_decides_is_killed(pool: Pool, tmp_path: Path) -> None:
    def decides(values: Any) -> str:
        within(20, (tmp_path / "pid").exists, "the other process is about to hang")
        (tmp_path / "asked").touch()
        within(20, lambda: not Path("/proc", (tmp_path / "pid").read_text()).exists(), "the other one is killed")
        return "CONTINUE"

    def trial() -> str:
        return fanwise.run(functools.partial(decided_late, tmp_path), devices=2, step_timeout_s=TIMEOUT_S)

    assert pool.needs(cpus=3, on_report=decides).submit(trial).result(within_s=60) == "returned"


@pytest.mark.parametrize("devices", [1, 2])
def test_the_time_of_a_decision_does_not_count(devices: int, pool: Pool) -> None:
    def decides(values: Any) -> str:
        threading.Event().wait(1.2 * TIMEOUT_S)
        return "CONTINUE"

    def train(run: Run) -> int:
        step = run.step(model := nn.Linear(4, 1), torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).sum(1))
        for batch in run.batches(X, 16):
            step(batch)
            run.report(turns=step.batches)
        return run.world_size

    def trial() -> int:
        return fanwise.run(train, devices=devices, step_timeout_s=TIMEOUT_S, on_loss="stop")

    job = pool.needs(cpus=3, on_report=decides).submit(trial)
    assert isinstance(job, JobHandle) and job.result(within_s=60) == devices
    assert "hangs" not in "".join(job.output())


class Result:
    """A result whose first pickling hangs."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        note = self.folder / "sent"
        if not note.exists():
            note.touch()
            reads_from_a_fifo(self.folder)
        return int, (self.rank,)


def test_a_process_that_hangs_while_it_sends_its_result_is_replaced(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def returns(run: Run) -> Result:
        step = run.step(model := nn.Linear(4, 1), torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).sum(1))
        step(X)
        return Result(tmp_path, run.rank)

    # The next one has as long to send its own: on a busy machine it is not to look as if it hung, too.
    limit_s = 2 * TIMEOUT_S
    actual: Any = fanwise.run(returns, devices=3, step_timeout_s=limit_s, pool=pool)
    assert actual == 1, "what it was when it made the result"
    (warning,) = warnings(caplog)
    assert warning.startswith("rank 0 of 3") and "2 processes wait for it" in warning and "in __reduce__" in warning


def slow(run: Run) -> list[int]:
    """The first step takes longer than the limit."""
    model, turns = nn.Linear(4, 1), []
    threading.Event().wait(1.2 * TIMEOUT_S * (run.rank == 1))
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).square().mean(1))
    for batch in run.batches(X, 8):
        if step.batches == 0:
            threading.Event().wait(1.2 * TIMEOUT_S * (run.rank == 0))
        step(batch)
        turns.append(step.batches)
    return turns


def test_the_first_step_may_take_longer(pool: Pool) -> None:
    actual = fanwise.run(slow, devices=2, on_loss="stop", step_timeout_s=TIMEOUT_S, pool=pool)
    assert actual == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (float("inf"), ValueError), ("3", TypeError)])
def test_an_invalid_limit_is_refused(value: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="step_timeout_s must be"):
        fanwise.run(slow, step_timeout_s=value)
