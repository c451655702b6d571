"""Comparison of an objective's signature with the names of the space, before any trial runs."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..pool.functions import name_of


def check_signature(function: Callable[..., Any], names: Iterable[str], *, sometimes: Iterable[str] = ()) -> None:
    """Check that `function` can be called with exactly these keyword arguments, and without those in `sometimes`.

    Args:
        function: function, bound method, partial, class or callable object. Functions without a known signature (some
            built-in functions) pass.
        names: the names of the space.
        sometimes: names that some configurations omit.

    Raises:
        ValueError: names arguments that the space lacks, names that the function does not take, and arguments that
            need a default because some configurations omit them.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    problems = _problems(signature, list(names), set(sometimes))
    if problems:
        call = f"{name_of(function)}{signature.replace(return_annotation=inspect.Signature.empty)}"
        raise ValueError(f"{call} does not fit the space:\n" + "\n".join(f"  {problem}" for problem in problems))


def _problems(signature: inspect.Signature, names: list[str], sometimes: set[str]) -> list[str]:
    parameters = signature.parameters.values()
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unnamed = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    problems = [
        f"argument {p.name!r} is positional-only, and values are passed by name: remove the '/'"
        for p in unnamed
        if p.default is p.empty or (p.name in names and not takes_any)
    ]
    missing = [name for name, p in by_name.items() if p.default is p.empty and name not in names]
    surplus = [
        name for name in names if not takes_any and name not in by_name and name not in {p.name for p in unnamed}
    ]
    for name in missing:
        problems.append(f"argument {name!r} is not in the space: add it (a constant will do) or give it a default")
    for name, p in by_name.items():
        if p.default is p.empty and name in sometimes:
            problems.append(f"argument {name!r} does not exist in every configuration: give it a default, {name}=None")
    for name in surplus:
        nearest = difflib.get_close_matches(name, missing or by_name, 1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "add it to the arguments, or take it out of the space"
        problems.append(f"the space has {name!r}, which is not an argument: {hint}")
    return problems
