"""Whether a function does the same on every engine, and if not, in which line it stops to."""

from collections.abc import Callable, Sequence
from typing import Any


def check_portable(
    f: Callable[..., Any], /, *args: Any, engines: Sequence[str] | None = None, rtol: float | None = None
) -> None:
    """Raise unless f(*args) is the same on every engine: values, types, shapes, gradients.

    f is called with the arguments as arrays of each engine in turn, which is then also the current one, so that
    creation functions of `fanwise.tensor` make its arrays. It may return a tree of arrays and numbers. Gradients are
    those of the sum of its float results, for each float array among the arguments.

    Args:
        f: the function to be checked.
        args: trees with arrays of any engine; other leaves are passed as they are. JAX without 64-bit types gets
            int32 for int64, and refuses float64: give float32.
        engines: which to compare; all that are installed if None.
        rtol: how far values may differ, relative to the largest of their array; the root of the type's precision
            (3e-4 for float32) if None. Gradients may differ ten times as much.

    Raises:
        NotPortableError: with one finding an engine, and the file and line where it first differs.
        NotInstalled: one of `engines` is missing.
        TypeError, ValueError: f is no function; `engines` names none, or not the engines that there are.

    Blocks while f runs, several times on each engine; the first use of an engine loads it (TensorFlow: seconds).

    >>> import fanwise.tensor as ft
    >>> check_portable(lambda x: ft.sum(ft.exp(x) * 2), ft.asarray([1.0, 2.0]), engines=["numpy", "torch"])
    """
    from .checking import check  # with all that it needs: few programs do

    check(f, args, engines, rtol)
