"""`run.save` in several processes returns when the file is written."""

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

import fanwise
from fanwise.parallel import Run
from fanwise.pool import Pool
from fanwise.testing import within


class Fault(Exception):
    """Raised in the last process."""


class Unpicklable:
    """Has a state that cannot be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def saves_late(folder: Path, run: Run) -> None:
    """The last process raises when `save` has returned. The first one calls `save` after the last one."""
    calling = folder / "calling"
    if run.rank == 0:
        within(20, calling.exists, "the last process calls save")
    else:
        calling.touch()
    run.save(folder / "checkpoint")
    if run.rank == run.world_size - 1:
        raise Fault


def test_save_returns_only_after_the_file_is_written(pool: Pool, tmp_path: Path) -> None:
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
