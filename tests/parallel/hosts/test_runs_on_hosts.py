"""Runs over hosts: the bits of one device, whoever dies in the middle. A host is some processes with a name."""

import json
import pickle
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanwise.testing.networks import why_not
from fanwise.testing.programs import LoadedInterpreter

STARTED = Path(__file__).with_name("started_on_hosts.py")
ALONE = "small,large,clipped,accumulated,by hand"

Said = dict[str, Any]  # Any: what each process returned, by scenario and rank; of one that died, nothing
Play = Callable[..., Said]


@pytest.fixture(scope="module")
def play(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Plays scenarios, given by name as the processes of each host and what happens to them."""

    def played(scenarios: dict[str, tuple[list[int], dict[str, Any]]], alone: str = ALONE) -> Said:  # Any: plain values
        out = tmp_path_factory.mktemp("hosts")
        listed = [[name, sizes, what] for name, (sizes, what) in scenarios.items()]
        environment = {"HOSTS_OUT": str(out), "HOSTS_SCENARIOS": json.dumps(listed), "HOSTS_ALONE": alone}
        done = torch_loaded.run(STARTED, folder=out, environment=environment)
        assert done.status == 0, done.said
        said: Said = {path.name: pickle.loads(path.read_bytes()) for path in out.iterdir() if path.is_file()}
        return said

    return played


def kills(ranks: str, at: str, call: int, training: str = "small", **options: Any) -> dict[str, Any]:  # Any: of a run
    return {"training": training, "kills": [{"ranks": ranks, "at": at, "call": call}], "options": options}


def stops(ranks: str, at: str, call: int) -> dict[str, Any]:  # Any: plain values
    made = kills(ranks, at, call, step_timeout_s=1.0)
    made["kills"][0]["signal"] = signal.SIGSTOP
    return made


SCENARIOS: dict[str, tuple[list[int], dict[str, Any]]] = {  # Any: plain values
    "2 and 2": ([2, 2], {"training": ALONE}),
    "1 and 2": ([1, 2], {"training": "small,large"}),
    "of SLURM": ([1, 1], {"training": "small", "launcher": "SLURM"}),
    "of SLURM, without a secret": ([1, 1], {"training": "small", "launcher": "SLURM", "open": True}),
    "of Open MPI": ([2], {"training": "small", "launcher": "Open MPI"}),
    "the second dies in a loss": ([2, 2], kills("23", "loss", 9)),
    "the first dies in a loss": ([2, 2], kills("01", "loss", 9)),
    "the first dies at an exchange": ([2, 2], kills("01", "exchange", 14)),
    "the first dies when it has released": ([2, 1], kills("01", "sent", 30)),
    "the first dies in an update": ([1, 2], kills("0", "update", 5)),
    "the second dies, large": ([2, 2], kills("23", "loss", 9, "large")),
    "the first dies, large": ([2, 2], kills("01", "exchange", 15, "large")),
    "the last is stopped": ([1, 2], stops("2", "exchange", 14)),
    "the first is stopped": ([1, 2], stops("0", "loss", 19)),
    "a loss ends the run": ([1, 1], kills("1", "loss", 9, on_loss="stop")),
    "one raises": ([1, 2], {"training": "raises"}),
    "one goes another way": ([1, 1], {"training": "another way"}),
}


@pytest.fixture(scope="module")
def said(play: Play) -> Said:
    """Of all these: one start serves many tests."""
    return play(SCENARIOS)


def bits(found: dict[str, tuple[str, float, int]]) -> dict[str, tuple[str, float]]:
    """All that must not depend on who executed it."""
    return {name: (digest, accuracy) for name, (digest, accuracy, _) in found.items()}


@pytest.mark.parametrize("name", ["2 and 2", "1 and 2", *(name for name in SCENARIOS if name.startswith("of "))])
def test_processes_of_a_launcher_have_the_bits_of_one_device(said: Said, name: str) -> None:
    for rank in range(sum(SCENARIOS[name][0])):
        found = said[f"{name}.{rank}"]
        assert bits(found) == {its: bits(said["alone"])[its] for its in found}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "dies" in name])
def test_a_host_that_dies_costs_the_step_and_not_the_run(said: Said, name: str) -> None:
    sizes, what = SCENARIOS[name]
    dead = set(what["kills"][0]["ranks"])
    left = [str(rank) for rank in range(sum(sizes)) if str(rank) not in dead]
    assert not any(f"{name}.{rank}" in said for rank in dead), "they were killed"
    for rank in left:
        found, training = said[f"{name}.{rank}"], what["training"]
        assert found[training][:2] == said["alone"][training][:2]
        assert found[training][2] == len(left)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "stopped" in name])
def test_a_process_that_is_stopped_is_gone_on_without_after_the_limit(said: Said, name: str) -> None:
    (stopped,) = SCENARIOS[name][1]["kills"][0]["ranks"]
    for rank in set("012") - {stopped}:
        assert said[f"{name}.{rank}"]["small"] == (*said["alone"]["small"][:2], 2)
    kind, text, _ = said[f"{name}.{stopped}"]
    assert kind == "WorkerLostError" and f"have gone on without process {stopped} of 3 (pid " in text


def test_a_loss_ends_the_run_where_that_is_asked_for(said: Said) -> None:
    kind, text, _ = said["a loss ends the run.0"]
    assert (
        kind == "WorkerLostError" and "process 1 of 2 (pid " in text and " on h1): lost.\non_loss='stop' ends" in text
    )


def test_what_one_raises_is_raised_in_all(said: Said) -> None:
    for rank in range(3):
        kind, text, notes = said[f"one raises.{rank}"]
        assert (kind, text) == ("KeyError", "'poison'")
        assert rank == 2 or any(note.startswith("raised in process 2 of 3 (pid ") for note in notes)


def test_processes_that_do_different_things_are_told(said: Said) -> None:
    for rank in range(2):
        kind, text, _ = said[f"one goes another way.{rank}"]
        assert kind == "RuntimeError" and "the processes of the run do different things" in text


@pytest.mark.soak
def test_fifty_hosts_that_die_somewhere(play: Play) -> None:
    chance, scenarios = random.Random(17), dict[str, tuple[list[int], dict[str, Any]]]()  # Any: plain values
    for number in range(50):
        ranks = chance.choice(["01", "23"])
        at, most = chance.choice([("loss", 20), ("exchange", 40), ("sent", 60), ("update", 8)])
        what = kills(ranks, at, chance.randint(1, most), chance.choice(["small", "large"]))
        scenarios[f"{number}"] = [2, 2], what
    said = play(scenarios)
    for name, (_, what) in scenarios.items():
        for rank in set("0123") - set(what["kills"][0]["ranks"]):
            found = said[f"{name}.{rank}"]
            assert found[what["training"]][:2] == said["alone"][what["training"]][:2], (name, what)


def test_a_cable_that_loses_and_delays_packets_costs_time_and_no_bit(play: Play) -> None:
    if why := why_not(with_cable=True):
        pytest.skip(why)
    cable = {"delay_s": 0.001, "loss": 0.01}
    said = play({"lossy": ([1, 1], {"training": "small,large", "cable": cable})}, alone="small,large")
    for rank in range(2):
        assert bits(said[f"lossy.{rank}"]) == bits(said["alone"])


@pytest.mark.soak
def test_both_sides_of_a_cable_that_is_cut_go_on_to_the_same_bits(play: Play) -> None:
    if why := why_not():
        pytest.skip(why)
    said = play(
        {
            "cut": ([2, 2], {"training": "small", "cut_at": 9}),
            "cut, large": ([2, 2], {"training": "large", "cut_at": 9}),
        }
    )
    for name, training in (("cut", "small"), ("cut, large", "large")):
        for rank in range(4):
            assert said[f"{name}.{rank}"][training] == (*said["alone"][training][:2], 2)
