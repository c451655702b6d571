"""Programs with a loop of their own over the shards of a batch: the same bits on 1, 2 and 3 devices, or the same error.

As in test_usual_programs.py: `PROGRAMS` train, `REFUSED` are refused, on one device too.
"""

import copy
import functools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus
from torch.optim.swa_utils import AveragedModel

import fanwise
from fanwise.parallel import LossScale, ManualStep, Run
from fanwise.pool import Pool

Result = list[Tensor]
Program = Callable[[Run], Result]

PROGRAMS: dict[str, Program] = {}
REFUSED: dict[str, Program] = {}

# B: samples, D: features, T: tokens, Z: noise
B, D, T, Z = 13, 6, 5, 4
N = 34  # shards of 4, 3, 3, 3 samples, and of 2 in the last batch of an epoch
X = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
Y = torch.arange(N) % 3
TOKENS = torch.randint(0, 11, (N, T), generator=torch.Generator().manual_seed(3))


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def refused(function: Program) -> Program:
    REFUSED[function.__name__] = function
    return function


def state(*modules: nn.Module) -> Result:
    return [value.detach().clone() for module in modules for value in module.state_dict().values()]


def net(*, out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, out))


def normed(*, out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Linear(8, out))


def classify(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(m(x), y, reduction="none")


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), 0.01)


def backward(step: ManualStep, model: nn.Module, batch: Any) -> None:
    """The plain loop."""
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))


Body = Callable[[Run, ManualStep, Any, nn.Module], None]


def over_batches(body: Body) -> Program:
    """A program that does this with each batch: with a step, a batch and the model."""

    def train(run: Run) -> Result:
        model = net()
        step = run.step(model, sgd(model))
        for batch in run.batches((X, Y), B):
            body(run, step, batch, model)
        return state(model)

    train.__name__ = body.__name__
    return train


def refused_with_each_batch(body: Body) -> Body:
    REFUSED[body.__name__] = over_batches(body)
    return body


# -- what trains ------------------------------------------------------------------------------------------------------


@program
def a_gan_with_two_backwards(run: Run) -> Result:
    maker, critic = nn.Sequential(nn.Linear(Z, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, D)), normed(out=1)
    of_critic, of_maker = run.step(critic, adam(critic)), run.step(maker, adam(maker))
    losses = []
    for batch in run.batches(X, B):
        for real in of_critic.shards(batch):
            made = maker(torch.randn(len(real), Z)).detach()
            of_critic.backward(softplus(-critic(real)))
            of_critic.backward(softplus(critic(made)))
        of_critic.update()
        for real in of_maker.shards(batch):
            of_maker.backward(softplus(-critic(maker(torch.randn(len(real), Z)))))
        of_maker.update()
        losses += [of_critic.loss, of_maker.loss]
    return [*state(maker, critic), *losses]


@program
def a_gan_whose_gradients_are_of_the_same_moment(run: Run) -> Result:
    maker, critic = net(out=D), normed(out=1)
    of_critic, of_maker = run.step(critic, adam(critic)), run.step(maker, adam(maker))
    for batch in run.batches(X, B):
        for x in of_maker.shards(batch):
            of_maker.backward(softplus(-critic(maker(x))))
        for x in of_critic.shards(batch):  # leads to the maker, whose gradients wait meanwhile
            of_critic.backward(softplus(-critic(x)) + softplus(critic(maker(x))))
        of_maker.update()
        of_critic.update()
    return state(maker, critic)


@program
def sharpness_aware(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    norms = []
    for batch in run.batches((X, Y), B):
        backward(step, model, batch)
        with torch.no_grad():
            grads = [param.grad for param in model.parameters() if param.grad is not None]
            norms.append(nn.utils.get_total_norm(grads))
            before = [param.clone() for param in model.parameters()]
            for param, grad in zip(model.parameters(), grads, strict=True):
                param.add_(grad * (0.05 / norms[-1]))
        model.zero_grad()
        backward(step, model, batch)
        with torch.no_grad():
            for param, value in zip(model.parameters(), before, strict=True):
                param.copy_(value)
        step.update()
    return [*state(model), *norms]


@program
def a_gradient_penalty(run: Run) -> Result:
    critic = net(out=1)
    step = run.step(critic, adam(critic))
    for batch in run.batches(X, B):
        for x in step.shards(batch):
            between = (x * torch.rand(len(x), 1)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            step.backward(critic(x)[:, 0] + 10 * (slope.norm(dim=1) - 1).square())
        step.update()
    return state(critic)


@program
def clipping_by_value_and_logging(run: Run) -> Result:
    model, log = net(), []
    step = run.step(model, sgd(model))
    for batch in run.batches((X, Y), B):
        backward(step, model, batch)
        log += [param.grad.clone() for param in model.parameters() if param.grad is not None]
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        log.append(nn.utils.clip_grad_norm_(model.parameters(), math.inf))
        step.update()
    assert len(log) == 5 * step.updates
    return [*state(model), *log]


@program
def accumulation_over_batches(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    for number, batch in enumerate(run.batches((X, Y), B)):
        backward(step, model, batch)
        if number % 2:
            step.update()
    assert step.updates == 1
    return state(model)


@program
def averages_and_a_schedule(run: Run) -> Result:
    model = normed()
    optimizer, average = sgd(model), AveragedModel(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    step = run.step(model, optimizer)
    for batch in run.batches((X, Y), B):
        backward(step, model, batch)
        step.update()
        average.update_parameters(model)
        schedule.step()
    return state(model, average)


@program
def lbfgs_with_a_closure(run: Run) -> Result:
    model = nn.Linear(D, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    step = run.step(model, optimizer)
    for batch in run.batches((X, Y), B):

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            backward(step, model, batch)
            return step.loss

        step.update(closure)
    assert step.batches > 6
    return state(model)


@program
def several_models_and_optimizers(run: Run) -> Result:
    body, head = nn.Linear(D, 4), nn.Linear(4, 3)
    step = run.step([body, head], [sgd(body), adam(head)])
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            step.backward(cross_entropy(head(body(x).tanh()), y, reduction="none"))
        step.update()
    return state(body, head)


@program
def one_optimizer_over_several_models(run: Run) -> Result:
    body, head = nn.Linear(D, 4), nn.Linear(4, 3)
    step = run.step([body, head], torch.optim.Adam([*body.parameters(), *head.parameters()], 0.01))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            step.backward(cross_entropy(head(body(x).tanh()), y, reduction="none"))
        step.update()
    return state(body, head)


@program
def float16_with_a_scale(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model), loss_scale=LossScale(init_scale=2.0**24))
    for _ in run.epochs(4):
        for batch in run.batches((X, Y), B):
            for x, y in step.shards(batch):
                with torch.autocast("cpu", torch.float16):
                    losses = classify(model, x, y)
                step.backward(losses)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)  # hides that a gradient is infinite
            step.update()
    assert 0 < step.updates < step.batches
    return state(model)


@program
def sparse_gradients_of_two_loops(run: Run) -> Result:
    model = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Flatten(), nn.Linear(4 * T, 3))
    step = run.step(model, sgd(model))
    for batch in run.batches((TOKENS, Y), B):
        backward(step, model, batch)
        backward(step, model, batch)
        step.update()
    return state(model)


@program
def tokens_that_count(run: Run) -> Result:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    step = run.step(model, sgd(model))
    for batch in run.batches((TOKENS, Y), B):
        for tokens, _ in step.shards(batch):
            shown = tokens > 3
            losses = cross_entropy(model(tokens).transpose(1, 2), tokens, reduction="none")
            step.backward(losses * shown, shown)
        step.update()
    return state(model)


@program
def random_numbers_of_all_kinds(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            noise = torch.from_numpy(np.random.normal(size=x.shape).astype("float32")) + float(np.random.rand())
            step.backward(classify(model, x + noise, y) * random.random())
        step.update()
    return [*state(model), torch.tensor([np.random.rand(), random.random()])]


@program
def what_a_body_writes_down_for_people(run: Run) -> Result:
    model, history = net(), []
    step, total = run.step(model, sgd(model)), 0.0
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            losses = classify(model, x, y)
            step.backward(losses)
            total += losses.sum().item()
            history.append(losses.mean().item())
        step.update()
    return state(model)


@program
def a_teacher_and_a_module_for_the_loss(run: Run) -> Result:
    model, teacher, weighting = net(), normed(), nn.BatchNorm1d(3)  # both in training mode, as often forgotten
    step = run.step(model, sgd(model), also=[teacher, weighting])
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            with torch.no_grad():
                wanted = weighting(teacher(x)).softmax(1)
            step.backward(cross_entropy(model(x), wanted, reduction="none") + classify(model, x, y))
        step.update()
    return state(model, teacher, weighting)


@program
def a_loop_beside_a_step(run: Run) -> Result:
    model = net()
    optimizer = adam(model)  # its state is spread over processes until somebody needs the whole
    whole, own = run.step(model, optimizer, classify), run.step(model, optimizer)
    for batch in run.batches((X, Y), B):
        whole(batch)
        backward(own, model, batch)
        own.update()
    return state(model)


@program
def a_weighted_inner_step(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            inner = copy.deepcopy(model)
            ahead = sgd(inner)
            torch.autograd.backward(classify(inner, x, y).mean())
            ahead.step()
            step.backward(classify(inner, x, y).detach() * classify(model, x, y))
        step.update()
    return state(model)


@program
def a_batch_smaller_than_the_shards(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    for start in (0, 2):
        backward(step, model, (X[start : start + 2], Y[start : start + 2]))
        step.update()
    return state(model)


# -- what is refused --------------------------------------------------------------------------------------------------


@refused
def a_baseline_that_follows_the_losses(run: Run) -> Result:
    model = net()
    step, baseline = run.step(model, sgd(model)), 0.0
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            losses = classify(model, x, y)
            step.backward(losses * (1 + baseline))
            baseline = 0.9 * baseline + 0.1 * losses.mean().item()
        step.update()
    return state(model)


@refused
def a_queue_in_a_list(run: Run) -> Result:
    model: nn.Module = net(out=4)
    step = run.step(model, sgd(model))
    queue: list[Tensor] = [torch.zeros(1, 4)]
    for batch in run.batches(X, B):
        for x in step.shards(batch):
            codes = model(x)
            step.backward((codes @ torch.cat(queue).T).exp().sum(1))
            queue.append(codes.detach())
        step.update()
    return state(model)


@refused
def an_iterator_over_other_data(run: Run) -> Result:
    model = net()
    step, others = run.step(model, sgd(model)), iter(torch.randn(100, 1))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            step.backward(classify(model, x + next(others), y))
        step.update()
    return state(model)


@refused
def a_generator_without_a_seed(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            noise = np.random.default_rng().normal(size=x.shape).astype("float32")
            step.backward(classify(model, x + torch.from_numpy(noise), y))
        step.update()
    return state(model)


@refused
def samples_changed_in_place(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            step.backward(classify(model, x.mul_(2), y))
        step.update()
    return state(model)


@refused_with_each_batch
def weights_clipped_in_the_body(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))
        for param in model.parameters():
            param.data.clamp_(-0.1, 0.1)
    step.update()


@refused_with_each_batch
def a_break(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))
        break
    step.update()


@refused_with_each_batch
def an_error_that_is_caught(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    try:
        for _ in step.shards(batch):
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


@refused_with_each_batch
def a_body_without_backward(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        torch.autograd.backward(classify(model, x, y).mean())
    step.update()


@refused_with_each_batch
def a_backward_outside(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    step.backward(classify(model, X[:4], Y[:4]))


@refused_with_each_batch
def a_backward_of_another_step(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    other = run.step(model, sgd(model))
    for x, y in step.shards(batch):
        other.backward(classify(model, x, y))


@refused_with_each_batch
def two_backwards_that_count_otherwise(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))
        step.backward(classify(model, x, y), 7)


@refused_with_each_batch
def losses_and_logits(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y), model(x))


@refused_with_each_batch
def no_update(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    backward(step, model, batch)


@refused_with_each_batch
def two_updates(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    backward(step, model, batch)
    step.update()
    step.update()


@refused_with_each_batch
def an_update_in_the_body(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))
        step.update()


@refused_with_each_batch
def a_loop_in_the_body(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for _ in step.shards(batch):
        backward(step, model, batch)


@refused_with_each_batch
def a_mean_in_the_body(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))
        run.mean(lambda m, x, y: m(x).argmax(1) == y, model, (X, Y))


@refused_with_each_batch
def an_exchange_in_the_body(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))
        run.all_reduce(torch.ones(1))


@refused_with_each_batch
def an_update_of_ones_own(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    optimizer = sgd(model)
    other = run.step(model, optimizer)
    backward(other, model, batch)
    optimizer.step()


@refused_with_each_batch
def lbfgs_in_a_step(run: Run, step: ManualStep, batch: Any, model: nn.Module) -> None:
    run.step(model, torch.optim.LBFGS(model.parameters()), classify)


def with_option(run: Run, step: ManualStep, batch: Any, model: nn.Module, **option: Any) -> None:
    make: Any = run.step
    make(model, sgd(model), **option)


for option in ({"clip_norm": 1.0}, {"accumulate": 2}, {"autocast": torch.bfloat16}, {"batch_norm": "global"}):
    body: Any = functools.partial(with_option, **option)
    body.__name__ = f"the_option_{next(iter(option))}"
    refused_with_each_batch(body)


# -- the matrix -------------------------------------------------------------------------------------------------------


def on(devices: int, train: Program, pool: Pool) -> Result | str:
    """What it returns, or the words of what it raises."""
    try:
        return fanwise.run(train, devices=devices, pool=pool if devices > 1 else None, progress=False)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def words(said: Result | str) -> str:
    """Without the traceback of another process."""
    assert isinstance(said, str), "it was not refused"
    return said.partition("\nTraceback in process")[0]


# Shards are dealt out unevenly to three; two have two each.
SEVERAL = [3, pytest.param(2, marks=pytest.mark.soak)]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch
@pytest.mark.parametrize("devices", SEVERAL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_of_ones_own_has_the_same_bits_on_one_and_on_several_devices(
    name: str, devices: int, pool: Pool
) -> None:
    one, other = (on(number, PROGRAMS[name], pool) for number in (1, devices))
    assert not isinstance(one, str), one
    assert not isinstance(other, str), other
    assert len(one) == len(other)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("devices", SEVERAL)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_so_in_the_same_words_on_any_number_of_devices(name: str, devices: int, pool: Pool) -> None:
    one, other = (words(on(number, REFUSED[name], pool)) for number in (1, devices))
    assert one == other
    assert "\n  wrong:  " in one
    assert "\n  right:  " in one


def whole(run: Run) -> Result:
    model = normed()
    step = run.step(model, adam(model), classify)
    return [*[step(batch) for batch in run.batches((X, Y), B)], *state(model)]


def by_hand(run: Run) -> Result:
    model, losses = normed(), []
    step = run.step(model, adam(model))
    for batch in run.batches((X, Y), B):
        backward(step, model, batch)
        step.update()
        losses.append(step.loss)
    return [*losses, *state(model)]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.usefixtures("all_reduce")
def test_a_loop_that_does_what_a_step_does_has_its_bits(devices: int, pool: Pool) -> None:
    one, other = (on(number, train, pool) for number, train in ((1, whole), (devices, by_hand)))
    assert len(one) == len(other)
    assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))  # type: ignore[arg-type]
