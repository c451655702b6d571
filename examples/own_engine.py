"""Takes about 2 seconds: how an engine is added to fanwise.tensor, and chapter 2.1 of "Dive into Deep Learning" on it.

The engine is MXNet, the book's second tab, retired in 2023. `make test-mxnet` creates an environment with it. Elsewhere
a subclass of numpy.ndarray is used instead.
"""

import warnings
from typing import Any

import numpy

import fanwise.tensor as ft
from fanwise.tensor.engines import Engine

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mxnet import np, npx
    npx.set_np()
    ndarray = np.ndarray
except ImportError:
    np = numpy

    class ndarray(numpy.ndarray[Any, Any]):  # type: ignore[no-redef]
        pass


def from_numpy(x: Any) -> Any:
    return x.view(ndarray) if np is numpy else np.array(x, dtype=x.dtype)


class Namespace:
    @staticmethod  # the functions, by the names of the standard; no extensions
    def names(part: str) -> dict[str, Any]:
        if part:
            return {}
        return {
            "arange": lambda *args, dtype="float32": from_numpy(numpy.arange(*args, dtype=dtype)),
            "asarray": lambda obj, *, dtype=None, **_: from_numpy(numpy.asarray(obj, dtype or "float32")),
            "ones": lambda shape, *, dtype="float32": from_numpy(numpy.ones(shape, dtype)),
            "zeros": lambda shape, *, dtype="float32": from_numpy(numpy.zeros(shape, dtype)),
            "concat": lambda arrays, *, axis=0: np.concatenate(list(arrays), axis=axis),
            "equal": np.equal,
            "exp": np.exp,
            "reshape": lambda x, shape: np.reshape(x, shape),
            "sum": lambda x, *, axis=None: np.sum(x, axis=axis),
            "float32": "float32",
        }


class Exchange:
    @staticmethod  # memory in and out, by way of NumPy
    def export_memory(x: Any, copy: bool | None) -> Any:
        return (numpy.array(x) if np is numpy else x.asnumpy()), "private"

    @staticmethod
    def reason_to_copy(array: Any, kind: str, copy: bool | None) -> str:
        return "MXNet copies all memory"

    adopt = share = staticmethod(from_numpy)


ft.register_engine(Engine("mxnet"), ndarray, namespace=Namespace, exchange=Exchange)

with ft.use("mxnet"):
    x = ft.arange(12)
    X = ft.reshape(x, (3, 4))
    Y = ft.asarray([[2.0, 1, 4, 3], [1, 2, 3, 4], [4, 3, 2, 1]])
    print("engine:", ft.engine_of(X), "MXNet" if np is not numpy else "(its stand-in)")
    print("elements:", ft.size(x), "shape:", tuple(X.shape))
    print("sum(X):", float(ft.sum(X)))
    print("concat by rows:", tuple(ft.concat([X, Y], axis=0).shape))
    print("X == Y:", ft.to_numpy(ft.equal(X, Y)).tolist()[0])
    X[1, 2] = 17.0
    print("X[1]:", ft.to_numpy(X[1]).tolist())
    print("normal numbers:", ft.to_numpy(ft.normal(ft.Key(0), 2)).tolist())
    print("as a torch tensor:", ft.engine_of(t := ft.convert(Y, "torch")), float(ft.sum(t)))
