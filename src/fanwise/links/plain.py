"""Plain values as bytes and back, without a pickle: what processes say to each other about their own book-keeping.

    None, bool, int, float, str, bytes, tuple, list, dict, frozenset; arrays (`tensor.wire`); records of a fixed list
    one byte of kind, then for numbers the number, for the others how long they are, then what they hold

Reading makes nothing but these, whoever has written the bytes: no name is looked up and nothing is imported, so an
array of an engine that this process has not loaded is refused. A record is a named tuple or a dataclass of the list
that both sides have, known by its place there, and its fields have the types that it declares. All numbers are little-
endian. Bytes that are no such value are a `WireError`, never another error, and never ask for more memory than they
have themselves.
"""

import operator
import struct
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex, Union

from ..base.errors import FanwiseError, WireError
from ..tensor import from_wire, to_wire
from ..tensor.wire import check_loaded, is_array

Buffer = bytes | bytearray | memoryview
_Check = Callable[[Any], bool]  # Any: a value that came

_INT, _FLOAT, _SIZE = struct.Struct("<cq"), struct.Struct("<cd"), struct.Struct("<cI")
_RECORD = struct.Struct("<cB")
_ARRAY = struct.Struct("<cHI")  # size of the header; size of the bytes that follow it, or _BESIDE
_BESIDE = 0xFFFFFFFF
# A buffer smaller than this costs less among the bytes than beside them.
_BESIDE_FROM_BYTES = 4096
_BESIDE_MAX = 1024
_DEPTH_MAX = 32
_RECORDS_MAX = 256


class Plain:
    """Writes and reads plain values.

    Args:
        records: the named tuples and dataclasses that values may hold; the same list, in the same order, on both sides.
    """

    def __init__(self, records: Sequence[type] = ()) -> None:
        assert len(records) <= _RECORDS_MAX, "a record is known by one byte"
        self._codes: dict[type, tuple[bytes, Callable[[Any], Sequence[object]]]] = {}  # Any: a record
        self._forms: list[_Form] = []
        # Records that are nothing but whole numbers, such as ids, go in one piece.
        self._numbers: dict[type, tuple[struct.Struct, int]] = {}
        for code, kind in enumerate(records):
            names = _field_names(kind)
            self._codes[kind] = _RECORD.pack(b"R", code), _getter(names)
            hints = [typing.get_type_hints(kind)[name] for name in names]
            numbers = struct.Struct(f"<{len(names)}q") if set(hints) == {int} else None
            self._forms.append(_Form(kind, tuple(map(_check_of, hints)), numbers))
            if numbers is not None:
                self._numbers[kind] = struct.Struct(f"<cB{len(names)}q"), code

    def dumps(self, value: object) -> tuple[bytes, list[memoryview]]:
        """The bytes, and the memory of big arrays, which is to be sent before it changes.

        Raises TypeError for what is no plain value.
        """
        out: list[Buffer] = []
        beside: list[memoryview] = []
        self._put(value, out, beside)
        return b"".join(out), beside

    def loads(self, data: Buffer, buffers: Sequence[memoryview] = ()) -> Any:  # Any: a plain value
        """The value. Raises WireError for bytes that are none."""
        reader = _Reader(memoryview(data), buffers, self._forms)
        try:
            value = reader.take(0)
        except FanwiseError:
            raise
        except Exception as error:
            raise WireError(
                f"a message of {len(data)} bytes cannot be read: {type(error).__name__}: {error}."
            ) from error
        if reader.at != len(data):
            raise WireError(f"a message of {len(data)} bytes has {len(data) - reader.at} bytes too many.")
        return value

    def _put(self, value: object, out: list[Buffer], beside: list[memoryview]) -> None:
        kind = type(value)
        put = _PUT.get(kind)
        if put is not None:
            put(value, out)
        elif kind in self._codes:
            self._put_record(kind, value, out, beside)
        elif kind in _CONTAINERS:
            out.append(_SIZE.pack(_CONTAINERS[kind], len(value)))  # type: ignore[arg-type]  # a container
            parts = value if kind is not dict else [x for item in value.items() for x in item]  # type: ignore[attr-defined]  # a dict
            for part in parts:  # type: ignore[attr-defined]  # as above
                self._put(part, out, beside)
        elif is_array(value):
            _put_array(value, out, beside)
        elif isinstance(value, int | str):  # of a user's own kind, or a number in an enum
            _PUT[int if isinstance(value, int) else str](value, out)
        elif isinstance(value, SupportsIndex):  # a whole number of an engine
            _put_int(operator.index(value), out)
        else:
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no plain form; got {value!r:.200}")

    def _put_record(self, kind: type, value: object, out: list[Buffer], beside: list[memoryview]) -> None:
        code, fields_of = self._codes[kind]
        parts = fields_of(value)
        if kind in self._numbers:
            form, number = self._numbers[kind]
            try:
                out.append(form.pack(b"P", number, *parts))
                return
            except struct.error:
                pass  # one of them is too big for that, or no number: the reader will see
        out.append(code)
        for part in parts:
            self._put(part, out, beside)


class _Form(NamedTuple):
    """A record as it is read: with what tells whether a field fits, and when all are whole numbers how these stand."""

    kind: type
    checks: tuple[_Check | None, ...]
    numbers: struct.Struct | None


class _Reader:
    """One value after another out of some bytes."""

    def __init__(self, view: memoryview, buffers: Sequence[memoryview], forms: Sequence[_Form]) -> None:
        self.at = 0
        self._view = view
        self._buffers = buffers
        self._forms = forms

    def take(self, depth: int) -> Any:  # Any: a plain value
        """The next. Raises WireError, struct.error, IndexError and others for bytes that are none."""
        kind = self._view[self.at]
        if kind == _I:
            return self._number(_INT)
        if kind == _P or kind == _R:
            return self._record(depth, in_one_piece=kind == _P)
        if kind in _LITERALS:
            self.at += 1
            return _LITERALS[kind]
        if kind == _D:
            return self._number(_FLOAT)
        if kind == _A:
            return self._array()
        _, size = _SIZE.unpack_from(self._view, self.at)
        if size > len(self._view) - self.at:
            raise WireError(f"a message of {len(self._view)} bytes holds something of size {size}.")
        self.at += _SIZE.size
        if kind in _TEXTS:
            return _TEXTS[kind](self._bytes(size))
        if depth == _DEPTH_MAX:
            raise WireError(f"a message is nested more than {_DEPTH_MAX} times.")
        if kind == _M:
            items = [(self.take(depth + 1), self.take(depth + 1)) for _ in range(size)]
            return dict(items)
        make = _MAKERS.get(kind)
        if make is None:
            raise WireError(f"a message holds something of kind {kind}.")
        return make([self.take(depth + 1) for _ in range(size)])

    def _number(self, form: struct.Struct) -> Any:  # Any: int or float
        (_, number) = form.unpack_from(self._view, self.at)
        self.at += form.size
        return number

    def _bytes(self, size: int) -> memoryview:
        self.at += size
        if self.at > len(self._view):
            raise WireError(f"a message of {len(self._view)} bytes is cut short.")
        return self._view[self.at - size : self.at]

    def _record(self, depth: int, *, in_one_piece: bool) -> object:
        code = self._view[self.at + 1]
        if code >= len(self._forms) or depth == _DEPTH_MAX:
            raise WireError(f"a message holds a record of kind {code}; both sides must run the same version.")
        self.at += _RECORD.size
        kind, checks, numbers = self._forms[code]
        if in_one_piece:
            if numbers is None:
                raise WireError(f"a message holds a {kind.__name__} in one piece.")
            self.at += numbers.size
            return kind(*numbers.unpack_from(self._view, self.at - numbers.size))
        values = [self.take(depth + 1) for _ in checks]
        for check, value in zip(checks, values, strict=True):
            if check is not None and not check(value):
                found = type(value).__name__
                raise WireError(f"a message holds a {kind.__name__} with a {found} that has no place there.")
        return kind(*values)

    def _array(self) -> object:
        _, header_size, size = _ARRAY.unpack_from(self._view, self.at)
        self.at += _ARRAY.size
        header = self._bytes(header_size)
        check_loaded(header)
        if size != _BESIDE:
            return from_wire(header, [bytearray(self._bytes(size))])
        (number,) = struct.unpack("<H", self._bytes(2))
        return from_wire(header, [self._buffers[number]])


def _put_int(value: Any, out: list[Buffer]) -> None:  # Any, here and below: of the type that the name says
    try:
        out.append(_INT.pack(b"I", value))
    except struct.error:
        size = value.bit_length() // 8 + 1
        out += (_SIZE.pack(b"J", size), value.to_bytes(size, "little", signed=True))


def _put_text(value: Any, out: list[Buffer]) -> None:
    data = value.encode("utf-8", "surrogatepass")
    out += (_SIZE.pack(b"S", len(data)), data)


def _put_bytes(value: Any, out: list[Buffer]) -> None:
    out += (_SIZE.pack(b"B", len(value)), value)


def _put_array(value: object, out: list[Buffer], beside: list[memoryview]) -> None:
    header, (memory,) = to_wire(value)
    if memory.nbytes < _BESIDE_FROM_BYTES or len(beside) == _BESIDE_MAX:
        out += (_ARRAY.pack(b"A", len(header), memory.nbytes), header, memory)
    else:
        out += (_ARRAY.pack(b"A", len(header), _BESIDE), header, struct.pack("<H", len(beside)))
        beside.append(memory)


def _int_of(data: memoryview) -> int:
    if len(data) > _INT_BYTES_MAX:
        raise WireError(f"a message holds a number of {len(data)} bytes.")
    return int.from_bytes(data, "little", signed=True)


_INT_BYTES_MAX = 64
_PUT: dict[type, Callable[[Any, list[Buffer]], None]] = {
    type(None): lambda value, out: out.append(b"N"),
    bool: lambda value, out: out.append(b"T" if value else b"F"),
    int: _put_int,
    float: lambda value, out: out.append(_FLOAT.pack(b"D", value)),
    str: _put_text,
    bytes: _put_bytes,
}
_CONTAINERS: dict[type, bytes] = {tuple: b"U", list: b"L", dict: b"M", frozenset: b"X"}
_I, _D, _R, _P, _A, _M = b"IDRPAM"
_LITERALS = dict(zip(b"NTF", (None, True, False), strict=True))
_TEXTS: dict[int, Callable[[memoryview], object]] = dict(
    zip(b"SBJ", (lambda data: str(data, "utf-8", "surrogatepass"), bytes, _int_of), strict=True)
)
_MAKERS: dict[int, Callable[[list[object]], object]] = dict(zip(b"ULX", (tuple, list, frozenset), strict=True))


# -- what a record's fields may be -------------------------------------------------------------------------------------


def _field_names(kind: type) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return kind._fields  # type: ignore[attr-defined,no-any-return]  # a named tuple


def _getter(names: tuple[str, ...]) -> Callable[[Any], Sequence[object]]:  # Any: a record
    if not names:
        return lambda record: ()
    if len(names) == 1:
        one = operator.attrgetter(names[0])
        return lambda record: (one(record),)
    return operator.attrgetter(*names)


def _check_of(hint: Any) -> _Check | None:  # Any: an annotation
    """What tells whether a value fits the annotation; None: all do."""
    if hint is Any or hint is object:
        return None
    parts, home = typing.get_args(hint), typing.get_origin(hint)
    if home is Literal:
        return frozenset(parts).__contains__ if all(type(part) is str for part in parts) else None
    if home in (Union, types.UnionType):
        return _any_of([_check_of(part) for part in parts])
    if home is tuple and parts[-1:] == (...,):
        return _all_in(tuple, _check_of(parts[0]))
    if home is tuple:
        return _each_of([_check_of(part) for part in parts])
    if home is frozenset:
        return _all_in(frozenset, _check_of(parts[0]))
    if home is Mapping or home is dict:
        key, value = map(_check_of, parts)
        keys, values = _all_in(None, key), _all_in(None, value)
        return lambda found: type(found) is dict and keys(found) and values(found.values())
    return lambda found: type(found) is hint


def _any_of(checks: Sequence[_Check | None]) -> _Check | None:
    known = [check for check in checks if check is not None]
    return (lambda found: any(check(found) for check in known)) if len(known) == len(checks) else None


def _all_in(kind: type | None, check: _Check | None) -> _Check:
    if check is None:
        return lambda found: kind is None or type(found) is kind
    return lambda found: (kind is None or type(found) is kind) and all(map(check, found))


def _each_of(checks: Sequence[_Check | None]) -> _Check:
    return lambda found: (
        type(found) is tuple
        and len(found) == len(checks)
        and all(check is None or check(part) for check, part in zip(checks, found, strict=True))
    )
