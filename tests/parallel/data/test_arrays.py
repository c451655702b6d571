"""Arrays of every engine as data: the same samples in the same order, in batches of the engine of the data."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fanwise
from fanwise.parallel import Run
from fanwise.tensor import convert, engine_of

X = np.arange(22, dtype="float32").reshape(11, 2)
Y = np.arange(11, dtype="int32")


def rows(data: Any) -> list[Any]:  # Any: arrays of an engine
    """Of two shards and a half a batch: what a loop over batches sees, as NumPy arrays."""
    return [[np.asarray(convert(part, "numpy")) for part in batch] for batch in fanwise.here().batches(data, 5)]


@pytest.mark.parametrize(
    ("engine", "of_batches"),
    [("numpy", "torch"), ("torch", "torch"), ("jax", "jax"), ("tensorflow", "tensorflow")],
)
@pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
def test_batches_are_of_the_engine_of_the_data_and_the_samples_are_the_same(engine: str, of_batches: str) -> None:
    data = tuple(convert(array, engine, copy=True) for array in (X, Y))
    batches = list(fanwise.here().batches(data, 5))
    assert {engine_of(part) for batch in batches for part in batch} == {of_batches}
    for seen, expected in zip(rows(data), rows((torch.from_numpy(X), torch.from_numpy(Y))), strict=True):
        assert all(map(np.array_equal, seen, expected))
    single = next(iter(fanwise.here().batches(data[0], 5, shuffle=False)))
    assert np.array_equal(np.asarray(convert(single.whole(), "numpy")), X[:5])


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = (model(x)[:, 0] - y).square()
    return found


def test_a_torch_model_trains_on_numpy_arrays_as_on_tensors() -> None:
    def train(data: Any, run: Run) -> torch.Tensor:  # Any: arrays
        model = nn.Linear(2, 1)
        step = run.step(model, torch.optim.SGD(model.parameters(), 1e-3), losses)
        for batch in run.batches(data, 5):
            step(batch)
        return model.weight.detach()

    each = (X, Y), tuple(map(torch.tensor, (X, Y)))
    trained = [fanwise.run(functools.partial(train, data), progress=False) for data in each]
    assert torch.equal(*trained)


def test_arrays_of_texts_are_read_sample_by_sample() -> None:
    batch = next(iter(fanwise.here().batches(np.array(["a", "b", "c"]), 3, shuffle=False)))
    assert [text for part in batch for text in part] == ["a", "b", "c"]
