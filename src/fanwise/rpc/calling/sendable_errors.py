"""Errors of values that cannot be sent, and errors in a form that can be sent to the caller of a failed function.

explain_error      explains that a call cannot be serialized
as_exception       replaces SystemExit and others that would end the process of the caller
sendable_error     replaces an error that cannot be pickled
result_error       explains that a result cannot be serialized
replacement_error  replaces an error whose own methods fail
"""

import pickle
import traceback
from collections.abc import Callable
from types import FunctionType

import torch

from ...base.errors import NotSendableError, RemoteError
from ...links.codec import pack_error, unpack_error
from ..messages.ids import Invocation
from ..messages.pickling import is_future_error, is_self_explanatory, recursion_hint
from .call import method_called

_BY_NAME = "Functions and classes are sent by name: define them at the top of a module that both workers import."


def explain_error(
    error: Exception,
    call: Invocation,
    name: str,
    to: str,
    *,
    encode: Callable[[object], object],
    hint: str = _BY_NAME,
) -> Exception:
    """Return the error to raise if a call on worker `to` cannot be serialized.

    Returns `error` if it explains that, or one that names the first part of the call that `encode` refuses.
    """
    if is_self_explanatory(error):
        return error
    name, call = method_called(call) or (name, call)
    part = _find_refused(call, encode) or "something"
    if is_future_error(error):
        return RuntimeError(
            f"{error}: {part} of the call of {name} on {to} is one, or holds one.\n"
            f"A future belongs to the process that waits for it. Send its value, future.wait(), or make the call in "
            f"future.then(...). For a value that stays on its worker, use rpc.remote."
        )
    if isinstance(error, NotSendableError):
        why = error.message
    elif isinstance(error, RecursionError):
        why = recursion_hint()
    else:
        why = f"{type(error).__name__}: {error}\n{hint}"
    return NotSendableError(f"{part} of the call of {name} on {to} cannot be sent: {why}")


def _find_refused(call: Invocation, encode: Callable[[object], object]) -> str | None:
    """Return a description of the first part of a call that `encode` refuses, or None."""
    function, args, kwargs = call
    parts = [("the function", function), *((f"argument {i}", arg) for i, arg in enumerate(args))]
    parts += ((f"argument {name!r}", value) for name, value in kwargs.items())
    for part_name, part in parts:
        try:
            encode(part)
        except Exception:
            return f"{part_name} (a {type(part).__module__}.{type(part).__qualname__})"
    return None


def result_error(error: BaseException, value: object, description: str) -> BaseException:
    """Return the error to send when `value` cannot be pickled: `error` if it explains that, otherwise one that does.

    `description` names the value in the message, such as "the result of f".
    """
    if is_future_error(error):
        return RuntimeError(
            f"{error}: {description} is one, or holds one.\n"
            f"Return its value, future.wait(), or mark the function with rpc.functions.async_execution: then the call "
            f"is answered when the future is done. Of a proxy's methods send those of rref.rpc_sync()."
        )
    is_known = isinstance(error, (TypeError, AttributeError, RuntimeError, pickle.PicklingError))
    if not is_known or is_self_explanatory(error):
        return error
    if isinstance(error, NotSendableError):
        why = error.message
    else:
        why = recursion_hint() if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
    explained = NotSendableError(
        f"{description} (a {type(value).__module__}.{type(value).__qualname__}) cannot be sent: {why}\n"
        f"Return plain values or tensors; or keep it on its worker with rpc.remote, and call its methods there."
    )
    explained.__cause__ = error
    return explained


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def as_exception(error: BaseException) -> Exception:
    """Return the error, or a RemoteError with its text if it is no Exception, such as SystemExit."""
    if isinstance(error, Exception):
        return error
    text = RemoteError(f"the function raised {type(error).__name__}: {error}")
    text.__cause__ = error
    return text


def sendable_error(error: BaseException) -> BaseException:
    """Return the error, or one with its text if it cannot be sent. Attributes that cannot be pickled are dropped.

    An error whose constructor takes other arguments than `args` is recreated without calling it, unless the error
    defines a `__reduce__` that fails.
    """
    error = as_exception(error)
    if isinstance(error, torch.jit.Error):  # torch.distributed.rpc also raises a RuntimeError
        return RuntimeError(str(error))
    why = _pickling_failure(error)
    if why is None or (not _has_own_reduce(error) and type(unpack_error(pack_error(error))) is type(error)):
        return error
    substitute = _with_text_args(error)
    if substitute is not None:
        return substitute
    text = traceback_of(error)
    return RuntimeError(
        f"Failed to create original exception type {type(error).__qualname__}. Error msg was {why}. "
        f"Original exception on remote side was {text}"
    )


def _has_own_reduce(error: Exception) -> bool:
    return any(isinstance(getattr(type(error), name), FunctionType) for name in ("__reduce__", "__reduce_ex__"))


def _pickling_failure(error: object) -> object:
    """Return why an error or an argument of one cannot be pickled and unpickled, or None if it can."""
    try:
        copied = pickle.loads(pickle.dumps(error))
    except BaseException as broken:
        return broken
    return None if type(copied) is type(error) else f"unpickling returned a {type(copied).__name__}"


def _with_text_args(error: Exception) -> Exception | None:
    """Replace arguments that cannot be sent, such as RRefs, by their text. Return None if that does not help."""
    args = [arg if _pickling_failure(arg) is None else repr(arg) for arg in error.args]
    if not any(sent is not original for sent, original in zip(args, error.args, strict=True)):
        return None
    try:
        copied = type(error)(*args)
        if _pickling_failure(copied) is not None:
            return None
    except Exception:
        return None
    copied.add_note("Arguments that cannot be sent in an error are shown as text. Return an RRef as a result instead.")
    return copied.with_traceback(error.__traceback__)


def replacement_error(error: BaseException, broken: BaseException) -> RemoteError:
    return RemoteError(
        f"the function raised {type(error).__name__}, which could not be sent: its text or its pickling raised "
        f"{type(broken).__name__}.\n{traceback_of(error)}"
    )
