"""What a pool on a Ray cluster does when it has the cluster to itself: its beginning, its end, and what is wrong."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import engine_contract as contract
import pytest
from engine_contract import EngineCase
from job_functions import began
from with_ray import RayCluster

from fanwise import Pool
from fanwise.base.errors import ClusterError, NotInstalled
from fanwise.pool.cluster.engine import ClusterEngine, ClusterJob
from fanwise.pool.contract import Job, Ready
from fanwise.testing import within


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def engine_of(pool: Pool) -> ClusterEngine:
    assert isinstance(pool._engine, ClusterEngine)
    return pool._engine


PROGRAM = """
import sys, threading
from fanwise import Pool

def waits():
    threading.Event().wait()

if __name__ == "__main__":
    pool = Pool(ray=sys.argv[1])
    jobs = [pool.submit(waits) for _ in range(2)]
    assert all(job.wait_began(60) for job in jobs)
    print(*(host.pid for host in pool._engine.hosts), *(job.pid for job in jobs), flush=True)
    sys.stdin.read()
"""


def test_nothing_is_left_on_a_node_when_the_program_is_killed(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 3 and all(map(alive, pids))
        program.kill()
    within(30, lambda: not any(map(alive, pids)), "the host and both jobs are gone")


def test_a_lost_host_and_the_end_of_a_pool_are_as_the_contract_says(cluster: RayCluster) -> None:
    with Pool(ray=cluster.address, bundles=[{"CPU": 1}, {"CPU": 1}], seed=3) as pool:
        engine = engine_of(pool)

        def lose(job: Job, ready: Ready) -> None:
            assert isinstance(job, ClusterJob)
            os.kill(next(host.pid for host in engine.hosts if host.key == job.host), signal.SIGKILL)

        def wait(fact: Callable[[], object], text: str) -> None:
            within(60, fact, text)

        contract.a_lost_node_is_an_outcome(EngineCase(engine, wait, lose))
        within(60, lambda: engine.capacity().cpus == 2, "another host has come for the one that was lost")
        hosts = [host.pid for host in engine.hosts]
        contract.closing_tells_every_submitter(EngineCase(engine, wait, lose))
    within(10, lambda: not any(map(alive, hosts)), "the hosts are gone")


def waits_in_a_file(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait()


def test_what_ran_on_a_host_that_is_told_to_end_is_lost_and_was_not_stopped(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Ray does so when the process that speaks with it has died: nobody has stopped the trials that ran there."""
    with Pool(ray=cluster.address) as pool:
        job = began(pool.submit(waits_in_a_file, str(tmp_path)))
        within(30, lambda: any(tmp_path.iterdir()), "the job works")
        (host,) = engine_of(pool).hosts
        os.kill(host.pid, signal.SIGTERM)
        outcome = job.outcome(within_s=30)
        assert outcome.kind == "lost" and "it was lost with its node" in outcome.text, outcome
        assert pool.submit(divmod, 9, 4).result(within_s=60) == (2, 1)  # on another host in its place


def test_hosts_come_back_when_the_process_that_speaks_with_ray_is_killed(cluster: RayCluster) -> None:
    with Pool(ray=cluster.address, seed=3) as pool:
        engine = engine_of(pool)
        (first,) = [host.key for host in engine.hosts]
        (speaks,) = [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdecimal() and f"PPid:\t{os.getpid()}\n" in status_of(path) and "with_ray" in command_of(path)
        ]
        os.kill(speaks, signal.SIGKILL)
        within(60, lambda: engine.hosts and engine.hosts[0].key != first, "another host is there")
        assert pool.submit(divmod, 7, 2).result(within_s=60) == (3, 1)


def status_of(process: Path) -> str:
    try:
        return (process / "status").read_text()
    except OSError:
        return ""


def command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


# -- what is wrong -----------------------------------------------------------------------------------------------------


def message_of(pool: Pool, kind: type[Exception] = ClusterError) -> str:
    with pool, pytest.raises(kind) as caught:
        pool.capacity()
    return str(caught.value)


def test_no_cluster_at_the_address_is_told_with_what_was_tried() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        told = message_of(Pool(ray=address))
    assert told.startswith(f"there is no Ray cluster: tried '{address}': [Errno 111] Connection refused\n")
    assert "ray start --head" in told and told.endswith("See: fanwise explain cluster")


def test_one_who_listens_and_is_no_ray_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        began_s = time.monotonic()
        told = message_of(Pool(ray=address, start_within_s=1.0))
    assert told.startswith(f"Ray did not answer within 1 s at '{address}'")
    assert time.monotonic() - began_s < 60


def test_ray_that_is_not_installed_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = message_of(Pool(ray="auto"), NotInstalled)
    assert told.startswith("Pool(ray=...) needs Ray. Install it: pip install 'fanwise[ray]' (No module named 'ray').")


def test_more_than_the_cluster_has_is_told_with_what_there_is(cluster: RayCluster) -> None:
    told = ""

    def is_alone() -> bool:
        """Ray may still list a node that an earlier test has removed."""
        nonlocal told
        told = message_of(Pool(ray=cluster.address, bundles=[{"CPU": 64}, {"CPU": 1}], start_within_s=2.0))
        return " nodes (" not in told

    within(60.0, is_alone, "Ray lists one node")
    assert re.match(
        r"the cluster never had enough within 2 s: 65 CPU asked for by bundles=\[{'CPU': 64.0}, {'CPU': 1.0}\]; "
        r"the cluster has 2 CPU on 1 node \(2 CPU\); free now: (2 CPU|nothing)\.",
        told,
    )


def test_other_versions_on_a_node_are_told_before_anything_starts(cluster: RayCluster, tmp_path: Path) -> None:
    for name, version in (("fanwise", "9.9"), ("torch", "1.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    told = message_of(Pool(ray=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}}))
    assert told.startswith("not all nodes run the versions of this program:\nnode ")
    assert "fanwise 9.9, and " in told and "torch 1.0, and " in told


@pytest.mark.soak
def test_a_cluster_with_a_token_is_told_to_those_without_and_used_by_those_with(
    ray_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of this test alone, and long enough")
    with RayCluster(cpus=1) as cluster:
        with Pool(ray=cluster.address) as pool:
            assert pool.submit(divmod, 7, 2).result(within_s=60) == (3, 1)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        told = message_of(Pool(ray=cluster.address, start_within_s=20))
    assert told.startswith(f"the Ray cluster at '{cluster.address}' requires a token. Set RAY_AUTH_MODE=token")


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"ray": "ray://10.0.0.1:10001"}, ValueError, "an address of Ray Client"),
        ({"ray": "somewhere"}, ValueError, "ray must be 'auto' or host:port"),
        ({"ray": 6379}, TypeError, "ray must be 'auto' or the address"),
        ({"bundles": [{"CPU": 1}]}, ValueError, r"bundles is for a pool on a cluster: say Pool\(ray='auto', bundles="),
        ({"ray": "auto", "bundles": {"CPU": 1}}, TypeError, "bundles must be a list of dicts"),
        ({"ray": "auto", "bundles": [{"GPU": 1}]}, ValueError, "needs a whole number of CPUs, at least 1"),
        ({"ray": "auto", "bundles": [{"CPU": 1, "GPU": 0.5}]}, ValueError, "a bundle has whole GPUs"),
        ({"ray": "auto", "cpus": 2}, ValueError, "cpus and gpus are of this machine"),
        ({"ray": "auto", "runtime_env": {"working_dir": Path()}}, TypeError, "runtime_env must consist of strings"),
        ({"ray": "auto", "start_within_s": 0}, ValueError, "a number of seconds above 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_its_name(
    settings: dict[str, object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Pool(**settings)  # type: ignore[arg-type]
