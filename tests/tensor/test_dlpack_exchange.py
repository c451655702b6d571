"""Exchange by DLPack between torch and JAX, in main memory instead of on an accelerator.

test_tensor_processes.py tests the choice of the path, and test_on_gpu.py a real accelerator.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from aligned import empty_aligned
from late import Late

from fanwise.tensor import convert, engine_of, same_memory, to_numpy
from fanwise.tensor.adapters import exchanges

jax, jnp = Late("jax"), Late("jax.numpy")
pytestmark = pytest.mark.usefixtures("jax_is_loaded")

# Any throughout: arrays of both engines, and what lends their memory.
OTHER = {"torch": "jax", "jax": "torch"}
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16"),
    *("float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """JAX with 64 bits, here only."""
    with jax.enable_x64(True):
        yield


def part(engine: str) -> Any:
    return exchanges[engine]


def handed_on(x: Any, copy: bool | None = None) -> Any:
    source = engine_of(x)
    return part(OTHER[source]).from_dlpack(part(source).to_dlpack(x, copy), copy)


def tensor(dtype: str = "float32", shape: tuple[int, ...] = (4, 6)) -> Any:
    memory = empty_aligned(shape, dtype)
    memory.reshape(-1).view(np.uint8)[:] = np.arange(memory.nbytes) * 37 % (2 if dtype == "bool" else 113)
    return convert(memory, "torch", copy=False)


def bits(x: Any) -> tuple[tuple[int, ...], str, bytes]:
    array = to_numpy(x)
    return array.shape, array.dtype.name, array.tobytes()


@pytest.mark.parametrize("copy", [None, False, True])
def test_a_round_trip_of_every_type_is_exact(copy: bool | None) -> None:
    for dtype in DTYPES:
        x = tensor(dtype)
        y = handed_on(x, copy)
        assert engine_of(y) == "jax" and bits(y) == bits(x), dtype
        z = handed_on(y, copy)
        assert engine_of(z) == "torch" and bits(z) == bits(x), dtype
        assert [same_memory(x, y), same_memory(y, z)] == 2 * [copy is False], dtype


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (lambda x: x.T, "not C-contiguous"),
        (lambda x: x[::2, 1::2], "not C-contiguous"),
        (lambda x: x[:, None].expand(4, 3, 6), "not C-contiguous"),
        (lambda x: x.conj(), "conjugates"),
        (lambda x: x.conj().imag, "negates"),
        (lambda x: x.reshape(-1)[1:], "8 bytes past a multiple of 64"),
    ],
)
def test_unshareable_memory_is_copied_or_refused_with_the_reason(layout: Callable[[Any], Any], why: str) -> None:
    x = layout(tensor("complex64"))
    with pytest.raises(ValueError, match=f"(?s)without a copy.*{why}.*copy=True"):
        handed_on(x, copy=False)
    assert bits(handed_on(x)) == bits(x.resolve_conj().resolve_neg())


def test_a_copy_does_not_change_with_its_source() -> None:
    x = tensor()
    before = bits(x)
    y = handed_on(x)
    x.fill_(7)
    assert bits(y) == before
    z = handed_on(y)
    y.delete()
    assert bits(z) == before
    z.fill_(7)  # it can be written to
    for shape in ((), (0,), (0, 6), (1, 1)):
        x = tensor(shape=shape)
        assert bits(handed_on(x)) == bits(handed_on(convert(x, "jax"))) == bits(x)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
@pytest.mark.parametrize("copy", [None, False, True])
def test_arrays_are_not_narrowed_for_jax(dtype: str, copy: bool | None) -> None:
    with jax.enable_x64(False), pytest.raises(TypeError, match=f"of {dtype}.*jax_enable_x64"):
        handed_on(tensor(dtype), copy)


def test_a_type_unknown_to_dlpack_goes_through_main_memory() -> None:
    for dtype in ("int4", "float8_e3m4"):
        x = jnp.ones(3, dtype)
        assert handed_on(x) is None
        with pytest.raises(ValueError, match=r"without a copy.*torch refused its memory"):
            handed_on(x, copy=False)


def test_tensors_inside_torch_func_are_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch.func sets it

    def send(x: torch.Tensor) -> torch.Tensor:
        assert handed_on(x.detach()) is None
        return x.sum()

    torch.vmap(send)(torch.ones(2, 3))
    torch.func.grad(send)(torch.ones(3))


def test_arrays_in_main_memory_have_no_accelerator() -> None:
    deleted = jnp.zeros(3)
    deleted.delete()
    for x in (torch.zeros(3), jnp.zeros(3), deleted, jax.random.key(0)):
        assert part(engine_of(x)).accelerator_of(x) is None
    jax.jit(lambda x: x if part("jax").accelerator_of(x) is None else 1 / 0)(1.0)
    assert part("torch").accelerator_of(torch.zeros(3, device="meta")) == "meta:0"
