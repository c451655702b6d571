"""Packing on numpy and torch, where what is unpacked is the buffer's own memory; and what is refused."""

import ctypes
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree
import pytest
import torch

from fanwise.tensor import PackSpec, pack, same_memory, unpack

Pair = namedtuple("Pair", "first second")
MAKE: dict[str, Any] = {"numpy": np.asarray, "torch": lambda x: torch.from_numpy(np.asarray(x))}  # Any: arrays
both = pytest.mark.parametrize("engine", MAKE)


def address(x: Any) -> int:
    return int(x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data)


@both
def test_leaves_are_views_at_aligned_places(engine: str) -> None:
    tree = [MAKE[engine](np.full(n, n, np.float32)) for n in (3, 0, 17, 16)]
    buffer, spec = pack(tree)
    assert [leaf.offset for leaf in spec.leaves] == [0, 16, 16, 48] and spec.size == 64
    found = unpack(spec, buffer)
    buffer[16:33] = 5.0
    assert found[2].tolist() == [5.0] * 17 and found[1].shape == (0,)
    assert [address(part) % 64 for part in (found[0], found[2], found[3])] == [0, 0, 0]
    found[0][:] = 7.0
    assert buffer[:4].tolist() == [7.0, 7.0, 7.0, 0.0]


@both
def test_dicts_are_in_the_order_of_sorted_keys_whatever_order_they_were_made_in(engine: str) -> None:
    one, two = MAKE[engine](np.ones(1)), MAKE[engine](np.full(1, 2.0))
    for tree in ({"a": one, "b": two}, {"b": two, "a": one}):
        buffer, spec = pack(tree, align_elements=1)
        assert buffer.tolist() == [1.0, 2.0]
        assert list(unpack(spec, buffer)) == list(tree)


@both
def test_layouts_that_are_not_in_c_order_are_packed_in_c_order(engine: str) -> None:
    x = MAKE[engine](np.arange(6, dtype=np.float64).reshape(2, 3)).T
    buffer, spec = pack(Pair(x, None), align_elements=2)
    assert buffer.tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    assert isinstance(unpack(spec, buffer), Pair) and unpack(spec, buffer).second is None


@both
def test_out_is_written_to_padding_included(engine: str) -> None:
    tree = {"w": MAKE[engine](np.ones(3, np.float32)), "b": 2.0}
    buffer, spec = pack(tree, align_elements=4)
    buffer[:] = 9.0
    again, same = pack(tree, align_elements=4, out=buffer)
    assert again is buffer and buffer.tolist() == [2.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0] and same == spec
    assert hash(same) == hash(spec)
    with pytest.raises(ValueError, match=r"out must have the shape \(8,\), got \(3,\)"):
        pack(tree, align_elements=4, out=buffer[:3])
    with pytest.raises(TypeError, match="out must be of float32, got int32"):
        pack(tree, align_elements=4, out=MAKE[engine](np.zeros(8, np.int32)))
    with pytest.raises(TypeError, match=r"the tree is of .* and out of"):
        pack(tree, align_elements=4, out=MAKE["numpy" if engine == "torch" else "torch"](np.zeros(8, np.float32)))


def test_parameters_are_packed_into_a_buffer_that_needs_no_graph() -> None:
    layer = torch.nn.Linear(2, 3)
    buffer, spec = pack(dict(layer.named_parameters()))
    assert buffer.requires_grad
    out = torch.zeros(spec.size)
    assert pack(dict(layer.named_parameters()), out=out)[0] is out and not out.requires_grad
    assert torch.equal(unpack(spec, out)["weight"], layer.weight.detach())
    assert same_memory(unpack(spec, out)["weight"], out)


def test_a_large_buffer_begins_at_a_multiple_of_64_bytes() -> None:
    for n in (1, 1000, 300_000):
        buffer, _ = pack([np.zeros(n, np.float16)])
        assert buffer.ctypes.data % 64 == 0
        assert ctypes.c_char.from_buffer(buffer) is not None  # writable


def test_classes_that_are_registered_are_taken_apart() -> None:
    @dataclass
    class Model:
        w: Any
        b: Any

    register: Any = optree.register_pytree_node  # Any: its annotation is of collections
    register(Model, lambda model: ((model.w, model.b), None), lambda _, parts: Model(*parts), namespace="fanwise")
    buffer, spec = pack(Model(np.ones(2), np.zeros(1)), align_elements=1)
    assert isinstance(spec, PackSpec) and unpack(spec, buffer).w.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("tree", "error", "message"),
    [
        ([np.ones(2), "x"], TypeError, r"tree\[1\] is a str; pack takes arrays and numbers"),
        ([np.ones(2), torch.ones(2)], TypeError, r"tree\[0\] is of numpy and tree\[1\] of torch; convert one of them"),
        ([np.ones(2), np.ones(2, np.float32)], TypeError, r"tree\[0\] is float64 and tree\[1\] is float32"),
        ([np.array(["a"])], TypeError, "expected an array of booleans or numbers, got one of str"),
        ([np.ones(2, np.float32), 1j], TypeError, r"tree\[1\] is complex, and a buffer of float32 does not hold that"),
        ([np.ones(2, np.float32), 2**24 + 1], ValueError, "the integer 16777217 is not exact in a buffer of float32"),
    ],
    ids=["text", "engines", "dtypes", "array of text", "complex", "integer"],
)
def test_what_has_no_place_in_a_buffer_is_named(tree: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pack(tree)


def test_an_alignment_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="align_elements must be at least 1, got 0"):
        pack([np.ones(2)], align_elements=0)
    with pytest.raises(TypeError, match="expected an array of torch, jax"):
        unpack(pack([np.ones(2)])[1], [1.0])
