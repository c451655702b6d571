"""Training on a simulated accelerator: the bits of the CPU, no operator on two devices, no waiting."""

import json
from pathlib import Path
from typing import Any

import pytest
from program_runs import LoadedInterpreter

PROGRAM = Path(__file__).with_name("stand_in.py")
SHARDS = 4


@pytest.fixture(scope="module")
def report(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Any:  # Any: JSON
    done = torch_loaded.run(PROGRAM, folder=tmp_path_factory.mktemp("far"), forks=True)
    assert done.status == 0, done.said
    return json.loads(done.out)


def test_bits_are_those_of_the_cpu_in_one_process_in_a_process_group_and_after_a_resume(report: Any) -> None:
    assert len(report["equal"]) == 12
    assert [name for name, is_equal in report["equal"].items() if not is_equal] == []


def test_a_step_waits_for_nothing_after_the_check_of_the_first_batch(report: Any) -> None:
    for counts in report["counts"]["plain"][1:]:
        assert sum(count for name, count in counts.items() if name != "to the device") == 0
        assert counts["to the device"] in (2 * SHARDS, 2 * 2)  # features and labels of each shard with samples


def test_shards_of_workers_are_copied_on_a_side_stream_during_the_step_before(report: Any) -> None:
    """A shard that is used without waiting contains only 99, so `test_bits_are_those_of_the_cpu` would fail."""
    counts = report["on_side_streams"]
    assert counts["to the device"] > 0
    assert counts["to the device"] == counts["kept for a stream"] == 2 * counts["waited for by a stream"]


def test_data_on_the_device_stays_there(report: Any) -> None:
    first, *later = report["counts"]["resident"]
    assert "to the device" not in first and later == [{}] * 7


def test_changes_of_buffers_are_read_once_per_shard(report: Any) -> None:
    for counts in report["counts"]["batch norm"][1:]:
        shards = counts.pop("to the device") // 2
        assert {name: count for name, count in counts.items() if count} == {"a copy to the CPU": shards}
