"""The values of `values_that_travel` between real processes: into a job and back, into a run, around it and back."""

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fanwise
from fanwise.parallel import Run
from fanwise.pool import Pool

from ..values_that_travel import MODULES, TENSORS, difference, make


class Refused(ValueError):
    """With a constructor, a slot and an attribute of its own, and one that cannot be pickled."""

    __slots__ = ("limit",)

    def __init__(self, *, limit: int, reason: str) -> None:
        super().__init__(f"{reason}, at most {limit}")
        self.limit, self.reason, self.lock = limit, reason, threading.Lock()


def fails(*_: object) -> None:
    try:
        raise ExceptionGroup("both", [Refused(limit=1, reason="one"), KeyError("two")])
    except ExceptionGroup as group:
        error = Refused(limit=3, reason="too many")
        error.add_note("a note")
        raise error from group


ALL = {**TENSORS, **MODULES}


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of types that are experimental
        yield


def differences(received: dict[str, Any]) -> dict[str, str]:
    found = {name: difference(value, received[name]) for name, value in make(ALL).items()}
    return {name: what for name, what in found.items() if what}


def test_values_go_into_a_job_and_come_back(pool: Pool) -> None:
    assert differences(pool.submit(lambda values: values, make(ALL)).result(60)) == {}


def test_values_go_into_a_run_around_it_and_come_back(pool: Pool) -> None:
    values = make(ALL)

    def train(run: Run) -> list[dict[str, Any]]:
        return [values, *run.gather(values)]

    received = fanwise.run(train, devices=["cpu"] * 2, pool=pool)
    assert [differences(each) for each in received] == [{}] * 3


@pytest.mark.parametrize("way", ["a job", "a run on one device", "a run on two"])
def test_an_error_arrives_in_its_own_type_with_its_attributes(pool: Pool, way: str) -> None:
    def run(devices: int) -> None:
        fanwise.run(fails, devices=["cpu"] * devices, pool=pool if devices > 1 else None)

    ways: dict[str, Callable[[], object]] = {
        "a job": lambda: pool.submit(fails).result(60),
        "a run on one device": lambda: run(1),
        "a run on two": lambda: run(2),
    }
    with pytest.raises(ValueError, match="too many, at most 3") as caught:
        ways[way]()
    error: Any = caught.value
    assert (type(error), error.limit, error.reason, error.__notes__[0]) == (Refused, 3, "too many", "a note")
    group: Any = error.__cause__
    assert (type(group), group.message) == (ExceptionGroup, "both")
    one, two = group.exceptions[:2]
    assert (type(one), one.limit, repr(two)) == (Refused, 1, "KeyError('two')")
