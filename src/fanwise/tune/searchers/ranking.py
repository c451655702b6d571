"""Which trials are better than which, of one objective or several, with constraints: for models that learn an order.

    what violates the constraints less  ->  then the loss, or of several objectives the front  ->  then the lonelier one

So a model of one number learns several objectives as NSGA-II ranks them (Deb et al. 2002, section III): the fronts, and
in a front the crowding distance.
"""

# N: trials

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .encoding import Floats
    from .history import Data


def best_first(data: "Data") -> "npt.NDArray[np.int64]":
    """The places of the trials, the best first; of equals the earlier. What has no result comes last."""
    import numpy as np

    return np.lexsort(_keys(data)[::-1])


def ranks(data: "Data") -> "Floats":
    """For each trial which one it is, the best is 0; equals have the same."""
    import numpy as np

    keys = np.stack(_keys(data), axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.float64)


def normal_scores(loss_N: "Floats") -> "Floats":
    """What numbers of the same order would be if they had been drawn from a normal distribution; equal ones stay equal.

    A loss of 1e30, or none at all, is then no more than the last of N.
    """
    import numpy as np
    from scipy.special import ndtri

    _, place_N, count_U = np.unique(loss_N, return_inverse=True, return_counts=True)
    middle_U = np.cumsum(count_U) - count_U / 2
    return np.asarray(ndtri(middle_U[place_N] / len(loss_N)))


def _keys(data: "Data") -> "list[Floats]":
    """By which to compare the trials, the first first; smaller is better."""
    import numpy as np

    from ..pareto import crowding_distances, non_dominated_sort

    if data.losses_NM.shape[1] == 1:
        return [data.infeasibility_N, data.loss_N]
    front_N = np.full(len(data.loss_N), np.inf)
    crowding_N = np.zeros(len(front_N))
    for infeasibility in np.unique(data.infeasibility_N[data.has_result_N]):  # a front is of those that are alike in it
        places = np.flatnonzero(data.has_result_N & (data.infeasibility_N == infeasibility))
        front_N[places] = non_dominated_sort(data.losses_NM[places])
        for front in np.unique(front_N[places]):
            members = places[front_N[places] == front]
            crowding_N[members] = crowding_distances(data.losses_NM[members])
    return [data.infeasibility_N, front_N, -crowding_N]
