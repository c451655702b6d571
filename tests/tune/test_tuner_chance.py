"""The chance that trials draw from: different for each trial, the same for the same seed, torch's too."""

import random

import numpy as np
from program_runs import LoadedInterpreter
from searches import search

from fanwise.base.errors import ClosedError
from fanwise.pool import Pool, current
from fanwise.pool.seeds import job_seed
from fanwise.tune import (
    report,
)

# KeyedRandom.


def draw(same: int) -> None:
    report(loss=random.random(), numpy=np.random.rand(), seed=current().seed % 2**32)


def test_trials_draw_different_numbers_and_a_repeated_search_the_same(pool: Pool) -> None:
    columns = ["loss", "numpy", "seed"]
    first, second = (search(draw, {"same": 1}, pool=pool, random_seed=5, trials=3) for _ in range(2))
    drawn, drawn_again = (e.results.set_index("trial_id").sort_index()[columns] for e in (first, second))
    assert drawn.equals(drawn_again)
    for column in columns:
        assert first.results[column].nunique() == 3
    seeds = {trial_id: job_seed(first.metadata["seed"], trial_id, 0) % 2**32 for trial_id in range(3)}
    assert dict(zip(first.results["trial_id"], first.results["seed"], strict=True)) == seeds


def use_torch(same: int) -> None:
    """Use random numbers of torch, tensors as metrics, and a DataLoader whose worker processes must not report."""
    import torch

    class Numbers(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            try:
                report(loss=99.0)
            except ClosedError:
                return index
            return 99

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    total = sum(int(batch.sum()) for batch in loader)
    report(loss=torch.tensor(0.25), total=torch.tensor([total]), drawn=torch.rand(()), half=torch.tensor(1.5).half())


def test_trial_can_use_a_data_loader_with_worker_processes(torch_loaded: LoadedInterpreter) -> None:
    with torch_loaded.forks_here(), Pool(cpus=2) as pool:
        first, second = (search(use_torch, {"same": 1}, pool=pool, random_seed=5, trials=2) for _ in range(2))
    assert list(first.results["loss"]) == [0.25, 0.25]
    assert list(first.results["total"]) == [15, 15]
    assert list(first.results["half"]) == [1.5, 1.5]
    assert first.results["drawn"].nunique() == 2
    drawn = [dict(zip(e.results["trial_id"], e.results["drawn"], strict=True)) for e in (first, second)]
    assert drawn[0] == drawn[1]
