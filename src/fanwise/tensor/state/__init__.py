"""`State(x)`: one mutable cell, with one meaning on every engine."""

from .cell import State as State
