"""Errors in a form that can be sent to the caller of a failed function.

as_exception       replaces SystemExit and others that would end the process of the caller
sendable_error     replaces an error that cannot be pickled
result_error       explains that a result cannot be pickled
replacement_error  replaces an error whose own methods fail
"""

import pickle
import traceback
from types import FunctionType

import torch

from ...base.errors import NotSendableError, RemoteError
from ...links.codec import pack_error, unpack_error
from ..messages.pickling import is_future_error, is_self_explanatory, recursion_hint


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
    why = (
        error.message
        if isinstance(error, NotSendableError)
        else recursion_hint()
        if isinstance(error, RecursionError)
        else f"{type(error).__name__}: {error}"
    )
    mark_delivered = NotSendableError(
        f"{description} (a {type(value).__module__}.{type(value).__qualname__}) cannot be sent: {why}\n"
        f"Return plain values or tensors; or keep it on its worker with rpc.remote, and call its methods there."
    )
    mark_delivered.__cause__ = error
    return mark_delivered


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
