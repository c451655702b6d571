"""A pool on a Ray cluster: lost hosts, closing, and errors of settings and of the cluster."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import engine_contract as contract
import psutil
import pytest
from engine_contract import EngineCase
from job_functions import began
from with_ray import RayCluster

from fanwise import Pool
from fanwise.base.errors import ClusterError, NotInstalled
from fanwise.links.process_state import stat_of
from fanwise.pool.cluster.engine import ClusterEngine, ClusterJob
from fanwise.pool.contract import Job, Ready
from fanwise.testing import within


def engine_of(pool: Pool) -> ClusterEngine:
    assert isinstance(pool._engine, ClusterEngine)
    return pool._engine


def test_a_lost_host_and_closing_keep_the_contract_of_engines(cluster: RayCluster) -> None:
    with Pool(ray=cluster.address, bundles=[{"CPU": 1}, {"CPU": 1}], seed=3) as pool:
        engine = engine_of(pool)

        def lose(job: Job, ready: Ready) -> None:
            assert isinstance(job, ClusterJob)
            os.kill(next(host.pid for host in engine.hosts if host.key == job.host), signal.SIGKILL)

        def wait(fact: Callable[[], object], text: str) -> None:
            within(60, fact, text)

        contract.a_lost_node_is_an_outcome(EngineCase(engine, wait, lose))
        within(60, lambda: engine.capacity().cpus == 2, "another host has replaced the lost one")
        hosts = [host.pid for host in engine.hosts]
        contract.closing_tells_every_submitter(EngineCase(engine, wait, lose))
    within(10, lambda: not any(stat_of(pid).is_running for pid in hosts), "the hosts are gone")


def waits_in_a_file(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait()


def test_jobs_of_a_host_that_gets_sigterm_are_lost_and_not_stopped(cluster: RayCluster, tmp_path: Path) -> None:
    """Ray sends SIGTERM when the process that calls it has died."""
    with Pool(ray=cluster.address) as pool:
        job = began(pool.submit(waits_in_a_file, str(tmp_path)))
        within(30, lambda: any(tmp_path.iterdir()), "the job works")
        (host,) = engine_of(pool).hosts
        os.kill(host.pid, signal.SIGTERM)
        outcome = job.outcome(within_s=30)
        assert outcome.kind == "lost" and "it was lost with its node" in outcome.text, outcome
        assert pool.submit(divmod, 9, 4).result(within_s=60) == (2, 1)  # on another host in its place


def test_hosts_are_started_again_when_the_process_that_calls_ray_is_killed(cluster: RayCluster) -> None:
    with Pool(ray=cluster.address, seed=3) as pool:
        engine = engine_of(pool)
        (first,) = [host.key for host in engine.hosts]
        children = psutil.Process().children()
        (ray_process,) = [child for child in children if any("with_ray" in word for word in child.cmdline())]
        ray_process.kill()
        within(60, lambda: engine.hosts and engine.hosts[0].key != first, "another host is there")
        assert pool.submit(divmod, 7, 2).result(within_s=60) == (3, 1)


# -- errors ------------------------------------------------------------------------------------------------------------


def message_of(pool: Pool, kind: type[Exception] = ClusterError) -> str:
    with pool, pytest.raises(kind) as caught:
        pool.capacity()
    return str(caught.value)


def test_an_address_without_a_cluster_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        message = message_of(Pool(ray=address))
    assert message.startswith(f"there is no Ray cluster: tried '{address}': [Errno 111] Connection refused\n")
    assert "ray start --head" in message and message.endswith("See: fanwise explain cluster")


def test_a_server_that_is_not_ray_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        began_s = time.monotonic()
        message = message_of(Pool(ray=address, start_within_s=1.0))
    assert message.startswith(f"Ray did not answer within 1 s at '{address}'")
    assert time.monotonic() - began_s < 60


def test_ray_that_is_not_installed_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = message_of(Pool(ray="auto"), NotInstalled)
    assert message.startswith(
        "Pool(ray=...) needs Ray. Install it: pip install 'fanwise[ray]' (No module named 'ray')."
    )


def test_more_resources_than_the_cluster_has_are_an_error(cluster: RayCluster) -> None:
    message = ""

    def is_alone() -> bool:
        """Ray may still list a node that an earlier test has removed."""
        nonlocal message
        message = message_of(Pool(ray=cluster.address, bundles=[{"CPU": 64}, {"CPU": 1}], start_within_s=5.0))
        return "never had enough" in message and " nodes (" not in message

    within(60.0, is_alone, "Ray lists one node")
    assert re.match(
        r"the cluster never had enough within 5 s: 65 CPU asked for by bundles=\[{'CPU': 64.0}, {'CPU': 1.0}\]; "
        r"the cluster has 2 CPU on 1 node \(2 CPU\); free now: (2 CPU|nothing)\.",
        message,
    )


def test_other_versions_on_a_node_are_an_error(cluster: RayCluster, tmp_path: Path) -> None:
    for name, version in (("fanwise", "9.9"), ("torch", "1.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    message = message_of(Pool(ray=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}}))
    assert message.startswith("not all nodes run the versions of this program:\nnode ")
    assert "fanwise 9.9, and " in message and "torch 1.0, and " in message


@pytest.mark.soak
def test_a_cluster_with_a_token_needs_the_token(ray_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of this test alone, and long enough")
    with RayCluster(cpus=1) as cluster:
        with Pool(ray=cluster.address) as pool:
            assert pool.submit(divmod, 7, 2).result(within_s=60) == (3, 1)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        message = message_of(Pool(ray=cluster.address, start_within_s=20))
    assert message.startswith(f"the Ray cluster at '{cluster.address}' requires a token. Set RAY_AUTH_MODE=token")


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
def test_invalid_cluster_settings_are_refused(settings: dict[str, object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        Pool(**settings)  # type: ignore[arg-type]
