"""A checkpoint that was asked for before a run fails is on the disk when the error is raised, as on one device."""

import functools
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fanwise
from fanwise.base.errors import WorkerLostError
from fanwise.parallel import Run
from fanwise.parallel.checkpoint import file as checkpoint_file
from fanwise.parallel.launch import supervisor
from fanwise.pool import Pool
from fanwise.testing import within

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))


class Fault(Exception):
    """What another process than the first raises."""


class Unpicklable:
    """Has a state that cannot be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def slow_writes(ended: Path) -> None:
    """Let this process write checkpoints only some time after the run has been told to end. `ended`: exists then."""
    write = checkpoint_file.write_checkpoint

    def slow(location: Any, data: memoryview) -> None:  # Any: a path
        within(20, ended.exists, "the first process has been told that the run ends")
        threading.Event().wait(0.3)
        write(location, data)

    checkpoint_file.write_checkpoint = slow


def steps_of(run: Run) -> Any:  # Any: a Step
    model = nn.Linear(4, 1)
    return run.step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).square().mean(1))


def while_it_is_written(folder: Path, run: Run, until: str = "ended") -> None:
    """The first process waits in the next step, with its file not yet written, when the last one raises."""
    step = steps_of(run)
    slow_writes(folder / until)
    batches = run.batches(X, 8)
    step(next(batches))
    run.save(folder / "checkpoint")
    if run.rank == run.world_size - 1:
        raise Fault
    try:
        step(next(batches))
    except BaseException:
        if run.rank == 0:
            (folder / "ended").touch()
        raise


def dies(folder: Path, run: Run) -> None:
    """As `while_it_is_written`, with a process that is killed."""
    try:
        while_it_is_written(folder, run)
    except Fault:
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize("devices", [2, 3])
def test_what_was_asked_for_before_another_process_raises_is_on_the_disk(
    devices: int, pool: Pool, tmp_path: Path
) -> None:
    with pytest.raises(Fault):
        fanwise.run(functools.partial(while_it_is_written, tmp_path), devices=devices, pool=pool)
    assert torch.load(tmp_path / "checkpoint", weights_only=False)["step"]["batches"] == 1
    assert not list(tmp_path.glob(".*"))


def test_and_before_one_dies_where_a_death_ends_the_run(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError):
        fanwise.run(functools.partial(dies, tmp_path), devices=2, on_loss="stop", pool=pool)
    assert torch.load(tmp_path / "checkpoint", weights_only=False)["step"]["batches"] == 1


def test_a_disk_that_does_not_answer_is_not_waited_for_without_end(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_SAVING_S", 0.3)
    (tmp_path / "checkpoint").write_text("of before")
    with pytest.raises(Fault):
        fanwise.run(functools.partial(while_it_is_written, tmp_path, until="never"), devices=2, pool=pool)
    assert "has not written its last checkpoint within 0.3 s after the run had failed, and is killed" in caplog.text
    assert (tmp_path / "checkpoint").read_text() == "of before"


def saves_late(folder: Path, run: Run) -> None:
    """The last process raises when `save` has returned. The first one calls `save` half a second later."""
    if run.rank == 0:
        threading.Event().wait(0.5)
    run.save(folder / "checkpoint")
    if run.rank == run.world_size - 1:
        raise Fault


def test_save_returns_only_after_the_first_process_has_called_it(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(Fault):
        fanwise.run(functools.partial(saves_late, tmp_path), devices=2, pool=pool)
    assert (tmp_path / "checkpoint").exists()


def test_a_save_by_one_process_alone_is_an_error(pool: Pool, tmp_path: Path) -> None:
    def saves_alone(run: Run) -> None:
        if run.rank == 0:
            run.save(tmp_path / "checkpoint")

    with pytest.raises(RuntimeError, match="the processes of the run do different things") as raised:
        fanwise.run(saves_alone, devices=2, pool=pool)
    assert "rank 0 saves a checkpoint" in str(raised.value) and "rank 1 has returned" in str(raised.value)


def test_an_error_of_save_in_the_first_process_may_be_caught(pool: Pool, tmp_path: Path) -> None:
    def catches(run: Run) -> list[str]:
        run.keep(kept=Unpicklable())
        errors = []
        try:
            run.save(tmp_path / "checkpoint")
        except TypeError as error:
            errors.append(str(error))
        return [text for peer_errors in run.gather(errors) for text in peer_errors]

    (error,) = fanwise.run(catches, devices=2, pool=pool)
    assert "lock" in error
