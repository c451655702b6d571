"""Searches on two hosts with a cable between them that delays and loses packets, is slow, drops out, or is cut."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from cables import Cable
from checkpointed_trials import attempts, check_records, count_epochs, records
from networks import PlayedHost, two_hosts, why_not
from searches import quiet_tuner
from with_ray import RayCluster

from fanwise import Pool
from fanwise.testing import within
from fanwise.tune import Tuner

EPOCHS = 20


def tuner_of(pool: Pool, folder: Path, retries: int) -> Tuner:
    space = {"folder": str(folder), "epochs": EPOCHS, "epoch_s": 0.2, "network": "10.91."}
    return quiet_tuner(count_epochs, space, trials=6, n_workers=4, retries=retries, pool=pool)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the experiments of these tests out of the user's folder."""
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def hosts(ray_environment: None) -> Iterator[tuple[PlayedHost, PlayedHost]]:
    if reason := why_not(with_cable=True):
        pytest.skip(reason)
    with two_hosts(Cable(delay_s=0.002, loss=0.01)) as hosts:
        for host in hosts:  # Ray takes the address that leads to the world for its node's
            host.ip("route", "add", "default", "dev", "cable", "src", host.address)
        yield hosts


@pytest.fixture(scope="module")
def cluster_of_two(hosts: tuple[PlayedHost, PlayedHost]) -> Iterator[RayCluster]:
    """Two CPUs on each host."""
    first, second = hosts
    with RayCluster(cpus=2, host=first) as cluster:
        cluster.add(cpus=2, host=second)
        yield cluster


@pytest.fixture
def pool(hosts: tuple[PlayedHost, PlayedHost], cluster_of_two: RayCluster) -> Iterator[Pool]:
    """On the first host."""
    with hosts[0].entered(), Pool(ray=cluster_of_two.address, seed=5) as pool:
        within(60, lambda: pool.capacity().cpus == 4, "both are used")
        yield pool


def drop_out(host: PlayedHost, over: Event) -> None:
    """Cut the cable for a second again and again, which is shorter than the limit of a lost host."""
    while not over.wait(2.0):
        host.cut()
        over.wait(1.0)
        host.mend()


def test_a_slow_cable_that_drops_out_for_a_second_interrupts_no_trial(
    hosts: tuple[PlayedHost, PlayedHost], pool: Pool, tmp_path: Path
) -> None:
    _, second = hosts
    over = Event()
    drops = Thread(target=drop_out, args=(second, over))
    second.tc("qdisc", "add", "dev", "cable", "root", "tbf", "rate", "2mbit", "burst", "16k", "latency", "200ms")
    drops.start()
    try:
        experiment = tuner_of(pool, tmp_path, retries=0).run()
    finally:
        over.set()
        drops.join()
        second.tc("qdisc", "delete", "dev", "cable", "root")
    assert list(experiment.trials["status"]) == ["Completed"] * 6
    assert all(attempts(tmp_path, host.address) for host in hosts)
    assert check_records(tmp_path, trials=6, epochs=EPOCHS) == 0
    assert len(attempts(tmp_path)) == 6


def test_trials_beyond_a_cut_are_repeated_and_both_nodes_are_used_again(
    hosts: tuple[PlayedHost, PlayedHost], pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, second = hosts
    running = tuner_of(pool, tmp_path, retries=2).run(block=False)
    within(180, lambda: min(len(attempts(tmp_path, host.address)) for host in hosts) >= 2, "both hosts are at work")
    within(
        60,
        lambda: any(line == ["acknowledged", "3"] for lines in records(tmp_path).values() for line in lines),
        "they report",
    )
    remote_pids = attempts(tmp_path, second.address)
    second.cut()
    try:
        within(60, lambda: not any(map(psutil.pid_exists, remote_pids)), "the attempts beyond the cut have ended")
        within(30, lambda: pool.capacity().cpus == 2, "the loss is known")
    finally:
        second.mend()
    within(60, lambda: pool.capacity().cpus == 4, "both are used again")
    why = re.compile(
        rf"the host on node \S+ \({second.address}, node \w+\) has ended; .*: nothing came from its host for"
    )
    within(30, lambda: why.search(caplog.text), "the reason is logged")
    experiment = running.wait()
    assert list(experiment.trials["status"]) == ["Completed"] * 6
    check_records(tmp_path, trials=6, epochs=EPOCHS)
