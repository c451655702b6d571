"""Reading a pickle without running it: what a worker with an allow-list does with the values of its peers.

    bytes --step by step-->  a name       Policy.resolve: what it stands for, and what may be done with it
                             call, new    only what a name of this very pickle stands for, as far as it may
                             state        only to an object that was made so, of a class that is allowed
                             all else     plain values and containers

The standard library's unpickler calls whatever lies on its stack and sets attributes of whatever lies there, classes
and functions too; to choose the names that it finds is not enough. This one knows what it has made: it calls nothing
but what the policy gave it to call, and gives state to nothing but instances that it made. What a class does itself
when it is made or given its state is its own. No step asks for more memory than there are bytes, and keys of
dictionaries are looked at before they are hashed.

Steps that Python's own pickler does not write for values that may come here are refused.
"""

import pickle
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from types import MemberDescriptorType
from typing import Any, NamedTuple, Protocol

from ...base.errors import WireError
from .hints import what_to_do

Buffer = bytes | bytearray | memoryview

_KEY_PARTS_MAX = 100_000
_PROTOCOL_MAX = 5
_NEWLINE = ord("\n")


class Found(NamedTuple):
    """What a name stands for.

    Attributes:
        thing: the value of the name.
        make: called where the pickle calls the name; None: that is refused.
        is_target: whether a call from another worker may call it.
        is_class: whether instances may be made without their constructor, and be given state.
    """

    thing: Any
    make: Callable[..., Any] | None = None
    is_target: bool = False
    is_class: bool = False


class Policy(Protocol):
    """Decides what names stand for. Raises WireError for those that it refuses."""

    def resolve(self, module: str, name: str) -> Found: ...

    def attribute(self, of: Any, name: str) -> Found:
        """An attribute of a class, or of an instance that was made here; of any other thing it is refused."""


class GetAttribute:
    """In the place of `getattr`, by which methods are pickled. Not to be called by anybody but the reader."""


def refused(name: str) -> WireError:
    """The error for a name that is not allowed."""
    return WireError(
        f"{name} is not on the allow-list of this worker, so a call that names it was not opened.\n{what_to_do(name)}"
    )


class _Theirs(Exception):
    """What the code of a type that is allowed has raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Mark:
    pass


_MARK = _Mark()


class Reader:
    """Reads one pickle. Attributes: `targets`, the things in it that a call may call, by their `id`."""

    def __init__(self, policy: Policy, data: Buffer, buffers: Sequence[memoryview]) -> None:
        self.targets: set[int] = set()
        self._policy = policy
        self._view = memoryview(data)
        self._at = 0
        self._buffers = iter(buffers)
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._found: dict[int, Found] = {}  # by the thing's id; holds the thing
        self._made: dict[int, Any] = {}  # instances, by their ids

    def load(self) -> Any:
        """The value. Raises WireError for what is refused or no pickle; what the code of a type of it raises."""
        view, steps = self._view, _STEPS
        try:
            while True:
                code = view[self._at]
                self._at += 1
                if code == _STOP:
                    return self._stack.pop()
                step = steps.get(code)
                if step is None:
                    raise WireError(f"a pickle has the step {bytes((code,))!r}, which is not taken by an allow-list.")
                step(self)
        except _Theirs as theirs:
            raise theirs.error from None
        except WireError:
            raise
        except Exception as error:
            raise WireError(
                f"a pickle of {len(view)} bytes cannot be read: {type(error).__name__}: {error}."
            ) from error

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _bytes(self, size: int) -> memoryview:
        self._at += size
        if size < 0 or self._at > len(self._view):
            raise WireError(f"a pickle of {len(self._view)} bytes is cut short.")
        return self._view[self._at - size : self._at]

    def _number(self, form: struct.Struct) -> Any:
        (number,) = form.unpack(self._bytes(form.size))
        return number

    def _line(self) -> str:
        end = self._at
        while end < len(self._view) and self._view[end] != _NEWLINE:
            end += 1
        return str(self._bytes(end + 1 - self._at)[:-1], "utf-8")

    def _pop_to_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                values = self._stack[at + 1 :]
                del self._stack[at:]
                return values
        raise WireError("a pickle has the end of a list and not its beginning.")

    # -- names, and what is done with them -------------------------------------------------------------------------

    def _global(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:
            raise WireError(f"a pickle names a {type(module).__name__} and a {type(name).__name__}.")
        self._push_found(_theirs(self._policy.resolve, module, name))

    def _push_found(self, found: Found) -> None:
        self._found[id(found.thing)] = found
        if found.is_target:
            self.targets.add(id(found.thing))
        self._stack.append(found.thing)

    def _reduce(self) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        found = self._found.get(id(function))
        if type(args) is not tuple or found is None:
            raise WireError(f"a pickle calls a {type(function).__name__} that it does not name.")
        if isinstance(function, GetAttribute):
            of, name = args
            self._push_found(_theirs(self._policy.attribute, self._may_have_methods(of), name))
            return
        if found.make is None:
            raise _not_called(function)
        self._push_made(found, _theirs(found.make, *args))

    def _may_have_methods(self, of: Any) -> Any:
        if id(of) not in self._found and id(of) not in self._made:
            raise WireError(f"a pickle takes an attribute of a {type(of).__name__} that it has not made.")
        return of

    def _new(self, args: object, kwargs: Mapping[str, Any]) -> None:
        kind = self._stack.pop()
        found = self._found.get(id(kind))
        if found is None or not isinstance(kind, type) or type(args) is not tuple:
            raise WireError(f"a pickle makes an instance of a {type(kind).__name__} that it does not name.")
        if found.is_class:
            self._push_made(found, _theirs(kind.__new__, kind, *args, **kwargs))
        elif found.make is not None:
            self._push_made(found, _theirs(found.make, *args, **kwargs))
        else:
            raise _not_called(kind)

    def _push_made(self, found: Found, made: Any) -> None:
        if found.is_class and type(made) is found.thing:
            self._made[id(made)] = made
        self._stack.append(made)

    def _build(self) -> None:
        state, instance = self._stack.pop(), self._stack[-1]
        if id(instance) not in self._made:
            raise WireError(f"a pickle gives state to a {type(instance).__name__} that it has not made.")
        _theirs(give_state, instance, state)

    # -- containers ------------------------------------------------------------------------------------------------

    def _extend(self, values: Sequence[Any]) -> None:
        target = self._stack[-1]
        if type(target) in (list, deque):
            target.extend(values)
        elif id(target) in self._made:
            for value in values:
                _theirs(target.append, value)
        else:
            raise WireError(f"a pickle appends to a {type(target).__name__} that it has not made.")

    def _set_items(self, items: Sequence[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, OrderedDict) and id(target) not in self._made:
            raise WireError(f"a pickle sets items of a {type(target).__name__} that it has not made.")
        for key, value in zip(items[::2], items[1::2], strict=True):
            check_key(key)
            _theirs(type(target).__setitem__, target, key, value)

    def _set_of(self, kind: type, values: Sequence[Any]) -> Any:
        for value in values:
            check_key(value)
        return _theirs(kind, values)

    def _add_items(self) -> None:
        values = self._pop_to_mark()
        if type(self._stack[-1]) is not set:
            raise WireError(f"a pickle adds to a {type(self._stack[-1]).__name__}.")
        self._stack[-1].update(self._set_of(set, values))

    def _memoize(self, place: int) -> None:
        self._memo[place] = self._stack[-1]


def give_state(instance: Any, state: Any) -> None:
    """As unpickling does, but methods and what Python itself keeps of an object cannot be replaced.

    Raises WireError for such a state.
    """
    kind = type(instance)
    own = getattr(kind, "__setstate__", None)
    if own is not None and own is not BaseException.__setstate__:
        own(instance, state)
        return
    attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    for name, value in _named_values(attributes):
        found = _in_class(kind, name)
        if callable(found) or isinstance(found, classmethod | staticmethod):
            raise WireError(f"a state of {kind.__qualname__} would replace its method {name!r}.")
        instance.__dict__[name] = value
    for name, value in _named_values(slots):
        found = _in_class(kind, name)
        if not isinstance(found, MemberDescriptorType):
            raise WireError(f"a state of {kind.__qualname__} has {name!r}, which is no slot of it.")
        found.__set__(instance, value)


def _named_values(state: Any) -> list[tuple[str, Any]]:
    if state is None:
        return []
    if type(state) is not dict or not all(type(name) is str for name in state):
        raise WireError(f"a state is a {type(state).__name__}, not a dictionary by names.")
    for name in state:
        if name.startswith("__") and name.endswith("__") and name != "__notes__":
            raise WireError(f"a state has {name!r}, which is Python's own.")
    return list(state.items())


def _in_class(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _theirs(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what is not ours, and keep apart what it raises."""
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        raise _Theirs(error) from None


def _not_called(thing: Any) -> WireError:
    return refused(f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__name__)}")


def check_key(key: object) -> None:
    """A tuple that holds another twice, which holds another twice, and so on, takes for ever to be hashed."""
    if type(key) not in (tuple, frozenset):
        return
    left, seen = [key], 0
    while left:
        part = left.pop()
        seen += 1
        if seen > _KEY_PARTS_MAX:
            raise WireError(f"a key of a dictionary or a set has more than {_KEY_PARTS_MAX} parts.")
        if type(part) is tuple or type(part) is frozenset:
            left.extend(part)


# -- the steps ---------------------------------------------------------------------------------------------------------

_U1, _U2, _I4, _U4, _U8, _F8 = (struct.Struct(form) for form in ("<B", "<H", "<i", "<I", "<Q", ">d"))


def _proto(reader: Reader) -> None:
    if reader._number(_U1) > _PROTOCOL_MAX:
        raise WireError("a pickle of a protocol that this version does not read.")


def _constant(value: object) -> Callable[[Reader], None]:
    return lambda reader: reader._stack.append(value)


def _push(make: Callable[[Reader], Any]) -> Callable[[Reader], None]:
    return lambda reader: reader._stack.append(make(reader))


def _sized(form: struct.Struct, make: Callable[[memoryview], Any]) -> Callable[[Reader], None]:
    return lambda reader: reader._stack.append(make(reader._bytes(reader._number(form))))


def _text_of(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _long_of(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _tuple_of(count: int) -> Callable[[Reader], None]:
    def step(reader: Reader) -> None:
        stack = reader._stack
        if len(stack) < count:
            raise WireError("a pickle takes more than there is.")
        stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]

    return step


def _dict(reader: Reader) -> None:
    items = reader._pop_to_mark()
    reader._stack.append({})
    reader._set_items(items)


def _stack_global(reader: Reader) -> None:
    name, module = reader._stack.pop(), reader._stack.pop()
    reader._global(module, name)


def _set_item(reader: Reader) -> None:
    value, key = reader._stack.pop(), reader._stack.pop()
    reader._set_items((key, value))


def _append(reader: Reader) -> None:
    value = reader._stack.pop()
    reader._extend((value,))


def _new_with_names(reader: Reader) -> None:
    kwargs, args = reader._stack.pop(), reader._stack.pop()
    if type(kwargs) is not dict:
        raise WireError("a pickle makes an instance by no dictionary.")
    reader._new(args, kwargs)


def _readonly(reader: Reader) -> None:
    buffer = reader._stack.pop()
    if type(buffer) is not memoryview:
        raise WireError(f"a pickle makes a {type(buffer).__name__} a buffer.")
    reader._stack.append(buffer.toreadonly())


_STOP = pickle.STOP[0]
_STEPS: dict[int, Callable[[Reader], None]] = {
    code[0]: step
    for code, step in (
        (pickle.PROTO, _proto),
        (pickle.FRAME, lambda reader: reader._number(_U8)),
        (pickle.MARK, _constant(_MARK)),
        (pickle.POP, lambda reader: reader._stack.pop()),
        (pickle.POP_MARK, lambda reader: reader._pop_to_mark()),
        (pickle.NONE, _constant(None)),
        (pickle.NEWTRUE, _constant(True)),
        (pickle.NEWFALSE, _constant(False)),
        (pickle.BININT, _push(lambda reader: reader._number(_I4))),
        (pickle.BININT1, _push(lambda reader: reader._number(_U1))),
        (pickle.BININT2, _push(lambda reader: reader._number(_U2))),
        (pickle.LONG1, _sized(_U1, _long_of)),
        (pickle.LONG4, _sized(_I4, _long_of)),
        (pickle.BINFLOAT, _push(lambda reader: reader._number(_F8))),
        (pickle.SHORT_BINUNICODE, _sized(_U1, _text_of)),
        (pickle.BINUNICODE, _sized(_U4, _text_of)),
        (pickle.BINUNICODE8, _sized(_U8, _text_of)),
        (pickle.SHORT_BINBYTES, _sized(_U1, bytes)),
        (pickle.BINBYTES, _sized(_U4, bytes)),
        (pickle.BINBYTES8, _sized(_U8, bytes)),
        (pickle.BYTEARRAY8, _sized(_U8, bytearray)),
        (pickle.NEXT_BUFFER, _push(lambda reader: next(reader._buffers))),
        (pickle.READONLY_BUFFER, _readonly),
        (pickle.EMPTY_LIST, _push(lambda reader: [])),
        (pickle.LIST, _push(lambda reader: reader._pop_to_mark())),
        (pickle.APPEND, _append),
        (pickle.APPENDS, lambda reader: reader._extend(reader._pop_to_mark())),
        (pickle.EMPTY_TUPLE, _constant(())),
        (pickle.TUPLE, _push(lambda reader: tuple(reader._pop_to_mark()))),
        (pickle.TUPLE1, _tuple_of(1)),
        (pickle.TUPLE2, _tuple_of(2)),
        (pickle.TUPLE3, _tuple_of(3)),
        (pickle.EMPTY_DICT, _push(lambda reader: {})),
        (pickle.DICT, _dict),
        (pickle.SETITEM, _set_item),
        (pickle.SETITEMS, lambda reader: reader._set_items(reader._pop_to_mark())),
        (pickle.EMPTY_SET, _push(lambda reader: set())),
        (pickle.ADDITEMS, lambda reader: reader._add_items()),
        (pickle.FROZENSET, _push(lambda reader: reader._set_of(frozenset, reader._pop_to_mark()))),
        (pickle.GLOBAL, lambda reader: reader._global(reader._line(), reader._line())),
        (pickle.STACK_GLOBAL, _stack_global),
        (pickle.REDUCE, lambda reader: reader._reduce()),
        (pickle.BUILD, lambda reader: reader._build()),
        (pickle.NEWOBJ, lambda reader: reader._new(reader._stack.pop(), {})),
        (pickle.NEWOBJ_EX, _new_with_names),
        (pickle.MEMOIZE, lambda reader: reader._memoize(len(reader._memo))),
        (pickle.BINPUT, lambda reader: reader._memoize(reader._number(_U1))),
        (pickle.LONG_BINPUT, lambda reader: reader._memoize(reader._number(_U4))),
        (pickle.BINGET, _push(lambda reader: reader._memo[reader._number(_U1)])),
        (pickle.LONG_BINGET, _push(lambda reader: reader._memo[reader._number(_U4)])),
    )
}
