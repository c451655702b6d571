"""Results of NumPy and their derivatives, by finite differences: what every engine must return for a call.

Values are those of array_api_strict, or of the call's own reference. Where the derivatives from the left and from the
right differ, a derivative has a least and a greatest right value.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import array_api_strict as strict
import numpy as np
from tensor_calls import Call, Dtype

# Any, in this file: NumPy arrays of all types and shapes, trees of arguments.


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree of tuples and lists with each NumPy array and dtype changed."""
    if isinstance(tree, (tuple, list)):
        return type(tree)(mapped(part, change) for part in tree)
    if isinstance(tree, dict):
        return {name: mapped(part, change) for name, part in tree.items()}
    return change(tree) if isinstance(tree, (np.ndarray, Dtype)) else tree


def is_variable(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def variables(call: Call) -> list[Any]:
    """The arrays of floating-point numbers among the arguments, by which the function is differentiated."""
    found: list[Any] = []
    mapped([call.arguments, call.keywords], lambda x: found.append(x) if is_variable(x) else None)
    return found


def with_variables(call: Call, values: Sequence[Any]) -> tuple[Any, Any]:
    """The arguments and keywords with other arrays in the place of the variables."""
    remaining = iter(values)
    # Arithmetic makes numbers of arrays without axes.
    next_one: Callable[[], Any] = lambda: np.asarray(next(remaining))  # noqa: E731
    return tuple(mapped([call.arguments, call.keywords], lambda x: next_one() if is_variable(x) else x))


def flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [array for part in result for array in flat(part)]
    return [result]


def lookup(space: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), space)


def reference(name: str, call: Call, values: Sequence[Any]) -> list[Any]:
    """The results with NumPy, computed in the type of the values."""
    arguments, keywords = with_variables(call, values)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if call.reference is not None:
            return [np.asarray(result) for result in flat(call.reference(*arguments, **keywords))]
        to_strict = lambda x: getattr(strict, x) if isinstance(x, Dtype) else strict.asarray(np.asarray(x).copy())  # noqa: E731
        results = lookup(strict, name)(*mapped(arguments, to_strict), **mapped(keywords, to_strict))
        return [
            np.asarray(result._array) if hasattr(result, "_array") else np.asarray(result) for result in flat(results)
        ]


def parts(arrays: Sequence[Any]) -> list[Any]:
    """Complex arrays as their real and imaginary parts."""
    return [part for x in arrays for part in ((x.real, x.imag) if np.iscomplexobj(x) else (x,))]


def weights(arrays: Sequence[Any], offset: float) -> list[Any]:
    """Numbers that differ from one element to the next, in the shapes of the arrays."""
    return [np.cos(np.arange(x.size) * 0.7 + offset + n).reshape(x.shape) + 1.5 for n, x in enumerate(arrays)]


@dataclass
class Bounds:
    """The least and the greatest right derivative of each element; NaN where finite differences tell nothing."""

    least: list[Any]
    most: list[Any]


def one_sided(evaluate: Callable[[float], Any], step: float) -> Any:
    """The derivative from one side; NaN where the differences do not converge."""
    here = evaluate(0.0)
    with np.errstate(all="ignore"):
        coarse, fine = ((evaluate(h) - here) / h for h in (step, step / 8))
        return np.where(np.abs(coarse - fine) <= 1e-3 * (1 + np.abs(fine)), fine, np.nan)


def results_at(name: str, call: Call, inputs: Sequence[Any]) -> Any:
    """All results of the reference in one row, with a 0 before them."""
    results = parts(reference(name, call, inputs))
    return np.concatenate([[0.0], *(np.asarray(x, dtype=np.float64).ravel() for x in results)])


def along(name: str, call: Call, inputs: Sequence[Any], direction: Sequence[Any], step: float) -> tuple[Any, Any]:
    """The derivatives of all results along a direction: from the right, and from the left."""

    def evaluate(h: float) -> Any:  # where nothing moves, a -0.0 stays what it is
        moved = [np.where(d == 0, x, x + h * d) for x, d in zip(inputs, direction, strict=True)]
        return results_at(name, call, moved)

    right, left = (one_sided(evaluate, sign * step)[1:] for sign in (1, -1))
    smooth = np.abs(right - left) <= 2e-3 * (1 + np.abs(right))
    mean = (right + left) / 2
    return np.where(smooth, mean, right), np.where(smooth, mean, left)


def one_sided_gradients(name: str, call: Call, inputs: Sequence[Any], outputs: Sequence[Any], step: float) -> list[Any]:
    """From each side: the gradients of the weighted outputs, all in one row."""
    cotangents = np.concatenate([w.ravel() for w in weights(outputs, 0.0)])
    sides: list[list[Any]] = [[], []]
    for n, x in enumerate(inputs):
        for place in [...] if call.elementwise else np.ndindex(x.shape):
            direction = [np.zeros_like(each) for each in inputs]
            direction[n][place] = 1.0
            for side, column in zip(sides, along(name, call, inputs, direction, step), strict=True):
                weighed = column * cotangents
                side.append(weighed if call.elementwise else [weighed.sum()])
    return [np.concatenate([*side, []]) for side in sides]


def first_derivatives(name: str, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> Bounds:
    """Bounds of the gradient.

    Where the derivatives from both sides differ, those of points nearby bound it too.
    """
    finite = [np.isfinite(x) for x in inputs]
    bad = ~np.isfinite(np.concatenate([np.asarray(x, dtype=np.float64).ravel() for x in outputs]))
    bad |= ~np.logical_and.reduce(finite).ravel() if call.elementwise else not all(x.all() for x in finite)
    scale = 1.0 if call.elementwise else max([1.0, *(np.max(np.abs(x[np.isfinite(x)]), initial=0.0) for x in inputs)])
    sides = one_sided_gradients(name, call, inputs, outputs, 1e-5 * scale)
    kink = (sides[0] != sides[1]) & np.isfinite(sides[0]) & np.isfinite(sides[1])
    least, most = np.minimum(*sides), np.maximum(*sides)
    if kink.any():
        chance = np.random.default_rng(0)
        for _ in range(8):
            nearby = [x + 1e-3 * scale * chance.standard_normal(x.shape) for x in inputs]
            for side in one_sided_gradients(name, call, nearby, outputs, 1e-6 * scale):
                known = np.isfinite(side) & (kink if call.elementwise else True)
                least, most = (np.where(known, f(b, side), b) for f, b in ((np.minimum, least), (np.maximum, most)))
    total = np.concatenate([bad if call.elementwise else np.full(x.size, bad.any()) for x in inputs])
    least[total] = most[total] = np.nan
    ends = np.cumsum([x.size for x in inputs])[:-1]
    return Bounds(
        *([p.reshape(x.shape) for p, x in zip(np.split(b, ends), inputs, strict=True)] for b in (least, most))
    )


def second_derivatives(name: str, call: Call, inputs: Sequence[Any], outputs: Sequence[Any], first: Bounds) -> Bounds:
    """The Hessian of the weighted sum of the outputs times the tangents."""
    tangents, cotangents = weights(inputs, 0.4), weights(outputs, 0.0)

    def total(moved: Sequence[Any]) -> Any:
        results = [
            np.asarray(x, dtype=np.float64) * w
            for x, w in zip(parts(reference(name, call, moved)), cotangents, strict=True)
        ]
        return results[0].ravel() if call.elementwise else sum(float(x.sum()) for x in results)

    def mixed(step: float, direction: Sequence[Any]) -> Any:
        def corner(a: int, b: int) -> Any:
            return total([x + step * (a * t + b * d) for x, t, d in zip(inputs, tangents, direction, strict=True)])

        return (corner(1, 1) - corner(1, -1) - corner(-1, 1) + corner(-1, -1)) / (4 * step * step)

    def converged(direction: Sequence[Any]) -> Any:
        coarse, fine = mixed(2e-3, direction), mixed(7e-4, direction)
        return np.where(np.abs(coarse - fine) <= 2e-3 * (1 + np.abs(fine)), fine, np.nan)

    found = []
    with np.errstate(all="ignore"):
        for n, x in enumerate(inputs):
            zero = [np.zeros_like(each) for each in inputs]
            if call.elementwise:
                zero[n] = np.ones_like(x)
                found.append(converged(zero).reshape(x.shape))
                continue
            values = np.full(x.shape, np.nan)
            for place in np.ndindex(x.shape):
                zero[n] = np.zeros_like(x)
                zero[n][place] = 1.0
                values[place] = converged(zero)
            found.append(values)
    smooth = [least == most for least, most in zip(first.least, first.most, strict=True)]
    if call.elementwise:
        smooth = [np.logical_and.reduce(smooth)] * len(inputs)
    elif not all(x.all() for x in smooth):
        smooth = [np.zeros_like(x) for x in smooth]
    found = [np.where(known, x, np.nan) for known, x in zip(smooth, found, strict=True)]
    return Bounds(found, found)
