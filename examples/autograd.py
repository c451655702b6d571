"""Takes about 15 seconds: chapter 2.5 of "Dive into Deep Learning", automatic differentiation, and its exercises.

    FANWISE_ENGINE=jax python examples/autograd.py        torch if it is not set; jax, tensorflow

Gradients are returned: there is nothing to attach, to record or to set to zero. The picture is autograd.png.
"""

import math
import timeit
from typing import Any

import matplotlib.pyplot as plt

import fanwise.tensor as ft

REPEATS, POINTS = 200, 100


def show(what: str, x: Any) -> None:
    print(f"{what}: {ft.to_numpy(x)}")


print("engine:", ft.current_engine())
x = ft.arange(4.0, dtype=ft.float32)
value, gradient = ft.value_and_grad(lambda x: 2 * ft.sum(x * x))(x)
show("y = 2 x.x", value)
show("gradient of y", gradient)
show("it is 4 x", ft.equal(gradient, 4 * x))
show("gradient of sum(x), which adds nothing to the last", ft.grad(ft.sum)(x))

# -- a value with axes is weighed by an array of its shape; what is detached counts as a constant
y, pullback = ft.vjp(lambda x: x * x, x)
show("gradient of x * x, weighed by ones", pullback(ft.ones_like(y))[0])
slope = ft.grad(lambda x: ft.sum(ft.stop_gradient(x * x) * x))(x)
show("u = x * x detached, gradient of u x is u", ft.equal(slope, y))


# -- Python control flow
def f(a: Any) -> Any:
    b = a * 2
    while ft.sqrt(ft.sum(b * b)) < 1000:
        b = b * 2
    return ft.sum(b if ft.sum(b) > 0 else 100 * b)


a = ft.normal(ft.Key(1), ())
value, gradient = ft.value_and_grad(f)(a)
show("control flow: gradient of f(a) is f(a) / a", ft.equal(gradient, value / a))

# -- exercise 1: the second derivative differentiates every step of the first, those forward and those back
first = ft.grad(lambda x: ft.sum(ft.sin(x) * ft.exp(x)))
second = ft.grad(lambda x: ft.sum(first(x)))
for what, derivative in (("first", first), ("second", second)):
    derivative(x)  # compiles it, where the engine does
    took_s = min(timeit.repeat("ft.to_numpy(derivative(x))", globals=globals(), number=1, repeat=REPEATS))
    print(f"exercise 1: the {what} derivative takes {took_s * 1e6:.0f} us")
# -- 2: the pullback keeps what the way back needs as long as it lives, and adds nothing up
show("exercise 2: backward twice gives the same twice", ft.equal(pullback(y)[0], pullback(y)[0]))
# -- 3: f is linear in pieces, so of a vector or matrix every element has the slope f(a) / sum(a)
for a in (ft.asarray([1.0, 2.0]), ft.asarray([[1.0, 2.0], [3.0, 4.0]])):
    show(f"exercise 3: gradient by an a of shape {tuple(a.shape)}", ft.grad(f)(a))
# -- 4: sin and its derivative, without writing cos
points = ft.linspace(-2 * math.pi, 2 * math.pi, POINTS)
plt.plot(ft.to_numpy(points), ft.to_numpy(ft.sin(points)), label="sin(x)")
plt.plot(ft.to_numpy(points), ft.to_numpy(ft.grad(lambda x: ft.sum(ft.sin(x)))(points)), label="its derivative")
plt.legend()
plt.savefig("autograd.png", dpi=150)
# -- 5 to 7: the graph of log(x^2) sin(x) + 1/x, with the chain rule on its edges, from x to f and from f to x
x = ft.asarray(2.0)
a, c = x * x, ft.sin(x)
b, a_by_x, c_by_x, e_by_x = ft.log(a), 2 * x, ft.cos(x), -1 / (x * x)
print("exercise 5: x -> a = x^2 -> b = log(a) -> d = b c -> f = d + e;  x -> c = sin(x) -> d;  x -> e = 1/x -> f")
show("exercise 6 and 7: forward, from x", (a_by_x / a) * c + b * c_by_x + e_by_x)
f_by_b, f_by_c = c, b
show("exercise 6 and 7: reverse, from f", (f_by_b / a) * a_by_x + f_by_c * c_by_x + e_by_x)
show("exercise 6 and 7: grad", ft.grad(lambda x: ft.log(x * x) * ft.sin(x) + 1 / x)(x))
# -- 8: reverse takes one pass for each output and keeps the graph; forward one for each input, and keeps nothing
print("exercise 8: reverse for few outputs (a loss), forward for few inputs (a time)")
