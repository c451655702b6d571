"""`Pool` and `JobHandle`: results, GPUs, order, retries, reports, callbacks, forks of the process, and reprs."""

import atexit
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gates import Gate
from job_functions import began, submitted

from fanwise.base.errors import ClosedError, DeadlineExceeded, LeaseError
from fanwise.pool import JobHandle, Pool, current
from fanwise.testing import within


def test_large_results_are_equal_and_writable(pool: Pool) -> None:
    def many() -> dict[str, Any]:
        return {
            "big": np.arange(1 << 23, dtype=np.float64),
            "small": [np.full(3, i) for i in range(3)],
            "empty": np.empty(0),
        }

    result = pool.submit(many).result(within_s=60)
    assert result["big"].nbytes == 64 << 20
    np.testing.assert_array_equal(result["big"], np.arange(1 << 23, dtype=np.float64))
    np.testing.assert_array_equal(result["small"], [[0, 0, 0], [1, 1, 1], [2, 2, 2]])
    assert result["empty"].size == 0
    result["big"][0] = 1.0


def test_an_error_of_a_local_class_is_raised_as_that_class(pool: Pool) -> None:
    class TooHotError(Exception):
        pass

    def boil(degrees: float) -> None:
        raise TooHotError(f"{degrees} degrees", degrees)

    with pytest.raises(TooHotError, match=r"101\.5 degrees") as caught:
        pool.submit(boil, 101.5).result(within_s=30)
    assert caught.value.args[1] == 101.5


def test_a_pool_leases_only_its_own_gpus() -> None:
    with Pool(cpus=2, seed=0, gpus=["GPU-b", "GPU-a"]) as chosen:
        jobs = [chosen.needs(gpus=1).submit(os.getenv, "CUDA_VISIBLE_DEVICES") for _ in range(2)]
        assert sorted(job.result(60) for job in jobs) == ["GPU-a", "GPU-b"]
        with pytest.raises(LeaseError, match=r"3 GPUs asked for, this pool has 2"):
            chosen.needs(gpus=3).submit(int)


def test_jobs_with_half_a_gpu_limit_jax_and_tensorflow() -> None:
    names = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH")
    with Pool(cpus=2, seed=0, gpus=["GPU-a"]) as chosen:
        halves = [chosen.needs(gpus=0.5).submit(lambda: tuple(map(os.getenv, names))) for _ in range(2)]
        assert [job.result(60) for job in halves] == [("0.450", "true")] * 2
        assert chosen.needs(gpus=1).submit(lambda: tuple(map(os.getenv, names))).result(60) == (None, None)


# -- order, retries, reports -----------------------------------------------------------------------------------------


def test_jobs_start_in_the_order_of_their_submit(pool: Pool, gate: Gate, tmp_path: Path) -> None:
    def note(number: int) -> None:
        with open(tmp_path / "order", "a") as file:
            file.write(f"{number} ")

    blocker = pool.needs(cpus=2).submit(gate.wait)
    # Each takes the whole pool, so that they run one after another.
    handles = [pool.needs(cpus=2).submit(note, number) for number in range(5)]
    gate.open()
    for handle in (blocker, *handles):
        handle.result(within_s=30)
    assert (tmp_path / "order").read_text() == "0 1 2 3 4 "


def test_a_small_job_does_not_overtake_a_big_one_that_waits(pool: Pool, gate: Gate) -> None:
    blocker = submitted(pool.submit(gate.wait))
    big = submitted(pool.needs(cpus=2).submit(gate.wait))
    small = submitted(pool.submit(gate.wait))
    assert blocker.wait_began(30)
    assert not small.wait_began(0.05)  # although a CPU is free
    gate.open()
    assert big.wait_began(30)
    assert not small.wait_began(0)
    gate.open(2)
    small.result(within_s=30)


def fail_until(path: Path, times: int) -> int:
    with open(path, "a") as file:
        file.write(".")
    tries = len(path.read_text())
    if tries <= times:
        raise ValueError(f"try {tries}")
    return tries


def test_a_failed_job_is_repeated_at_most_retries_times(pool: Pool, tmp_path: Path) -> None:
    once = submitted(pool.submit(fail_until, tmp_path / "a", 1))
    with pytest.raises(ValueError, match="try 1"):
        once.result(within_s=30)
    assert once.attempt == 0
    handle = submitted(pool.needs(retries=3).submit(fail_until, tmp_path / "b", 2))
    first_id = handle.id
    assert handle.result(within_s=30) == 3
    assert handle.id != first_id and handle.attempt == 2
    with pytest.raises(ValueError, match="try 2"):
        pool.needs(retries=1).submit(fail_until, tmp_path / "c", 5).result(within_s=30)


def test_a_retry_has_another_seed(pool: Pool, tmp_path: Path) -> None:
    def seeds(path: Path) -> list[str]:
        with open(path, "a") as file:
            file.write(f"{current().seed}\n")
        if len(path.read_text().split()) < 2:
            os._exit(1)
        return path.read_text().split()

    first, second = pool.needs(retries=1).submit(seeds, tmp_path / "seeds").result(within_s=30)
    assert first != second


def test_reports_are_answered_by_on_report(pool: Pool) -> None:
    def climb() -> list[str]:
        return [current().report({"step": step}).decision for step in range(3)]

    received: list[object] = []

    def decide(values: object) -> str:
        received.append(values)
        return "STOP" if values == {"step": 2} else "CONTINUE"

    assert pool.needs(on_report=decide).submit(climb).result(within_s=30) == ["CONTINUE", "CONTINUE", "STOP"]
    assert received == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert pool.submit(climb).result(within_s=30) == ["CONTINUE"] * 3


def test_a_done_callback_that_fails_is_logged_and_the_others_are_called(
    pool: Pool, caplog: pytest.LogCaptureFixture, gate: Gate
) -> None:
    called: list[str] = []

    def bad(handle: JobHandle) -> None:
        called.append("bad")
        raise RuntimeError("oops")

    handle = submitted(pool.submit(gate.wait))
    handle.add_done_callback(bad)
    handle.add_done_callback(lambda handle: called.append("good"))
    gate.open()
    handle.result(within_s=30)
    within(30, lambda: called == ["bad", "good"], "both callbacks were called")
    handle.add_done_callback(lambda handle: called.append("late"))
    within(30, lambda: called[2:] == ["late"], "the late callback was called")
    assert "a done callback of job" in caplog.text
    assert pool.submit(abs, -1).result(within_s=30) == 1


def test_a_late_result_raises_deadline_exceeded_and_the_job_continues(pool: Pool, gate: Gate) -> None:
    handle = submitted(pool.submit(gate.wait))
    with pytest.raises(DeadlineExceeded, match=rf"job {handle.id} 'Gate.wait' has not ended within 0.01 s"):
        handle.result(within_s=0.01)
    gate.open()
    assert handle.result(within_s=30) is None


# -- forks of user code ----------------------------------------------------------------------------------------------


def test_a_fork_inside_a_job_sends_nothing_and_ends_with_the_function(pool: Pool, tmp_path: Path) -> None:
    def note() -> None:
        with open(tmp_path / "exits", "a") as file:
            file.write(f"{os.getpid()} ")

    def fork() -> tuple[int, str]:
        atexit.register(note)
        job = current()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            words = []
            for use in (current, lambda: job.report(1), lambda: Pool().submit(int)):
                try:
                    use()
                except ClosedError as error:
                    words.append(str(error))
            os.write(write, f"{len(words)}".encode())
            return 7, "the child returns from the function"
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), os.read(read, 100).decode()

    def receive(values: object) -> str:
        received.append(values)
        return "CONTINUE"

    received: list[object] = []
    handle = submitted(pool.needs(on_report=receive).submit(fork))
    assert handle.result(within_s=30) == (0, "3")
    assert received == []
    assert (tmp_path / "exits").read_text() == f"{handle.pid} "  # the child did not run the job's exit handlers


def test_a_fork_of_the_owner_cannot_use_the_pool(pool: Pool, gate: Gate) -> None:
    handle = submitted(pool.submit(gate.wait))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = []
        for use in (lambda: pool.submit(int), lambda: handle.result(), lambda: handle.stop(), lambda: pool._engine):
            try:
                use()
            except ClosedError as error:
                words.append("was forked from it" in str(error))
        pool.close()
        os.write(write, str(words).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1000).decode() == "[True, True, True, True]"
    os.close(read)
    os.close(write)
    gate.open()
    assert handle.result(within_s=30) is None  # the child's close did nothing here
    assert pool.submit(abs, -2).result(within_s=30) == 2


# -- reprs -------------------------------------------------------------------------------------------------------------


def fail() -> None:
    raise ValueError("no such rate\nand more")


def test_the_repr_of_a_job_shows_its_state(pool: Pool, gate: Gate) -> None:
    running = began(pool.needs(cpus=2).submit(gate.wait))
    queued = submitted(pool.submit(gate.wait))
    assert repr(running) == f"<JobHandle {running.id} 'Gate.wait': running, pid {running.pid}>"
    assert repr(queued) == f"<JobHandle {queued.id} 'Gate.wait': queued>"
    gate.open(2)
    assert running.result(30) is queued.result(30) is None
    assert repr(running) == f"<JobHandle {running.id} 'Gate.wait': returned, pid {running.pid}>"


def test_the_repr_of_a_failed_job_shows_the_reason_in_one_line(pool: Pool) -> None:
    handle = submitted(pool.needs(retries=1).submit(fail))
    handle.outcome(30)
    text = f"<JobHandle {handle.id} 'fail': exception (ValueError: no such rate), pid {handle.pid}, try 2>"
    assert repr(handle) == text
    killed = submitted(pool.submit(os.kill, 0, signal.SIGKILL))
    killed.outcome(30)
    assert re.fullmatch(r"<JobHandle \d+ 'kill': signal \(ended by SIGKILL\. .{10,80}\.\.\.\), pid \d+>", repr(killed))


def test_the_repr_of_a_pool_shows_resources_and_jobs(gate: Gate) -> None:
    with Pool(cpus=1, seed=7) as pool:
        gpus = len(pool.machine.gpus)
        resources = f"1 CPU, {gpus or 'no'} GPU{'' if gpus == 1 else 's'}"
        assert repr(pool) == f"<Pool: {resources}, seed 7: not used yet>"
        first, second = began(pool.submit(gate.wait)), submitted(pool.submit(gate.wait))
        assert repr(pool) == f"<Pool: {resources}, seed 7: 1 running, 1 waiting, 0 finished>"
        gate.open(2)
        first.result(30), second.result(30)
        within(10, lambda: repr(pool).endswith(": 0 running, 0 waiting, 2 finished>"), "both are shown as finished")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, repr(pool).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 1000).decode() == f"<Pool: {resources}, seed 7: of another process>"
        os.close(read)
        os.close(write)
    assert repr(pool) == f"<Pool: {resources}, seed 7: closed>"


def test_the_reprs_of_a_pool_and_a_job_inside_a_job(pool: Pool) -> None:
    def inside() -> list[str]:
        own = Pool()
        handle = own.submit(int)
        before = repr(handle)
        handle.result(20)
        return [repr(own), before, repr(handle)]

    handle = submitted(pool.submit(inside))
    own_repr, before, after = handle.result(within_s=30)
    assert own_repr == f"<Pool: 1 CPU, no GPUs, inside job {handle.id} 'inside'>"
    assert re.fullmatch(r"<NestedHandle \d+ 'int': not ended as far as is known>", before)
    assert re.fullmatch(r"<NestedHandle \d+ 'int': ended>", after)
