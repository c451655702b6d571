"""Hosts that join a pool with `fanwise join`: they run trials, leave, are killed, and end with the pool."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gates import Gate
from joining import address_of, check_notes, host_names, joining, new_secret_file, notes_in, train
from searches import quiet_tuner

from fanwise import Pool
from fanwise.base.errors import ClusterError, SecretError
from fanwise.cli.showing import trial_lines
from fanwise.pool.cluster.listening import ListeningStart
from fanwise.testing import within
from fanwise.tune import Tuner, load_experiment, report, uniform
from fanwise.tune.record.event_file import iter_events
from fanwise.tune.record.overview import read_search

LOCAL = socket.gethostname()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "home"))


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return new_secret_file(tmp_path / "private")


@pytest.fixture
def pool(secret_file: Path) -> Iterator[Pool]:
    """A pool with one CPU of this machine."""
    with Pool(listen="127.0.0.1:0", secret_file=secret_file, cpus=1, seed=3) as pool:
        pool.capacity()
        yield pool


def notes_folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def hosts_of_attempts(name: str) -> list[list[str]]:
    """Return the hosts of the attempts of each trial, without addresses."""
    trials = read_search(load_experiment(name).path).search.trials
    return [[(attempt.host or "").partition(" ")[0] for attempt in trial.attempts] for trial in trials.values()]


def waits_for_gate(x: float, gate: str) -> None:
    Gate(Path(gate)).wait()
    report(loss=x)


def test_a_host_that_joins_a_running_search_runs_trials_at_once_and_ends_with_the_pool(
    pool: Pool, secret_file: Path, tmp_path: Path
) -> None:
    with Gate(tmp_path / "gate") as gate:
        tuner = quiet_tuner(
            waits_for_gate, {"x": uniform(0, 1), "gate": str(tmp_path / "gate")}, n_workers=None, pool=pool, name="one"
        )
        running = tuner.run(block=False)
        with joining(address_of(pool), secret_file, workers=2) as host:
            within(60, lambda: host_names(pool) == sorted(["alpha", LOCAL]), "the host has joined")
            assert pool.capacity().cpus == 3
            engine: Any = pool._engine
            within(60, lambda: sum(job.begun for job in engine._jobs.values()) == 3, "all CPUs are used")
            gate.open(times=10)
            running.wait()
            names = [name for (name,) in hosts_of_attempts("one")]
            assert names.count("alpha") >= 2
            assert any(" of alpha (127.0.0.1), started" in line for line in trial_lines("one", names.index("alpha")))
            assert list(load_experiment("one").trials["status"]) == ["Completed"] * 4
            pool.close()
            assert host.status() == 0
            assert host.output.endswith("the pool was closed\n")


@pytest.mark.parametrize(
    ("how", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=lambda value: str(value)
)
def test_trials_of_a_host_that_leaves_or_is_killed_continue_elsewhere_from_their_checkpoints(
    pool: Pool, secret_file: Path, tmp_path: Path, how: signal.Signals, status: int
) -> None:
    notes = notes_folder(tmp_path)
    with joining(address_of(pool), secret_file, workers=2) as host:
        within(60, lambda: "alpha" in host_names(pool), "the host has joined")
        tuner = quiet_tuner(
            train, {"folder": str(notes), "pause_s": 0.1}, trials=9, n_workers=None, retries=1, pool=pool, name="one"
        )
        running = tuner.run(block=False)
        within(60, lambda: sum(len(lines) > 3 for lines in notes_in(notes).values()) >= 3, "all three CPUs report")
        host.process.send_signal(how)
        assert host.status() == status
    within(30, lambda: host_names(pool) == [LOCAL], "the pool knows")
    experiment = running.wait()
    assert list(experiment.trials["status"]) == ["Completed"] * 9
    assert check_notes(notes) > 9, "at least one attempt was repeated"
    assert [LOCAL] in [hosts[1:] for hosts in hosts_of_attempts("one")]


def test_a_host_with_another_secret_is_refused_and_the_pool_is_not_affected(pool: Pool, tmp_path: Path) -> None:
    with joining(address_of(pool), new_secret_file(tmp_path / "other")) as host:
        assert host.status() == 1
        assert "does not hold our secret" in host.output
    start = pool._life._running
    assert isinstance(start, ListeningStart)
    assert start._listener.refused == {"not-authentic": 1} and host_names(pool) == [LOCAL]
    assert pool.submit(divmod, 7, 2).result(within_s=60) == (3, 1)


def test_a_host_with_other_versions_is_told_the_differences(pool: Pool, secret_file: Path, tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "fanwise-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: fanwise\nVersion: 9.9\n")
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    with joining(address_of(pool), secret_file, environment={"PYTHONPATH": path}) as host:
        assert host.status() == 1
    assert f"the pool at {address_of(pool)} has other versions than this host: fanwise " in host.output
    assert ", and 9.9 here. Install the same on both" in host.output
    assert host_names(pool) == [LOCAL]


def test_a_pool_without_local_cpus_waits_for_the_first_host(secret_file: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with joining(address, secret_file) as host:  # it waits, too
        within(60, lambda: f"waiting 60 s for a pool at {address}: nobody listens" in host.output, "it waits")
        with Pool(listen=address, secret_file=secret_file, cpus=0) as pool:
            assert pool.submit(divmod, 7, 2).result(within_s=60) == (3, 1)
            assert host_names(pool) == ["alpha"]
        assert host.status() == 0


def test_no_host_in_time_is_an_error_with_the_command_to_type(secret_file: Path) -> None:
    pool = Pool(listen="127.0.0.1:0", secret_file=secret_file, cpus=0, start_within_s=0.1)
    with pool, pytest.raises(ClusterError, match=r"no host has joined .* run `fanwise join HOST:\d+ --secret-file"):
        pool.capacity()


def test_a_used_port_is_an_error_with_the_address(pool: Pool, secret_file: Path) -> None:
    with (
        Pool(listen=address_of(pool), secret_file=secret_file) as second,
        pytest.raises(ClusterError, match=f"cannot listen at {address_of(pool)}, where"),
    ):
        second.capacity()


def test_a_number_of_workers_that_a_user_sets_no_longer_follows_the_hosts(
    pool: Pool, secret_file: Path, tmp_path: Path
) -> None:
    with Gate(tmp_path / "gate") as gate:
        tuner = quiet_tuner(
            waits_for_gate, {"x": uniform(0, 1), "gate": str(tmp_path / "gate")}, n_workers=None, pool=pool, name="one"
        )
        running = tuner.run(block=False)
        tuner.set_workers(1)
        with joining(address_of(pool), secret_file):
            within(60, lambda: "alpha" in host_names(pool), "the host has joined")
            gate.open(times=10)
            running.wait()
    assert [event.body["n_workers"] for event in iter_events(load_experiment("one").path, kinds=("workers",))] == [1]


def test_a_search_that_followed_hosts_is_resumed_with_the_workers_of_this_machine(
    pool: Pool, secret_file: Path, tmp_path: Path
) -> None:
    notes = notes_folder(tmp_path)
    with joining(address_of(pool), secret_file, workers=3):
        within(60, lambda: "alpha" in host_names(pool), "the host has joined")
        space = {"folder": str(notes), "pause_s": 0.0}
        quiet_tuner(train, space, trials=4, n_workers=None, pool=pool, name="one").run()
    with Pool(cpus=2) as local:
        tuner = Tuner.resume("one", pool=local, quiet=True)
        assert tuner.settings.n_workers == 2 and load_experiment("one").metadata["n_workers"] == 4


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"listen": "7070"}, ValueError, "listen must be host:port"),
        ({"listen": "somewhere:99999"}, ValueError, "listen must be host:port"),
        ({"listen": 7070}, TypeError, "listen must be host:port"),
        ({"listen": "127.0.0.1:0", "ray": "auto"}, ValueError, "ray= and listen= cannot be combined"),
        ({"secret_file": "secret"}, ValueError, "secret_file is for hosts that join"),
        ({"listen": "127.0.0.1:0", "secret_file": "/none"}, SecretError, "the file of the secret cannot be read"),
        ({"listen": "127.0.0.1:0"}, SecretError, "hosts join with a secret, and none was given"),
        ({"cpus": 0}, ValueError, "cpus must be at least 1"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_name(
    settings: dict[str, object], kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FANWISE_SECRET", raising=False)
    monkeypatch.delenv("FANWISE_SECRET_FILE", raising=False)
    with pytest.raises(kind, match=text):
        Pool(**settings)  # type: ignore[arg-type]


def test_a_search_whose_tuner_was_killed_is_resumed_and_its_hosts_join_again(secret_file: Path, tmp_path: Path) -> None:
    notes = notes_folder(tmp_path)
    (tmp_path / "space.yaml").write_text(f"folder: {notes}\npause_s: {{uniform: [0.2, 0.25]}}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    listen = ["--listen", address, "--secret-file", str(secret_file), "--local-workers", "1", "--json"]
    fanwise = [sys.executable, "-m", "fanwise", "tune"]
    search = ["joining:train", "--space", "space.yaml", "--metric", "loss", "--trials", "6", "--name", "one"]
    with joining(address, secret_file) as host:
        with subprocess.Popen(
            [*fanwise, "run", *search, *listen], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
        ) as tuner:
            within(60, lambda: sum(len(lines) > 2 for lines in notes_in(notes).values()) >= 2, "both hosts report")
            tuner.kill()
        resume = [*fanwise, "resume", "one", *listen]
        subprocess.run(resume, cwd=tmp_path, env=environment, check=True, timeout=120, stdout=subprocess.DEVNULL)
        assert host.status() == 0
        assert host.output.count("alpha joins the pool at") == 2
    assert check_notes(notes) > 6
    assert {name for hosts in hosts_of_attempts("one") for name in hosts} == {"alpha", LOCAL}
