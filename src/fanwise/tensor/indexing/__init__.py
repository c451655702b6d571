"""`at(x)[i].set(v)`: an array with some elements changed, on every engine, and gradients flow through it."""

from .places import At as At
from .places import Place as Place
from .places import at as at
