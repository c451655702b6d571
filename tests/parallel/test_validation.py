"""What makes a result depend on the devices, or spoils a training: refused on one device, before it matters."""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import torch.optim.optimizer as optimizer_module
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.process_settings import apply_settings, read_settings
from fanwise.parallel.validation.fingerprints import first_difference, have_same_bits

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
NAN, INF = math.nan, math.inf


def losses(m: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = m(x).square().mean(1)
    return result


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1)


def step_of(model: nn.Module, loss_fn: Any = losses, run: Run | None = None, **options: Any) -> Any:  # Any: a Step
    return (run or fanwise.here(shards=4)).step(model, sgd(model), loss_fn, **options)


def refused(train: Any, message: str, **options: Any) -> None:  # Any: a training function, settings of a run
    with pytest.raises(ValueError, match=message):
        fanwise.run(train, devices="cpu", progress=False, **options)
    assert not optimizer_module._global_optimizer_pre_hooks


# -- fingerprints -----------------------------------------------------------------------------------------------------


def test_first_difference_says_which_processes_have_which_value() -> None:
    facts = [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "c": 4}, {"a": 1, "b": 2, "c": 4}]
    assert first_difference(facts) == ("b", "2 in processes 0 and 2, 5 in process 1")
    missing = "float32 in process 0, missing in processes 1, 2 and 3"
    assert first_difference([{"a": "float32"}, {}, {}, {}]) == ("a", missing)
    assert first_difference([{"lr": NAN}, {"lr": float("nan")}]) is None


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_are_compared_not_values(dtype: torch.dtype) -> None:
    values = [0.0, -0.0, NAN, INF, torch.finfo(dtype).max]
    for one in values:
        for other in values:
            is_same = math.copysign(1, one) == math.copysign(1, other) and (one == other or math.isnan(one + other))
            same = have_same_bits(torch.tensor([one, 1], dtype=dtype), torch.tensor([other, 1], dtype=dtype))
            assert same == (is_same and math.isnan(one) == math.isnan(other)), (one, other)
    tensor = torch.ones(2, dtype=dtype)
    assert not have_same_bits(tensor, tensor[:1]) and not have_same_bits(tensor, tensor.bool())


# -- buffers ----------------------------------------------------------------------------------------------------------


class Averaging(nn.Module):
    """A buffer that is the mean of a shard, or `value` in every shard."""

    def __init__(self, value: Tensor | None = None) -> None:
        super().__init__()
        self.linear, self.value = nn.Linear(4, 2), value
        self.register_buffer("middle", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.middle = x.mean(0) if self.value is None else self.value.clone()
        out: Tensor = self.linear(x)
        return out


def test_a_buffer_that_differs_between_shards_is_refused_unless_it_is_in_mean_buffers() -> None:
    model = Averaging()
    step = step_of(model)
    before = model.linear.weight.detach().clone()
    with pytest.raises(ValueError, match=r"the buffer 'middle', float32 \(4,\), is not the same after every shard"):
        step(X)
    assert torch.equal(model.linear.weight, before) and model.middle.tolist() == [0] * 4
    model = Averaging()
    step_of(model, mean_buffers=["middle"])(X)
    torch.testing.assert_close(model.middle, X.mean(0))


def test_a_buffer_that_the_user_has_set_to_none_is_restored_or_set() -> None:
    def failing(model: nn.Module, x: Tensor) -> Tensor:
        raise RuntimeError(f"after forward of {len(model(x))} samples")

    for loss_fn, expected in ((failing, None), (losses, [1.0] * 4)):
        model = Averaging(torch.ones(4))
        step = step_of(model, loss_fn)
        model.middle = None  # type: ignore[assignment]  # a buffer may be None
        with suppress(RuntimeError):
            step(X)
        assert (None if model.middle is None else model.middle.tolist()) == expected


def test_names_of_mean_buffers_are_checked() -> None:
    with pytest.raises(ValueError, match=r"there is no buffer 'midle'; did you mean 'middle'\?"):
        step_of(Averaging(), mean_buffers=["midle"])
    with pytest.raises(TypeError, match="must be a list of names"):
        step_of(Averaging(), mean_buffers="middle")
    with pytest.raises(ValueError, match=r"'num_batches_tracked' is torch\.int64"):
        step_of(nn.BatchNorm1d(4), mean_buffers=["num_batches_tracked"])


# -- updates ----------------------------------------------------------------------------------------------------------


def test_an_update_without_a_step_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    def by_hand(run: Run) -> None:
        for _ in range(2):
            sgd(nn.Linear(4, 2)).step()

    fanwise.run(by_hand, devices="cpu", progress=False)
    assert caplog.text.count("the training function calls SGD.step() itself") == 1


def test_parameters_of_other_models_are_refused() -> None:
    model = nn.Linear(4, 2)
    optimizer = sgd(model)
    step = fanwise.here().step(model, optimizer, losses)
    optimizer.add_param_group({"params": nn.Linear(3, 1).parameters()})
    with pytest.raises(ValueError, match="holds 2 parameters that the model of the step does not have"):
        step(X)


def test_gradients_of_two_shards_in_the_same_memory_are_refused() -> None:
    same = torch.zeros(2, 4)

    class Same(torch.autograd.Function):
        """Writes its gradient into the same memory each time, as a CUDA graph does."""

        @staticmethod
        def forward(ctx: Any, weight: Tensor, x: Tensor) -> Tensor:
            return x @ weight.T

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return same.detach(), None

    def graphed(m: Any, x: Tensor) -> Tensor:  # Any: a Linear
        out: Any = Same.apply(m.weight, x)  # type: ignore[no-untyped-call]  # not annotated
        result: Tensor = out.sum(1)
        return result

    with pytest.raises(ValueError, match="two passes of the model wrote a gradient to the same memory"):
        step_of(nn.Linear(4, 2, bias=False), graphed)(X)


def test_an_operator_that_is_not_deterministic_is_refused_with_a_way_out() -> None:
    def train(run: Run) -> None:
        def puts(m: nn.Module, x: Tensor) -> Tensor:
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
            return losses(m, x)

        step_of(nn.Linear(4, 2), puts, run)(X)

    with pytest.raises(RuntimeError, match="deterministic") as caught:
        fanwise.run(train, devices="cpu", progress=False)
    assert any('reduce="fast") allows such operators' in note for note in caught.value.__notes__)


class DTensor(Tensor):
    """Named like torch's tensor with parts in several processes."""


@pytest.mark.parametrize("name", ["FullyShardedDataParallel", "DistributedDataParallel", "DeepSpeedEngine"])
def test_wrappers_are_refused_by_name_also_inside_a_model(name: str) -> None:
    wrapper = type(name, (nn.Linear,), {})(4, 2)
    for model in (wrapper, nn.Sequential(wrapper)):
        with pytest.raises(ValueError, match=f"wrapped in {name}, which would spread the work a second time"):
            step_of(model)


def test_sharded_models_and_optimizers_are_refused_by_name() -> None:
    model = nn.Linear(4, 2)
    optimizer = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="ZeroRedundancyOptimizer divides its state among the processes of its own"):
        fanwise.here().step(model, optimizer, losses)
    model.weight = nn.Parameter(model.weight.detach().as_subclass(DTensor))
    with pytest.raises(ValueError, match="'weight' of the model is a DTensor"):
        step_of(model)


def test_settings_are_changed_in_the_block_and_restored() -> None:
    before = read_settings()
    wanted = {**before, "default dtype": torch.float64, "oneDNN": False, "path of einsum": False, "gradients": False}
    with apply_settings(wanted):
        assert read_settings() == wanted
        torch.set_default_dtype(torch.float16)
    assert read_settings() == before


# -- losses that depend on earlier shards -----------------------------------------------------------------------------


def test_verify_repeats_the_check_later() -> None:
    def train(run: Run) -> None:
        batches = 0

        def noisy(m: nn.Module, x: Tensor) -> Tensor:
            return losses(m, x) * (1 if batches < 2 else float(np.random.default_rng().random()))

        step = step_of(nn.Linear(4, 2), noisy, run)
        for _ in range(4):
            step(X)
            batches += 1

    fanwise.run(train, devices="cpu", progress=False)
    refused(train, "shard 0 of batch 2 of step 0 was executed twice, and the loss differs", verify=2)
    refused(train, "verify must be at least 0, got -1", verify=-1)
    with pytest.raises(TypeError, match="verify must be a whole number, got True"):
        fanwise.run(train, devices="cpu", verify=True)


def test_verify_changes_no_bit() -> None:
    def train(run: Run) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        step = step_of(model, run=run)
        for _ in range(5):
            step(X)
        return torch.cat([value.float().flatten() for value in model.state_dict().values()])

    plain, verified = (fanwise.run(train, devices="cpu", verify=verify, progress=False) for verify in (0, 1))
    assert torch.equal(plain, verified)
