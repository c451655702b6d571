"""Arrays from one engine to another, sharing memory where nobody can notice and never where it would break a promise.

    convert(x, "jax")     x as an array of another engine; to_numpy and from_numpy are its short forms
    same_memory(x, y)     whether they share elements
    empty_aligned(...)    a numpy array that every engine can adopt without a copy

The raw protocol (DLPack) ends the process when TensorFlow gets memory that is not aligned to 64 bytes, or torch a
negative stride; it narrows float64 on the way into JAX, and lets torch write into arrays that cannot change. So what
is in main memory goes by way of numpy, which can see the memory of all engines, and is looked at before it is handed
on. On an accelerator, which numpy does not see, torch and JAX use the protocol, behind checks of their own.
See `converting` for the rules.
"""

from .converting import convert as convert
from .converting import from_numpy as from_numpy
from .converting import to_numpy as to_numpy
from .memory import empty_aligned as empty_aligned
from .memory import same_memory as same_memory
