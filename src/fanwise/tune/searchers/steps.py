"""Steps from one configuration to another: what searchers change about one that was good."""

from collections.abc import Collection, Mapping

from ..chance import Chance
from ..spaces import Space

_MOST_TRIES = 20


def resampled(space: Space, config: Mapping[str, object], rng: Chance) -> dict[str, object]:
    """`config` with one hyperparameter, any of those that it has, drawn anew."""
    names = [name for name in space.domains if name in config]
    if not names:
        return space.check(config)
    return space.resample(config, rng.choice(names), rng)


def mutated(
    space: Space, config: Mapping[str, object], rng: Chance, avoided: Collection[Mapping[str, object]]
) -> dict[str, object]:
    """Like `resampled`, but another configuration than `config` and the avoided ones, if a few tries find one."""
    new = resampled(space, config, rng)
    for _ in range(_MOST_TRIES - 1):
        if new != config and new not in avoided:
            break
        new = resampled(space, config, rng)
    return new
