"""Who this process is, from the variables of a launcher; which device it gets."""

from typing import Any

import pytest
import torch

from fanwise.parallel.devices import Devices
from fanwise.parallel.launch.external import Launched, check_fits, device_of, launched, launched_as
from fanwise.pool.launchers import launched_by

COMPLETE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
SECOND_OF_THREE = Launched(rank=1, size=3, local_rank=None, is_joined=False)


def test_nobody_has_started_this_process() -> None:
    assert launched() is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (COMPLETE, SECOND_OF_THREE),
        ({**COMPLETE, "LOCAL_RANK": "0"}, Launched(rank=1, size=3, local_rank=0, is_joined=False)),
        ({**COMPLETE, "WORLD_SIZE": "1", "RANK": "0"}, None),
        ({}, None),
        ({"WORLD_SIZE": "3"}, None),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234", "RANK": "1"}, None),
    ],
    ids=["complete", "with a local rank", "one process", "nothing", "no rank", "no size"],
)
def test_a_launcher_is_known_by_its_variables(variables: dict[str, str], expected: Launched | None) -> None:
    assert launched_as(launched_by(variables, "here")) == expected


def test_processes_of_srun_find_each_other_where_its_list_says() -> None:
    variables = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[7-8]", "MASTER_PORT": "5"}
    place = launched_by(variables, "here")
    assert launched_as(place) == Launched(1, 2, None, is_joined=False, init_method="tcp://n7:5")


@pytest.mark.parametrize("devices", ["auto", "cpu", 3, ["cpu"] * 3], ids=str)
def test_devices_that_fit(devices: Devices) -> None:
    check_fits(SECOND_OF_THREE, devices, processes=None)
    check_fits(SECOND_OF_THREE, devices, processes=3)
    if not torch.cuda.is_available():
        assert device_of(SECOND_OF_THREE, devices) == torch.device("cpu")


@pytest.mark.parametrize(
    ("devices", "processes", "settings", "text"),
    [
        (2, None, {}, "devices=2 asks for 2 of them"),
        (["cpu"], None, {}, "devices=['cpu'] asks for 1 of them"),
        ("auto", 1, {}, "processes=1 asks for another number"),
        ("auto", None, {"has_pool": True}, "pool= asks for jobs of a pool"),
        ("auto", None, {"restarts": 2}, "restarts=2 cannot start them again"),
    ],
    ids=["a number", "names", "processes", "a pool", "restarts"],
)
def test_a_wish_that_contradicts_the_launcher_is_refused(
    devices: Devices, processes: int | None, settings: Any, text: str
) -> None:
    with pytest.raises(ValueError) as raised:
        check_fits(SECOND_OF_THREE, devices, processes, **settings)
    assert str(raised.value).startswith("a launcher has set WORLD_SIZE=3, and each of these processes is one device")
    assert text in str(raised.value)
