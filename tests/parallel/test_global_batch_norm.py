"""Batch normalisation over the whole batch: what one pass over it gives, whoever executes which shard."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its list of names
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fanwise.parallel.batch_norm import Gatherer, differentiate_together
from fanwise.parallel.batch_norm.moments import Moments, merge, moments_of
from fanwise.parallel.batch_norm.relay import Relay
from fanwise.parallel.data.splitting import part_of
from fanwise.parallel.replica.gradients import Partial, add
from fanwise.parallel.replica.reach import reach_of
from fanwise.parallel.replica.replicas import LocalDevice, Replica, ShardWork
from fanwise.parallel.shards import Node, cut, total
from fanwise.parallel.teams.team import Alone
from fanwise.tensor.random.keys import Key

# B: samples, C: channels
B, C = 13, 4
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(B, C, 6, 6, generator=GENERATOR) * 3 + 5
Y = torch.randint(0, 3, (B,), generator=GENERATOR)

LossFn = Callable[..., Any]  # Any: losses, or (losses, counts)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def part(model: nn.Module, place: int | slice) -> Any:  # Any: a module
    """Of a Sequential."""
    assert isinstance(model, nn.Sequential)
    return model[place]


class Trainer:
    """A replica, an optimizer, and one step over some ranges of shards: what a run does, without its surroundings."""

    def __init__(self, model: nn.Module, loss_fn: LossFn = losses, autocast: torch.dtype | None = None) -> None:
        self.model = model
        params = list(model.parameters())
        self.replica = Replica(model, reach_of(model, [loss_fn]), loss_fn, autocast=autocast)
        self.optimizer = torch.optim.SGD(params, 0.1, momentum=0.9) if params else None

    def nodes(
        self, batch: Any, shards: int, share: range, turn: int = 0, gatherer: Gatherer | None = None
    ) -> list[Node[Partial]]:
        ranges = cut(len(batch[0]), shards)
        sizes = [len(each) for each in ranges]
        alone = sum(size > 0 for size in sizes) == 1
        work = [
            ShardWork(index, lambda index: part_of(batch, ranges[index]), size, alone)
            for index, size in enumerate(sizes)
        ]
        self.replica.buffers.keep()
        key = Key(3).fold_in(turn)
        return differentiate_together(self.replica, work[share.start : share.stop], key, shards, gatherer or Alone())

    def update(self, nodes: Sequence[Node[Partial]], shards: int) -> Partial:
        done = total(nodes, shards, add)
        self.replica.buffers.settle(done.buffers, done.samples)
        for param, grad in zip(self.replica.params, done.grads, strict=True):
            param.grad = None if grad is None else grad / done.count
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return done

    def step(self, batch: Any, shards: int, turn: int = 0) -> Partial:
        return self.update(self.nodes(batch, shards, range(shards), turn), shards)


def plain_step(trainer: Trainer, batch: Any) -> None:
    """The same over the whole batch, with torch's own layers."""
    assert trainer.optimizer is not None and trainer.replica.loss_fn is not None
    result = trainer.replica.loss_fn(trainer.model, *batch)
    (result[0].sum() / result[1] if isinstance(result, tuple) else result.mean()).backward()
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make()


def _named(name: str, said: str) -> str:
    return f"{name}: {said}"


def assert_like_the_whole_batch(
    make: Callable[[], nn.Module],
    shards: int,
    batch: Any = (X, Y),
    loss_fn: LossFn = losses,
    *,
    steps: int = 3,
    within: float = 1e-6,
) -> None:
    ours, plain = Trainer(seeded(make), loss_fn), Trainer(seeded(make), loss_fn)
    for turn in range(steps):
        ours.step(batch, shards, turn)
        plain_step(plain, batch)
    expected = plain.model.state_dict()
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=within, atol=within, msg=partial(_named, name))


def classified(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


def made(*layers: nn.Module, example: Tensor = X) -> nn.Module:
    model = classified(*layers)
    model.eval()(example[:2])  # gives the last layer its shape
    return model.train()


def network(**options: Any) -> nn.Module:  # Any: of the layers
    return made(
        nn.Conv2d(C, 5, 3), nn.BatchNorm2d(5, **options), nn.ReLU(), nn.Conv2d(5, 5, 3), nn.BatchNorm2d(5, **options)
    )


@pytest.mark.parametrize("shards", [2, 3, 5, 13, 20])
def test_uneven_shards_give_parameters_and_statistics_of_the_whole_batch(shards: int) -> None:
    assert_like_the_whole_batch(network, shards)


def test_the_formulas_are_exact_to_the_last_digits_of_float64() -> None:
    assert_like_the_whole_batch(lambda: network().double(), 5, (X.double(), Y), steps=5, within=1e-13)


def test_normalising_each_shard_by_itself_is_something_else() -> None:
    """What the tests above would miss if the layers were not replaced."""
    ours, plain = Trainer(seeded(network)), Trainer(seeded(network))
    device = LocalDevice(ours.replica)
    ours.replica.buffers.keep()
    work = [ShardWork(i, lambda i: part_of((X, Y), cut(B, 3)[i]), len(cut(B, 3)[i]), False) for i in range(3)]
    ours.update(device.execute(work, Key(3), 3), 3)
    plain_step(plain, (X, Y))
    difference = max(
        (one - other).abs().max().item()
        for one, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True)
    )
    assert difference > 1e-3


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
def test_options_of_a_layer_mean_what_they_mean(options: Any) -> None:  # Any: of a layer
    assert_like_the_whole_batch(lambda: network(**options), 4)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.BatchNorm1d, X[:, :, 0, 0]),
        (nn.BatchNorm1d, X[:, :, 0]),
        (nn.BatchNorm2d, X.contiguous(memory_format=torch.channels_last)),
        (nn.BatchNorm3d, X[..., None].expand(-1, -1, -1, -1, 2).contiguous()),
        (nn.SyncBatchNorm, X),
    ],
    ids=["1d", "1d-long", "2d-channels-last", "3d", "sync"],
)
def test_every_kind_of_layer_is_normalised(layer: Callable[[int], nn.Module], x: Tensor) -> None:
    assert_like_the_whole_batch(lambda: made(layer(C), nn.Tanh(), layer(C), example=x), 3, (x, Y))


@pytest.fixture
def process_group() -> Iterator[None]:
    """The group of torch that a program may have made for itself."""
    torch.distributed.init_process_group("fake", store=HashStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_sync_layer_does_not_ask_a_process_group() -> None:
    layer = nn.SyncBatchNorm(C)
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on GPU"):
        layer(X)
    Trainer(seeded(lambda: made(nn.SyncBatchNorm(C)))).step((X, Y), 3)
    assert "forward" not in vars(layer)


class Branches(nn.Module):
    """One layer twice, a skip connection, a plain call, a frozen layer, and a head that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.frozen = nn.Conv2d(C, C, 3, padding=1), nn.BatchNorm2d(C), nn.BatchNorm2d(C)
        self.head, self.aside = nn.Linear(C * 36, 3), nn.Sequential(nn.Conv2d(C, 2, 1), nn.BatchNorm2d(2))

    def forward(self, x: Tensor) -> Tensor:
        self.frozen.eval()
        early = self.norm(x)
        late = self.norm(self.conv(early)) + F.batch_norm(x * early, None, None, training=True)
        self.aside(late)
        out: Tensor = self.head(self.frozen(late.relu() + x).flatten(1))
        return out


def test_layers_called_twice_skips_plain_calls_and_frozen_layers() -> None:
    assert_like_the_whole_batch(Branches, 4)


def test_what_no_loss_depends_on_gets_no_gradient() -> None:
    trainer = Trainer(seeded(Branches))
    names = [name for name, _ in trainer.model.named_parameters()]
    done = trainer.step((X, Y), 4)
    without = {name for name, grad in zip(names, done.grads, strict=True) if grad is None}
    assert without == {"aside.0.weight", "aside.0.bias", "aside.1.weight", "aside.1.bias"}


def test_a_shard_whose_loss_leaves_a_layer_out_still_moves_its_statistics() -> None:
    """Only the first samples' losses depend on the second layer; its statistics depend on all samples."""
    first = torch.arange(B) < 2

    def some(model: nn.Module, x: Tensor, y: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        early = part(model, 0)(x)
        late = part(model, 1)(early * 1.5)
        chosen = late if bool(counts.any()) else early
        return chosen.square().flatten(1).mean(1) * (chosen[:, 0, 0, 0] * 0.3).sigmoid() * counts, counts.sum()

    def two() -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.ReLU()), nn.BatchNorm2d(C))

    assert_like_the_whole_batch(two, 6, (X, Y, first.float()), some)


class Remembers(nn.Module):
    """Keeps in an attribute what the loss reads later, as variational models and mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(C, 5), nn.Sequential(nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        self.penalty: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.penalty = hidden.square().mean(1)
        out: Tensor = self.norm(hidden)
        return out


def penalised(model: Remembers, x: Tensor, y: Tensor) -> Tensor:
    out = losses(model, x, y)
    assert model.penalty is not None
    return out + model.penalty


def test_what_a_shard_keeps_in_a_module_is_its_own() -> None:
    rows = X[:, :, 0, 0]
    assert_like_the_whole_batch(Remembers, 4, (rows, Y), penalised)
    model = seeded(Remembers)
    Trainer(model, penalised).step((rows, Y), 4)
    assert isinstance(model, Remembers) and model.penalty is not None
    assert len(model.penalty) == 4  # of the first shard, whoever has executed it
    assert "penalty" in model.__dict__


def test_layers_at_the_input_and_without_gradients() -> None:
    def quietly(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            x = part(model, 0)(x)
        return losses(part(model, 1), x, y)

    assert_like_the_whole_batch(lambda: nn.Sequential(nn.BatchNorm2d(C), network()), 4, loss_fn=quietly)


def test_recomputed_activations_are_normalised_again() -> None:
    def recomputing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        hidden = checkpoint(part(model, slice(5)), x, use_reentrant=False)
        return losses(part(model, slice(5, None)), hidden, y)

    assert_like_the_whole_batch(network, 4, loss_fn=recomputing)


def test_a_shard_may_have_no_value_for_a_layer() -> None:
    """Only rows above a threshold reach the layer; the last shards have none."""
    rows = X[:, :, 0, 0].sort(0, descending=True).values

    def chosen(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        high = x[x[:, 0] > float(rows[5, 0])]
        normalised = part(model, 1)(part(model, 0)(high))
        return normalised.square().sum(1) * normalised[:, 0] + part(model, 0)(high).sum(1), len(x)

    def two() -> nn.Module:
        return nn.Sequential(nn.Linear(C, 4), nn.BatchNorm1d(4))

    assert_like_the_whole_batch(two, 4, (rows, Y), chosen, within=1e-5)


def test_one_value_a_channel_is_refused_for_the_whole_batch_only() -> None:
    rows = X[:, :, 0, 0]
    model = seeded(lambda: made(nn.BatchNorm1d(C), example=rows))
    Trainer(model).step((rows, Y), B)  # one sample a shard
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        Trainer(model).step((rows[:1], Y[:1]), 1)


def test_one_shard_has_the_bits_of_torch() -> None:
    ours, plain = Trainer(seeded(network)), Trainer(seeded(network))
    ours.step((X, Y), 1)
    losses(plain.model, X, Y).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    for param in plain.model.parameters():
        assert param.grad is not None
        param.grad /= B
    assert plain.optimizer is not None
    plain.optimizer.step()
    for one, other in zip(ours.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_is_near_that_of_the_whole_batch(dtype: torch.dtype) -> None:
    ours, plain = Trainer(seeded(network), autocast=dtype), Trainer(seeded(network))
    seen = []

    def watched(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(part(model, 1)(part(model, 0)(x)).dtype)
        return losses(model, x, y)

    ours.replica.loss_fn = plain.replica.loss_fn = watched
    ours.step((X, Y), 4)
    with torch.autocast("cpu", dtype):
        plain_step(plain, (X, Y))
    assert seen == [dtype] * 5
    expected = plain.model.state_dict()
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0.02, atol=0.003)


# -- processes: played one after another, each with a model of its own ------------------------------------------------


class RandomState:
    """What a played process has for itself."""

    def __init__(self) -> None:
        self.state = torch.get_rng_state()

    def enter(self) -> None:
        torch.set_rng_state(self.state)

    def leave(self) -> None:
        self.state = torch.get_rng_state()


class Played:
    """The exchange of a played process."""

    def __init__(self, relay: "Relay[Any, list[Any], Any]") -> None:
        self._relay = relay

    def gather(self, what: str, content: Any) -> list[Any]:
        return self._relay.meet(content)


def on_processes(
    trainers: Sequence[Trainer], shares: Sequence[range], shards: int, batches: Sequence[Any]
) -> list[Tensor]:
    """Train on so many played processes; all must end with the same bits. Returns them."""
    contents = []

    def joined(brought: Sequence[Any]) -> list[Any]:
        if any(each is None for each in brought):
            raise AssertionError(f"a process has left while others meet: {brought}")
        contents.append(brought)
        return list(brought)

    def work(member: int) -> list[Tensor]:
        for turn, batch in enumerate(batches):
            trainer = trainers[member]
            nodes = trainer.nodes(batch, shards, shares[member], turn, Played(relay))
            everything = copy.deepcopy([node for of_one in relay.meet(nodes) for node in of_one])
            trainer.update(everything, shards)
        return [*trainers[member].model.state_dict().values(), torch.rand(2)]

    torch.manual_seed(11)
    relay: Relay[Any, list[Any], list[Tensor]] = Relay([RandomState() for _ in trainers], work, joined)
    found = relay.run()
    for other in found[1:]:
        assert all(torch.equal(one, another) for one, another in zip(found[0], other, strict=True))
    assert contents
    return found[0]


class Tied(nn.Module):
    """With dropout, and a weight that is used on both sides of a layer, so that autocast could keep its cast."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(C, C))
        self.norms = nn.ModuleList(nn.BatchNorm1d(C) for _ in range(2))
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(C, 3)

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = self.drop(norm(F.linear(x, self.weight)).relu())
        out: Tensor = self.out(F.linear(x, self.weight))
        return out


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_bits_do_not_depend_on_the_processes(autocast: torch.dtype | None) -> None:
    """Batches of 13, 13 and 5 in 8 shards: in the last one three shards, and some processes, have no samples."""
    rows = X[:, :, 0, 0]
    batches = [(rows, Y), (rows.flip(0), Y.flip(0)), (rows[:5], Y[:5])]
    cuts = [[0, 8], [0, 4, 8], [0, 2, 4, 6, 8], [0, 1, 8], [0, 7, 8], [0, 3, 5, 8], [0, 5, 5, 8], [0, 6, 7, 8, 8]]
    results = []
    for borders in cuts:
        shares = [range(start, stop) for start, stop in itertools.pairwise(borders)]
        trainers = [Trainer(seeded(Tied), autocast=autocast) for _ in shares]
        results.append(on_processes(trainers, shares, 8, batches))
    for found in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], found, strict=True))


def test_a_single_shard_with_samples_is_followed_by_processes_without() -> None:
    one = on_processes([Trainer(seeded(network))], [range(4)], 4, [(X[:1], Y[:1])])
    shares = [range(1), range(1, 3), range(3, 4), range(4, 4)]
    four = on_processes([Trainer(seeded(network)) for _ in shares], shares, 4, [(X[:1], Y[:1])])
    assert all(torch.equal(first, other) for first, other in zip(one, four, strict=True))


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
    merged: Moments = full[0]
    for part in full[1:]:
        merged = merge(merged, part)
    exact = values.astype(np.float64).transpose(1, 0, 2).reshape(2, -1)
    assert merged.count == exact.shape[1]
    np.testing.assert_allclose(merged.mean_C.numpy(), exact.mean(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(merged.squares_C.numpy() / merged.count, exact.var(1), rtol=1e-6, atol=1e-12)
