"""A search on a cluster of two hosts with a cable between them: it delays and loses packets, is slow, drops out for
moments, and is cut for longer."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from cables import Cable
from networks import PlayedHost, two_hosts, why_not
from searches import quiet_tuner
from with_ray import RayCluster

from fanwise import Pool
from fanwise.testing import within
from fanwise.tune import load_checkpoint, report, trial_id

EPOCHS = 20


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


def train(folder: str) -> None:
    """Counts on from its checkpoint; notes from where, in which process on which host, and what was acknowledged."""
    place = load_checkpoint()
    reached = 0 if place is None else int((place / "epoch").read_text())
    descriptor = os.open(f"{folder}/{trial_id()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    addresses = {each.address for some in psutil.net_if_addrs().values() for each in some}
    where = next(each for each in addresses if each.startswith("10.91."))
    os.write(descriptor, f"from {reached} in {os.getpid()} on {where}\n".encode())
    for epoch in range(reached + 1, EPOCHS + 1):
        Event().wait(0.2)
        report(loss=1.0 / epoch, epoch=epoch, checkpoint=lambda at, epoch=epoch: (at / "epoch").write_text(str(epoch)))
        os.write(descriptor, b"acknowledged %d\n" % epoch)


def notes(folder: Path) -> dict[int, list[list[str]]]:
    """The lines of each trial, in words."""
    found = {int(path.name): path.read_text().splitlines() for path in folder.iterdir() if path.name.isdecimal()}
    return {number: [line.split() for line in lines] for number, lines in found.items()}


def began(folder: Path, host: PlayedHost) -> list[int]:
    """The processes of attempts there."""
    lines = [line for lines in notes(folder).values() for line in lines]
    return [int(line[3]) for line in lines if line[0] == "from" and line[5] == host.address]


def drop_out(host: PlayedHost, over: Event) -> None:
    """Lose everything for a second, again and again: less than after which a host counts as lost."""
    while not over.wait(2.0):
        host.cut()
        over.wait(1.0)
        host.mend()


def test_a_slow_cable_that_drops_out_for_a_second_at_a_time_costs_no_trial(
    hosts: tuple[PlayedHost, PlayedHost], pool: Pool, tmp_path: Path
) -> None:
    _, second = hosts
    over = Event()
    drops = Thread(target=drop_out, args=(second, over))
    second.tc("qdisc", "add", "dev", "cable", "root", "tbf", "rate", "2mbit", "burst", "16k", "latency", "200ms")
    drops.start()
    try:
        experiment = quiet_tuner(train, {"folder": str(tmp_path)}, trials=6, n_workers=4, pool=pool).run()
    finally:
        over.set()
        drops.join()
        second.tc("qdisc", "delete", "dev", "cable", "root")
    assert list(experiment.trials["status"]) == ["Completed"] * 6
    assert all(began(tmp_path, host) for host in hosts)
    whole = [str(epoch) for epoch in range(EPOCHS + 1)]
    assert all([line[1] for line in lines] == whole for lines in notes(tmp_path).values())


def test_a_cut_between_two_living_nodes_costs_what_was_under_way_and_both_are_used_again(
    hosts: tuple[PlayedHost, PlayedHost], pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, second = hosts
    running = quiet_tuner(train, {"folder": str(tmp_path)}, trials=6, n_workers=4, retries=2, pool=pool).run(
        block=False
    )
    within(180, lambda: min(len(began(tmp_path, host)) for host in hosts) >= 2, "both hosts are at work")
    within(
        60,
        lambda: any(line == ["acknowledged", "3"] for lines in notes(tmp_path).values() for line in lines),
        "they report",
    )
    there = began(tmp_path, second)
    second.cut()
    try:
        within(60, lambda: not any(map(psutil.pid_exists, there)), "what ran beyond the cut has ended itself")
        within(30, lambda: pool.capacity().cpus == 2, "the loss is known")
    finally:
        second.mend()
    within(60, lambda: pool.capacity().cpus == 4, "both are used again")
    why = re.compile(
        rf"the host on node \S+ \({second.address}, node \w+\) has ended; .*: nothing came from its host for"
    )
    within(30, lambda: why.search(caplog.text), "why the host beyond the cut has ended is said")
    experiment = running.wait()
    assert list(experiment.trials["status"]) == ["Completed"] * 6
    for number, lines in notes(tmp_path).items():
        acknowledged = 0
        for line in lines:
            assert line[0] == "acknowledged" or int(line[1]) >= acknowledged, f"trial {number} went back: {lines}"
            acknowledged = max(acknowledged, int(line[1]))
        assert acknowledged == EPOCHS
