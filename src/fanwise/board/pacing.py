"""How often a board looks at an experiment: so that the machine's other work hardly feels it. Quiet: no clock.

    what the last look took, how busy the machine is --rest_s---------> seconds until the next one
    reports since the last look                      --reports_every--> of how many of them one is read

All pages share a look, and they draw when it has changed. So this is also how often they draw: a browser on the machine
of a search takes more of it than the board does.
"""

import math

_FREE_REST_S, _FULL_REST_S, _POURING_REST_S = 0.3, 5.0, 30.0  # the least
_FREE_SHARE, _FULL_SHARE = 0.1, 0.01  # of one core, at most
_MOST_REST_S = 60.0
_FULL_REPORTS_A_S = 150  # are read at most: a seventh of a percent of a core
_FULL = 0.75  # a core that waits for a disk between two reports counts as free


def rest_s(spent_s: float, busy: float, every: int = 1) -> float:
    """Seconds from one look to the next.

    Args:
        spent_s: the CPU time that the last look took, with all that was made of it; without reading the record, which
            takes the same for each report however often it is done.
        busy: the share of the machine's CPU time that is used, 0 to 1.
        every: one in how many new reports was read, by `reports_every`.

    >>> rest_s(0.001, busy=0.5), rest_s(0.2, busy=0.5), rest_s(0.001, busy=1.0), rest_s(0.2, busy=1.0)
    (0.3, 2.0, 5.0, 20.0)
    >>> rest_s(0.001, busy=1.0, every=20)
    30.0
    """
    is_full = busy >= _FULL
    share, least_s = (_FULL_SHARE, _FULL_REST_S) if is_full else (_FREE_SHARE, _FREE_REST_S)
    if every > 1:
        least_s = _POURING_REST_S
    return min(_MOST_REST_S, max(least_s, spent_s / share))


def reports_every(num_new: int, passed_s: float, busy: float) -> int:
    """One in how many new reports is read: all of them, unless the machine is full and they pour in.

    >>> reports_every(60_000, 5.0, busy=1.0), reports_every(700, 5.0, busy=1.0), reports_every(60_000, 5.0, busy=0.5)
    (80, 1, 1)
    """
    if busy < _FULL:
        return 1
    return max(1, math.ceil(num_new / (_FULL_REPORTS_A_S * max(1.0, passed_s))))
