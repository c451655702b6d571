"""The backend that programs name `TENSORPIPE`, registered by the package. What starts it is loaded when it starts.

Joining a group loads what a worker is made of; a program that only spawns workers needs none of it.
"""

import importlib
from typing import Any

from .backend_registry import register_backend
from .options import TensorPipeRpcBackendOptions

NAME = "TENSORPIPE"


def register() -> None:
    """Make it known. Once in a process."""
    register_backend(NAME, _options, _start)


def _options(rpc_timeout: float, init_method: str, **kwargs: Any) -> TensorPipeRpcBackendOptions:
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _start(**kwargs: Any) -> Any:
    return importlib.import_module(".starting", __package__).start(**kwargs)
