"""Nearby: configurations near good ones, thousands at once, as candidates for a model."""

# N: rows, D: hyperparameters

import numpy as np

from .encoding import Encoder, Floats, Rows

# How many hyperparameters are changed: often one, sometimes a third of them, seldom all.
_SHARES = (0.0, 0.35, 1.0)
_HOW_OFTEN = (0.4, 0.4, 0.2)


def nearby_rows(encoder: Encoder, centers_ND: Rows, reach_N: Floats, chance: np.random.Generator) -> Rows:
    """A row near each centre: at least one hyperparameter differs, unless rounding or the border brings it back.

    Args:
        encoder: of the space.
        centers_ND: rows of configurations.
        reach_N: the standard deviation of a step, as a part of the domain. In a domain of few values a step has at
            least the width of one of them; of a choice any category may come.
        chance: draws.
    """
    size = centers_ND.shape
    old = np.where(np.isnan(centers_ND), chance.random(size), centers_ND)
    shares = chance.choice(_SHARES, size=(size[0], 1), p=_HOW_OFTEN)
    is_moved = chance.random(size) < shares
    is_moved[np.arange(size[0]), chance.integers(size[1], size=size[0])] = True
    steps, fresh = chance.standard_normal(size), chance.random(size)
    for d, (is_choice, num_values) in enumerate(zip(encoder.is_choice_D, encoder.num_values_D, strict=True)):
        if not is_choice:
            reach = reach_N if num_values is None else np.maximum(reach_N, 1.0 / num_values)
            place = np.abs(old[:, d] + reach * steps[:, d])
            fresh[:, d] = np.where(place > 1.0, 2.0 - place, place)
    return encoder.snapped(np.where(is_moved, fresh, old))
