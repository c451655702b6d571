"""Runs in processes of a launcher. Starting them takes seconds, so many tests share their results."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from all_reduce_contract import CHECKS
from program_runs import LoadedInterpreter, run_program

STARTED = Path(__file__).with_name("started.py")
PROGRAMS = Path(__file__).with_name("programs.py")
EXITS = ("exit_of_the_last", "interrupt_of_the_last")
ERRORS = (*EXITS, "error_of_the_last", "different_ways", "different_arguments", "too_many_devices")


@dataclass(frozen=True, slots=True)
class Results:
    """The result of each program, or (type, text, notes) of its error.

    `by_rank`: of each process, until it died. `alone`: of a process without a launcher. `printed`: by all processes.
    """

    by_rank: list[dict[str, Any]]  # Any: as the programs return
    alone: dict[str, Any]
    printed: str

    def all(self, program: str) -> list[Any]:  # Any: as the program returns
        """Return the results of a program, by rank."""
        return [results[program] for results in self.by_rank]


class Start(Protocol):
    """Runs functions of programs.py in `size` processes, one after another."""

    def __call__(
        self, folder: Path, size: int, *programs: str, alone: Sequence[str] = (), joined: bool = False
    ) -> Results: ...


@pytest.fixture(scope="module")
def start(torch_loaded: LoadedInterpreter) -> Start:
    """See `Start`. `joined`: the processes have initialised torch.distributed themselves."""

    def run(folder: Path, size: int, *programs: str, alone: Sequence[str] = (), joined: bool = False) -> Results:
        variables = {"GUEST_OUT": str(folder), "GUEST_SIZE": str(size), **({"GUEST_JOINED": "yes"} if joined else {})}
        environment = {**variables, "GUEST_PROGRAMS": ",".join(programs), "GUEST_ALONE": ",".join(alone)}
        done = torch_loaded.run(STARTED, folder=folder, environment=environment)
        assert done.status == 0, done.said
        by_rank = [_read(folder / str(rank)) for rank in range(size)]
        return Results(by_rank, _read(folder / "alone"), done.out)

    return run


def _read(path: Path) -> dict[str, Any]:  # Any: as above
    return pickle.loads(path.read_bytes()) if path.exists() else {}


@pytest.fixture(scope="module")
def three(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of three processes of a launcher, and of one process alone."""
    programs = ("bits", "place", "fast_and_partly_unreached", "fast_overlaps", "prints", "fast_retry_in_one", *ERRORS)
    after = (
        "group_of_the_program",
        "contract_exact",
        "contract_fast",
        "busy_while_the_last_fails",  # last, because the process group of the last process stays open
    )
    alone = ("bits", "place")
    return start(tmp_path_factory.mktemp("three"), 3, *programs, *after, alone=alone)


@pytest.fixture(scope="module")
def two(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of two processes that initialized torch.distributed. The second one dies at the end."""
    programs = ("bits", "reports", "fast_overlaps", "group_of_the_program", "place", "death_of_the_last")
    return start(tmp_path_factory.mktemp("two"), 2, *programs, joined=True)


def test_bits_executions_and_means_are_those_of_one_device(two: Results, three: Results) -> None:
    one = three.alone["bits"]
    assert {executed for _, executed, _, _ in one.values()} == {2 * (8 + 8 + 8 + 5)}
    assert len({bits for bits, _, _, _ in one.values()}) == 3
    assert three.all("bits") == [one] * 3
    assert two.all("bits") == [one] * 2


def test_each_process_is_one_device_and_returns_its_own_result(two: Results, three: Results) -> None:
    assert three.all("place") == [(rank, 3, 4, "cpu") for rank in range(3)]
    assert two.all("place") == [(rank, 2, 4, "cpu") for rank in range(2)]
    assert three.alone["place"] == (0, 1, 4, "cpu")


def test_fast_gives_the_same_bits_in_all_processes(three: Results) -> None:
    results = three.all("fast_and_partly_unreached")
    assert results == [results[0]] * 3
    assert isinstance(results[0][0], str), results


def test_fast_adds_during_backward_whatever_the_order_of_gradients(two: Results, three: Results) -> None:
    for results in two.all("fast_overlaps"), three.all("fast_overlaps"):
        assert len({bits for bits, _, _ in results}) == 1
        assert all(is_equal for _, is_equal, _ in results)
        for _, _, (first, second, last) in results:
            assert first == 0, "the first step shows which parameters have gradients"
            assert second > 3 < last


def test_a_step_that_is_repeated_in_one_process_only_is_refused(three: Results) -> None:
    for kind, text, _ in three.all("fast_retry_in_one"):
        assert kind == "RuntimeError"
        assert "makes step 0 of batch 3 after 1 failed attempts" in text


@pytest.mark.parametrize("program", ["contract_exact", "contract_fast"])
def test_gradients_over_gloo_keep_the_contract(three: Results, program: str) -> None:
    names = {check.__name__ for check in CHECKS}
    assert three.all(program) == [dict.fromkeys(names, "")] * 3


def test_run_print_prints_once(three: Results) -> None:
    assert three.printed == "printed once\n"


def test_the_error_of_one_is_raised_in_all(three: Results) -> None:
    *of_others, own = three.all("error_of_the_last")
    assert own[:2] == ("KeyError", "'poison'")
    assert own[2] == ["in shard 3 of 4, with 13 samples of the batch"]
    for kind, text, notes in of_others:
        assert (kind, text) == own[:2]
        assert notes[0] == own[2][0]
        assert "programs.py" in notes[1], "the remote traceback"
        assert notes[-1] == "raised in process 2 of 3"


@pytest.mark.parametrize(("program", "kind"), [(EXITS[0], "SystemExit"), (EXITS[1], "KeyboardInterrupt")])
def test_sys_exit_and_ctrl_c_in_one_end_all(three: Results, program: str, kind: str) -> None:
    assert [error[:2] for error in three.all(program)] == [(kind, "3")] * 3


def test_an_error_does_not_wait_for_busy_processes(three: Results) -> None:
    assert [error[:2] for error in three.all("busy_while_the_last_fails")] == [("KeyError", "'poison'")] * 3


def test_different_operations_are_an_error_in_all_processes(three: Results) -> None:
    for rank, (kind, text, _) in enumerate(three.all("different_ways")):
        assert kind == "RuntimeError"
        assert f"do different things: rank {rank} {'evaluates' if rank else 'has returned'}, rank " in text


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("different_arguments", "given different runs: shards is 1 in process 0, 2 in process 1"),
        ("too_many_devices", "set WORLD_SIZE=3, and each of these processes is one device of the run, but devices=7"),
    ],
)
def test_wrong_arguments_are_refused_in_all_processes(three: Results, program: str, text: str) -> None:
    for kind, message, _ in three.all(program):
        assert kind == "ValueError"
        assert text in message


def test_a_process_group_of_the_program_stays_and_one_of_the_run_ends(two: Results, three: Results) -> None:
    assert two.all("group_of_the_program") == [(True, 1)] * 2
    assert three.all("group_of_the_program") == [(False, 0)] * 3


def test_the_first_process_reports_and_all_get_the_decision(two: Results) -> None:
    assert two.all("reports") == [["CONTINUE", "STOP", "no such metric"]] * 2


def test_a_death_is_an_error_in_the_other_processes(two: Results) -> None:
    first, second = two.by_rank
    kind, text, _ = first["death_of_the_last"]
    assert kind == "WorkerLostError"
    assert text.startswith("process 0 of 2 waits for the others, and torch.distributed says: ")
    assert text.endswith("See: fanwise explain worker-lost")
    assert list(second) == list(first)[:-1], "the second process has died"


@pytest.mark.parametrize("joined", [False, True])
def test_processes_that_wait_for_a_hanging_one_raise_an_error_and_end(
    start: Start, tmp_path: Path, joined: bool
) -> None:
    first, last = start(tmp_path, 2, "hang_of_the_last", joined=joined).by_rank
    text = first["hang_of_the_last"]
    assert last == {}
    assert text.startswith("process 0 of 2 waits for the others, and has waited for ")
    assert "(step_timeout_s=1)" in text


def test_torchrun_is_a_launcher(three: Results, tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    done = run_program([*torchrun, str(PROGRAMS)], folder=tmp_path, environment={"GUEST_OUT": str(tmp_path)})
    assert done.status == 0, done.said
    results = [(tmp_path / f"result{rank}").read_text() for rank in range(2)]
    assert results == [repr(three.alone["bits"]["momentum"])] * 2
