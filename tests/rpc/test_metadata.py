"""Metadata survives a round trip, and invalid bytes raise WireError."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import WireError
from fanwise.rpc.messages.ids import Fork, GlobalId, WorkerKey
from fanwise.rpc.messages.metadata import Metadata, creation_in, pack, unpack

numbers = st.integers(-(2**63), 2**63 - 1)
ids = st.builds(GlobalId, numbers, numbers, numbers)
keys = st.builds(WorkerKey, numbers, numbers)
contexts = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
alongs = st.builds(
    Metadata,
    st.none() | contexts,
    st.none() | st.tuples(ids, ids),
    st.lists(st.builds(Fork, ids, ids, keys, keys), max_size=3),
    st.none() | st.lists(st.sampled_from(["cpu", "cuda:1", "meta"]), min_size=1, max_size=3),
    st.none() | contexts,
)


@given(alongs)
def test_what_goes_along_comes_back(along: Metadata) -> None:
    assert unpack(pack(along)) == along
    assert creation_in(pack(along)) == along.remote


def test_no_bytes_say_nothing() -> None:
    assert unpack(b"") == Metadata() and creation_in(b"") is None


@given(alongs, st.data())
def test_what_is_cut_or_changed_is_a_wire_error_or_something_else_of_that_form(
    along: Metadata, data: st.DataObject
) -> None:
    changed = bytearray(pack(along))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    del changed[data.draw(st.integers(1, len(changed))) :]
    try:
        made = creation_in(changed)
        found = unpack(changed)
    except WireError:
        return
    assert made == found.remote
    assert all(type(fork) is Fork for fork in found.forks)


@pytest.mark.parametrize(
    "data", [b"\0", b"\x08\0\0\0\0", b"\x10\0\0\0\0", b"\0\xff\xff\xff\xff", b"\0\0\0\0\0x", b"\4\0\0\0\0\xff"]
)
def test_impossible_bytes_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data)


def test_a_pickle_is_not_read() -> None:
    with pytest.raises(WireError):
        unpack(pickle.dumps((None, None, [], None), protocol=5))
