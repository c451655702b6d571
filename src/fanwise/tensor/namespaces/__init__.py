"""The functions of the array API standard for each engine, and their dispatch by the type of the array."""

from .namespace import Namespace as Namespace
from .namespace import namespace as namespace
