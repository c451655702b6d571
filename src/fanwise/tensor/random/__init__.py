"""Random numbers from keys: the same bits on every engine and machine, without hidden state."""

from .drawing import normal as normal
from .drawing import permutation as permutation
from .drawing import uniform as uniform
from .keys import Key as Key
