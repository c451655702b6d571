"""Random numbers from keys: the same bits on every engine and machine, without hidden state.

key = Key(0)
weights, bias = key.split()
W = normal(weights, (784, 10), std=0.01)          an array of the current engine
mask = bernoulli(key.fold_in("dropout").fold_in(step), 0.5, (256,))
"""

from .drawing import bernoulli as bernoulli
from .drawing import integers as integers
from .drawing import normal as normal
from .drawing import permutation as permutation
from .drawing import uniform as uniform
from .keys import Key as Key
