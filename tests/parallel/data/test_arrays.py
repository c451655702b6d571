"""NumPy arrays as data: the same samples in the same order as with tensors."""

from typing import Any

import numpy as np
import pytest
import torch

import fanwise

X = np.arange(22, dtype="float32").reshape(11, 2)
Y = np.arange(11, dtype="int32")


def batches(data: Any) -> list[list[torch.Tensor]]:
    return [list(batch) for batch in fanwise.here().batches(data, 5)]


def read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "change",
    [np.array, read_only, lambda array: array[::-1][::-1], lambda array: array.astype(array.dtype.newbyteorder(">"))],
    ids=["writable", "read-only", "strided", "big-endian"],
)
def test_numpy_arrays_give_the_batches_of_tensors(change: Any) -> None:
    expected = batches((torch.from_numpy(X), torch.from_numpy(Y)))
    for seen, batch in zip(batches((change(X), change(Y))), expected, strict=True):
        assert all(map(torch.equal, seen, batch))
    assert torch.equal(next(iter(fanwise.here().batches(change(X), 5, shuffle=False))).whole(), torch.tensor(X[:5]))


def test_arrays_with_negative_strides_are_copied() -> None:
    batch = next(iter(fanwise.here().batches(Y[::-1], 11, shuffle=False)))
    assert batch.whole().tolist() == Y[::-1].tolist()


def test_tensors_share_the_memory_of_writable_arrays() -> None:
    array = X.copy()
    run_batches = fanwise.here().batches(array, 11, shuffle=False)
    array[:] = 7
    assert next(run_batches).whole().eq(7).all()


def test_arrays_of_texts_are_read_sample_by_sample() -> None:
    batch = next(iter(fanwise.here().batches(np.array(["a", "b", "c"]), 3, shuffle=False)))
    assert [text for part in batch for text in part] == ["a", "b", "c"]
