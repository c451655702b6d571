"""A run in processes that somebody else has started. One start of processes serves many tests: it takes seconds."""

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
class Said:
    """What each program returned, or (type, text, notes) of what it raised.

    `by_rank`: of each process, until it died. `alone`: of one that no launcher started. `printed`: by all.
    """

    by_rank: list[dict[str, Any]]  # Any: as the programs return
    alone: dict[str, Any]  # Any: as the programs return
    printed: str

    def all(self, program: str) -> list[Any]:  # Any: as the program returns
        """What the processes said, by rank."""
        return [each[program] for each in self.by_rank]


class Start(Protocol):
    """Runs functions of programs.py in `size` processes, one after another."""

    def __call__(
        self, folder: Path, size: int, *programs: str, alone: Sequence[str] = (), joined: bool = False
    ) -> Said: ...


@pytest.fixture(scope="module")
def start(torch_loaded: LoadedInterpreter) -> Start:
    """See `Start`. `joined`: the processes have initialised torch.distributed themselves."""

    def run(folder: Path, size: int, *programs: str, alone: Sequence[str] = (), joined: bool = False) -> Said:
        told = {"GUEST_OUT": str(folder), "GUEST_SIZE": str(size), **({"GUEST_JOINED": "yes"} if joined else {})}
        environment = {**told, "GUEST_PROGRAMS": ",".join(programs), "GUEST_ALONE": ",".join(alone)}
        done = torch_loaded.run(STARTED, folder=folder, environment=environment)
        assert done.status == 0, done.said
        by_rank = [_said(folder / str(rank)) for rank in range(size)]
        return Said(by_rank, _said(folder / "alone"), done.out)

    return run


def _said(path: Path) -> dict[str, Any]:  # Any: as above
    return pickle.loads(path.read_bytes()) if path.exists() else {}


@pytest.fixture(scope="module")
def three(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Of three processes of a launcher, and of one process alone."""
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
def two(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Of two processes that had initialised torch.distributed; the second one dies in the end."""
    programs = ("bits", "reports", "fast_overlaps", "group_of_the_program", "place", "death_of_the_last")
    return start(tmp_path_factory.mktemp("two"), 2, *programs, joined=True)


def test_bits_executions_and_means_are_those_of_one_device(two: Said, three: Said) -> None:
    one = three.alone["bits"]
    assert {executed for _, executed, _, _ in one.values()} == {2 * (8 + 8 + 8 + 5)}
    assert len({bits for bits, _, _, _ in one.values()}) == 3
    assert three.all("bits") == [one] * 3
    assert two.all("bits") == [one] * 2


def test_each_process_returns_its_own_and_is_one_device(two: Said, three: Said) -> None:
    assert three.all("place") == [(rank, 3, 4, "cpu") for rank in range(3)]
    assert two.all("place") == [(rank, 2, 4, "cpu") for rank in range(2)]
    assert three.alone["place"] == (0, 1, 4, "cpu")


def test_fast_is_the_same_everywhere(three: Said) -> None:
    results = three.all("fast_and_partly_unreached")
    assert results == [results[0]] * 3
    assert isinstance(results[0][0], str), results


def test_fast_adds_during_backward_although_ranks_compute_gradients_in_different_orders(two: Said, three: Said) -> None:
    for results in two.all("fast_overlaps"), three.all("fast_overlaps"):
        assert len({bits for bits, _, _ in results}) == 1
        assert all(is_equal for _, is_equal, _ in results)
        for _, _, (first, second, last) in results:
            assert first == 0, "the first step shows which parameters have gradients"
            assert second > 3 < last


def test_a_step_that_is_repeated_in_one_process_only_is_refused(three: Said) -> None:
    for kind, text, _ in three.all("fast_retry_in_one"):
        assert kind == "RuntimeError"
        assert "makes step 0 of batch 3 after 1 failed attempts" in text


@pytest.mark.parametrize("program", ["contract_exact", "contract_fast"])
def test_gradients_over_gloo_keep_the_contract(three: Said, program: str) -> None:
    names = {check.__name__ for check in CHECKS}
    assert three.all(program) == [dict.fromkeys(names, "")] * 3


def test_what_a_run_prints_is_printed_once(three: Said) -> None:
    assert three.printed == "printed once\n"


def test_the_error_of_one_is_raised_in_all(three: Said) -> None:
    *others, own = three.all("error_of_the_last")
    assert own[:2] == ("KeyError", "'poison'")
    assert own[2] == ["in shard 3 of 4, with 13 samples of the batch"]
    for kind, text, notes in others:
        assert (kind, text) == own[:2]
        assert notes[0] == own[2][0]
        assert "programs.py" in notes[1], "the remote traceback"
        assert notes[-1] == "raised in process 2 of 3"


@pytest.mark.parametrize(("program", "kind"), [(EXITS[0], "SystemExit"), (EXITS[1], "KeyboardInterrupt")])
def test_sys_exit_and_ctrl_c_in_one_end_all(three: Said, program: str, kind: str) -> None:
    assert [each[:2] for each in three.all(program)] == [(kind, "3")] * 3


def test_an_error_does_not_wait_for_those_that_are_busy(three: Said) -> None:
    assert [each[:2] for each in three.all("busy_while_the_last_fails")] == [("KeyError", "'poison'")] * 3


def test_processes_that_do_different_things_all_learn_of_it(three: Said) -> None:
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
def test_what_does_not_fit_is_refused_in_all(three: Said, program: str, text: str) -> None:
    for kind, said, _ in three.all(program):
        assert kind == "ValueError"
        assert text in said


def test_a_group_of_the_program_stays_and_one_of_ours_ends(two: Said, three: Said) -> None:
    assert two.all("group_of_the_program") == [(True, 1)] * 2
    assert three.all("group_of_the_program") == [(False, 0)] * 3


def test_a_report_goes_to_the_job_of_the_first_and_its_decision_to_all(two: Said) -> None:
    assert two.all("reports") == [["CONTINUE", "STOP", "no such metric"]] * 2


def test_a_death_is_an_error_in_those_that_are_left(two: Said) -> None:
    first, second = two.by_rank
    kind, text, _ = first["death_of_the_last"]
    assert kind == "WorkerLostError"
    assert text.startswith("process 0 of 2 waits for the others, and torch.distributed says: ")
    assert text.endswith("See: fanwise explain worker-lost")
    assert list(second) == list(first)[:-1], "the second one has died of it"


@pytest.mark.parametrize("joined", [False, True])
def test_processes_that_wait_for_a_hanging_one_raise_an_error_and_end(
    start: Start, tmp_path: Path, joined: bool
) -> None:
    first, last = start(tmp_path, 2, "hang_of_the_last", joined=joined).by_rank
    text = first["hang_of_the_last"]
    assert last == {}
    assert text.startswith("process 0 of 2 waits for the others, and has waited for ")
    assert "(step_timeout_s=1)" in text


def test_torchrun_is_a_launcher(three: Said, tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    done = run_program([*torchrun, str(PROGRAMS)], folder=tmp_path, environment={"GUEST_OUT": str(tmp_path)})
    assert done.status == 0, done.said
    said = [(tmp_path / f"said{rank}").read_text() for rank in range(2)]
    assert said == [repr(three.alone["bits"]["momentum"])] * 2
