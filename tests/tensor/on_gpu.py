"""A program: cases of arrays on a real GPU, by name; it prints which hold, and fails with the first that does not.

    python on_gpu.py cuda:0 [NAME ...]      python on_gpu.py cpu    shows on a CPU that all of it works

In a process of its own, because one that has used CUDA keeps it.
"""

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fanwise.tensor import (
    Key,
    convert,
    device_of,
    devices,
    from_wire,
    integers,
    normal,
    read_header,
    to_device,
    to_numpy,
    to_wire,
)

DTYPES = "bool uint8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 float8_e4m3fn".split()
DEVICE = sys.argv[1]


def on_device(dtype: str, shape: tuple[int, ...] = (5, 6)) -> torch.Tensor:
    x = torch.randint(0, 2 if dtype == "bool" else 100, shape, generator=torch.Generator().manual_seed(1))
    return x.to(getattr(torch, dtype)).to(DEVICE)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By their bytes, wherever they lie."""
    flat = [x.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)


def goes_to_numpy_and_back() -> None:
    for dtype in DTYPES:
        x = on_device(dtype)
        there = convert(x, "numpy")
        assert isinstance(there, np.ndarray) and there.shape == (5, 6), dtype
        back = convert(there, "torch", device=DEVICE)
        assert str(back.device) == DEVICE and same_bits(back, x), dtype


def any_layout_goes() -> None:
    x = on_device("float32", (4, 6, 5))
    for each in (x.transpose(0, 2), x[::2, 1:, ::3], x[1:, :1].expand(3, 6, 5), x[0, 0, 0], x[:0], x.real.conj()):
        assert np.array_equal(to_numpy(each), each.cpu().numpy()), (each.shape, each.stride())
    y = on_device("complex64").conj()
    assert np.array_equal(to_numpy(y), y.resolve_conj().cpu().numpy())


def a_copy_is_a_copy() -> None:
    x = on_device("float32")
    before = x.cpu().clone()
    to_numpy(x, copy=True)[:] = -1
    assert torch.equal(x.cpu(), before)
    if DEVICE != "cpu":
        with pytest.raises(ValueError, match="cuda"):
            convert(x, "numpy", copy=False)


def devices_are_named_and_moved_between() -> None:
    assert DEVICE in devices("torch") and "cpu" in devices("torch")
    x = torch.ones(3, requires_grad=True)
    y = to_device(x, DEVICE)
    assert device_of(y) == DEVICE and to_device(y, DEVICE) is y
    (y * torch.arange(3.0, device=DEVICE)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0, 2.0]
    assert device_of(to_device(y, "cpu")) == "cpu"


def exact_numbers_are_those_of_the_cpu() -> None:
    key = Key(7)
    here, there = (normal(key, (1000,), engine="torch", device=device) for device in ("cpu", DEVICE))
    assert device_of(there) == DEVICE and same_bits(here, there)
    here, there = (integers(key, (99,), 0, 10, engine="torch", device=device) for device in ("cpu", DEVICE))
    assert device_of(there) == DEVICE and same_bits(here, there)


def the_wire_carries_it() -> None:
    x = torch.arange(6.0, device=DEVICE).reshape(2, 3).T.requires_grad_()
    header, buffers = to_wire(x)
    assert read_header(header).device == DEVICE
    for device in (None, DEVICE):
        y = from_wire(header, buffers, device=device)
        assert (str(y.device), y.requires_grad, y.is_leaf) == (device or "cpu", True, True)
        assert same_bits(y, x)


def jax_takes_it_and_gives_it_back() -> None:
    """Whether JAX has a GPU or not: the values, and where they were told to be."""
    for dtype in ("bool", "int32", "bfloat16", "float32", "complex64"):
        x = on_device(dtype)
        y = convert(x, "jax")
        assert str(y.dtype) == dtype and y.shape == (5, 6)
        assert np.array_equal(to_numpy(y), to_numpy(x)), dtype
        assert same_bits(convert(y, "torch", device=DEVICE), x), dtype
    if DEVICE in devices("jax"):
        assert device_of(convert(on_device("float32"), "jax", device=DEVICE)) == DEVICE


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        goes_to_numpy_and_back,
        any_layout_goes,
        a_copy_is_a_copy,
        devices_are_named_and_moved_between,
        exact_numbers_are_those_of_the_cpu,
        the_wire_carries_it,
        jax_takes_it_and_gives_it_back,
    )
}


if __name__ == "__main__":
    for name in sys.argv[2:] or CASES:
        CASES[name]()
        print(name, flush=True)
