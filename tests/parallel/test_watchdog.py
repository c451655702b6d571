"""A training in one process that hangs is named with its stack, and waited for."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run
from fanwise.testing import within

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
TIMEOUT_S = 0.2


class Stuck:
    """Two ways to hang, each until it is let go."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._path = folder / "fifo"
        os.mkfifo(self._path)

    def waits_for_a_lock(self) -> None:
        with self._lock:
            pass

    def reads_what_nobody_writes(self) -> None:
        self._path.read_bytes()

    def let_go(self) -> None:
        self._lock.release()
        os.close(os.open(self._path, os.O_RDWR))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was warned of so far."""
    return lambda: [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def steps(run: Run, hang: Callable[[], None], place: str) -> Tensor:
    """Hangs once, after the first step."""
    model, done = nn.Linear(4, 1), 0

    def here(now: str) -> None:
        nonlocal done
        if now == place and step.batches == 2 and not done:
            done = 1
            hang()

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        here("loss")
        found: Tensor = m(x).square().mean(1)
        return found

    def measure(m: nn.Module, x: Tensor) -> Tensor:
        here("mean")
        found: Tensor = m(x)
        return found

    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 4):
        step(batch)
        here("between")
        run.mean(measure, model, X)
    return model.weight.detach()


@pytest.mark.parametrize("place", ["loss", "between", "mean"])
@pytest.mark.parametrize("devices", [1, 2])
def test_who_hangs_is_named_and_goes_on(
    devices: int, place: str, said: Callable[[], list[str]], tmp_path: Path
) -> None:
    stuck = Stuck(tmp_path)
    ways: list[Callable[[], None]] = [stuck.waits_for_a_lock, stuck.reads_what_nobody_writes]
    hang = ways[devices - 1]

    def let_go() -> None:
        within(30, lambda: len(said()) > 0, "it is named")
        stuck.let_go()

    thread = threading.Thread(target=let_go)
    thread.start()
    found = fanwise.run(lambda run: steps(run, hang, place), devices=devices, processes=1, step_timeout_s=TIMEOUT_S)
    thread.join()
    (told,) = said()
    assert told.startswith("the run hangs: for 0.") and f"step_timeout_s={TIMEOUT_S} has passed" in told
    lines = [line.strip() for line in told.splitlines()]
    assert lines[1].startswith("It waits") and lines[2] == "Stack (most recent call first):"
    assert any(line.startswith("File ") and line.endswith(f"in {hang.__name__}") for line in lines[3:])
    assert any(line.endswith("in steps") for line in lines) and "running.py" not in told
    assert torch.equal(found, fanwise.run(lambda run: steps(run, lambda: None, place), devices=1))


def test_what_comes_before_the_end_of_the_first_step_may_take_longer(said: Callable[[], list[str]]) -> None:
    def train(run: Run) -> None:
        threading.Event().wait(2 * TIMEOUT_S)
        steps(run, lambda: None, "loss")

    fanwise.run(train, devices=1, step_timeout_s=TIMEOUT_S)
    assert said() == []


def test_an_error_of_the_training_function_passes_and_leaves_no_thread() -> None:
    def train(run: Run) -> None:
        raise KeyError("a bad sample")

    with pytest.raises(KeyError, match="a bad sample"):
        fanwise.run(train, devices=1, step_timeout_s=TIMEOUT_S)
    assert "fanwise-watchdog" not in [thread.name for thread in threading.enumerate()]
