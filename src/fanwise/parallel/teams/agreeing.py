"""What the processes of a launcher must have been given alike, before a run begins."""

from collections.abc import Callable, Mapping, Sequence

from ..checks.agreement import Facts, first_difference
from ..config import Plan
from ..process_settings import torch_settings


def agreed_seed(
    plan: Plan,
    fixed: frozenset[str],
    own: Mapping[str, object],
    gather: Callable[[tuple[Facts, int]], Sequence[tuple[Facts, int]]],
) -> int:
    """The seed of the run: where nobody gave one, that of the first process.

    Args:
        fixed: what the user gave by name. own: what else is to be the same. gather: what all have, by place.

    Raises:
        ValueError: the processes were given different runs.
    """
    given = {name: getattr(plan, name) for name in sorted({"shards", "threads"} | fixed)}
    each = gather((given | dict(own) | torch_settings.comparable_settings(), plan.seed))
    different = first_difference([facts for facts, _ in each])
    if different is not None:
        raise ValueError(
            f"the processes were given different runs: {different.name} is {different.said()}.\n"
            f"Call fanwise.run with the same arguments in all, and make torch's settings the same before."
        )
    return each[0][1]
