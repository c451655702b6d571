"""What a shard might use or leave behind besides model, samples and key: kept, taken back, said or refused."""

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.checks.misuse import hooks
from fanwise.parallel.inspecting.reached import modules_reached, reached
from fanwise.parallel.process_settings.switches import switched, taken
from fanwise.parallel.replica.attributes import Attributes
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


# -- attributes -------------------------------------------------------------------------------------------------------


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.calls, self.name, self.pair = 0, "begins", (1, 2)
        self.seen: list[int] = []
        self.hidden = torch.zeros(3)
        self.table = {"a": 1}

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        self.calls += 1
        self.name, self.pair = f"call {self.calls}", (self.calls, len(x))
        self.seen.append(self.calls)
        self.hidden = self.hidden + 1
        self.table["b"] = self.calls
        self.features = out
        return out


def test_plain_attributes_count_steps_and_others_are_put_back_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    model = Keeping()
    step = step_of(model)
    for turn in range(1, 10):
        step(X)
        assert (model.calls, model.name, model.pair) == (turn, f"call {turn}", (turn, 2))
        assert model.seen == [] and model.table == {"a": 1} and model.hidden.tolist() == [0, 0, 0]
        assert "features" not in vars(model)
    said = caplog.text
    assert all(said.count(f"changes {each}, a") == 1 for each in (".seen", ".hidden", ".table"))
    assert "features" not in said and "  right:  give it with the batch" in said


def test_what_begins_to_change_later_is_found_at_a_power_of_two() -> None:
    model = Keeping()
    attributes = Attributes({"": model})
    for looks, expected in ((True, {}), (False, {}), (True, {(0, "calls"): 5})):
        attributes.keep(looks=looks)
        if not looks or expected:
            model.calls = 5 if expected else 0
        assert attributes.take() == expected
    attributes.keep(looks=False)
    model.calls = 6
    assert attributes.take() == {(0, "calls"): 6}, "once found it is looked after"
    assert model.calls == 0


def test_a_shard_that_fails_leaves_attributes_as_before() -> None:
    model = Keeping()

    def fails(m: nn.Module, x: Tensor) -> Tensor:
        m(x)
        raise KeyError("a bad sample")

    with pytest.raises(KeyError):
        step_of(model, fails)(X)
    assert (model.calls, model.seen, model.table) == (0, [], {"a": 1})


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


def test_a_module_that_nothing_leads_to_is_refused_and_also_names_it() -> None:
    hidden = nn.BatchNorm1d(4)
    registry = types.ModuleType("a_registry_of_the_program")
    registry.__dict__["critic"] = hidden
    sys.modules["a_registry_of_the_program"] = registry
    try:

        def critical(m: nn.Module, x: Tensor) -> Tensor:
            found = sys.modules["a_registry_of_the_program"].__dict__["critic"]
            return losses(m, found(x))

        with pytest.raises(ValueError, match=r"calls a BatchNorm1d that is no part of the model(.|\n)*also=\[that"):
            step_of(nn.Linear(4, 2), critical)(X)
        assert hidden.running_mean is not None and hidden.running_mean.tolist() == [0] * 4
        step_of(nn.Linear(4, 2), critical, also=[hidden])(X)
        torch.testing.assert_close(hidden.running_mean, 0.1 * X.mean(0))
    finally:
        del sys.modules["a_registry_of_the_program"]


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


# -- settings, and what a function reaches ----------------------------------------------------------------------------


def test_settings_are_set_in_the_block_and_put_back() -> None:
    before = taken()
    wanted = {**before, "default dtype": torch.float64, "oneDNN": False, "path of einsum": False, "gradients": False}
    with switched(wanted):
        assert taken() == wanted
        torch.set_default_dtype(torch.float16)
    assert taken() == before


def test_a_function_reaches_its_closure_globals_and_the_object_that_it_belongs_to() -> None:
    inside, hidden = nn.Linear(1, 1), nn.Linear(1, 1)

    class Trainer:
        def __init__(self) -> None:
            self.parts = {"critic": [hidden]}

        def loss(self, m: nn.Module, x: Tensor) -> Tensor:
            return helper(x)

    def helper(x: Tensor) -> Tensor:
        out: Tensor = inside(x) + X.sum()
        return out

    found = modules_reached(Trainer().loss)
    assert found == {"self.parts['critic'][0]": hidden, "inside": inside}
    assert any(each.value is X for each in reached(helper))


# -- misuse -----------------------------------------------------------------------------------------------------------


def refused(train: Any, said: str, **options: Any) -> None:  # Any: a training function, settings of a run
    with pytest.raises(ValueError, match=said):
        fanwise.run(train, devices="cpu", progress=False, **options)
    assert hooks() == 0


def test_a_sampler_by_rank_is_refused_in_a_run_and_works_outside() -> None:
    data = TensorDataset(X)

    def loader() -> Iterator[Any]:  # Any: batches
        sampler: Any = DistributedSampler(data, num_replicas=1, rank=0)
        return iter(DataLoader(data, 4, sampler=sampler))

    refused(lambda run: list(loader()), "a DistributedSampler gives each process samples of its own")
    assert len(list(loader())) == 2


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
    "a class of the program's": (lambda m: m.append(type("Doubling", (nn.Identity,), {})()), "'2' is new"),
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


# -- traces outside of modules ----------------------------------------------------------------------------------------

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


def by_the_first_shard() -> Any:  # Any: a loss
    mean = None

    def centred(m: nn.Module, x: Tensor) -> Tensor:
        nonlocal mean
        if mean is None:
            mean = x.mean(0)
        return losses(m, x - mean)

    return centred


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
    "first shard": by_the_first_shard,
}


@pytest.mark.parametrize("what", LEFT)
def test_a_loss_that_depends_on_what_it_has_left_is_refused_in_its_first_step(what: str) -> None:
    def train(run: Run) -> None:
        step_of(nn.Linear(4, 2), LEFT[what](), run)(X)

    refused(train, "shard 3 was executed twice, and the loss is not the same")


def test_what_a_loss_leaves_for_people_to_read_stays_as_if_nobody_had_looked() -> None:
    said: list[float] = []
    total, calls, table = 0.0, 0, {"a": [1]}

    def telling(m: nn.Module, x: Tensor) -> Tensor:
        nonlocal total, calls
        calls += 1
        total += float(x.sum())
        said.append(total)
        table.setdefault("b", []).append(calls)
        return losses(m, x)

    step = step_of(nn.Linear(4, 2), telling)
    for _ in range(2):
        step(X)
    assert calls == len(said) == 8 and said[-1] == total == pytest.approx(2 * float(X.sum()), abs=1e-4)
    assert table == {"a": [1], "b": [1, 2, 3, 4, 5, 6, 7, 8]}


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verify_finds_on_one_device_what_depends_on_more_than_the_shard() -> None:
    def noisy(m: nn.Module, x: Tensor) -> Tensor:
        return losses(m, x) * float(np.random.default_rng().random())

    def train(run: Run) -> None:
        step = step_of(nn.Linear(4, 2), noisy, run)
        for _ in range(3):
            step(X)

    fanwise.run(train, devices="cpu", progress=False)
    refused(train, "shard 0 was executed twice, and the loss is not the same", verify=2)
    refused(train, "verify must be at least 0, got -1", verify=-1)
    with pytest.raises(TypeError, match="verify must be a whole number, got True"):
        fanwise.run(train, devices="cpu", verify=True)


@pytest.mark.parametrize("late", [5, 8, 9, 17])
def test_verify_finds_a_counter_that_begins_to_matter_in_whichever_batch(late: int) -> None:
    def train(run: Run) -> None:
        calls = 0

        def counting(m: nn.Module, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return losses(m, x) * (2 if calls > late else 1)

        step = step_of(nn.Linear(4, 2), counting, run)
        for _ in range(5):
            step(X)

    fanwise.run(train, devices="cpu", progress=False)
    refused(train, rf"before batch {late // 4 - (late % 4 == 0)} of step 0 shard . was executed twice", verify=1)


def test_verify_leaves_what_a_loss_has_left_as_if_it_had_not_looked() -> None:
    said: list[float] = []

    def train(run: Run) -> None:
        def telling(m: nn.Module, x: Tensor) -> Tensor:
            said.append(float(x.sum()))
            return losses(m, x)

        step = step_of(nn.Linear(4, 2), telling, run)
        for _ in range(3):
            step(X)

    fanwise.run(train, devices="cpu", progress=False, verify=1)
    assert said == [float(part.sum()) for part in torch.tensor_split(X, 4)] * 3


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
