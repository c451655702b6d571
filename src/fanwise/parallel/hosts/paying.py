"""Whether several hosts pay for a run: what a step takes, beside what one host alone would take. A quiet file.

    a step on all hosts:      computing  +  exchanging
    the same on one of them:  computing * processes of all / its own        the same shards, in turns, the same bits

Each process measures what it computes itself, so hosts may differ. What the processes of one host exchange among
themselves is left out, as it is little beside the network. Of the processes of one host it is the same question,
whether the first of them alone would be quicker.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# The first steps load and compile; after so many more it is known.
_SKIPPED, _LOOKED_AT = 5, 20
# What one host alone may take, of a step, to be told of: clearly less.
CLEARLY = 0.8
# What another host may take, of the first one, to be preferred: what the first has written stays where it is.
_RATHER = 0.9


class Took(NamedTuple):
    """By a step of one process: in all, and of that to exchange with others."""

    step_s: float
    exchange_s: float


@dataclass(frozen=True, slots=True)
class Quicker:
    """These alone would be, by place: the processes of one host, or one process. `line`: in words."""

    places: tuple[int, ...]
    line: str


@dataclass(slots=True)
class Paying:
    """The steps of one process, with the same others."""

    _steps: list[Took] = field(default_factory=list)

    def add(self, took: Took) -> Took | None:
        """A step is done. Once, after some of them: what a step takes; until then, and afterwards, None.

        >>> paying = Paying()
        >>> [each for each in (paying.add(Took(0.2, 0.15)) for _ in range(30)) if each]
        [Took(step_s=0.2, exchange_s=0.15)]
        """
        if len(self._steps) == _SKIPPED + _LOOKED_AT:
            return None
        self._steps.append(took)
        if len(self._steps) < _SKIPPED + _LOOKED_AT:
            return None
        return Took(*map(statistics.median, zip(*self._steps[_SKIPPED:], strict=True)))


def quicker(took: Sequence[Took], hosts: Sequence[str], *, most: float = CLEARLY) -> Quicker | None:
    """Who alone would be quicker than all; None: nobody.

    Args:
        took: by each process, by place. hosts: of each. most: that they may take, as a part of what a step takes now.

    >>> print(quicker([Took(0.2, 0.15)] * 4, ["h0", "h0", "h1", "h1"]).line)
    a step of 4 processes takes 200 ms, 150 of them to exchange gradients; the 2 of h0 alone would take about 100.
    """
    processes, step_s = len(took), took[0].step_s
    names = list(dict.fromkeys(hosts))
    each = [tuple(place for place, host in enumerate(hosts) if host == name) for name in names]
    if len(each) == 1:
        each = [(0,)]
    alone = [
        max(took[place].step_s - took[place].exchange_s for place in places) * processes / len(places)
        for places in each
    ]
    best = min(range(len(each)), key=alone.__getitem__)
    if alone[best] > _RATHER * alone[0]:
        best = 0
    if processes == 1 or alone[best] > most * step_s:
        return None
    left = len(each[best])
    those = f"the {left}" if left > 1 else "the one" if len(names) > 1 else "one"
    return Quicker(
        each[best],
        f"a step of {processes} processes takes {1e3 * step_s:.0f} ms, {1e3 * took[0].exchange_s:.0f} of them to "
        f"exchange gradients; {those} of {names[best].partition('/')[0]} alone would take about "
        f"{1e3 * alone[best]:.0f}.",
    )
