"""`check_portable` at work: run f on every engine, compare, and name the line that is not portable.

    args --> plain numpy --> one engine after another: f runs, its lines watched (tracing); then its gradients --> Run
    Runs --> against the first: raised? other structure, type, shape, values (comparing)? --> findings, each with a line

Everything runs eagerly, in this thread; f should not depend on chance but through `Key`.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...base.errors import NotPortableError
from .. import trees
from ..engines import ENGINES, check_engine, engine_of, is_array_type, use
from ..exchange import from_numpy, to_numpy
from ..gradients import grad
from ..namespaces import namespace
from .comparing import difference
from .tracing import Step, Traced, line_of

# Any throughout: the user's function, its arguments and its result.


def check(f: Callable[..., Any], args: Sequence[Any], engines: Sequence[str] | None, rtol: float | None) -> None:
    """What `check_portable` does."""
    if not callable(f):
        raise TypeError(f"expected a function to check, got {type(f).__qualname__}: {f!r:.100}")
    plain = trees.map_leaves(lambda leaf: to_numpy(leaf, copy=True) if is_array_type(type(leaf)) else leaf, tuple(args))
    findings = _findings([_run(f, plain, name) for name in _names(engines)], rtol)
    if findings:
        title = getattr(f, "__qualname__", repr(f))
        raise NotPortableError(
            f"{title} is not portable:\n" + "\n".join(f"  {finding}" for finding in findings) + "\n"
            "Use functions of fanwise.tensor in place of an engine's own methods, and give types where they matter."
        )


def _names(engines: Sequence[str] | None) -> list[str]:
    if engines is None:
        return [name for name in ENGINES if importlib.util.find_spec(name)]
    names = [check_engine(name) for name in ([engines] if isinstance(engines, str) else engines)]
    if not names:
        raise ValueError("engines must name at least one engine, got none; leave it out for all that are installed")
    return names


@dataclass(slots=True)
class _Run:
    """What f did on one engine."""

    engine: str
    result: Any = None
    gradients: list[Any] | None = None  # by the float arrays among the arguments, of the sum of f's float results
    failed: str = ""  # what could not be done, and why
    steps: list[Step] = field(default_factory=list)


def _run(f: Callable[..., Any], plain: Any, engine: str) -> _Run:
    run, doing = _Run(engine), f"fails on {engine}"
    try:
        with use(engine), Traced(f) as traced:
            run.steps = traced.steps
            leaves, form = trees.flatten(_as_engine(plain, engine))
            run.result = f(*form.unflatten(leaves))
        doing = f"has no gradient on {engine}"
        with use(engine), Traced(f) as traced:
            run.gradients = _gradients(f, leaves, form) if ENGINES[engine].autodiff else None
    except Exception as error:
        says = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        run.failed = f"{line_of(error, traced.steps)} {doing}: {says}"
    return run


def _as_engine(plain: Any, engine: str) -> Any:
    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, (np.ndarray, np.generic)):
            return leaf
        if leaf.dtype == np.int64 and namespace(engine).asarray(0).dtype == np.int32:
            leaf = leaf.astype(np.int32)  # JAX without 64 bits: there these are its integers
        return from_numpy(leaf, engine, copy=True)

    return trees.map_leaves(convert, plain)


def _gradients(f: Callable[..., Any], leaves: list[Any], form: trees.TreeSpec) -> list[Any] | None:
    """None: there is nothing to differentiate, or nothing to differentiate by."""
    places = [place for place, leaf in enumerate(leaves) if _is_float_array(leaf)]
    of_floats = False

    def total(chosen: list[Any]) -> Any:
        nonlocal of_floats
        results = trees.flatten(f(*form.unflatten(trees.with_leaves(leaves, places, chosen))))[0]
        sums = [namespace(leaf).sum(leaf) for leaf in results if _is_float_array(leaf)]
        of_floats = bool(sums)
        return sum(sums[1:], sums[0]) if sums else namespace(chosen[0]).sum(chosen[0])

    if not places:
        return None
    found = grad(total)([leaves[place] for place in places])
    return [to_numpy(gradient) for gradient in found] if of_floats else None


def _is_float_array(leaf: Any) -> bool:
    return is_array_type(type(leaf)) and bool(namespace(engine_of(leaf)).isdtype(leaf.dtype, "real floating"))


def _findings(runs: Sequence[_Run], rtol: float | None) -> list[str]:
    findings = [run.failed for run in runs if run.failed]
    whole = [run for run in runs if not run.failed]
    for run in whole[1:]:
        if found := difference(whole[0].result, run.result, rtol):
            where = _first_difference(whole[0].steps, run.steps, rtol)
            findings.append(f"{where} differs between {whole[0].engine} and {run.engine}: {found}")
    smooth = [run for run in whole if run.gradients is not None]
    for run in smooth[1:]:
        if found := difference(smooth[0].gradients, run.gradients, rtol, times=10.0):
            findings.append(f"the gradients differ between {smooth[0].engine} and {run.engine}: {found}")
    return findings


def _first_difference(steps: Sequence[Step], others: Sequence[Step], rtol: float | None) -> str:
    """The line after which a variable is not the same, or after which another line follows."""
    last = steps[0] if steps else None
    for step, other in zip(steps, others, strict=False):
        if step.place != other.place and last is not None:
            return last.text
        if any(difference(step.arrays[name], other.arrays.get(name), rtol) for name in step.arrays):
            return other.text
        last = step
    return last.text if last is not None else "its result"
