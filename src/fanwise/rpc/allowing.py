"""Which functions and types a call from another worker may name: the allow-list of a worker.

    options.allow --> Allowed --> Unpickler.find_class: every name in a pickle, before anything is imported

A pickle can name any callable of any module and have it called. A worker with an allow-list resolves only what its
user has listed, and what calls need themselves: tensors, references, plain containers. A method is allowed with its
class. Everything else is refused by name, before it is imported.

This holds for the values that calls and their answers carry. It keeps a program from being led to call what it should
not; it is no wall against a member that is hostile: book-keeping and errors between members are pickles too.
"""

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..base.errors import WireError

Buffer = bytes | bytearray | memoryview
Allow = str | type | Callable[..., Any]  # Any: the user's

# What has no effect, and is in the arguments of calls all the time.
_ALWAYS = frozenset((
    *(f"builtins.{name}" for name in ("set", "frozenset", "bytearray", "complex", "slice", "range", "list", "dict")),
    *(f"builtins.{name}" for name in ("tuple", "int", "float", "bool", "str", "bytes", "object")),
    *("collections.OrderedDict", "collections.deque", "torch.Size", "torch.device", "torch._utils._rebuild_parameter"),
    "torch.serialization._get_layout",
    *("fanwise.rpc.worker_info.WorkerInfo", "fanwise.rpc.pickling._tensor", "fanwise.rpc.rref.received"),
    "fanwise.tensor.wire.reducing.rebuild_array",
    "fanwise.tensor.wire.reducing.rebuild_scalar",
))  # fmt: skip
# Of these modules what calls of ours name: proxies of references, DistributedOptimizer, RemoteModule.
_OURS = (
    "fanwise.rpc.rref_proxy.",
    "fanwise.rpc.rref.",
    "fanwise.rpc.optim.",
    "fanwise.rpc.nn.",
    "fanwise.rpc.gathering.",
)
_OURS_TOO = ("fanwise.rpc.torch_compat._gather_to_leader", "fanwise.rpc.torch_compat._broadcast_to_followers")
_DTYPES_OF = "torch."


class Allowed:
    """An allow-list.

    Args:
        allow: functions and types, or names such as "shop.train.step", and "shop.train.*" for a whole module.

    Raises:
        TypeError: something that has no name. ValueError: a name without a module.
    """

    def __init__(self, allow: Iterable[Allow]) -> None:
        self._names = set(_ALWAYS) | set(_OURS_TOO)
        self._prefixes: tuple[str, ...] = _OURS
        for one in allow:
            self._add(one)

    def _add(self, one: Allow) -> None:
        if not isinstance(one, str):
            self._names.add(_name_of(one))
        elif "." not in one:
            raise ValueError(f"allow={one!r} names no module: write it as in 'shop.train.step' or 'shop.train.*'")
        elif one.endswith(".*"):
            self._prefixes = (*self._prefixes, one[:-1])
        else:
            self._names.add(one)

    def has(self, name: str) -> bool:
        """Whether exactly this is listed."""
        return name in self._names

    def has_type(self, name: str) -> bool:
        """Whether the user has listed this, so that methods of it are allowed too."""
        return name in self._names and name not in _ALWAYS

    def has_module(self, module: str) -> bool:
        """Whether all that is defined in this module is allowed."""
        return f"{module}.".startswith(self._prefixes)

    def loads(self, data: Buffer, buffers: Sequence[memoryview]) -> Any:  # Any: the user's
        """As `pickle.loads`. Raises WireError that names what is not allowed."""
        return _Unpickler(self, data, buffers).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, allowed: Allowed, data: Buffer, buffers: Sequence[memoryview]) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:  # Any: what is named
        if (module, name) == ("builtins", "getattr"):
            return self._attribute
        if (module, name) in _CLASSES_OF_FUNCTIONS:
            return _Attributes(_CLASSES_OF_FUNCTIONS[module, name])
        if self._allowed.has(f"{module}.{name}") or _is_dtype(module, name):
            return super().find_class(module, name)
        root_name, dot, attribute = name.partition(".")
        if self._allowed.has_module(module) or (dot and self._allowed.has_type(f"{module}.{root_name}")):
            # What a module has imported is not defined there: "shop.train.*" is no way to shop.train.os.system.
            root = super().find_class(module, root_name)
            if self._is_allowed(root):
                return self._attribute(root, attribute) if dot else root
        raise _refused(f"{module}.{name}")

    def _is_allowed(self, root: Any) -> bool:  # Any: a type or function
        module = str(getattr(root, "__module__", ""))
        return self._allowed.has_module(module) or self._allowed.has_type(f"{module}.{_qualname(root)}")

    def _attribute(self, of: Any, name: str) -> Any:  # Any: a type, an object of it, or a stand-in for one
        """Methods, and builtin functions such as `torch.add`, are pickled as attributes."""
        if isinstance(of, _Attributes):
            if not self._allowed.has(f"{of.module}.{name}"):
                raise _refused(f"{of.module}.{name}")
            return getattr(super().find_class(*_home_of(of)), name)
        kind = of if isinstance(of, type) else type(of)
        full = f"{kind.__module__}.{kind.__qualname__}.{name}"
        if not self._allowed.has(full) and (not self._is_allowed(kind) or name.startswith("_") or "." in name):
            raise _refused(full)
        return getattr(of, name)


def _qualname(of: object) -> str:
    return str(getattr(of, "__qualname__", ""))


class _Attributes:
    """In the place of a class of torch's that holds its functions: nothing but single ones are taken of it."""

    def __init__(self, module: str) -> None:
        self.module = module


# Where pickle finds the functions of torch, and under which name users know them.
_CLASSES_OF_FUNCTIONS = {
    ("torch._C", "_VariableFunctionsClass"): "torch",
    ("torch._C", "TensorBase"): "torch.Tensor",
}


def _home_of(of: _Attributes) -> tuple[str, str]:
    return next(home for home, module in _CLASSES_OF_FUNCTIONS.items() if module == of.module)


def _is_dtype(module: str, name: str) -> bool:
    import torch

    return module == "torch" and isinstance(
        getattr(torch, name, None), torch.dtype | torch.layout | torch.memory_format
    )


def _name_of(one: object) -> str:
    """The name under which a pickle finds `one`."""
    try:
        data = pickle.dumps(one, protocol=4)
    except Exception as error:
        raise TypeError(f"allow= takes functions, types and names; {one!r} has none: {error}") from None
    words = [word for operation, word, _ in pickletools.genops(data) if operation.name == "SHORT_BINUNICODE"]
    if words[:2] == ["builtins", "getattr"] and len(words) == 5:
        home = str(words[2]), str(words[3])
        module = _CLASSES_OF_FUNCTIONS.get(home, ".".join(home))
        return f"{module}.{words[4]}"
    return f"{words[0]}.{words[1]}"


def _refused(name: str) -> WireError:
    return WireError(
        f"{name} is not on the allow-list of this worker, so a call that names it was not opened.\n"
        f"If callers may use it, add {name!r} to allow= of TensorPipeRpcBackendOptions"
    )
