"""A program: cases of arrays on a real GPU, by name; it prints which hold, and fails with the first that does not.

    python on_gpu.py cuda:0 [NAME ...]      python on_gpu.py cpu    shows on a CPU that all of it works

In a process of its own, because one that has used CUDA keeps it.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fanwise.tensor import (
    Key,
    convert,
    device_of,
    devices,
    from_wire,
    normal,
    same_memory,
    to_device,
    to_numpy,
    to_wire,
)
from fanwise.tensor.wire.header import read_header

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from late import Late  # isort: skip

jax, jnp = Late("jax"), Late("jax.numpy")
_cuda: Any = torch.cuda  # Any: torch has not annotated its streams
DTYPES = "bool uint8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 float8_e4m3fn".split()
DEVICE = sys.argv[1]
WIDTH = 256 if DEVICE == "cpu" else 4096  # of the matrices of which the products keep the device busy


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
    here = normal(key, (1000,), engine="torch")
    with torch.device(DEVICE):
        there = normal(key, (1000,), engine="torch")
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
    with wide():
        for dtype in DTYPES:
            x = on_device(dtype)
            y = convert(x, "jax")
            assert str(y.dtype) == dtype and y.shape == (5, 6)
            assert np.array_equal(to_numpy(y), to_numpy(x)), dtype
            assert same_bits(convert(y, "torch", device=DEVICE), x), dtype
            assert device_of(convert(y, "torch", device="cpu")) == "cpu"
            if DEVICE in devices("jax"):
                assert device_of(y) == device_of(convert(x, "jax", device=DEVICE)) == DEVICE, dtype
                assert device_of(convert(y, "torch")) == DEVICE, dtype


def jax_takes_any_layout() -> None:
    x = on_device("complex64", (4, 6, 5))
    for each in (x.transpose(0, 2), x[::2, 1:, ::3], x[1:, :1].expand(3, 6, 5), x[0, 0, 1:], x[:0], x.conj().imag):
        y = convert(each, "jax")
        assert np.array_equal(to_numpy(y), to_numpy(each)), (each.shape, each.stride())
        assert np.array_equal(to_numpy(y + y), to_numpy(each + each)), "JAX computes with it as with its own"
        assert same_bits(convert(y, "torch", device=DEVICE), each.resolve_conj().resolve_neg())


def jax_shares_the_memory_when_asked() -> None:
    if DEVICE not in devices("jax"):
        return
    x = on_device("float32", (64, 64))
    y = convert(x, "jax", copy=False)
    z = convert(y, "torch", copy=False)
    assert same_memory(x, y) and same_memory(y, z) and device_of(y) == device_of(z) == DEVICE
    z[0] = 7
    wanted = x.cpu().numpy()  # waits, too
    assert np.array_equal(to_numpy(y), wanted)
    del x, z
    torch.full((64, 64), -1.0, device=DEVICE)
    assert np.array_equal(to_numpy(y.copy()), wanted), "it outlives its source"
    w = on_device("complex64", (64, 64))
    for each, why in (
        (w.T, "not C-contiguous"),
        (w[::2], "not C-contiguous"),
        (w.conj(), "conjugates"),
        (w[0, 1:], "8 bytes past"),
    ):
        with pytest.raises(ValueError, match=why):
            convert(each, "jax", copy=False)
    if DEVICE != "cpu":
        with pytest.raises(ValueError, match=f"its memory is on {DEVICE}"):
            convert(w, "jax", copy=False, device="cpu")


def jax_refuses_what_it_would_change() -> None:
    for dtype in ("float64", "int64"):
        for copy in (None, True, False):
            with pytest.raises(TypeError, match=f"of {dtype}\\."):
                convert(on_device(dtype), "jax", copy)
    with pytest.raises(TypeError, match="stop_gradient"):
        convert(on_device("float32").requires_grad_(), "jax")
    with pytest.raises(TypeError, match="to_dense"):
        convert(torch.eye(3, device=DEVICE).to_sparse(), "jax")


def jax_keeps_what_torch_writes_over() -> None:
    """Much is queued before x, and x is written to, freed and given out again at once."""
    for stream in _streams():
        with stream:
            layouts: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda x: x, lambda x: x.T, lambda x: x[1:]]
            for layout in layouts:
                x = torch.rand(WIDTH, WIDTH, device=DEVICE)
                for _ in range(20):
                    x = (x @ x).cos()
                wanted = x.clone()
                y = convert(layout(x), "jax")
                x.fill_(-1)
                del x
                others = [torch.full((WIDTH, WIDTH), -2.0, device=DEVICE) for _ in range(4)]
                assert np.array_equal(to_numpy(y), to_numpy(layout(wanted)))
                del others


def jax_deletes_what_torch_has_taken() -> None:
    """Much is queued before y, and y is deleted and its memory given out again at once."""
    for stream in _streams():
        with stream:
            y = convert(torch.rand(WIDTH, WIDTH, device=DEVICE), "jax")
            for _ in range(20):
                y = jnp.cos(y @ y)
            wanted = y.copy()
            z = convert(y, "torch", device=DEVICE)
            y.delete()
            others = [jnp.full((WIDTH, WIDTH), -2.0) + number for number in range(4)]
            z *= 2  # torch owns it
            assert np.array_equal(to_numpy(z), 2 * to_numpy(wanted))
            del others


def wide() -> Any:
    """JAX with 64 bits, in a block."""
    return jax.enable_x64(True)


def _streams() -> list[Any]:
    """The usual stream, and one of torch's own; each to be entered once."""
    return [nullcontext()] if DEVICE == "cpu" else [nullcontext(), torch.cuda.stream(_cuda.Stream(DEVICE))]


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
        jax_takes_any_layout,
        jax_shares_the_memory_when_asked,
        jax_refuses_what_it_would_change,
        jax_keeps_what_torch_writes_over,
        jax_deletes_what_torch_has_taken,
    )
}


if __name__ == "__main__":
    for name in sys.argv[2:] or CASES:
        CASES[name]()
        print(name, flush=True)
