"""Small training programs that do not mention shards: the same bits on 1, 2 and 3 devices, or the same error.

`PROGRAMS` train. `REFUSED` raise, on one device too.
"""

import contextlib
import copy
import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.data import Dataset

import fanwise
from fanwise.parallel import LossScale, ManualStep, Run
from fanwise.parallel.step.tree import assign
from fanwise.pool import Pool

Result = list[Tensor]
Program = Callable[[Run], Result]

PROGRAMS: dict[str, Program] = {}
REFUSED: dict[str, Program] = {}

# B: samples of a batch, D: features, T: tokens, Z: noise
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


def normed(*, into: int = D, out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(into, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Linear(8, out))


def classify(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(m(x), y, reduction="none")


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), 0.01)


def passes(run: Run, step: Callable[[Any], Tensor], data: Any = (X, Y)) -> Iterator[int]:
    """Train for two epochs. Yield the number of each batch after it."""
    numbers = itertools.count()
    for _ in run.epochs(2):
        for batch in run.batches(data, B):
            step(batch)
            yield next(numbers)


def fit(run: Run, model: nn.Module, loss_fn: Any = classify, data: Any = (X, Y), **options: Any) -> Result:
    for _ in passes(run, run.step(model, sgd(model), loss_fn, **options), data):
        pass
    return state(model)


def backward(step: ManualStep, model: nn.Module, batch: Any) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))


Body = Callable[[ManualStep, nn.Module, Any, Any], None]


def loop(run: Run, body: Body, model: nn.Module | None = None, data: Any = (X, Y), **options: Any) -> Result:
    """Train by a loop over the shards. `body`: called with step, model and the parts of each shard."""
    model = net() if model is None else model
    step = run.step(model, sgd(model), **options)
    for batch in run.batches(data, B):
        for x, y in step.shards(batch):
            body(step, model, x, y)
        step.update()
    return state(model)


# -- networks ---------------------------------------------------------------------------------------------------------


@program
def a_transformer_with_dropout_and_tied_weights(run: Run) -> Result:
    def losses(m: nn.Module, tokens: Tensor) -> Tensor:
        return cross_entropy(m(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")

    embedding, head = nn.Embedding(11, 8), nn.Linear(8, 11)
    head.weight = embedding.weight
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return fit(run, nn.Sequential(embedding, layer, head), losses, TOKENS)


PROGRAMS["parameters_of_four_types"] = lambda run: [*fit(run, Mixed()), *fit(run, Mixed(), clip_norm=0.5)]


class Mixed(nn.Module):
    """A backbone in bfloat16, a complex filter, a head in float32, a scale in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(D, 8), nn.LayerNorm(8), nn.GELU()).to(torch.bfloat16)
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.head, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.fft.rfft(self.backbone(x.to(torch.bfloat16)).float()) * self.filter
        out: Tensor = self.head(waves.abs()) * self.scale
        return out


@program
def compiled_for_all_shapes(run: Run) -> Result:
    executions = 0

    def backend(graph: Any, _: Any) -> Any:  # Any: of torch's compiler
        def execute(*args: Any) -> Any:
            nonlocal executions
            executions += 1
            return graph(*args)

        return execute

    model = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 3))
    step = run.step(cast(nn.Module, torch.compile(model, dynamic=True, backend=backend)), sgd(model), classify)
    for _ in passes(run, step):
        pass
    own = assign(run.shards, run.world_size)[run.rank]
    checks = 2 if run.rank == 0 else 0  # a shard of the first batch is executed twice as a check
    assert executions == step.batches * len(own) + checks, "a shard was executed without the compiled code"
    return state(model)


# -- data -------------------------------------------------------------------------------------------------------------


class Records(Dataset[dict[str, Any]]):
    """Augmented samples in nested dicts and lists."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:  # Any: of that shape
        x = X[index] * (1 + 0.1 * random.random()) + float(np.random.normal()) * 0.1 + torch.rand(D)
        return {"inputs": {"x": x, "more": [X[index] * 2, index]}, "label": Y[index], "name": f"sample {index}"}


@program
def augmented_samples_in_nested_dicts(run: Run) -> Result:
    def losses(m: nn.Module, batch: dict[str, Any]) -> Tensor:
        inputs = batch["inputs"]
        assert batch["name"] == [f"sample {int(index)}" for index in inputs["more"][1]]
        return classify(m, inputs["x"] + inputs["more"][0], batch["label"])

    return fit(run, net(), losses, Records())


@program
def batches_without_a_data_set(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model), lambda m, batch: classify(m, batch["x"]["left"], batch["y"]))
    for samples in (slice(13), slice(13, 26), slice(26, 28)):  # the last one has fewer samples than shards
        step({"x": {"left": X[samples], "right": (X[samples],)}, "y": Y[samples]})
    return state(model)


# -- optimizers -------------------------------------------------------------------------------------------------------


@program
def accumulation_and_clipping_in_a_loop(run: Run) -> Result:
    model, norms = net(), []
    step = run.step(model, sgd(model))
    for number, batch in enumerate(run.batches((X, Y), B)):
        backward(step, model, batch)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if number % 2:
            step.update()
    assert step.updates == 1
    return [*state(model), *norms]


@program
def float16_with_a_scale_in_a_loop(run: Run) -> Result:
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
def norms_of_gradients(run: Run) -> Result:
    model, norms = net(), []
    measured, clipped = (run.step(model, sgd(model), classify, clip_norm=norm) for norm in (math.inf, 0.1))
    for batch in run.batches((X, Y), B):
        norms += [measured(batch), measured.grad_norm, clipped(batch), clipped.grad_norm]
    return [*state(model), *norms]


@program
def fine_tuning_that_thaws(run: Run) -> Result:
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[3].parameters(), 0.05)
    for number in passes(run, run.step(model, optimizer, classify)):
        if number == 2:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.005})
    return state(model)


@program
def two_optimizers_of_one_model(run: Run) -> Result:
    body, head = nn.Linear(D, 4), nn.Linear(4, 3)
    model = nn.Sequential(body, nn.Tanh(), head)
    steps = run.step(model, sgd(body), classify), run.step(model, adam(head), classify)
    for number, batch in enumerate(run.batches((X, Y), B)):
        steps[number % 2](batch)
    return state(model)


@program
def several_models_and_optimizers(run: Run) -> Result:
    body, head = nn.Linear(D, 4), nn.Linear(4, 3)
    step = run.step([body, head], [sgd(body), adam(head)])
    for batch in run.batches((X, Y), B):
        backward(step, nn.Sequential(body, nn.Tanh(), head), batch)
        step.update()
    return state(body, head)


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
def a_loop_beside_a_step(run: Run) -> Result:
    model = net()
    optimizer = adam(model)  # its state is spread over processes until the second step needs all of it
    whole, own = run.step(model, optimizer, classify), run.step(model, optimizer)
    for batch in run.batches((X, Y), B):
        whole(batch)
        backward(own, model, batch)
        own.update()
    return state(model)


# -- losses -----------------------------------------------------------------------------------------------------------


@program
def a_gan_in_loops_whose_updates_come_last(run: Run) -> Result:
    maker, critic = net(out=D), normed(out=1)
    of_critic, of_maker = run.step(critic, adam(critic)), run.step(maker, adam(maker))
    losses = []
    for batch in run.batches(X, B):
        for x in of_maker.shards(batch):
            of_maker.backward(softplus(-critic(maker(x))))
        for x in of_critic.shards(batch):  # leads to the maker, whose gradients wait meanwhile
            of_critic.backward(softplus(-critic(x)))
            of_critic.backward(softplus(critic(maker(x))))
        of_maker.update()
        of_critic.update()
        losses += [of_critic.loss, of_maker.loss]
    return [*state(maker, critic), *losses]


@program
def a_gradient_penalty(run: Run) -> Result:
    def penalized(step: ManualStep, critic: nn.Module, x: Tensor, _: Tensor) -> None:
        between = (x * torch.rand(len(x), 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        step.backward(critic(x)[:, 0] + 10 * (slope.norm(dim=1) - 1).square())

    return loop(run, penalized, net(out=1))


def noise(x: Tensor) -> Tensor:
    return torch.from_numpy(np.random.normal(size=x.shape).astype("float32")) + float(np.random.beta(0.4, 0.4))


@program
def random_numbers_of_all_kinds(run: Run) -> Result:
    model = fit(run, net(), lambda m, x, y: classify(m, x + noise(x) + torch.randn_like(x), y) * random.random())
    return [*model, torch.tensor([np.random.rand(), random.random()]), torch.rand(1)]


@program
def distillation_that_logs_its_losses(run: Run) -> Result:
    teacher, log = normed(), []  # in training mode

    def losses(m: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        values = cross_entropy(m(x), wanted, reduction="none") + 0.1 * classify(m, x, y)
        log.append(values.mean().item())
        return values, 1.0 + y

    return [*fit(run, net(), losses, also=[teacher]), *state(teacher)]


@program
def tokens_that_count_in_a_loop(run: Run) -> Result:
    def masked(step: ManualStep, m: nn.Module, tokens: Tensor, _: Tensor) -> None:
        counts = tokens > 3
        step.backward(cross_entropy(m(tokens).transpose(1, 2), tokens, reduction="none") * counts, counts)
        step.backward(m(tokens).square().sum(2) * counts, counts)

    model = nn.Sequential(nn.Embedding(11, 8, sparse=True), nn.Linear(8, 11))
    return loop(run, masked, model, (TOKENS, Y))


@program
def an_inner_optimizer(run: Run) -> Result:
    def look_ahead(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        inner = copy.deepcopy(m)
        torch.autograd.backward(classify(inner, x, y).mean())
        sgd(inner).step()
        return classify(inner, x, y).detach() * classify(m, x, y)

    return fit(run, net(), look_ahead)


@program
def a_critic_trained_by_hand(run: Run) -> Result:
    generator, critic = net(out=D), net(out=1)
    optimizer = sgd(critic)
    step = run.step(generator, sgd(generator), lambda m, x: softplus(-critic(m(x)))[:, 0])
    for (batch,) in run.batches((X,), B):
        step(batch)
        optimizer.zero_grad()
        fake = generator(batch).detach()
        torch.autograd.backward(softplus(critic(fake)).mean() + softplus(-critic(batch)).mean())
        optimizer.step()
    return state(generator, critic)


# -- models that change -----------------------------------------------------------------------------------------------


def changed(run: Run, change: Callable[[Any], Iterable[nn.Parameter]], *, again: bool) -> Result:
    """Change the model after its first batch. `again`: call run.step again."""
    model = net()
    optimizer = adam(model)
    step = run.step(model, optimizer, classify)
    for number, batch in enumerate(run.batches((X, Y), B)):
        if number == 1:
            new = list(change(model))
            if new:
                optimizer.add_param_group({"params": new, "lr": 0.1})
            if again:
                step = run.step(model, optimizer, classify)
        step(batch)
    return state(model)


def append(model: Any) -> Iterable[nn.Parameter]:  # Any: a Sequential
    model.append(nn.Linear(3, 3))
    return list(model[-1].parameters())


PROGRAMS["an_appended_layer"] = lambda run: changed(run, append, again=True)
REFUSED["an_appended_layer_without_a_new_step"] = lambda run: changed(run, append, again=False)


# -- what is refused --------------------------------------------------------------------------------------------------


class Queue(nn.Module):
    """Keeps the latest codes, as MoCo does."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = net(out=4)
        self.register_buffer("queue", torch.zeros(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        codes: Tensor = self.encoder(x)
        queue = self.get_buffer("queue")
        out = codes @ queue.clone().T
        with torch.no_grad():
            queue.copy_(torch.cat([codes, queue])[:8])
        return out


REFUSED["a_queue_in_a_buffer"] = lambda run: fit(run, Queue(), lambda m, x: m(x).exp().sum(1), X)
REFUSED["compiled_for_one_shape"] = lambda run: fit(run, cast(nn.Module, torch.compile(net(), backend="eager")))


def misfit(m: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"loss": classify(m, x, y)}


REFUSED["logits_beside_the_mean_loss"] = lambda run: fit(run, net(), lambda m, x, y: (classify(m, x, y).mean(), m(x)))
REFUSED["logits_as_counts_of_losses"] = lambda run: fit(run, net(), lambda m, x, y: (classify(m, x, y), m(x).detach()))
REFUSED["losses_in_a_dict"] = lambda run: fit(run, net(), misfit)


@refused
def an_update_beside_the_step(run: Run) -> Result:
    model = net()
    optimizer = sgd(model)
    step = run.step(model, optimizer, classify)
    for batch in run.batches((X, Y), B):
        step(batch)
        optimizer.step()
    return state(model)


@refused
def a_backward_pass_beside_the_step(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model), classify)
    for batch in run.batches((X, Y), B):
        torch.autograd.backward(model(X).square().mean())
        step(batch)
    return state(model)


@refused
def a_step_in_a_loop_of_epochs(run: Run) -> Result:
    model = net()
    for _ in run.epochs(2):
        run.step(model, sgd(model), classify)
    return state(model)


@refused
def an_iterator_over_other_data(run: Run) -> Result:
    others = iter(torch.randn(100, 1))
    return loop(run, lambda step, m, x, y: step.backward(classify(m, x + next(others), y)))


def in_each_batch(run: Run, body: Callable[[Run, ManualStep, nn.Module, Any], object]) -> Result:
    model = net()
    step = run.step(model, sgd(model))
    for batch in run.batches((X, Y), B):
        body(run, step, model, batch)
    return state(model)


def a_break(run: Run, step: ManualStep, model: nn.Module, batch: Any) -> None:
    for x, y in step.shards(batch):
        step.backward(classify(model, x, y))
        break
    step.update()


def an_error_that_is_caught(run: Run, step: ManualStep, model: nn.Module, batch: Any) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for _ in step.shards(batch):
            raise ZeroDivisionError


def a_backward_of_another_step(run: Run, step: ManualStep, model: nn.Module, batch: Any) -> None:
    other = run.step(model, sgd(model))
    for x, y in step.shards(batch):
        other.backward(classify(model, x, y))


def two_updates(run: Run, step: ManualStep, model: nn.Module, batch: Any) -> None:
    backward(step, model, batch)
    step.update()
    step.update()


def in_the_body(call: Callable[[Run, ManualStep, nn.Module, Any], object]) -> Any:  # Any: a body of in_each_batch
    def body(run: Run, step: ManualStep, model: nn.Module, batch: Any) -> None:
        for x, y in step.shards(batch):
            step.backward(classify(model, x, y))
            call(run, step, model, batch)

    return body


def accuracy(m: nn.Module, x: Tensor, y: Tensor) -> Any:  # Any: a tensor
    return m(x).argmax(1) == y


BODIES: dict[str, Callable[[Run, ManualStep, nn.Module, Any], object]] = {
    **{body.__name__: body for body in (a_break, an_error_that_is_caught, a_backward_of_another_step, two_updates)},
    "a_body_without_backward": lambda run, step, model, batch: list(step.shards(batch)),
    "two_counts_of_a_shard": in_the_body(lambda run, step, model, batch: step.backward(torch.ones(4), 7)),
    "no_update": lambda run, step, model, batch: backward(step, model, batch),
    "a_backward_outside": lambda run, step, model, batch: step.backward(classify(model, X[:4], Y[:4])),
    "logits_as_counts": in_the_body(lambda run, step, model, batch: step.backward(model(X[:4]).sum(1), model(X[:4]))),
    "an_update_in_the_body": in_the_body(lambda run, step, model, batch: step.update()),
    "a_loop_in_the_body": in_the_body(lambda run, step, model, batch: backward(step, model, batch)),
    "a_mean_in_the_body": in_the_body(lambda run, step, model, batch: run.mean(accuracy, model, (X, Y))),
    "a_collective_operation_in_the_body": in_the_body(lambda run, step, model, batch: run.gather(1)),
}
for name, body in BODIES.items():
    REFUSED[name] = functools.partial(in_each_batch, body=body)


# -- the matrix -------------------------------------------------------------------------------------------------------


def on(devices: int, train: Program, pool: Pool) -> Result | str:
    """Return the result of the program, or its error without the traceback of another process."""
    try:
        return fanwise.run(train, devices=devices, pool=pool if devices > 1 else None, progress=False)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}".partition("\nTraceback in process")[0]


# Three devices get 2, 1 and 1 shards; two get two each.
SEVERAL = [3, pytest.param(2, marks=pytest.mark.soak)]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch
@pytest.mark.parametrize("devices", SEVERAL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_same_bits_on_one_and_on_several_devices(name: str, devices: int, pool: Pool) -> None:
    one, other = (on(number, PROGRAMS[name], pool) for number in (1, devices))
    assert not isinstance(one, str), one
    assert not isinstance(other, str), other
    assert len(one) == len(other)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("devices", SEVERAL)
@pytest.mark.parametrize("name", REFUSED)
def test_an_error_is_the_same_on_any_number_of_devices(name: str, devices: int, pool: Pool) -> None:
    one, other = (on(number, REFUSED[name], pool) for number in (1, devices))
    assert isinstance(one, str) and isinstance(other, str), "it was not refused"
    # Shards may differ by one sample, and any of the processes may be the first that raises.
    assert re.sub(r"shape \(\d+", "shape (n", one) == re.sub(r"shape \(\d+", "shape (n", other)
    assert "\n  wrong:  " in one and "\n  right:  " in one


def whole_step(run: Run) -> Result:
    model = normed()
    step = run.step(model, adam(model), classify)
    return [*[step(batch) for batch in run.batches((X, Y), B)], *state(model)]


def the_same_in_a_loop(run: Run) -> Result:
    model, losses = normed(), []
    step = run.step(model, adam(model))
    for batch in run.batches((X, Y), B):
        backward(step, model, batch)
        step.update()
        losses.append(step.loss)
    return [*losses, *state(model)]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.usefixtures("all_reduce")
def test_a_loop_that_does_the_same_as_a_step_has_its_bits(devices: int, pool: Pool) -> None:
    one, other = (on(number, train, pool) for number, train in ((1, whole_step), (devices, the_same_in_a_loop)))
    assert len(one) == len(other)
    assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))  # type: ignore[arg-type]
