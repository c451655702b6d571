"""A codec for plain values, without pickle.

    None, bool, int, float, str, bytes, tuple, list, dict, frozenset; arrays (`tensor.wire`); registered records

A value is a byte for its kind, then the number, or its size and contents. All numbers are little-endian. A record is a
named tuple or dataclass that both sides have registered under the same code; its fields must have their declared types.

Decoding creates only these values, even from forged bytes: no name is looked up and nothing is imported, so an array
of an engine that this process has not loaded is refused. Invalid bytes raise `WireError`, and never allocate more
memory than their own size.
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
_Check = Callable[[Any], bool]

_INT, _FLOAT, _SIZE = struct.Struct("<cq"), struct.Struct("<cd"), struct.Struct("<cI")
_RECORD = struct.Struct("<cB")
_ARRAY = struct.Struct("<cHI")  # size of the header; size of the bytes that follow it, or _OUT_OF_BAND
_OUT_OF_BAND = 0xFFFFFFFF
# A smaller buffer is cheaper among the bytes than out of band.
_OUT_OF_BAND_FROM_BYTES = 4096
_OUT_OF_BAND_MAX = 1024
_DEPTH_MAX = 32
_NUM_CODES = 256


class Plain:
    """Encodes and decodes plain values.

    Args:
        records: as in `register`.
    """

    def __init__(self, records: Sequence[type] = ()) -> None:
        self._codes: dict[type, tuple[bytes, Callable[[Any], Sequence[object]]]] = {}
        self._forms: dict[int, _Form] = {}
        # Records with only integer fields, such as ids, are packed as one struct.
        self._structs: dict[type, tuple[struct.Struct, int]] = {}
        self.register(*records)

    def register(self, *records: type, first_code: int = 0) -> None:
        """Add named tuples and dataclasses, with the codes `first_code`, `first_code + 1`, ..."""
        for code, kind in enumerate(records, first_code):
            assert code < _NUM_CODES and code not in self._forms, f"code {code} of {kind.__name__} is not available"
            names = _field_names(kind)
            self._codes[kind] = _RECORD.pack(b"R", code), _getter(names)
            hints = typing.get_type_hints(kind)
            field_types = [hints[name] for name in names]
            is_packed = set(field_types) == {int}
            numbers = struct.Struct(f"<{len(names)}q") if is_packed else None
            self._forms[code] = _Form(kind, tuple(map(_check_of, field_types)), numbers)
            if is_packed:
                self._structs[kind] = struct.Struct(f"<cB{len(names)}q"), code

    def dumps(self, value: object) -> tuple[bytes, list[memoryview]]:
        """Return the bytes, and the memory of large arrays, which must be sent before it changes.

        Raises TypeError if the value is not plain.
        """
        out: list[Buffer] = []
        buffers: list[memoryview] = []
        self._write(value, out, buffers)
        return b"".join(out), buffers

    def loads(self, data: Buffer, buffers: Sequence[memoryview] = ()) -> Any:
        """Inverse of `dumps`. Raises WireError for invalid bytes."""
        reader = _Reader(memoryview(data), buffers, self._forms)
        try:
            value = reader.read(0)
        except FanwiseError:
            raise
        except Exception as error:
            raise WireError(
                f"a message of {len(data)} bytes cannot be read: {type(error).__name__}: {error}."
            ) from error
        if reader.offset != len(data):
            raise WireError(f"a message of {len(data)} bytes has {len(data) - reader.offset} bytes too many.")
        return value

    def _write(self, value: object, out: list[Buffer], buffers: list[memoryview]) -> None:
        kind = type(value)
        write = _WRITERS.get(kind)
        if write is not None:
            write(value, out)
        elif kind in self._codes:
            self._write_record(kind, value, out, buffers)
        elif kind in _CONTAINERS:
            out.append(_SIZE.pack(_CONTAINERS[kind], len(value)))  # type: ignore[arg-type]  # a container
            parts = value if kind is not dict else [x for item in value.items() for x in item]  # type: ignore[attr-defined]  # a dict
            for part in parts:  # type: ignore[attr-defined]  # as above
                self._write(part, out, buffers)
        elif is_array(value):
            _write_array(value, out, buffers)
        elif isinstance(value, int | str):  # a subclass, such as a member of an enum
            _WRITERS[int if isinstance(value, int) else str](value, out)
        elif isinstance(value, SupportsIndex):  # an integer of an engine
            _write_int(operator.index(value), out)
        else:
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no plain form; got {value!r:.200}")

    def _write_record(self, kind: type, value: object, out: list[Buffer], buffers: list[memoryview]) -> None:
        code, fields_of = self._codes[kind]
        parts = fields_of(value)
        if kind in self._structs:
            form, number = self._structs[kind]
            try:
                out.append(form.pack(b"P", number, *parts))
                return
            except struct.error:
                pass  # a number is too large, or no int, which the receiver checks
        out.append(code)
        for part in parts:
            self._write(part, out, buffers)


class _Form(NamedTuple):
    """The decoder of a record: its class, the checks of its fields, and their struct if all are integers."""

    kind: type
    checks: tuple[_Check | None, ...]
    numbers: struct.Struct | None


class _Reader:
    """Decodes values sequentially."""

    def __init__(self, view: memoryview, buffers: Sequence[memoryview], forms: Mapping[int, _Form]) -> None:
        self.offset = 0
        self._view = view
        self._buffers = buffers
        self._forms = forms

    def read(self, depth: int) -> Any:
        """Read the next value. Raises WireError, struct.error, IndexError and others for invalid bytes."""
        kind = self._view[self.offset]
        if kind == _I:
            return self._read_number(_INT)
        if kind == _P or kind == _R:
            return self._read_record(depth, is_packed=kind == _P)
        if kind in _LITERALS:
            self.offset += 1
            return _LITERALS[kind]
        if kind == _D:
            return self._read_number(_FLOAT)
        if kind == _A:
            return self._read_array()
        _, size = _SIZE.unpack_from(self._view, self.offset)
        if size > len(self._view) - self.offset:
            raise WireError(f"a message of {len(self._view)} bytes holds something of size {size}.")
        self.offset += _SIZE.size
        if kind in _TEXTS:
            return _TEXTS[kind](self._read_bytes(size))
        if depth == _DEPTH_MAX:
            raise WireError(f"a message is nested more than {_DEPTH_MAX} times.")
        if kind == _M:
            items = [(self.read(depth + 1), self.read(depth + 1)) for _ in range(size)]
            return dict(items)
        make = _MAKERS.get(kind)
        if make is None:
            raise WireError(f"a message holds something of kind {kind}.")
        return make([self.read(depth + 1) for _ in range(size)])

    def _read_number(self, form: struct.Struct) -> Any:
        (_, number) = form.unpack_from(self._view, self.offset)
        self.offset += form.size
        return number

    def _read_bytes(self, size: int) -> memoryview:
        self.offset += size
        if self.offset > len(self._view):
            raise WireError(f"a message of {len(self._view)} bytes is cut short.")
        return self._view[self.offset - size : self.offset]

    def _read_record(self, depth: int, *, is_packed: bool) -> object:
        code = self._view[self.offset + 1]
        if code not in self._forms or depth == _DEPTH_MAX:
            raise WireError(f"a message holds a record of kind {code}; both sides must run the same version.")
        self.offset += _RECORD.size
        kind, checks, numbers = self._forms[code]
        if is_packed:
            if numbers is None:
                raise WireError(f"a message holds a packed {kind.__name__}.")
            self.offset += numbers.size
            return kind(*numbers.unpack_from(self._view, self.offset - numbers.size))
        values = [self.read(depth + 1) for _ in checks]
        for check, value in zip(checks, values, strict=True):
            if check is not None and not check(value):
                raise WireError(f"a message holds a {kind.__name__} with a {type(value).__name__} in a wrong field.")
        return kind(*values)

    def _read_array(self) -> object:
        _, header_size, size = _ARRAY.unpack_from(self._view, self.offset)
        self.offset += _ARRAY.size
        header = self._read_bytes(header_size)
        check_loaded(header)
        if size != _OUT_OF_BAND:
            return from_wire(header, [bytearray(self._read_bytes(size))])
        (number,) = struct.unpack("<H", self._read_bytes(2))
        return from_wire(header, [self._buffers[number]])


def _write_int(value: Any, out: list[Buffer]) -> None:
    try:
        out.append(_INT.pack(b"I", value))
    except struct.error:
        size = value.bit_length() // 8 + 1
        out += (_SIZE.pack(b"J", size), value.to_bytes(size, "little", signed=True))


def _write_text(value: Any, out: list[Buffer]) -> None:
    data = value.encode("utf-8", "surrogatepass")
    out += (_SIZE.pack(b"S", len(data)), data)


def _write_bytes(value: Any, out: list[Buffer]) -> None:
    out += (_SIZE.pack(b"B", len(value)), value)


def _write_array(value: object, out: list[Buffer], buffers: list[memoryview]) -> None:
    header, (memory,) = to_wire(value)
    if memory.nbytes < _OUT_OF_BAND_FROM_BYTES or len(buffers) == _OUT_OF_BAND_MAX:
        out += (_ARRAY.pack(b"A", len(header), memory.nbytes), header, memory)
    else:
        out += (_ARRAY.pack(b"A", len(header), _OUT_OF_BAND), header, struct.pack("<H", len(buffers)))
        buffers.append(memory)


def _int_from(data: memoryview) -> int:
    if len(data) > _INT_BYTES_MAX:
        raise WireError(f"a message holds a number of {len(data)} bytes.")
    return int.from_bytes(data, "little", signed=True)


_INT_BYTES_MAX = 64
_WRITERS: dict[type, Callable[[Any, list[Buffer]], None]] = {
    type(None): lambda value, out: out.append(b"N"),
    bool: lambda value, out: out.append(b"T" if value else b"F"),
    int: _write_int,
    float: lambda value, out: out.append(_FLOAT.pack(b"D", value)),
    str: _write_text,
    bytes: _write_bytes,
}
_CONTAINERS: dict[type, bytes] = {tuple: b"U", list: b"L", dict: b"M", frozenset: b"X"}
_I, _D, _R, _P, _A, _M = b"IDRPAM"
_LITERALS = dict(zip(b"NTF", (None, True, False), strict=True))
_TEXTS: dict[int, Callable[[memoryview], object]] = dict(
    zip(b"SBJ", (lambda data: str(data, "utf-8", "surrogatepass"), bytes, _int_from), strict=True)
)
_MAKERS: dict[int, Callable[[list[object]], object]] = dict(zip(b"ULX", (tuple, list, frozenset), strict=True))


# -- checks of the fields of records -----------------------------------------------------------------------------------


def _field_names(kind: type) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return kind._fields  # type: ignore[attr-defined,no-any-return]  # a named tuple


def _getter(names: tuple[str, ...]) -> Callable[[Any], Sequence[object]]:
    if not names:
        return lambda record: ()
    if len(names) == 1:
        get = operator.attrgetter(names[0])
        return lambda record: (get(record),)
    return operator.attrgetter(*names)


def _check_of(hint: Any) -> _Check | None:
    """Return a function that checks a value against an annotation; None if every value is valid."""
    if hint is Any or hint is object:
        return None
    parts, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin is Literal:
        return frozenset(parts).__contains__ if all(type(part) is str for part in parts) else None
    if origin in (Union, types.UnionType):
        return _any_of([_check_of(part) for part in parts])
    if origin is tuple and parts[-1:] == (...,):
        return _all_in(tuple, _check_of(parts[0]))
    if origin is tuple:
        return _each_of([_check_of(part) for part in parts])
    if origin is frozenset:
        return _all_in(frozenset, _check_of(parts[0]))
    if origin is Mapping or origin is dict:
        key, value = map(_check_of, parts)
        keys, values = _all_in(None, key), _all_in(None, value)
        return lambda mapping: type(mapping) is dict and keys(mapping) and values(mapping.values())
    return lambda value: type(value) is hint


def _any_of(checks: Sequence[_Check | None]) -> _Check | None:
    present = [check for check in checks if check is not None]
    return (lambda value: any(check(value) for check in present)) if len(present) == len(checks) else None


def _all_in(kind: type | None, check: _Check | None) -> _Check:
    if check is None:
        return lambda value: kind is None or type(value) is kind
    return lambda value: (kind is None or type(value) is kind) and all(map(check, value))


def _each_of(checks: Sequence[_Check | None]) -> _Check:
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check is None or check(part) for check, part in zip(checks, value, strict=True))
    )
