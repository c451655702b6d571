"""The array API standard on TensorFlow's plain operations; loads TensorFlow only through its files.

    names.py          which function has which name; the rest of the layer asks here
    dtypes.py         kinds of types, promotion, what is about types alone
    arguments.py      what functions accept: tensors, variables, Python numbers, axes
    creation.py  elementwise.py  arithmetic.py  comparisons.py  complexes.py  reductions.py  sorting.py
    searching.py  manipulation.py  products.py  linalg.py  fft.py     the functions, by topic

TensorFlow has a NumPy mode, and it is not used: `enable_numpy_behavior` changes the operators of every tensor of
the process. The functions work on tensors and variables, at once and inside `tf.function`; gradients flow through.
Results are always `tf.Tensor`. Where the standard leaves something open, TensorFlow's own answer is given, except
that what would be silently wrong is an error: the sum of no elements is 0, the maximum of none raises.

An axis, the number of axes and every shape given as an argument are Python's; the lengths of the axes of an
argument may be unknown while `tf.function` traces, unless the number of results depends on them (`unstack`).
"""

from .names import names as names
