"""The rank, size and address of a process from the environment variables of its launcher; its device."""

from typing import Any

import pytest
import torch

from fanwise.parallel.devices import Devices
from fanwise.parallel.launch.external import Launched, check_arguments, device_of, launched, launched_as
from fanwise.parallel.launch.launchers import LaunchedProcess, first_node, from_environment, launched_by

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "1234",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_JOB_NODELIST": "gpu[01-04]",
    "SLURMD_NODENAME": "gpu04",
}
BATCH = {name: value for name, value in SLURM.items() if "STEP" not in name}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-here-77@1",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
MASTER = {"MASTER_ADDR": "head", "MASTER_PORT": "29500"}


def test_a_process_without_a_launcher() -> None:
    assert launched_by({}, "here") == LaunchedProcess("", 0, 1, 0, 1, "here")
    assert from_environment().world_size == 1 and launched() is None


def test_torchrun_sets_everything() -> None:
    assert launched_by(TORCHRUN, "here") == LaunchedProcess("torchrun", 5, 8, 1, 4, "here", "10.0.0.1", 1234)
    assert launched_by(TORCHRUN, "here").init_method == "tcp://10.0.0.1:1234"


def test_rank_0_uses_another_port_if_torchrun_listens_on_its_own() -> None:
    agent = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "one"}
    ports = [launched_by({**agent, "RANK": str(rank)}, "here").port for rank in range(4, 8)]
    assert len(set(ports)) == 1 and 20000 <= ports[0] < 30000
    assert launched_by({**agent, "TORCHELASTIC_RESTART_COUNT": "1"}, "here").port != ports[0]


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    assert launched_by({**TORCHRUN, "MASTER_ADDR": "fe80::1"}, "here").init_method == "tcp://[fe80::1]:1234"


def test_processes_of_srun_connect_to_the_first_host_of_their_step() -> None:
    process = launched_by(SLURM, "here")
    assert process == LaunchedProcess("SLURM", 3, 4, 1, None, "gpu04", "gpu03", process.port)
    assert 20000 <= process.port < 30000


def test_the_port_is_that_of_the_step() -> None:
    ports = [launched_by({**SLURM, "SLURM_PROCID": str(rank)}, "here").port for rank in range(4)]
    assert len(set(ports)) == 1 and ports[0] != launched_by({**SLURM, "SLURM_STEP_ID": "1"}, "here").port


def test_a_batch_script_without_srun_is_one_process() -> None:
    assert launched_by(BATCH, "here").world_size == 1


@pytest.mark.parametrize("variables", [SLURM, OPEN_MPI, HYDRA], ids=["SLURM", "Open MPI", "Hydra"])
def test_a_master_address_takes_precedence(variables: dict[str, str]) -> None:
    process = launched_by({**variables, **MASTER}, "here")
    assert (process.address, process.port) == ("head", 29500)


def test_processes_of_mpirun_on_one_host_need_no_address() -> None:
    process = launched_by(OPEN_MPI, "here")
    assert process == LaunchedProcess("Open MPI", 1, 2, 1, 2, "here", "127.0.0.1", process.port) and process.port


def test_pmi_sets_rank_and_size() -> None:
    assert launched_by({**HYDRA, **MASTER}, "here") == LaunchedProcess("MPI", 2, 4, 0, 2, "here", "head", 29500)


@pytest.mark.parametrize(
    ("variables", "launcher", "rank"),
    [
        ({**SLURM, **TORCHRUN}, "torchrun", 5),
        ({**SLURM, **OPEN_MPI}, "Open MPI", 1),
        ({**SLURM, **HYDRA, **MASTER}, "MPI", 2),
    ],
    ids=["torchrun in srun", "mpirun in a job of SLURM", "srun --mpi=pmi2, or mpiexec in SLURM"],
)
def test_the_innermost_launcher_is_used(variables: dict[str, str], launcher: str, rank: int) -> None:
    process = launched_by(variables, "here")
    assert (process.launcher, process.rank) == (launcher, rank)


@pytest.mark.parametrize(
    "variables",
    [{"RANK": "1"}, {"WORLD_SIZE": "3"}, {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "1"}],
    ids=["a rank alone", "a size alone", "a world of one"],
)
def test_incomplete_variables_mean_one_process(variables: dict[str, str]) -> None:
    process = launched_by({**variables, "LOCAL_RANK": "0"}, "here")
    assert (process.rank, process.world_size, process.address) == (0, 1, "")


@pytest.mark.parametrize(
    ("variables", "changes", "text"),
    [
        (TORCHRUN, {"MASTER_PORT": None}, "RANK=5 says that torchrun has started several processes"),
        (TORCHRUN, {"MASTER_PORT": None}, "cannot find each other without MASTER_PORT.\nSet MASTER_A"),
        (TORCHRUN, {"MASTER_ADDR": None, "MASTER_PORT": None}, "without MASTER_ADDR and MASTER_PORT."),
        (TORCHRUN, {"MASTER_PORT": "70000"}, "MASTER_PORT=70000 must be a port: 1 to 65535"),
        (TORCHRUN, {"RANK": "8"}, "RANK=8 must be from 0 to 7, because WORLD_SIZE=8"),
        (TORCHRUN, {"WORLD_SIZE": "many"}, "WORLD_SIZE='many', which a launcher sets for each process, must be a who"),
        (TORCHRUN, {"LOCAL_RANK": "4"}, "LOCAL_RANK=4 must be from 0 to 3, because LOCAL_WORLD_SIZE=4"),
        (TORCHRUN, {"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 must not exceed WORLD_SIZE=8"),
        (SLURM, {"SLURM_PROCID": "4"}, "SLURM_PROCID=4 must be from 0 to 3, because SLURM_STEP_NUM_TASKS=4"),
        (OPEN_MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "without MASTER_ADDR."),
        (OPEN_MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": None}, "mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500"),
        (HYDRA, {}, "PMI_RANK=2 says that MPI has started several processes"),
    ],
)
def test_inconsistent_variables_are_refused(
    variables: dict[str, str], changes: dict[str, str | None], text: str
) -> None:
    changed: dict[str, Any] = {**variables, **changes}
    with pytest.raises(ValueError) as raised:
        launched_by({name: value for name, value in changed.items() if value is not None}, "here")
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("a[1-3]", "a1"), ("a[01,3-4]-x[9-11],b", "a01-x9"), ("a-b1,c[2-3]", "a-b1")],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


# -- a run in a launched process --------------------------------------------------------------------------------------

SECOND_OF_THREE = Launched(rank=1, size=3, local_rank=None, is_joined=False)


def test_the_local_rank_is_optional() -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "3", **MASTER}
    assert launched_as(launched_by(variables, "here")) == SECOND_OF_THREE
    with_local_rank = launched_as(launched_by({**variables, "LOCAL_RANK": "0"}, "here"))
    assert with_local_rank == Launched(rank=1, size=3, local_rank=0, is_joined=False)
    assert launched_as(launched_by({**variables, "WORLD_SIZE": "1", "RANK": "0"}, "here")) is None


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
