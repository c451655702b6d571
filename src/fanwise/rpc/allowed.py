"""The allow-list of a worker: the functions that other workers may call on it.

    caller   encode_call   "module:name" and the arguments --> bytes of the typed codec (`links.plain`)
    worker   decode_call   the bytes --> the function on the list, and the arguments

A worker with an allow-list and its peers exchange only such *plain* calls and replies: the name of a function, and
values of the codec, which are None, bool, int, float, str, bytes, tuple, list, dict, frozenset, arrays and tensors. The
worker unpickles nothing that it receives, also not replies to its own calls and errors. It keeps no values for others
and takes no part in distributed autograd.
"""

from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ..base.errors import NotSendableError, WireError
from ..links.plain import Plain
from .messages.ids import Invocation
from .messages.messages import Message, compose_plain
from .messages.pickling import function_named, name_of_function

_codec = Plain()
_MAX_LISTED = 20

PLAIN_HINT = (
    "A worker with an allow-list, and its peers, send None, bool, int, float, str, bytes, tuple, list, dict, "
    "frozenset, arrays and tensors."
)


class Allowed:
    """The functions that other workers may call.

    Args:
        functions: functions of modules, such as `train.step` and `torch.add`.

    Raises:
        TypeError: something else, such as a class, a method or a lambda.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        for function in functions:
            name = name_of_function(function)
            if name is None:
                raise TypeError(
                    f"allow= takes functions that are defined at the top of a module, got {function!r} of type "
                    f"{type(function).__name__}. Write a function that does what callers need, and list that"
                )
            self._functions[name] = function

    def find(self, name: str) -> Callable[..., Any]:
        """Return the function with this name, "module:name". Raises WireError if it is not on the list."""
        function = self._functions.get(name)
        if function is None:
            shown = [listed.replace(":", ".") for listed in sorted(self._functions)]
            more = "" if len(shown) <= _MAX_LISTED else f" and {len(shown) - _MAX_LISTED} more"
            raise WireError(
                f"{name.replace(':', '.')} is not on the allow-list of this worker, so it was not called.\n"
                f"The list has {', '.join(shown[:_MAX_LISTED]) or 'no functions'}{more}; it is allow= of "
                f"TensorPipeRpcBackendOptions"
            )
        return function


def check_plain(value: object) -> None:
    """Raise TypeError or NotSendableError if `value` is not plain. A function of a module is."""
    if not (isinstance(value, FunctionType | BuiltinFunctionType) and name_of_function(value)):
        _codec.dumps(value)


def encode_call(call: Invocation, name: str) -> Message:
    """Serialize a call. `name`: for error messages. Raises TypeError or NotSendableError if the call is not plain."""
    function, args, kwargs = call
    function_name = name_of_function(function)
    if function_name is None:
        raise NotSendableError("with an allow-list, only functions that are defined at the top of a module are called.")
    return compose_plain(*_codec.dumps((function_name, args, kwargs)), name)


def encode_reply(value: object) -> Message:
    """Serialize a result. Raises TypeError or NotSendableError if it is not plain."""
    return compose_plain(*_codec.dumps(value), None)


def decode_call(data: memoryview, buffers: Sequence[memoryview], allowed: Allowed | None) -> Invocation:
    """Inverse of `encode_call`. `allowed`: None to call any function.

    Raises WireError if the function is not allowed or the bytes are invalid.
    """
    match _codec.loads(data, buffers):
        case (str(name), tuple(args), dict(kwargs)) if set(map(type, kwargs)) <= {str}:
            return function_named(name) if allowed is None else allowed.find(name), args, kwargs
    raise WireError(f"a plain call of {len(data)} bytes is not a function with its arguments.")


def decode_reply(data: memoryview, buffers: Sequence[memoryview]) -> Any:
    """Inverse of `encode_reply`. Raises WireError for invalid bytes."""
    return _codec.loads(data, buffers)
