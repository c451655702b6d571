"""Which operators compute the rows of a batch with the same bits in one pass as in shards, on this machine.

    batch  --operator-->  outputs, gradients of the inputs        cut along the batch afterwards
    batch  --cut--> shards --operator, each by itself--> the same

If all of them did, a device could execute its shards in one pass and only sum the gradients of parameters shard by
shard. One that does not, for one size, is enough to forbid it: docs/design/parallel.md has what that means. Nothing is
timed. "equal" says that no difference was found at these sizes, not that there is none.

    python benchmarks/one_pass.py [--seeds 2]
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from measuring import finish, machine, say, table
from torch import Tensor, nn
from torch.nn import functional as F

# Samples of each shard: the default four of a batch of 256; of one that does not divide; of a small last one.
BATCHES = ((64, 64, 64, 64), (10, 9, 9, 9), (2, 1, 1, 1))

Operator = Callable[[Tensor], Tensor]
Make = Callable[[torch.dtype], Operator]  # with weights of this type, the same ones each time


@dataclass(frozen=True, slots=True)
class Case:
    """An operator at some sizes. `shape`: of a sample."""

    name: str
    size: str
    shape: tuple[int, ...]
    make: Make


def _layer(make: Callable[[], nn.Module]) -> Make:
    def made(dtype: torch.dtype) -> Operator:
        return make().to(dtype).eval()

    return made


def _recurrent(make: Callable[[], nn.Module]) -> Make:
    def made(dtype: torch.dtype) -> Operator:
        layer = make().to(dtype)
        return lambda x: layer(x)[0]

    return made


def _plain(operator: Operator) -> Make:
    return lambda dtype: operator


def _attention(x: Tensor) -> Tensor:
    """H: heads, T: places, D: features. Softmax written out, two batched products."""
    q_HTD, k_HTD, v_HTD = x.unbind(1)
    scores = q_HTD @ k_HTD.mT / math.sqrt(q_HTD.shape[-1])
    return scores.softmax(-1) @ v_HTD


def _fused_attention(x: Tensor) -> Tensor:
    q_HTD, k_HTD, v_HTD = x.unbind(1)
    return F.scaled_dot_product_attention(q_HTD, k_HTD, v_HTD)


def cases() -> Iterator[Case]:
    """All that are tried."""
    for before, after in ((7, 3), (64, 64), (256, 120), (784, 256), (784, 2976), (2976, 2976), (2976, 10)):
        size = f"{before} to {after}"
        yield Case("linear", size, (before,), _layer(lambda b=before, a=after: nn.Linear(b, a)))  # type: ignore[misc]
    for width in (64, 512):
        size = f"16 places, {width} to {4 * width}"
        yield Case("linear, by place", size, (16, width), _layer(lambda w=width: nn.Linear(w, 4 * w)))  # type: ignore[misc]
    for heads, places, features in ((4, 16, 32), (8, 128, 64)):
        size, shape = f"{heads} heads, {places} places, {features}", (3, heads, places, features)
        yield Case("matmul and softmax", size, shape, _plain(_attention))
        yield Case("scaled_dot_product_attention", size, shape, _plain(_fused_attention))
    convolutions: Sequence[tuple[str, tuple[int, ...], Callable[[], nn.Module]]] = (
        ("1 to 6, 5x5, 28x28", (1, 28, 28), lambda: nn.Conv2d(1, 6, 5, padding=2)),
        ("6 to 16, 5x5, 14x14", (6, 14, 14), lambda: nn.Conv2d(6, 16, 5)),
        ("3 to 64, 7x7 by 2, 64x64", (3, 64, 64), lambda: nn.Conv2d(3, 64, 7, stride=2, padding=3)),
        ("64 to 64, 3x3, 16x16", (64, 16, 16), lambda: nn.Conv2d(64, 64, 3, padding=1)),
        ("64 to 256, 1x1, 16x16", (64, 16, 16), lambda: nn.Conv2d(64, 256, 1)),
        ("512 to 512, 3x3, 4x4", (512, 4, 4), lambda: nn.Conv2d(512, 512, 3, padding=1)),
        ("64 by channel, 3x3, 16x16", (64, 16, 16), lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64)),
    )
    for size, image, make in convolutions:
        yield Case("conv2d", size, image, _layer(make))
    yield Case("conv1d", "32 to 64, 5, 100", (32, 100), _layer(lambda: nn.Conv1d(32, 64, 5)))
    yield Case("conv_transpose2d", "64 to 32, 4x4", (64, 8, 8), _layer(lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1)))
    yield Case("LSTM", "20 places, 64 to 128", (20, 64), _recurrent(lambda: nn.LSTM(64, 128, batch_first=True)))
    yield Case("GRU", "20 places, 64 to 128", (20, 64), _recurrent(lambda: nn.GRU(64, 128, batch_first=True)))
    rows: Sequence[tuple[str, Callable[[int], Make]]] = (
        ("layer_norm", lambda width: _layer(lambda: nn.LayerNorm(width))),
        ("softmax", lambda width: _plain(lambda x: x.softmax(-1))),
        ("log_softmax", lambda width: _plain(lambda x: x.log_softmax(-1))),
        ("sum over features", lambda width: _plain(lambda x: x.sum(-1))),
        ("cumsum over features", lambda width: _plain(lambda x: x.cumsum(-1))),
        ("relu, mul, add", lambda width: _plain(lambda x: x.relu() * x + 0.1)),
        ("exp", lambda width: _plain(torch.exp)),
        ("tanh", lambda width: _plain(torch.tanh)),
        ("sigmoid", lambda width: _plain(torch.sigmoid)),
        ("gelu", lambda width: _plain(F.gelu)),
        ("silu", lambda width: _plain(F.silu)),
        ("erf", lambda width: _plain(torch.erf)),
        ("sin, cos", lambda width: _plain(lambda x: x.sin() + x.cos())),
        ("sqrt, pow", lambda width: _plain(lambda x: (x * x + 1).sqrt() + x.abs().pow(1.7))),
    )
    for name, of_width in rows:
        for width in (7, 10, 512, 2976):
            yield Case(name, str(width), (width,), of_width(width))
    images: Sequence[tuple[str, Make]] = (
        ("group_norm", _layer(lambda: nn.GroupNorm(4, 16))),
        ("batch_norm, evaluated", _layer(lambda: nn.BatchNorm2d(16))),
        ("avg_pool2d", _plain(lambda x: F.avg_pool2d(x, 2))),
        ("max_pool2d", _plain(lambda x: F.max_pool2d(x, 3, 2, 1))),
        ("adaptive_avg_pool2d", _plain(lambda x: F.adaptive_avg_pool2d(x, 3))),
        ("interpolate, bilinear", _plain(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"))),
    )
    for name, make_image in images:
        for side in (14, 15):
            yield Case(name, f"16, {side}x{side}", (16, side, side), make_image)


def both(operator: Operator, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """What comes out of it, and the gradient of the input."""
    x = x.clone().requires_grad_()
    y = operator(x)
    y.backward(grad)  # type: ignore[no-untyped-call]  # torch has not annotated it
    assert x.grad is not None, "every operator here depends on its input"
    return y.detach(), x.grad


def differs(case: Case, sizes: Sequence[int], dtype: torch.dtype, seed: int) -> tuple[bool, bool]:
    """Whether outputs, and input gradients, are others in one pass than by shards."""
    torch.manual_seed(seed)
    operator = case.make(dtype)
    x = torch.randn(sum(sizes), *case.shape, dtype=dtype)
    with torch.no_grad():
        grad = torch.randn_like(operator(x))
    whole = both(operator, x, grad)
    # In memory of their own, as a run reads them.
    shards = zip(torch.split(x, list(sizes)), torch.split(grad, list(sizes)), strict=True)
    pieces = [both(operator, of_x.clone(), of_grad.clone()) for of_x, of_grad in shards]
    y, dx = (torch.cat(each) for each in zip(*pieces, strict=True))
    return not torch.equal(whole[0], y), not torch.equal(whole[1], dx)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine() | {"torch": torch.__version__, "instructions": torch.backends.cpu.get_cpu_capability()}
    found: dict[str, tuple[list[str], list[str], int]] = {}
    for case in cases():
        say(f"{case.name}, {case.size}")
        outputs, gradients, tried = found.get(case.name, ([], [], 0))
        for dtype in (torch.float32, torch.float64):
            for sizes in BATCHES:
                results = [differs(case, sizes, dtype, seed) for seed in range(args.seeds)]
                where = f"{case.size}; batch {sum(sizes)}, {str(dtype).removeprefix('torch.')}"
                outputs += [where] * any(y for y, _ in results)
                gradients += [where] * any(dx for _, dx in results)
                tried += 1
        found[case.name] = outputs, gradients, tried
    rows = [
        [name, _said(outputs, tried), _said(gradients, tried), (gradients + outputs + [""])[0]]
        for name, (outputs, gradients, tried) in found.items()
    ]
    header = ["operator", "outputs", "gradients of inputs", "for example"]
    finish("one_pass", [table(header, rows)], {"differs": found}, facts=facts)


def _said(where: Sequence[str], tried: int) -> str:
    return f"differ in {len(where)} of {tried}" if where else "equal"


if __name__ == "__main__":
    main()
