"""Training over the nodes of a real Ray cluster: a node that is killed in the middle changes no bit."""

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which leaves a variable in the environment
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from with_ray import RayCluster

import fanwise
from fanwise import Pool
from fanwise.parallel import Run
from fanwise.testing import within

# N: samples, B: samples of a global batch. 40 batches, so that a kill is within some step
N, B, EPOCHS = 64, 16, 10
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(N, 20, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)
LARGE = 20_000  # hidden units, whose gradients go by slices


@pytest.fixture(scope="module")
def pool(cluster: RayCluster) -> Iterator[Pool]:
    with Pool(ray=cluster.address, seed=5) as pool:
        pool.submit(int).result(within_s=60)
        yield pool


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def train(run: Run, hidden: int = 16, folder: str = "") -> tuple[str, int]:
    """The bits of the parameters, and the number of processes. With a folder, it ends only after the kill."""
    model = nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 3))
    step = run.step(model, torch.optim.AdamW(model.parameters(), 0.01), losses)
    for epoch in run.epochs(EPOCHS):
        for batch in run.batches((X, Y), B):
            if folder and epoch == 0:
                Path(folder, f"begun-{run.rank}").touch()
            if folder and epoch == EPOCHS - 1:
                until_s = time.monotonic() + 60
                while not Path(folder, "killed").exists() and time.monotonic() < until_s:
                    threading.Event().wait(0.01)
            step(batch)
            if folder:
                run.save(Path(folder, "last.pt"))
    tensors = model.state_dict().values()
    bits = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()
    return bits, len(run.gather(None))


def killed_in_the_middle(
    cluster: RayCluster, pool: Pool, folder: Path, *, cpus: int, after_s: float, hidden: int = 16
) -> tuple[str, int]:
    """Run 4 processes on two nodes, and kill one node `after_s` seconds after the beginning of the first step.

    Args:
        cpus: of the node that dies: 2 have the last two ranks, 3 the first three.
    """
    within(60, lambda: pool.capacity().cpus == 2, "the other node is there, and no third")
    node = cluster.add(cpus=cpus)
    within(60, lambda: pool.capacity().cpus == 2 + cpus, "the node has joined")

    def kill() -> None:
        within(120, lambda: any(folder.glob("begun-*")), "the run has begun")
        threading.Event().wait(after_s)  # when a node dies is chance
        cluster.remove(node)
        within(60, lambda: pool.capacity().cpus == 2, "its processes are gone")
        (folder / "killed").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    result: tuple[str, int] = fanwise.run(
        partial(train, hidden=hidden, folder=str(folder)), devices=4, pool=pool, progress=False, restarts=1
    )
    killer.join()
    return result


def test_a_run_starts_again_on_the_nodes_that_are_left_after_one_is_killed(
    cluster: RayCluster, pool: Pool, tmp_path: Path
) -> None:
    alone = fanwise.run(train, devices="cpu", progress=False)
    assert killed_in_the_middle(cluster, pool, tmp_path, cpus=3, after_s=0.1) == (alone[0], 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_nodes_that_are_killed_at_any_moment_change_no_bit(
    cluster: RayCluster, pool: Pool, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    hidden, cpus = chance.choice([16, LARGE]), chance.choice([2, 3])
    alone = fanwise.run(partial(train, hidden=hidden), devices="cpu", progress=False)
    result = killed_in_the_middle(cluster, pool, tmp_path, cpus=cpus, after_s=chance.uniform(0, 1), hidden=hidden)
    assert result == (alone[0], 2)
