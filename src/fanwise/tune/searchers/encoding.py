"""Encoding of configurations as rows of numbers, vectorized with NumPy.

A row holds `domain.to_unit(value)`, a number in [0, 1) called the value's unit, for each hyperparameter, in the order
of `Space.domains`. `Space.sample` is uniform in the unit cube. The unit of a value in a finite domain is the middle of
its share of [0, 1), or the point on the log scale for log-scaled multiples. NaN marks hyperparameters that do not exist
in a configuration. Constants are omitted.
"""

# N: rows, D: hyperparameters, K: values of a finite domain, F: features of a model

import math
from collections.abc import Container, Mapping, Sequence
from typing import Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..rng import KeyedRandom
from ..space import Domain, Space, space_priors
from ..space.categories import Categories
from ..space.numeric import Quantized
from ..space.parameters import parents_first

Rows: TypeAlias = npt.NDArray[np.float64]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_RESOLUTION = 2**40  # units of real-valued domains are rounded to multiples of 2**-40 in keys
_MAX_ENUMERATED = 2**16  # spaces with at most this many configurations are enumerated
_NUM_DRAWS = 64  # random draws to find an untried configuration
_INITIAL_DESIGN_SIZE = 256
_BELOW_ONE = math.nextafter(1.0, 0.0)


def seeded_rng(seed: int) -> np.random.Generator:
    """Return a PCG64 generator, because a later NumPy may have another default."""
    return np.random.Generator(np.random.PCG64(seed))


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
    >>> encoder.decode(np.array([0.5, 0.75, np.nan]))
    {'learning_rate': 0.1, 'optimizer': 'adam', 'max_epochs': 10}
    >>> encoder.sample(1000, np.random.default_rng(0)).shape
    (1000, 3)
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.names = tuple(space.domains)
        self.domains = tuple(space.domains.values())
        self.num_dims = len(self.names)
        self._shares = [_shares_of(domain) for domain in self.domains]
        self._finite_dims = [(d, shares) for d, shares in enumerate(self._shares) if shares is not None]
        columns = {name: column for column, name in enumerate(self.names)}
        # (column of the hyperparameter, [(column of a parent, indices of the parent's allowed values)])
        self._conditions: list[tuple[int, list[tuple[int, Ints]]]] = []
        for name in parents_first(space.names, space.conditions):
            if name in columns and (when := space.conditions.get(name)):
                parents = []
                for parent, values in when.items():
                    units = np.array([space.domains[parent].to_unit(value) for value in values])
                    parents.append((columns[parent], self._indices_at(columns[parent], units)))
                self._conditions.append((columns[name], parents))
        self.priors = {columns[name]: prior for name, prior in space_priors(space).items()}
        self._all_rows: dict[bytes, Floats] | None = None  # all rows of a small space, by key

    def _indices_at(self, dim: int, units_N: Floats) -> Ints:
        """Return the index of the value at each unit. For real-valued domains, it is round(unit * 2**40)."""
        shares = self._shares[dim]
        return np.rint(units_N * _RESOLUTION).astype(np.int64) if shares is None else shares.indices_at(units_N)

    def encode(self, config: Mapping[str, object]) -> Floats:
        """Return the row of a configuration, (D,). Raises ValueError if a value is not in its domain."""
        pairs = zip(self.names, self.domains, strict=True)
        return np.array([domain.to_unit(config[name]) if name in config else math.nan for name, domain in pairs])

    def encode_all(self, configs: Sequence[Mapping[str, object]]) -> Rows:
        """Return the rows of configurations, (N, D)."""
        return np.array([self.encode(config) for config in configs]).reshape(len(configs), self.num_dims)

    def decode(self, row: Floats) -> dict[str, object]:
        """Return the configuration of a row, with constants, in plain Python values."""
        units = np.clip(np.where(np.isnan(row), 0.5, row), 0.0, _BELOW_ONE)
        return self.space.from_units(units.tolist())

    def snap(self, units_ND: Rows) -> Rows:
        """Convert points of the unit cube to rows by rounding to values of the domains.

        NaN in a point counts as 0.5. Hyperparameters that do not exist become NaN.
        """
        rows = np.clip(np.where(np.isnan(units_ND), 0.5, units_ND), 0.0, _BELOW_ONE)
        for d, shares in self._finite_dims:
            rows[:, d] = shares.units_at(shares.indices_at(rows[:, d]))
        for d, parents in self._conditions:
            for parent, allowed_indices in parents:
                units = rows[:, parent]
                indices = self._indices_at(parent, np.nan_to_num(units, nan=0.0))
                rows[~np.isin(indices, allowed_indices) | np.isnan(units), d] = np.nan
        return rows

    def sample(self, n: int, rng: np.random.Generator, *, use_priors: bool = False) -> Rows:
        """Sample n rows uniformly. If `use_priors`, sample hyperparameters that have a prior from the prior."""
        units = rng.random((n, self.num_dims))
        if use_priors:
            for d, prior in self.priors.items():
                domain = self.domains[d]
                units[:, d] = [domain.to_unit(prior.value_at(domain, u)) for u in units[:, d].tolist()]
        return self.snap(units)

    def candidates(self, n: int, rng: np.random.Generator) -> Rows:
        """Sample n rows uniformly. If the space has priors, sample half of the rows with the priors."""
        num_prior = n // 2 if self.priors else 0
        return np.concatenate([self.sample(n - num_prior, rng), self.sample(num_prior, rng, use_priors=True)])

    def initial_design(self, seed: int) -> Rows:
        """Return 256 rows of a scrambled Sobol sequence. Every second row is sampled from the priors, if any."""
        from scipy.stats import qmc

        rng = seeded_rng(KeyedRandom(f"{seed}/start").getrandbits(128))
        # A space of constants has no dimension, but Sobol needs one.
        sequence = qmc.Sobol(max(self.num_dims, 1), scramble=True, rng=rng)
        rows = self.snap(sequence.random(_INITIAL_DESIGN_SIZE)[:, : self.num_dims])
        if self.priors:
            rows[::2] = self.sample(_INITIAL_DESIGN_SIZE // 2, rng, use_priors=True)
        return rows

    def value_indices(self, rows: Rows) -> Ints:
        """Return the index of each value in its domain (see `_indices_at`), (N, D). -1: it does not exist."""
        exists = ~np.isnan(rows)
        units = np.where(exists, rows, 0.0)
        indices: Ints = np.rint(units * _RESOLUTION).astype(np.int64)
        for d, shares in self._finite_dims:
            indices[:, d] = shares.indices_at(units[:, d])
        indices[~exists] = -1
        return indices

    def value_units(self, dim: int) -> Floats:
        """Return the units of all values of a finite domain, (K,)."""
        shares = self._shares[dim]
        assert shares is not None, "the domain is finite"
        return shares.units_at(np.arange(self.domains[dim].num_values or 0))

    def keys(self, rows: Rows) -> list[bytes]:
        """Return a key for each row. Equal rows have equal keys. Units of real numbers are rounded to 40 bits."""
        return [indices.tobytes() for indices in self.value_indices(rows)]

    def features(self, rows: Rows) -> Floats:
        """Return the features of a model, (N, F), without NaN.

        An ordered hyperparameter is one column, 0.5 if it does not exist. A choice is one-hot encoded, all zeros if it
        does not exist. Each conditional hyperparameter adds an indicator column, 1 if it exists.
        """
        columns: list[Floats] = []
        indices = self.value_indices(rows)
        for d, domain in enumerate(self.domains):
            if domain.ordered:
                columns.append(np.nan_to_num(rows[:, d], nan=0.5))
            else:
                columns += [(indices[:, d] == value).astype(np.float64) for value in range(domain.num_values or 0)]
        columns += [(~np.isnan(rows[:, d])).astype(np.float64) for d, _ in sorted(self._conditions)]
        return np.stack(columns, axis=1) if columns else np.empty((len(rows), 0))

    def feature_groups(self) -> Ints:
        """Return the index of the hyperparameter that each feature belongs to, (F,)."""
        groups = []
        for d, domain in enumerate(self.domains):
            groups += [d] * (1 if domain.ordered else domain.num_values or 0)
        return np.array([*groups, *sorted(d for d, _ in self._conditions)], np.int64)

    def untried_row(self, excluded_keys: Container[bytes], rng: np.random.Generator) -> Floats | None:
        """Return a row whose key is not excluded. Try 64 random rows first, then enumerate a finite space.

        Return None if all rows of a finite space, or all random rows of an infinite one, are excluded.
        """
        rows = self.sample(_NUM_DRAWS, rng)
        for row, key in zip(rows, self.keys(rows), strict=True):
            if key not in excluded_keys:
                return row  # type: ignore[no-any-return]  # numpy iteration is untyped
        sizes = [domain.num_values or 0 for domain in self.domains]
        size = math.prod(sizes)
        if size > _MAX_ENUMERATED:
            for config in self.space.grid(dict(zip(self.names, sizes, strict=True))):
                row = self.encode(config)
                if self.keys(row[None])[0] not in excluded_keys:
                    return row
        elif size:  # size is 0 if a domain is real-valued, so the space cannot be enumerated
            all_rows = self._all_rows = self._all_rows or self._enumerate_rows(sizes)
            keys = list(all_rows)
            start = int(rng.integers(len(keys)))
            return next((all_rows[key] for key in (*keys[start:], *keys[:start]) if key not in excluded_keys), None)
        return None

    def _enumerate_rows(self, sizes: Sequence[int]) -> dict[bytes, Floats]:
        indices_DN = np.indices(sizes).reshape(len(sizes), math.prod(sizes))
        units = [self.value_units(d)[indices_N] for d, indices_N in enumerate(indices_DN)]
        rows = self.snap(np.array(units).reshape(indices_DN.shape).T)
        return dict(zip(self.keys(rows), rows, strict=True))


class _Shares(Protocol):
    """Partition of [0, 1) into one interval (share) per value of a finite domain. Methods are vectorized."""

    def indices_at(self, units_N: Floats) -> Ints:
        """Return the index of the value at each unit."""

    def units_at(self, indices_N: Ints) -> Floats:
        """Return the unit of the value at each index, up to rounding of logarithms."""


@final
class _EqualShares:
    def __init__(self, size: int) -> None:
        self._size = size

    def indices_at(self, units_N: Floats) -> Ints:
        return np.minimum((units_N * self._size).astype(np.int64), self._size - 1)

    def units_at(self, indices_N: Ints) -> Floats:
        return (2 * indices_N + 1) / (2 * self._size)


@final
class _UnequalShares:
    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = np.array(edges)
        self._bounds = np.concatenate(([0.0], edges, [1.0]))

    def indices_at(self, units_N: Floats) -> Ints:
        return np.searchsorted(self._edges, units_N, side="right")

    def units_at(self, indices_N: Ints) -> Floats:
        return np.asarray((self._bounds[indices_N] + self._bounds[indices_N + 1]) / 2)


@final
class _LogShares:
    """Shares of log-scaled multiples of q.

    The share of k * q, for k = first, first + 1, ..., is the interval from log2(k - 1/2) to log2(k + 1/2), rescaled
    such that all shares together are [0, 1).
    """

    def __init__(self, first: int, size: int) -> None:
        self._first, self._size = first, size
        self._lower = math.log2(first - 0.5)
        self._width = math.log2(first + size - 0.5) - self._lower

    def indices_at(self, units_N: Floats) -> Ints:
        multiples = np.floor(np.exp2(self._lower + units_N * self._width) + 0.5).astype(np.int64)
        return np.clip(multiples - self._first, 0, self._size - 1)

    def units_at(self, indices_N: Ints) -> Floats:
        return np.clip((np.log2(self._first + indices_N) - self._lower) / self._width, 0.0, _BELOW_ONE)


def _shares_of(domain: Domain) -> _Shares | None:
    """Return the shares of a domain, or None if it is real-valued."""
    size = domain.num_values
    if size is None:
        return None
    if isinstance(domain, Quantized) and domain.is_log:
        return _LogShares(round(domain.lower / domain.q), size)
    if isinstance(domain, Categories) and domain.edges:
        return _UnequalShares(domain.edges)
    return _EqualShares(size)
