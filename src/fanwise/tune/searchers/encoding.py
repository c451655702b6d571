"""Encoding of configurations as rows of numbers, vectorized with NumPy.

A row has one number in [0, 1) per hyperparameter, in the order of `Space.domains`: the `to_unit` of its domain. So
log-scaled domains are log-scaled in the row, and `Space.sample` is uniform in the unit cube. Values of finite domains
are encoded as the middle of their share of [0, 1). NaN marks hyperparameters that do not exist; constants are omitted.
"""

# N: rows, D: hyperparameters, F: features

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..rng import KeyedRandom
from ..space import Domain, Space
from ..space.categories import Categories
from ..space.conditions import parents_first
from ..space.numeric import Multiples
from .searcher import SuggestContext

Rows: TypeAlias = npt.NDArray[np.float64]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_RESOLUTION = 2**40  # real numbers that round to the same 2**-40 of their domain have equal keys
_MAX_LISTED = 2**16  # spaces with at most this many configurations are enumerated
_NUM_DRAWS = 64  # to find an unseen configuration
_INITIAL_DESIGN_SIZE = 256
_BELOW_ONE = math.nextafter(1.0, 0.0)


def numpy_rng(context: SuggestContext) -> np.random.Generator:
    """Return a NumPy generator seeded by `context.random`."""
    return np.random.Generator(np.random.PCG64(context.random.getrandbits(128)))


@final
class Encoder:
    """Converts between configurations of a space and rows.

    >>> from fanwise.tune.space import choice, loguniform, parameter, uniform
    >>> encoder = Encoder(Space({
    ...     "learning_rate": loguniform(0.01, 1),
    ...     "optimizer": choice(["sgd", "adam"]),
    ...     "momentum": parameter(uniform(0, 1), when={"optimizer": "sgd"}),
    ...     "max_epochs": 10,
    ... }))
    >>> encoder.encode({"learning_rate": 0.1, "optimizer": "adam", "max_epochs": 10}).tolist()
    [0.5, 0.75, nan]
    >>> encoder.config(np.array([0.5, 0.75, np.nan]))
    {'learning_rate': 0.1, 'optimizer': 'adam', 'max_epochs': 10}
    >>> encoder.sample(1000, np.random.default_rng(0)).shape
    (1000, 3)
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.names = tuple(space.domains)
        self.domains = tuple(space.domains.values())
        self._columns = [_make_column(domain) for domain in self.domains]
        index = {name: column for column, name in enumerate(self.names)}
        self._conditions: list[tuple[int, list[tuple[int, Ints]]]] = [
            (
                index[name],
                [(index[parent], _ranks(space.domains[parent], values)) for parent, values in when.items()],
            )
            for name in parents_first(space.names, space.conditions)
            if name in index and (when := space.conditions.get(name))
        ]
        self._priors = {index[name]: prior for name, prior in space.priors.items()}
        self._enumerated: tuple[Rows, list[bytes]] | None = None

    @property
    def num_dims(self) -> int:
        """Number of hyperparameters."""
        return len(self.names)

    def encode(self, config: Mapping[str, object]) -> Floats:
        """Return the row of a configuration, (D,). Raises ValueError if a value is not in its domain."""
        pairs = zip(self.names, self.domains, strict=True)
        return np.array([domain.to_unit(config[name]) if name in config else math.nan for name, domain in pairs])

    def rows(self, configs: Sequence[Mapping[str, object]]) -> Rows:
        """Return the rows of configurations, (N, D)."""
        return np.array([self.encode(config) for config in configs]).reshape(len(configs), self.num_dims)

    def config(self, row: Floats) -> dict[str, object]:
        """Return the configuration of a row, with constants, in plain Python values."""
        units = np.clip(np.where(np.isnan(row), 0.5, row), 0.0, _BELOW_ONE)
        return self.space.from_units(units.tolist())

    def snapped(self, units_ND: Rows) -> Rows:
        """Convert points of the unit cube to rows: round to values of the domains, and set NaN where none exists.

        NaN in the input means the middle of the domain.
        """
        rows = np.empty(units_ND.shape)
        units_ND = np.clip(np.where(np.isnan(units_ND), 0.5, units_ND), 0.0, _BELOW_ONE)
        for d, column in enumerate(self._columns):
            rows[:, d] = column.snapped(units_ND[:, d])
        for d, parents in self._conditions:
            for parent, allowed in parents:
                units = rows[:, parent]
                ranks = self._columns[parent].rank(np.nan_to_num(units, nan=0.0))
                rows[~np.isin(ranks, allowed) | np.isnan(units), d] = np.nan
        return rows

    def sample(self, n: int, rng: np.random.Generator, *, prior: bool = False) -> Rows:
        """Sample n rows uniformly, as `Space.sample` does, or with `prior=True` from the priors of the space."""
        units = rng.random((n, self.num_dims))
        if prior:
            for d, distribution in self._priors.items():
                domain = self.domains[d]
                units[:, d] = [domain.to_unit(distribution.value_at(domain, u)) for u in units[:, d].tolist()]
        return self.snapped(units)

    def candidates(self, n: int, rng: np.random.Generator) -> Rows:
        """Sample n rows uniformly; with priors, half of them are sampled from the priors."""
        num_prior = n // 2 if self._priors else 0
        return np.concatenate([self.sample(n - num_prior, rng), self.sample(num_prior, rng, prior=True)])

    def initial_design(self, seed: int) -> Rows:
        """Return 256 rows of a scrambled Sobol sequence; with priors, every second one is sampled from the priors."""
        from scipy.stats import qmc

        rng = np.random.Generator(np.random.PCG64(KeyedRandom(f"{seed}/start").getrandbits(128)))
        # A space of constants has no dimension, but Sobol needs one.
        sequence = qmc.Sobol(max(self.num_dims, 1), scramble=True, rng=rng)
        rows = self.snapped(sequence.random(_INITIAL_DESIGN_SIZE)[:, : self.num_dims])
        if self._priors:
            rows[::2] = self.sample(_INITIAL_DESIGN_SIZE // 2, rng, prior=True)
        return rows

    def ranks(self, rows: Rows) -> Ints:
        """Return the index of each value in its domain, (N, D); multiples of 2**-40 for real numbers, -1 if absent."""
        ranks = np.empty(rows.shape, np.int64)
        filled = np.nan_to_num(rows, nan=0.0)
        for d, column in enumerate(self._columns):
            ranks[:, d] = column.rank(filled[:, d])
        ranks[np.isnan(rows)] = -1
        return ranks

    def middles(self, dim: int) -> Floats:
        """Return the units of all values of a finite domain, (K,)."""
        return self._columns[dim].middle(np.arange(self.domains[dim].num_values or 0))

    def keys(self, rows: Rows) -> list[bytes]:
        """Return a key for each row. Keys are equal if the configurations are, up to 2**-40 of the domain."""
        return [ranks.tobytes() for ranks in self.ranks(rows)]

    def features(self, rows: Rows) -> Floats:
        """Return the features of a model, (N, F), without NaN.

        Ordered hyperparameters are one column; a choice is one-hot encoded. Absent hyperparameters are imputed by the
        middle of the domain, or by zeros. Each conditional hyperparameter adds an indicator column.
        """
        columns: list[Floats] = []
        ranks = self.ranks(rows)
        for d, domain in enumerate(self.domains):
            if domain.ordered:
                columns.append(np.nan_to_num(rows[:, d], nan=0.5))
            else:
                columns += [(ranks[:, d] == value).astype(np.float64) for value in range(domain.num_values or 0)]
        columns += [(~np.isnan(rows[:, d])).astype(np.float64) for d, _ in sorted(self._conditions)]
        return np.stack(columns, axis=1) if columns else np.empty((len(rows), 0))

    def unseen(self, excluded: Container[bytes], rng: np.random.Generator) -> Floats | None:
        """Return a random row whose key is not excluded, or None if there is none."""
        rows = self.sample(_NUM_DRAWS, rng)
        for row, key in zip(rows, self.keys(rows), strict=True):
            if key not in excluded:
                return row  # type: ignore[no-any-return]  # numpy iteration is untyped
        enumerated = self._enumerate()
        if enumerated is None:
            for config in self._iterate():
                row = self.encode(config)
                if self.keys(row[None])[0] not in excluded:
                    return row
            return None
        rows, keys = enumerated
        first = int(rng.integers(len(keys)))
        for index in (*range(first, len(keys)), *range(first)):
            if keys[index] not in excluded:
                return rows[index]  # type: ignore[no-any-return]
        return None

    def _enumerate(self) -> tuple[Rows, list[bytes]] | None:
        if self._enumerated is None:
            sizes = [domain.num_values for domain in self.domains]
            if None in sizes or math.prod(size or 1 for size in sizes) > _MAX_LISTED:
                return None
            ranks_DN = np.indices([size or 1 for size in sizes]).reshape(
                len(sizes), math.prod(size or 1 for size in sizes)
            )
            units = [column.middle(ranks_N) for column, ranks_N in zip(self._columns, ranks_DN, strict=True)]
            rows = self.snapped(np.array(units).reshape(ranks_DN.shape).T)
            by_key = dict(zip(self.keys(rows), rows, strict=True))
            self._enumerated = np.array(list(by_key.values())).reshape(len(by_key), self.num_dims), list(by_key)
        return self._enumerated

    def _iterate(self) -> Iterator[dict[str, object]]:
        if any(domain.num_values is None for domain in self.domains):
            return iter(())  # infinitely many configurations cannot be enumerated
        return self.space.grid({name: domain.num_values or 1 for name, domain in self.space.domains.items()})


class _Column(Protocol):
    """Vectorized domain."""

    def rank(self, units_N: Floats) -> Ints:
        """Return the indices of the values at these units; for real numbers, the nearest multiple of 2**-40."""

    def middle(self, ranks_N: Ints) -> Floats:
        """Return the units of the values with these indices, up to rounding of logarithms."""

    def snapped(self, units_N: Floats) -> Floats:
        """Round units to those of values."""


@final
@dataclass(frozen=True, slots=True)
class _Real:
    def rank(self, units_N: Floats) -> Ints:
        return np.rint(units_N * _RESOLUTION).astype(np.int64)

    def middle(self, ranks_N: Ints) -> Floats:
        return ranks_N / _RESOLUTION

    def snapped(self, units_N: Floats) -> Floats:
        return units_N


@final
@dataclass(frozen=True, slots=True)
class _EqualShares:
    size: int

    def rank(self, units_N: Floats) -> Ints:
        return np.minimum((units_N * self.size).astype(np.int64), self.size - 1)

    def middle(self, ranks_N: Ints) -> Floats:
        return (2 * ranks_N + 1) / (2 * self.size)

    def snapped(self, units_N: Floats) -> Floats:
        return self.middle(self.rank(units_N))


@final
@dataclass(frozen=True, slots=True, eq=False)
class _UnequalShares:
    edges: Floats

    def rank(self, units_N: Floats) -> Ints:
        return np.searchsorted(self.edges, units_N, side="right")

    def middle(self, ranks_N: Ints) -> Floats:
        bounds = np.concatenate(([0.0], self.edges, [1.0]))
        return np.asarray((bounds[ranks_N] + bounds[ranks_N + 1]) / 2)

    def snapped(self, units_N: Floats) -> Floats:
        return self.middle(self.rank(units_N))


@final
@dataclass(frozen=True, slots=True)
class _LogShares:
    """Log-scaled multiples of q: index k has the share of [k - 1/2, k + 1/2] on the log scale."""

    first: int
    size: int

    def rank(self, units_N: Floats) -> Ints:
        lower, width = self._scale()
        multiples = np.floor(np.exp2(lower + units_N * width) + 0.5).astype(np.int64)
        return np.clip(multiples - self.first, 0, self.size - 1)

    def middle(self, ranks_N: Ints) -> Floats:
        lower, width = self._scale()
        return np.clip((np.log2(self.first + ranks_N) - lower) / width, 0.0, _BELOW_ONE)

    def snapped(self, units_N: Floats) -> Floats:
        return self.middle(self.rank(units_N))

    def _scale(self) -> tuple[float, float]:
        lower = math.log2(self.first - 0.5)
        return lower, math.log2(self.first + self.size - 0.5) - lower


def _make_column(domain: Domain) -> _Column:
    size = domain.num_values
    if size is None:
        return _Real()
    if isinstance(domain, Multiples) and domain.is_log:
        return _LogShares(round(domain.lower / domain.q), size)
    if isinstance(domain, Categories) and domain.edges:
        return _UnequalShares(np.array(domain.edges))
    return _EqualShares(size)


def _ranks(domain: Domain, values: Iterable[object]) -> Ints:
    """Return the indices of values of a finite domain."""
    units = np.array([domain.to_unit(value) for value in values])
    return _make_column(domain).rank(units)
