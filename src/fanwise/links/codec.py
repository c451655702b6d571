"""Converts objects to bytes: pickle 5 with out-of-band buffers, and arrays in the wire format of `tensor`.

Only for bytes of an authenticated peer. Loads no engine.

An error travels as its type, text and traceback, which are plain values, together with the pickle of the error itself.
The receiver gets the original type with the remote traceback as a note, or a `RemoteError` with the text if the type
cannot be rebuilt. Reading only the text unpickles nothing.
"""

import builtins
import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..base import errors
from ..base.errors import RemoteError, WireError
from ..tensor.wire import array_reducers
from .pickler import Pickler, Table, parts_of_error, rebuild_error
from .plain import Plain

# Well below the limit of a peer; further buffers stay in the pickle.
_OUT_OF_BAND_COUNT = 1024

# The traceback of a deep recursion can have megabytes; its two ends suffice.
_TRACE_CHARS = 100_000

Buffer = bytes | bytearray | memoryview
_PLAIN = frozenset((str, int, float, bool, type(None)))  # most answers

_plain = Plain()
_PARTS_OF_ERROR = [str, str, str, str, int, bytes]


def dumps(value: object) -> tuple[bytes, list[memoryview]]:
    """Return the pickle of `value` and its out-of-band buffers, which share the value's memory."""
    if type(value) in _PLAIN:
        return pickle.dumps(value, protocol=5), []
    return _pickler.dumps(value)


def dumps_by_value(value: object) -> tuple[bytes, list[memoryview]]:
    """As `dumps`; classes and functions that the receiver cannot import travel with the value (cloudpickle)."""
    if type(value) in _PLAIN:
        return pickle.dumps(value, protocol=5), []
    return _pickler.dumps_by_value(value)


def dumps_in_band(value: object) -> bytes:
    """As `dumps_by_value`, in one piece."""
    return _pickler.dumps_in_band(value, by_value=True)


class Beside:
    """Memory that is sent out of band. It arrives as bytes or a view."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Buffer) -> None:
        self._memory = memory

    def __reduce__(self) -> tuple[Callable[[Buffer], Buffer], tuple[pickle.PickleBuffer]]:
        return _identity, (pickle.PickleBuffer(self._memory),)


def _identity(memory: Buffer) -> Buffer:
    return memory


def loads(head: Buffer, buffers: Sequence[memoryview] = ()) -> Any:
    """Return the value. Raises `WireError` if the bytes are no pickle, and errors of the value's own types."""
    try:
        return pickle.loads(head, buffers=buffers)
    except pickle.UnpicklingError as error:
        raise WireError(f"a message of {len(head)} bytes cannot be read: {error}.") from error


_pickler = Pickler(array_reducers, max_buffers=_OUT_OF_BAND_COUNT)


def reducers() -> Table:
    """Return the reducers of `dumps_by_value`, for picklers of other modules."""
    table: Table = _pickler.by_value.dispatch_table
    return table


def pack_error(error: BaseException) -> bytes:
    """Return an error as bytes that every process can read, even if the error itself cannot be pickled."""
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
    """Return the pickle of the error, or b"" if it would not come back unchanged."""
    # A class that arrived by value, such as one of a script, has no module here and returns by value. Errors that
    # cannot be pickled, or whose own `__reduce__` is wrong, are reduced to the attributes that can.
    for form, by_value in ((error, False), (error, True), (_Remains(error), True)):
        try:
            pickled = _pickler.dumps_in_band(form, by_value=by_value)
            copy = pickle.loads(pickled)
            if type(copy) is type(error) and str(copy) == str(error):
                return pickled
        except KeyboardInterrupt:
            raise
        except BaseException:  # raised by the type of the error
            continue
    return b""


class _Remains:
    """Pickles the picklable parts of an error, even if its class has its own `__reduce__`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        kind, args, attributes, cause = parts_of_error(self._error)
        if isinstance(self._error, BaseExceptionGroup):
            args = (args[0], [_Remains(error) for error in self._error.exceptions])
        lost = [name for name, value in attributes.items() if not _can_be_pickled(value)]
        attributes = {name: value for name, value in attributes.items() if name not in lost}
        if lost:
            names = ", ".join(lost)
            attributes["__notes__"] = [*attributes.get("__notes__", ()), f"left out, as it cannot be pickled: {names}"]
        return rebuild_error, (kind, args, attributes, None if cause is None else _Remains(cause))


def _can_be_pickled(value: object) -> bool:
    try:
        _pickler.dumps_in_band(value, by_value=True)
    except Exception:
        return False
    return True


class ErrorText(NamedTuple):
    """The text of a packed error. Reading it runs no code of the error's type."""

    module: str
    name: str
    message: str
    trace: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


def error_text(packed: Buffer) -> ErrorText:
    """Return the text of a packed error. Raises `WireError` if it is not one."""
    return _parts_of(packed)[0]


def with_note(packed: Buffer, note: str) -> bytes:
    """Return the packed error with another line at the end of its traceback. Raises `WireError` as `error_text`."""
    text, own = _parts_of(packed)
    return _plain.dumps((*text._replace(trace=f"{text.trace.rstrip()}\n{note}\n"), own))[0]


def load_error(own: bytes) -> Any:
    """Unpickle an error of a peer that may run code here."""
    return pickle.loads(own)


def unpack_error(packed: Buffer, load: Callable[[bytes], Any] | None = load_error) -> BaseException:
    """Return the error in its original type with the remote traceback as a note, or a `RemoteError`.

    Args:
        load: unpickles the error. None: nothing is unpickled, and an error keeps its type if that is a builtin one or
            one of fanwise that can be created from its text.

    Raises `WireError` if the bytes are no packed error.
    """
    text, own = _parts_of(packed)
    error: BaseException | None = None
    try:
        if load is None:
            error = _error_from_text(text)
        elif own:
            error = load(own)
    except KeyboardInterrupt:
        raise
    except BaseException:
        error = None  # its class does not exist here, or takes other arguments
    if not isinstance(error, BaseException):
        error = RemoteError(f"{text.module}.{text.name}: {text.message}")
    vars(error).pop("_was_never_sent", None)  # a mark of the peer, for a call of its own
    notes = [*getattr(error, "__notes__", ()), f"Traceback in process {text.pid}:\n{text.trace.rstrip()}"]
    object.__setattr__(error, "__notes__", notes)  # as add_note, but also of a frozen dataclass
    return error


def _error_from_text(text: ErrorText) -> Exception | None:
    """Create a builtin error, or one of fanwise, from its text. Return None for other types."""
    module = {builtins.__name__: builtins, errors.__name__: errors}.get(text.module)
    kind = vars(module).get(text.name) if module is not None else None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    if issubclass(kind, errors.FanwiseError):
        return kind(text.message.removesuffix(f" See: fanwise explain {kind.anchor}"))
    return kind(text.message)


def _parts_of(packed: Buffer) -> tuple[ErrorText, bytes]:
    parts = _plain.loads(packed)
    if not (isinstance(parts, tuple) and [type(part) for part in parts] == _PARTS_OF_ERROR):
        raise WireError(f"{len(packed)} bytes that should describe an error do not.")
    *text, own = parts
    return ErrorText(*text), own
