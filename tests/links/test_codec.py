"""Objects come back as they were, big arrays travel beside the pickle, errors in their own type or as their text."""

import copyreg
import json
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from program_runs import LoadedInterpreter

from fanwise.base.errors import NotSendableError, RemoteError, WireError, WorkerLostError
from fanwise.links import codec
from fanwise.links.calls import was_never_sent
from fanwise.links.codec import (
    Beside,
    dumps,
    dumps_by_value,
    error_text,
    loads,
    pack_error,
    unpack_error,
    with_note,
)


def sent(value: object) -> Any:  # Any: the value as it arrives
    """As over a link: the receiver has memory of its own."""
    head, buffers = dumps(value)
    return loads(head, [memoryview(bytearray(buffer)) for buffer in buffers])


def same(a: Any, b: Any) -> bool:  # Any: any array
    if isinstance(a, torch.Tensor):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.requires_grad == b.requires_grad
            and torch.equal(a.resolve_conj(), b)
        )
    return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)


ARRAYS: dict[str, Callable[[], Any]] = {  # Any: arrays of both engines
    "float32": lambda: torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "big": lambda: torch.arange(100_000, dtype=torch.float64),
    "bfloat16": lambda: torch.arange(10_000).to(torch.bfloat16),
    "float8": lambda: torch.arange(20).to(torch.float8_e4m3fn).view(torch.uint8),
    "bool": lambda: torch.tensor([True, False]),
    "0-d": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.arange(20_000).reshape(100, 200).T,
    "strided": lambda: torch.arange(20_000)[::3],
    "complex conjugate": lambda: torch.arange(10).to(torch.complex64).mul(1j).conj(),
    "requires grad": lambda: torch.ones(3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2000)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "numpy": lambda: np.arange(10_000, dtype=np.int16),
    "numpy fortran": lambda: np.asfortranarray(np.arange(10_000.0).reshape(100, 100)),
    "numpy strided": lambda: np.arange(10_000)[::-7],
    "numpy 0-d": lambda: np.array(3.5),
    "numpy strings": lambda: np.array(["a", "bc"]),
    "numpy objects": lambda: np.array([1, "a", None], dtype=object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_as_they_were(name: str) -> None:
    array = ARRAYS[name]()
    assert same(array, sent(array))
    nested = sent({"a": [array, (array, 1)], "b": array})
    assert same(array, nested["a"][1][0]) and same(array, nested["b"])


def test_a_state_dict_comes_back_in_order_and_loads() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
    state = sent(model.state_dict())
    assert list(state) == list(model.state_dict())
    other = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
    other.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


class OwnOrder(OrderedDict[str, int]):
    """A subclass, which has a reduction of its own."""


def test_ordered_dicts_come_as_python_pickles_them_with_what_is_set_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    marked, within_itself = OrderedDict(a=1), OrderedDict(b=2)
    marked._metadata = "of a state dict"  # type: ignore[attr-defined]  # what torch does
    within_itself["self"] = within_itself  # type: ignore[assignment]
    for value in (OrderedDict(), OrderedDict(b=1, a=2), marked, OwnOrder(c=3)):
        for result in (sent(value), sent([value])[0]):
            assert type(result) is type(value) and list(result.items()) == list(value.items())
            assert vars(result) == vars(value)
    result = sent(within_itself)
    assert result["self"] is result and list(result) == ["b", "self"]
    monkeypatch.setitem(copyreg.dispatch_table, OrderedDict, lambda value: (list, ([*value, "the user's"],)))
    assert sent(OrderedDict(a=1)) == ["a", "the user's"]


def test_one_tensor_sent_twice_in_a_message_arrives_as_one() -> None:
    tensor = torch.ones(3)
    first, second = sent([tensor, tensor])
    assert first is second


@pytest.mark.parametrize("make", [lambda n: torch.zeros(n, dtype=torch.uint8), lambda n: np.zeros(n, np.uint8)])
def test_small_arrays_go_inside_the_pickle_and_big_ones_beside_it(make: Callable[[int], Any]) -> None:
    assert [len(dumps([make(size)])[1]) for size in (0, 100, 4095, 4096, 1 << 20)] == [0, 0, 0, 1, 1]
    assert len(dumps(make(1 << 20))[0]) < 1000


def test_the_sending_side_copies_no_big_array() -> None:
    tensor, array = torch.arange(10_000), np.arange(10_000)
    _, buffers = dumps([tensor, array])
    addresses = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
    assert addresses == [tensor.data_ptr(), array.ctypes.data]


def test_the_receiving_side_adopts_the_buffer_of_a_big_array() -> None:
    for value in (torch.ones(10_000), np.ones(10_000)):
        head, (buffer,) = dumps(value)
        memory = memoryview(bytearray(buffer))
        received = np.asarray(loads(head, [memory]))
        assert received.ctypes.data == np.frombuffer(memory, np.uint8).ctypes.data
        received[:] = 2  # and it is writable


def test_very_many_big_arrays_stay_below_what_a_peer_takes() -> None:
    arrays = [np.full(4096, i % 256, np.uint8) for i in range(1500)]
    assert len(dumps(arrays)[1]) == 1024 == len(dumps_by_value(arrays)[1])
    assert all(np.array_equal(a, b) for a, b in zip(arrays, sent(arrays), strict=True))


RING = """
import gc
import torch
from fanwise.links import codec
from fanwise.rpc.messages import pickling

def fails(dump):
    held = tuple(dump()[-1])  # the message, as a frame has it
    try:
        raise ValueError("it was not sent")
    except ValueError as error:
        kept = error  # it holds the frame, and the frame holds it

tensor, array = torch.ones(5000), torch.ones(5000).numpy()
for dump in (
    lambda: codec.dumps(tensor), lambda: codec.dumps_by_value(tensor), lambda: pickling.encode(array, 0)
):
    fails(dump)
    gc.collect()
print("lives")
"""


def test_what_is_left_of_a_message_that_was_not_sent_can_be_collected(torch_loaded: LoadedInterpreter) -> None:
    """Runs in a separate process, because CPython 3.11 crashes if a view holds another view (see `kept_view`)."""
    with torch_loaded.forks_here():
        done = subprocess.run([sys.executable, "-c", RING], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("lives", 0), done.stderr


@pytest.mark.parametrize("dump", [dumps, dumps_by_value])
def test_a_buffer_that_is_kept_is_no_view_of_a_view(dump: Callable[[object], tuple[bytes, list[memoryview]]]) -> None:
    memory = memoryview(bytearray(range(250)) * 40)
    for value in (torch.ones(2000), np.ones(2000), Beside(memory), Beside(memory[50:9000])):
        (buffer,) = dump(value)[1]
        assert not isinstance(buffer.obj, memoryview)
    assert buffer == memory[50:9000] and buffer.readonly is memory.readonly


def test_memory_beside_a_message_arrives_as_it_is() -> None:
    big, small = memoryview(bytes(range(200)) * 30)[7:], b"small"
    head, buffers = dumps({"a": [Beside(big), Beside(small)]})
    assert len(buffers) == 1 and len(head) < 1000
    assert [bytes(memory) for memory in loads(head, buffers)["a"]] == [bytes(big), small]


def test_a_tensor_that_cannot_travel_says_what_to_send_instead() -> None:
    with pytest.raises(NotSendableError, match="to_dense"):
        dumps({"weights": torch.eye(3).to_mkldnn()})


def test_values_travel_by_value_when_they_must() -> None:
    scale = 3

    def local(x: int) -> int:
        return scale * x

    with pytest.raises((AttributeError, pickle.PicklingError)):
        dumps(local)
    head, buffers = dumps_by_value([local, torch.ones(2000)])
    assert len(buffers) == 1
    function, tensor = loads(head, [memoryview(bytearray(buffer)) for buffer in buffers])
    assert function(2) == 6 and same(torch.ones(2000), tensor)


@pytest.mark.parametrize(
    "head", [b"\x80\x05\xffgarbage", pickle.dumps(1)[:-1] + b"\x00", pickle.dumps([1, 2])[:0] + b"x."]
)
def test_bytes_that_are_no_pickle_are_a_wire_error(head: bytes) -> None:
    with pytest.raises(WireError, match=f"a message of {len(head)} bytes cannot be read"):
        loads(head)


def test_missing_buffers_are_a_wire_error() -> None:
    head, _ = dumps(np.zeros(10_000))
    with pytest.raises(WireError, match="cannot be read"):
        loads(head, [])


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def test_reducers_that_user_code_registers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    dumps(Point(1))
    monkeypatch.setitem(copyreg.dispatch_table, Point, lambda point: (Point, (point.x + 100,)))
    assert sent(Point(1)).x == 101


@pytest.mark.parametrize("has_tensor", [False, True])  # there before torch.nn is, and not at once
def test_nothing_is_missing_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch, has_tensor: bool) -> None:
    half = ModuleType("torch")
    if has_tensor:
        half.Tensor = torch.Tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", half)
    codec._pickler.forget()  # as before the first tensor
    assert sent({"loss": 0.5}) == {"loss": 0.5}
    monkeypatch.undo()
    assert len(dumps(torch.ones(10_000))[1]) == 1


def test_nothing_here_loads_torch() -> None:
    code = "import sys; from fanwise.links.codec import dumps, loads; loads(*dumps([1])); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- errors ------------------------------------------------------------------------------------------------------------


def failed(error: BaseException) -> BaseException:
    """The error as it arrives, after it was raised and packed at the other side."""
    try:
        raise error
    except BaseException as caught:
        return unpack_error(pack_error(caught))


class NeedsTwo(Exception):
    """As people write them: the arguments of __init__ are not those that are passed on."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"error {code} in {where}")
        self.code = code


class HoldsAGenerator(Exception):
    def __init__(self) -> None:
        super().__init__("has a generator")
        self.unpicklable = (i for i in "")
        self.code = 7


class TakesKeywords(ValueError):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class HasSlots(Exception):
    __slots__ = ("code", "unset")

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class OfTheSystem(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "No such data set", path)
        self.path = path


@dataclass(frozen=True)
class Frozen(Exception):
    code: int
    where: str = "here"

    def __str__(self) -> str:
        return f"{self.code} {self.where}"


class Several(ExceptionGroup[Exception]):
    """A group with a constructor of its own."""

    count: int

    def __new__(cls, count: int) -> "Several":
        group = super().__new__(cls, f"{count} failed", [NeedsTwo(part, "a layer") for part in range(count)])
        group.count = count
        return group

    def __init__(self, count: int) -> None: ...


class HoldsATensor(Exception):
    def __init__(self) -> None:
        super().__init__("has a tensor")
        self.tensor = torch.ones(2).to(torch.float8_e4m3fn)


class HasNoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class CannotPickleItself(Exception):
    def __reduce__(self) -> tuple[object, ...]:
        raise RecursionError("too deep")


class ComesBackAsAnother(Exception):
    def __reduce__(self) -> tuple[type[Exception], tuple[str]]:
        return ValueError, ("another",)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad learning rate", -1.0),
        KeyError("missing"),
        FileNotFoundError(2, "No such file", "data.idx"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        json.JSONDecodeError("Expecting value", "doc", 0),
        subprocess.CalledProcessError(3, ["ls"]),
        WorkerLostError("worker 3 ended"),
        SystemExit(4),
        KeyboardInterrupt(),
        NeedsTwo(7, "layer 3"),
        StopIteration(5),
        ComesBackAsAnother("original"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_in_its_own_type(error: BaseException) -> None:
    back = failed(error)
    assert type(back) is type(error)
    assert (str(back), back.args) == (str(error), error.args)
    own = {name: value for name, value in vars(back).items() if name != "__notes__"}
    assert own == {name: value for name, value in vars(error).items() if name != "__notes__"}


def test_the_remote_traceback_is_a_note_with_the_process_and_the_causes() -> None:
    def inner() -> None:
        raise KeyError("the cause")

    try:
        try:
            inner()
        except KeyError as cause:
            raise ValueError("the effect") from cause
    except ValueError as error:
        error.add_note("a note of the user's")
        back = unpack_error(pack_error(error))
    first, note = back.__notes__
    assert first == "a note of the user's"
    assert note.startswith("Traceback in process ")
    assert "in inner" in note and "KeyError: 'the cause'" in note and "ValueError: the effect" in note
    assert back.__traceback__ is None, "the local traceback begins where it is raised here"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (HasNoText(), "HasNoText: (its text cannot be made: RuntimeError)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_cannot_come_back_is_told_as_text(error: BaseException, text: str) -> None:
    back = failed(error)
    assert type(back) is RemoteError
    assert text in str(back) and back.message.startswith(type(error).__module__)
    assert "in failed" in back.__notes__[-1]


def attributes(error: BaseException) -> dict[str, Any]:
    names = {*vars(error), *copyreg._slotnames(type(error)), "errno", "filename", "code", "name"}  # type: ignore[attr-defined]  # no stub
    return {name: getattr(error, name) for name in names - {"__notes__"} if hasattr(error, name)}


@pytest.mark.parametrize(
    "error",
    [
        NeedsTwo(7, "layer 3"),
        TakesKeywords(code=7),
        HasSlots(7),
        OfTheSystem("data.idx"),
        Frozen(7),
        ImportError("no such module", name="missing"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_all_attributes_of_an_error_arrive_wherever_it_is(error: BaseException) -> None:
    group = BaseExceptionGroup("a group", [error])
    holder = ValueError("its cause")
    holder.__cause__ = error
    in_group: Any = failed(group)
    for back in (failed(error), in_group.exceptions[0], failed(holder).__cause__, sent([error])[0]):
        assert type(back) is type(error) and str(back) == str(error) and back.args == error.args
        assert attributes(back) == attributes(error)


def test_a_group_with_a_constructor_of_its_own_arrives_with_its_members() -> None:
    back: Any = failed(Several(2))
    members: Any = back.exceptions
    assert type(back) is Several and back.count == 2
    assert [(type(part), part.code) for part in members] == [(NeedsTwo, 0), (NeedsTwo, 1)]


def test_the_cause_of_an_error_arrives_with_it() -> None:
    error = ValueError("the effect")
    error.__cause__ = NeedsTwo(7, "layer 3")
    error.__cause__.__cause__ = KeyError("the first")
    cause = failed(error).__cause__
    assert type(cause) is NeedsTwo and cause.code == 7 and repr(cause.__cause__) == "KeyError('the first')"
    assert failed(ValueError("alone")).__cause__ is None


def test_an_error_with_a_float8_tensor_arrives_with_it() -> None:
    back = failed(HoldsATensor())
    assert type(back) is HoldsATensor and back.tensor.dtype is torch.float8_e4m3fn


def test_an_attribute_that_cannot_be_pickled_is_left_out_and_named() -> None:
    error = ValueError("the effect")
    error.__cause__ = HoldsAGenerator()
    group: Any = failed(ExceptionGroup("both failed", [KeyError("one"), HoldsAGenerator()]))
    for back in (failed(HoldsAGenerator()), failed(error).__cause__, group.exceptions[1]):
        assert type(back) is HoldsAGenerator and str(back) == "has a generator"
        assert attributes(back) == {"code": 7}
        assert "left out, as it cannot be pickled: unpicklable" in back.__notes__


def test_an_error_of_a_class_that_no_module_has_comes_back_as_that_class() -> None:
    class Local(LookupError):
        def __init__(self, what: str, where: int) -> None:
            super().__init__(f"{what} is not at {where}")
            self.where = where

    back = failed(Local("nothing", 7))
    assert type(back) is Local and back.where == 7 and str(back) == "nothing is not at 7"
    assert "in failed" in back.__notes__[-1]


def ping(depth: int) -> None:
    if depth == 0:
        raise ValueError("deep " + "x" * 100_000)
    pong(depth)


def pong(depth: int) -> None:
    ping(depth - 1)


def test_a_very_long_traceback_keeps_both_ends() -> None:
    try:
        ping(400)
    except ValueError as error:
        packed = pack_error(error)
    text = error_text(packed)
    assert len(text.trace) < 101_000
    assert "in test_a_very_long_traceback_keeps_both_ends" in text.trace and text.trace.rstrip().endswith("xxx")
    assert "characters left out" in text.trace


def test_the_text_of_a_packed_error_is_read_without_its_type() -> None:
    text = error_text(pack_error(NeedsTwo(7, "layer 3")))
    assert (text.name, text.message, str(text)) == ("NeedsTwo", "error 7 in layer 3", "NeedsTwo: error 7 in layer 3")
    assert str(error_text(pack_error(ValueError()))) == "ValueError"


def test_an_error_whose_class_is_unknown_here_is_told_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_error(NeedsTwo(7, "layer 3"))
    monkeypatch.delattr(sys.modules[__name__], "NeedsTwo")
    back = unpack_error(packed)
    assert type(back) is RemoteError and "NeedsTwo: error 7 in layer 3" in str(back)


def test_an_error_that_cannot_pickle_itself_is_rebuilt_without_its_ways() -> None:
    back = unpack_error(pack_error(CannotPickleItself("x")))
    assert type(back) is CannotPickleItself and back.args == ("x",)


def test_a_note_is_the_last_line_of_the_traceback_and_the_error_is_as_it_was() -> None:
    noted = with_note(pack_error(KeyError("x")), "(on node b)")
    assert error_text(noted).trace.endswith("KeyError: 'x'\n(on node b)\n")
    error = unpack_error(noted)
    assert isinstance(error, KeyError) and error.args == ("x",)
    assert error.__notes__[-1].endswith("KeyError: 'x'\n(on node b)")


@pytest.mark.parametrize(
    "error", [ValueError("a\nb"), WorkerLostError("worker w1 died."), NotSendableError("no"), OSError()]
)
def test_without_a_loader_builtin_errors_and_our_own_keep_type_and_text(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack_error(error)
    monkeypatch.setattr(pickle, "loads", None)
    back = unpack_error(packed, None)
    assert type(back) is type(error) and str(back) == str(error)


@pytest.mark.parametrize(
    "error", [NeedsTwo(7, "layer 3"), SystemExit(3), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")]
)
def test_without_a_loader_other_errors_are_told_as_text(error: BaseException) -> None:
    back = unpack_error(pack_error(error), None)
    assert type(back) is RemoteError and f"{type(error).__name__}: {error}" in str(back)


def test_an_error_does_not_bring_the_mark_of_a_call_that_was_not_sent() -> None:
    error = NotSendableError("a call of the callee")
    error.__dict__["_was_never_sent"] = True
    assert not was_never_sent(codec.unpack_error(codec.pack_error(error)))
