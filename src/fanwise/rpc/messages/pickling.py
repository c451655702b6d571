"""Serializes arguments and results of calls.

    encode:  value --> pickle, tensor table, array buffers; references learn the receiver
    decode:  the inverse

Exact tensors are moved to a table, where autograd finds them. Everything else is pickle 5 with out-of-band buffers for
arrays (also of JAX and TensorFlow: `tensor.wire`). References can only be pickled here, because their owner must learn
of each copy: `rref` hooks in through `register`. Encoding and decoding nest, because pickled objects may make calls. A
function without an importable name, such as a lambda, is sent by value (`ByValue`), a scripted function by its name in
the TorchScript of the receiver.
"""

import contextlib
import io
import pickle
import struct
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn

import torch

from ...base.errors import FanwiseError, NotSendableError
from ...links.pickler import Pickler, Reducer
from ...tensor.wire import array_reducers, numpy_reducers, reduce_tensor
from ...tensor.with_torch.wire import CODE_BY_DTYPE
from .ids import Fork, Invocation

Buffer = bytes | bytearray | memoryview


class EncodingState:
    """The value that a thread pickles: its receiver and out-of-band data.

    Attributes:
        forks: forks of the references in the value; None if it is only tested.
        keep_alive: references that the caller keeps until the reply; None if it is no call.
    """

    __slots__ = ("forks", "keep_alive", "tensors", "to")

    def __init__(self, to: int, forks: list[Fork] | None, keep_alive: list[Any] | None = None) -> None:
        self.to = to
        self.forks = forks
        self.keep_alive = keep_alive
        self.tensors: list[torch.Tensor] = []


class _PicklingContext(threading.local):
    encoding: EncodingState | None = None
    received: Sequence[torch.Tensor] | None = None


_context = _PicklingContext()
# A pickler of the user for calls of this process, set through `torch_compat`.
custom_pickler: Any = None
_reducers: dict[type, Reducer] = {}
# Values of exactly these types are pickled independently of reducers, without out-of-band data.
_SIMPLE = frozenset((type(None), bool, int, float, str))


def register(kind: type, reducer: Reducer) -> None:
    """Pickle objects of exactly this type with `reducer(object)`, in calls only. Later registrations are ignored."""
    _reducers.setdefault(kind, reducer)
    _pickler.forget()


def encoding() -> EncodingState | None:
    """Return the state of the current `encode` or `encode_call` of this thread."""
    return _context.encoding


def encode(
    value: object,
    to: int,
    forks: list[Fork] | None = None,
    keep_alive: list[Any] | None = None,
) -> tuple[bytes, list[torch.Tensor], list[memoryview]]:
    """Return the pickle of `value` for worker `to`, its tensors, and buffers that share the memory of the value.

    Forks of references in `value` are added to `forks`; None only tests whether the value can be pickled. Raises the
    error of pickle; then the caller must roll back the forks. `keep_alive`: see `EncodingState`.
    """
    if type(value) in _SIMPLE:
        return pickle.dumps(value, 5), [], []
    state = EncodingState(to, forks, keep_alive)
    previous, _context.encoding = _context.encoding, state
    try:
        data, buffers = _pickler.dumps(value)
        return data, state.tensors, buffers
    finally:
        _context.encoding = previous


def encode_call(
    call: Invocation,
    to: int,
    forks: list[Fork] | None = None,
    keep_alive: list[Any] | None = None,
) -> tuple[bytes, list[torch.Tensor], list[memoryview]]:
    """As `encode`, for a function and its arguments. A function without a name is sent by value."""
    if custom_pickler is not None:
        with _encoding_to(to, forks):
            return *custom_pickler.serialize(call), []
    text = name_of_function(call[0])
    if text is not None:
        if not call[2] and _SIMPLE.issuperset(map(type, call[1])):
            return pickle.dumps((text, call[1], {}), 5), [], []
        return encode((text, call[1], call[2]), to, forks, keep_alive)
    try:
        return encode(call, to, forks, keep_alive)
    except Exception as error:
        if is_self_explanatory(error) or is_future_error(error) or _is_picklable(call[0], to):
            raise
    return encode((ByValue(call[0]), *call[1:]), to, forks, keep_alive)


def _is_picklable(function: object, to: int) -> bool:
    try:
        encode(function, to)
    except Exception:
        return False
    return True


def encode_alone(value: object, reducers: Mapping[type, Reducer]) -> tuple[bytes, list[torch.Tensor]]:
    """Pickle a part of a message with additional reducers. Return the pickle and its tensors."""
    previous = _context.encoding
    with _encoding_to(*((-1, None) if previous is None else (previous.to, previous.forks))) as tensors:
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, protocol=5)
        pickler.dispatch_table = ChainMap({**reducers}, _pickler.table)
        pickler.dump(value)
    return stream.getvalue(), tensors


@contextlib.contextmanager
def _encoding_to(to: int, forks: list[Fork] | None) -> Iterator[list[torch.Tensor]]:
    previous, _context.encoding = _context.encoding, (state := EncodingState(to, forks))
    try:
        yield state.tensors
    finally:
        _context.encoding = previous


def decode(data: Buffer, tensors: Sequence[torch.Tensor], buffers: Sequence[memoryview]) -> Any:
    """Return the value. Raises the error of unpickling."""
    if not tensors:
        return pickle.loads(data, buffers=buffers)
    previous, _context.received = _context.received, tensors
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        _context.received = previous


def decode_call(data: Buffer, tensors: Sequence[torch.Tensor], buffers: Sequence[memoryview]) -> Any:
    """Inverse of `encode_call`. Raises the error of unpickling."""
    call = decode(data, tensors, buffers) if tensors else pickle.loads(data, buffers=buffers)
    return (function_named(call[0]), call[1], call[2]) if type(call[0]) is str else call


# A plain function of a module is sent as text, because pickle takes 4 us, mostly to import the module again, and 17 us
# for a function of torch. Result and errors are the same.


def name_of_function(function: Any) -> str | None:
    """Return "module:name" of a function that is an attribute of its module, such as `torch.add`; None to pickle it."""
    kind = type(function)
    if kind is FunctionType:
        name = function.__qualname__
    elif kind is BuiltinFunctionType:
        name = function.__name__
    else:
        return None
    module = sys.modules.get(function.__module__)
    if module is None or getattr(module, "__dict__", {}).get(name) is not function:
        return None
    return f"{function.__module__}:{name}"


def function_named(text: str) -> Any:
    """Inverse of `name_of_function`. Imports the module if necessary, and raises the errors of pickle."""
    module, _, name = text.rpartition(":")
    try:
        return vars(sys.modules[module])[name]
    except (KeyError, TypeError):
        pass
    data = b"".join((pickle.PROTO, b"\4", _text(module), _text(name), pickle.STACK_GLOBAL, pickle.STOP))
    return pickle.loads(data)


def _text(text: str) -> bytes:
    data = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


class ByValue:
    """Wraps a function that the receiver cannot import: pickled with its code by cloudpickle."""

    def __init__(self, function: object) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        stream = io.BytesIO()
        _pickler.by_value(stream, protocol=5).dump(self._function)  # its tensors are in the table of the message
        return pickle.loads, (stream.getvalue(),)


def is_self_explanatory(error: BaseException) -> bool:
    """Return True for an error that needs no explanation: of a reference or device map, with the text of torch."""
    if isinstance(error, FanwiseError):
        return isinstance(error, RuntimeError)
    has_texts_of_torch = "RRef" in str(error) or "in the device map" in str(error)
    return isinstance(error, RuntimeError) and not isinstance(error, RecursionError) and has_texts_of_torch


def recursion_hint() -> str:
    """Return the explanation for a value that is nested too deeply."""
    return (
        f"it is nested deeper than pickle can follow, within a recursion limit of {sys.getrecursionlimit()}.\n"
        f"Send it flat, as a list of its parts that names each part's parent; or raise the limit, "
        f"sys.setrecursionlimit, where it is sent."
    )


def is_future_error(error: BaseException) -> bool:
    """Return True for the error of pickling a torch future."""
    return isinstance(error, RuntimeError) and str(error) == "Can not pickle torch.futures.Future"


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.dtype not in CODE_BY_DTYPE or tensor.is_nested or tensor.is_meta:
        return reduce_tensor(tensor)
    assert _context.encoding is not None, "only encode uses this table"
    tensors = _context.encoding.tensors
    tensors.append(tensor)
    return _tensor, (len(tensors) - 1,)


def _tensor(index: int) -> torch.Tensor:
    if _context.received is None:
        raise RuntimeError("the pickle of a call was loaded outside of a call")
    return _context.received[index]


def _reduce_script_function(function: Any) -> tuple[Callable[[str], Any], tuple[str]]:
    return _script_function, (function.qualified_name,)


def _script_function(name: str) -> Any:
    function = torch.jit._state._python_cu.find_function(name)
    if function is None:
        raise AttributeError(f"There is no scripted function {name!r} in this process")
    return function


def _refuse_storage(storage: torch.UntypedStorage) -> NoReturn:
    raise NotSendableError(
        f"torch cannot unpickle a storage of {storage.nbytes()} bytes without a tensor.\n"
        f"Send a tensor instead and use its .untyped_storage() there."
    )


def _refuse_operator(operator: "torch._ops.OpOverload[Any, Any] | torch._ops.OpOverloadPacket[Any, Any]") -> NoReturn:
    raise NotSendableError(
        f"torch.ops.{operator} cannot be found by name.\n"
        f"Call it in a function at the top of a module that both workers import, and send that function."
    )


_SCRIPTED: dict[type, Reducer] = {torch.jit.ScriptFunction: _reduce_script_function}
_REFUSED: dict[type, Reducer] = {
    torch.UntypedStorage: _refuse_storage,
    torch._ops.OpOverload: _refuse_operator,
    torch._ops.OpOverloadPacket: _refuse_operator,
}


def _all_reducers() -> tuple[dict[type, Reducer], bool]:
    arrays, _ = array_reducers()
    del arrays[torch.nn.Parameter]  # its data is in the table
    tables = {**numpy_reducers(), **arrays, torch.Tensor: _reduce_tensor, **_REFUSED, **_SCRIPTED, **_reducers}
    return tables, True


_pickler = Pickler(_all_reducers, max_buffers=1024)
