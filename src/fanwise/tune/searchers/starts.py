"""Starts: configurations that fill a space evenly, for the time before a model knows anything."""

import numpy as np
from scipy.stats import qmc

from ..chance import Chance
from .encoding import Encoder, Rows

_NUM_POINTS = 256


def start_rows(encoder: Encoder, seed: int) -> Rows:
    """The first points of a Sobol sequence, scrambled by the seed; with priors every second one is near them."""
    chance = np.random.Generator(np.random.PCG64(Chance(f"{seed}/start").getrandbits(128)))
    # A cube without axes has no sequence; any will do for the constants that such a space consists of.
    sequence = qmc.Sobol(max(encoder.num_dims, 1), scramble=True, rng=chance)
    rows = encoder.snapped(sequence.random(_NUM_POINTS)[:, : encoder.num_dims])
    if encoder.space.priors:
        rows[::2] = encoder.sample(_NUM_POINTS // 2, chance, prior=True)
    return rows
