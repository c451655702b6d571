"""The environment of a job: random states, threads, memory limit, variables, folder and output files."""

import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from gates import Gate
from job_functions import submitted

from fanwise.pool import Pool, current, worker
from fanwise.pool.leases import Lease
from fanwise.pool.specs import JobSpec
from fanwise.testing import within


def draw() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def test_the_same_seed_and_number_give_the_same_random_state(pool: Pool) -> None:
    first, equal, different = (submitted(pool.needs(number=n).submit(draw)) for n in (7, 7, 8))
    assert first.result(within_s=30) == equal.result(within_s=30) != different.result(within_s=30)
    assert first.seed == equal.seed != different.seed


def test_a_job_has_its_number_seed_and_lease(pool: Pool) -> None:
    def identity() -> tuple[int, int, int, tuple[str, ...]]:
        job = current()
        return job.number, job.seed, job.cpus, job.gpus

    handle = submitted(pool.needs(number=42, cpus=2).submit(identity))
    assert handle.result(within_s=30) == (42, handle.seed, 2, ())


def test_each_job_has_its_own_output_without_control_characters(pool: Pool) -> None:
    def talk(word: str) -> None:
        print(f"out {word}")
        print(f"\x1b[31merr {word}\x07", file=sys.stderr)
        subprocess.run(["echo", f"child {word}"], check=True)

    handles = [submitted(pool.submit(talk, word)) for word in ("one", "two")]
    for handle, word in zip(handles, ("one", "two"), strict=True):
        handle.result(within_s=30)
        assert handle.output() == (f"out {word}\nchild {word}", f"\\x1b[31merr {word}\\x07")


def test_the_output_of_a_running_job_can_be_read(pool: Pool, gate: Gate) -> None:
    def talk_and_wait() -> None:
        print("so far")
        gate.wait()

    handle = submitted(pool.submit(talk_and_wait))
    within(30, lambda: handle.output()[0] == "so far", "the output of the running job can be read")
    gate.open()
    handle.result(within_s=30)


def test_no_output_files_are_kept_for_finished_jobs(pool: Pool) -> None:
    handle = submitted(pool.submit(print, "hello"))
    handle.result(within_s=30)
    assert handle.output()[0] == "hello"
    within(10, lambda: not list(pool._life.folder.glob("job-*")), "no file of a job is left in the folder of the pool")


def test_threads_follow_the_lease(pool: Pool) -> None:
    def threads() -> tuple[set[str], str]:
        import threadpoolctl

        np.ones((300, 300)) @ np.ones((300, 300))
        pools = {info["num_threads"] for info in threadpoolctl.threadpool_info()}
        names = "OMP_NUM_THREADS", "PJRT_NPROC", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"
        return {os.environ[name] for name in names}, str(sorted(pools))

    assert pool.submit(threads).result(within_s=30) == ({"1"}, "[1]")
    assert pool.needs(cpus=2).submit(threads).result(within_s=30) == ({"2"}, "[2]")


@pytest.mark.parametrize("hard_bytes", [1 << 50, 1 << 30])
def test_a_memory_limit_keeps_the_hard_limit_of_the_user(pool: Pool, hard_bytes: int) -> None:
    def limits() -> tuple[int, int]:
        resource.setrlimit(resource.RLIMIT_DATA, (hard_bytes, hard_bytes))
        job = SimpleNamespace(lease=Lease(cpus=1, gpus=(), memory_bytes=1 << 40))
        worker._limit(cast(JobSpec, job), "fork")
        return resource.getrlimit(resource.RLIMIT_DATA)

    soft, hard = pool.submit(limits).result(within_s=30)
    assert hard == hard_bytes
    assert soft == hard_bytes or 1 << 40 <= soft < 1 << 50


def test_modules_in_the_working_folder_do_not_shadow_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "select"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def environment_of_job() -> tuple[str, str]:
        return sys.path[0], os.getcwd()

    with Pool(cpus=1) as own:
        assert own.submit(environment_of_job).result(within_s=60) == ("", str(tmp_path))


def test_no_gpu_is_visible_without_a_lease_on_one(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert pool.submit(lambda: os.environ["CUDA_VISIBLE_DEVICES"]).result(within_s=30) == ""


def test_jobs_have_the_environment_folder_and_path_of_the_submitter(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def environment_of_job() -> tuple[str | None, str | None, str, str]:
        return os.environ.get("FANWISE_TEST_COLOUR"), os.environ.get("HOME"), os.getcwd(), sys.path[0]

    before = pool.submit(environment_of_job).result(within_s=30)
    assert before[0] is None and before[1] == os.environ["HOME"]
    with monkeypatch.context() as changed:
        changed.setenv("FANWISE_TEST_COLOUR", "red")
        changed.delenv("HOME")
        changed.chdir(tmp_path)
        changed.syspath_prepend(str(tmp_path))
        assert pool.submit(environment_of_job).result(within_s=30) == ("red", None, str(tmp_path), str(tmp_path))
    assert pool.submit(environment_of_job).result(within_s=30) == before


def test_standard_input_is_empty(pool: Pool) -> None:
    assert pool.submit(lambda: sys.stdin.read()).result(within_s=30) == ""


def test_a_job_of_a_pool_without_its_folder_is_lost(tmp_path: Path) -> None:
    with Pool(cpus=1) as pool:
        pool.submit(int).result(within_s=60)
        folder = pool._life.folder
        os.rename(folder, tmp_path / "away")  # at once: the pool removes the output of the job that ended meanwhile
        outcome = submitted(pool.submit(int)).outcome(within_s=60)
    assert outcome.kind == "lost"
    assert outcome.text == (f"it could not begin, because the folder {pool._life.folder} was removed. Make a new pool.")
