"""Base classes of domains. A domain is the set of values of a hyperparameter, with a mapping from [0, 1) to the set."""

import abc
from collections.abc import Mapping

from ..values import Value
from .scales import check_unit


class Domain(abc.ABC):
    """Base class of all domains.

    - Values are of type int, float, str, bool or None, which JSON preserves.
    - `from_unit` is monotone, never leaves the domain, and is bit-identical on every machine.
    - `from_unit(to_unit(value)) == value`, up to rounding in intervals of real numbers.
    - `contains` accepts NumPy scalars and 3.0 for 3. `normalize` converts both to the values above.

    Attributes:
        domain_type: name of the function that created the domain, such as "loguniform".
    """

    __slots__ = ()
    domain_type: str

    def __repr__(self) -> str:
        return f"{self.domain_type}({', '.join(map(repr, self.settings().values()))})"

    @property
    def ordered(self) -> bool:
        """False only for `choice`, whose categories have no order."""
        return True

    @property
    @abc.abstractmethod
    def num_values(self) -> int | None:
        """Number of values, or None for intervals of real numbers."""

    @abc.abstractmethod
    def from_unit(self, u: float) -> Value:
        """Return the value that u is mapped to. Raises ValueError if u is not in [0, 1)."""

    @abc.abstractmethod
    def to_unit(self, value: object) -> float:
        """Return a number that `from_unit` maps to the value. Raises ValueError if it is not in the domain."""

    @abc.abstractmethod
    def contains(self, value: object) -> bool:
        """Return True if `normalize` would accept the value."""

    @abc.abstractmethod
    def normalize(self, value: object) -> Value:
        """Convert a value to plain Python. Raises ValueError if it is not in the domain."""

    @abc.abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Return the arguments of the function that created the domain, as JSON."""


class FiniteDomain(Domain):
    """Base class of domains with finitely many values. By default, all values have equal shares of [0, 1)."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def num_values(self) -> int: ...

    @abc.abstractmethod
    def value_at(self, index: int) -> Value:
        """Return the value at an index, from 0."""

    @abc.abstractmethod
    def find(self, value: object) -> int | None:
        """Return the index of a value, or None if it is not in the domain."""

    def index_of(self, value: object) -> int:
        """Return the index of a value. Raises ValueError if it is not in the domain."""
        index = self.find(value)
        if index is None:
            raise ValueError(f"{value!r} is not in {self!r}")
        return index

    def contains(self, value: object) -> bool:
        return self.find(value) is not None

    def normalize(self, value: object) -> Value:
        return self.value_at(self.index_of(value))

    def from_unit(self, u: float) -> Value:
        # Multiplying a float by 2**64 is exact, so there is no rounding error at the edges of the shares.
        return self.value_at(int(check_unit(u) * 18446744073709551616.0) * self.num_values >> 64)

    def to_unit(self, value: object) -> float:
        return (2 * self.index_of(value) + 1) / (2 * self.num_values)


def set_fields(domain: Domain, **values: object) -> None:
    """Set fields of a frozen dataclass, from its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(domain, name, value)
