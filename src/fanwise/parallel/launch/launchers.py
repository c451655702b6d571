"""The rank of a process that torchrun, SLURM or MPI has started, from its environment variables.

    RANK, WORLD_SIZE, ...                torchrun, or set by hand
    OMPI_COMM_WORLD_RANK, ..._SIZE       Open MPI's mpirun
    PMI_RANK, PMI_SIZE                   mpiexec of MPICH and Intel, also srun with --mpi=pmi2
    SLURM_PROCID in a step of srun       SLURM. A batch script has it without a step, and is alone

The first match counts, because launchers can be nested: a torchrun in each task of srun, an mpirun inside a SLURM job.
MASTER_ADDR and MASTER_PORT, if set, are the address of rank 0. Otherwise it is the first host of SLURM's list, or this
host if all processes are on it, with a port derived from the id of the job. If torchrun itself listens on MASTER_PORT,
another port is derived from it.
"""

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ...pool.current import in_job

_PORT_MAX = 65535
# Below the range of ephemeral ports.
_FIRST_PORT, _NUM_PORTS = 20000, 10000


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """This process among those that a launcher has started together.

    Attributes:
        launcher: "torchrun", "Open MPI", "MPI" or "SLURM". Empty for a single process without a launcher.
        rank, world_size: rank of this process, and number of processes.
        local_rank, local_world_size: the same among the processes of this host. None if unknown.
        host: name of this host.
        address, port: address at which rank 0 may listen. Empty and 0 for a single process.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    host: str
    address: str = ""
    port: int = 0

    @property
    def init_method(self) -> str:
        """URL for `fanwise.rpc.init_rpc` and torch.distributed."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"tcp://{address}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Variables:
    launcher: str
    rank: str
    world_size: tuple[str, ...]
    local_rank: str
    local_world_size: str
    job: tuple[str, ...]


_LAUNCHERS = (
    _Variables(
        "torchrun",
        "RANK",
        ("WORLD_SIZE",),
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ),
    _Variables(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Variables("MPI", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_JOBID", "PMI_ID")),
    _Variables(
        "SLURM",
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "SLURM_LOCALID",
        "",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)


def from_environment() -> LaunchedProcess:
    """Return this process among those that torchrun, srun or mpirun have started; a world of one without them.

    `fanwise.run` calls it. Programs use it for work that depends on the rank, or for a group of `fanwise.rpc`. A job of
    a pool is alone, because it may have inherited these variables from the pool's owner.

    Raises:
        ValueError: a variable of the launcher is missing, is not a number, or contradicts another.

    >>> from_environment().world_size
    1
    """
    return launched_by({} if in_job() else os.environ, socket.gethostname())


def launched_by(environment: Mapping[str, str], host: str) -> LaunchedProcess:
    """Return the process that these variables describe.

    Args:
        host: name of this host, for launchers without a variable for it.

    Raises:
        ValueError: a variable is missing, is not a number, or contradicts another.
    """
    host = environment.get("SLURMD_NODENAME", host)
    for variables in _LAUNCHERS:
        size_name = next((name for name in variables.world_size if name in environment), "")
        if variables.rank not in environment or not size_name:
            continue  # one of the two alone may be of another program
        is_in_step = "SLURM_STEP_ID" in environment or "SLURM_STEP_NUM_TASKS" in environment
        if variables.launcher == "SLURM" and not is_in_step:
            continue
        return _read(variables, size_name, environment, host)
    return LaunchedProcess("", 0, 1, 0, 1, host)


def _read(variables: _Variables, size_name: str, environment: Mapping[str, str], host: str) -> LaunchedProcess:
    rank, size = _number(variables.rank, environment), _number(size_name, environment)
    assert rank is not None and size is not None, "both are set"
    if not 0 <= rank < size:
        raise ValueError(
            f"{variables.rank}={rank} must be from 0 to {size - 1}, because {size_name}={size}.\n"
            f"Set both as {variables.launcher} does, or unset both to run a single process."
        )
    local_rank = _number(variables.local_rank, environment)
    local_size = _number(variables.local_world_size, environment)
    if local_rank is not None and local_size is not None and not 0 <= local_rank < local_size:
        raise ValueError(
            f"{variables.local_rank}={local_rank} must be from 0 to {local_size - 1}, because "
            f"{variables.local_world_size}={local_size}.\nStart the program with {variables.launcher}, which sets both."
        )
    if local_size is not None and local_size > size:
        raise ValueError(
            f"{variables.local_world_size}={local_size} must not exceed {size_name}={size}.\n"
            f"Start the program with {variables.launcher}, which sets both."
        )
    if size == 1:
        return LaunchedProcess(variables.launcher, 0, 1, local_rank, local_size, host)
    address, port = _address_of_rank_0(variables, environment, is_one_host=local_size == size)
    return LaunchedProcess(variables.launcher, rank, size, local_rank, local_size, host, address, port)


def _address_of_rank_0(variables: _Variables, environment: Mapping[str, str], *, is_one_host: bool) -> tuple[str, int]:
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    nodes = nodes or environment.get("SLURM_NODELIST", "")
    address, port = environment.get("MASTER_ADDR", ""), _number("MASTER_PORT", environment)
    if port is not None and not 0 < port <= _PORT_MAX:
        raise ValueError(f"MASTER_PORT={port} must be a port: 1 to {_PORT_MAX}")
    if variables.launcher != "torchrun":
        if not address and nodes and variables.launcher == "SLURM":
            address = first_node(nodes)
        if not address and is_one_host:
            address = "127.0.0.1"
        job = [environment[name] for name in variables.job if name in environment]
        if port is None and job:
            port = _port_of("/".join(job))
    elif port is not None and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = _port_of("/".join([str(port), *(environment.get(name, "") for name in variables.job)]))
    missing = [name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not value]
    if missing:
        raise ValueError(
            f"{variables.rank}={environment[variables.rank]} says that {variables.launcher} has started several "
            f"processes, but they cannot find each other without {' and '.join(missing)}.\n{_remedy(variables)}"
        )
    assert port is not None, "otherwise it is missing"
    return address, port


def _remedy(variables: _Variables) -> str:
    if variables.launcher == "torchrun":
        return (
            "Set MASTER_ADDR and MASTER_PORT to an address of the machine of rank 0, start the program with torchrun, "
            "or unset WORLD_SIZE to train in this process alone."
        )
    return (
        "Set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port of it, in all processes:\n"
        "  mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 ...       (Open MPI)\n"
        "  mpiexec -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 ...   (MPICH, Intel MPI)"
    )


def first_node(nodes: str) -> str:
    """Return the first host of a list in SLURM's notation.

    >>> first_node("gpu[003-005,9],login1"), first_node("a1"), first_node("rack[1,3]-n[02-04]")
    ('gpu003', 'a1', 'rack1-n02')
    """
    depth, end = 0, len(nodes)
    for index, letter in enumerate(nodes):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            end = index
            break
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes[:end])


def _port_of(job: str) -> int:
    """Return a port that is the same in all processes of a job, and probably another for another job."""
    return _FIRST_PORT + int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") % _NUM_PORTS


def _number(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}, which a launcher sets for each process, must be a whole number") from None
