"""Plain values come back as they were; bytes that are none are an error of one kind and run nothing."""

import pickle
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import FanwiseError, WireError
from fanwise.links.plain import Plain
from fanwise.tensor import to_wire
from fanwise.tensor.wire.header import ENGINE_CODES


class Place(NamedTuple):
    x: int
    name: str | None


@dataclass(frozen=True, slots=True)
class Trip:
    places: tuple[Place, ...]
    why: Literal["work", "fun"]
    length: tuple[int, float]
    known: Mapping[str, int]
    seen: frozenset[str]
    anything: object = None


class Id(NamedTuple):
    number: int
    life: int


class Empty(NamedTuple):
    pass


class Grad(NamedTuple):
    values: torch.Tensor


plain = Plain((Place, Trip, Empty, Grad, Id))
codec = Plain((Place, Trip, Empty, Grad, Id))

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.just(Empty())
)
places = st.builds(Place, st.integers(), st.none() | st.text(max_size=5))
values = st.recursive(
    scalars | places | st.builds(Id, st.integers(), st.integers()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=12,
)
trips = st.builds(
    Trip,
    st.lists(places, max_size=3).map(tuple),
    st.sampled_from(["work", "fun"]),
    st.tuples(st.integers(), st.floats(allow_nan=False)),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.frozensets(st.text(max_size=2), max_size=2),
    values,
)


def through(value: object) -> Any:  # Any: as it came
    data, buffers = plain.dumps(value)
    return codec.loads(data, [memoryview(bytearray(buffer)) for buffer in buffers])


@given(values | trips)
def test_values_come_back_as_they_were(value: object) -> None:
    back = through(value)
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize("size", [3, 5000])
def test_tensors_come_back_also_in_records(size: int) -> None:
    tensor = torch.arange(float(size))
    for back in (through((1, tensor))[1], through(Grad(tensor)).values, through([Grad(tensor[::2])])[0].values):
        assert torch.equal(back, tensor if back.shape == tensor.shape else tensor[::2])
    assert through(torch.nn.Parameter(tensor)).requires_grad


def test_an_array_of_a_library_that_is_not_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = plain.dumps(torch.arange(3.0))
    header, _ = to_wire(torch.arange(3.0))
    changed = header[:2] + bytes([ENGINE_CODES["jax"]]) + header[3:]
    monkeypatch.setitem(sys.modules, "jax", None)  # to load it is an error
    with pytest.raises(WireError, match="an array of jax, and this process has not loaded jax"):
        codec.loads(data.replace(header, changed))


class Level(int):
    pass


def test_numbers_and_texts_of_other_kinds_become_plain_ones() -> None:
    import numpy as np

    for value in (Level(3), np.int64(3)):
        assert through(value) == 3 and type(through(value)) is int


@pytest.mark.parametrize("value", [{1, 2}, object(), len, Place, 1j, bytearray(b"x")])
def test_what_is_not_plain_is_not_written(value: object) -> None:
    with pytest.raises(TypeError, match="has no plain form"):
        plain.dumps((1, value))


@pytest.mark.parametrize(
    "wrong",
    [
        Place("1", "a"),  # type: ignore[arg-type]  # all of these are wrong on purpose
        Place(True, "a"),
        Place(1, b"a"),  # type: ignore[arg-type]
        Trip((1,), "fun", (1, 1.0), {}, frozenset()),  # type: ignore[arg-type]
        Trip([], "fun", (1, 1.0), {}, frozenset()),  # type: ignore[arg-type]
        Trip((), "rest", (1, 1.0), {}, frozenset()),  # type: ignore[arg-type]
        Trip((), "fun", (1, 1), {}, frozenset()),
        Trip((), "fun", (1, 1.0, 2.0), {}, frozenset()),  # type: ignore[arg-type]
        Trip((), "fun", (1, 1.0), {"a": "b"}, frozenset()),  # type: ignore[dict-item]
        Trip((), "fun", (1, 1.0), {1: 1}, frozenset()),  # type: ignore[dict-item]
        Trip((), "fun", (1, 1.0), {}, frozenset([1])),  # type: ignore[list-item]
        Id(1, None),  # type: ignore[arg-type]
        Id("a", 1),  # type: ignore[arg-type]
        Grad(1),  # type: ignore[arg-type]
    ],
)
def test_fields_of_another_type_are_refused(wrong: object) -> None:
    data, buffers = plain.dumps(wrong)
    with pytest.raises(WireError, match="in a wrong field"):
        codec.loads(data, buffers)


@given(st.data())
def test_bytes_that_were_changed_are_a_wire_error_or_another_value(data: st.DataObject) -> None:
    head, _ = plain.dumps(data.draw(trips))
    changed = bytearray(head)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    del changed[data.draw(st.integers(0, len(changed))) :]
    try:
        codec.loads(changed)
    except FanwiseError:
        pass  # a tensor of a library that is not here is another one than WireError


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_wire_error(data: bytes) -> None:
    try:
        codec.loads(data)
    except FanwiseError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Z",
        struct.pack("<cI", b"U", 0xFFFFFFFF),
        struct.pack("<cI", b"S", 4) + b"abc",
        struct.pack("<cI", b"S", 1) + b"\xff",
        struct.pack("<cI", b"J", 100) + b"\xff" * 100,
        struct.pack("<cI", b"U", 1) * 5000 + b"N",
        struct.pack("<cI", b"M", 1) + struct.pack("<cI", b"L", 0) + b"N",
        b"R\x09",
        b"R\x02" + b"N",
        b"P\x00" + bytes(16),
        b"P\x04" + bytes(15),
        b"NN",
        struct.pack("<cHI", b"A", 0, 0xFFFFFFFF) + b"\0\0",
    ],
)
def test_impossible_bytes_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        codec.loads(data)


def test_a_pickle_is_not_read() -> None:
    with pytest.raises(WireError):
        codec.loads(pickle.dumps((1, 2)))
