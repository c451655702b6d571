"""Exchange between engines: exact in all pairs, types and layouts; shared where nobody can notice, or asked.

Tests that need their own process are in test_tensor_processes.py.
"""

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from aligned import empty_aligned
from hypothesis import given
from hypothesis import strategies as st
from late import Late

from fanwise.tensor import aligned_buffer, convert, engine_of, from_numpy, same_memory, to_numpy, use
from fanwise.tensor.with_numpy.exchange import reason_unaligned

jax, jnp, tf = Late("jax"), Late("jax.numpy"), Late("tensorflow")
pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

# Any throughout: arrays of any engine.
ENGINES = ["numpy", "torch", "jax", "tensorflow"]
PAIRS = [(a, b) for a in ENGINES for b in ENGINES if a != b]
COMMON = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
RAW = "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split()


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """JAX with 64 bits, here only."""
    with jax.enable_x64(True):
        yield


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def base(dtype: str, shape: tuple[int, ...] = (4, 6)) -> Any:
    """Every other bit pattern of the type; 64-byte aligned."""
    kind = dtype_of(dtype)
    x = empty_aligned(shape, dtype)
    words = x.reshape(-1).view(np.uint8)
    words[:] = np.arange(1, words.size + 1) * 37 % (2 if dtype == "bool" else 251)
    assert x.dtype == kind
    return x


def misaligned(x: Any) -> Any:
    memory = np.zeros(x.nbytes + 64 + x.itemsize, np.uint8)
    start = -memory.ctypes.data % 64 + x.itemsize
    y = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


def read_only(x: Any) -> Any:
    y = x.copy()
    y.flags.writeable = False
    return y


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.T,
    "fortran": np.asfortranarray,
    "every second": lambda x: x[::2, 1::2],
    "broadcast": lambda x: np.broadcast_to(x[:, None], (4, 3, 6)),
    "negative": lambda x: x[::-1, ::-2],
    "misaligned": misaligned,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "read-only": read_only,
    "0-d": lambda x: x[1:2, 1:2].reshape(()),
    "empty": lambda x: x[:0],
}


def words_of(x: Any) -> tuple[Any, str, bytes]:
    """Shape, type and bits of a numpy array."""
    native = x.astype(x.dtype.newbyteorder("=")) if not x.dtype.isnative else x
    return native.shape, native.dtype.name, native.tobytes()


def in_engine(engine: str, x: Any, layout: str) -> Any:
    """An array of an engine with the values of x; in its memory as x is, where the engine has such memory."""
    if engine == "torch" and layout not in ("negative", "big-endian", "read-only"):
        return convert(x, "torch", copy=None if layout == "broadcast" else False)
    return convert(x, engine)


def bits(x: Any) -> tuple[Any, str, bytes]:
    return words_of(to_numpy(x))


@pytest.mark.parametrize("source", ENGINES)
def test_every_conversion_is_exact(source: str) -> None:
    count = 0
    for dtype, (layout, lay) in itertools.product(COMMON + RAW, LAYOUTS.items()):
        original = lay(base(dtype))
        x = original if source == "numpy" else in_engine(source, original, layout)
        for target, copy in itertools.product(ENGINES, (None, True)):
            y = convert(x, target, copy)
            assert engine_of(y) == target
            assert bits(y) == words_of(original), (dtype, layout, source, target, copy)
            count += 1
    assert count == 19 * 11 * 8  # 6688 in all


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float4_e2m1fn", "float8_e3m4", "float8_e8m0fnu"])
def test_types_that_only_numpy_and_jax_have_are_exact(dtype: str) -> None:
    numbers = np.arange(2).astype(dtype_of(dtype)).repeat(50)
    for copy in (None, True):
        x = convert(numbers, "jax", copy)
        assert x.dtype == dtype and bits(convert(x, "numpy", copy)) == words_of(numbers)


@given(
    dtype=st.sampled_from(COMMON + RAW),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    order=st.randoms(use_true_random=False),
    way=st.lists(st.tuples(st.sampled_from(ENGINES), st.sampled_from([None, True])), min_size=1, max_size=5),
)
def test_a_round_trip_over_any_engines_is_exact(
    dtype: str, shape: tuple[int, ...], order: Any, way: list[tuple[str, bool | None]]
) -> None:
    axes = list(range(len(shape)))
    order.shuffle(axes)
    original = base(dtype, shape).transpose(axes)[tuple(slice(None, None, order.choice([1, -1, 2])) for _ in axes)]
    x = original
    for engine, copy in way:
        x = convert(x, engine, copy)
    assert bits(x) == words_of(original)


# -- shared memory ------------------------------------------------------------------------------------------------


def plain(engine: str, dtype: str = "float32") -> Any:
    return convert(base(dtype), engine, copy=False)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_all_pairs_share_aligned_memory_of_all_types_when_asked(source: str, target: str) -> None:
    for dtype in (*COMMON, "bfloat16"):
        x = plain(source, dtype)
        y = convert(x, target, copy=False)
        assert same_memory(x, y), dtype
        assert bits(y) == words_of(base(dtype)), dtype


# The table at the top of exchange.py.
SHARED_UNASKED = {("numpy", "torch"), ("torch", "numpy"), ("jax", "tensorflow"), ("tensorflow", "jax")}
SHARED_UNASKED |= {("jax", "numpy"), ("tensorflow", "numpy")}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_array_of_the_same_engine_is_returned_unless_a_copy_is_asked_for(engine: str) -> None:
    x = plain(engine)
    assert all(convert(x, engine, copy, device) is x for copy, device in ((None, None), (False, None), (None, "cpu")))
    for target in ENGINES:
        y = convert(x, target, copy=True)
        assert not same_memory(x, y) and bits(y) == bits(x)
    copy = to_numpy(x, copy=True)
    copy[0] = 1
    assert copy.ctypes.data % 64 == 0


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_memory_is_shared_by_default_if_nobody_can_notice(source: str, target: str) -> None:
    x = plain(source)
    assert same_memory(x, convert(x, target)) is ((source, target) in SHARED_UNASKED)


@pytest.mark.parametrize("target", ["jax", "tensorflow"])
@pytest.mark.parametrize("source", ["numpy", "torch"])
def test_writable_memory_does_not_change_a_constant(source: str, target: str) -> None:
    x = plain(source)
    x[...] = 1
    y = convert(x, target)
    x[...] = 2
    assert to_numpy(y).tolist() == [[1.0] * 6] * 4


@pytest.mark.parametrize("source", ["jax", "tensorflow"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool"])
def test_numpy_sees_a_constant_and_cannot_change_it(source: str, dtype: str) -> None:
    view = to_numpy(convert(base(dtype), source))
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0


def test_a_read_only_array_is_copied_for_torch_and_never_shared() -> None:
    x = read_only(np.ones(3))
    convert(x, "torch")[0] = 5
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only, and torch has no read-only tensors"):
        convert(x, "torch", copy=False)


@pytest.mark.parametrize("past", [4, 16, 32, 60])
def test_only_aligned_contiguous_memory_is_adopted(past: int) -> None:
    """An engine that adopts other memory crashes later, or not, as its kernels go: so this asks before it does."""
    memory = aligned_buffer(4 * 4096 + 64)
    aligned = np.frombuffer(memory, np.float32, 4096)
    shifted = np.frombuffer(memory, np.float32, 4096, offset=past)
    shifted[:] = np.arange(4096)
    assert not reason_unaligned(aligned)
    assert reason_unaligned(shifted) and reason_unaligned(aligned[::2])
    for engine in ENGINES:
        assert to_numpy(convert(shifted, engine)).tolist() == shifted.tolist()


def test_a_variable_is_converted_by_its_current_value() -> None:
    variable = tf.Variable([1.0, 2.0])
    views = [convert(variable, engine) for engine in ("numpy", "jax", "torch")]
    variable.assign_add([1.0, 1.0])
    variable[0].assign(9.0)
    variable.scatter_nd_update([[1]], [9.0])
    assert [to_numpy(view).tolist() for view in views] == [[1, 2]] * 3
    assert convert(variable, "tensorflow") is variable


def test_engines_that_write_in_place_do_not_change_a_shared_constant() -> None:
    constant, x = tf.zeros(1000), jnp.arange(4.0)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    assert add(convert(constant, "jax")).tolist() == [1] * 1000 and not constant.numpy().any()
    variable = tf.Variable(convert(x, "tensorflow"))
    variable.assign_add(tf.ones(4, tf.float64))
    variable.scatter_nd_update([[1]], tf.constant([9.0], tf.float64))
    convert(x, "torch").fill_(9)
    convert(to_numpy(x), "torch").fill_(9)
    view = to_numpy(x)
    assert add(x).tolist() == [1, 2, 3, 4] and view.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("way", list(itertools.permutations(ENGINES)), ids="-".join)
def test_shared_memory_outlives_its_sources(way: tuple[str, ...]) -> None:
    x = plain(way[0])
    expected = words_of(base("float32"))
    for engine in (*way[1:], *way):
        writes = engine == "torch" and isinstance(x, np.ndarray) and not x.flags.writeable
        y = convert(x, engine, copy=None if writes else False)
        del x
        gc.collect(0)
        [plain(engine) for _ in range(3)]  # takes the memory, if it was freed
        x = y
    assert bits(x) == expected


def test_same_memory_means_overlapping_memory() -> None:
    x = np.zeros((4, 4))
    t = convert(x, "torch")
    assert same_memory(x[:, 0], t)
    assert not same_memory(x[:2], t[2:])
    assert not same_memory(x[:0], t)
    leaf = torch.ones(2, requires_grad=True)
    assert same_memory(leaf, leaf.detach())
    with pytest.raises(ValueError, match="conjugates"):
        same_memory(torch.ones(2, dtype=torch.complex64).conj(), t)
    with pytest.raises(TypeError, match="has no data"):
        same_memory(torch.ones(2, device="meta"), t)


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "target", "why"),
    [
        (lambda: base("float32")[:, ::-1], "torch", "negative strides"),
        (lambda: np.zeros(3, [("a", "i1"), ("b", "f4")])["b"], "torch", "multiple of|broken elements"),
        (lambda: np.zeros(3, ">f4"), "torch", "another order"),
        (lambda: np.zeros(3, ">f4"), "jax", "another order"),
        (lambda: base("float32").T, "jax", "not C-contiguous"),
        (lambda: base("float32").T, "tensorflow", "not C-contiguous"),
        (lambda: misaligned(base("float32")), "jax", "4 bytes past a multiple of 64"),
        (lambda: misaligned(base("float32")), "tensorflow", "4 bytes past a multiple of 64"),
        (lambda: torch.from_numpy(base("float32")).reshape(-1)[1:], "tensorflow", "4 bytes past a multiple of 64"),
        (lambda: np.ones(3, ml_dtypes.float8_e5m2), "tensorflow", "copies arrays of this type"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "numpy", "conjugates"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "jax", "negates"),
        (lambda: jnp.ones(3, "int4"), "numpy", "not one piece"),
    ],
)
def test_unshareable_memory_is_copied_or_refused_with_the_reason(
    make: Callable[[], Any], target: str, why: str
) -> None:
    x = make()
    with pytest.raises(ValueError, match=f"(?s)without a copy.*({why}).*copy=True"):
        convert(x, target, copy=False)
    assert (
        to_numpy(convert(x, target)).tolist() == (x.resolve_conj().resolve_neg() if hasattr(x, "neg") else x).tolist()
    )


class Doubled(torch.Tensor):
    """A subclass without a meaning of its own."""


class Wrapped(torch.Tensor):
    """A subclass that gives operations another meaning."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch's documentation has it
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError("not asked for")


def sparse_torch() -> Any:
    return torch.eye(2).to_sparse()


def deleted_jax() -> Any:
    x = jnp.zeros(2)
    x.delete()
    return x


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "requires grad": (lambda: torch.ones(2, requires_grad=True), r"x.detach\(\).*stop_gradient"),
    "a parameter": (lambda: torch.nn.Parameter(torch.ones(2)), r"x.detach\(\)"),
    "bfloat16 with grad": (lambda: torch.ones(2, dtype=torch.bfloat16, requires_grad=True), r"x.detach\(\)"),
    "sparse": (sparse_torch, "to_dense"),
    "sparse csr": (lambda: torch.eye(2).to_sparse_csr(), "to_dense"),
    "mkldnn": (lambda: torch.eye(2).to_mkldnn(), "to_dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "dequantize"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "unbind"),
    "meta": (lambda: torch.ones(2, device="meta"), "has no data"),
    "uninitialized": (lambda: torch.nn.UninitializedParameter(), "no data yet"),
    "another meaning": (lambda: torch.ones(2).as_subclass(Wrapped), "changes operations"),
    "masked": (lambda: np.ma.masked_array([1, 2], [True, False]), "x.mask"),
    "strings": (lambda: np.array(["a"]), "stand for the strings"),
    "objects": (lambda: np.array([None]), "astype"),
    "records": (lambda: np.zeros(1, [("a", "f4")]), "each field"),
    "dates": (lambda: np.zeros(1, "M8[s]"), "int64"),
    "complex32": (lambda: torch.zeros(2, dtype=torch.int32).view(torch.complex32), "has no element type.*complex64"),
    "deleted": (deleted_jax, "donated"),
    "a list": (lambda: [1.0], "expected an array"),
    "a random key": (lambda: jax.random.key(0), "key_data"),
    "tf strings": (lambda: tf.constant(["a"]), "string has no form"),
    "tf quantized": (
        lambda: tf.quantization.quantize(tf.constant([1.0]), 0.0, 2.0, tf.qint8)[0],
        "tf.quantization.dequantize",
    ),
}


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("name", REFUSED)
def test_arrays_without_plain_memory_are_refused_with_a_remedy(name: str) -> None:
    make, says = REFUSED[name]
    x = make()
    for target in ("numpy", "torch", "jax"):
        if name == "a list" or engine_of(x) != target:
            with pytest.raises(ValueError if name == "deleted" else TypeError, match=f"(?s){says}"):
                convert(x, target)


def test_an_error_lists_the_known_engines_and_devices() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'torch'|torch, jax, tensorflow, numpy"):
        convert(np.zeros(2), "torhc")
    with pytest.raises(ValueError, match="no device 'cuda:99' in this process; it has cpu"):
        convert(np.zeros(2), "jax", device="cuda:99")
    with pytest.raises(ValueError, match="no device 'cuda:0'"):
        convert(np.zeros(2), "numpy", device="cuda:0")


@pytest.mark.parametrize(
    ("dtype", "target"),
    [
        ("longdouble", "torch"),
        ("longdouble", "jax"),
        ("longdouble", "tensorflow"),
        ("float8_e3m4", "torch"),
        ("float8_e3m4", "tensorflow"),
        ("int4", "torch"),
        ("V3", "jax"),
    ],
)
def test_an_error_names_the_type_that_the_engine_lacks(dtype: str, target: str) -> None:
    with pytest.raises(TypeError, match=r"has no element type .* x.astype"):
        convert(np.zeros(2, dtype_of(dtype)), target)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
@pytest.mark.parametrize("source", ["numpy", "torch", "tensorflow"])
@pytest.mark.parametrize("copy", [None, False, True])
def test_arrays_are_not_narrowed_for_jax(dtype: str, source: str, copy: bool | None) -> None:
    x = plain(source, dtype)
    with jax.enable_x64(False), pytest.raises(TypeError, match=f"of {dtype}.*jax_enable_x64.*astype"):
        convert(x, "jax", copy)
    assert convert(x, "jax", copy).dtype == dtype


def test_a_64_bit_array_of_jax_is_exported_after_x64_is_off() -> None:
    x = jnp.arange(5000, dtype="float64")
    with jax.enable_x64(False):
        y = convert(x, "jax", copy=True)
        assert (y.dtype, same_memory(x, y)) == ("float64", False)
        assert to_numpy(y).tolist() == list(range(5000))
        assert to_numpy(convert(x, "tensorflow")).dtype == np.float64
        with pytest.raises(TypeError, match="jax_enable_x64"):
            convert(convert(x, "tensorflow"), "jax")


def test_from_numpy_takes_numpy_arrays_only() -> None:
    with use("jax"):
        assert engine_of(from_numpy(np.zeros(2))) == "jax"
    assert engine_of(from_numpy(np.zeros(2), "tensorflow")) == "tensorflow"
    with pytest.raises(TypeError, match="got one of torch"):
        from_numpy(torch.zeros(2), "jax")  # type: ignore[arg-type]  # that is what is tested


def test_scalars_subclasses_and_parameters_are_arrays() -> None:
    assert type(to_numpy(np.float32(3))) is np.ndarray
    with pytest.raises(ValueError, match="A number of numpy, of type float32, cannot be converted without a copy"):
        convert(np.float32(2.0), "jax", copy=False)
    x = torch.ones(2, requires_grad=True)
    convert(x, "torch", copy=True).sum().backward()  # a copy within torch keeps its history
    assert x.grad is not None and x.grad.tolist() == [1, 1]
    assert convert(np.float32(3), "torch").item() == 3
    assert to_numpy(torch.ones(2).as_subclass(Doubled)).tolist() == [1, 1]
    assert to_numpy(torch.nn.Parameter(torch.ones(2), requires_grad=False)).tolist() == [1, 1]
    assert convert(np.zeros(2).view(np.recarray), "jax").shape == (2,)
    for code in "lLqQ":  # several names for one type
        for engine in ENGINES:
            assert to_numpy(convert(np.arange(3, dtype=code), engine)).tolist() == [0, 1, 2]


# -- inside of traced functions ------------------------------------------------------------------------------------


def test_traced_values_are_refused_and_constants_accepted() -> None:
    constant = np.arange(3.0)

    def jitted(x: Any) -> Any:
        with pytest.raises(TypeError, match=r"traces a function.*pure_callback"):
            convert(x, "numpy")
        assert convert(x, "jax") is x
        return x + convert(constant, "jax")

    assert jax.jit(jitted)(jnp.ones(3)).tolist() == [1, 2, 3]
    assert jax.grad(lambda x: jitted(x).sum())(jnp.ones(3)).tolist() == [1, 1, 1]

    def traced(x: Any) -> Any:
        with pytest.raises(TypeError, match=r"traces a function.*py_function"):
            convert(x, "numpy")
        assert convert(x, "tensorflow") is x
        half = convert(torch.ones(3, dtype=torch.bfloat16), "tensorflow")
        return x + convert(constant, "tensorflow") + tf.cast(half, tf.float64)

    assert tf.function(traced, autograph=False)(tf.ones(3, tf.float64)).numpy().tolist() == [2, 3, 4]


def test_a_tensor_inside_torch_func_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch.func sets it

    def send(x: torch.Tensor, says: str) -> torch.Tensor:
        with pytest.raises(TypeError, match=says):
            convert(x, "numpy")
        return convert(x, "torch").sum()  # type: ignore[no-any-return]  # a tensor

    torch.vmap(lambda x: send(x, "outside the transformed function"))(torch.ones(2, 3))
    torch.func.grad(lambda x: send(x, r"x.detach\(\)"))(torch.ones(3))
