"""`check_portable` at work: run f on every engine, compare, and name the line that is not portable.

    args --> plain numpy --> one engine after another: f runs, its lines watched (tracing) --> Run
    Runs --> against the first: raised? other structure, type, shape, values? --> findings, each with its line
    on engines with gradients also the gradients of the sum of f's float results

The first engine is the reference: array-api-strict, which has the standard's functions and nothing else. It is no
engine of this layer, so it becomes the current one by a door of its own (`engines.entered`).
Everything runs eagerly, in this thread; f should not depend on chance but through `Key`.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...base.errors import NotInstalled, NotPortableError
from ..engines import ENGINES, check_engine, engine_of, entered, is_array_type, use
from .tracing import Step, Traced, line_of

# Any throughout: the user's function, its arguments and its result.

STRICT = "array_api_strict"


def check(f: Callable[..., Any], args: Sequence[Any], engines: Sequence[str] | None, rtol: float | None) -> None:
    """What `check_portable` does."""
    if importlib.util.find_spec(STRICT) is None:
        raise NotInstalled(
            "check_portable compares with array-api-strict, which is not installed. "
            "Install it: pip install 'fanwise[portable]'."
        )
    if not callable(f):
        raise TypeError(f"expected a function to check, got {type(f).__qualname__}: {f!r:.100}")
    names = _names(engines)
    plain = _plain(args)
    runs = [_run(f, plain, name) for name in (STRICT, *names)]
    findings = _findings(runs, rtol)
    if not any(run.error for run in runs):
        findings += _gradient_findings(f, plain, names, rtol)
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
    error: Exception | None = None
    steps: list[Step] = field(default_factory=list)


def _plain(tree: Any) -> Any:
    """The arguments with numpy arrays in place of all arrays: the same data for every engine."""
    from .. import trees
    from ..exchange import to_numpy

    return trees.map_leaves(lambda leaf: to_numpy(leaf, copy=True) if is_array_type(type(leaf)) else leaf, tree)


def _as_engine(plain: Any, engine: str) -> Any:
    import numpy as np

    from .. import trees
    from ..exchange import from_numpy
    from ..namespaces.spaces import part_of

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, (np.ndarray, np.generic)):
            return leaf
        if engine == STRICT:
            return part_of(STRICT, "").asarray(leaf, copy=True)
        if leaf.dtype == np.int64 and part_of(engine, "").asarray(0).dtype == np.int32:
            leaf = leaf.astype(np.int32)  # JAX without 64 bits: there these are its integers
        return from_numpy(leaf, engine, copy=True)

    return trees.map_leaves(convert, plain)


def _run(f: Callable[..., Any], plain: Any, engine: str) -> _Run:
    run = _Run(engine)
    try:
        with entered(engine):
            arguments = _as_engine(plain, engine)
            with Traced(f) as traced:
                run.steps = traced.steps
                run.result = f(*arguments)
    except Exception as error:
        run.error = error
    return run


def _findings(runs: Sequence[_Run], rtol: float | None) -> list[str]:
    from .comparing import difference

    findings = []
    whole = [run for run in runs if run.error is None]
    for run in runs:
        if run.error is not None:
            where = line_of(run.error, run.steps)
            says = f"{type(run.error).__name__}: {run.error}".strip().splitlines()[0]
            meaning = "is outside of the standard" if run.engine == STRICT else f"fails on {run.engine}"
            findings.append(f"{where} {meaning}: {says}")
        elif run is not whole[0]:
            found = difference(whole[0].result, run.result, rtol)
            if found is not None:
                where = _first_difference(whole[0].steps, run.steps, rtol)
                findings.append(f"{where} differs between {whole[0].engine} and {run.engine}: {found}")
    return findings


def _first_difference(steps: Sequence[Step], others: Sequence[Step], rtol: float | None) -> str:
    """The line after which a variable is not the same, or after which another line follows."""
    from .comparing import difference

    last = steps[0] if steps else None
    for step, other in zip(steps, others, strict=False):
        if step.place != other.place and last is not None:
            return last.text
        if any(difference(step.arrays[name], other.arrays.get(name), rtol) for name in step.arrays):
            return other.text
        last = step
    return last.text if last is not None else "its result"


def _gradient_findings(f: Callable[..., Any], plain: Any, engines: Sequence[str], rtol: float | None) -> list[str]:
    from .. import trees
    from ..exchange import to_numpy
    from .comparing import difference

    findings: list[str] = []
    first: tuple[str, Any] | None = None
    for engine in engines:
        if not ENGINES[engine].autodiff:
            continue
        with use(engine):
            leaves, form = trees.flatten(_as_engine(plain, engine))
            places = [place for place, leaf in enumerate(leaves) if _is_float_array(leaf)]
            if not places:
                return []
            traced = Traced(f)
            try:
                with traced:
                    gradients = _gradients(f, leaves, form, places)
            except _NoFloats:
                return []
            except Exception as error:
                says = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                findings.append(f"{line_of(error, traced.steps)} has no gradient on {engine}: {says}")
                continue
            plain_gradients = [to_numpy(gradient) for gradient in gradients]
        if first is None:
            first = engine, plain_gradients
            continue
        found = difference(first[1], plain_gradients, rtol, times=10.0)
        if found is not None:
            findings.append(f"the gradients differ between {first[0]} and {engine}: {found}")
    return findings


class _NoFloats(Exception):
    """Nothing in f's result can be differentiated."""


def _gradients(f: Callable[..., Any], leaves: list[Any], form: Any, places: list[int]) -> Sequence[Any]:
    from .. import trees
    from ..gradients import grad
    from ..namespaces import namespace

    def total(chosen: list[Any]) -> Any:
        filled = list(leaves)
        for place, leaf in zip(places, chosen, strict=True):
            filled[place] = leaf
        results = [leaf for leaf in trees.flatten(f(*form.unflatten(filled)))[0] if _is_float_array(leaf)]
        if not results:
            raise _NoFloats
        sums = [namespace(leaf).sum(leaf) for leaf in results]
        return sum(sums[1:], sums[0])

    found: Sequence[Any] = grad(total, jit=False)([leaves[place] for place in places])
    return found


def _is_float_array(leaf: Any) -> bool:
    from ..namespaces import namespace

    return is_array_type(type(leaf)) and bool(namespace(engine_of(leaf)).isdtype(leaf.dtype, "real floating"))
