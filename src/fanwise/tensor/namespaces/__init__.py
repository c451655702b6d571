"""The functions of the array API standard for each engine, and their dispatch by the type of the array."""

from .spaces import Namespace as Namespace
from .spaces import namespace as namespace
