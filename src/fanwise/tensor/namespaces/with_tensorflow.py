"""The standard's functions on TensorFlow: all of them are ours, see the folder `tensorflow`."""

from .tensorflow.names import names as names
