"""Usual training programs, small, with nothing said of shards: the same bits on 1, 2 and 3 devices, or the same error.

Each is what a user writes without a thought for the number of devices. `PROGRAMS` train, `REFUSED` are refused, on one
device too.
"""

import copy
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.shards import assign
from fanwise.pool import Pool

Result = list[Tensor]
Program = Callable[[Run], Result]

PROGRAMS: dict[str, Program] = {}
REFUSED: dict[str, Program] = {}

# B: samples, D: features, T: tokens
B, D, T = 13, 6, 5
N = 34  # shards of 4, 3, 3, 3 samples, and of 2 in the last batch of an epoch
X = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
Y = torch.arange(N) % 3
IMAGES = torch.randn(N, 1, 12, 12, generator=torch.Generator().manual_seed(2))
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


def classify(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(m(x), y, reduction="none")


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def passes(run: Run, step: Callable[[Any], Tensor], data: Any = (X, Y), epochs: int = 1) -> Iterator[int]:
    """After each batch, its number."""
    numbers = itertools.count()
    for _ in run.epochs(epochs):
        for batch in run.batches(data, B):
            step(batch)
            yield next(numbers)


def fit(run: Run, model: nn.Module, loss_fn: Any = classify, data: Any = (X, Y), **options: Any) -> Result:
    step = run.step(model, sgd(model), loss_fn, **options)
    for _ in passes(run, step, data):
        pass
    return state(model)


def over(run: Run, batches: Iterable[Any]) -> Result:
    """As `fit`, with batches of the program's own."""
    model = net()
    step = run.step(model, sgd(model), classify)
    for batch in batches:
        step(batch)
    return state(model)


# -- networks ---------------------------------------------------------------------------------------------------------


@program
def lenet(run: Run) -> Result:
    convolutions = nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(2, 4, 2), nn.Sigmoid(), nn.AvgPool2d(2)
    return fit(run, nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16, 3)), data=(IMAGES, Y))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.inside(x)) + x)


@program
def resnet_with_batch_norm(run: Run) -> Result:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return fit(run, model.append(nn.Linear(4, 3)), data=(IMAGES, Y))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.embedding(tokens)))
        return out


@program
def transformer_with_dropout(run: Run) -> Result:
    def losses(m: nn.Module, tokens: Tensor) -> Tensor:
        return cross_entropy(m(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")

    return fit(run, Transformer(), losses, TOKENS)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 3)
        self.lstm = nn.LSTM(6, 6, 2, dropout=0.1, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(tokens))[0][:, -1])
        return out


@program
def lstm(run: Run) -> Result:
    return fit(run, Recurrent(), data=(TOKENS, Y), clip_norm=1.0)


@program
def sparse_embedding(run: Run) -> Result:
    model = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Flatten(), nn.Linear(4 * T, 3))
    return fit(run, model, data=(TOKENS, Y))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(tokens).mean(1))
        return out


@program
def tied_weights(run: Run) -> Result:
    return fit(run, Tied(), data=(TOKENS, Y))


@program
def weight_norm_and_spectral_norm(run: Run) -> Result:
    first = parametrizations.weight_norm(nn.Linear(D, 8))
    return fit(run, nn.Sequential(first, nn.ReLU(), parametrizations.spectral_norm(nn.Linear(8, 3))))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(D, 4), nn.Linear(2, D)


@program
def vae(run: Run) -> Result:
    def losses(m: Any, x: Tensor) -> Tensor:
        mean, log_var = m.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_var / 2).exp()
        divergence = (mean.square() + log_var.exp() - 1 - log_var).sum(1) / 2
        out: Tensor = mse_loss(m.decoder(code), x, reduction="none").sum(1) + divergence
        return out

    return fit(run, Autoencoder(), losses, X)


class Mixed(nn.Module):
    """A backbone in bfloat16, a head in float32, a scale in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(D, 8), nn.LayerNorm(8), nn.GELU()).to(torch.bfloat16)
        self.head, self.scale = nn.Linear(8, 3), nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x.to(torch.bfloat16)).float()) * self.scale
        return out


@program
def parameters_of_three_types(run: Run) -> Result:
    return [*fit(run, Mixed()), *fit(run, Mixed(), clip_norm=0.5)]


class Waves(nn.Module):
    """A complex layer between real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(D, D), nn.Linear(4, 3)
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out((torch.fft.rfft(self.into(x)) * self.filter).abs())
        return out


@program
def complex_parameters(run: Run) -> Result:
    return fit(run, Waves())


class Records(Dataset[dict[str, Any]]):
    """Samples in dicts and lists within each other."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:  # Any: of that shape
        return {"inputs": {"x": X[index], "more": [X[index] * 2, index]}, "label": Y[index], "name": f"sample {index}"}


@program
def samples_in_dicts_within_dicts(run: Run) -> Result:
    def losses(m: nn.Module, batch: dict[str, Any]) -> Tensor:
        inputs = batch["inputs"]
        assert batch["name"] == [f"sample {int(index)}" for index in inputs["more"][1]]
        return classify(m, inputs["x"] + inputs["more"][0], batch["label"])

    return fit(run, net(), losses, Records())


@program
def batches_of_ones_own_in_dicts(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model), lambda m, batch: classify(m, batch["x"]["left"], batch["y"]))
    for start in range(0, N, B):
        step({"x": {"left": X[start : start + B], "right": (X[start : start + B],)}, "y": Y[start : start + B]})
    return state(model)


# -- optimizers -------------------------------------------------------------------------------------------------------


@program
def averages_and_a_schedule(run: Run) -> Result:
    model = net()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    average = copy.deepcopy(model)
    step = run.step(model, optimizer, classify)
    for _ in passes(run, step):
        schedule.step()
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.1)
    return state(model, average)


@program
def accumulation(run: Run) -> Result:
    return fit(run, net(), accumulate=2)


@program
def autocast_to_bfloat16(run: Run) -> Result:
    return fit(run, net(), autocast=torch.bfloat16)


@program
def clipping_by_norm(run: Run) -> Result:
    return fit(run, net(), clip_norm=0.1)


@program
def norms_of_gradients(run: Run) -> Result:
    model, norms = net(), []
    measured, clipped = (run.step(model, sgd(model), classify, clip_norm=norm) for norm in (math.inf, 0.1))
    for batch in run.batches((X, Y), B):
        norms.append(measured(batch))
        norms.append(measured.grad_norm)
        clipped(batch)
        norms.append(clipped.grad_norm)
    return [*state(model), *norms]


@program
def clipping_by_value_and_logging_of_gradients(run: Run) -> Result:
    model, norms = net(), []
    optimizer = sgd(model)

    def before_each_update(*_: object) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))

    optimizer.register_step_pre_hook(before_each_update)
    for _ in passes(run, run.step(model, optimizer, classify)):
        pass
    return [*state(model), torch.stack(norms)]


@program
def groups_without_weight_decay(run: Run) -> Result:
    model = net()
    biases = [param for name, param in model.named_parameters() if name.endswith("bias")]
    weights = [param for name, param in model.named_parameters() if not name.endswith("bias")]
    optimizer = torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}])
    for _ in passes(run, run.step(model, optimizer, classify)):
        pass
    return state(model)


@program
def warm_up(run: Run) -> Result:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    warming = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    run.keep(warming=warming)
    for _ in passes(run, run.step(model, optimizer, classify)):
        warming.step()
    return state(model)


@program
def fine_tuning_that_thaws(run: Run) -> Result:
    model = net()
    for param in model[0].parameters():
        param.requires_grad = False
    optimizer = torch.optim.Adam(model[3].parameters(), 0.05)
    for number in passes(run, run.step(model, optimizer, classify)):
        if number == 2:
            for param in model[0].parameters():
                param.requires_grad = True
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.005})
    return state(model)


@program
def a_second_step_on_one_optimizer(run: Run) -> Result:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for factor in (1.0, 0.5):
        step = run.step(model, optimizer, lambda m, x, y, factor=factor: factor * classify(m, x, y))
        for batch in run.batches((X, Y), B):
            step(batch)
    return state(model)


@program
def two_optimizers(run: Run) -> Result:
    body, head = nn.Linear(D, 4), nn.Linear(4, 3)
    model = nn.Sequential(body, nn.Tanh(), head)
    steps = run.step(model, sgd(body), classify), run.step(model, torch.optim.Adam(head.parameters(), 0.05), classify)
    for number, batch in enumerate(run.batches((X, Y), B)):
        steps[number % 2](batch)
    return state(model)


@program
def stochastic_weight_averaging(run: Run) -> Result:
    model = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    averaged = AveragedModel(model)
    for number in passes(run, run.step(model, sgd(model), classify)):
        if number % 3 == 2:
            averaged.update_parameters(model)
    update_bn(DataLoader(TensorDataset(X), B), averaged)
    return state(averaged)


# -- losses -----------------------------------------------------------------------------------------------------------


@program
def a_gan_with_batch_norm_in_its_critic(run: Run) -> Result:
    maker = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, D))
    critic = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Linear(8, 1))

    def criticise(m: nn.Module, real: Tensor) -> Tensor:
        made = maker(torch.randn(len(real), 4)).detach()
        out: Tensor = functional.softplus(-m(real)) + functional.softplus(m(made))
        return out

    def deceive(m: nn.Module, real: Tensor) -> Tensor:
        return functional.softplus(-critic(m(torch.randn(len(real), 4))))

    of_critic = run.step(critic, torch.optim.Adam(critic.parameters(), 0.01), criticise)
    of_maker = run.step(maker, torch.optim.Adam(maker.parameters(), 0.01), deceive)
    for batch in run.batches(X, B):
        of_critic(batch)
        of_maker(batch)
    return state(maker, critic)


@program
def mixup_with_numpy(run: Run) -> Result:
    def mixed(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        part = float(np.random.beta(0.4, 0.4))
        other = torch.from_numpy(np.random.permutation(len(x)))
        out = m(part * x + (1 - part) * x[other])
        return part * cross_entropy(out, y, reduction="none") + (1 - part) * cross_entropy(
            out, y[other], reduction="none"
        )

    return fit(run, net(), mixed)


@program
def noise_from_numpy_and_python(run: Run) -> Result:
    def noisy(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return classify(m, x + torch.from_numpy(np.random.normal(size=x.shape).astype("float32")), y) + random.random()

    return [*fit(run, net(), noisy), torch.tensor(np.random.rand())]


class Smoothed(nn.Module):
    """A module for the loss, with a weight of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5]))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        weight = self.get_buffer("weight")
        return cross_entropy(out, y, weight, reduction="none", label_smoothing=0.1)


@program
def label_smoothing_in_a_module_of_its_own(run: Run) -> Result:
    loss = Smoothed()
    return fit(run, net(), lambda m, x, y: (loss(m(x), y), loss.get_buffer("weight")[y]))


@program
def contrastive_within_a_shard(run: Run) -> Result:
    def losses(m: nn.Module, x: Tensor) -> Tensor:
        one, two = (functional.normalize(m(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        return cross_entropy(one @ two.T / 0.1, torch.arange(len(x)), reduction="none")

    return fit(run, net(out=4), losses, X)


@program
def distillation(run: Run) -> Result:
    teacher = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))  # in training mode, as often forgotten

    def losses(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        return cross_entropy(m(x), wanted, reduction="none") + 0.1 * classify(m, x, y)

    return [*fit(run, net(), losses, also=[teacher]), *state(teacher)]


@program
def what_a_loss_writes_down_for_people(run: Run) -> Result:
    history: list[float] = []
    total, took_s, mask = 0.0, 0.0, None

    def told(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal total, took_s, mask
        began_s = time.perf_counter()
        mask = torch.ones(D) if mask is None else mask
        loss = classify(m, x * mask, y)
        total += loss.sum().item()
        history.append(loss.mean().item())
        took_s += time.perf_counter() - began_s
        return loss

    return fit(run, net(), told)


class Features(nn.Module):
    """Leaves a tensor of its graph for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = net()

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.inside[0](x)
        out: Tensor = self.inside(x)
        return out


@program
def features_in_an_attribute(run: Run) -> Result:
    def losses(m: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = classify(m, x, y)
        features: Tensor = m.features
        return loss + 0.01 * features.square().mean(1)

    return fit(run, Features(), losses)


# -- models that change ------------------------------------------------------------------------------------------------


class LowRank(nn.Linear):
    """A linear layer with a change of low rank, which may come later."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if "down" in self._parameters:
            out = out + x @ self.get_parameter("down").T @ self.get_parameter("up").T
        return out


def append(model: Any) -> Iterable[nn.Parameter]:  # Any: its parts are of many types
    model.append(nn.Linear(3, 3))
    return list(model[-1].parameters())


def replace(model: Any) -> Iterable[nn.Parameter]:
    model[3] = nn.Linear(8, 3)
    return list(model[3].parameters())


def low_rank(model: Any) -> Iterable[nn.Parameter]:
    model[3].register_parameter("down", nn.Parameter(0.1 * torch.ones(2, 8)))
    model[3].register_parameter("up", nn.Parameter(torch.zeros(3, 2)))
    return [model[3].down, model[3].up]


def changed_on_the_way(run: Run, change: Any, *, anew: bool, how: str = "group") -> Result:  # Any: one of those above
    model: Any = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Dropout(0.2), LowRank(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    step = run.step(model, optimizer, classify)
    for number, batch in enumerate(run.batches((X, Y), B)):
        if number == 1:
            new = list(change(model))
            if new and how == "group":
                optimizer.add_param_group({"params": new, "lr": 0.1})
            elif new:
                optimizer.param_groups[0]["params"] = list(model.parameters())
            if anew:
                step = run.step(model, optimizer, classify)
        step(batch)
    return state(model)


@program
def a_layer_more_in_a_step_anew(run: Run) -> Result:
    return changed_on_the_way(run, append, anew=True)


@program
def a_change_of_low_rank_in_a_step_anew(run: Run) -> Result:
    return changed_on_the_way(run, low_rank, anew=True)


@program
def another_layer_in_a_step_anew(run: Run) -> Result:
    return changed_on_the_way(run, replace, anew=True, how="list")


def prune_and_swap(model: Any) -> Iterable[nn.Parameter]:
    prune.l1_unstructured(model[0], "weight", 0.5)  # type: ignore[no-untyped-call]  # not annotated
    model[1] = nn.Tanh()
    return []


@program
def a_model_pruned_on_the_way(run: Run) -> Result:
    return changed_on_the_way(run, prune_and_swap, anew=False)


@program
def compiled_for_all_shapes(run: Run) -> Result:
    passes = 0

    def counting(graph: Any, _: Any) -> Any:  # Any: of torch's compiler
        def execute(*args: Any) -> Any:
            nonlocal passes
            passes += 1
            return graph(*args)

        return execute

    model = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 3))
    step = run.step(cast(nn.Module, torch.compile(model, dynamic=True, backend=counting)), sgd(model), classify)
    for _ in run.epochs(3):
        for batch in run.batches((X, Y), B):
            step(batch)
    own = assign(run.shards, run.world_size)[run.rank]
    checks = 2 if run.rank == 0 else 0  # executions of a shard of the first batch, before its step
    assert passes == step.batches * len(own) + checks, "a shard was executed without the compiled code"
    return state(model)


@program
def a_compiled_loss_of_a_compiled_model(run: Run) -> Result:
    model = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    compiled = cast(nn.Module, torch.compile(model, dynamic=True, backend="eager"))
    loss = torch.compile(classify, dynamic=True, backend="eager")
    return fit(run, compiled, lambda m, x, y: loss(m, x, y))


@program
def compiled_with_a_loop_of_ones_own(run: Run) -> Result:
    model = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    compiled = cast(nn.Module, torch.compile(model, dynamic=True, backend="eager"))
    step = run.step(compiled, sgd(model))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            step.backward(classify(compiled, x, y))
        step.update()
    return state(model)


@program
def an_inner_loop_with_an_optimizer_of_its_own(run: Run) -> Result:
    def looking_ahead(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        inner = copy.deepcopy(m)
        ahead = sgd(inner)
        ahead.zero_grad()
        torch.autograd.backward(classify(inner, x, y).mean())
        ahead.step()
        with torch.no_grad():
            weight = classify(inner, x, y)
        return weight * classify(m, x, y)

    return fit(run, net(), looking_ahead)


@program
def a_critic_trained_by_hand(run: Run) -> Result:
    generator, critic = net(out=D), net(out=1)
    optimizer = sgd(critic)
    step = run.step(generator, sgd(generator), lambda m, x: functional.softplus(-critic(m(x)))[:, 0])
    for (batch,) in run.batches((X,), B):
        step(batch)
        optimizer.zero_grad()
        fake = generator(batch).detach()
        torch.autograd.backward(functional.softplus(critic(fake)).mean() + functional.softplus(-critic(batch)).mean())
        optimizer.step()
    return state(generator, critic)


# -- data -------------------------------------------------------------------------------------------------------------


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] * (1 + 0.1 * random.random()) + float(np.random.normal()) * 0.1, Y[index]


@program
def augmented_samples(run: Run) -> Result:
    return fit(run, net(), data=Augmented())


@program
def a_loader_of_ones_own(run: Run) -> Result:
    loader = DataLoader(TensorDataset(X, Y), B, shuffle=True)
    return over(run, (batch for _ in run.epochs(2) for batch in loader))


@program
def a_plain_loop_beside_the_run(run: Run) -> Result:
    model = net()
    optimizer = sgd(model)
    for batch in run.batches((X, Y), B):
        optimizer.zero_grad()
        torch.autograd.backward(classify(model, *batch).mean())
        optimizer.step()
    return state(model)


# -- what is refused --------------------------------------------------------------------------------------------------


@refused
def loss_and_logits(run: Run) -> Result:
    def losses(m: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = m(x)
        return cross_entropy(logits, y), logits

    return fit(run, net(), losses)


@refused
def a_warm_up_counted_in_the_loss(run: Run) -> Result:
    calls = 0

    def warming(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return min(1.0, calls / 100) * classify(m, x, y)

    return fit(run, net(), warming)


@refused
def a_baseline_that_follows_the_losses(run: Run) -> Result:
    kept: dict[str, Tensor] = {"baseline": torch.zeros(())}

    def reinforced(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        chances = m(x).log_softmax(1)
        reward = (chances.argmax(1) == y).float() - kept["baseline"]
        kept["baseline"] = 0.9 * kept["baseline"] + 0.1 * reward.mean().detach()
        gains: Tensor = reward * chances.gather(1, y[:, None])[:, 0]
        return -gains

    return fit(run, net(), reinforced)


class Counting(nn.Module):
    """The longer it trains, the less it drops, and it knows only from its own calls how long."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.calls = net(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.inside(functional.dropout(x, 1 / (1 + self.calls), self.training))
        return out


@refused
def a_counter_in_forward(run: Run) -> Result:
    return fit(run, Counting())


class Queue(nn.Module):
    """The latest codes, as MoCo keeps them."""

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


@refused
def a_queue_in_a_buffer(run: Run) -> Result:
    return fit(run, Queue(), lambda m, x: m(x).exp().sum(1), X)


@refused
def an_update_of_ones_own(run: Run) -> Result:
    model = net()
    optimizer = sgd(model)
    step = run.step(model, optimizer, classify)
    for batch in run.batches((X, Y), B):
        step(batch)
        optimizer.step()
    return state(model)


@refused
def a_backward_of_ones_own(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model), classify)
    for batch in run.batches((X, Y), B):
        torch.autograd.backward(model(X).square().mean())
        step(batch)
    return state(model)


@refused
def compiled_for_one_shape(run: Run) -> Result:
    return fit(run, cast(nn.Module, torch.compile(net(), backend="eager")))


@refused
def compiled_for_one_shape_with_a_loop_of_ones_own(run: Run) -> Result:
    model = net()
    compiled = cast(nn.Module, torch.compile(model, backend="eager"))
    step = run.step(compiled, sgd(model))
    for batch in run.batches((X, Y), B):
        for x, y in step.shards(batch):
            step.backward(classify(compiled, x, y))
        step.update()
    return state(model)


@refused
def a_norm_that_nobody_asked_for(run: Run) -> Result:
    model = net()
    step = run.step(model, sgd(model), classify)
    step((X, Y))
    return [step.grad_norm]


@refused
def a_layer_more(run: Run) -> Result:
    return changed_on_the_way(run, append, anew=False)


@refused
def a_layer_more_in_the_list(run: Run) -> Result:
    return changed_on_the_way(run, append, anew=False, how="list")


@refused
def another_layer(run: Run) -> Result:
    return changed_on_the_way(run, replace, anew=False)


@refused
def another_layer_in_the_list(run: Run) -> Result:
    return changed_on_the_way(run, replace, anew=False, how="list")


@refused
def a_change_of_low_rank(run: Run) -> Result:
    return changed_on_the_way(run, low_rank, anew=False)


@refused
def optimizers_in_the_backward_pass(run: Run) -> Result:
    model = net()
    for param in model.parameters():
        own = torch.optim.SGD([param], 0.1)

        def update(_: Tensor, own: torch.optim.Optimizer = own) -> None:
            own.step()
            own.zero_grad()

        hook: Any = param.register_post_accumulate_grad_hook
        hook(update)
    return fit(run, model)


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
def test_a_usual_program_has_the_same_bits_on_one_and_on_several_devices(name: str, devices: int, pool: Pool) -> None:
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
