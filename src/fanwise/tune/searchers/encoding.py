"""Encoding: configurations as rows of numbers for a model, thousands at once.

    configuration  --encode-->  row  --config-->  configuration          one at a time
    sample(n)      ---------->  rows  --features-->  columns of a model  all at once, in numpy

A row has one number in [0, 1) for each hyperparameter, in the order of `Space.domains`: that of its domain's `to_unit`,
so logarithmic domains are logarithmic in it, integers and finite ranges go by rank, and equal volumes of the cube are
equally likely in `Space.sample`. NaN stands where a hyperparameter does not exist beside the others. Constants are left
out. What has finitely many values stands in the middle of its value's share of [0, 1): equal values, equal numbers.

Chance comes in as a generator; `generator(ask)` makes one for a question. Its numbers are numpy's: the same for the
same version of numpy, not for every one.
"""

# N: rows, D: hyperparameters, F: features

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..spaces import Domain, Space
from ..spaces.categories import Ordinal
from ..spaces.conditions import parents_first
from ..spaces.multiples import Multiples
from .base import Ask

Rows: TypeAlias = npt.NDArray[np.float64]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_FINEST = 2**40  # real numbers that agree in so many parts of their domain are the same one to `keys`
_MOST_LISTED = 2**16  # spaces of up to so many combinations are written out where few configurations are left
_TRIES = 64
_LARGEST = math.nextafter(1.0, 0.0)


def generator(ask: Ask) -> np.random.Generator:
    """A generator of numpy's for one question, made from `ask.random`."""
    return np.random.Generator(np.random.PCG64(ask.random.getrandbits(128)))


@final
class Encoder:
    """Rows for the configurations of a space, and back.

    >>> from fanwise.tune.spaces import choice, loguniform, parameter, uniform
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
        self._columns = [_column_of(domain) for domain in self.domains]
        place = {name: column for column, name in enumerate(self.names)}
        self._conditions: list[tuple[int, list[tuple[int, Ints]]]] = [
            (
                place[name],
                [(place[parent], _ranks(space.domains[parent], values)) for parent, values in when.items()],
            )
            for name in parents_first(space.names, space.conditions)
            if name in place and (when := space.conditions.get(name))
        ]
        self._priors = {place[name]: prior for name, prior in space.priors.items()}
        self._listed: tuple[Rows, list[bytes]] | None = None

    @property
    def num_dims(self) -> int:
        """The number of hyperparameters: of the columns of a row."""
        return len(self.names)

    def encode(self, config: Mapping[str, object]) -> Floats:
        """The row of a configuration; what it leaves out does not exist.

        Raises:
            ValueError: a value that is not in its domain.
        """
        pairs = zip(self.names, self.domains, strict=True)
        return np.array([domain.to_unit(config[name]) if name in config else math.nan for name, domain in pairs])

    def rows(self, configs: Sequence[Mapping[str, object]]) -> Rows:
        """The rows of configurations."""
        return np.array([self.encode(config) for config in configs]).reshape(len(configs), self.num_dims)

    def config(self, row: Floats) -> dict[str, object]:
        """The configuration of a row, with the constants, in plain Python values."""
        inside = np.clip(np.where(np.isnan(row), 0.5, row), 0.0, _LARGEST)
        return self.space.from_units(inside.tolist())

    def snapped(self, units_ND: Rows) -> Rows:
        """Rows out of any points of the unit cube: moved to values that there are, NaN where nothing exists.

        A NaN that comes in where something exists becomes the middle of the domain.
        """
        rows = np.empty(units_ND.shape)
        units_ND = np.clip(np.where(np.isnan(units_ND), 0.5, units_ND), 0.0, _LARGEST)
        for d, column in enumerate(self._columns):
            rows[:, d] = column.snapped(units_ND[:, d])
        for d, parents in self._conditions:
            for parent, allowed in parents:
                held = rows[:, parent]
                ranks = self._columns[parent].rank(np.nan_to_num(held, nan=0.0))
                rows[~np.isin(ranks, allowed) | np.isnan(held), d] = np.nan
        return rows

    def sample(self, n: int, chance: np.random.Generator, *, prior: bool = False) -> Rows:
        """n configurations at random, as `Space.sample` draws them; with `prior` as `Space.sample_prior` does."""
        units = chance.random((n, self.num_dims))
        if prior:
            for d, given in self._priors.items():
                domain = self.domains[d]
                units[:, d] = [domain.to_unit(given.value_at(domain, u)) for u in units[:, d].tolist()]
        return self.snapped(units)

    def candidates(self, n: int, chance: np.random.Generator) -> Rows:
        """n configurations among which a model may choose: at random, half of them near the priors if there are any."""
        near = n // 2 if self._priors else 0
        return np.concatenate([self.sample(n - near, chance), self.sample(near, chance, prior=True)])

    def ranks(self, rows: Rows) -> Ints:
        """The index of each value in its domain, (N, D): 2**40ths of a domain of real numbers; -1: does not exist."""
        ranks = np.empty(rows.shape, np.int64)
        filled = np.nan_to_num(rows, nan=0.0)
        for d, column in enumerate(self._columns):
            ranks[:, d] = column.rank(filled[:, d])
        ranks[np.isnan(rows)] = -1
        return ranks

    def middles(self, dim: int) -> Floats:
        """Where each value of a hyperparameter stands, of one whose values can be counted."""
        return self._columns[dim].middle(np.arange(self.domains[dim].num_values or 0))

    def keys(self, rows: Rows) -> list[bytes]:
        """A key for each row; equal keys, equal configurations (real numbers: rounded to 2**-40 of their domain)."""
        return [ranks.tobytes() for ranks in self.ranks(rows)]

    def features(self, rows: Rows) -> Floats:
        """Columns without NaN for a model, (N, F).

        An ordered hyperparameter is its number in the row, a choice one column of 0 or 1 for each category. A
        hyperparameter that does not exist in a row counts as the middle of its domain, or as no category. Each
        conditional hyperparameter has one more column: 1 if it exists, else 0.
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

    def unused(self, used: Container[bytes], chance: np.random.Generator) -> Floats | None:
        """A random configuration whose key is not among the used ones; None: all are used."""
        rows = self.sample(_TRIES, chance)
        for row, key in zip(rows, self.keys(rows), strict=True):
            if key not in used:
                return row  # type: ignore[no-any-return]  # numpy's iteration has no types
        listed = self._list()
        if listed is None:
            for config in self._walk():
                row = self.encode(config)
                if self.keys(row[None])[0] not in used:
                    return row
            return None
        rows, keys = listed
        first = int(chance.integers(len(keys)))
        for place in (*range(first, len(keys)), *range(first)):
            if keys[place] not in used:
                return rows[place]  # type: ignore[no-any-return]
        return None

    def _list(self) -> tuple[Rows, list[bytes]] | None:
        if self._listed is None:
            sizes = [domain.num_values for domain in self.domains]
            if None in sizes or math.prod(size or 1 for size in sizes) > _MOST_LISTED:
                return None
            ranks_DN = np.indices([size or 1 for size in sizes]).reshape(
                len(sizes), math.prod(size or 1 for size in sizes)
            )
            units = [column.middle(ranks_N) for column, ranks_N in zip(self._columns, ranks_DN, strict=True)]
            rows = self.snapped(np.array(units).reshape(ranks_DN.shape).T)
            of_key = dict(zip(self.keys(rows), rows, strict=True))
            self._listed = np.array(list(of_key.values())).reshape(len(of_key), self.num_dims), list(of_key)
        return self._listed

    def _walk(self) -> Iterator[dict[str, object]]:
        if any(domain.num_values is None for domain in self.domains):
            return iter(())  # countless, and all that were drawn are used: as good as never
        return self.space.grid({name: domain.num_values or 1 for name, domain in self.space.domains.items()})


class _Column(Protocol):
    """One hyperparameter, for many numbers at once."""

    def rank(self, units_N: Floats) -> Ints:
        """The indices of the values at these numbers; of real numbers, the nearest multiple of 2**-40."""

    def middle(self, ranks_N: Ints) -> Floats:
        """Where the values with these indices stand: what `to_unit` says, but for the last bits of a logarithm."""

    def snapped(self, units_N: Floats) -> Floats:
        """The numbers, moved to where values stand."""


@final
@dataclass(frozen=True, slots=True)
class _Real:
    def rank(self, units_N: Floats) -> Ints:
        return np.rint(units_N * _FINEST).astype(np.int64)

    def middle(self, ranks_N: Ints) -> Floats:
        return ranks_N / _FINEST

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
    edges: Floats  # between the shares

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
    """Multiples of q: the k-th one has the share of k - 1/2 to k + 1/2 on the logarithmic scale."""

    first: int
    size: int

    def rank(self, units_N: Floats) -> Ints:
        lower, width = self._scale()
        multiples = np.floor(np.exp2(lower + units_N * width) + 0.5).astype(np.int64)
        return np.clip(multiples - self.first, 0, self.size - 1)

    def middle(self, ranks_N: Ints) -> Floats:
        lower, width = self._scale()
        return np.clip((np.log2(self.first + ranks_N) - lower) / width, 0.0, _LARGEST)

    def snapped(self, units_N: Floats) -> Floats:
        return self.middle(self.rank(units_N))

    def _scale(self) -> tuple[float, float]:
        lower = math.log2(self.first - 0.5)
        return lower, math.log2(self.first + self.size - 0.5) - lower


def _column_of(domain: Domain) -> _Column:
    size = domain.num_values
    if size is None:
        return _Real()
    if isinstance(domain, Multiples) and domain.is_log:
        return _LogShares(round(domain.lower / domain.q), size)
    if isinstance(domain, Ordinal) and domain.edges:
        return _UnequalShares(np.array(domain.edges))
    return _EqualShares(size)


def _ranks(domain: Domain, values: Iterable[object]) -> Ints:
    """The indices of values of a finite domain."""
    units = np.array([domain.to_unit(value) for value in values])
    return _column_of(domain).rank(units)
