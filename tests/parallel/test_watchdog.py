"""A run in one process that hangs is reported with its stack, and goes on waiting."""

import logging
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run
from fanwise.testing import within

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
TIMEOUT_S = 0.2


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def train(run: Run, hang: Callable[[], None], site: str) -> Tensor:
    """Call `hang` once, after the first step, at one of three sites."""
    model, has_hung = nn.Linear(4, 1), False

    def reach(reached: str) -> None:
        nonlocal has_hung
        if reached == site and step.batches == 2 and not has_hung:
            has_hung = True
            hang()

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        reach("loss")
        out: Tensor = m(x)
        return out.square().mean(1)

    def measure(m: nn.Module, x: Tensor) -> Tensor:
        reach("mean")
        out: Tensor = m(x)
        return out

    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    for batch in run.batches(X, 4):
        step(batch)
        reach("between")
        run.mean(measure, model, X)
    return model.weight.detach()


@pytest.mark.parametrize("site", ["loss", "between", "mean"])
def test_a_run_that_hangs_is_reported_and_goes_on(site: str, warnings: Callable[[], list[str]]) -> None:
    released = threading.Event()

    def wait_for_release() -> None:
        released.wait()

    def release() -> None:
        within(30, lambda: len(warnings()) > 0, "it is reported")
        released.set()

    thread = threading.Thread(target=release)
    thread.start()
    trained = fanwise.run(
        lambda run: train(run, wait_for_release, site), devices=2, processes=1, step_timeout_s=TIMEOUT_S
    )
    thread.join()
    (warning,) = warnings()
    assert warning.startswith("the run hangs: for 0.") and f"step_timeout_s={TIMEOUT_S} has passed" in warning
    lines = [line.strip() for line in warning.splitlines()]
    assert lines[1].startswith("It waits") and lines[2] == "Stack (most recent call first):"
    assert any(line.startswith("File ") and line.endswith("in wait_for_release") for line in lines[3:])
    assert any(line.endswith("in train") for line in lines) and "running.py" not in warning
    assert torch.equal(trained, fanwise.run(lambda run: train(run, lambda: None, site), devices=1))


def test_the_first_step_may_take_longer(warnings: Callable[[], list[str]]) -> None:
    def train_late(run: Run) -> None:
        threading.Event().wait(2 * TIMEOUT_S)
        train(run, lambda: None, "loss")

    fanwise.run(train_late, devices=1, step_timeout_s=TIMEOUT_S)
    assert warnings() == []


def test_an_error_of_the_training_function_ends_the_watchdog() -> None:
    def fail(run: Run) -> None:
        raise KeyError("a bad sample")

    with pytest.raises(KeyError, match="a bad sample"):
        fanwise.run(fail, devices=1, step_timeout_s=TIMEOUT_S)
    assert "fanwise-watchdog" not in [thread.name for thread in threading.enumerate()]
