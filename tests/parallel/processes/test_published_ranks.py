"""The status of a run with several processes."""

import tempfile

import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.links.status_files import ask_for_statuses, statuses
from fanwise.parallel import Run
from fanwise.pool import Pool


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.square().mean(dim=1)


def train(run: Run) -> list[dict[str, object]]:
    """Train until the first rank sees the status of the run."""
    model = nn.Linear(3, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.01), losses)
    while True:
        for batch in run.batches((torch.ones(32, 3),), 8):
            step(batch)
        (result, *_) = run.gather([dict(status.body) for status in statuses()])
        if result:
            return list(result)


def test_the_status_of_a_run_names_its_processes(forked_pools: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="r-") as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        ask_for_statuses()
        with Pool(seed=0, cpus=4) as own:  # its processes have this folder
            (body,) = fanwise.run(train, devices=2, pool=own)
        assert body["name"] == "train" and body["ranks"] == [{"state": "running"}] * 2
        assert statuses() == []
