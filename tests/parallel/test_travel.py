"""Every way out of a process takes the same values, and they arrive as they were."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fanwise
from fanwise.links.codec import dumps_by_value, loads
from fanwise.pool.functions import pack, unpack_arguments, unpack_function
from fanwise.rpc.messages.messages import dumps as rpc_dumps
from fanwise.rpc.messages.messages import loads as rpc_loads
from fanwise.rpc.messages.serializer import Serializer

from .values_that_travel import MODULES, TENSORS, difference, make


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of types that are experimental
        yield


def identity(value: object) -> object:
    return value


def as_argument(value: object) -> Any:
    (received,), _ = unpack_arguments(pack(identity, (value,)).arguments)
    return received


def in_a_closure(value: object) -> Any:
    return unpack_function(pack(lambda: value).function)()


def as_result(value: object) -> Any:
    head, buffers = dumps_by_value(value)
    return loads(head, [memoryview(bytearray(buffer)) for buffer in buffers])


def gathered(value: object) -> Any:
    return fanwise.here().gather([value])[0][0]


def returned_by_run(value: object) -> Any:
    return fanwise.run(lambda run: value, devices=["cpu"], progress=False)


def _through_rpc(value: object, call: str | None) -> Any:
    head, buffers = rpc_dumps(Serializer().serialize(value, 1, call=call))
    message = rpc_loads(memoryview(bytes(head)), [memoryview(bytearray(buffer)) for buffer in buffers])
    return Serializer().deserialize(message if call is None else message[0], 0).value


def as_rpc_argument(value: object) -> Any:
    _, (received,), _ = _through_rpc((identity, (value,), {}), "identity")
    return received


def as_rpc_result(value: object) -> Any:
    return _through_rpc(value, None)


PATHS: list[Callable[[object], Any]] = [
    as_argument,
    in_a_closure,
    as_result,
    gathered,
    returned_by_run,
    as_rpc_argument,
    as_rpc_result,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("makers", [TENSORS, MODULES], ids=["tensors", "modules"])
def test_values_arrive_as_they_were(path: Callable[[object], Any], makers: dict[str, Callable[[], Any]]) -> None:
    values, different = make(makers), {}
    for name, value in values.items():
        try:
            different[name] = difference(value, path(value))
        except Exception as error:
            different[name] = repr(error)
    assert {name: what for name, what in different.items() if what} == {}
