"""Errors of values that cannot be sent, and of functions.

An error of a function is sent by the link (`links.codec.pack_error`): in its own type if it can be pickled, and with
its traceback as a note. `as_exception` replaces errors that would end the process of the caller, such as SystemExit.
"""

import pickle
import traceback
from collections.abc import Callable

import torch

from ...base.errors import NotSendableError, RemoteError
from ..messages.ids import Invocation
from ..messages.pickling import is_future_error, is_self_explanatory, recursion_hint
from .call import method_called

_BY_NAME = "Functions and classes are sent by name: define them at the top of a module that both workers import."


def explain_error(
    error: Exception, call: Invocation, name: str, to: str, *, encode: Callable[[object], object], hint: str = _BY_NAME
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
    why = _describe(error)
    if not isinstance(error, NotSendableError | RecursionError):
        why = f"{why}\n{hint}"
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


def _describe(error: BaseException) -> str:
    if isinstance(error, NotSendableError):
        return error.message
    return recursion_hint() if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"


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
    explained = NotSendableError(
        f"{description} (a {type(value).__module__}.{type(value).__qualname__}) cannot be sent: {_describe(error)}\n"
        f"Return plain values or tensors; or keep it on its worker with rpc.remote, and call its methods there."
    )
    explained.__cause__ = error
    return explained


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def as_exception(error: BaseException) -> Exception:
    """Return the error, or a RemoteError with its text if it is no Exception, such as SystemExit.

    An error of TorchScript becomes a RuntimeError, as in `torch.distributed.rpc`.
    """
    if isinstance(error, torch.jit.Error):
        return RuntimeError(str(error))
    if isinstance(error, Exception):
        return error
    text = "".join(traceback.format_exception_only(error)).strip()
    replacement = RemoteError(f"the function raised {text}")
    replacement.__cause__ = error
    return replacement
