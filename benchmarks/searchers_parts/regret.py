"""How good searches were: normalised regret, mean ranks, and bootstrap intervals. Knows nothing of how they ran.

    regret    0: the best value of the table was found; 1: nothing better than the table's median configuration
    rank      of a method among those that are compared on one table, with one seed, at one budget; 1 is the best

Seeds are paired. A rank is 1 + the number of methods that were better + half of those that were equal, so it is a sum
over pairs of methods; each pair is averaged over the seeds that both have run. With all runs there it is the ordinary
mean rank, and a method with fewer seeds can stand beside others without throwing theirs away.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# B: budgets, M: methods (and those they are compared with), S: seeds, T: tables


@dataclass(frozen=True, slots=True)
class Run:
    """One search that was simulated.

    Args:
        table, method, seed: which.
        trainings: its budget, in median trainings of the table.
        horizon_s: the same in virtual seconds.
        best, median: losses of the table; see tasks.py.
        times_s, losses: whenever the least loss so far became less.
        trials: how many were started.
        suggest_ms: the time of each suggestion.
    """

    table: str
    method: str
    seed: int
    trainings: int
    horizon_s: float
    best: float
    median: float
    times_s: Sequence[float]
    losses: Sequence[float]
    trials: int
    suggest_ms: Sequence[float]

    def regret(self, trainings: float) -> float:
        """Normalised regret after so many trainings; 1 before the first report, NaN beyond its own budget."""
        if trainings > self.trainings:
            return math.nan
        index = bisect_right(self.times_s, trainings / self.trainings * self.horizon_s)
        loss = self.losses[index - 1] if index else self.median
        return (loss - self.best) / (self.median - self.best)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and where 95 % of the bootstrapped ones lie."""

    mean: float
    low: float
    high: float


def regrets(runs: Sequence[Run], budgets: Sequence[float]) -> dict[tuple[str, str, int], Floats]:
    """Regret at each budget, by (table, method, seed), of the runs that had all of these budgets."""
    return {
        (run.table, run.method, run.seed): np.array([run.regret(budget) for budget in budgets])
        for run in runs
        if run.trainings >= max(budgets)
    }


@dataclass(frozen=True, slots=True)
class Duels:
    """Who beat whom: `lost[t, s, m, o]` is the share of the budgets at which method o was better than m, ties half;
    NaN where one of them has not run."""

    tables: Sequence[str]
    methods: Sequence[str]
    lost_TSMM: Floats

    @staticmethod
    def between(found: Mapping[tuple[str, str, int], Floats], tables: Sequence[str], methods: Sequence[str]) -> "Duels":
        """Of these methods on these tables."""
        seeds = sorted({seed for table, method, seed in found if table in tables and method in methods})
        budgets = len(next(iter(found.values())))
        missing = np.full(budgets, np.nan)
        lost = np.empty((len(tables), len(seeds), len(methods), len(methods)))
        for t, table in enumerate(tables):
            for s, seed in enumerate(seeds):
                regret_MB = np.array([found.get((table, method, seed), missing) for method in methods])
                worse_MMB = regret_MB[:, None] - regret_MB[None]
                lost[t, s] = np.where(np.isnan(worse_MMB), np.nan, (np.sign(worse_MMB) + 1) / 2).mean(axis=2)
        return Duels(tables, methods, lost)

    def mean_ranks(self) -> Floats:
        """Over seeds, then over tables; NaN for a method that has not met all others on each table."""
        return np.asarray(_ranks(self.lost_TSMM).mean(axis=0))

    def intervals(self, *, rounds: int = 1000, seed: int = 0) -> dict[str, Interval]:
        """Mean ranks with what they would be with other tables and other seeds, drawn with replacement from these."""
        return self._drawn(self.lost_TSMM, _ranks, self.mean_ranks(), rounds, seed)

    def beaten_by(self, method: str, *, rounds: int = 1000, seed: int = 0) -> dict[str, Interval]:
        """The share of searches and budgets at which it was better than each of the others, ties half: the mean over
        the seeds that both have, then over the tables."""
        beaten_TSM = self.lost_TSMM[..., list(self.methods).index(method)]
        means = np.asarray(_over_seeds(beaten_TSM).mean(axis=0))
        found = self._drawn(beaten_TSM, _over_seeds, means, rounds, seed)
        return {name: one for name, one in found.items() if name != method}

    def _drawn(
        self, of: Floats, statistic: Callable[[Floats], Floats], means: Floats, rounds: int, seed: int
    ) -> dict[str, Interval]:
        """Intervals of a statistic of each method, which is computed of the tables and seeds that were drawn."""
        chance = np.random.default_rng(seed)
        num_tables, num_seeds = of.shape[:2]
        drawn = np.empty((rounds, len(self.methods)))
        for number in range(rounds):
            tables = chance.integers(num_tables, size=(num_tables, 1))
            seeds_TS = chance.integers(num_seeds, size=(num_tables, num_seeds))
            found_TM = statistic(of[tables, seeds_TS])
            drawn[number] = _mean(found_TM, ~np.isnan(found_TM), axis=0)
        low, high = np.nanquantile(drawn, [0.025, 0.975], axis=0)
        return {name: Interval(*map(float, each)) for name, *each in zip(self.methods, means, low, high, strict=True)}


def _ranks(lost_TSMM: Floats) -> Floats:
    """(T, M): each pair over the seeds that both have; a method is as good as itself, which is no half a rank."""
    ranks: Floats = _over_seeds(lost_TSMM).sum(axis=2) + 0.5
    return ranks


def _over_seeds(values_TS: Floats) -> Floats:
    """The mean over the seeds that are there."""
    return _mean(values_TS, ~np.isnan(values_TS), axis=1)


def _mean(values: Floats, there: npt.NDArray[np.bool_], *, axis: int) -> Floats:
    """Of the values that are there; NaN where none is."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(there, values, 0.0).sum(axis=axis) / there.sum(axis=axis))


def mean_regrets(
    found: Mapping[tuple[str, str, int], Floats], tables: Sequence[str], methods: Sequence[str]
) -> dict[tuple[str, str], Floats]:
    """Mean over the seeds of the regret at each budget, by (table, method); those without a run are left out."""
    by_pair: dict[tuple[str, str], list[Floats]] = {}
    for (table, method, _), regret_B in found.items():
        if table in tables and method in methods:
            by_pair.setdefault((table, method), []).append(regret_B)
    return {pair: np.mean(each, axis=0) for pair, each in by_pair.items()}
