"""What the collectives move between devices is what the table in `reducing` says; nothing mixes devices or waits."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fanwise.testing.programs import LoadedInterpreter

PROGRAM = Path(__file__).with_name("fake_accelerator.py")
SIZE = 840
COUNTS = (1, 2, 3, 4, 7, 8)
every_count = pytest.mark.parametrize("count", COUNTS)


@pytest.fixture(scope="module")
def report(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Any:  # Any: JSON
    """Of a program that fails when an operation gets tensors of two devices, or bits differ from those on CPUs."""
    done = torch_loaded.run(PROGRAM, folder=tmp_path_factory.mktemp("fakes"))
    assert done.status == 0, done.said
    return json.loads(done.out)


@every_count
@pytest.mark.parametrize("how", ["owner", "ring"])
def test_owner_and_ring_move_the_least_there_is_and_the_same_for_all(report: Any, how: str, count: int) -> None:
    each = 2 * (count - 1) * SIZE // count
    assert report["found"][f"{how} {count}"] == {"sent": [each] * count, "received": [each] * count}


@every_count
def test_the_root_moves_all_of_every_other_device(report: Any, count: int) -> None:
    each = [(count - 1) * SIZE] + [SIZE] * (count - 1)
    assert report["found"][f"root {count}"] == {"sent": each, "received": each}


@every_count
def test_no_device_of_the_tree_moves_more_than_one_array_a_level(report: Any, count: int) -> None:
    found = report["found"][f"tree {count}"]
    most = math.ceil(math.log2(count)) * SIZE
    for moved in (found["sent"], found["received"]):
        assert moved[0] == most and max(moved) == most and sum(moved) == 2 * (count - 1) * SIZE


@every_count
@pytest.mark.parametrize("half", ["reduce_scatter", "all_gather"])
def test_each_half_of_the_allreduce_by_owner_moves_half(report: Any, half: str, count: int) -> None:
    each = (count - 1) * SIZE // count
    assert report["found"][f"{half} {count}"] == {"sent": [each] * count, "received": [each] * count}


@every_count
def test_a_broadcast_is_sent_once_to_each(report: Any, count: int) -> None:
    found = report["found"][f"broadcast {count}"]
    assert found["sent"] == [0] * (count - 1) + [(count - 1) * SIZE]
    assert found["received"] == [SIZE] * (count - 1) + [0]


def test_copies_between_accelerators_do_not_hold_up_the_host(report: Any) -> None:
    assert report["num_copies"] > 100 and report["num_waits"] == 0
