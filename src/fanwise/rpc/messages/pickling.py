"""Arguments and results as bytes and back, as rpc does it.

    encode:  value --> pickle, tensors in a table beside it, buffers of arrays; references are told to whom they go
    decode:  the other way; with an allow-list only what it names

Exact tensors go to the table, where autograd finds them; everything else is pickle 5, in which the memory of arrays
lies beside the pickle (of JAX's and TensorFlow's too: `tensor.wire`). A reference to a remote value
can only be pickled here, because its owner must learn of each copy: `register` is how `rref` gets its say. Both ways
nest: what is pickled may make calls of its own while it is. A function that has no name to travel by, such as a lambda,
goes by value (`ByValue`); a scripted function goes by its name in the other worker's TorchScript.

Knows no link and no agent.
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
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...base.errors import FanwiseError, NotSendableError
from ...links.pickler import Pickler, Reducer
from ...tensor.wire import array_reducers, numpy_reducers, reduce_tensor
from ...tensor.with_torch.wire import CODE_BY_DTYPE
from ..calling.call import Invocation, method_called
from ..worker_info import WorkerInfo

if TYPE_CHECKING:
    from ..allow_list.allowing import Allowed
    from ..references.orders import Fork

Buffer = bytes | bytearray | memoryview


class Sending:
    """What a thread pickles: for whom, and what goes beside the pickle.

    Attributes:
        forks: of the references that travel; None where it is only tried.
        kept: references that whoever sends this keeps until it is answered; None: it is no call.
    """

    __slots__ = ("forks", "kept", "tensors", "to")

    def __init__(self, to: int, forks: "list[Fork] | None", kept: list[Any] | None = None) -> None:  # Any: references
        self.to = to
        self.forks = forks
        self.kept = kept
        self.tensors: list[torch.Tensor] = []


class _Now(threading.local):
    """What this thread is encoding or decoding."""

    sending: Sending | None = None
    received: "Sequence[torch.Tensor] | None" = None


_now = _Now()
# A pickler of the user's own, for calls made by this process; torch's programs set it.
instead: Any = None  # Any: has serialize(object) -> (bytes, tensors)
_reducers: dict[type, Reducer] = {}
# Of exactly these types values are pickled in one way, whatever the reducers, and have nothing beside the pickle.
_SIMPLE = frozenset((type(None), bool, int, float, str))


def register(kind: type, reducer: Reducer) -> None:
    """Pickle objects of exactly this type by `reducer(object)`, in calls only. The first registration stays."""
    _reducers.setdefault(kind, reducer)
    _pickler.forget()


def sending() -> Sending | None:
    """What this thread pickles at the moment, by `encode` or `encode_call`."""
    return _now.sending


def encode(
    value: object,
    to: int,
    forks: "list[Fork] | None" = None,
    kept: list[Any] | None = None,  # Any: references
) -> tuple[bytes, list[torch.Tensor], list[memoryview]]:
    """The pickle of `value` for worker `to`, its tensors, and buffers that share the value's memory.

    `forks`: those of references in `value` are added to it; None: it is only tried whether this can be pickled. Raises
    what pickling raises; then what was added has to be taken back. `kept`: see `Sending`.
    """
    if type(value) in _SIMPLE:
        return pickle.dumps(value, 5), [], []
    mine = Sending(to, forks, kept)
    outer, _now.sending = _now.sending, mine
    try:
        data, buffers = _pickler.dumps(value)
        return data, mine.tensors, buffers
    finally:
        _now.sending = outer


def encode_call(
    call: Invocation,
    to: int,
    forks: "list[Fork] | None" = None,
    kept: list[Any] | None = None,  # Any: as in `encode`
) -> tuple[bytes, list[torch.Tensor], list[memoryview]]:
    """As `encode`, for a function and its arguments: a function that has no name goes by value."""
    if instead is not None:
        with _sending(to, forks):
            return *instead.serialize(call), []
    text = _text_of(call[0])
    if text is not None:
        if not call[2] and _SIMPLE.issuperset(map(type, call[1])):
            return pickle.dumps((text, call[1], {}), 5), [], []
        return encode((text, call[1], call[2]), to, forks, kept)
    try:
        return encode(call, to, forks, kept)
    except Exception as error:
        if says_all(error) or is_of_future(error) or _travels(call[0], to):
            raise
    return encode((ByValue(call[0]), *call[1:]), to, forks, kept)


def _travels(function: object, to: int) -> bool:
    try:
        encode(function, to)
    except Exception:
        return False
    return True


def encode_alone(value: object, reducers: Mapping[type, Reducer]) -> tuple[bytes, list[torch.Tensor]]:
    """The pickle of a part of a message, by reducers of its own too, and its tensors."""
    outer = _now.sending
    with _sending(*((-1, None) if outer is None else (outer.to, outer.forks))) as tensors:
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, protocol=5)
        pickler.dispatch_table = ChainMap({**reducers}, _pickler.table)
        pickler.dump(value)
    return stream.getvalue(), tensors


@contextlib.contextmanager
def _sending(to: int, forks: "list[Fork] | None") -> "Iterator[list[torch.Tensor]]":
    outer, _now.sending = _now.sending, (mine := Sending(to, forks))
    try:
        yield mine.tensors
    finally:
        _now.sending = outer


def decode(
    data: Buffer,
    tensors: "Sequence[torch.Tensor]",
    buffers: Sequence[memoryview],
    allowed: "Allowed | None" = None,
) -> Any:  # Any: the user's
    """The value. Raises what unpickling raises; WireError for a name that is not allowed."""
    if allowed is None and not tensors:
        return pickle.loads(data, buffers=buffers)
    outer, _now.received = _now.received, tensors
    try:
        return pickle.loads(data, buffers=buffers) if allowed is None else allowed.loads(data, buffers)
    finally:
        _now.received = outer


def decode_call(
    data: Buffer,
    tensors: "Sequence[torch.Tensor]",
    buffers: Sequence[memoryview],
    allowed: "Allowed | None" = None,
) -> Any:  # Any: the user's function and its arguments
    """As `decode`, of what `encode_call` gave."""
    if allowed is not None:
        outer, _now.received = _now.received, tensors
        try:
            return allowed.loads_call(data, buffers)
        finally:
            _now.received = outer
    call = decode(data, tensors, buffers) if tensors else pickle.loads(data, buffers=buffers)
    return (_named(call[0]), call[1], call[2]) if type(call[0]) is str else call


# A plain function of a module goes as text: pickle's own form takes 4 us, most of them to import the module once more,
# and 17 for one of torch's. What is found is the same, and what is not found raises the same.


def _text_of(function: Any) -> str | None:  # Any: what the user calls
    """ "module:name" of a function that its module has under its name, such as `torch.add` too; None: pickle it."""
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


def _named(text: str) -> Any:  # Any: the user's
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
    """In the place of a function that the other worker cannot import: pickled with its code (cloudpickle)."""

    def __init__(self, function: object) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        stream = io.BytesIO()
        _pickler.by_value(stream, protocol=5).dump(self._function)  # its tensors go to the table of the message
        return pickle.loads, (stream.getvalue(),)


def culprit(call: Invocation, to: int) -> str | None:
    """Which part of a call cannot be pickled, for a message; None: all parts can be."""
    function, args, kwargs = call
    parts = [("the function", function), *((f"argument {i}", arg) for i, arg in enumerate(args))]
    parts += ((f"argument {name!r}", value) for name, value in kwargs.items())
    for what, part in parts:
        try:
            encode(part, to)
        except Exception:
            return f"{what} (a {type(part).__module__}.{type(part).__qualname__})"
    return None


def explained(error: Exception, call: Invocation, name: str, to: WorkerInfo) -> Exception:
    """The error to raise when a call cannot be pickled: its own when it says all, else one that names the part."""
    is_too_deep = isinstance(error, RecursionError)
    if says_all(error):
        return error
    name, call = method_called(call) or (name, call)
    what = culprit(call, to.id) or "something"
    if is_of_future(error):
        return RuntimeError(
            f"{error}: {what} of the call of {name} on {to.name} is one, or holds one.\n"
            f"A future belongs to the process that waits for it. Send its value, future.wait(), or make the call when "
            f"that is there: future.then(...). For a value that stays where it is made take rpc.remote."
        )
    why = (
        error.message  # it says what to do
        if isinstance(error, NotSendableError)
        else too_deep()
        if is_too_deep
        else f"{type(error).__name__}: {error}\n"
        f"Functions and classes travel by name: define them at the top of a module that both workers import."
    )
    return NotSendableError(f"{what} of the call of {name} on {to.name} cannot be sent: {why}")


def says_all(error: BaseException) -> bool:
    """Whether an error of pickling needs no explanation: one of a reference or a device map, with torch's own text."""
    if isinstance(error, FanwiseError):
        return isinstance(error, RuntimeError)
    has_texts_of_torch = "RRef" in str(error) or "in the device map" in str(error)
    return isinstance(error, RuntimeError) and not isinstance(error, RecursionError) and has_texts_of_torch


def too_deep() -> str:
    """Why a value cannot be pickled whose parts hold parts that hold parts, and so on; for a message."""
    return (
        f"it is nested deeper than pickle can follow, within a recursion limit of {sys.getrecursionlimit()}.\n"
        f"Send it flat, as a list of its parts that names each part's parent; or raise the limit, "
        f"sys.setrecursionlimit, where it is sent."
    )


def is_of_future(error: BaseException) -> bool:
    """Whether torch's future refused to be pickled: it says no more than that."""
    return isinstance(error, RuntimeError) and str(error) == "Can not pickle torch.futures.Future"


def _reduce_tensor(tensor: torch.Tensor) -> Any:  # Any: as copyreg has it
    if tensor.dtype not in CODE_BY_DTYPE or tensor.is_nested or tensor.is_meta:
        return reduce_tensor(tensor)
    assert _now.sending is not None, "only encode uses this table"
    tensors = _now.sending.tensors
    tensors.append(tensor)
    return _tensor, (len(tensors) - 1,)


def _tensor(index: int) -> torch.Tensor:
    if _now.received is None:
        raise RuntimeError("the pickle of a call was read outside of a call")
    return _now.received[index]


def _reduce_script_function(function: Any) -> tuple[Callable[[str], Any], tuple[str]]:  # Any: a function in TorchScript
    return _script_function, (function.qualified_name,)


def _script_function(name: str) -> Any:  # Any: a function in TorchScript
    function = torch.jit._state._python_cu.find_function(name)
    if function is None:
        raise AttributeError(f"There is no scripted function {name!r} in this process")
    return function


def _refuse_storage(storage: torch.UntypedStorage) -> NoReturn:
    raise NotSendableError(
        f"torch cannot read back a storage of {storage.nbytes()} bytes that has no tensor.\n"
        f"Send a tensor in its place, and take its .untyped_storage() there."
    )


def _refuse_operator(operator: "torch._ops.OpOverload[Any, Any] | torch._ops.OpOverloadPacket[Any, Any]") -> NoReturn:
    raise NotSendableError(
        f"torch.ops.{operator} has no name by which torch finds it again.\n"
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
    del arrays[torch.nn.Parameter]  # it is made of its data, which go to the table
    tables = {**numpy_reducers(), **arrays, torch.Tensor: _reduce_tensor, **_REFUSED, **_SCRIPTED, **_reducers}
    return tables, True


_pickler = Pickler(_all_reducers)
