"""Domains: which values one hyperparameter may take, and how a number in [0, 1) becomes one of them.

    u in [0, 1)  --from_unit-->  value  --to_unit-->  u in [0, 1)  --from_unit-->  the same value

    Interval    uniform, loguniform, reverseloguniform
    Multiples   randint, lograndint, quniform, qloguniform, qrandint, qlograndint
    FinRange    finrange, logfinrange
    Choice      choice
    Ordinal     ordinal, logordinal

A domain knows its values and nothing of names, chance or trials. `contains` accepts what a person may write (numbers
of numpy, 3.0 for 3), `plain` turns it into plain Python. The functions below make domains; their names and meanings
are Syne Tune's.

Invariants, held against every domain by `fanwise.testing.domain_contract`: every value is plain Python (int, float,
str, bool, None) and JSON keeps it; no value lies outside its domain, whatever rounding does; a larger u never gives
an earlier value; the same u gives the same bits on every machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypeGuard

from ...base.nearest import did_you_mean
from .bounds import Value
from .categories import Choice, Ordinal, OrdinalKind, is_increasing, named
from .finrange import FinRange
from .interval import Interval
from .multiples import Multiples


class Domain(Protocol):
    """What every domain offers."""

    @property
    def made_by(self) -> str:
        """The function that makes it, such as "loguniform"."""

    @property
    def ordered(self) -> bool:
        """Whether values that are near in [0, 1) are near in meaning; False for `choice` alone."""

    @property
    def num_values(self) -> int | None:
        """How many different values there are; None for the real numbers of an interval."""

    @property
    def num_features(self) -> int:
        """How many numbers encode a value for a model: 1, or one for each category without an order (one-hot)."""

    def from_unit(self, u: float) -> Value:
        """The value at u.

        Raises:
            ValueError: u is not in [0, 1).
        """

    def to_unit(self, value: object) -> float:
        """A number in [0, 1) that becomes this value.

        Raises:
            ValueError: the value is not in the domain.
        """

    def contains(self, value: object) -> bool:
        """Whether this is one of the values, as a person may write it."""

    def plain(self, value: object) -> Value:
        """What `contains` accepts, in plain Python.

        Raises:
            ValueError: the value is not in the domain.
        """

    def settings(self) -> Mapping[str, object]:
        """The arguments for the function that makes it. JSON keeps them."""


class FiniteDomain(Domain, Protocol):
    """A domain whose values can be counted."""

    @property
    def num_values(self) -> int: ...

    def value_at(self, index: int) -> Value:
        """The value with this index, in order, from 0."""

    def index_of(self, value: object) -> int:
        """The index of a value.

        Raises:
            ValueError: the value is not in the domain.
        """


_Known: TypeAlias = Interval | Multiples | FinRange | Choice | Ordinal


def is_domain(thing: object) -> TypeGuard[Domain]:
    """Whether one of the functions of this file has made it."""
    return isinstance(thing, _Known)


def uniform(lower: float, upper: float) -> Interval:
    """Real numbers between lower and upper, all equally likely.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN or infinite.
    """
    return Interval("uniform", lower, upper)


def loguniform(lower: float, upper: float) -> Interval:
    """Positive real numbers, uniform on the logarithmic scale: for learning rates and regularisation.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN, infinite, or not above 0.

    >>> loguniform(0.01, 1).from_unit(0.5)
    0.1
    """
    return Interval("loguniform", lower, upper)


def reverseloguniform(lower: float, upper: float) -> Interval:
    """Real numbers in [0, 1) whose distance to 1 is uniform on the logarithmic scale: for momentum and discounts.

    Raises:
        TypeError: a bound is not a number.
        ValueError: bounds reversed, equal, NaN, below 0, or not below 1.

    >>> round(reverseloguniform(0.9, 0.999).from_unit(0.5), 6)
    0.99
    """
    return Interval("reverseloguniform", lower, upper)


def randint(lower: int, upper: int) -> Multiples:
    """Integers from lower to upper, both included, all equally likely.

    Raises:
        TypeError: a bound is not an int.
        ValueError: bounds reversed or equal, or more than 2**52 integers.

    >>> randint(32, 256).from_unit(0.0), randint(32, 256).from_unit(0.9999)
    (32, 256)
    """
    return Multiples("randint", lower, upper)


def lograndint(lower: int, upper: int) -> Multiples:
    """Integers from lower to upper, both included, uniform on the logarithmic scale: for widths and batch sizes.

    The share of k is that of [k - 1/2, k + 1/2], so the two ends have whole shares.

    Raises:
        TypeError: a bound is not an int.
        ValueError: bounds reversed or equal, lower below 1, or upper above 2**45.
    """
    return Multiples("lograndint", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Multiples:
    """Multiples of q from lower to upper, both included, all equally likely.

    Raises:
        TypeError: an argument is not a number.
        ValueError: a bound that is no multiple of q, bounds reversed or equal, q not above 0.

    >>> [quniform(0.1, 0.4, 0.1).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [0.1, 0.2, 0.3, 0.4]
    """
    return Multiples("quniform", lower, upper, q)


def qloguniform(lower: float, upper: float, q: float) -> Multiples:
    """Multiples of q from lower to upper, both included, uniform on the logarithmic scale.

    Raises:
        TypeError: an argument is not a number.
        ValueError: a bound that is no multiple of q, bounds reversed or equal, lower or q not above 0.
    """
    return Multiples("qloguniform", lower, upper, q)


def qrandint(lower: int, upper: int, q: int = 1) -> Multiples:
    """Integers that are multiples of q, from lower to upper, both included, all equally likely.

    Raises:
        TypeError: an argument is not an int.
        ValueError: a bound that is no multiple of q, bounds reversed or equal, q below 1.

    >>> [qrandint(8, 32, 8).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [8, 16, 24, 32]
    """
    return Multiples("qrandint", lower, upper, q)


def qlograndint(lower: int, upper: int, q: int) -> Multiples:
    """Integers that are multiples of q, from lower to upper, both included, uniform on the logarithmic scale.

    Raises:
        TypeError: an argument is not an int.
        ValueError: a bound that is no multiple of q, bounds reversed or equal, lower or q below 1.
    """
    return Multiples("qlograndint", lower, upper, q)


def finrange(lower: float, upper: float, size: int, cast_int: bool = False) -> FinRange:
    """`size` equally spaced numbers from lower to upper, both included; rounded to ints with cast_int.

    Raises:
        TypeError: a bound is not a number (with cast_int: not an int), or size is not an int.
        ValueError: bounds reversed, equal, NaN or infinite; size below 2; points that could not be told apart.

    >>> [finrange(0.5, 2.0, 4).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [0.5, 1.0, 1.5, 2.0]
    """
    return FinRange("finrange", lower, upper, size, cast_int)


def logfinrange(lower: float, upper: float, size: int, cast_int: bool = False) -> FinRange:
    """`size` numbers from lower to upper, both included, with equal ratios; rounded to ints with cast_int.

    Raises:
        TypeError: a bound is not a number (with cast_int: not an int), or size is not an int.
        ValueError: bounds reversed, equal, NaN, infinite or not above 0; size below 2; points that could not be told
            apart.

    >>> [logfinrange(16, 128, 4, cast_int=True).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [16, 32, 64, 128]
    """
    return FinRange("logfinrange", lower, upper, size, cast_int)


def choice(categories: Sequence[Any]) -> Choice:
    """Return a domain of `categories`, all equally likely and without an order.

    A category is text, a number, a boolean, None, or any other Python object: a list, tuple or dict, a function, a
    class. The objective receives the object; each trial gets its own copy. Everywhere else, in records, tables and
    `Space.sample`, an object has a name: that of a function or class, otherwise its repr; equal names get the position
    in the list ("<lambda>#1"). A configuration, as in `points_to_evaluate`, may have the object or its name.

    Raises:
        TypeError: not a list or tuple.
        ValueError: no category, one of them twice, or NaN.

    >>> choice(["relu", "tanh"]).from_unit(0.5)
    'tanh'
    >>> choice([[64], [64, 64], max]).from_unit(0.5)
    '[64, 64]'
    """
    return Choice(*named("choice", _as_given(categories)))


def ordinal(categories: Sequence[Any], kind: OrdinalKind | None = None) -> Ordinal:
    """Return a domain of `categories` as those of `choice`, which have an order: neighbors in the list are alike.

    Args:
        categories: in their order.
        kind: "equal": all are equally likely. "nn": increasing numbers; each as likely as that it is the nearest
            neighbour of a number drawn by `uniform`. "nn-log": the same with `loguniform`. Left out: "nn" for
            increasing numbers, else "equal".

    Raises:
        TypeError: not a list or tuple.
        ValueError: no category, one of them twice, NaN, an unknown kind, or a kind that the categories do not fit.

    >>> [ordinal(["small", "medium", "large"]).from_unit(u) for u in (0.0, 0.5, 0.9)]
    ['small', 'medium', 'large']
    >>> [ordinal([1, 2, 100]).from_unit(u) for u in (0.0, 0.3, 0.6, 0.9)]
    [1, 2, 100, 100]
    """
    given = _as_given(categories)
    if kind is None:
        kind = "nn" if isinstance(given, tuple) and len(given) > 1 and is_increasing(given) else "equal"
    names, positions, objects = named("ordinal", given)
    return Ordinal(names, kind, positions, objects)


def logordinal(categories: Sequence[float]) -> Ordinal:
    """Increasing positive numbers, as `ordinal` with the kind "nn-log".

    Raises:
        TypeError: not a list or tuple of numbers.
        ValueError: not increasing, or not above 0.

    >>> [logordinal([8, 64, 512]).from_unit(u) for u in (0.1, 0.5, 0.9)]
    [8, 64, 512]
    """
    return Ordinal(_as_given(categories), "nn-log")


def _as_given(categories: Sequence[Any]) -> tuple[Any, ...]:  # what is no sequence is refused by the domain
    for category in categories if isinstance(categories, list | tuple) else ():
        if is_domain(category):
            raise TypeError(
                f"a category cannot be a domain, got {category!r}; what exists beside certain values only is another "
                f"hyperparameter: parameter({category!r}, when=...)"
            )
    return tuple(categories) if isinstance(categories, list | range) else categories  # type: ignore[return-value]


MAKERS: Mapping[str, Callable[..., Domain]] = {
    made.__name__: made
    for made in (
        *(uniform, loguniform, reverseloguniform),
        *(randint, lograndint, quniform, qloguniform, qrandint, qlograndint),
        *(finrange, logfinrange),
        *(choice, ordinal, logordinal),
    )
}


def domain_to_json(domain: Domain) -> dict[str, object]:
    """The JSON form of a domain: the function that makes it and its arguments."""
    return {"domain": domain.made_by, **domain.settings()}


def domain_from_json(body: Mapping[str, object]) -> Domain:
    """The domain that `domain_to_json` wrote.

    Raises:
        ValueError: not written by it.
    """
    settings = dict(body)
    made_by = settings.pop("domain", None)
    if made_by not in MAKERS:
        raise ValueError(f"{made_by!r} is not a kind of domain{did_you_mean(made_by, MAKERS)}")
    objects: Any = settings.pop("objects", ())  # Any: positions
    try:
        domain = MAKERS[str(made_by)](**settings)
        if objects and isinstance(domain, Choice | Ordinal):
            return replace(domain, object_positions=tuple(objects), objects=None)
        return domain
    except TypeError as error:
        raise ValueError(f"{dict(body)!r} is not the JSON form of a domain: {error}") from error
