"""Put another package in the place of torch's RPC modules.

    install("fanwise.rpc")  -->  sys.modules["torch.distributed.rpc"], torch.distributed.rpc, and so on for each row

Must run in every process (driver, fork server, spawned children) before any of torch's RPC test modules is imported.
Both `sys.modules` and the attributes of parent packages are bound anew: `import a.b.c as m` walks attributes, pickle
walks `sys.modules`. A name that the package lacks becomes a class that can be imported and subclassed, and raises when
used; it is listed in `INFO`. So is what stays torch's: nobody shall mistake torch's pass for the package's.
"""

import importlib
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "support"))

_RPC_MODULES = (
    *("api", "internal", "constants", "functions", "options", "backend_registry", "rref_proxy", "_utils"),
    *("server_process_global_profiler", "_testing"),
)
# By torch's module: where it may be in the package; the first that imports is taken.
_PLACES: dict[str, list[str]] = {
    "torch.distributed.rpc": [""],
    **{f"torch.distributed.rpc.{name}": [f".{name}"] for name in _RPC_MODULES},
    "torch.distributed.autograd": [".autograd", ".dist_autograd"],
    "torch.distributed.optim.optimizer": [".optim", ".optimizer"],
    "torch.distributed.nn.api.remote_module": [".remote_module", ".nn"],
}
# Names that torch exports again from a package which is not replaced.
_EXPORTED_AGAIN = {
    "torch.distributed.optim": ("torch.distributed.optim.optimizer", ["DistributedOptimizer"]),
    "torch.distributed.nn": ("torch.distributed.nn.api.remote_module", ["RemoteModule"]),
}

INFO: dict[str, Any] = {  # Any: for people
    "impl": "torch",
    "replaced": {},
    "facades": [],
    "not_replaced": [],
    "missing": set(),
}


class MissingName:
    """In the place of a name that the package does not have."""

    _what = "?"

    def __class_getitem__(cls, item: object) -> "type[MissingName]":
        return cls

    def __new__(cls, *args: object, **kwargs: object) -> "MissingName":
        raise NotImplementedError(f"the package has no {cls._what}")


class Facade(types.ModuleType):
    """A module that reads from and writes to `target`, then reads from `fallback`."""

    def __init__(self, name: str, target: types.ModuleType, fallback: types.ModuleType | None = None) -> None:
        super().__init__(name)
        own = self.__dict__
        own["_suite_target"] = target
        own["_suite_fallback"] = fallback
        own["__path__"] = []  # so that "import name.sub" is looked up in sys.modules
        if getattr(target, "__file__", None):
            own["__file__"] = target.__file__
        own["__all__"] = list(getattr(target, "__all__", []))

    def __getattr__(self, name: str) -> Any:  # Any: of the package
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        for module in (self.__dict__["_suite_target"], self.__dict__["_suite_fallback"]):
            if module is not None and hasattr(module, name):
                return getattr(module, name)
        if name == "is_available":  # torch's own TorchScript front end calls it
            return lambda: True
        what = f"{self.__name__}.{name}"
        if os.environ.get("RPC_SUITE_STRICT") == "1":
            raise AttributeError(what)
        INFO["missing"].add(what)
        return type(name, (MissingName,), {"_what": what, "__module__": self.__name__})

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("__spec__", "__loader__", "__package__"):
            self.__dict__[name] = value
        else:
            setattr(self.__dict__["_suite_target"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_suite_target"], name)


def install(impl: str) -> dict[str, Any]:  # Any: INFO
    """Put the package `impl` in the place of torch's modules; a second call does nothing. Returns `INFO`."""
    if impl in ("", "torch") or INFO["impl"] != "torch":
        return INFO
    for original in ("torch", *_EXPORTED_AGAIN, "torch.distributed.nn.api.remote_module"):
        importlib.import_module(original)  # torch._jit_internal must see the originals first
    INFO["impl"] = impl
    root = importlib.import_module(impl)
    found = _found(root, impl)
    # Parents first, so that what is below them lands on the new parent.
    for name in sorted(_PLACES, key=lambda name: name.count(".")):
        if name in found:
            _bind(name, Facade(name, found[name]))
            INFO["replaced"][name] = found[name].__name__
        else:
            _replace_by_root(name, root)
    for package, (source, names) in _EXPORTED_AGAIN.items():
        if source in INFO["replaced"]:
            for exported in names:
                setattr(sys.modules[package], exported, getattr(sys.modules[source], exported))
    return INFO


def _found(root: types.ModuleType, impl: str) -> dict[str, types.ModuleType]:
    said = dict(getattr(root, "__torch_rpc_aliases__", {}))
    if impl == "fanwise.rpc":
        said["torch.distributed.rpc._testing"] = "faulty_rpc"
    found: dict[str, types.ModuleType] = {}
    for name, suffixes in _PLACES.items():
        if name.endswith("._testing") and not _with_faults():
            continue  # importing it registers a second backend
        if name in said:
            found[name] = importlib.import_module(said[name])
            continue
        modules = (root if not suffix else _imported(impl + suffix) for suffix in suffixes)
        module = next((module for module in modules if module is not None), None)
        if module is not None:
            found[name] = module
    return found


def _with_faults() -> bool:
    return "faulty" in os.environ.get("RPC_SUITE_GROUPS", "")


def _replace_by_root(name: str, root: types.ModuleType) -> None:
    """A package may be flat: rpc.api, rpc.internal and so on are then served from the root."""
    leaf = name.rpartition(".")[2]
    if name.startswith("torch.distributed.rpc.") and leaf != "_testing":
        _bind(name, Facade(name, getattr(root, leaf, root), root))
        INFO["facades"].append(name)
    elif leaf != "_testing" or _with_faults():
        INFO["not_replaced"].append(name)


def _imported(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            return None  # this very module does not exist
        raise


def _bind(name: str, module: types.ModuleType) -> None:
    sys.modules[name] = module
    parent_name, _, leaf = name.rpartition(".")
    parent = sys.modules.get(parent_name)
    if isinstance(parent, Facade):
        parent.__dict__[leaf] = module
    elif parent is not None:
        setattr(parent, leaf, module)


def tolerant_jit_script() -> Callable[[], None]:
    """Let `@torch.jit.script` give back the plain function when it fails; returns how to end that.

    One of the test modules scripts a function annotated with RRef while it loads; TorchScript knows torch's RRef only.
    """
    import torch

    jit: Any = torch.jit  # Any: to put our function there
    original = jit.script

    def script(function: Any, *args: Any, **kwargs: Any) -> Any:  # Any: as torch's takes it
        try:
            return original(function, *args, **kwargs)
        except Exception:
            INFO.setdefault("unscripted", []).append(getattr(function, "__qualname__", str(function)))
            return function

    jit.script = script

    def restore() -> None:
        jit.script = original

    return restore
