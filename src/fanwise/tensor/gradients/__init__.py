"""Gradients as values, on torch, jax and tensorflow, over trees of arrays.

    value_and_grad(f)(params, X, y)  ->  value, gradients in the shape of params
    vjp(f, x)                        ->  value, pullback: cotangent -> (gradient of each argument,)
    jvp(f, (x,), (tangent,))         ->  value, its derivative along the tangent

One rule: gradients are returned, nothing accumulates. functions.py is what users call and loads nothing;
derivatives.py and pullbacks.py do it, by calls.py, which knows the arguments of a call, compiling.py, which
decides what is compiled, and the engine's file with_<engine>/gradients.py, which knows nothing of trees.
"""

from .functions import grad as grad
from .functions import jit as jit
from .functions import jvp as jvp
from .functions import stop_gradient as stop_gradient
from .functions import value_and_grad as value_and_grad
from .functions import vjp as vjp
