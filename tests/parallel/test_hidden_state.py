"""What a shard might use or leave behind besides model, samples and key: kept, restored or refused."""

import functools
import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.checks.misuse import hooks
from fanwise.parallel.process_settings.torch_settings import apply_settings, read_settings
from fanwise.parallel.replica.gradients import check_apart
from fanwise.parallel.rng import begin, kept_streams, restored_streams
from fanwise.tensor import Key

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def losses(m: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = m(x).square().mean(1)
    return result


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1)


def step_of(model: nn.Module, loss_fn: Any = losses, run: Run | None = None, **options: Any) -> Any:  # Any: a Step
    return (run or fanwise.here(shards=4)).step(model, sgd(model), loss_fn, **options)


# -- buffers ----------------------------------------------------------------------------------------------------------


class Averaging(nn.Module):
    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.linear, self.whole = nn.Linear(4, 2), whole
        self.register_buffer("middle", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.middle = torch.ones(4) if self.whole else x.mean(0)
        out: Tensor = self.linear(x)
        return out


def test_a_buffer_on_which_shards_disagree_is_refused_unless_the_mean_is_meant() -> None:
    model = Averaging()
    step = step_of(model)
    before = model.linear.weight.detach().clone()
    with pytest.raises(ValueError, match=r"the buffer 'middle', float32 \(4,\), is not the same after every shard"):
        step(X)
    assert torch.equal(model.linear.weight, before) and model.middle.tolist() == [0] * 4
    model = Averaging()
    step_of(model, mean_buffers=["middle"])(X)
    torch.testing.assert_close(model.middle, X.mean(0))
    model = Averaging(whole=True)
    step_of(model)(X)
    assert model.middle.tolist() == [1] * 4


def test_names_of_mean_buffers_are_checked() -> None:
    with pytest.raises(ValueError, match=r"there is no buffer 'midle'; did you mean 'middle'\?"):
        step_of(Averaging(), mean_buffers=["midle"])
    with pytest.raises(TypeError, match="must be a list of names"):
        step_of(Averaging(), mean_buffers="middle")
    with pytest.raises(ValueError, match=r"'num_batches_tracked' is torch\.int64, of which no mean is taken"):
        step_of(nn.BatchNorm1d(4), mean_buffers=["num_batches_tracked"])


def test_buffers_of_modules_besides_the_model_are_kept_if_they_are_named() -> None:
    critic = nn.BatchNorm1d(4)
    step_of(nn.Linear(4, 2), lambda m, x: losses(m, critic(x)), also=[critic])(X)
    assert critic.running_mean is not None
    torch.testing.assert_close(critic.running_mean, 0.1 * X.mean(0))


# -- chance -----------------------------------------------------------------------------------------------------------


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_streams_depend_on_the_key_and_those_of_the_program_go_on_after_the_block() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = [drawn(), drawn()]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert drawn() == expected[0]
    with kept_streams():
        begin(Key(1))
        first = drawn()
        with kept_streams():
            begin(Key(2))
            assert len({*drawn(), *first}) == 6
        begin(Key(1))
        assert drawn() == first
    assert drawn() == expected[1]


def test_streams_are_restored_exactly_with_the_cached_normal_number_of_numpy() -> None:
    np.random.seed(3)
    expected = np.random.randn(4).tolist()
    np.random.seed(3)
    found = [np.random.randn()]
    with restored_streams():
        np.random.randn()
    assert [*found, *np.random.randn(3)] == expected


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_set_in_the_block_and_put_back() -> None:
    before = read_settings()
    wanted = {**before, "default dtype": torch.float64, "oneDNN": False, "path of einsum": False, "gradients": False}
    with apply_settings(wanted):
        assert read_settings() == wanted
        torch.set_default_dtype(torch.float16)
    assert read_settings() == before


# -- misuse -----------------------------------------------------------------------------------------------------------


def refused(train: Any, said: str, **options: Any) -> None:  # Any: a training function, settings of a run
    with pytest.raises(ValueError, match=said):
        fanwise.run(train, devices="cpu", progress=False, **options)
    assert hooks() == 0


def test_an_update_beside_a_step_is_refused_and_another_one_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def twice(run: Run) -> None:
        model = nn.Linear(4, 2)
        optimizer = sgd(model)
        run.step(model, optimizer, losses)(X)
        optimizer.step()

    refused(twice, "of an optimizer that belongs to a run.step")

    def by_hand(run: Run) -> None:
        for _ in range(2):
            sgd(nn.Linear(4, 2)).step()

    fanwise.run(by_hand, devices="cpu", progress=False)
    assert caplog.text.count("the training function calls SGD.step() itself") == 1


def test_an_update_inside_a_backward_pass_is_refused() -> None:
    def train(run: Run) -> None:
        model = nn.Linear(4, 2)
        optimizer = sgd(model)
        hook: Any = model.weight.register_post_accumulate_grad_hook
        hook(lambda _: optimizer.step())
        run.step(model, optimizer, losses)(X)

    refused(train, "of an optimizer that belongs to a run.step")


def test_gradients_and_parameters_that_a_step_would_not_see_are_refused() -> None:
    model = nn.Linear(4, 2)
    step = step_of(model)
    torch.autograd.backward(losses(model, X).sum())
    with pytest.raises(ValueError, match=r"'weight' of the model has a gradient before the step(.|\n)*right:  step"):
        step(X)
    model = nn.Linear(4, 2)
    optimizer = sgd(model)
    step = fanwise.here().step(model, optimizer, losses)
    optimizer.add_param_group({"params": nn.Linear(3, 1).parameters()})
    with pytest.raises(ValueError, match="holds 2 parameters that are not the model's"):
        step(X)


CHANGES: dict[str, tuple[Any, str]] = {  # Any: changes a Sequential
    "a layer more": (lambda m: m.append(nn.Linear(2, 2)), "'2.weight' is new, and 1 more"),
    "another layer": (lambda m: m.__setitem__(0, nn.Linear(4, 2)), "'0.weight' is another, and 1 more"),
    "a parameter": (lambda m: m[1].register_parameter("slope", nn.Parameter(torch.ones(()))), "'1.slope' is new"),
    "buffers alone": (lambda m: m.append(nn.BatchNorm1d(2, affine=False)), "'2' is new"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_model_has_got_since_its_step_was_made_is_named_before_anything_is_done(what: str) -> None:
    change, said = CHANGES[what]
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    step = step_of(model)
    step(X)
    change(model)
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(ValueError, match=rf"the model has changed since step 0 was made: {said}\.(.|\n)*anew"):
        step(X)
    assert all(map(torch.equal, before, model.parameters()))
    step_of(model)(X)


def test_layers_without_a_state_may_come_and_go_between_steps() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    step = step_of(model)
    for layer in (nn.Tanh(), nn.Identity()):
        model[1] = layer
        step(X)


def test_gradients_of_two_passes_in_one_memory_are_refused() -> None:
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

    with pytest.raises(ValueError, match="two passes of the model have written a gradient into the same memory"):
        step_of(nn.Linear(4, 2, bias=False), graphed)(X)
    check_apart([torch.zeros(2), None], [[torch.zeros(2), None]])


def test_an_operator_that_is_not_deterministic_names_the_way() -> None:
    def train(run: Run) -> None:
        def puts(m: nn.Module, x: Tensor) -> Tensor:
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
            return losses(m, x)

        step_of(nn.Linear(4, 2), puts, run)(X)

    with pytest.raises(RuntimeError, match="deterministic") as caught:
        fanwise.run(train, devices="cpu", progress=False)
    assert any('reduce="fast") allows such operators' in note for note in caught.value.__notes__)


@pytest.mark.parametrize("name", ["FullyShardedDataParallel", "DistributedDataParallel", "DeepSpeedEngine"])
def test_wrappers_are_refused_by_name_also_inside_a_model(name: str) -> None:
    wrapper = type(name, (nn.Linear,), {})(4, 2)
    with pytest.raises(ValueError, match=f"wrapped in {name}, which would spread the work once more"):
        step_of(wrapper)
    with pytest.raises(ValueError, match=f"wrapped in {name}"):
        step_of(nn.Sequential(wrapper))


class DTensor(Tensor):
    """As torch calls a tensor of which each process has a part."""


def test_a_model_in_parts_is_refused_by_name() -> None:
    model = nn.Linear(4, 2)
    optimizer = sgd(model)
    model.weight = nn.Parameter(model.weight.detach().as_subclass(DTensor))
    with pytest.raises(ValueError, match="'weight' of the model is a DTensor, of which each process has a part"):
        fanwise.here().step(model, optimizer, losses)


def test_an_optimizer_with_a_group_of_its_own_is_refused_by_name() -> None:
    model = nn.Linear(4, 2)
    optimizer = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="ZeroRedundancyOptimizer spreads its state over a process group"):
        fanwise.here().step(model, optimizer, losses)


# -- losses that depend on earlier ones -----------------------------------------------------------------------------

COUNT = 0


class Trainer:
    """Whose method is the loss."""

    def __init__(self) -> None:
        self.calls, self.seen = 0, torch.zeros(3)

    def by_number(self, m: nn.Module, x: Tensor) -> Tensor:
        self.calls += 1
        return losses(m, x) / self.calls

    def by_tensor(self, m: nn.Module, x: Tensor) -> Tensor:
        self.seen += 1
        return losses(m, x) * self.seen.sum()


def by_global(m: nn.Module, x: Tensor) -> Tensor:
    global COUNT
    COUNT += 1
    return losses(m, x) * COUNT


def by_cell() -> Any:  # Any: a loss
    count = 0

    def inner(x: Tensor) -> float:
        nonlocal count
        count += len(x)
        return 1 / count

    return lambda m, x: losses(m, x) * inner(x)


def by_container(container: Any) -> Any:  # Any: a list, dict, set or deque; a loss
    def counting(m: nn.Module, x: Tensor) -> Tensor:
        if isinstance(container, dict):
            container["calls"] = container.get("calls", 0) + 1
        elif isinstance(container, set):
            container.add(len(container))
        else:
            container.append(float(x.sum()))
        return losses(m, x) * (container["calls"] if isinstance(container, dict) else len(container))

    return counting


LEFT: dict[str, Any] = {  # Any: makes a loss
    "global": lambda: by_global,
    "cell": by_cell,
    "attribute": lambda: Trainer().by_number,
    "tensor": lambda: Trainer().by_tensor,
    "partial": lambda: functools.partial(Trainer.by_number, Trainer()),
    "list": lambda: by_container([]),
    "dict": lambda: by_container({}),
    "set": lambda: by_container(set()),
    "deque": lambda: by_container(deque(maxlen=3)),
    "samples": lambda: lambda m, x: losses(m, x.mul_(0.5)),
}


@pytest.mark.parametrize("what", LEFT)
def test_a_loss_that_depends_on_earlier_shards_is_refused_in_its_first_step(what: str) -> None:
    def train(run: Run) -> None:
        step_of(nn.Linear(4, 2), LEFT[what](), run)(X.clone())

    refused(train, "shard 0 of batch 0 of step 0 was executed twice, and the loss differs")


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verify_finds_on_one_device_what_begins_to_matter_later() -> None:
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
