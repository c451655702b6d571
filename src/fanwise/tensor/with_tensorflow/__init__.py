"""fanwise's knowledge of TensorFlow, and `tf`: TensorFlow, imported without warnings of deprecations inside of it."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf

__all__ = ["tf"]
