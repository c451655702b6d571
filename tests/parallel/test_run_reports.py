"""Reports of a run that is in no trial are kept; printing once."""

import pytest
import torch

import fanwise


def test_reports_outside_a_trial_are_kept_as_plain_numbers() -> None:
    run = fanwise.here()
    run.report(epoch=1, loss=torch.tensor(0.5))
    run.report(epoch=2, loss=0.25)
    assert run.rows == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    with pytest.raises(TypeError, match="must be a number"):
        run.report(loss=[1, 2])
    assert len(run.rows) == 2


def test_a_run_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    fanwise.run(lambda run: run.print("epoch", 1, sep="=", end="!\n"), devices=3, processes=1)
    assert capsys.readouterr().out == "epoch=1!\n"


def test_one_process_is_rank_0_of_1() -> None:
    actual = fanwise.run(lambda run: (run.rank, run.world_size, run.device, len(run.devices)), devices=3, processes=1)
    assert actual == (0, 1, torch.device("cpu"), 3)
