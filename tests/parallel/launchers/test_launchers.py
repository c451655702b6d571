"""Who this process is among those that a launcher has started, from the variables of each launcher."""

from typing import Any

import pytest

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


def test_nobody_has_started_this_process() -> None:
    alone = launched_by({}, "here")
    assert alone == LaunchedProcess("", 0, 1, 0, 1, "here") and from_environment().world_size == 1


def test_torchrun_tells_all_of_it() -> None:
    assert launched_by(TORCHRUN, "here") == LaunchedProcess("torchrun", 5, 8, 1, 4, "here", "10.0.0.1", 1234)
    assert launched_by(TORCHRUN, "here").init_method == "tcp://10.0.0.1:1234"


def test_where_torchrun_listens_itself_rank_0_has_another_port() -> None:
    served = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "one"}
    ports = [launched_by({**served, "RANK": str(rank)}, "here").port for rank in range(4, 8)]
    assert len(set(ports)) == 1 and 20000 <= ports[0] < 30000
    assert launched_by({**served, "TORCHELASTIC_RESTART_COUNT": "1"}, "here").port != ports[0]


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    assert launched_by({**TORCHRUN, "MASTER_ADDR": "fe80::1"}, "here").init_method == "tcp://[fe80::1]:1234"


def test_processes_of_srun_meet_on_the_first_host_of_their_step() -> None:
    found = launched_by(SLURM, "here")
    assert found == LaunchedProcess("SLURM", 3, 4, 1, None, "gpu04", "gpu03", found.port)
    assert 20000 <= found.port < 30000


def test_all_processes_of_a_step_have_one_port_and_another_step_has_another() -> None:
    ports = [launched_by({**SLURM, "SLURM_PROCID": str(rank)}, "here").port for rank in range(4)]
    assert len(set(ports)) == 1 and ports[0] != launched_by({**SLURM, "SLURM_STEP_ID": "1"}, "here").port


def test_a_batch_script_without_srun_is_alone_although_it_has_a_number() -> None:
    assert launched_by(BATCH, "here").world_size == 1


@pytest.mark.parametrize("variables", [SLURM, OPEN_MPI, HYDRA], ids=["SLURM", "Open MPI", "Hydra"])
def test_a_master_that_is_set_is_where_they_meet(variables: dict[str, str]) -> None:
    found = launched_by({**variables, **MASTER}, "here")
    assert (found.address, found.port) == ("head", 29500)


def test_processes_of_mpirun_on_one_host_need_nothing_more() -> None:
    found = launched_by(OPEN_MPI, "here")
    assert found == LaunchedProcess("Open MPI", 1, 2, 1, 2, "here", "127.0.0.1", found.port) and found.port


def test_pmi_tells_rank_and_size() -> None:
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
def test_the_innermost_launcher_counts(variables: dict[str, str], launcher: str, rank: int) -> None:
    found = launched_by(variables, "here")
    assert (found.launcher, found.rank) == (launcher, rank)


@pytest.mark.parametrize(
    "variables",
    [{"RANK": "1"}, {"WORLD_SIZE": "3"}, {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "1"}],
    ids=["a rank alone", "a size alone", "a world of one"],
)
def test_what_is_no_group_of_processes_is_alone(variables: dict[str, str]) -> None:
    found = launched_by({**variables, "LOCAL_RANK": "0"}, "here")
    assert (found.rank, found.world_size, found.address) == (0, 1, "")


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
        (
            HYDRA,
            {},
            "PMI_RANK=2 says that MPI has started several processes",
        ),
    ],
)
def test_variables_that_make_no_sense_are_refused(
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
