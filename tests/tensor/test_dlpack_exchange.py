"""What `convert` does on an accelerator, done in main memory: torch and JAX speak DLPack there, too.

Which way an array goes is in test_tensor_processes.py, and all of it on a real one in test_on_gpu.py.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from late import Late

from fanwise.tensor import convert, empty_aligned, engine_of, same_memory, to_numpy
from fanwise.tensor.adapters import DLPackExchange, exchanges

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


def part(engine: str) -> DLPackExchange:
    return cast(DLPackExchange, exchanges[engine])


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
def test_every_type_is_exact_there_and_back(copy: bool | None) -> None:
    for dtype in DTYPES:
        x = tensor(dtype)
        y = handed_on(x, copy)
        assert engine_of(y) == "jax" and bits(y) == bits(x), dtype
        z = handed_on(y, copy)
        assert engine_of(z) == "torch" and bits(z) == bits(x), dtype
        assert [same_memory(x, y), same_memory(y, z)] == 2 * [copy is False], dtype


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.T,
    "every second": lambda x: x[::2, 1::2],
    "broadcast": lambda x: x[:, None].expand(4, 3, 6),
    "conjugated": lambda x: x.conj(),
    "negated": lambda x: x.conj().imag,
    "not aligned": lambda x: x.reshape(-1)[1:],
}


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("transposed", "not C-contiguous"),
        ("every second", "not C-contiguous"),
        ("broadcast", "not C-contiguous"),
        ("conjugated", "conjugates"),
        ("negated", "negates"),
        ("not aligned", "8 bytes past a multiple of 64"),
    ],
)
def test_what_cannot_be_shared_says_why_and_is_copied_unasked(layout: str, why: str) -> None:
    x = LAYOUTS[layout](tensor("complex64"))
    with pytest.raises(ValueError, match=f"(?s)without a copy.*{why}.*copy=True"):
        handed_on(x, copy=False)
    assert bits(handed_on(x)) == bits(x.resolve_conj().resolve_neg())


@pytest.mark.parametrize("shape", [(), (0,), (0, 6), (3, 0), (1, 1)])
def test_small_shapes_go_too(shape: tuple[int, ...]) -> None:
    x = tensor(shape=shape)
    assert bits(handed_on(x)) == bits(x)
    assert bits(handed_on(convert(x, "jax"))) == bits(x)


def test_a_copy_is_not_changed_by_what_happens_to_its_source() -> None:
    x = tensor()
    before = bits(x)
    y = handed_on(x)
    x.fill_(7)
    assert bits(y) == before
    z = handed_on(y)
    y.delete()
    assert bits(z) == before
    z.fill_(7)  # it can be written to


def test_shared_memory_outlives_its_source() -> None:
    x = tensor(shape=(500, 500))
    before = bits(x)
    z = handed_on(handed_on(x, copy=False), copy=False)
    del x
    assert bits(z) == before


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
@pytest.mark.parametrize("copy", [None, False, True])
def test_nothing_is_narrowed_on_the_way_into_jax(dtype: str, copy: bool | None) -> None:
    with jax.enable_x64(False), pytest.raises(TypeError, match=f"of {dtype} in silence.*jax_enable_x64"):
        handed_on(tensor(dtype), copy)


def test_a_wide_array_of_jax_goes_also_when_64_bits_are_off_again() -> None:
    x = jnp.arange(3, dtype="float64")
    with jax.enable_x64(False):
        assert handed_on(x).dtype == torch.float64


def test_a_type_that_dlpack_or_the_engine_lacks_is_left_to_the_other_way() -> None:
    for dtype in ("int4", "float8_e3m4"):
        x = jnp.ones(3, dtype)
        assert handed_on(x) is None
        with pytest.raises(ValueError, match=r"without a copy.*torch does not take its memory"):
            handed_on(x, copy=False)


def test_what_convert_refuses_is_refused() -> None:
    for x, says in (
        (torch.ones(2, requires_grad=True), "stop_gradient"),
        (torch.eye(2).to_sparse(), "to_dense"),
        (torch.zeros(2, dtype=torch.int32).view(torch.complex32), "no element type"),
    ):
        with pytest.raises(TypeError, match=says):
            handed_on(x)


def test_inside_of_torch_func_nothing_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch.func sets it

    def send(x: torch.Tensor) -> torch.Tensor:
        assert handed_on(x.detach()) is None
        return x.sum()

    torch.vmap(send)(torch.ones(2, 3))
    torch.func.grad(send)(torch.ones(3))


def test_inside_of_a_traced_function_it_is_a_constant() -> None:
    x = tensor()

    def jitted(y: Any) -> Any:
        assert bits(handed_on(x)) == bits(x)
        return y + handed_on(x)

    assert bits(jax.jit(jitted)(jnp.zeros((), "float32"))) == bits(x)


def test_what_is_in_main_memory_is_on_no_accelerator() -> None:
    deleted = jnp.zeros(3)
    deleted.delete()
    for x in (torch.zeros(3), jnp.zeros(3), deleted, jax.random.key(0)):
        assert part(engine_of(x)).accelerator_of(x) is None
    jax.jit(lambda x: x if part("jax").accelerator_of(x) is None else 1 / 0)(1.0)


def test_a_tensor_elsewhere_says_where() -> None:
    assert part("torch").accelerator_of(torch.zeros(3, device="meta")) == "meta:0"
    with pytest.raises(TypeError, match="has no data"):
        convert(torch.zeros(3, device="meta"), "jax")
