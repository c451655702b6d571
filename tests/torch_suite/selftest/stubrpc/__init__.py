"""An almost empty package: the suite must load all the same, and report failures."""

from collections.abc import Callable
from typing import Any, NoReturn


class functions:
    """For the decorator that test modules use while they load."""

    @staticmethod
    def async_execution(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: the test's
        """As torch marks it."""
        function._wrapped_async_rpc_function = function  # type: ignore[attr-defined]  # torch's mark
        return function


class RpcBackendOptions:
    """To be subclassed by a test."""


def init_rpc(*args: object, **kwargs: object) -> NoReturn:
    """Every test fails here."""
    raise NotImplementedError("stubrpc")
