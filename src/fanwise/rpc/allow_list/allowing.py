"""What calls from other workers may name and do: the allow-list of a worker.

    options.allow --> Allowed --resolve, attribute--> reading.Reader    values of calls and answers, and errors
                              --method_of-----------> references, nn    methods of what references refer to

A pickle can name any callable of any module and have it called. A worker with an allow-list resolves only what its
user has listed, and what calls need themselves: tensors, references, plain values. Everything else is refused by name,
before it is imported. What is listed means:

* a function: calls may name it, with any arguments; it may be handed on as an argument; a value may be made by it.
* a class: calls may name its constructor and its methods without a leading underscore, inherited ones too, through a
  reference as well; `__call__` also, through a reference. Its instances may be arguments and results: they are made as
  pickle makes them (`__new__`, `__setstate__`, items), and a state cannot put anything in the place of a method.
* "shop.train.*": all functions and classes that are defined in that module and those below it.

A subclass is another class. Not listed is what a method returns: it is sent, or kept, whatever it is.
"""

import builtins
import functools
import importlib
import pickle
import pickletools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from ...base import errors
from ...base.errors import WireError
from ...links.error_reducer import rebuild_error
from ...tensor.wire import check_loaded
from ...tensor.wire.reducing import rebuild_array
from ..calling.call import Invocation
from .hints import what_to_do_for_method
from .reading import Found, GetAttribute, Reader, check_key, give_state, refused

Buffer = bytes | bytearray | memoryview
Allow = str | type | Callable[..., Any]

# What calls of ours name: proxies of references, DistributedOptimizer, RemoteModule, gathering. Each of these sees
# itself to it that it does nothing that the list does not allow.
_TARGETS = frozenset((
    "fanwise.rpc.actors.calls.invoke",
    *(f"fanwise.rpc.references.proxy.{name}" for name in ("_invoke", "_invoke_async")),
    *("fanwise.rpc.references.rref.value_on_owner", "fanwise.rpc.references.rref._rref_typeof_on_owner"),
    "fanwise.rpc.references.rref.backward_on_owner",
    *(f"fanwise.rpc.optim.{name}" for name in ("_new_local_optimizer", "_local_optimizer_step")),
    *(f"fanwise.rpc.nn.{name}" for name in ("_create_module", "_param_rrefs", "_set_training", "_remote_forward")),
    *("fanwise.rpc.torch_compat._gather_to_leader", "fanwise.rpc.torch_compat._broadcast_to_followers"),
))  # fmt: skip


class Allowed:
    """An allow-list.

    Args:
        allow: functions and types, or names such as "shop.train.step", and "shop.train.*" for a whole module.

    Raises:
        TypeError: something that has no name. ValueError: a name without a module.
    """

    def __init__(self, allow: Iterable[Allow]) -> None:
        self._names: set[str] = set()
        self._prefixes: tuple[str, ...] = ()
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

    # -- reading ---------------------------------------------------------------------------------------------------

    def loads(self, data: Buffer, buffers: Sequence[memoryview] = ()) -> Any:
        """The value of a pickle. Raises WireError that names what is not allowed; what making the value raises."""
        return Reader(self, data, buffers).load()

    def loads_call(self, data: Buffer, buffers: Sequence[memoryview] = ()) -> Invocation:
        """As `loads`, of (function, arguments, named arguments); the function may be "module:name"."""
        reader = Reader(self, data, buffers)
        call = reader.load()
        if type(call) is not tuple or [type(part) for part in call[1:]] != [tuple, dict]:
            raise WireError("a call is no function with its arguments.")
        function, args, kwargs = call
        if type(function) is str:
            module, _, name = function.rpartition(":")
            found = self.resolve(module, name)
            if not found.is_target:
                raise refused(f"{module}.{name}")
            function = found.thing
        elif type(function) is GetAttribute:
            raise refused("builtins.getattr")
        elif id(function) not in reader.targets:
            raise refused(_full_name(function if callable(function) else type(function)))
        return function, args, kwargs

    def loads_error(self, data: Buffer) -> Any:
        """As `loads`, of an error: those of Python and of this library need no leave."""
        return Reader(_AlsoErrors(self), data, ()).load()

    # -- names -----------------------------------------------------------------------------------------------------

    def resolve(self, module: str, name: str) -> Found:
        """What a name in a pickle stands for. Raises WireError before anything is imported that is not allowed."""
        full = f"{module}.{name}"
        if full in self._names:
            return _found(functools.reduce(getattr, name.split("."), importlib.import_module(module)))
        known = _KNOWN.get(full)
        if known is not None:
            return known()
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype | torch.layout | torch.memory_format):
            return Found(getattr(torch, name))
        if full in _TARGETS:
            return Found(getattr(importlib.import_module(module), name), is_target=True)
        root_name, _, attribute = name.partition(".")
        if not self._has_module(module) and f"{module}.{root_name}" not in self._names:
            raise refused(full)
        root = getattr(importlib.import_module(module), root_name)
        # What a module has imported is not defined there: "shop.train.*" is no way to shop.train.os.system.
        if not isinstance(root, type | FunctionType | BuiltinFunctionType) or not self._is_listed(root):
            raise refused(full)
        return self.attribute(root, attribute) if attribute else _found(root)

    def attribute(self, of: Any, name: str) -> Found:
        """Methods, and builtin functions such as `torch.add`, are pickled as attributes."""
        if type(name) is not str:
            raise WireError(f"a pickle takes an attribute whose name is a {type(name).__name__}.")
        if isinstance(of, _FunctionsOf):
            if f"{of.shown}.{name}" not in self._names:
                raise refused(f"{of.shown}.{name}")
            return _found(getattr(getattr(importlib.import_module(of.module), of.name), name))
        kind = of if isinstance(of, type) else type(of)
        full = f"{_full_name(kind)}.{name}"
        if full in self._names:
            return _found(getattr(of, name))
        found = _in_class(kind, name)
        if not self._is_listed(kind) or name.startswith("_") or "." in name:
            raise refused(full)
        if isinstance(found, kind) and isinstance(found, Enum):
            return Found(found)
        if not _is_method(found):
            raise refused(full)
        return Found(getattr(of, name), is_target=True)

    def method_of(self, value: Any, name: str) -> Callable[..., Any]:
        """A method of a value of this worker that others may call by a reference. It is that of the value's class,
        whatever the value itself has under its name. Raises WireError when it is not allowed."""
        kind = type(value)
        if type(name) is not str:
            raise WireError(f"a method is named by a {type(name).__name__}.")
        full = f"{_full_name(kind)}.{name}"
        found = _in_class(kind, name)
        is_public = name == "__call__" or not name.startswith("_")
        if full not in self._names and not (self._is_listed(kind) and is_public):
            raise WireError(
                f"{full} is not on the allow-list of this worker, so it was not called.\n"
                f"{what_to_do_for_method(_full_name(kind))}"
            )
        if not _is_method(found):
            raise AttributeError(f"{_full_name(kind)} has no method {name!r}")
        method: Callable[..., Any] = found.__get__(value, kind)
        return method

    def _is_listed(self, thing: Any) -> bool:
        return _full_name(thing) in self._names or self._has_module(str(getattr(thing, "__module__", "")))

    def _has_module(self, module: str) -> bool:
        """Whether all that is defined in this module is allowed."""
        return f"{module}.".startswith(self._prefixes) if self._prefixes else False


class _AlsoErrors:
    """The policy for errors: what is listed, and Python's and our own."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self.attribute = allowed.attribute

    def resolve(self, module: str, name: str) -> Found:
        if (module, name) == ("fanwise.links.error_reducer", "rebuild_error"):
            return Found(_remade, make=_remade)
        home = {builtins.__name__: builtins, errors.__name__: errors}.get(module)
        kind = None if home is None else vars(home).get(name)
        # Not those that would end a program, such as SystemExit.
        if isinstance(kind, type) and issubclass(kind, Exception):
            return Found(kind, make=kind, is_class=True)
        return self._allowed.resolve(module, name)


def _remade(
    kind: type[Exception], args: tuple[object, ...], attributes: dict[str, Any], cause: Exception | None = None
) -> Exception:
    """An error without its constructor; see `links.error_reducer`."""
    is_error = isinstance(kind, type) and issubclass(kind, Exception) and isinstance(cause, Exception | None)
    if not is_error or type(args) is not tuple:
        raise WireError("an error is of no kind.")
    error = rebuild_error(kind, args, {}, cause)
    give_state(error, attributes)
    return error  # type: ignore[return-value]  # of that kind


def _found(thing: Any) -> Found:
    is_class = isinstance(thing, type)
    return Found(thing, make=thing, is_target=True, is_class=is_class) if callable(thing) else Found(thing)


def _full_name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _in_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _is_method(found: Any) -> bool:
    """A function or something like it, which is bound to the instance; no property, class or plain value."""
    if isinstance(found, type) or not hasattr(type(found), "__get__"):
        return False
    return callable(found) or isinstance(found, classmethod | functools.partialmethod | functools.singledispatchmethod)


class _FunctionsOf:
    """In the place of a class of torch's that holds its functions: nothing but single ones are taken of it."""

    def __init__(self, module: str, name: str, shown: str) -> None:
        self.module = module
        self.name = name
        self.shown = shown  # under which name users know it


# -- what needs no leave -----------------------------------------------------------------------------------------------


def _checked(make: Callable[..., Any], *kinds: Any, at_least: int = -1) -> Callable[..., Any]:
    """`make` with arguments of exactly these types. What it is called with costs no more than it takes to send."""
    fewest = len(kinds) if at_least < 0 else at_least

    def checked(*args: Any) -> Any:
        fits = all(isinstance(arg, kind) for arg, kind in zip(args, kinds, strict=False))
        if not fewest <= len(args) <= len(kinds) or not fits:
            shown = ", ".join(type(arg).__name__ for arg in args)
            raise WireError(f"a pickle makes a {getattr(make, '__name__', make)} of ({shown}).")
        return make(*args)

    return checked


def _parameter(data: torch.Tensor, requires_grad: bool, hooks: OrderedDict[Any, Any]) -> torch.nn.Parameter:
    if hooks:
        raise WireError("a parameter came with hooks.")
    return torch.nn.Parameter(data, requires_grad)


def _array(header: bytes, buffer: Buffer) -> object:
    check_loaded(header)
    return rebuild_array(header, buffer)


def _size(lengths: Sequence[int]) -> torch.Size:
    return torch.Size(lengths)


def _set_of(kind: type, values: list[object]) -> Any:
    for value in values:
        check_key(value)
    return kind(values)


def _values(**things: tuple[Any, Callable[..., Any] | None]) -> dict[str, Callable[[], Found]]:
    return {f"builtins.{name}": functools.partial(Found, thing, make) for name, (thing, make) in things.items()}


def _ours(module: str, name: str, *kinds: Any) -> dict[str, Callable[[], Found]]:
    """A function of ours that makes a value again, with arguments of these types."""

    def find() -> Found:
        make = getattr(importlib.import_module(module), name)
        return Found(make, _checked(make, *kinds))

    return {f"{module}.{name}": find}


_number = int | float
_bytes = bytes | bytearray | memoryview
_KNOWN: dict[str, Callable[[], Found]] = {
    "builtins.getattr": lambda: Found(GetAttribute()),
    **_values(
        **{kind.__name__: (kind, None) for kind in (list, dict, tuple, int, float, bool, str, bytes)},
        object=(object, _checked(object)),
        complex=(complex, _checked(complex, _number, _number)),
        slice=(slice, _checked(slice, object, object, object)),
        range=(range, _checked(range, int, int, int)),
        set=(set, _checked(functools.partial(_set_of, set), list)),
        frozenset=(frozenset, _checked(functools.partial(_set_of, frozenset), list)),
        bytearray=(bytearray, _checked(bytearray, bytes, at_least=0)),
    ),
    "collections.OrderedDict": lambda: Found(OrderedDict, _checked(OrderedDict)),
    "collections.deque": lambda: Found(deque, _checked(deque, list | tuple, int | None, at_least=0)),
    "fanwise.tensor.wire.reducing.rebuild_array": lambda: Found(rebuild_array, _checked(_array, bytes, _bytes)),
    "torch.Size": lambda: Found(torch.Size, _checked(_size, tuple | list)),
    "torch.device": lambda: Found(torch.device, _checked(torch.device, str, int, at_least=1)),
    "torch._utils._rebuild_parameter": lambda: Found(_parameter, _checked(_parameter, torch.Tensor, bool, OrderedDict)),
    **_ours("torch.serialization", "_get_layout", str),
    **_ours("fanwise.rpc.worker_info", "WorkerInfo", str, int),
    **_ours("fanwise.rpc.references.orders", "GlobalId", int, int, int),
    **_ours("fanwise.rpc.messages.pickling", "_tensor", int),
    **_ours("fanwise.rpc.references.travel", "received", int),
    **_ours("fanwise.rpc.references.rref", "at_home", int, int, int),
    **_ours("fanwise.rpc.nn", "_rebuild", object, str, bool, bool, tuple, object),
    **_ours("fanwise.tensor.wire.reducing", "rebuild_scalar", bytes, bytes),
    # Where pickle finds the functions of torch, and under which name users know them.
    "torch._C._VariableFunctionsClass": lambda: Found(_FunctionsOf("torch._C", "_VariableFunctionsClass", "torch")),
    "torch._C.TensorBase": lambda: Found(_FunctionsOf("torch._C", "TensorBase", "torch.Tensor")),
}
_SHOWN = {(of.thing.module, of.thing.name): of.thing.shown for of in (
    _KNOWN["torch._C._VariableFunctionsClass"](), _KNOWN["torch._C.TensorBase"]()
)}  # fmt: skip


def _name_of(one: object) -> str:
    """The name under which a pickle finds `one`."""
    try:
        data = pickle.dumps(one, protocol=4)
    except Exception as error:
        raise TypeError(f"allow= takes functions, types and names; {one!r} has none: {error}") from None
    words = [word for operation, word, _ in pickletools.genops(data) if operation.name == "SHORT_BINUNICODE"]
    if words[:2] == ["builtins", "getattr"] and len(words) == 5:
        home = str(words[2]), str(words[3])
        return f"{_SHOWN.get(home, '.'.join(home))}.{words[4]}"
    return f"{words[0]}.{words[1]}"
