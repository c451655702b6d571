"""Learning rates for larger batches."""

from typing import Any

import pytest

from fanwise.parallel import scale_lr


@pytest.mark.parametrize(
    ("rule", "batch_size", "expected"),
    [("linear", 1024, 0.8), ("linear", 128, 0.1), ("linear", 256, 0.2), ("sqrt", 1024, 0.4), ("sqrt", 64, 0.1)],
)
def test_a_rate_follows_its_rule(rule: Any, batch_size: int, expected: float) -> None:
    assert scale_lr(0.2, batch_size, 256, rule=rule) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0.0, 2, 1), ValueError, "lr must be above 0 and finite, got 0.0"),
        ((float("nan"), 2, 1), ValueError, "got nan"),
        (("0.1", 2, 1), TypeError, "lr must be a number, got '0.1'"),
        ((0.1, 0, 1), ValueError, "batch_size must be at least 1, got 0"),
        ((0.1, 2, 0), ValueError, "base_batch_size must be at least 1, got 0"),
    ],
    ids=str,
)
def test_invalid_numbers_are_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        scale_lr(*arguments)


def test_an_unknown_rule_is_reported_with_the_closest_name() -> None:
    with pytest.raises(ValueError, match="unknown rule='liner'; did you mean 'linear'"):
        scale_lr(0.1, 2, 1, rule="liner")  # type: ignore[arg-type]
