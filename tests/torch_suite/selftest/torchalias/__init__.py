"""A package that only forwards to torch's own RPC modules: shows that the harness routes the tests through a package.

TORCHALIAS_TRACE=file     each process that comes through here adds a line for each function that it uses
TORCHALIAS_BREAK=names    these names raise when they are called: exactly the tests that call them must fail
"""

import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

_NAMES = (
    *("api", "internal", "constants", "functions", "options", "backend_registry", "rref_proxy", "_utils"),
    "server_process_global_profiler",
)
_PAIRS = {
    "torchalias.rpc": "torch.distributed.rpc",
    **{f"torchalias.rpc.{name}": f"torch.distributed.rpc.{name}" for name in _NAMES},
    "torchalias.rpc.autograd": "torch.distributed.autograd",
    "torchalias.rpc.optim": "torch.distributed.optim.optimizer",
    "torchalias.rpc.remote_module": "torch.distributed.nn.api.remote_module",
}
_TRACED = ("init_rpc", "rpc_sync", "rpc_async", "remote", "context", "backward")
_broken = set(filter(None, os.environ.get("TORCHALIAS_BREAK", "").split(",")))
_trace = os.environ.get("TORCHALIAS_TRACE", "")
_seen: set[tuple[int, str]] = set()


def _raises(name: str) -> Callable[..., NoReturn]:
    def off(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"torchalias: {name} is switched off")

    return off


class _Forward(types.ModuleType):
    def __init__(self, name: str, target: types.ModuleType) -> None:
        super().__init__(name)
        self.__dict__.update(_target=target, __path__=[], __all__=list(getattr(target, "__all__", [])))

    def __getattr__(self, name: str) -> Any:  # Any: torch's
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name in _broken:
            return _raises(name)
        if name in _TRACED and _trace and (os.getpid(), name) not in _seen:
            _seen.add((os.getpid(), name))
            with open(_trace, "a") as file:
                file.write(f"{os.getpid()} {self.__name__}.{name}\n")
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("__spec__", "__loader__", "__package__", "__file__"):
            self.__dict__[name] = value
        else:
            setattr(self._target, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._target, name)


def _bind(name: str, target: types.ModuleType) -> None:
    module = sys.modules[name] = _Forward(name, target)
    parent, _, leaf = name.rpartition(".")
    sys.modules[parent].__dict__[leaf] = module


for _name, _target in _PAIRS.items():
    _bind(_name, importlib.import_module(_target))
# The backend with faults registers itself when it is imported, so only where it is asked for.
if "faulty" in os.environ.get("RPC_SUITE_GROUPS", ""):
    _bind("torchalias.rpc._testing", importlib.import_module("torch.distributed.rpc._testing"))
