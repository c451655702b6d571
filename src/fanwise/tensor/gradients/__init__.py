"""Gradients as values, on torch, JAX and TensorFlow, over trees of arrays. Nothing accumulates in the arrays.

value_and_grad(f)(params, X, y)  ->  value, gradients in the structure of params
vjp(f, x)                        ->  value, pullback: cotangent -> (gradient of each argument,)
jvp(f, (x,), (tangent,))         ->  value, derivative along the tangent
"""

from .functions import grad as grad
from .functions import jit as jit
from .functions import jvp as jvp
from .functions import stop_gradient as stop_gradient
from .functions import value_and_grad as value_and_grad
from .functions import vjp as vjp
