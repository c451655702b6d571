"""Takes about 5 seconds: chapter 2.1 of "Dive into Deep Learning", data manipulation, once for every engine.

    FANWISE_ENGINE=jax python examples/tensors.py        torch if it is not set; jax, tensorflow, numpy
Arrays are the engine's own. They are printed through NumPy, so that every engine prints the same.
"""

import math
from typing import Any

import numpy

import fanwise.tensor as ft

numpy.set_printoptions(precision=4)


def show(what: str, x: Any) -> None:
    print(f"{what} =\n{ft.to_numpy(x)}")


print("engine:", ft.current_engine())

# -- getting started
x = ft.arange(12, dtype=ft.float32)
show("arange(12)", x)
print("elements:", math.prod(x.shape), "shape:", tuple(x.shape))
X = ft.reshape(x, (3, -1))
show("reshape(x, (3, -1))", X)
show("zeros((2, 3, 4))", ft.zeros((2, 3, 4)))
show("ones((2, 3, 4))", ft.ones((2, 3, 4)))
show("normal(Key(0), (3, 4))", ft.normal(ft.Key(0), (3, 4)))
Y = ft.asarray([[2.0, 1, 4, 3], [1, 2, 3, 4], [4, 3, 2, 1]])
show("asarray of a nested list", Y)

# -- indexing and slicing; writing gives a new array on every engine
show("X[-1]", X[-1])
show("X[1:3]", X[1:3])
written = ft.at(X)[1, 2].set(17.0)
show("X with [1, 2] = 17", written)
show("X with [:2, :] = 12", ft.at(written)[:2, :].set(12.0))

# -- operations
show("exp(x)", ft.exp(x))
a, b = ft.asarray([1.0, 2, 4, 8]), ft.asarray([2.0, 2, 2, 2])
for sign, result in [("+", a + b), ("-", a - b), ("*", a * b), ("/", a / b), ("**", a**b)]:
    show(f"a {sign} b", result)
show("concat by rows", ft.concat([X, Y], axis=0))
show("concat by columns", ft.concat([X, Y], axis=1))
show("X == Y", ft.equal(X, Y))
show("sum(X)", ft.sum(X))

# -- broadcasting
column, row = ft.reshape(ft.arange(3), (3, 1)), ft.reshape(ft.arange(2), (1, 2))
show("(3, 1) + (1, 2)", column + row)

# -- saving memory: a State is written to in place where the engine can, and is the same object on all
W = Y
W = W + X
print("W = W + X keeps W:", W is Y)
Z = ft.State(ft.zeros_like(Y))
before = id(Z)
Z[:] = X + Y
Z += X
Z[1, 2] = 17.0
print("Z[:] = X + Y, Z += X and Z[1, 2] = 17 keep Z:", id(Z) == before)
show("Z", Z.value)
show("X + Y + Y, compiled", ft.jit(lambda X, Y: X + Y + Y)(X, Y))  # where the engine can, with no array in between

# -- conversion: to NumPy and back, and to Python's numbers
A, B = ft.to_numpy(X), ft.from_numpy(ft.to_numpy(X))
print("to NumPy:", type(A).__name__, "and back to", ft.engine_of(B), "equal:", bool(ft.all(B == X)))
number = ft.reshape(ft.asarray([3.5]), ())
print("one element:", float(number), int(number))

# -- exercises: other comparisons, and broadcasting in three dimensions
show("X < Y", ft.less(X, Y))
show("X > Y", ft.greater(X, Y))
block, line = ft.reshape(ft.arange(4), (2, 2, 1)), ft.reshape(ft.arange(3), (1, 1, 3))
show("(2, 2, 1) * (1, 1, 3)", block * line)
