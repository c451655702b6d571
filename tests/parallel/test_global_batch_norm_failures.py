"""When a shard fails, or the processes change, in the middle of a step: the cause, and everything as it was before."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # loading it changes the environment
from torch import Tensor, nn

from fanwise.parallel.batch_norm import TogetherDevice, check_batch_norm
from fanwise.parallel.replica.gradients import add
from fanwise.parallel.replica.reach import reach_of
from fanwise.parallel.replica.replicas import Replica, ShardWork
from fanwise.parallel.shards import cut, total
from fanwise.parallel.teams.team import Alone
from fanwise.tensor.random.keys import Key

# B: samples
B, SHARDS = 10, 3
X = torch.randn(B, 4, generator=torch.Generator().manual_seed(2))

LossFn = Callable[[nn.Module, Tensor], Tensor]


class Keeps(nn.Module):
    """Its forward pass leaves a tensor, a count and a buffer behind."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.calls += 1
        self.kept = self.layers[:2](x)
        out: Tensor = self.layers[2:](self.kept)
        return out


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.square().sum(1) * out[:, 0]


class Bench:
    """A model and a device, and what a step must leave as it was."""

    def __init__(self, loss_fn: LossFn, exchange: Any = None, model: nn.Module | None = None) -> None:  # Any: one
        self.model = Keeps() if model is None else model
        self.params = list(self.model.parameters())
        self.replica = Replica(self.model, reach_of(self.model, [loss_fn]), loss_fn)
        self.device = TogetherDevice(self.replica, exchange or Alone())

    def step(self) -> list[Tensor | None]:
        ranges = cut(B, SHARDS)
        works = [ShardWork(index, lambda index: X[ranges[index]], len(ranges[index]), False) for index in range(SHARDS)]
        self.replica.buffers.keep()
        return total(self.device.execute(works, Key(0), SHARDS), SHARDS, add).grads

    def attributes(self) -> dict[str, Any]:  # Any: of a module
        return {
            f"{name}.{key}": value for name, module in self.model.named_modules() for key, value in vars(module).items()
        }

    def fails(self, error: type[BaseException], said: str) -> BaseException:
        """The step does, and nothing is left of it; after that it can be made again."""
        attributes, values = self.attributes(), {k: v.clone() for k, v in self.model.state_dict().items()}
        chance, threads = torch.get_rng_state(), threading.active_count()
        with pytest.raises(error, match=said) as caught:
            self.step()
        assert threading.active_count() == threads
        assert torch.equal(torch.get_rng_state(), chance)
        assert all(torch.equal(value, values[name]) for name, value in self.model.state_dict().items())
        after = self.attributes()
        assert after.keys() == attributes.keys()
        assert all(after[name] is value or after[name] == value for name, value in attributes.items())
        for param in self.params:
            param.grad = None  # a step does this, whatever came
        return caught.value


def layers(model: nn.Module, *places: int | None) -> Any:  # Any: a module
    """Some of them, by a slice."""
    assert isinstance(model, Keeps)
    return model.layers[slice(*places)]


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # Any: torch's
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # Any: torch's
        raise KeyError("a bad gradient")


def before(model: nn.Module, x: Tensor) -> Tensor:
    raise KeyError("a bad sample")


def after(model: nn.Module, x: Tensor) -> Tensor:
    squares(model, x)
    raise KeyError("a bad loss")


def between(model: nn.Module, x: Tensor) -> Tensor:
    hidden = layers(model, 2)(x)
    raise KeyError(f"a bad activation of {len(hidden)} samples")


def in_backward(model: nn.Module, x: Tensor) -> Tensor:
    apply: Any = FailsBackward.apply  # Any: torch has not annotated it
    out: Tensor = layers(model, 3, None)(apply(layers(model, 3)(x)))
    return out.square().sum(1)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("way", [before, between, after, in_backward], ids=lambda way: str(way.__name__))
def test_the_cause_is_raised_with_its_shard_and_the_step_can_be_made_again(way: LossFn, shard: int) -> None:
    failing = True
    first = X[cut(B, SHARDS)[shard]][0]

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return (way if failing and torch.equal(x[0], first) else squares)(model, x)

    bench = Bench(loss_fn)
    error = bench.fails(KeyError, "a bad ")
    assert error.__notes__ == [f"in shard {shard} of 3, which has {len(cut(B, SHARDS)[shard])} samples of the batch"]
    failing = False
    again, fresh = bench.step(), Bench(squares).step()
    for one, other in zip(again, fresh, strict=True):
        assert one is not None and other is not None and torch.equal(one, other)


class Interrupted(BaseException):
    """The processes have changed."""


class Changes:
    """An exchange that breaks off at its n-th turn."""

    def __init__(self, at: int) -> None:
        self.left = at

    def gather(self, what: str, content: Any) -> list[Any]:
        self.left -= 1
        if self.left == 0:
            raise Interrupted("a process was lost")
        return [content]


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_an_exchange_that_breaks_off_unwinds_all_shards(at: int) -> None:
    """Two turns forward, two backward, one at the end."""
    exchange = Changes(at)
    bench = Bench(squares, exchange)
    if at == 5:
        with pytest.raises(Interrupted):
            bench.step()
        return
    bench.fails(Interrupted, "a process was lost")
    assert exchange.left == 0
    bench.step()


def test_after_a_step_modules_have_the_attributes_of_the_first_shard_and_buffers_are_for_the_step_to_settle() -> None:
    bench = Bench(squares)
    chance = torch.get_rng_state()
    bench.step()
    assert isinstance(bench.model, Keeps)
    assert len(bench.model.kept) == 4 and bench.model.calls == 1
    assert int(bench.model.seen) == 0
    assert "forward" not in vars(bench.model.layers[1])
    assert torch.equal(torch.get_rng_state(), chance)


def test_shards_that_call_other_layers_are_refused_with_the_places() -> None:
    def by_sign(model: nn.Module, x: Tensor) -> Tensor:
        hidden = layers(model, 2)(x)
        if torch.equal(x[0], X[4]):  # the second shard
            short: Tensor = hidden.sum(1)
            return short
        out: Tensor = layers(model, 2, None)(hidden)
        return out.sum(1)

    error = Bench(by_sign).fails(
        ValueError,
        r"shard 0 is forward in call 1 of batch normalisation, of 4 channels and a gradient to its input, and shard 1 "
        r"is backward in call 0 of batch normalisation, of 4 channels.\nEvery shard must call the same layers",
    )
    assert not hasattr(error, "__notes__")


def test_a_shard_without_batch_normalisation_is_refused_too() -> None:
    def some(model: nn.Module, x: Tensor) -> Tensor:
        if torch.equal(x[0], X[0]):
            short: Tensor = layers(model, 1)(x).sum(1)
            return short
        return squares(model, x)

    Bench(some).fails(ValueError, "shard 0 is at its end, and shard 1 is forward in call 0")


def test_another_process_at_another_place_is_refused() -> None:
    class Elsewhere:
        """Its own content, and that of a process that did not call the layers as often."""

        def __init__(self) -> None:
            self.contents: list[Any] = []

        def gather(self, what: str, content: Any) -> list[Any]:
            self.contents.append(content)
            return [content, self.contents[0]] if len(self.contents) > 1 else [content]

    Bench(squares, Elsewhere()).fails(
        ValueError, "shard 0 is forward in call 1 of .*, and shard 0 is forward in call 0 of batch normalisation"
    )


def test_a_second_derivative_is_refused_by_torch() -> None:
    def penalised(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return slope.square().sum(1)

    Bench(penalised).fails(RuntimeError, "once_differentiable")


def test_an_unknown_way_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown batch_norm='globl'; did you mean 'global'"):
        check_batch_norm("globl", Keeps())  # type: ignore[arg-type]  # wrong on purpose


def compiled() -> nn.Module:
    norm: Any = torch.compile(nn.BatchNorm1d(2), backend="eager")  # Any: a module
    return nn.Sequential(nn.Linear(2, 2), norm)


def compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].compile(backend="eager")
    return model


@pytest.mark.parametrize("make", [compiled, compiled_in_place], ids=lambda make: str(make.__name__))
def test_compiled_layers_are_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"batch_norm='global': '1' is compiled, so its layers cannot wait"):
        check_batch_norm("global", make())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_layers_are_refused_and_others_are_not() -> None:
    with pytest.raises(ValueError, match=r"batch_norm='global': 'the model' is scripted"):
        check_batch_norm("global", torch.jit.script(nn.BatchNorm1d(2)))
    check_batch_norm("global", Keeps())
    check_batch_norm("shard", torch.jit.script(nn.BatchNorm1d(2)))
