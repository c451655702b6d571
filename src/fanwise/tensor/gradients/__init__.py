"""Gradients as values, over trees of arrays. Nothing accumulates in the arrays."""

from .functions import grad as grad
from .functions import jit as jit
from .functions import stop_gradient as stop_gradient
from .functions import value_and_grad as value_and_grad
from .functions import vjp as vjp
