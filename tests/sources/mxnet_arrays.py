"""The book's section on arrays in MXNet, by its own functions: prints results as JSON, by name.

Run by test_mxnet.py, in the environment of `make test-mxnet`: MXNet lives with no other engine.
"""

import json
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mxnet import np

Results = dict[str, list[Any]]
LIST_OF_LISTS = [[2, 1, 4, 3], [1, 2, 3, 4], [4, 3, 2, 1]]


def by_mxnet() -> Results:
    x = np.arange(12)
    assert x.size == 12
    X = x.reshape(3, 4)
    found: Results = {"arange": [x], "zeros": [np.zeros((2, 3, 4))], "ones": [np.ones((2, 3, 4))]}
    found |= {"normal": [np.random.normal(0, 1, size=(3, 4))], "list": [np.array(LIST_OF_LISTS)]}
    found["rows"] = [X[-1].copy(), X[1:3].copy()]
    X[1, 2] = 17
    found |= {"written": [X.copy()], "exp": [np.exp(x)]}
    a, b = np.array([1, 2, 4, 8]), np.array([2, 2, 2, 2])
    found["arithmetic"] = [a + b, a - b, a * b, a / b, a**b]
    X, Y = np.arange(12).reshape(3, 4), np.array(LIST_OF_LISTS)
    found |= {"concat": [np.concatenate([X, Y], axis=0), np.concatenate([X, Y], axis=1)], "equal": [X == Y]}
    found["broadcast"] = [np.arange(3).reshape(3, 1), np.arange(2).reshape(1, 2)]
    assert X.sum() == 66
    Z = np.zeros_like(Y)
    before = id(Z), id(X)
    Z[:] = X + Y
    X += Y
    assert (id(Z), id(X)) == before and np.array([3.5]).item() == 3.5
    return found


if __name__ == "__main__":
    programs = {"mxnet": by_mxnet}
    print(json.dumps({who: {n: [a.tolist() for a in each] for n, each in f().items()} for who, f in programs.items()}))
