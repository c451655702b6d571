"""Messages survive a round trip, with the layout, strides and flags of tensors."""

import math
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fanwise.base.errors import WireError
from fanwise.rpc.calling.serializer import Serializer
from fanwise.rpc.devices import DeviceMaps
from fanwise.rpc.messages import messages
from fanwise.rpc.messages.messages import Message, compose, dumps, loads, parse
from fanwise.tensor import to_wire
from fanwise.tensor.wire.header import ENGINE_CODES


def through(tensors: Sequence[torch.Tensor], extra: bytes = b"", call: str | None = "f") -> messages.Parsed:
    """As a link takes it: the head in one piece, the buffers in memory of their own."""
    head, buffers = dumps(compose(extra, tensors, b"pickle", [memoryview(b"array")], call))
    received = loads(memoryview(bytes(head)), [memoryview(bytearray(buffer)) for buffer in buffers])
    return parse(received if call is None else received[0])


@pytest.mark.parametrize("call", ["f", None])
@pytest.mark.parametrize("extra", [b"", b"header"])
def test_all_parts_come_out(call: str | None, extra: bytes) -> None:
    for tensors in ([], [torch.ones(2), torch.zeros(5000)]):
        opened = through(tensors, extra, call)
        assert (bytes(opened.extra), bytes(opened.pickle), bytes(opened.buffers[-1])) == (extra, b"pickle", b"array")
        assert all(torch.equal(a, b) for a, b in zip(tensors, opened.tensors, strict=True))


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view into a tensor of distinct numbers: narrowed, stepped, permuted, expanded."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    view = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    for dim in range(len(shape)):
        start = draw(st.integers(0, view.shape[dim] - 1))
        view = view.narrow(dim, start, draw(st.integers(0, view.shape[dim] - start)))
        step = draw(st.integers(1, 3))
        view = view[(slice(None),) * dim + (slice(None, None, step),)]
    view = view.permute(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        view = view.unsqueeze(0).expand(draw(st.integers(1, 3)), *view.shape)
    return view.requires_grad_(draw(st.booleans()))


@given(views())
@example(torch.arange(64.0)[::32].expand(2, 2))
def test_views_keep_values_strides_and_flags(view: torch.Tensor) -> None:
    (back,) = through([view]).tensors
    assert torch.equal(back, view) and back.requires_grad == view.requires_grad and back.is_leaf
    reach = 1 + sum(stride * (size - 1) for stride, size in zip(view.stride(), view.shape, strict=True))
    distinct = math.prod(size for stride, size in zip(view.stride(), view.shape, strict=True) if stride)
    if 1 < view.numel() and reach <= 16 * distinct:  # gaps that are wider stay behind
        assert back.is_contiguous() == view.is_contiguous()
        ours = [stride for stride, size in zip(back.stride(), back.shape, strict=True) if size > 1]
        assert ours == [stride for stride, size in zip(view.stride(), view.shape, strict=True) if size > 1]


def test_what_lies_between_is_not_sent() -> None:
    secret = torch.full((100, 100), 7.0)
    secret[:, :2] = 0.0
    message = compose(b"", [secret[:, :2]], b"", [], "f")
    assert b"\0\0\xe0\x40" not in bytes(message.head) + b"".join(map(bytes, message.buffers))


def test_a_column_of_a_big_matrix_comes_without_the_gaps() -> None:
    (back,) = through([torch.arange(1e6).reshape(1000, 1000)[:, 3]]).tensors
    assert back.is_contiguous() and back.tolist()[:2] == [3.0, 1003.0]


def test_overlapping_windows_become_plain() -> None:
    windows = torch.arange(6.0).unfold(0, 3, 1)
    (back,) = through([windows]).tensors
    assert torch.equal(back, windows)


def test_a_message_that_is_cut_short_is_a_wire_error() -> None:
    message = compose(b"header", [torch.ones(3)], b"pickle", [], "f")
    for size in range(1, 40):
        with pytest.raises(WireError):
            parse(Message(message.head[:size], [], "f"))


def test_a_message_of_another_kind_is_refused() -> None:
    for head in (b"", b"\xff123"):
        with pytest.raises(WireError, match="both sides must run the same version"):
            loads(head)


class Evil:
    """Leaves a mark when it is unpickled."""

    ran: ClassVar[list[str]] = []

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Evil.ran.append, ("here",)


def parsed_with(tensor: torch.Tensor, change: Callable[[bytes], bytes]) -> torch.Tensor:
    """Parse a message after changing the header of its tensor."""
    message = compose(b"", [tensor], b"", [], "f")
    at = 1 + messages._COUNTS.size + messages._ENTRY.size
    num_tensors, extra, table, num_out_of_band = messages._COUNTS.unpack_from(message.head, 1)
    size = _about_size(message)
    about = change(bytes(message.head[at : at + size]))
    counts = messages._COUNTS.pack(num_tensors, extra, table + len(about) - size, num_out_of_band)
    entry = messages._ENTRY.pack(len(about), messages._PARTS)
    head = b"".join((message.head[:1], counts, entry, about, message.head[at + size :]))
    result: torch.Tensor = parse(Message(head, message.buffers, "f")).tensors[0]
    return result


def _about_size(message: Message) -> int:
    return int(messages._ENTRY.unpack_from(message.head, 1 + messages._COUNTS.size)[0])


OF_PARTS = {
    "strided": lambda: torch.ones(5, 3).t(),
    "coo": lambda: torch.eye(3, 5).to_sparse(),
    "csr": lambda: torch.eye(3, 5).to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", OF_PARTS)
def test_a_pickle_in_the_place_of_a_shape_is_not_read(kind: str) -> None:
    tensor = OF_PARTS[kind]()
    assert torch.equal(parsed_with(tensor, lambda about: about).to_dense(), tensor.to_dense())
    with pytest.raises(WireError):
        parsed_with(tensor, lambda _about: pickle.dumps(Evil()))
    assert Evil.ran == []


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", OF_PARTS)
@given(data=st.data())
def test_a_changed_description_is_a_wire_error_or_a_tensor_that_can_be_read(kind: str, data: st.DataObject) -> None:
    def change(about: bytes) -> bytes:
        changed = bytearray(about)
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        return bytes(changed)

    try:
        result = parsed_with(OF_PARTS[kind](), change)
    except WireError:
        return
    if result.numel() < 10_000:
        result.to_dense().sum()  # reads all of it: an index beyond its end would crash


@pytest.mark.filterwarnings("ignore:Sparse")
def test_an_index_beyond_the_shape_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="do not form a tensor"):
        parsed_with(OF_PARTS["coo"](), lambda about: about[: messages._PARTS_HEADER.size] + struct.pack("<2q", 2, 2))


def with_header(tensor: torch.Tensor, *, engine: str, dtype: int | None = None) -> Message:
    """A message in which the header of a tensor names another engine, and maybe another type."""
    message = compose(b"", [tensor], b"", [], "f")
    (header, _) = to_wire(tensor)
    changed = bytearray(header)
    changed[2] = ENGINE_CODES[engine]
    changed[3] = dtype or changed[3]
    return Message(bytes(message.head).replace(header, bytes(changed)), message.buffers, "f")


@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize("engine", ["jax", "tensorflow", "numpy"])
def test_a_tensor_is_one_of_torch_whatever_engine_its_header_names(
    engine: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine != "numpy":
        monkeypatch.setitem(sys.modules, engine, None)  # to load it is an error
    (back,) = parse(with_header(torch.arange(float(size)), engine=engine)).tensors
    assert type(back) is torch.Tensor and back.sum() == size * (size - 1) / 2


def test_a_tensor_of_a_type_that_torch_does_not_have_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="torch has no element type float8_e4m3"):
        parse(with_header(torch.ones(3, dtype=torch.uint8), engine="jax", dtype=46))


@pytest.mark.parametrize("kind", OF_PARTS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_parts_of_a_tensor_are_whole(kind: str) -> None:
    """Nested parts could claim any number of indices, which would take forever to check."""
    message = compose(b"", [OF_PARTS[kind]()], b"", [], "f")
    at = 1 + messages._COUNTS.size + messages._ENTRY.size + _about_size(message)
    entry, description = messages._ENTRY.size, struct.pack("<4q2B", 1 << 40, 1 << 40, 0, 0, 0, 1)
    strided = messages._PARTS_HEADER.pack(messages._STRIDED, 0, 2) + description
    one = bytes(compose(b"", [torch.ones(1, 1)], b"", [], "f").head)[1 + messages._COUNTS.size :]
    part = messages._ENTRY.pack(len(strided), messages._PARTS) + strided + one
    header_size, size = messages._ENTRY.unpack_from(message.head, at)
    (num, extra, table, num_out_of_band) = messages._COUNTS.unpack_from(message.head, 1)
    longer = len(part) - (entry + header_size + size)
    counts = messages._COUNTS.pack(num, extra, table + longer, num_out_of_band)
    rest = message.head[at + entry + header_size + size :]
    head = b"".join((message.head[:1], counts, message.head[1 + len(counts) : at], part, rest))
    with pytest.raises(WireError, match="nested parts of a tensor"):
        parse(Message(head, message.buffers, "f"))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_of_views_come_as_they_were() -> None:
    indices, values = torch.tensor([[0, 2], [1, 0]]).t(), torch.ones(1).expand(2)
    coo = torch.sparse_coo_tensor(indices, values, (2, 3))
    (back,) = through([coo]).tensors
    assert torch.equal(back.to_dense(), coo.to_dense())


def test_strides_of_a_huge_gap_take_no_memory() -> None:
    shape, strides, order = (3, 5), (1, 1 << 40), (1, 0)
    description = struct.pack("<4q2B", *shape, *strides, *order)
    dense = parsed_with(torch.ones(5, 3).t(), lambda about: about[: messages._PARTS_HEADER.size] + description)
    assert dense.untyped_storage().nbytes() < 1000


# -- serializer --------------------------------------------------------------------------------------------------------


def serializer(**maps: dict[torch.device, torch.device]) -> Serializer:
    return Serializer(name_of=lambda id: f"w{id}", devices=DeviceMaps(maps, ()))


def carried(message: Message, by: Serializer, sender: int) -> Any:  # Any: the value
    head, buffers = dumps(message)
    received = loads(head, buffers)
    return by.deserialize(received if isinstance(received, Message) else received[0], sender).value


def test_tensors_arrive_where_the_map_says_and_answers_come_back() -> None:
    # The meta device stands for a GPU: it can be sent to on every machine.
    caller, callee = serializer(w1={torch.device("cpu"): torch.device("meta")}), serializer()
    weight = torch.nn.Parameter(torch.ones(3))
    call = caller.serialize((len, (weight, torch.ones(2, requires_grad=True)), {}), 1, call="f")
    _function, args, _kwargs = carried(call, callee, 0)
    assert [arg.device.type for arg in args] == ["meta", "meta"]
    assert type(args[0]) is torch.nn.Parameter and all(arg.requires_grad for arg in args)


def test_thousands_of_tensors_have_a_limited_number_of_buffers() -> None:
    tensors = [torch.full((2000,), float(number)) for number in range(1500)]
    message = compose(b"", tensors, b"N.", [], "f")
    assert len(message.buffers) == 1024
    assert all(map(torch.equal, parse(message).tensors, tensors))
