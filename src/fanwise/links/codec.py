"""Objects to bytes and back: pickle 5 with out-of-band buffers, torch tensors by the wire format of `tensor`.

Only bytes of an authenticated peer come here. Knows nothing of frames, calls or sockets. Loads no torch: a tensor can
only turn up when torch is loaded already.

Errors travel as their type, text and traceback; the receiver gets the original type with the remote traceback as a
note, or a `RemoteError` with the text when the type cannot be rebuilt.
"""

import copyreg
import io
import os
import pickle
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from ..base.errors import RemoteError, WireError
from ..tensor import from_wire, to_wire

# A buffer smaller than this costs less inside the pickle than as a part of its own.
_OUT_OF_BAND_BYTES = 4096

Buffer = bytes | bytearray | memoryview
_Table = dict[type, Callable[[Any], Any]]  # Any: reducers of any type, as copyreg has them

_table: _Table = {}
_table_made_of = (-1, False)


def dumps(value: object) -> tuple[bytes, list[memoryview]]:
    """The pickle of `value` and its out-of-band buffers, which share the value's memory: send before changing it."""
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _OUT_OF_BAND_BYTES:
            return True
        buffers.append(view)
        return False

    if "torch" not in sys.modules:
        return pickle.dumps(value, protocol=5, buffer_callback=keep_in_band), buffers
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=keep_in_band)
    pickler.dispatch_table = _dispatch_table()
    pickler.dump(value)
    return stream.getvalue(), buffers


def dumps_by_value(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """As `dumps`, and classes and functions that the receiver cannot import travel with the value (cloudpickle)."""
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _OUT_OF_BAND_BYTES:
            return True
        buffers.append(buffer)
        return False

    stream = io.BytesIO()
    pickler = cloudpickle.Pickler(stream, protocol=5, buffer_callback=keep_in_band)
    if "torch" in sys.modules:
        pickler.dispatch_table = ChainMap(_dispatch_table(), pickler.dispatch_table)
    pickler.dump(value)
    return stream.getvalue(), buffers


def loads(head: Buffer, buffers: Sequence[memoryview] = ()) -> Any:  # Any: whatever the peer sent
    """The value. Raises `WireError` when the bytes are no pickle; other errors are those of the value's own types."""
    try:
        return pickle.loads(head, buffers=buffers)
    except pickle.UnpicklingError as error:
        raise WireError(f"a message of {len(head)} bytes cannot be read: {error}.") from error


def _dispatch_table() -> _Table:
    global _table, _table_made_of
    torch = sys.modules["torch"]
    state = (len(copyreg.dispatch_table), hasattr(torch, "Tensor"))
    if state != _table_made_of:
        _table = dict(cast(_Table, copyreg.dispatch_table))
        if state[1]:  # false while torch is being imported
            _table[torch.Tensor] = _reduce_tensor
            _table[torch.nn.Parameter] = _reduce_tensor
        _table_made_of = state
    return _table


def _reduce_tensor(tensor: object) -> tuple[Callable[..., object], tuple[object, ...]]:
    header, buffers = to_wire(tensor)
    return _rebuild_tensor, (header, *(pickle.PickleBuffer(buffer) for buffer in buffers))


def _rebuild_tensor(header: bytes, *buffers: Buffer) -> object:
    return from_wire(header, [memoryview(buffer) for buffer in buffers])


def pack_error(error: BaseException) -> bytes:
    """An error as bytes that any process of ours can read, also when the error itself cannot be pickled."""
    lines = traceback.format_exception(error)
    text = (type(error).__module__, type(error).__qualname__, str(error), "".join(lines), os.getpid())
    try:
        own = pickle.dumps(error, protocol=5)
        pickle.loads(own)  # an exception whose __init__ takes other arguments pickles, but does not come back
    except Exception:
        own = b""
    return pickle.dumps((text, own), protocol=5)


class ErrorText(NamedTuple):
    """What a packed error says, for people and records; reading it runs no code of the error's own type."""

    module: str
    name: str
    message: str
    trace: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


def error_text(packed: Buffer) -> ErrorText:
    """The text of a packed error."""
    return ErrorText(*pickle.loads(packed)[0])


def unpack_error(packed: Buffer) -> BaseException:
    """The error in its original type with the remote traceback as a note, or a `RemoteError`."""
    (module, name, message, trace, pid), own = pickle.loads(packed)
    error: BaseException | None = None
    if own:
        try:
            error = pickle.loads(own)
        except Exception:
            error = None  # its class does not exist here; the text below says all there is to say
    if not isinstance(error, BaseException):
        error = RemoteError(f"{module}.{name}: {message}")
    error.add_note(f"Traceback in process {pid}:\n{trace.rstrip()}")
    return error
