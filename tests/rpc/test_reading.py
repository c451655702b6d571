"""What a hostile peer can write into a pickle for a worker with an allow-list, and that none of it runs or changes
anything but what the list says."""

import collections
import enum
import functools
import operator
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fanwise.base import errors
from fanwise.base.errors import FanwiseError, RemoteError, WireError, WorkerLostError
from fanwise.links.codec import pack_error, unpack_error
from fanwise.rpc.allow_list.allowing import Allowed
from fanwise.rpc.messages.pickling import decode_call, encode_call


class Counter:
    """What is allowed."""

    start: ClassVar[int] = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    def _secret(self) -> str:
        return "secret"

    @property
    def double(self) -> Callable[[], str]:
        return canary

    class Inner:
        pass

    @staticmethod
    def parse(text: str) -> int:
        return int(text)

    @classmethod
    def empty(cls) -> "Counter":
        return cls(0)

    @functools.cache  # noqa: B019  # as users do
    def slow(self) -> int:
        return self.value


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Slotted:
    x: int


class Plainly:
    __slots__ = ("x",)


class Colour(enum.Enum):
    RED = 1


class Bag(dict[str, int]):
    pass


class Stateful:
    def __setstate__(self, state: object) -> None:
        self.state = ("set", state)


class Own(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Subclass(Counter):
    pass


def step(x: int, y: int = 1) -> int:
    return x + y


ran: list[str] = []


def canary(*args: object) -> str:
    """What no attack may reach."""
    ran.append(repr(args))
    return "ran"


LISTED: list[Any] = [Counter, Point, Slotted, Plainly, Colour, Bag, Stateful, Own, step]
allowed = Allowed(LISTED)
HERE = __name__


@pytest.fixture(autouse=True)
def _nothing_runs_or_changes() -> Iterator[None]:
    ran.clear()
    before = _what_may_not_change()
    yield
    assert ran == []
    assert _what_may_not_change() == before


def _what_may_not_change() -> object:
    of_class = {name: value for name, value in vars(Counter).items() if name != "__slotnames__"}  # pickling keeps that
    return of_class, step.__defaults__, dict(vars(step))


# -- a pickle by hand --------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    data = value.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + pickle.STACK_GLOBAL


def whole(*parts: bytes) -> bytes:
    return pickle.PROTO + b"\4" + b"".join(parts) + pickle.STOP


COUNTER, STEP = named(HERE, "Counter"), named(HERE, "step")
A_COUNTER = COUNTER + b"K\5" + pickle.TUPLE1 + pickle.REDUCE
NOTHING = pickle.EMPTY_TUPLE
GETATTR = named("builtins", "getattr")


def state(**values: bytes) -> bytes:
    return pickle.EMPTY_DICT + b"".join(text(name) + value + pickle.SETITEM for name, value in values.items())


ATTACKS = {
    # names
    "system": named("os", "system") + text("true") + pickle.TUPLE1 + pickle.REDUCE,
    "posix": named("posix", "system") + text("true") + pickle.TUPLE1 + pickle.REDUCE,
    "eval": named("builtins", "eval") + text("1") + pickle.TUPLE1 + pickle.REDUCE,
    "import": named("builtins", "__import__") + text("os") + pickle.TUPLE1 + pickle.REDUCE,
    "type": named("builtins", "type") + A_COUNTER + pickle.TUPLE1 + pickle.REDUCE,
    "pickle.loads": named("pickle", "loads") + b"C\x01." + pickle.TUPLE1 + pickle.REDUCE,
    "a function that is not listed": named(HERE, "canary") + NOTHING + pickle.REDUCE,
    "a subclass": named(HERE, "Subclass") + b"K\1" + pickle.TUPLE1 + pickle.REDUCE,
    "globals by a dotted name": named(HERE, "Counter.add.__globals__"),
    "globals of a function": named(HERE, "step.__globals__"),
    "a dunder by a dotted name": named(HERE, "Counter.__subclasses__"),
    "a private method": named(HERE, "Counter._secret"),
    "an inner class": named(HERE, "Counter.Inner"),
    "a property": named(HERE, "Counter.double"),
    "a module behind a module": named(HERE, "os.system"),
    "a module": named("fanwise.rpc", "pickling"),
    "through our own": named("fanwise.rpc.references.proxy", "partial"),
    "through torch": named("torch", "os.system"),
    "torch.load": named("torch", "load"),
    "a hub of torch": named("torch.hub", "load"),
    "torch's own rebuild": named("torch.multiprocessing.reductions", "rebuild_cuda_tensor"),
    "torch's storage": named("torch.storage", "_load_from_bytes") + b"C\x01." + pickle.TUPLE1 + pickle.REDUCE,
    "torch's tensor": named("torch._utils", "_rebuild_tensor_v2"),
    "torch's wrapper": named("torch._utils", "_rebuild_wrapper_subclass"),
    "torch's type": named("torch._tensor", "_rebuild_from_type_v2"),
    "torch's exception": named("torch._utils", "ExceptionWrapper"),
    "numpy": named("numpy.core.multiarray", "_reconstruct"),
    "numpy's ufunc": named("numpy.core", "_ufunc_reconstruct") + text("os") + text("system") + pickle.TUPLE2 + b"R",
    "numpy's loader": named("numpy", "load"),
    "attrgetter": named("operator", "attrgetter") + text("add.__globals__") + pickle.TUPLE1 + pickle.REDUCE,
    "methodcaller": named("operator", "methodcaller") + text("add") + pickle.TUPLE1 + pickle.REDUCE,
    "partial": named("functools", "partial") + STEP + pickle.TUPLE1 + pickle.REDUCE,
    "reduce": named("functools", "reduce"),
    "copyreg": named("copyreg", "_reconstructor") + COUNTER + named("builtins", "object") + b"N" + pickle.TUPLE3 + b"R",
    "newobj": named("copyreg", "__newobj__") + COUNTER + pickle.TUPLE1 + pickle.REDUCE,
    "cloudpickle": named("cloudpickle.cloudpickle", "_make_function"),
    "code": named("types", "CodeType"),
    "a script": named("fanwise.rpc.messages.pickling", "_script_function") + text("f") + pickle.TUPLE1 + pickle.REDUCE,
    "a target is not called by a pickle": (
        named("fanwise.rpc.references.proxy", "_invoke") + A_COUNTER + text("add") + pickle.TUPLE2 + pickle.REDUCE
    ),
    "settings": named("fanwise.rpc.current", "set_current") + b"N" + pickle.TUPLE1 + pickle.REDUCE,
    # attributes
    "getattr of a class": GETATTR + COUNTER + text("__subclasses__") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr of an instance": GETATTR + A_COUNTER + text("__class__") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr of its private method": GETATTR + A_COUNTER + text("_secret") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr of its property": GETATTR + A_COUNTER + text("double") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr of its value": GETATTR + A_COUNTER + text("value") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr of a function": GETATTR + STEP + text("__globals__") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr of a text": GETATTR + text("x") + text("format") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr of a dictionary": GETATTR + named("builtins", "dict") + text("fromkeys") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr with dots": GETATTR + A_COUNTER + text("add.__globals__") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr with a default": GETATTR + A_COUNTER + text("x") + STEP + pickle.TUPLE3 + pickle.REDUCE,
    "getattr of getattr": GETATTR + GETATTR + text("__class__") + pickle.TUPLE2 + pickle.REDUCE,
    "getattr by no name": GETATTR + A_COUNTER + b"K\1" + pickle.TUPLE2 + pickle.REDUCE,
    # calls of what is not named
    "a call of an instance": A_COUNTER + NOTHING + pickle.REDUCE,
    "a call of a text": text("x") + NOTHING + pickle.REDUCE,
    "a call of a method": (
        GETATTR + A_COUNTER + text("add") + pickle.TUPLE2 + pickle.REDUCE + b"K\1" + pickle.TUPLE1 + pickle.REDUCE
    ),
    "a call by no tuple": STEP + pickle.EMPTY_LIST + pickle.REDUCE,
    "a new text": text("x") + NOTHING + pickle.NEWOBJ,
    "a new plain value": named("builtins", "bytes") + b"J\xff\xff\xff\x7f" + pickle.TUPLE1 + pickle.NEWOBJ,
    "a plain value of any size": named("builtins", "bytes") + b"J\xff\xff\xff\x7f" + pickle.TUPLE1 + pickle.REDUCE,
    "a buffer of any size": named("builtins", "bytearray") + b"J\xff\xff\xff\x7f" + pickle.TUPLE1 + pickle.REDUCE,
    "a list of a range": (
        named("builtins", "list")
        + (named("builtins", "range") + b"K\0J\xff\xff\xff\x7fK\1" + pickle.TUPLE3 + pickle.REDUCE)
        + pickle.TUPLE1
        + pickle.REDUCE
    ),
    "a set of a range": (
        named("builtins", "set")
        + (named("builtins", "range") + b"K\0J\xff\xff\xff\x7fK\1" + pickle.TUPLE3 + pickle.REDUCE)
        + pickle.TUPLE1
        + pickle.REDUCE
    ),
    # state
    "state of a class": COUNTER + state(add=STEP) + pickle.BUILD,
    "slots of a class": COUNTER + b"N" + state(add=STEP) + pickle.TUPLE2 + pickle.BUILD,
    "state of a function": STEP + b"N" + state(__defaults__=b"K\7" + pickle.TUPLE1) + pickle.TUPLE2 + pickle.BUILD,
    "attributes of a function": STEP + state(x=b"K\1") + pickle.BUILD,
    "state of a plain type": named("collections", "deque") + b"N" + state(x=b"N") + pickle.TUPLE2 + pickle.BUILD,
    "state of a list": pickle.EMPTY_LIST + state(x=b"N") + pickle.BUILD,
    "state of a tensor's type": named("torch", "float32") + state(x=b"N") + pickle.BUILD,
    "a method in a state": A_COUNTER + state(add=STEP) + pickle.BUILD,
    "a static method in a state": A_COUNTER + state(parse=STEP) + pickle.BUILD,
    "the class in a state": A_COUNTER + state(__class__=named(HERE, "Stateful")) + pickle.BUILD,
    "the class in slots": A_COUNTER + b"N" + state(__class__=named(HERE, "Bag")) + pickle.TUPLE2 + pickle.BUILD,
    "an attribute in slots": A_COUNTER + b"N" + state(value=STEP) + pickle.TUPLE2 + pickle.BUILD,
    "a property in slots": A_COUNTER + b"N" + state(double=STEP) + pickle.TUPLE2 + pickle.BUILD,
    "a state of numbers": A_COUNTER + pickle.EMPTY_DICT + b"K\1K\1" + pickle.SETITEM + pickle.BUILD,
    "a state that is a list": A_COUNTER + pickle.EMPTY_LIST + pickle.BUILD,
    # items
    "an item of a class": COUNTER + b"K\1K\1" + pickle.SETITEM,
    "an item of an instance of something else": named("torch", "float32") + b"K\1" + pickle.APPEND,
    "items of a set that is none": pickle.EMPTY_LIST + pickle.MARK + b"K\1" + pickle.ADDITEMS,
    # steps that no value needs
    "by an extension": pickle.EXT1 + b"\1",
    "by a persistent id": text("x") + pickle.BINPERSID,
    "by a persistent line": pickle.PERSID + b"x\n",
    "the old way": pickle.MARK + b"i" + f"{HERE}\ncanary\n".encode(),
    "the other old way": pickle.MARK + COUNTER + b"o",
    "a number as a line": pickle.INT + b"1\n",
    "a memo that is empty": pickle.BINGET + b"\5",
    "a mark that is not there": pickle.TUPLE,
    "a buffer that is not there": pickle.NEXT_BUFFER,
    "names that are no texts": b"K\1K\2" + pickle.STACK_GLOBAL,
    "a text longer than all": pickle.BINUNICODE8 + struct.pack("<Q", 1 << 60) + b"x",
    "a number of negative size": pickle.LONG4 + struct.pack("<i", -1),
    # guarded makers
    "a parameter with hooks": (
        named("torch._utils", "_rebuild_parameter") + b"N" + pickle.NEWTRUE + b"N" + pickle.TUPLE3 + pickle.REDUCE
    ),
    "a layout of any name": named("torch.serialization", "_get_layout") + b"K\1" + pickle.TUPLE1 + pickle.REDUCE,
    "a worker of any kind": named("fanwise.rpc.worker_info", "WorkerInfo") + b"K\1K\1" + pickle.TUPLE2 + pickle.REDUCE,
    "an id of any kind": named("fanwise.rpc.references.orders", "GlobalId") + b"NNN" + pickle.TUPLE3 + pickle.NEWOBJ,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_gets_through(attack: str) -> None:
    with pytest.raises(WireError):
        allowed.loads(whole(ATTACKS[attack]))


@pytest.mark.parametrize("attack", ["system", "globals by a dotted name", "state of a class", "getattr of a class"])
def test_the_attacks_are_no_nonsense(attack: str) -> None:
    """The standard library's unpickler carries them out."""
    data = ATTACKS[attack]
    if attack == "state of a class":  # on a class of our own: the fixture sees what is left
        class_of = named(HERE, "Subclass")
        try:
            pickle.loads(whole(class_of + b"N" + state(add=STEP) + pickle.TUPLE2 + pickle.BUILD))
            assert vars(Subclass)["add"] is step
        finally:
            del Subclass.add
    else:
        pickle.loads(whole(data))


def test_a_key_that_takes_for_ever_to_hash_is_refused() -> None:
    doubled = NOTHING + b"".join(
        pickle.MEMOIZE + pickle.LONG_BINGET + struct.pack("<I", i) + pickle.TUPLE2 for i in range(60)
    )
    for use in (b"N" + pickle.SETITEM, pickle.ADDITEMS):
        start = pickle.EMPTY_DICT if use != pickle.ADDITEMS else pickle.EMPTY_SET + pickle.MARK
        with pytest.raises(WireError, match="has more than"):
            allowed.loads(whole(start + doubled + use))


# -- honest values -----------------------------------------------------------------------------------------------------


HONEST = [
    Point(1, 2),
    Slotted(3),
    Colour.RED,
    Bag(a=1),
    [Counter, step, Counter.parse, Counter.add],
    {(1, (2, 3)): frozenset(("a", "b"))},
    [2**100, -(2**40), -1, 65536, 1.5, "\ud800", "x" * 300, b"y" * 300],
    collections.deque([1, 2], maxlen=3),
    (1j, slice(None, 2), range(5), bytearray(b"z")),
]


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("value", HONEST, ids=lambda value: type(value).__name__)
def test_what_is_listed_comes_as_it_was(value: object, protocol: int) -> None:
    if protocol < 4 and any(part in (Counter.add, Counter.parse) for part in (value if type(value) is list else ())):
        value = [Counter, step]
    if protocol < 5 and type(value) is tuple:
        value = value[:3]
    back = allowed.loads(pickle.dumps(value, protocol=protocol))
    assert back == value and type(back) is type(value)


def test_instances_come_with_their_state() -> None:
    counter, plainly = Counter(3), Plainly()
    counter.more = [counter]  # type: ignore[attr-defined]  # as users do
    plainly.x = counter  # type: ignore[attr-defined]  # as above
    back = allowed.loads(pickle.dumps((plainly, Stateful()), protocol=5))
    assert back[0].x.value == 3 and back[0].x.more == [back[0].x]


def test_a_class_sets_its_own_state() -> None:
    value = Stateful()
    value.state = ("set", 1)
    assert allowed.loads(pickle.dumps(value)).state == ("set", {"state": ("set", 1)})


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.tuples(st.integers()), inner, max_size=4)
        | st.builds(Point, inner, inner)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=20,
)


@given(plain_values, st.integers(3, 5))
def test_any_plain_value_comes_as_it_was(value: object, protocol: int) -> None:
    assert allowed.loads(pickle.dumps(value, protocol=protocol)) == value


def test_what_the_code_of_a_listed_class_raises_is_raised() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        allowed.loads(whole(COUNTER + NOTHING + pickle.REDUCE))


@given(st.data())
@example(None)
def test_pickles_that_were_changed_run_nothing(data: st.DataObject | None) -> None:
    seeds = [*ATTACKS.values(), *(pickle.dumps(value, protocol=5)[2:-1] for value in HONEST)]
    if data is None:
        return
    changed = bytearray(whole(data.draw(st.sampled_from(seeds)), data.draw(st.sampled_from(seeds))))
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        allowed.loads(changed)
    except (
        FanwiseError,
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        ImportError,
        RuntimeError,
        ArithmeticError,
    ):
        pass
    assert ran == []


# -- calls -------------------------------------------------------------------------------------------------------------


def called(function: Any, *args: object) -> Any:  # Any: any function
    data, tensors, buffers = encode_call((function, args, {}), 0)
    back, back_args, back_kwargs = decode_call(data, tensors, buffers, allowed)
    return back(*back_args, **back_kwargs)


def test_calls_of_what_is_listed_go_through() -> None:
    assert called(step, 2) == 3
    assert called(Counter(4).add, 1) == 5
    assert called(Counter.parse, "7") == 7
    assert called(Counter.empty).value == 0
    assert called(Counter, 9).value == 9


@pytest.mark.parametrize("function", [canary, list, bytes, int, os.getpid, torch.load, functools.partial(step), print])
def test_calls_of_anything_else_do_not(function: object) -> None:
    with pytest.raises(WireError, match="is not on the allow-list of this worker"):
        called(function, 1)


def test_plain_types_can_be_listed() -> None:
    data, tensors, buffers = encode_call((list, ((1, 2),), {}), 0)
    function, args, _ = decode_call(data, tensors, buffers, Allowed(["builtins.list"]))
    assert function(*args) == [1, 2]


@pytest.mark.parametrize(
    "call",
    [
        A_COUNTER + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
        STEP + pickle.EMPTY_LIST + pickle.EMPTY_DICT + pickle.TUPLE3,
        STEP + NOTHING + pickle.TUPLE2,
        STEP,
        text(f"{HERE}:canary") + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
        text("os:system") + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
        text("builtins:list") + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
        text("fanwise.rpc.references.proxy:partial") + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
        text("builtins:getattr") + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
        GETATTR + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
        named("torch._C", "_VariableFunctionsClass") + NOTHING + pickle.EMPTY_DICT + pickle.TUPLE3,
    ],
)
def test_a_call_is_a_listed_function_and_its_arguments(call: bytes) -> None:
    with pytest.raises(WireError):
        decode_call(whole(call), [], [], allowed)


# -- methods by reference ----------------------------------------------------------------------------------------------


class Module(torch.nn.Module):
    def forward(self, x: int) -> int:
        return x + 1


def test_public_methods_of_listed_classes_can_be_called_by_reference() -> None:
    counter = Counter(1)
    assert allowed.method_of(counter, "add")(2) == 3
    assert allowed.method_of(counter, "parse")("3") == 3
    assert allowed.method_of(counter, "empty")().value == 0
    assert allowed.method_of(counter, "slow")() == 3
    assert Allowed([Module]).method_of(Module(), "__call__")(1) == 2
    assert Allowed([Module]).method_of(Module(), "forward")(1) == 2
    assert Allowed([Counter._secret]).method_of(counter, "_secret")() == "secret"


@pytest.mark.parametrize(
    "name", ["__getattribute__", "__reduce_ex__", "__init__", "__class__", "_secret", "__dict__", "__setattr__"]
)
def test_private_ones_cannot(name: str) -> None:
    with pytest.raises(WireError, match="is not on the allow-list of this worker"):
        allowed.method_of(Counter(1), name)


@pytest.mark.parametrize("name", ["value", "double", "Inner", "start", "nothing"])
def test_what_is_no_method_cannot(name: str) -> None:
    with pytest.raises(AttributeError, match="has no method"):
        allowed.method_of(Counter(1), name)


def test_what_an_instance_has_under_a_name_does_not_count() -> None:
    counter = Counter(1)
    counter.__dict__["add"] = canary
    assert allowed.method_of(counter, "add")(1) == 2


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Subclass(1), "add"),
        (Counter, "mro"),
        (Counter, "empty"),
        (step, "__call__"),
        ([1], "append"),
        ({}, "__getitem__"),
        (os, "system"),
        (Counter(1).add, "__call__"),
        (operator.attrgetter("x"), "__call__"),
        (torch.ones(1), "numpy"),
    ],
)
def test_methods_of_other_classes_cannot(value: object, name: str) -> None:
    with pytest.raises(WireError, match="is not on the allow-list of this worker"):
        allowed.method_of(value, name)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a"),
        WorkerLostError("w"),
        errors.DeadlineExceeded("late"),
        Own(3, "x"),
        OSError(2, "gone"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "wrong"),
    ],
)
def test_errors_that_are_known_or_listed_come_in_their_type(error: Exception) -> None:
    back = unpack_error(pack_error(error), allowed.loads_error)
    assert type(back) is type(error) and str(back) == str(error) and vars(back).get("code") == vars(error).get("code")


class Unlisted(Exception):
    def __init__(self) -> None:
        super().__init__("x")

    def __reduce__(self) -> Any:
        return canary, ("an error",)


@pytest.mark.parametrize(
    "error", [Unlisted(), SystemExit(3), KeyboardInterrupt(), type("Local", (Exception,), {})("x")]
)
def test_other_errors_come_as_their_text(error: BaseException) -> None:
    back = unpack_error(pack_error(error), allowed.loads_error)
    ran.clear()  # what packing has run, where the error was raised
    assert type(back) is RemoteError and type(error).__name__ in str(back)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_answer_that_is_an_error_runs_nothing_at_the_caller(attack: str) -> None:
    from fanwise.links.codec import _plain

    packed, _ = _plain.dumps(("m", "Error", "text", "trace", 7, whole(ATTACKS[attack])))
    assert type(unpack_error(packed, allowed.loads_error)) is RemoteError


def test_an_error_cannot_replace_its_methods() -> None:
    remade = named("fanwise.links.error_reducer", "rebuild_error")
    for kind, attributes in ((named(HERE, "Own"), state(with_traceback=STEP)), (named("builtins", "int"), state())):
        with pytest.raises(WireError):
            allowed.loads_error(whole(remade + kind + NOTHING + attributes + pickle.TUPLE3 + pickle.REDUCE))


def test_nothing_is_imported_that_is_not_allowed() -> None:
    assert "this" not in sys.modules
    for module, name in (("this", "s"), ("torch.this", "s"), ("torch", "_inductor.x")):
        with pytest.raises(WireError):
            allowed.loads(whole(named(module, name)))
    assert "this" not in sys.modules


def test_arrays_of_objects_do_not_come() -> None:
    with pytest.raises(WireError, match="numpy"):
        allowed.loads(pickle.dumps(np.array([canary], dtype=object)))


class SetOf:
    """In a pickle: a set, made by a call."""

    def __init__(self, kind: type, key: object) -> None:
        self._kind, self._key = kind, key

    def __reduce__(self) -> tuple[type, tuple[list[object]]]:
        return self._kind, ([self._key],)


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_that_is_made_by_a_call_is_not_hashed_for_ever(kind: type) -> None:
    key: object = ()
    for _ in range(64):
        key = (key, key)
    with pytest.raises(WireError, match="has more than 100000 parts"):
        Allowed(()).loads(pickle.dumps(SetOf(kind, key), protocol=4), ())
    assert Allowed(()).loads(pickle.dumps(SetOf(kind, (1, 2)), protocol=4), ()) == kind([(1, 2)])
