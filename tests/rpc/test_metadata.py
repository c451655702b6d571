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
all_metadata = st.builds(
    Metadata,
    st.none() | contexts,
    st.none() | st.tuples(ids, ids),
    st.lists(st.builds(Fork, ids, ids, keys, keys), max_size=3),
    st.none() | st.lists(st.sampled_from(["cpu", "cuda:1", "meta"]), min_size=1, max_size=3),
)


@given(all_metadata)
def test_metadata_survives_a_round_trip(metadata: Metadata) -> None:
    assert unpack(pack(metadata)) == metadata
    assert creation_in(pack(metadata)) == metadata.remote


def test_no_bytes_are_empty_metadata() -> None:
    assert unpack(b"") == Metadata() and creation_in(b"") is None


@given(all_metadata, st.data())
def test_damaged_metadata_is_a_wire_error_or_other_metadata(metadata: Metadata, data: st.DataObject) -> None:
    changed = bytearray(pack(metadata))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    del changed[data.draw(st.integers(1, len(changed))) :]
    try:
        creation = creation_in(changed)
        result = unpack(changed)
    except WireError:
        return
    assert creation == result.remote
    assert all(type(fork) is Fork for fork in result.forks)


@pytest.mark.parametrize("data", [b"\0", b"\x08\0\0\0\0", b"\0\xff\xff\xff\xff", b"\0\0\0\0\0x", b"\4\0\0\0\0\xff"])
def test_impossible_bytes_are_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data)


def test_a_pickle_is_not_read() -> None:
    with pytest.raises(WireError):
        unpack(pickle.dumps((None, None, [], None), protocol=5))
