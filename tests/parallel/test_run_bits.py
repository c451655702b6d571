"""Same seed, shards and threads: the same bits on any number of devices; with one shard those of a plain loop."""

import importlib
from collections.abc import Callable

import pytest
import torch
from classification import losses, same
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run

RUN = importlib.import_module("fanwise.parallel.run")  # the package has a function of this name

# N: samples, B: samples of a global batch
N, B, EPOCHS = 53, 16, 2
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, 1, 6, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 0.01),
}


def with_everything() -> nn.Module:
    """Dropout and batch normalisation: what depends on who executes a shard if it is not taken care of."""
    conv, linear = nn.Conv2d(1, 4, 3), nn.Linear(64, 3)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), linear)


def training(optimizer: str, **options: float) -> Callable[[Run], tuple[list[Tensor], int]]:
    def train(run: Run) -> tuple[list[Tensor], int]:
        model = with_everything()
        step = run.step(model, OPTIMIZERS[optimizer](model), losses, **options)  # type: ignore[call-overload]  # mixed
        seen = [step(batch) for _ in run.epochs(EPOCHS) for batch in run.batches((X, Y), B)]
        return [*model.state_dict().values(), *seen], run.executions

    return train


def test_other_shards_and_another_seed_give_other_bits() -> None:
    one, _ = fanwise.run(training("momentum"), shards=2)
    assert not same(one, fanwise.run(training("momentum"), shards=3)[0])
    assert not same(one, fanwise.run(training("momentum"), shards=2, seed=1)[0])


def test_here_gives_the_same_bits_as_a_run_with_as_many_threads() -> None:
    threads = torch.get_num_threads()
    assert same(training("momentum")(fanwise.here())[0], fanwise.run(training("momentum"), threads=threads)[0])


def test_by_default_there_are_four_shards_or_one_for_each_of_more_devices() -> None:
    assert [RUN._shards(None, devices, warns=False) for devices in (1, 4, 5, 6)] == [4, 4, 5, 6]
    assert RUN._shards("devices", 3, warns=True) == 3
    assert fanwise.run(lambda run: run.shards, devices=1, shards="devices") == 1


def test_more_devices_than_default_shards_give_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for devices in (4, 23, 23):
        RUN._shards(None, devices, warns=True)
    RUN._shards("devices", 22, warns=True)
    (warning,) = [each.getMessage() for each in caplog.records if "shards" in each.getMessage()]
    assert warning == (
        "fanwise.run on 23 devices cuts each batch into 23 shards, but on 1 to 4 devices into 4, so the results differ "
        "in their bits.\nSet shards=23 in all runs for the same bits on any number of devices, or shards='devices' if "
        "equal bits do not matter."
    )


def test_the_error_of_a_small_shard_with_batch_norm_has_a_way_out() -> None:
    def train(run: Run) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).sum(1))
        step(torch.ones(5, 4))

    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        fanwise.run(train)
    assert caught.value.__notes__ == [
        "in shard 1 of 4, with 1 sample of the batch",
        "Batch normalization uses the statistics of a shard, and this one is too small. Use drop_last=True to leave "
        "out a small last batch, fewer shards=, or batch_norm='global'.",
    ]
    fanwise.run(train, shards=1)


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_one_shard_on_one_device_is_the_plain_loop(optimizer: str) -> None:
    orders: list[Tensor] = []

    def train(run: Run) -> list[Tensor]:
        model = plain_model()
        step = run.step(model, OPTIMIZERS[optimizer](model), losses, clip_norm=1.0)
        for _ in run.epochs(EPOCHS):
            for batch in run.batches((X, Y, torch.arange(N)), B):
                x, y, indices = batch
                orders.append(indices)
                step((x, y))
        return list(model.state_dict().values())

    def plain(run: Run) -> list[Tensor]:
        model = plain_model()
        updates = OPTIMIZERS[optimizer](model)
        for indices in orders:
            updates.zero_grad()
            losses(model, X[indices], Y[indices]).sum().backward()  # type: ignore[no-untyped-call]  # torch's
            for param in model.parameters():
                assert param.grad is not None
                param.grad /= len(indices)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            updates.step()
        return list(model.state_dict().values())

    ours = fanwise.run(train, shards=1)
    assert same(ours, fanwise.run(plain))
    assert sorted(torch.cat(orders[: len(orders) // 2]).tolist()) == list(range(N))


def test_a_run_leaves_threads_and_random_states_as_they_were() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    actual = fanwise.run(lambda run: (torch.get_num_threads(), torch.rand(2)), threads=threads + 1)
    assert actual[0] == threads + 1
    assert torch.equal(torch.rand(2), expected)
    assert not torch.equal(actual[1], expected)
    assert torch.get_num_threads() == threads
