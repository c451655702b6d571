"""One distributed backward pass through parts in torch, JAX and TensorFlow, each in a process of its own.

TensorFlow's is that of the test: it has TensorFlow, which takes very long to load, for other tests anyway.
"""

import functools
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

import fanwise.rpc as rpc
from fanwise.rpc import autograd
from fanwise.tensor import as_torch_function
from fanwise.testing.rpc_workers import Worker, Workers, join, leave

# No engine is imported up here: the interpreter that all workers are forked from reads this file too.
Part = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def tanh_layer(tanh: Callable[[Any], Any], x: Any, w: Any) -> Any:  # Any: arrays of one engine
    return tanh(x @ w)


@functools.cache
def part_in(engine: str) -> Part:
    """The layer in another engine, as this process has it."""
    library = importlib.import_module({"jax": "jax.numpy"}.get(engine, engine))
    return as_torch_function(functools.partial(tanh_layer, library.tanh), engine)


def run_part(engine: str, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return part_in(engine)(x, w)


def load(engine: str) -> str:
    """Before the clock of a call runs."""
    return str(run_part(engine, torch.ones(1, 1), torch.ones(1, 1)).dtype)


def leaves() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((5, 4), (4, 3), (3, 3), (3, 2))
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def gradients_over_workers() -> list[torch.Tensor]:
    """In w0: forward and backward through all three."""
    x, u, v, w = each = leaves()
    with autograd.context() as context_id:
        y = tanh_layer(torch.tanh, x, u)
        z = rpc.rpc_sync("w1", run_part, args=("jax", y, v))
        out = rpc.rpc_sync("w2", run_part, args=("tensorflow", z, w))
        autograd.backward(context_id, [(out * out).sum()])
        found = autograd.get_gradients(context_id)
        assert all(leaf.grad is None for leaf in each)
        return [found[leaf] for leaf in each]


def loaded_engines() -> set[str]:
    return {"jax", "tensorflow"} & set(sys.modules)


@pytest.fixture(scope="module")
def part_in_tensorflow(tensorflow_is_loaded: None) -> None:
    load("tensorflow")


@pytest.fixture
def two(real_workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Worker]]:
    """Processes of w0 and w1; this one is w2."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", tempfile.gettempdir())  # as they have it
    two = [real_workers.begin(rank, 3) for rank in range(2)]
    join("w2", 2, 3, real_workers.url)
    for worker in two:
        worker.result()
    yield two
    for worker in two:
        worker.begin(leave)
    leave()
    for worker in two:
        worker.result()


@pytest.mark.usefixtures("part_in_tensorflow")
@pytest.mark.skipif(
    not all(importlib.util.find_spec(engine) for engine in ("jax", "tensorflow")), reason="needs jax and tensorflow"
)
def test_a_chain_over_three_engines_in_three_processes_agrees_with_torch_alone(two: list[Worker]) -> None:
    torch_worker, jax_worker = two
    jax_worker.do(load, "jax")
    found = cast(list[torch.Tensor], torch_worker.do(gradients_over_workers))
    x, u, v, w = each = leaves()
    layer = functools.partial(tanh_layer, torch.tanh)
    out = layer(layer(layer(x, u), v), w)
    for got, want in zip(found, torch.autograd.grad((out * out).sum(), each), strict=True):
        assert torch.allclose(got, want, rtol=1e-5, atol=1e-5)
    assert [worker.do(loaded_engines) for worker in two] == [set(), {"jax"}]
