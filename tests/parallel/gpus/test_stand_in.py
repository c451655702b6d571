"""Training on an accelerator that Python stands for: the bits of the CPU, no operator on two devices, who waits."""

import json
from pathlib import Path
from typing import Any

import pytest
from program_runs import LoadedInterpreter

PROGRAM = Path(__file__).with_name("stand_in.py")
SHARDS = 4


@pytest.fixture(scope="module")
def report(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Any:  # Any: JSON
    """Of a program that fails when an operator gets tensors of two devices."""
    done = torch_loaded.run(PROGRAM, folder=tmp_path_factory.mktemp("far"), forks=True)
    assert done.status == 0, done.said
    return json.loads(done.out)


def test_bits_are_those_of_the_cpu_in_one_process_in_a_process_group_and_after_a_resume(report: Any) -> None:
    assert len(report["equal"]) == 12
    assert [name for name, is_equal in report["equal"].items() if not is_equal] == []


def test_a_step_waits_for_nothing_after_the_check_of_the_first_batch(report: Any) -> None:
    for each in report["each"]["plain"][1:]:
        assert sum(count for name, count in each.items() if name != "to the device") == 0
        assert each["to the device"] in (2 * SHARDS, 2 * 2)  # features and labels of each shard with samples


def test_what_workers_have_read_is_copied_beside_the_step_before_and_waited_for_by_the_next_ones_stream(
    report: Any,
) -> None:
    """A shard that is used without waiting holds nothing but 99, which `test_bits_are_those_of_the_cpu` sees."""
    aside = report["aside"]
    assert aside["to the device"] > 0
    assert aside["to the device"] == aside["kept for a stream"] == 2 * aside["waited for by a stream"]


def test_data_on_the_device_stays_there(report: Any) -> None:
    first, *others = report["each"]["resident"]
    assert "to the device" not in first and others == [{}] * 7


def test_buffers_are_looked_at_once_a_shard(report: Any) -> None:
    for each in report["each"]["batch norm"][1:]:
        shards = each["to the device"] // 2
        assert {name: count for name, count in each.items() if count and name != "to the device"} == {
            "a copy to the CPU": shards
        }
