"""Arrays of JAX in calls between workers: nested, in results and references, beside the pickle; where JAX is missing.

TensorFlow goes the same way (`fanwise.tensor.wire`) and is tested on links, where it is loaded once.
"""

import importlib
import importlib.abc
import sys
from typing import Any

import pytest
from rpc_workers import Workers

import fanwise.rpc as rpc
from fanwise.base.errors import NotInstalled, NotSendableError, WireError

# Any throughout: arrays of JAX, which the process of the tests does not load.


class Hidden(importlib.abc.MetaPathFinder):
    """As if JAX were not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(f"no module named {name!r}")


def hide_jax() -> None:
    assert "jax" not in sys.modules
    sys.meta_path.insert(0, Hidden())


def echo(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def numbers(size: int, dtype: str = "float32") -> Any:
    import jax.numpy as jnp

    return jnp.arange(size, dtype=dtype)


def total(x: Any) -> float:
    return float(x.sum())


def total_of_mine(rref: Any) -> float:
    return total(rref.local_value())


def has_jax() -> bool:
    return "jax" in sys.modules


def load_jax() -> None:
    importlib.import_module("jax")


def there_and_back(to: str) -> list[Any]:
    """Return a description of the result, to be compared in a process that has JAX."""
    import jax
    import numpy as np

    small, big, halves = numbers(3), numbers(5000), numbers(100, "bfloat16")
    (nested, second), kwargs = rpc.rpc_sync(to, echo, ({"a": [small, (big, 1)]}, big), {"x": halves})
    arrived = [nested["a"][0], nested["a"][1][0], second, kwargs["x"]]
    same = [bool((a == b).all()) for a, b in zip(arrived, [small, big, big, halves], strict=True)]
    return [*same, all(isinstance(a, jax.Array) for a in arrived), np.asarray(kwargs["x"]).dtype.name]


def by_reference(to: str) -> list[float]:
    rref = rpc.remote(to, numbers, (5000,))
    own = rpc.RRef(numbers(10))
    return [total(rref.to_here()), rpc.rpc_sync(to, total_of_mine, (rref,)), rpc.rpc_sync(to, ask_back, (own,))]


def ask_back(rref: Any) -> float:
    return total(rref.to_here())


def num_copies(to: str) -> list[int]:
    """Return how many copies of a large array its receiver made, which replies with an empty one."""
    rpc.rpc_sync(to, watch_copies)
    rpc.rpc_sync(to, total, (numbers(1 << 20),))
    none: int = rpc.rpc_sync(to, copies)
    rpc.rpc_sync(to, copy_one, (numbers(1 << 20),))
    return [none, rpc.rpc_sync(to, copies)]


COPIES: list[int] = []


def watch_copies() -> None:
    from fanwise.tensor.with_jax import exchange as of_jax
    from fanwise.tensor.with_numpy import exchange, wire

    real = exchange.aligned_copy

    def counted(array: Any, *args: Any) -> Any:
        COPIES.append(array.nbytes)
        return real(array, *args)

    for module in (of_jax, exchange, wire):
        module.aligned_copy = counted  # type: ignore[attr-defined]  # imported by name there


def copies() -> int:
    return sum(size_bytes > 4096 for size_bytes in COPIES)


def copy_one(x: Any) -> None:
    from fanwise.tensor import to_numpy

    to_numpy(x, copy=True)


def send(to: str, dtype: str = "float32") -> Any:
    import jax

    with jax.enable_x64(True):
        return rpc.rpc_sync(to, echo, (numbers(5000, dtype),))


def send_deleted(to: str) -> Any:
    x = numbers(3)
    x.delete()
    return rpc.rpc_sync(to, echo, ([x],))


def ask_for_jax(to: str) -> Any:
    return rpc.rpc_sync(to, numbers, (5,))


def as_numpy(to: str) -> Any:
    """Return the remedy in the error of a worker without JAX."""
    from fanwise.tensor import to_numpy

    ((x,), _) = rpc.rpc_sync(to, echo, (to_numpy(numbers(5000)),))
    return float(x.sum())


def test_arrays_of_jax_travel_between_workers_and_to_oneself(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    for to in ("w1", "w0"):
        assert one.do(there_and_back, to) == [True, True, True, True, True, "bfloat16"]
    assert one.do(by_reference, "w1") == [12497500.0, 12497500.0, 45.0]
    assert one.do(num_copies, "w1") == [0, 1]
    with pytest.raises(TypeError, match=r"of float64.*jax_enable_x64"):
        one.do(send, "w1", "float64")
    with pytest.raises(NotSendableError, match=r"^argument 0 \(a builtins.list\) .* on w1 cannot be sent: .*donated"):
        one.do(send_deleted, "w1")
    assert two.do(has_jax)


def test_a_worker_without_jax_says_so_and_goes_on(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    two.do(hide_jax)
    with pytest.raises(NotInstalled, match=r"jax is not installed.*'fanwise\[jax\]'.*to_numpy"):
        one.do(send, "w1")
    assert one.do(as_numpy, "w1") == 12497500.0
    with pytest.raises(NotInstalled, match="jax is not installed"):
        two.do(ask_for_jax, "w0")
    assert not two.do(has_jax)


def test_an_allow_list_lets_arrays_pass_where_their_library_is_loaded(real_workers: Workers) -> None:
    one, two = real_workers.group(2, allow=[echo, numbers])
    with pytest.raises(WireError, match=r"an array of jax, and this process has not loaded jax"):
        one.do(send, "w1")
    assert not two.do(has_jax)
    two.do(load_jax)
    assert one.do(there_and_back, "w1") == [True, True, True, True, True, "bfloat16"]
