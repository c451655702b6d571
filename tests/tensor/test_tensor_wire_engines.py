"""The wire format for JAX and TensorFlow, and from each engine to each: bits, adopted memory, refusals."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from aligned import empty_aligned
from hypothesis import given
from hypothesis import strategies as st
from late import Late

from fanwise.base.errors import NotSendableError, WireError
from fanwise.links import codec
from fanwise.tensor import (
    aligned_buffer,
    convert,
    engine_of,
    from_wire,
    is_array,
    same_memory,
    to_numpy,
    to_wire,
)
from fanwise.tensor.wire import array_reducers
from fanwise.tensor.wire.header import read_header

jax, jnp, tf = Late("jax"), Late("jax.numpy"), Late("tensorflow")
pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

# Any throughout: arrays of any engine.
ENGINES = ["numpy", "torch", "jax", "tensorflow"]
COMMON = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
RAW = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz".split()
# Types that only some engines have.
FEW = {"float8_e8m0fnu": {"numpy", "torch", "jax"}, "float8_e4m3b11fnuz": {"numpy", "jax", "tensorflow"}}
FEW |= {"float8_e4m3": {"numpy", "jax"}, "float8_e3m4": {"numpy", "jax"}}
SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    """JAX with 64 bits, here only."""
    with jax.enable_x64(True):
        yield


def of(engine: str, dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """An array of random bits."""
    x = empty_aligned(shape, dtype)
    words = x.reshape(-1).view(np.uint8)
    words[:] = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, words.size, dtype=np.uint8)
    return convert(x, engine)


def received(sent: memoryview, offset: int = 0) -> memoryview:
    memory = aligned_buffer(len(sent) + offset)[offset:]
    memory[:] = sent
    return memory


def bits(x: Any) -> tuple[Any, str, bytes]:
    array = to_numpy(x)
    return array.shape, array.dtype.name, array.tobytes()


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


@given(
    engine=st.sampled_from(ENGINES),
    dtype=st.sampled_from(COMMON + RAW),
    shape=SHAPES,
    offset=st.sampled_from([0, 1, 8]),
)
def test_an_array_of_any_engine_arrives_bit_for_bit_in_any(
    engine: str, dtype: str, shape: tuple[int, ...], offset: int
) -> None:
    x = of(engine, dtype, shape)
    header, (sent,) = to_wire(x)
    assert (sent.format, sent.ndim, sent.c_contiguous) == ("B", 1, True)
    assert bits(from_wire(header, [received(sent, offset)])) == bits(x)
    for other in ENGINES:
        y = from_wire(header, [received(sent, offset)], engine=other)
        assert engine_of(y) == other
        assert bits(y) == bits(x)


@pytest.mark.parametrize("dtype", FEW)
def test_types_of_few_engines_are_sent_between_them(dtype: str) -> None:
    for engine in FEW[dtype]:
        x = of(engine, dtype, (3, 2))
        header, (sent,) = to_wire(x)
        for other in ENGINES:
            if other in FEW[dtype]:
                assert bits(from_wire(header, [received(sent)], engine=other)) == bits(x)
            else:
                with pytest.raises(TypeError, match=f"{other} has no element type {dtype}"):
                    from_wire(header, [received(sent)], engine=other)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex128", "bfloat16"])
def test_no_byte_is_copied_on_either_side(engine: str, dtype: str) -> None:
    x = of(engine, dtype, (64, 64))
    header, (sent,) = to_wire(x)
    assert address(sent) == to_numpy(x).ctypes.data
    for other in ENGINES:
        memory = received(sent)
        y = from_wire(header, [memory], engine=other)
        assert to_numpy(y).ctypes.data == address(memory)


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_constants_are_sent_read_only_and_copied_in_the_same_process(engine: str) -> None:
    x = of(engine, "float32", (8,))
    header, (sent,) = to_wire(x)
    assert sent.readonly
    for other in ENGINES:
        assert not same_memory(from_wire(header, [sent], engine=other), x)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_array_keeps_its_buffer(engine: str) -> None:
    x = of(engine, "float32", (100_000,))
    header, (sent,) = to_wire(x)
    memory = bytearray(len(sent) + 64)
    start = -address(memoryview(memory)) % 64
    view = memoryview(memory)[start : start + len(sent)]
    view[:] = sent
    y = from_wire(header, [view])
    view.release()
    with pytest.raises(BufferError):
        memory.clear()
    assert bits(y) == bits(x)


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_layouts_and_copies_arrive_in_c_order(engine: str) -> None:
    x = convert(np.arange(6.0).reshape(2, 3), engine)
    turned = jnp.transpose(x) if engine == "jax" else tf.transpose(x)
    header, (sent,) = to_wire(turned)
    assert to_numpy(from_wire(header, [received(sent)])).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_requires_grad_is_lost_in_other_engines() -> None:
    header, (sent,) = to_wire(torch.nn.Parameter(torch.ones(3)))
    assert to_numpy(from_wire(header, [received(sent)], engine="jax")).tolist() == [1, 1, 1]
    assert type(from_wire(header, [received(sent)], engine="torch")) is torch.nn.Parameter
    with pytest.raises(TypeError, match="numpy has no element type complex32"):
        from_wire(*to_wire(torch.zeros(2, dtype=torch.int32).view(torch.complex32)), engine="numpy")


def test_the_bytes_are_those_of_the_design_page() -> None:
    for x, engine in ((torch.tensor([[1.0], [2.0]]), 2), (jnp.array([[1.0], [2.0]], "float32"), 3)):
        header, (buffer,) = to_wire(x)
        assert header == bytes([0xFA, 1, engine, 17, 0, 2, 0, 0]) + struct.pack("<qq", 2, 1)
        assert bytes(buffer) == struct.pack("<ff", 1, 2)
    for x, engine, code in ((tf.constant([1, 2], tf.bfloat16), 4, 32), (np.zeros(2, ml_dtypes.float8_e3m4), 1, 47)):
        assert to_wire(x)[0] == bytes([0xFA, 1, engine, code, 0, 1, 0, 0]) + struct.pack("<q", 2)


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
def test_jax_without_x64_does_not_narrow_received_arrays(dtype: str) -> None:
    header, (sent,) = to_wire(of("jax", dtype, (3,)))
    with jax.enable_x64(False):
        with pytest.raises(TypeError, match=f"{dtype}.*jax_enable_x64"):
            from_wire(header, [received(sent)])
        assert from_wire(header, [received(sent)], engine="numpy").dtype == dtype


def deleted() -> Any:
    x = jnp.zeros(2)
    x.delete()
    return x


def test_arrays_without_a_wire_form_are_refused_with_a_remedy() -> None:
    for x, says in (
        (tf.constant(["a"]), "no form"),
        (tf.Variable([1.0]), "x.value"),
        (jax.random.key(0), "key_data"),
        (jnp.zeros(2, "int4"), "int8"),
        (deleted(), "donated"),
    ):
        with pytest.raises(NotSendableError, match=says):
            to_wire(x)
        if type(x) in array_reducers()[0] and "donated" in says:
            with pytest.raises(NotSendableError, match=says):
                array_reducers()[0][type(x)](x)
    assert not any(is_array(x) for x in (tf.Variable([1.0]), jax.random.key(0), jnp.float32, tf.float32))
    header, buffers = to_wire(of("jax", "float32", (2,)))
    with pytest.raises(ValueError, match="no device 'cuda:99'"):
        from_wire(header, buffers, device="cuda:99")
    with pytest.raises(ValueError, match="got 'jaxx'"):
        from_wire(header, buffers, engine="jaxx")
    with pytest.raises(NotSendableError, match="no traced value"):
        jax.jit(to_wire)(1.0)


# -- strangers -----------------------------------------------------------------------------------------------------


def read_or_refuse(header: bytes, buffers: list[bytearray]) -> None:
    """Any bytes give a WireError, or an array that can be sent on and is the same."""
    try:
        x = from_wire(header, buffers)
    except WireError:
        return
    second, sent = to_wire(x)
    head, other = read_header(header), read_header(second)
    assert other._replace(device="") == head._replace(device="")
    if head.dtype.name != "bool":  # an engine may read any byte but 0 as True
        assert bytes(sent[0]) == bytes(buffers[0])


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(
    shape=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    code=st.sampled_from([*range(2, 10), 16, 17, 18, 24, 25, 32, 33, *range(40, 49)]),
    engine=st.integers(1, 4),
    changes=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 255)), max_size=3),
    cut=st.integers(-2, 2),
)
def test_changed_headers_never_crash(
    shape: tuple[int, ...], code: int, engine: int, changes: list[tuple[int, int]], cut: int
) -> None:
    raw = bytearray([0xFA, 1, engine, code, 0, len(shape), 0, 0]) + struct.pack(f"<{len(shape)}q", *shape)
    try:
        size_bytes = read_header(raw).size_bytes
    except WireError:
        size_bytes = 8
    for at, byte in changes:
        raw[at % len(raw)] = byte
    read_or_refuse(bytes(raw[: len(raw) - cut] if cut > 0 else raw + bytes(-cut)), [bytearray(size_bytes)])


# -- in messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
@pytest.mark.parametrize("dumps", [codec.dumps, codec.dumps_by_value])
def test_arrays_travel_beside_the_pickle_of_a_message(engine: str, dumps: Any) -> None:
    x, small = of(engine, "float32", (5000,)), of(engine, "bfloat16", (3,))
    head, buffers = dumps({"a": [x, (small, 1)], "again": x})
    assert len(head) < 1000
    (sent,) = buffers
    assert address(sent) == to_numpy(x).ctypes.data
    assert not isinstance(sent.obj, memoryview)  # see `kept_view`
    memory = received(sent)
    arrived = codec.loads(head, [memory])
    assert engine_of(arrived["a"][0]) == engine
    assert bits(arrived["a"][0]) == bits(x)
    assert bits(arrived["a"][1][0]) == bits(small)
    assert arrived["again"] is arrived["a"][0]
    assert to_numpy(arrived["again"]).ctypes.data == address(memory)


def test_types_without_a_wire_form_use_their_own_pickling() -> None:
    strings, variable, halves = codec.loads(
        *codec.dumps([tf.constant(["a", "b"]), tf.Variable([1.0], name="v"), jnp.arange(3, dtype="int4")])
    )
    assert strings.numpy().tolist() == [b"a", b"b"]
    assert (type(variable), variable.numpy().tolist()) == (type(tf.Variable(0)), [1])
    assert (halves.dtype, halves.tolist()) == ("int4", [0, 1, 2])


def test_a_process_that_loads_an_engine_late_sends_its_arrays_out_of_band() -> None:
    code = """
import sys
from fanwise.links import codec
assert codec.dumps(['x'])[1] == []
import jax.numpy as jnp
assert 'torch' not in sys.modules
head, buffers = codec.dumps([jnp.zeros(5000)])
assert [len(buffer) for buffer in buffers] == [20000] and len(head) < 300
assert codec.loads(head, buffers)[0].shape == (5000,)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
