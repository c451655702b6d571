"""Run by a test: runs of processes on played hosts, one after another, as a launcher starts them.

    HOSTS_SCENARIOS, a list of [name, processes of each host, what happens]  -->  HOSTS_OUT/<name>: a dict by rank
    one process alone                                                        -->  HOSTS_OUT/alone

What happens is a dict: of `training`, and `kills`: which ranks are killed, at which call of what. A host is its name,
as SLURM tells it: links between processes of two names are encrypted, those of one are Unix sockets. With `cut_at` in
the dict there are two network namespaces with a cable between them, which the first process cuts; with `cable` it
delays, or loses packets. All that they use is loaded
before the first is forked.
"""

import contextlib
import importlib
import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from fanwise.testing.cables import Cable
from fanwise.testing.networks import PlayedHost, two_hosts

OUT = Path(os.environ["HOSTS_OUT"])


def main() -> None:
    torch.set_num_threads(1)
    importlib.import_module("fanwise.parallel.running")
    secret = importlib.import_module("fanwise.links.shared_secret").new_secret()
    importlib.import_module("fanwise.parallel.hosts.team")
    importlib.import_module("fanwise.rpc.rendezvous.entrance_tls")
    sys.path.insert(0, str(Path(__file__).parent))
    programs = importlib.import_module("programs_on_hosts")
    os.waitpid(start(programs, "alone", {}, {"training": os.environ["HOSTS_ALONE"]}), 0)
    for number, (name, sizes, what) in enumerate(json.loads(os.environ["HOSTS_SCENARIOS"])):
        cable = Cable(**what["cable"]) if "cable" in what else None
        with two_hosts(cable) if cable or "cut_at" in what else contextlib.nullcontext() as hosts:
            play(programs, secret, number, name, sizes, what, hosts)


def as_torchrun(rank: int, size: int, local: int, job: str) -> dict[str, str]:
    """It listens at the port itself: another one is made from it and the name of the job."""
    told = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local), "MASTER_ADDR": "127.0.0.1"}
    return told | {"MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": job}


def as_slurm(rank: int, size: int, local: int, job: str) -> dict[str, str]:
    told = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": str(local)}
    return told | {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0"}


def as_open_mpi(rank: int, size: int, local: int, job: str) -> dict[str, str]:
    told = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "PMIX_NAMESPACE": job}
    return told | {"OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size)}


VARIABLES = {"torchrun": as_torchrun, "SLURM": as_slurm, "Open MPI": as_open_mpi}


def play(
    programs: Any,  # Any: a module
    secret: str,
    number: int,
    name: str,
    sizes: list[int],
    what: dict[str, Any],  # Any: plain values
    hosts: tuple[PlayedHost, PlayedHost] | None,
) -> None:
    size = sum(sizes)
    places = [(host, local) for host, its in enumerate(sizes) for local in range(its)]
    pids = []
    for rank, (host, local) in enumerate(places):
        told = VARIABLES[what.get("launcher", "torchrun")](rank, size, local, f"{OUT}/{number}")
        told |= {"SLURMD_NODENAME": f"h{host}"} | ({} if "open" in what else {"FANWISE_SECRET": secret})
        if hosts is not None:
            told |= {"MASTER_ADDR": hosts[0].address, "HOSTS_CABLE": hosts[1].name}
        pids.append(start(programs, f"{name}.{rank}", told, what, None if hosts is None else hosts[host]))
    stopped = [int(rank) for kill in what.get("kills", []) if "signal" in kill for rank in kill["ranks"]]
    for rank in sorted(range(size), key=stopped.__contains__):
        if rank in stopped:
            os.kill(pids[rank], signal.SIGCONT)
        os.waitpid(pids[rank], 0)


def start(
    programs: Any,  # Any: a module
    name: str,
    told: dict[str, str],
    what: dict[str, Any],  # Any: plain values
    host: PlayedHost | None = None,
) -> int:
    pid = os.fork()
    if pid == 0:
        if host is not None:
            host.enter()
        signal.alarm(100)  # a test that fails leaves nobody
        os.environ.update(told)
        try:
            said = programs.do(what)
        except BaseException as error:
            said = type(error).__name__, str(error), getattr(error, "__notes__", [])
        (OUT / name).write_bytes(pickle.dumps(said))
        os._exit(0)
    return pid


if __name__ == "__main__":
    main()
