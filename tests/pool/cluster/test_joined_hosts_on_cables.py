"""Hosts that join from other network namespaces: killed and restarted at random, and cut off."""

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from joining import (
    EPOCHS,
    JoiningHost,
    address_of,
    check_notes,
    host_names,
    new_secret_file,
    notes_in,
    num_notes,
    start_joining,
    train,
)
from networks import PlayedHost, two_hosts, why_not
from searches import quiet_tuner

from fanwise import Pool
from fanwise.testing import within
from fanwise.tune import Experiment, load_experiment, replay_experiment
from fanwise.tune.record.event_file import iter_events

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def namespaces() -> Iterator[tuple[PlayedHost, PlayedHost]]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as hosts:
        yield hosts


class JoiningHosts:
    """`size` hosts that join a pool in the first namespace, half of them from the second."""

    def __init__(self, namespaces: tuple[PlayedHost, PlayedHost], pool: Pool, secret_file: Path, size: int) -> None:
        self._namespaces = namespaces
        self._pool = pool
        self._secret_file = secret_file
        self.hosts = [self._start(number) for number in range(size)]

    def _start(self, number: int) -> JoiningHost:
        inside = self._namespaces[number % 2]
        return start_joining(address_of(self._pool), self._secret_file, f"host-{number}", inside=inside)

    def wait(self) -> None:
        num_hosts = len(self.hosts) + 1
        within(240, lambda: len(host_names(self._pool)) == num_hosts, f"{num_hosts} hosts are there")

    def restart_one(self, chance: random.Random, how: signal.Signals) -> None:
        """End one of the hosts that have joined, and start another in its place."""
        engine = self._pool._cluster_engine
        assert engine is not None

        def joined() -> list[int]:
            pids = {host.pid for host in engine.hosts}
            return [number for number, host in enumerate(self.hosts) if host.process.pid in pids]

        number = chance.choice(within(120, joined, "a host has joined"))
        self.hosts[number].process.send_signal(how)
        assert self.hosts[number].status() in (-signal.SIGKILL, 130, 143)
        self.hosts[number] = self._start(number)

    def close(self) -> None:
        for host in self.hosts:
            host.process.kill()
            host.process.wait()


def check_record(name: str, notes: Path) -> int:
    """Check that the record has every acknowledged report, and can be replayed. Return the number of reports."""
    experiment = load_experiment(name)
    recorded: dict[int, set[int]] = {}
    num_reports = 0
    for event in iter_events(experiment.path, kinds=("report",)):
        assert event.trial_id is not None
        recorded.setdefault(event.trial_id, set()).add(int(event.body["values"]["epoch"]))
        num_reports += 1
    for trial, lines in notes_in(notes).items():
        lost = {int(number) for kind, number, *_ in lines if kind == "acknowledged"} - recorded[trial]
        assert not lost, f"acknowledged reports {lost} of trial {trial} are not in the record"
    assert replay_experiment(experiment.path).num_differences == 0
    return num_reports


def check_trials(experiment: Experiment, trials: int) -> None:
    assert list(experiment.trials["status"]) == ["Completed"] * trials
    assert list(experiment.trials["iter"]) == [EPOCHS] * trials


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.fixture
def pool(namespaces: tuple[PlayedHost, PlayedHost], tmp_path: Path) -> Iterator[Pool]:
    """A pool with one CPU of this machine, in the first namespace."""
    first, _ = namespaces
    secret_file = new_secret_file(tmp_path / "private")
    with first.entered(), Pool(listen=f"{first.address}:7070", secret_file=secret_file, cpus=1, seed=5) as pool:
        pool.capacity()
        yield pool


def test_a_host_that_was_cut_off_ends_its_jobs_and_joins_again(
    namespaces: tuple[PlayedHost, PlayedHost], pool: Pool, notes: Path, tmp_path: Path
) -> None:
    _, second = namespaces
    far = start_joining(address_of(pool), tmp_path / "private" / "secret", "far", inside=second)
    within(60, lambda: "far" in host_names(pool), "it has joined")
    space = {"folder": str(notes), "pause_s": 0.2}
    running = quiet_tuner(train, space, trials=8, n_workers=None, retries=2, pool=pool, name="cut").run(block=False)
    within(60, lambda: sum(len(lines) > 2 for lines in notes_in(notes).values()) >= 2, "both report")
    second.cut()
    try:
        within(60, lambda: "far" not in host_names(pool), "the loss is known")
        within(60, lambda: "its jobs here have ended" in far.output, "the host knows, too")
    finally:
        second.mend()
    within(90, lambda: "far" in host_names(pool), "it has joined again")
    check_trials(running.wait(), 8)
    assert check_notes(notes) > 8
    check_record("cut", notes)
    pool.close()
    assert far.status() == 0


@pytest.mark.soak
def test_fifty_kills_of_sixteen_joined_hosts_lose_no_report(
    namespaces: tuple[PlayedHost, PlayedHost], pool: Pool, notes: Path, tmp_path: Path
) -> None:
    trials, size, kills = 480, 16, 50
    chance = random.Random(7)
    hosts = JoiningHosts(namespaces, pool, tmp_path / "private" / "secret", size)
    ended: Counter[str] = Counter()
    try:
        hosts.wait()
        space = {"folder": str(notes), "pause_s": 0.25}
        tuner = quiet_tuner(train, space, trials=trials, n_workers=None, retries=100, pool=pool, name="soak")
        running = tuner.run(block=False)
        for moment in sorted(chance.randrange(trials * EPOCHS * 3 // 4) for _ in range(kills)):
            within(300, lambda moment=moment: num_notes(notes) > moment, f"there are {moment} notes")  # type: ignore[misc]
            how = chance.choice(SIGNALS)
            hosts.restart_one(chance, how)
            ended[how.name] += 1
        assert not running.finished
        check_trials(running.wait(), trials)
    finally:
        hosts.close()
    assert sorted(notes_in(notes)) == list(range(trials))
    num_attempts, num_reports = check_notes(notes), check_record("soak", notes)
    changes = sum(1 for _ in iter_events(load_experiment("soak").path, kinds=("workers",)))
    print(f"{dict(ended)}: {trials} trials, {num_attempts} attempts, {num_reports} reports, {changes} sizes")
