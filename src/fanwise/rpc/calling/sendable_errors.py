"""What the caller of a function that failed is told: its error, if that can be made again there, or one that says it.

    harmless                   no error that would end the program it reaches
    that_can_be_raised_there   none that cannot travel
    about_result               of a result that cannot be pickled: names it
    instead_of                 of one whose own type fails

Knows no call.
"""

import pickle
import traceback
from types import FunctionType

import torch

from ...base.errors import NotSendableError, RemoteError
from ...links.codec import pack_error, unpack_error
from ..messages.pickling import is_of_future, says_all, too_deep


def about_result(error: BaseException, value: object, what: str) -> BaseException:
    """The error to answer with when a result cannot be pickled: its own when it says all, else one that names that.

    `what`: the result in words, such as "what f returned".
    """
    if is_of_future(error):
        return RuntimeError(
            f"{error}: {what} is one, or holds one.\n"
            f"Return its value, future.wait(), or mark the function with rpc.functions.async_execution: then the call "
            f"is answered when the future is done. Of a proxy's methods send those of rref.rpc_sync()."
        )
    is_known = isinstance(error, (TypeError, AttributeError, RuntimeError, pickle.PicklingError))
    if not is_known or says_all(error):
        return error
    why = (
        error.message
        if isinstance(error, NotSendableError)
        else too_deep()
        if isinstance(error, RecursionError)
        else f"{type(error).__name__}: {error}"
    )
    told = NotSendableError(
        f"{what} (a {type(value).__module__}.{type(value).__qualname__}) cannot be sent: {why}\n"
        f"Return plain values or tensors; or leave it where it is, with rpc.remote, and call its methods there."
    )
    told.__cause__ = error
    return told


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def harmless(error: BaseException) -> Exception:
    """The error; in the place of one that would end the program that it reaches, such as SystemExit, its text."""
    if isinstance(error, Exception):
        return error
    text = RemoteError(f"the function raised {type(error).__name__}: {error}")
    text.__cause__ = error
    return text


def that_can_be_raised_there(error: BaseException) -> BaseException:
    """Return the error, or one that holds its text if it cannot be sent. It loses attributes that cannot be pickled.

    An error whose constructor takes other arguments than it passes on travels, and is made again without it. Not so one
    that says itself how it is pickled, by a `__reduce__` that fails.
    """
    error = harmless(error)
    if isinstance(error, torch.jit.Error):  # not of our making; torch's own calls raise a RuntimeError too
        return RuntimeError(str(error))
    why = _why_not_again(error)
    if why is None or (not _has_own_reduce(error) and type(unpack_error(pack_error(error))) is type(error)):
        return error
    in_text = _in_text(error)
    if in_text is not None:
        return in_text
    text = traceback_of(error)
    return RuntimeError(
        f"Failed to create original exception type {type(error).__qualname__}. Error msg was {why}. "
        f"Original exception on remote side was {text}"
    )


def _has_own_reduce(error: Exception) -> bool:
    return any(isinstance(getattr(type(error), name), FunctionType) for name in ("__reduce__", "__reduce_ex__"))


def _why_not_again(error: object) -> object:
    """Why an error or an argument of one cannot be made again from its pickle; None: it can be."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except BaseException as broken:
        return broken
    return None if type(again) is type(error) else f"it came back as a {type(again).__name__}"


def _in_text(error: Exception) -> Exception | None:
    """The error with the text of those arguments that cannot travel; None: that is none either.

    Such as a reference: it travels in calls and answers only, where its owner learns of it.
    """
    args = [arg if _why_not_again(arg) is None else repr(arg) for arg in error.args]
    if not any(now is not before for now, before in zip(args, error.args, strict=True)):
        return None
    try:
        again = type(error)(*args)
        if _why_not_again(again) is not None:
            return None
    except Exception:
        return None
    again.add_note(
        "Some of its arguments came as text, as they cannot travel with an error. A reference travels in a result."
    )
    return again.with_traceback(error.__traceback__)


def instead_of(error: BaseException, broken: BaseException) -> RemoteError:
    return RemoteError(
        f"the function raised {type(error).__name__}, which could not be sent: its text or its pickling raised "
        f"{type(broken).__name__}.\n{traceback_of(error)}"
    )
