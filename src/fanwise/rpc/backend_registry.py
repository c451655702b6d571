"""Backends by name, as in torch. fanwise registers `BackendType.TENSORPIPE`, so programs that name it run unchanged.

A backend consists of two functions: one creates its options, the other starts it and returns the agent. The modules of
a worker are imported when it starts, because a program that only spawns workers does not need them.
"""

import enum
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from . import constants
from .options import TensorPipeRpcBackendOptions


class BackendValue(NamedTuple):
    """The two functions of a backend."""

    construct_rpc_backend_options_handler: Callable[..., Any]
    init_backend_handler: Callable[..., Any]


def _create_enum(members: dict[str, BackendValue]) -> Any:
    enum_class = enum.Enum("BackendType", members)  # type: ignore[misc]  # members are known only at runtime
    enum_class.__doc__ = "The registered backends."
    enum_class.__repr__ = _member_repr  # type: ignore[method-assign]  # as torch's prints
    return enum_class


def _member_repr(self: Any) -> str:
    return f"BackendType.{self.name}"


BackendType: Any = _create_enum({})


def backend_registered(backend_name: str) -> bool:
    return backend_name in BackendType.__members__


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., Any],
    init_backend_handler: Callable[..., Any],
) -> Any:
    """Add a backend and return its member of the new `BackendType`.

    Args:
        construct_rpc_backend_options_handler: (rpc_timeout, init_method, **kwargs) -> options.
        init_backend_handler: (store=, name=, rank=, world_size=, rpc_backend_options=) -> agent.

    Raises RuntimeError if the name is taken.
    """
    global BackendType
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    value = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    BackendType = _create_enum({backend_name: value, **{member.name: member.value for member in BackendType}})
    return BackendType[backend_name]


def construct_rpc_backend_options(
    backend: Any,
    rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
    init_method: str = constants.DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Create the options of a backend."""
    return backend.value.construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)


def init_backend(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Start a backend and return its agent."""
    return backend.value.init_backend_handler(*args, **kwargs)


def _options(rpc_timeout: float, init_method: str, **kwargs: Any) -> TensorPipeRpcBackendOptions:
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _start(**kwargs: Any) -> Any:
    return importlib.import_module(".starting", __package__).start(**kwargs)


register_backend("TENSORPIPE", _options, _start)
