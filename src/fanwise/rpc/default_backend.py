"""The backend named `TENSORPIPE`. Its modules are imported when it starts.

A program that only spawns workers does not import the modules of a worker.
"""

import importlib
from typing import Any

from .backend_registry import register_backend
from .options import TensorPipeRpcBackendOptions

NAME = "TENSORPIPE"


def register() -> None:
    """Register the backend. Called once per process."""
    register_backend(NAME, _options, _start)


def _options(rpc_timeout: float, init_method: str, **kwargs: Any) -> TensorPipeRpcBackendOptions:
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _start(**kwargs: Any) -> Any:
    return importlib.import_module(".starting", __package__).start(**kwargs)
