"""Reports of a run: kept outside, the tuner's inside a trial; printing once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fanwise
from fanwise.parallel import Run
from fanwise.tune import RandomSearch, StoppingCriterion, Tuner, loguniform


def test_reports_outside_a_trial_are_kept_as_plain_numbers() -> None:
    run = fanwise.here()
    run.report(epoch=1, loss=torch.tensor(0.5))
    run.report(epoch=2, loss=0.25)
    assert run.rows == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    with pytest.raises(TypeError, match="must be a number"):
        run.report(loss="low")
    assert len(run.rows) == 2


def test_a_run_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    fanwise.run(lambda run: run.print("epoch", 1, sep="=", end="!\n"), devices=3, processes=1)
    assert capsys.readouterr().out == "epoch=1!\n"


def test_one_process_is_rank_0_of_1() -> None:
    found = fanwise.run(lambda run: (run.rank, run.world_size, run.device, len(run.devices)), devices=3, processes=1)
    assert found == (0, 1, torch.device("cpu"), 3)


def objective(lr: float) -> nn.Module:
    """A trial that trains on two devices, reports by its run, and returns its model, which is no metric."""

    def train(run: Run) -> nn.Module:
        model = nn.Linear(2, 2)
        step = run.step(model, torch.optim.SGD(model.parameters(), lr), lambda m, x: m(x).square().sum(1))
        for epoch in run.epochs(2):
            for batch in run.batches(torch.ones(4, 2), 2):
                loss = step(batch)
            run.report(epoch=epoch, loss=loss, seed=run.seed % 1000)
        return model

    return fanwise.run(train, devices=2, processes=1)


def test_in_a_trial_a_report_is_the_tuners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path))
    space: dict[str, Any] = {"lr": loguniform(0.01, 0.1)}  # Any: domains
    search = RandomSearch(metric="loss", mode="min")
    stop = StoppingCriterion(max_num_trials_started=2)
    results = Tuner(objective, space, search, stop, n_workers=1, quiet=True).run().results
    assert sorted(results.columns.intersection(["epoch", "loss", "seed"])) == ["epoch", "loss", "seed"]
    assert results["epoch"].tolist() == [0, 1, 0, 1]
    assert results["seed"].nunique() == 2  # each trial's own
