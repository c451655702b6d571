"""Backends by name, as torch has them. Ours is `BackendType.TENSORPIPE`, so that programs which name it run unchanged.

A backend is two functions: one makes its options, one starts it and returns the agent.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from . import constants


class BackendValue(NamedTuple):
    """What a backend is made of."""

    construct_rpc_backend_options_handler: Callable[..., Any]
    init_backend_handler: Callable[..., Any]


def _made_of(members: dict[str, BackendValue]) -> Any:
    kind = enum.Enum("BackendType", members)  # type: ignore[misc]  # made of what is known only when it runs
    kind.__doc__ = "The backends that are registered."
    kind.__repr__ = _shown  # type: ignore[method-assign]  # as torch's prints
    return kind


def _shown(self: Any) -> str:
    return f"BackendType.{self.name}"


BackendType: Any = _made_of({})


def backend_registered(backend_name: str) -> bool:
    """Whether there is a backend of this name."""
    return backend_name in BackendType.__members__


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., Any],
    init_backend_handler: Callable[..., Any],
) -> Any:
    """Add a backend; returns its member of the new `BackendType`.

    Args:
        construct_rpc_backend_options_handler: (rpc_timeout, init_method, **kwargs) -> options.
        init_backend_handler: (store=, name=, rank=, world_size=, rpc_backend_options=) -> agent.

    Raises RuntimeError when the name is taken.
    """
    global BackendType
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    value = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    BackendType = _made_of({backend_name: value, **{member.name: member.value for member in BackendType}})
    return BackendType[backend_name]


def construct_rpc_backend_options(
    backend: Any,
    rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
    init_method: str = constants.DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Options for a backend."""
    return backend.value.construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)


def init_backend(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Start a backend; returns its agent."""
    return backend.value.init_backend_handler(*args, **kwargs)
