"""Functions that models and losses are made of, and that the standard leaves out, on every engine.

    softmax(x) --are the arguments what every engine takes?--> with_<engine>/learning.py: the engine's own function

What is checked here has one error on all engines, where theirs differ: kinds of types, axes, labels, and the subscripts
of `einsum`, which torch and NumPy would broadcast in silence. Gradients are the engine's; NumPy has the values alone.
"""

from collections.abc import Sequence
from typing import Any

from .adapters import learners
from .dtype_names import BOOL, COMPLEX, FLOAT, INTEGER, dtype_name, dtype_rank
from .engines import engine_of
from .namespaces.dispatch import engine_of_all

# Any throughout: arrays of any engine.


def softmax(x: Any, /, *, axis: int = -1) -> Any:
    """exp(x) divided by its sum over one axis; no large number overflows.

    Raises:
        TypeError: x is no array of real floating-point numbers, or the axis no integer.
        IndexError: there is no such axis.

    >>> import numpy
    >>> softmax(numpy.zeros((1, 4)))
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    return learners[_engine_of("softmax", x)].softmax(x, _axis_of("softmax", x, axis))


def log_softmax(x: Any, /, *, axis: int = -1) -> Any:
    """The logarithm of `softmax`, also where that is too small for a float.

    Raises:
        TypeError, IndexError: as `softmax`.

    >>> import numpy
    >>> log_softmax(numpy.asarray([0.0, -1000.0]))
    array([    0., -1000.])
    """
    return learners[_engine_of("log_softmax", x)].log_softmax(x, _axis_of("log_softmax", x, axis))


def logsumexp(x: Any, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """The logarithm of the sum of exp(x) over some axes, or all of them; no large number overflows.

    Raises:
        TypeError, IndexError: as `softmax`.
        ValueError: an axis is named twice.

    >>> import numpy
    >>> round(float(logsumexp(numpy.asarray([1000.0, 1000.0]))), 4)
    1000.6931
    """
    engine = _engine_of("logsumexp", x)
    given = range(len(x.shape)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(_axis_of("logsumexp", x, each) for each in given)
    if len(set(axes)) < len(axes):
        raise ValueError(f"logsumexp takes each axis once, got {axis} for an array of shape {tuple(x.shape)}")
    return learners[engine].logsumexp(x, axes, keepdims) if axes else learners[engine].logsumexp(x[None], (0,), False)


def relu(x: Any, /) -> Any:
    """x where it is greater than 0, and 0 elsewhere, where its gradient is 0 too.

    Raises:
        TypeError: x is no array of integers or real floating-point numbers.

    >>> import numpy
    >>> relu(numpy.asarray([-1.0, 2.0]))
    array([0., 2.])
    """
    return learners[_engine_of("relu", x, (INTEGER, FLOAT))].relu(x)


def cross_entropy(logits: Any, labels: Any, /) -> Any:
    """-log_softmax(logits)[label], for each label: how unlikely the model holds what is true.

    The loss of each example, in the shape of the labels; what is differentiated is mostly their `mean`.

    Args:
        logits: real floating-point numbers, the classes along the last axis.
        labels: integers from 0 to the number of classes - 1, in the shape of the logits without their last axis.

    Raises:
        TypeError: logits or labels are of other kinds. For probabilities: -sum(p * log_softmax(logits), axis=-1).
        ValueError: the shapes do not fit.
        IndexError: a label is no class; where it is seen without waiting, as of `take`. Elsewhere its loss is NaN, or
            (torch on a GPU) the device stops with an assertion, or (a tf.function on a CPU) it is TensorFlow's error.

    >>> import numpy
    >>> cross_entropy(numpy.zeros((2, 1)), numpy.asarray([0, 0]))
    array([0., 0.])
    """
    engine = engine_of_all((logits, labels), "cross_entropy")
    _check_kind("cross_entropy", logits, (FLOAT,))
    _check_kind("cross_entropy", labels, (INTEGER,))
    if not len(logits.shape) or not _fit(tuple(logits.shape)[:-1], tuple(labels.shape)):
        raise ValueError(
            f"cross_entropy takes labels in the shape of the logits without their last axis, the classes; got logits "
            f"of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)}"
        )
    try:
        return learners[engine].cross_entropy(logits, labels)
    except IndexError as error:
        raise IndexError(f"a label is none of the {logits.shape[-1]} classes, 0 and up") from error


def einsum(subscripts: str, /, *arrays: Any) -> Any:
    """Products of arrays, summed over the letters that the result leaves out: `einsum("ij,jk->ik", x, y)`.

    Args:
        subscripts: a letter for each axis of each array, the arrays between commas; "..." stands for axes that
            broadcast. Without "->" the result has the letters that occur once, in order.
        arrays: of one type of numbers, in which the result is too; integers wrap around.

    Raises:
        TypeError: the arrays are of different types or engines, or hold no numbers.
        ValueError: the subscripts do not fit the arrays; a letter stands for two lengths, also for 1 and another.

    >>> import numpy
    >>> einsum("ij,j->i", numpy.ones((2, 3)), numpy.ones(3))
    array([3., 3.])
    """
    engine = engine_of_all(arrays, "einsum")
    for x in arrays:
        _check_kind("einsum", x, (INTEGER, FLOAT, COMPLEX))
    names = sorted({dtype_name(x.dtype) for x in arrays})
    if len(names) > 1:
        raise TypeError(
            f"einsum takes arrays of one type, got {' and '.join(names)}; convert with fanwise.tensor.astype"
        )
    return learners[engine].einsum(_explicit(subscripts, [tuple(x.shape) for x in arrays]), list(arrays))


# -- what every engine takes -------------------------------------------------------------------------------------------

_KINDS = {BOOL: "booleans", INTEGER: "integers", FLOAT: "real floating-point numbers", COMPLEX: "complex numbers"}


def _engine_of(name: str, x: Any, kinds: Sequence[int] = (FLOAT,)) -> str:
    engine = engine_of_all((x,), name)
    _check_kind(name, x, kinds)
    return engine


def _check_kind(name: str, x: Any, kinds: Sequence[int]) -> None:
    engine_of(x)  # a Python number goes with arrays elsewhere, and is none here
    if dtype_rank(x.dtype) not in kinds:
        raise TypeError(
            f"{name} takes {' or '.join(_KINDS[kind] for kind in kinds)} here, got an array of {dtype_name(x.dtype)}; "
            f"convert it: fanwise.tensor.astype(x, dtype)"
        )


def _axis_of(name: str, x: Any, axis: int) -> int:
    if not hasattr(axis, "__index__"):
        raise TypeError(f"{name} takes an integer for an axis, -1 for the last; got {axis!r}")
    ndim = len(x.shape)
    if not -ndim <= axis < ndim:
        raise IndexError(f"{name} has no axis {axis} in an array of shape {tuple(x.shape)}")
    return axis % ndim


def _fit(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether two shapes are the same, as far as they are known: None is a length that TensorFlow does not know yet."""
    return len(one) == len(other) and all(a == b or None in (a, b) for a, b in zip(one, other, strict=True))


def _explicit(subscripts: str, shapes: Sequence[tuple[int | None, ...]]) -> str:
    """The subscripts with what they leave to be understood, once they are known to fit."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = given.split(",")
    letters = [term.replace("...", "", 1) for term in terms]
    if len(terms) != len(shapes) or not all((each or "a").isascii() and (each or "a").isalpha() for each in letters):
        raise ValueError(
            f"einsum takes letters for the axes of each array, with commas between the arrays, such as 'ij,jk->ik'; "
            f"got {subscripts!r} for {len(shapes)} arrays"
        )
    lengths: dict[str, int | None] = {}
    for term, named, shape in zip(terms, letters, shapes, strict=True):
        if len(named) > len(shape) or (term == named and len(named) != len(shape)):
            raise ValueError(f"einsum has {term!r} in {subscripts!r} for an array of shape {shape}")
        first = term.partition("...")[0]
        axes = [*range(len(first)), *range(len(shape) - len(named) + len(first), len(shape))]
        for letter, axis in zip(named, axes, strict=True):
            length, other = lengths.get(letter), shape[axis]
            if length is not None and other is not None and length != other:
                raise ValueError(f"einsum has {letter!r} in {subscripts!r} for axes of lengths {length} and {other}")
            lengths[letter] = other if length is None else length
    if not arrow:
        together = "".join(letters)
        once = "".join(sorted(letter for letter in together if together.count(letter) == 1))
        result = ("..." if "..." in given else "") + once
    named = result.replace("...", "", 1)
    if len(set(named)) < len(named) or not set(named) <= set(lengths) or ("..." in result) != ("..." in given):
        raise ValueError(
            f"the result of einsum has letters of the arrays, each once, and '...' if they have it; got {subscripts!r}"
        )
    return f"{','.join(terms)}->{result}"
