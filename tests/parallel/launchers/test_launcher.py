"""Who this process is, from the variables of a launcher; which device it gets."""

import pytest
import torch

from fanwise.parallel.devices import Devices
from fanwise.parallel.launch.external import Launched, check_arguments, device_of, launched, launched_as
from fanwise.parallel.launch.launchers import launched_by

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
    check_arguments(SECOND_OF_THREE, devices, has_pool=False, restarts=0)
    if not torch.cuda.is_available():
        assert device_of(SECOND_OF_THREE, devices) == torch.device("cpu")


@pytest.mark.parametrize(
    ("devices", "has_pool", "restarts", "text"),
    [
        (2, False, 0, "but devices=2 asks for 2."),
        (["cpu"], False, 0, "but devices=['cpu'] asks for 1."),
        ("auto", True, 0, "pool= asks for jobs of a pool"),
        ("auto", False, 2, "restarts=2 cannot start them again"),
    ],
    ids=["a number", "names", "a pool", "restarts"],
)
def test_an_argument_that_contradicts_the_launcher_is_refused(
    devices: Devices, has_pool: bool, restarts: int, text: str
) -> None:
    with pytest.raises(ValueError) as raised:
        check_arguments(SECOND_OF_THREE, devices, has_pool=has_pool, restarts=restarts)
    assert str(raised.value).startswith("a launcher has set WORLD_SIZE=3, and each of these processes is one device")
    assert text in str(raised.value)
