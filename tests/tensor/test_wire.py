"""The wire format of arrays: round trips, shared memory, refusals, and malformed bytes."""

import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import NotSendableError, WireError
from fanwise.tensor import aligned_buffer, from_wire, is_array, to_wire
from fanwise.tensor.wire.header import read_header

NUMPY_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
RAW_DTYPES = (
    "bfloat16 complex32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
).split()
SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)
LAYOUTS = ("plain", "transposed", "every_second", "broadcast", "offset")

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def over_a_link(x: object, *, offset: int = 0) -> Any:  # Any: an array of any engine
    """Send, carry the bytes into other memory that begins `offset` bytes past an aligned address, receive."""
    header, (sent,) = to_wire(x)
    assert (sent.format, sent.ndim, sent.c_contiguous) == ("B", 1, True)
    received = aligned_buffer(len(sent) + offset)[offset:]
    received[:] = sent
    return from_wire(header, [received])


def random_words(shape: tuple[int, ...], dtype: str, seed: int) -> "np.ndarray[Any, Any]":  # Any: any type
    """Every bit pattern of the type, NaN payloads too; bool only as 0 and 1."""
    kind = np.dtype(dtype)
    size_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    words = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size_bytes, dtype=np.uint8)
    return words.view(kind).reshape(shape)


def laid_out(x: Any, layout: str) -> Any:  # Any: an array of either engine
    """An array with elements of x in another order of memory."""
    if layout == "transposed":
        return x.T if isinstance(x, np.ndarray) else x.permute(tuple(reversed(range(x.ndim))))
    if layout == "every_second" and x.ndim:
        return x[::2]
    if layout == "broadcast":
        return np.broadcast_to(x, (2, *x.shape)) if isinstance(x, np.ndarray) else x.expand(2, *x.shape)
    if layout == "offset" and x.ndim:
        return x[1:]
    return x


def words_of(x: torch.Tensor) -> bytes:
    """The elements of a tensor in C order, bit for bit, by a way of its own."""
    contiguous = x.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    return bytes(contiguous.flatten().view(torch.uint8).tolist())


@given(shape=SHAPES, dtype=st.sampled_from(NUMPY_DTYPES), layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 9))
def test_a_numpy_array_arrives_bit_for_bit(shape: tuple[int, ...], dtype: str, layout: str, seed: int) -> None:
    x = laid_out(random_words(shape, dtype, seed), layout)
    y = over_a_link(x, offset=seed % 3)
    assert type(y) is np.ndarray
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    assert y.tobytes() == x.tobytes()
    assert y.flags.c_contiguous
    assert y.flags.aligned
    assert y.flags.writeable


@given(
    shape=SHAPES,
    dtype=st.sampled_from(NUMPY_DTYPES + RAW_DTYPES),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 9),
)
def test_a_torch_tensor_arrives_bit_for_bit(shape: tuple[int, ...], dtype: str, layout: str, seed: int) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    same_size = {1: "uint8", 2: "int16", 4: "int32"}[kind.itemsize] if dtype in RAW_DTYPES else dtype
    x = laid_out(torch.from_numpy(random_words(shape, same_size, seed)).view(kind), layout)
    y = over_a_link(x, offset=seed % 3)
    assert type(y) is torch.Tensor
    assert y.dtype is x.dtype
    assert y.shape == x.shape
    assert words_of(y) == words_of(x)
    assert y.is_contiguous()
    assert y.data_ptr() % y.itemsize == 0


@given(shape=SHAPES, dtype=st.sampled_from([d for d in NUMPY_DTYPES if np.dtype(d).itemsize > 1]))
def test_a_big_endian_array_arrives_native(shape: tuple[int, ...], dtype: str) -> None:
    native = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape).astype(dtype)
    y = over_a_link(native.astype(native.dtype.newbyteorder(">")))
    assert y.dtype == native.dtype
    assert y.dtype.isnative
    assert np.array_equal(y, native)


def test_the_buffer_of_a_read_only_view_is_copied() -> None:
    x = torch.zeros(3)
    header, (buffer,) = to_wire(x)
    from_wire(header, [buffer.toreadonly()]).fill_(5)
    from_wire(header, [bytes(buffer)]).fill_(5)
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize("x", [np.zeros(4, "complex128"), torch.zeros(4, dtype=torch.bfloat16)])
def test_an_unaligned_buffer_is_copied_and_an_aligned_one_adopted(x: Any) -> None:  # Any: of either engine
    header, (sent,) = to_wire(x)
    memory = aligned_buffer(len(sent) + 1)
    from_wire(header, [memory[1:]])[:] = 1
    assert not any(memory)
    from_wire(header, [memory[:-1]])[:] = 1
    assert any(memory)


@pytest.mark.parametrize("writeable", [True, False])
def test_numpy_arrays_arrive_writable(writeable: bool) -> None:
    x = np.arange(3)
    x.flags.writeable = writeable
    header, (buffer,) = to_wire(x)
    assert buffer.readonly is not writeable
    assert over_a_link(x).flags.writeable
    assert from_wire(header, [buffer]).flags.writeable


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_requires_grad_and_parameter_arrive(kind: type[torch.Tensor], requires_grad: bool) -> None:
    data = torch.arange(3.0)
    x = data.requires_grad_(requires_grad) if kind is torch.Tensor else torch.nn.Parameter(data, requires_grad)
    y = over_a_link(x)
    assert type(y) is kind
    assert y.requires_grad is requires_grad
    assert y.is_leaf
    assert y.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES + RAW_DTYPES)
def test_every_type_that_torch_differentiates_keeps_its_flag(dtype: str) -> None:
    x = torch.from_numpy(np.zeros(16, "uint8")).view(getattr(torch, dtype))
    if x.is_floating_point() or x.is_complex():
        assert over_a_link(x.requires_grad_()).requires_grad
    assert not over_a_link(x.detach()).requires_grad


def test_conjugate_and_negative_views_are_resolved() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert over_a_link(x).tolist() == [1 - 2j, 3 + 4j]
    assert x.imag.is_neg()
    assert over_a_link(x.imag).tolist() == [-2, 4]


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_sixty_four_dimensions_travel_and_more_are_refused(engine: str) -> None:
    shape = (1,) * 63 + (2,)
    x: Any = np.zeros(shape) if engine == "numpy" else torch.zeros(shape)  # Any: of either engine
    assert over_a_link(x).shape == shape
    if engine == "torch":
        with pytest.raises(NotSendableError, match=r"dimensions \(65\)"):
            to_wire(x[None])


class Doubled(torch.Tensor):
    """A subclass with a meaning of its own."""


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: np.array([object()]), "x.tolist"),
        (lambda: np.array(["a"]), "x.tolist"),
        (lambda: np.array(["a"], np.dtypes.StringDType()), "x.tolist"),
        (lambda: np.array([b"a"]), "x.tolist"),
        (lambda: np.zeros(1, [("a", "f4")]), "each field"),
        (lambda: np.array(["2020-01-01"], "datetime64[D]"), "int64"),
        (lambda: np.array([1], "timedelta64[s]"), "int64"),
        (lambda: np.zeros(1, np.longdouble), "float64"),
        (lambda: np.zeros(1, "V3"), "raw words"),
        (lambda: np.ma.masked_array([1, 2], [True, False]), "mask"),
        (lambda: torch.eye(2).to_sparse(), "to_dense"),
        (lambda: torch.eye(2).to_sparse_csr(), "to_dense"),
        (lambda: torch.eye(2).to_mkldnn(), "to_dense"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "dequantize"),
        (lambda: torch.empty(2, device="meta"), "no data"),
        (lambda: torch.empty(2, dtype=torch.bits8), r"view\(torch.uint8"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "unbind"),
        (lambda: torch.ones(2).as_subclass(Doubled), "as_subclass"),
        (lambda: torch.nn.UninitializedParameter(), "subclass"),
        (lambda: np.float32(1), "got numpy.float32"),
        (lambda: [1.0], "got builtins.list"),
    ],
)
def test_arrays_without_a_wire_form_are_refused_with_a_remedy(make: Callable[[], object], says: str) -> None:
    with pytest.raises(NotSendableError, match=says):
        to_wire(make())


def test_a_tensor_inside_vmap_is_refused() -> None:
    def send(x: torch.Tensor) -> torch.Tensor:
        to_wire(x)
        return x

    with pytest.raises(NotSendableError, match="vmap"):
        torch.vmap(send)(torch.ones(2, 3))


class Parameter:
    """A user's class with the name and module of torch's."""

    __module__ = "torch.nn.parameter"


def test_arrays_are_recognized_by_their_exact_type() -> None:
    assert all(map(is_array, (np.zeros(2), torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), np.array([None]))))
    more: tuple[Any, ...] = (3, [1.0], np.float32(1), Parameter(), OrderedDict(), np.ma.masked_array([1]))
    assert not any(map(is_array, (*more, torch.ones(1).as_subclass(Doubled))))


def test_the_layer_and_is_array_load_no_engine() -> None:
    code = (
        "import sys, fanwise.tensor as t; t.is_array(3); t.aligned_buffer(10**6)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), sorted(sys.modules)\n"
        "t.from_wire(bytes([250, 1, 1, 17, 0, 1, 0, 0]) + (2).to_bytes(8, 'little'), [bytearray(8)])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_device_name_is_kept_and_the_tensor_arrives_on_the_cpu() -> None:
    header = bytes([0xFA, 1, 2, 17, 0, 1, 6, 0]) + struct.pack("<q", 2) + b"cuda:1"
    assert read_header(header).device == "cuda:1"
    assert from_wire(header, [bytearray(8)]).device.type == "cpu"
    assert from_wire(header, [bytearray(8)], device="meta").device.type == "meta"


def test_a_numpy_array_has_no_other_device() -> None:
    header, buffers = to_wire(np.zeros(2))
    assert from_wire(header, buffers, device="cpu").shape == (2,)
    with pytest.raises(ValueError, match="'cuda:0'"):
        from_wire(header, buffers, device="cuda:0")


HEAD = {"magic": 0xFA, "version": 1, "engine": 2, "dtype": 17, "flags": 0, "ndim": 1, "device_len": 0, "zero": 0}


@pytest.mark.parametrize(
    ("change", "shape", "says"),
    [
        ({"magic": 3}, (2,), "no array's header"),
        ({"version": 9}, (2,), "version 9"),
        ({"engine": 9, "dtype": 99}, (2,), "engine 9, dtype 99"),
        ({"flags": 4}, (2,), "flags 0x04"),
        ({"engine": 1, "flags": 1}, (2,), "flags 0x01"),
        ({"dtype": 4, "flags": 1}, (2,), "gradient of type int32"),
        ({"engine": 1, "dtype": 33}, (2,), "numpy the type complex32"),
        ({"engine": 4, "dtype": 44}, (2,), "tensorflow the type float8_e8m0fnu"),
        ({"ndim": 2}, (2,), "24 bytes, got 16"),
        ({"zero": 1}, (2,), "0x01"),
        ({"device_len": 5}, (2,), "device name of 5 bytes"),
        ({}, (-2,), r"negative dimension: shape \(-2,\)"),
        ({"ndim": 2}, (0, -1), "negative dimension"),
        ({"ndim": 2}, (2**62, 2**62), "too large"),
        ({"ndim": 3}, (0, 2**62, 2**62), "too large"),
        ({"ndim": 65}, (1,) * 65, "65 dimensions"),
        ({}, (3,), "12 bytes, its buffer has 8"),
    ],
)
def test_a_malformed_header_is_named_with_its_values(change: dict[str, int], shape: tuple[int, ...], says: str) -> None:
    header = bytes((HEAD | change).values()) + struct.pack(f"<{len(shape)}q", *shape)
    with pytest.raises(WireError, match=says):
        from_wire(header, [bytearray(8)])


def test_malformed_messages_are_named() -> None:
    header, buffers = to_wire(np.zeros(2))
    for device in (b"cuda\n", b"cud\xe9"):
        odd = bytes((HEAD | {"device_len": len(device), "ndim": 0}).values()) + device
        with pytest.raises(WireError, match="names the device"):
            from_wire(odd, [bytearray(4)])
    for count in (0, 2):
        with pytest.raises(WireError, match=f"one buffer, got {count}"):
            from_wire(header, buffers * count)
    with pytest.raises(WireError, match="at most 775"):
        read_header(bytes(10**6))
    with pytest.raises(TypeError, match="contiguous bytes"):
        from_wire(header, [memoryview(bytearray(32))[::2]])
