"""Objects to bytes and back: pickle 5 with out-of-band buffers, arrays of the engines by the wire format of `tensor`.

Only bytes of an authenticated peer come here. Knows nothing of frames, calls or sockets. Loads no engine: an array of
one can only turn up when it is loaded already.

Errors travel as their type, text and traceback, which are plain, and beside those the pickle of the error itself; the
receiver gets the original type with the remote traceback as a note, or a `RemoteError` with the text when the type
cannot be rebuilt. Who reads the text alone unpickles nothing.
"""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from ..base.errors import RemoteError, WireError
from ..tensor import from_wire, to_wire
from ..tensor.wire import array_reducers
from .pickler import Pickler, Reducer
from .plain import Plain

# Well below what a peer takes; the rest goes inside the pickle.
_OUT_OF_BAND_COUNT = 1024

# A traceback of two functions that call each other can have megabytes; both of its ends tell enough.
_TRACE_CHARS = 100_000

Buffer = bytes | bytearray | memoryview
_PLAIN = frozenset((str, int, float, bool, type(None)))  # most answers

_plain = Plain()
_PARTS_OF_ERROR = [str, str, str, str, int, bytes]


def dumps(value: object) -> tuple[bytes, list[memoryview]]:
    """The pickle of `value` and its out-of-band buffers, which share the value's memory: send before changing it."""
    if type(value) in _PLAIN:
        return pickle.dumps(value, protocol=5), []
    return _pickler.dumps(value)


def dumps_by_value(value: object) -> tuple[bytes, list[memoryview]]:
    """As `dumps`, and classes and functions that the receiver cannot import travel with the value (cloudpickle)."""
    return _pickler.dumps_by_value(value)


class Beside:
    """Memory that goes beside the message that it is part of. It arrives as bytes or a view."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Buffer) -> None:
        self._memory = memory

    def __reduce__(self) -> tuple[Callable[[Buffer], Buffer], tuple[pickle.PickleBuffer]]:
        return _as_it_came, (pickle.PickleBuffer(self._memory),)


def _as_it_came(memory: Buffer) -> Buffer:
    return memory


def loads(head: Buffer, buffers: Sequence[memoryview] = ()) -> Any:  # Any: whatever the peer sent
    """The value. Raises `WireError` when the bytes are no pickle; other errors are those of the value's own types."""
    try:
        return pickle.loads(head, buffers=buffers)
    except pickle.UnpicklingError as error:
        raise WireError(f"a message of {len(head)} bytes cannot be read: {error}.") from error


def _reducers() -> tuple[dict[type, Reducer], bool]:
    reducers: dict[type, Reducer] = {**array_reducers()}
    torch = sys.modules.get("torch")
    if torch is None:
        return reducers, True
    # Not so while another thread imports torch: at first nothing is there, then Tensor, Parameter after it.
    if not hasattr(getattr(torch, "nn", None), "Parameter"):
        return reducers, False
    reducers[torch.Tensor] = reducers[torch.nn.Parameter] = _reduce_tensor
    return reducers, True


_pickler = Pickler(_reducers, max_buffers=_OUT_OF_BAND_COUNT)


def _reduce_tensor(tensor: object) -> tuple[Callable[..., object], tuple[object, ...]]:
    header, buffers = to_wire(tensor)
    return _rebuild_tensor, (header, *(pickle.PickleBuffer(buffer) for buffer in buffers))


def _rebuild_tensor(header: bytes, *buffers: Buffer) -> object:
    return from_wire(header, [memoryview(buffer) for buffer in buffers])


def pack_error(error: BaseException) -> bytes:
    """An error as bytes that any process of ours can read, also when the error itself cannot be pickled."""
    trace = "".join(traceback.format_exception(error))
    if len(trace) > _TRACE_CHARS:
        half = _TRACE_CHARS // 2
        trace = f"{trace[:half]}\n... {len(trace) - 2 * half} characters left out ...\n{trace[-half:]}"
    text = (type(error).__module__, type(error).__qualname__, _message_of(error), trace, os.getpid())
    return _plain.dumps((*text, _own_form(error)))[0]


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"(its text cannot be made: {type(broken).__name__})"


def _own_form(error: BaseException) -> bytes:
    """The error itself as bytes, or nothing when it would not come back as it was."""
    # An exception whose __init__ takes other arguments than it passes on pickles, but does not come back: the second
    # form goes around __init__. A class that came here by value, as those of a script do, is no module's: it goes back
    # the same way, and where it came from it is the class that it was there.
    for dump in (_dump_by_name, _dump_by_value):
        for form in (error, _WithoutInit(error)):
            try:
                own = dump(form)
                back = pickle.loads(own)
                if type(back) is type(error) and str(back) == str(error):
                    return own
            except KeyboardInterrupt:
                raise
            except BaseException:  # its own type decides what is raised here
                continue
    return b""


def _dump_by_name(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _dump_by_value(value: object) -> bytes:
    import cloudpickle

    return cast(bytes, cloudpickle.dumps(value, protocol=5))


class _WithoutInit:
    """Stands for an error in a pickle: rebuilt from its class, arguments and attributes, without its __init__."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _error_without_init, (type(self._error), self._error.args, self._error.__dict__)


def _error_without_init(
    kind: type[BaseException],
    args: tuple[object, ...],
    attributes: dict[str, Any],  # Any: the error's own
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


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
    """The text of a packed error. Raises `WireError` for bytes that are none."""
    return _parts_of(packed)[0]


def with_note(packed: Buffer, note: str) -> bytes:
    """The same packed error, with a line more at the end of its traceback. Raises `WireError` as `error_text`."""
    text, own = _parts_of(packed)
    return _plain.dumps((*text._replace(trace=f"{text.trace.rstrip()}\n{note}\n"), own))[0]


def load_error(own: bytes) -> Any:  # Any: the peer's
    """The error itself, of a peer that may run code here."""
    return pickle.loads(own)


def unpack_error(packed: Buffer, load: Callable[[bytes], Any] = load_error) -> BaseException:  # Any: the peer's
    """The error in its original type with the remote traceback as a note, or a `RemoteError`.

    Args:
        load: reads the pickle of the error itself. When it raises there is the text.

    Raises `WireError` for bytes that are no packed error.
    """
    text, own = _parts_of(packed)
    error: BaseException | None = None
    if own:
        try:
            error = load(own)
        except KeyboardInterrupt:
            raise
        except BaseException:
            error = None  # its class does not exist here, or may not be made; the text below says all there is to say
    if not isinstance(error, BaseException):
        error = RemoteError(f"{text.module}.{text.name}: {text.message}")
    error.add_note(f"Traceback in process {text.pid}:\n{text.trace.rstrip()}")
    return error


def _parts_of(packed: Buffer) -> tuple[ErrorText, bytes]:
    found = _plain.loads(packed)
    if not (isinstance(found, tuple) and [type(part) for part in found] == _PARTS_OF_ERROR):
        raise WireError(f"{len(packed)} bytes that should describe an error do not.")
    *text, own = found
    return ErrorText(*text), own
