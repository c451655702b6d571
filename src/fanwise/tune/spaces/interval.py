"""Intervals: all real numbers between two bounds (uniform, loguniform, reverseloguniform). Quiet."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

from ..values import is_number
from .bounds import check_order, check_positive, check_unit, finite, not_inside
from .scales import LinearScale, LogScale, ReverseLogScale, Scale

IntervalMaker = Literal["uniform", "loguniform", "reverseloguniform"]


@final
@dataclass(frozen=True, slots=True, repr=False)
class Interval:
    """Real numbers between lower and upper. Made by `uniform`, `loguniform`, `reverseloguniform`."""

    made_by: IntervalMaker
    lower: float
    upper: float
    _scale: Scale = field(init=False, repr=False, compare=False)
    ordered: ClassVar[bool] = True
    num_values: ClassVar[None] = None
    num_features: ClassVar[int] = 1

    def __post_init__(self) -> None:
        lower, upper = finite(f"{self.made_by}: lower", self.lower), finite(f"{self.made_by}: upper", self.upper)
        check_order(self.made_by, lower, upper)
        object.__setattr__(self, "lower", lower)  # frozen for everybody else
        object.__setattr__(self, "upper", upper)
        object.__setattr__(self, "_scale", self._make_scale(lower, upper))

    def _make_scale(self, lower: float, upper: float) -> Scale:
        if self.made_by == "uniform":
            if not math.isfinite(upper - lower):
                raise ValueError(f"uniform: upper - lower must be finite, got {self!r}")
            return LinearScale(lower, upper)
        if self.made_by == "loguniform":
            check_positive(self.made_by, lower)
            return LogScale(lower, upper)
        if not 0.0 <= lower or not 1.0 - lower > 1.0 - upper > 0.0:
            raise ValueError(
                f"reverseloguniform: the bounds must lie in [0, 1) with different distances to 1, got {self!r}; "
                f"for values near 0 use loguniform"
            )
        return ReverseLogScale(lower, upper)

    def __repr__(self) -> str:
        return f"{self.made_by}({self.lower!r}, {self.upper!r})"

    def settings(self) -> dict[str, object]:
        return {"lower": self.lower, "upper": self.upper}

    def from_unit(self, u: float) -> float:
        return self._scale.at(check_unit(u))

    def to_unit(self, value: object) -> float:
        if not self.contains(value):
            raise not_inside(value, self)
        return self._scale.part(self.plain(value))

    def contains(self, value: object) -> bool:
        return is_number(value) and self.lower <= value <= self.upper

    def plain(self, value: object) -> float:
        return float(value)  # type: ignore[arg-type]  # called on what contains() accepts
