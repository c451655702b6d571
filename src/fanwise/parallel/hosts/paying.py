"""Whether several hosts pay for a run: what a step takes, beside what one host alone would take. A quiet file.

    a step on all hosts:      computing  +  exchanging
    the same on one of them:  computing * processes of all / its own        the same shards, in turns, the same bits

What the processes of one host exchange among themselves is left out, as it is little beside the network. Of the
processes of one host it is the same question, whether the first of them alone would be quicker.
"""

import statistics
from dataclasses import dataclass, field
from typing import Literal

# The first steps load and compile; after so many more it is said, once.
_SKIPPED, _LOOKED_AT = 5, 20
# By how much one host has to be quicker.
_CLEARLY = 0.8


@dataclass(frozen=True, slots=True)
class Quicker:
    """Fewer would be: the processes of this host, or this process alone. `line`: in words."""

    who: Literal["host", "process"]
    line: str


@dataclass(slots=True)
class Paying:
    """The steps of one process, with the same others."""

    _steps: list[tuple[float, float]] = field(default_factory=list)
    _is_said: bool = False

    def add(self, step_s: float, exchange_s: float) -> None:
        """A step is done: how long it took, and how much of that for the exchange with others."""
        if len(self._steps) < _SKIPPED + _LOOKED_AT:
            self._steps.append((step_s, exchange_s))

    def quicker(self, processes: int, here: int, host: str) -> Quicker | None:
        """Told once: who alone would be quicker; None: nobody, or it is not known yet.

        Args:
            processes: in all. here: of this host.

        >>> paying = Paying()
        >>> for _ in range(25): paying.add(0.2, 0.15)
        >>> print(paying.quicker(4, 2, "h0").line)
        a step of 4 processes takes 200 ms, 150 of them to exchange gradients; the 2 of h0 alone would take about 100.
        """
        if self._is_said or len(self._steps) < _SKIPPED + _LOOKED_AT or processes == 1:
            return None
        self._is_said = True
        looked_at = self._steps[_SKIPPED:]
        step_s = statistics.median(step_s for step_s, _ in looked_at)
        exchange_s = statistics.median(exchange_s for _, exchange_s in looked_at)
        left = here if here < processes else 1
        alone_s = (step_s - exchange_s) * processes / left
        if alone_s > _CLEARLY * step_s:
            return None
        those = f"the {left}" if left > 1 else "the one" if here < processes else "one"
        return Quicker(
            "host" if here < processes else "process",
            f"a step of {processes} processes takes {1e3 * step_s:.0f} ms, {1e3 * exchange_s:.0f} of them to exchange "
            f"gradients; {those} of {host} alone would take about {1e3 * alone_s:.0f}.",
        )
