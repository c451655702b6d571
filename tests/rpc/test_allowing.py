"""The allow-list: what a pickle may name, and that nothing else is even imported."""

import collections
import functools
import operator
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fanwise.base.errors import WireError
from fanwise.rpc.allow_list.allowing import Allowed
from fanwise.rpc.allow_list.hints import what_to_do
from fanwise.rpc.messages import pickling
from fanwise.tensor import to_wire
from fanwise.tensor.wire.header import ENGINE_CODES
from fanwise.tensor.wire.reducing import rebuild_array


def step(x: int) -> int:
    return x + 1


def other(x: int) -> int:
    return x


class Account:
    def __init__(self, total: int) -> None:
        self.total = total

    def add(self, x: int) -> int:
        return self.total + x

    @classmethod
    def empty(cls) -> "Account":
        return cls(0)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self._reduced = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._reduced


def through(allow: list[Any], value: object) -> Any:  # Any: functions, types and names; what was pickled
    return Allowed(allow).loads(pickle.dumps(value, protocol=5), ())


@pytest.mark.parametrize(
    "value",
    [
        [1, "a", None, (2.5, b"b"), {"k": {1, 2}, "f": frozenset((3,))}],
        [bytearray(b"x"), 1j, slice(1, 2), range(3), collections.OrderedDict(a=1), collections.deque((1,))],
        [torch.float16, torch.strided, torch.Size([2, 3]), torch.device("cpu")],
        [int, str, list],
    ],
)
def test_plain_values_need_no_leave(value: object) -> None:
    assert through([], value) == value


@pytest.mark.parametrize(
    "value", [step, Account(3), os.system, Account.empty, pickle.loads, functools.partial(step, 1)]
)
def test_nothing_else_comes_through_an_empty_list(value: object) -> None:
    with pytest.raises(WireError, match="is not on the allow-list of this worker"):
        through([], value)


def test_functions_and_types_are_allowed_as_objects() -> None:
    assert through([step, Account], (step, Account(3)))[1].total == 3
    with pytest.raises(WireError, match=r"other is not on the allow-list"):
        through([step, Account], other)


def test_names_and_whole_modules_are_allowed_as_text() -> None:
    assert through([f"{__name__}.step"], step) is step
    assert through([f"{__name__}.*"], (step, other)) == (step, other)
    assert through(["operator.add", "_operator.*"], operator.add) is operator.add


def test_methods_are_allowed_with_their_class() -> None:
    add, empty, plain = through([Account], (Account(3).add, Account.empty, Account.add))
    assert (add(4), empty().total, plain(Account(1), 1)) == (7, 0, 2)


def test_one_operator_of_torch_does_not_open_the_others() -> None:
    assert through([torch.add], torch.add)(torch.ones(1), 1).item() == 2
    assert through(["torch.add"], torch.add) is not None
    assert through([torch.Tensor.add], torch.Tensor.add)(torch.ones(1), 1).item() == 2
    for refused in (torch.mul, torch.Tensor.mul, torch.load):
        with pytest.raises(WireError, match="is not on the allow-list"):
            through([torch.add, torch.Tensor.add], refused)


def test_a_class_is_no_way_to_what_lies_behind_it() -> None:
    for name in ("__subclasses__", "__init__", "__init__.__globals__"):
        with pytest.raises(WireError, match="is not on the allow-list"):
            through([Account], Evil(getattr, Account, name))


@pytest.mark.parametrize("function", [os.system, eval, exec, pickle.loads, __import__])
def test_what_runs_when_it_is_unpickled_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(WireError, match="is not on the allow-list"):
        through([step], Evil(function, "1"))


@pytest.mark.parametrize(
    "named",
    [
        (__name__, "os.system"),
        (__name__, "pickle.loads"),
        (__name__, "Account.__subclasses__"),
        (__name__, "Account.add.__globals__"),
        (__name__, "step.__globals__"),
        ("fanwise.rpc.optim", "torch.load"),
        ("fanwise.rpc.nn", "pickling.pickle.loads"),
        ("builtins", "dict.fromkeys"),
        ("torch", "load"),
    ],
)
@pytest.mark.parametrize("allow", [[], [Account, step], [f"{__name__}.*"]])
def test_a_dotted_name_does_not_lead_out_of_what_is_allowed(named: tuple[str, str], allow: list[Any]) -> None:
    module, name = (text.encode() for text in named)
    data = b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(name)]) + name + b"\x93."
    assert pickle.loads(data) is not None, "without a list it is found"
    with pytest.raises(WireError, match="is not on the allow-list"):
        Allowed(allow).loads(data, ())


def test_the_error_names_what_to_add() -> None:
    with pytest.raises(WireError) as caught:
        through([], step)
    assert f"add '{__name__}.step' to allow= of TensorPipeRpcBackendOptions" in str(caught.value)


@pytest.mark.parametrize(
    "function", [os.system, os.popen, eval, exec, pickle.loads, pickle.load, torch.load, __import__, getattr, open]
)
def test_the_error_tells_nobody_to_list_what_gives_the_worker_away(function: Callable[..., Any]) -> None:
    data = pickle.dumps((function, ("1",), {}))
    with pytest.raises(WireError, match="belongs on no allow-list") as caught:
        Allowed([step]).loads_call(data)
    assert "to allow=" not in str(caught.value)


def test_a_lambda_is_to_be_defined_at_the_top_of_a_module() -> None:
    data = pickle.dumps((pickling.ByValue(lambda: 1), (), {}))
    with pytest.raises(WireError, match=r"A lambda, .* at the top of a module that both workers import"):
        Allowed([step]).loads_call(data)


@pytest.mark.parametrize(
    "harmless", ["operator.mul", "shop.os.step", "ossify.run", "osmnx.graph", "numpy.lib.scimath.sqrt"]
)
def test_names_that_only_look_like_dangerous_ones_may_be_listed(harmless: str) -> None:
    assert f"add {harmless!r} to allow=" in what_to_do(harmless)


def test_the_methods_of_a_class_that_runs_programs_are_not_offered_either() -> None:
    with pytest.raises(WireError, match="With subprocess a caller runs programs"):
        Allowed([]).method_of(object.__new__(subprocess.Popen), "communicate")


def test_nothing_is_imported_that_is_not_allowed() -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises((WireError, pickle.UnpicklingError)):
        Allowed([]).loads(b"\x80\x04\x8c\x0bantigravity\x8c\x05flyer\x93.", ())
    assert "antigravity" not in sys.modules


def test_an_array_loads_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    header, (memory,) = to_wire(np.arange(3.0))
    monkeypatch.setitem(sys.modules, "jax", None)  # to load it is an error
    for engine in ("numpy", "jax"):
        named = header[:2] + bytes([ENGINE_CODES[engine]]) + header[3:]
        data = pickle.dumps(Rebuilt(named, bytes(memory)), protocol=5)
        if engine == "numpy":
            assert Allowed([]).loads(data, ()).tolist() == [0.0, 1.0, 2.0]
        else:
            with pytest.raises(WireError, match=r"has not loaded jax.*\nImport jax here before, or send .*to_numpy"):
                Allowed([]).loads(data, ())


class Rebuilt(NamedTuple):
    """An array, as its pickle makes it again."""

    header: bytes
    memory: bytes

    def __reduce__(self) -> tuple[Any, tuple[bytes, bytes]]:
        return rebuild_array, (self.header, self.memory)


def test_what_has_no_name_cannot_be_allowed() -> None:
    with pytest.raises(TypeError, match="allow= takes functions, types and names"):
        Allowed([lambda: 1])
    with pytest.raises(ValueError, match="names no module"):
        Allowed(["step"])
