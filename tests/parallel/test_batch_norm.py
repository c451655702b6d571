"""Batch normalization over all shards gives the results of one pass over the whole batch."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from all_reduce_contract import Peer
from classification import losses
from hypothesis import given
from hypothesis import strategies as st
from memory_teams import play
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fanwise
from fanwise.base.errors import WorkerLostError
from fanwise.parallel import Run
from fanwise.parallel.batch_norm import check_batch_norm, execute_globally, merge, moments_of
from fanwise.parallel.comm.team import Alone
from fanwise.parallel.config import Plan
from fanwise.parallel.data.position import DataPosition
from fanwise.parallel.step.replicas import Replica
from fanwise.tensor.random.keys import Key

# B: samples, C: channels
B, C = 13, 4
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(B, C, 6, 6, generator=GENERATOR) * 3 + 5
Y = torch.randint(0, 3, (B,), generator=GENERATOR)
ROWS = X[:, :, 0, 0]

LossFn = Callable[..., Any]  # Any: losses, or (losses, counts)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make()


def trained(
    make: Callable[[], nn.Module], shards: int, batch: Any = (X, Y), loss_fn: LossFn = losses, *, steps: int = 3
) -> nn.Module:
    """Train with one shard per process. The processes are threads, and must end with the same bits."""
    models = [seeded(make) for _ in range(shards)]

    def train(peer: Peer) -> None:
        model, device = models[peer.team.index], torch.device("cpu")
        run = Run(Plan(shards, 1, DataPosition(3)), device, team=peer.team)
        step = run.step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), loss_fn, batch_norm="global")
        for _ in range(steps):
            step(batch)

    play(shards, "two-shot", train)
    for model in models:
        assert "forward" not in {name for module in model.modules() for name in vars(module)}
        assert all(map(torch.equal, _values(model), _values(models[0])))
    return models[0]


def _values(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


def trained_plainly(
    make: Callable[[], nn.Module], batch: Any = (X, Y), loss_fn: LossFn = losses, *, steps: int = 3
) -> nn.Module:
    model = seeded(make)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(steps):
        result = loss_fn(model, *batch)
        (result[0].sum() / result[1] if isinstance(result, tuple) else result.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def _named(name: str, message: str) -> str:
    return f"{name}: {message}"


def assert_like_the_whole_batch(
    make: Callable[[], nn.Module],
    shards: int,
    batch: Any = (X, Y),
    loss_fn: LossFn = losses,
    *,
    steps: int = 3,
    within: float = 1e-6,
) -> None:
    actual = trained(make, shards, batch, loss_fn, steps=steps)
    expected = trained_plainly(make, batch, loss_fn, steps=steps).state_dict()
    for name, value in actual.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=within, atol=within, msg=partial(_named, name))


def part(model: nn.Module, place: int | slice) -> Any:  # Any: a module
    assert isinstance(model, nn.Sequential)
    return model[place]


def build(*layers: nn.Module, example: Tensor = X) -> nn.Module:
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))
    model.eval()(example[:2])  # gives the last layer its shape
    return model.train()


def network(**options: Any) -> nn.Module:  # Any: of the layers
    return build(
        nn.Conv2d(C, 5, 3), nn.BatchNorm2d(5, **options), nn.ReLU(), nn.Conv2d(5, 5, 3), nn.BatchNorm2d(5, **options)
    )


@pytest.mark.parametrize("shards", [2, 3, 5, 13])
def test_uneven_shards_give_the_results_of_the_whole_batch(shards: int) -> None:
    assert_like_the_whole_batch(network, shards)


def test_a_process_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one sample per process"):
        trained(network, 5, (X[:3], Y[:3]))


@pytest.mark.parametrize(
    "options",
    [
        {"affine": False},
        {"track_running_stats": False},
        {"momentum": None},
        {"momentum": 0.9, "eps": 0.1},
        {"bias": False},
    ],
    ids=str,
)
def test_options_of_a_layer_keep_their_meaning(options: Any) -> None:  # Any: of a layer
    assert_like_the_whole_batch(lambda: network(**options), 4)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.BatchNorm1d, ROWS),
        (nn.BatchNorm1d, X[:, :, 0]),
        (nn.BatchNorm2d, X.contiguous(memory_format=torch.channels_last)),
        (nn.BatchNorm3d, X[..., None].expand(-1, -1, -1, -1, 2).contiguous()),
    ],
    ids=["1d", "1d-long", "2d-channels-last", "3d"],
)
def test_every_kind_of_layer_is_normalized(layer: Callable[[int], nn.Module], x: Tensor) -> None:
    assert_like_the_whole_batch(lambda: build(layer(C), nn.Tanh(), layer(C), example=x), 3, (x, Y))


def test_sync_batch_norm_layers_work_on_cpus_without_a_process_group() -> None:
    sync = trained(lambda: build(nn.SyncBatchNorm(C)), 3)
    usual = trained(lambda: build(nn.BatchNorm2d(C)), 3)
    assert all(map(torch.equal, _values(sync), _values(usual)))


class Branches(nn.Module):
    """One layer that is called twice, a skip connection, a frozen layer, and a head that the loss leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.frozen = nn.Conv2d(C, C, 3, padding=1), nn.BatchNorm2d(C), nn.BatchNorm2d(C)
        self.head, self.aside = nn.Linear(C * 36, 3), nn.Sequential(nn.Conv2d(C, 2, 1), nn.BatchNorm2d(2))

    def forward(self, x: Tensor) -> Tensor:
        self.frozen.eval()
        late = self.norm(self.conv(self.norm(x)))
        self.aside(late)
        out: Tensor = self.head(self.frozen(late.relu() + x).flatten(1))
        return out


def test_layers_called_twice_skips_frozen_and_unused_layers() -> None:
    assert_like_the_whole_batch(Branches, 4)


def test_recomputed_activations_are_normalized_again() -> None:
    def recomputing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        hidden = checkpoint(part(model, slice(5)), x, use_reentrant=False)
        return losses(part(model, slice(5, None)), hidden, y)

    assert_like_the_whole_batch(network, 4, loss_fn=recomputing)


def test_a_shard_may_have_no_value_for_a_layer() -> None:
    """Only rows above a threshold reach the layer; the last shards have none."""
    rows = ROWS.sort(0, descending=True).values

    def chosen(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        high = x[x[:, 0] > float(rows[5, 0])]
        normalized = part(model, 1)(part(model, 0)(high))
        return normalized.square().sum(1) * normalized[:, 0] + part(model, 0)(high).sum(1), len(x)

    def two() -> nn.Module:
        return nn.Sequential(nn.Linear(C, 4), nn.BatchNorm1d(4))

    assert_like_the_whole_batch(two, 4, (rows, Y), chosen, within=1e-5)


def test_one_value_per_channel_is_refused_for_the_whole_batch_only() -> None:
    def make() -> nn.Module:
        return build(nn.BatchNorm1d(C), example=ROWS)

    trained(make, B, (ROWS, Y))  # one sample per shard

    def only_first(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = part(model, slice(1))(x[(x == ROWS[0]).all(1)]).sum() + x.new_zeros(len(x))
        return result

    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        trained(make, 2, (ROWS, Y), only_first)


def test_shards_that_call_other_layers_are_refused() -> None:
    def by_shard(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        hidden = part(model, slice(2))(x)
        if torch.equal(x[0], X[0]):
            early: Tensor = hidden.flatten(1).sum(1)
            return early
        return losses(part(model, slice(2, None)), hidden, y)

    message = "the processes of the run do different things: .*normalizes call [01] of a batch-norm layer"
    with pytest.raises(RuntimeError, match=message):
        trained(network, 2, loss_fn=by_shard)


def test_more_shards_than_processes_are_refused() -> None:
    run, model = fanwise.here(shards=4), network()
    with pytest.raises(ValueError, match=r"needs one shard per process, but there are 4 shards and 1 process\."):
        run.step(model, torch.optim.SGD(model.parameters(), 0.1), losses, batch_norm="global")


def test_lost_processes_end_the_run_because_no_other_can_take_over_their_shards() -> None:
    with pytest.raises(WorkerLostError, match="1 of 2 processes died"):
        execute_globally(Replica(network(), losses), Alone(), [], Key(0), 2)


def compiled() -> nn.Module:
    norm: Any = torch.compile(nn.BatchNorm1d(2), backend="eager")  # Any: a module
    return nn.Sequential(nn.Linear(2, 2), norm)


def compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].compile(backend="eager")
    return model


def scripted() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.BatchNorm1d(2)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [compiled, compiled_in_place, scripted])
def test_compiled_and_scripted_layers_are_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"cannot replace layers in '1', which is (compiled|scripted)"):
        check_batch_norm("global", make(), shards=1, processes=1)
    check_batch_norm("shard", make(), shards=4, processes=1)


# -- moments -----------------------------------------------------------------------------------------------------------


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    mean=st.sampled_from([0.0, 1.0, 1e4]),
    seed=st.integers(0, 100),
)
def test_merged_moments_are_those_of_all_values(counts: list[int], mean: float, seed: int) -> None:
    values = np.random.default_rng(seed).normal(mean, 1.0, (sum(counts), 2, 3)).astype(np.float32)
    parts = [moments_of(torch.from_numpy(part)) for part in np.split(values, np.cumsum(counts)[:-1])]
    full = [part for part in parts if part is not None]
    assert len(full) == sum(count > 0 for count in counts)
    if not full:
        return
    count, mean_C, squares_C = functools.reduce(merge, full)
    exact = values.astype(np.float64).transpose(1, 0, 2).reshape(2, -1)
    assert count.tolist() == [exact.shape[1]] * 2
    np.testing.assert_allclose(mean_C.numpy(), exact.mean(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(squares_C.numpy() / exact.shape[1], exact.var(1), rtol=1e-6, atol=1e-12)
