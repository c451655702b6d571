"""What benchmarks/searchers_live.py reads from the marks of trainings, on marks made by hand."""

import math

import pytest
from searchers_live import counted
from trial_overhead import NotReady

# Two workers; the first training begins at 102, so 10 s end at 112.
MARKS = """\
a begin 102 nan
b begin 103 nan
a epoch 104 0.9
b epoch 105 0.5
a epoch 106 0.4
a end 106 nan
c begin 107 nan
b epoch 107 0.45
c epoch 111 0.3
c epoch 113 0.1
c end 114 nan
d begin 113 nan
""".splitlines()


def test_what_happened_in_the_counted_seconds() -> None:
    run = counted(MARKS, started_s=100.0, seconds=10.0, workers=2)
    assert run.startup_s == 2.0
    assert (run.trials, run.epochs) == (3, 5)
    # a: 102 to 106; b: 103 to 107 and, as it was killed, an epoch of 2 s more; c: 107 to the end
    assert run.utilization == pytest.approx((4.0 + 6.0 + 5.0) / 20.0)
    assert run.errors == [0.9, 0.4, 0.3]


def test_before_the_first_epoch_there_is_no_error() -> None:
    run = counted(["a begin 5 nan", "a epoch 9 0.5"], started_s=0.0, seconds=4.0, workers=1)
    assert math.isnan(run.errors[0]) and math.isnan(run.errors[1]) and run.errors[2] == 0.5


def test_a_training_that_was_killed_in_its_first_epoch_kept_its_worker_until_the_end() -> None:
    run = counted(["a begin 5 nan", "b begin 7 nan"], started_s=0.0, seconds=4.0, workers=2)
    assert (run.trials, run.epochs) == (2, 0) and run.utilization == pytest.approx((4.0 + 2.0) / 8.0)


def test_a_killed_training_gives_its_worker_to_the_next() -> None:
    run = counted(
        "a begin 0 nan,a epoch 4 1,b begin 5 nan,b epoch 9 1".split(","), started_s=0.0, seconds=8.0, workers=1
    )
    assert run.utilization == 1.0


def test_a_run_without_a_training_is_refused() -> None:
    with pytest.raises(NotReady, match="no training began"):
        counted([], started_s=0.0, seconds=1.0, workers=1)
